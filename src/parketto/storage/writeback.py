"""Early writeback: the kernel writes files to disk while the rest of them is still being produced.

A commit waits until every new file is on disk. Left to itself, the kernel starts writeback only at the fsync.
"""

from __future__ import annotations

import ctypes
import functools
import io
import sys
from collections.abc import Callable
from typing import Any

_SYNC_FILE_RANGE_WRITE = 2
_WRITEBACK_BYTES = 16 * 1024 * 1024  # start writeback after this many new bytes


class WritebackFile(io.BufferedWriter):
    """A new local file that starts writeback from time to time, without waiting for it."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._writeback_end = self._pending = 0

    def write(self, data: Any, /) -> int:
        """Write bytes; starts writeback once enough are new."""
        written = super().write(data)
        self._pending += written
        if self._pending >= _WRITEBACK_BYTES:
            self.flush()
        return written

    def flush(self) -> None:
        """Flush to the kernel; starts writeback once enough bytes are new."""
        super().flush()
        # The kernel may have copied bytes to the file past this object: trust the position.
        if not self.closed and self.tell() - self._writeback_end >= _WRITEBACK_BYTES:
            self._start_writeback()

    def close(self) -> None:
        """Start writeback of the rest, and close the file."""
        try:
            if not self.closed:
                super().flush()
                self._start_writeback()
        finally:
            super().close()

    def _start_writeback(self) -> None:
        end = self.tell()
        if (sync_range := _sync_file_range()) is not None and end > self._writeback_end:
            # The result is ignored: fsync waits for the bytes, and reports errors.
            sync_range(self.fileno(), self._writeback_end, end - self._writeback_end, _SYNC_FILE_RANGE_WRITE)
        self._writeback_end, self._pending = end, 0


@functools.cache
def _sync_file_range() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    sync_range: Callable[..., int] = function
    return sync_range
