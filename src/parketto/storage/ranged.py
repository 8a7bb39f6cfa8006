"""A remote file as a seekable one: what is known of it is not asked for again, the rest is read by ranges."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable

# Ranges that were read last are kept up to this size: a reader looks at the first rows to see how wide they are
# before it reads all of them, and an edit reads some columns of a row group before it copies it.
_KEPT_BYTES = 16 * 1024 * 1024
_SMALLEST_READ = 64 * 1024  # what lies behind a few bytes is mostly needed next, and costs less than a request


class RangedFile(io.RawIOBase):
    """A file that is read by requests for ranges. Not for several threads.

    Args:
        fetch: Reads the bytes from a start to an end.
        size: How long the file is.
        tail: The end of the file, as far as it is known.
        block_bytes: To read at least this much with each request.
    """

    def __init__(
        self, fetch: Callable[[int, int], bytes], size: int, tail: bytes = b"", block_bytes: int = 0
    ) -> None:
        super().__init__()
        self._fetch, self._size, self._tail = fetch, size, tail
        self._block = max(block_bytes, _SMALLEST_READ)
        self._kept: deque[tuple[int, bytes]] = deque()
        self._position = 0

    def readable(self) -> bool:
        """It is for reading."""
        return True

    def seekable(self) -> bool:
        """Any position can be read."""
        return True

    def size(self) -> int:
        """The number of bytes."""
        return self._size

    def tell(self) -> int:
        """The position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes, or all that are left."""
        end = self._size if size is None or size < 0 else min(self._position + size, self._size)
        start, self._position = self._position, max(self._position, end)
        return self._range(start, end) if end > start else b""

    def readall(self) -> bytes:
        """All that is left."""
        return self.read()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer, as far as there are bytes."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Forget what was read."""
        self._kept.clear()
        self._tail = b""
        super().close()

    def _range(self, start: int, end: int) -> bytes:
        for first, known in ((self._size - len(self._tail), self._tail), *self._kept):
            if first <= start and end <= first + len(known):
                return known if len(known) == end - start else known[start - first : end - first]
        # What the tail has is not read again.
        last = min(max(end, start + self._block), self._size)
        if end <= self._size - len(self._tail) < last:
            last = self._size - len(self._tail)
        found = self._fetch(start, last)
        self._keep(start, found)
        return found[: end - start] if len(found) > end - start else found

    def _keep(self, start: int, found: bytes) -> None:
        if len(found) > _KEPT_BYTES:
            return
        self._kept.append((start, found))
        while sum(len(known) for _, known in self._kept) > _KEPT_BYTES:
            self._kept.popleft()
