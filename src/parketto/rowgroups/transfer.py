"""Bytes from one file to another: by the kernel where both are local files, else a few megabytes at a time."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterable
from typing import IO, Any

from parketto.errors import FooterError
from parketto.rowgroups.footer import read_exactly, size_of

_CHUNK_BYTES = 4 * 1024 * 1024
_KERNEL_CHUNK_BYTES = 256 * 1024 * 1024
# Ranges that are so near to each other are read at once; what lies between costs less than another request.
_GAP_BYTES = 64 * 1024
# What filesystems say that cannot copy among themselves: then we do it.
_NOT_HERE = frozenset(
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
    """So many bytes, or fewer. What lies in memory is not copied if its owner can hand it out."""
    share: Callable[[int], bytes] | None = getattr(source, "read_buffer", None)
    if share is None:
        return read_exactly(source, start, size)
    source.seek(start)
    return share(size) or read_exactly(source, start, size)  # which says what is wrong


def write_fully(sink: IO[bytes], data: bytes) -> None:
    """Write all of it: files without a buffer may take less at once."""
    rest = memoryview(data)
    while rest:
        written: int | None = sink.write(rest)
        if written is None:  # sinks of PyArrow take all, and do not say so
            return
        rest = rest[written:]


def read_ranges(source: IO[bytes], ranges: Iterable[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
    """Read many small ranges (start and size), neighbours together."""
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
    """Let the kernel copy; the number of bytes that it did. Some filesystems only note that they are the same."""
    from_file = _descriptor(source)
    to_file = _descriptor(sink) if isinstance(sink, io.FileIO | io.BufferedWriter) else None
    if from_file is None or to_file is None or not hasattr(os, "copy_file_range"):
        return 0
    sink.flush()  # what is still in Python's buffer comes first
    position = sink.tell()
    copied = 0
    while copied < size:
        try:
            count = os.copy_file_range(
                from_file, to_file, min(size - copied, _KERNEL_CHUNK_BYTES), start + copied, position + copied
            )
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            break
        if not count:
            break  # the file has become shorter, or it is one that only looks like a file: reading it tells
        copied += count
    # The kernel was told where to write, and has not moved the file's own position.
    sink.seek(position + copied)
    return copied


def _descriptor(file: Any) -> int | None:
    """The descriptor of a plain local file. What wraps one (to compress, say) has one as well, but other bytes."""
    raw: Any = getattr(file, "raw", None) if isinstance(file, io.BufferedReader | io.BufferedWriter) else file
    with contextlib.suppress(OSError, ValueError):
        if isinstance(raw, io.FileIO) or (type(raw).__module__, type(raw).__name__) == ("pyarrow.lib", "OSFile"):
            return int(raw.fileno())
    return None


def check_size(source: IO[bytes], expected: int) -> None:
    """Make sure that a file still has the size that its footer was read with."""
    if size_of(source) != expected:
        raise FooterError("the file has changed since its footer was read")
