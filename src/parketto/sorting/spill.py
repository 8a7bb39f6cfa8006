"""Spill files: rows that do not fit into memory, on local disk, written once and read once."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

import pyarrow as pa

Key = TypeVar("Key")

# Rows that LZ4 shrinks to less than this share are spilled compressed. Other rows take longer to compress and to
# decompress, about two seconds of processor time per gigabyte, than a disk takes.
_WORTH_COMPRESSING = 1 / 3
_PROBE_ROWS = 4096


@dataclass(frozen=True)
class SpillFile:
    """Rows on disk. Iterating reads them in write order, and removes the file at the end."""

    path: str

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(self.path, "rb") as source, pa.ipc.open_stream(source) as reader:
            yield from reader
        os.unlink(self.path)


class SpillFiles(Generic[Key]):
    """One spill file per key, created at its first write. The files are complete after `close`.

    Args:
        scratch: The local folder to write to.
    """

    def __init__(self, scratch: str) -> None:
        self._prefix = os.path.join(scratch, f"spill-{uuid.uuid4().hex}")
        self._open = ExitStack()
        self._writers: dict[Key, pa.ipc.RecordBatchStreamWriter] = {}
        self._sizes: dict[Key, int] = {}
        self._files: dict[Key, SpillFile] = {}
        self._compression: str | None = ""

    def __enter__(self) -> SpillFiles[Key]:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._files)

    def __contains__(self, key: object) -> bool:
        return key in self._files

    def __getitem__(self, key: Key) -> SpillFile:
        return self._files[key]

    def write(self, key: Key, rows: pa.Table | pa.RecordBatch) -> None:
        """Append rows to the file of a key."""
        writer = self._writers.get(key)
        if writer is None:
            if self._compression == "":
                self._compression = compression_of(rows)
            self._files[key] = SpillFile(f"{self._prefix}-{len(self._files):05d}.arrows")
            writer = self._writers[key] = self._open.enter_context(
                _new_stream(self._files[key].path, rows.schema, self._open, self._compression)
            )
        writer.write(rows)
        self._sizes[key] = self._sizes.get(key, 0) + rows.nbytes

    def size(self, key: Key) -> int:
        """The size of the rows of a key in memory, in bytes; 0 if there are none."""
        return self._sizes.get(key, 0)

    def close(self) -> None:
        """Finish all files."""
        self._open.close()


class ScratchFolder:
    """A temporary folder for spill files, which is removed with this object at the latest."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="parketto-")
        #: Removes the folder.
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def spill(batches: Iterable[pa.RecordBatch], schema: pa.Schema, scratch: str) -> SpillFile:
    """Write rows to a new spill file."""
    file = SpillFile(os.path.join(scratch, f"spill-{uuid.uuid4().hex}.arrows"))
    remaining = iter(batches)
    first = next(remaining, pa.RecordBatch.from_pylist([], schema))
    with ExitStack() as stack, _new_stream(file.path, schema, stack, compression_of(first)) as writer:
        for batch in chain([first], remaining):
            writer.write_batch(batch)
    return file


def compression_of(rows: pa.Table | pa.RecordBatch) -> str | None:
    """The codec for rows like these, if compressing them pays off."""
    some = rows.slice(0, _PROBE_ROWS)
    sink = pa.BufferOutputStream()
    with _stream(sink, rows.schema, "lz4") as writer:
        writer.write(some)
    return "lz4" if sink.tell() < _WORTH_COMPRESSING * some.nbytes else None


def _new_stream(
    path: str, schema: pa.Schema, stack: ExitStack, compression: str | None
) -> pa.ipc.RecordBatchStreamWriter:
    return _stream(stack.enter_context(pa.OSFile(path, "wb")), schema, compression)


def _stream(sink: pa.NativeFile, schema: pa.Schema, compression: str | None) -> pa.ipc.RecordBatchStreamWriter:
    return pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression))
