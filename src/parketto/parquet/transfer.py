"""Copies bytes between files: in the kernel if both are local, else a few megabytes at a time."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterable
from typing import IO, Any

from parketto.errors import FooterError
from parketto.parquet.footer import read_exactly, size_of

_CHUNK_BYTES = 4 * 1024 * 1024
_KERNEL_CHUNK_BYTES = 256 * 1024 * 1024
_GAP_BYTES = 64 * 1024  # ranges with smaller gaps are read at once: the gap costs less than another request
# Errors of filesystems that cannot copy in the kernel.
_UNSUPPORTED = frozenset(
    {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.ETXTBSY, errno.EIO}
)


def copy_range(source: IO[bytes], start: int, size: int, sink: IO[bytes]) -> None:
    """Append a range of the source to the sink.

    Raises:
        FooterError: The source ends before the range does.
    """
    copied = _copy_in_kernel(source, start, size, sink)
    while copied < size:
        part = _read_next(source, start + copied, min(_CHUNK_BYTES, size - copied))
        write_fully(sink, part)
        copied += len(part)


def _read_next(source: IO[bytes], start: int, size: int) -> bytes:
    """Up to `size` bytes, without a copy if the source can share its memory."""
    share: Callable[[int], bytes] | None = getattr(source, "read_buffer", None)
    if share is None:
        return read_exactly(source, start, size)
    source.seek(start)
    return share(size) or read_exactly(source, start, size)  # raises if the file is too short


def write_fully(sink: IO[bytes], data: bytes) -> None:
    """Write all bytes: unbuffered files may write fewer per call."""
    rest = memoryview(data)
    while rest:
        written: int | None = sink.write(rest)
        if written is None:  # PyArrow's sinks write everything and return None
            return
        rest = rest[written:]


def read_ranges(source: IO[bytes], ranges: Iterable[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
    """Read many small ranges (start and size), nearby ones together."""
    found: dict[tuple[int, int], bytes] = {}
    batch: list[tuple[int, int]] = []
    end = 0
    for start, size in sorted(set(ranges)):
        if batch and (start - end > _GAP_BYTES or start + size - batch[0][0] > _CHUNK_BYTES):
            _read_batch(source, batch, end, found)
            batch = []
        end = max(end, start + size) if batch else start + size
        batch.append((start, size))
    if batch:
        _read_batch(source, batch, end, found)
    return found


def _read_batch(
    source: IO[bytes], batch: list[tuple[int, int]], end: int, found: dict[tuple[int, int], bytes]
) -> None:
    first = batch[0][0]
    data = read_exactly(source, first, end - first)
    for start, size in batch:
        found[start, size] = data[start - first : start - first + size]


def _copy_in_kernel(source: IO[bytes], start: int, size: int, sink: IO[bytes]) -> int:
    """Copy in the kernel, and return the number of copied bytes. Some filesystems only share the blocks."""
    from_file = _descriptor(source)
    to_file = _descriptor(sink) if isinstance(sink, io.FileIO | io.BufferedWriter) else None
    if from_file is None or to_file is None or not hasattr(os, "copy_file_range"):
        return 0
    sink.flush()  # Python's buffer comes first
    position = sink.tell()
    copied = 0
    while copied < size:
        try:
            count = os.copy_file_range(
                from_file, to_file, min(size - copied, _KERNEL_CHUNK_BYTES), start + copied, position + copied
            )
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            break
        if not count:
            break  # the file was truncated, or is a pseudo-file; reading it shows which
        copied += count
    # With an explicit offset the kernel does not move the file position.
    sink.seek(position + copied)
    return copied


def _descriptor(file: Any) -> int | None:
    """The descriptor of a plain local file. Wrappers (for compression, say) have one as well, but other bytes."""
    raw: Any = getattr(file, "raw", None) if isinstance(file, io.BufferedReader | io.BufferedWriter) else file
    with contextlib.suppress(OSError, ValueError):
        if isinstance(raw, io.FileIO) or (type(raw).__module__, type(raw).__name__) == ("pyarrow.lib", "OSFile"):
            return int(raw.fileno())
    return None


def check_size(source: IO[bytes], expected: int) -> None:
    """Raise if the size of a file has changed since its footer was read."""
    if size_of(source) != expected:
        raise FooterError("the file has changed since its footer was read")
