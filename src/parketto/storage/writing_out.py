"""Files whose bytes are on their way to the disk before anybody waits for them.

A commit waits until every new file is on the disk. If the kernel is left to itself it begins with that when it is
asked to have it done; so it is told to begin while the rest is still being written.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_SYNC_FILE_RANGE_WRITE = 2
_WORTH_TELLING = 16 * 1024 * 1024
_LOOK_EVERY_SECONDS = 0.05


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


@contextlib.contextmanager
def sent_while_written(path: str) -> Iterator[None]:
    """While somebody else writes a local file, send what is there of it to the disk from time to time."""
    written, send = threading.Event(), _sync_file_range()
    if send is None:
        yield
        return
    sender = threading.Thread(target=_send_until, args=(written, send, path), name="parketto-send", daemon=True)
    try:
        with contextlib.suppress(RuntimeError):  # no more threads: then it is sent in the end
            sender.start()
        yield
    finally:
        written.set()
        if sender.ident is not None:
            sender.join()


def _send_until(written: threading.Event, send: Callable[..., int], path: str) -> None:
    sent = 0
    while not written.wait(_LOOK_EVERY_SECONDS):
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size - sent >= _WORTH_TELLING:
                send(file.fileno(), sent, size - sent, _SYNC_FILE_RANGE_WRITE)
                sent = size


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
