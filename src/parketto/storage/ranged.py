"""A remote file as a seekable file, read by ranges; bytes that are already known are not requested again."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable

# Recently read ranges are cached up to this size: a reader samples the first rows for their width before it reads
# all of them, and an edit reads some columns of a row group before it copies it.
_CACHE_BYTES = 16 * 1024 * 1024
_MIN_READ_BYTES = 64 * 1024  # the bytes that follow are mostly needed next, and cost less than a request


class RangedFile(io.RawIOBase):
    """A file that is read by range requests. Not thread-safe.

    Args:
        fetch: Reads the bytes from a start to an end.
        size: The file size in bytes.
        tail: The end of the file, if already read.
        block_bytes: The minimum size of a request.
    """

    def __init__(
        self, fetch: Callable[[int, int], bytes], size: int, tail: bytes = b"", block_bytes: int = 0
    ) -> None:
        super().__init__()
        self._fetch, self._size, self._tail = fetch, size, tail
        self._block = max(block_bytes, _MIN_READ_BYTES)
        self._cached: deque[tuple[int, bytes]] = deque()
        self._position = 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """The current position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes, or all that are left."""
        end = self._size if size is None or size < 0 else min(self._position + size, self._size)
        start, self._position = self._position, max(self._position, end)
        return self._range(start, end) if end > start else b""

    def readall(self) -> bytes:
        """All that is left."""
        return self.read()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer with what is left, and return the number of bytes."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Close the file and drop the cached ranges."""
        self._cached.clear()
        self._tail = b""
        super().close()

    def _range(self, start: int, end: int) -> bytes:
        for first, known in ((self._size - len(self._tail), self._tail), *self._cached):
            if first <= start and end <= first + len(known):
                return known if len(known) == end - start else known[start - first : end - first]
        # Read-ahead stops where the known tail begins.
        last = min(max(end, start + self._block), self._size)
        if end <= self._size - len(self._tail) < last:
            last = self._size - len(self._tail)
        found = self._fetch(start, last)
        self._cache(start, found)
        return found[: end - start] if len(found) > end - start else found

    def _cache(self, start: int, found: bytes) -> None:
        if len(found) > _CACHE_BYTES:
            return
        self._cached.append((start, found))
        while sum(len(known) for _, known in self._cached) > _CACHE_BYTES:
            self._cached.popleft()
