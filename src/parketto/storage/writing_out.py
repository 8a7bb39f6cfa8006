"""Files whose bytes are on their way to the disk before anybody waits for them.

A commit waits until every new file is on the disk. If the kernel is left to itself it begins with that when it is
asked to have it done; so it is told to begin while the rest is still being written.
"""

from __future__ import annotations

import ctypes
import functools
import io
import sys
from collections.abc import Callable
from typing import Any

_SYNC_FILE_RANGE_WRITE = 2
_WORTH_TELLING = 16 * 1024 * 1024


class EagerFile(io.BufferedWriter):
    """A new local file. What was written is sent to the disk from time to time, without waiting for it."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._sent = self._unsent = 0

    def write(self, data: Any, /) -> int:
        """Take bytes; now and then they are sent."""
        written = super().write(data)
        self._unsent += written
        if self._unsent >= _WORTH_TELLING:
            self.flush()
        return written

    def flush(self) -> None:
        """Hand what is here to the kernel; if that is much, it is sent."""
        super().flush()
        # The kernel may have copied to the file, past this object: its position tells.
        if not self.closed and self.tell() - self._sent >= _WORTH_TELLING:
            self._send()

    def close(self) -> None:
        """Send the rest."""
        try:
            if not self.closed:
                super().flush()
                self._send()
        finally:
            super().close()

    def _send(self) -> None:
        end = self.tell()
        if (send := _sync_file_range()) is not None and end > self._sent:
            # Whatever it answers: whoever needs the bytes on the disk waits for them, and hears of errors then.
            send(self.fileno(), self._sent, end - self._sent, _SYNC_FILE_RANGE_WRITE)
        self._sent, self._unsent = end, 0


@functools.cache
def _sync_file_range() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    send: Callable[..., int] = function
    return send
