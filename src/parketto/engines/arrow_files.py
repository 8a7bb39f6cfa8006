"""Reads Arrow IPC files and streams with PyArrow, one batch at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from parketto.errors import InvalidArgument
from parketto.parquet.row_source import checked_columns
from parketto.parquet.streams import RereadableRows
from parketto.storage.store import FileEntry, Store

_FILE_MAGIC = b"ARROW1"  # how the file format begins; the stream format has no magic bytes


def arrow_file_rows(store: Store, entries: Sequence[FileEntry]) -> RereadableRows:
    """The rows of Arrow files. Types that differ are promoted; columns that a file lacks are NULL in its rows."""
    files = ArrowFiles(store, tuple(entries))
    return RereadableRows(checked_columns(files.schema), files)


class ArrowFiles:
    """The rows of Arrow files, read anew for every iteration."""

    def __init__(self, store: Store, entries: tuple[FileEntry, ...]) -> None:
        self._store, self._entries = store, entries
        #: The columns of all files.
        self.schema = self._unified()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for entry in self._entries:
            with self._opened(entry) as batches:
                for batch in batches:
                    yield self._conformed(batch)

    def _unified(self) -> pa.Schema:
        found = []
        for entry in self._entries:
            with self._opened(entry) as reader:
                found.append(reader.schema)
        try:
            return pa.unify_schemas(found, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InvalidArgument(
                f"the Arrow files have columns of different types: {error}. Nothing was changed"
            ) from error

    def _conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self.schema):
            return batch
        columns = [
            batch.column(item.name).cast(item.type)
            if item.name in batch.schema.names
            else pa.nulls(batch.num_rows, item.type)
            for item in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @contextlib.contextmanager
    def _opened(self, entry: FileEntry) -> Iterator[Any]:
        """A reader of the file's batches, with errors that name the file."""
        try:
            with self._store.open_input(entry.path, entry) as file:
                source: Any = file if isinstance(file, pa.NativeFile) else pa.PythonFile(file, "r")
                start = source.read(len(_FILE_MAGIC))
                source.seek(0)
                if start == _FILE_MAGIC:
                    whole = pa.ipc.open_file(source)
                    batches = (whole.get_batch(at) for at in range(whole.num_record_batches))
                    yield pa.RecordBatchReader.from_batches(whole.schema, batches)
                else:
                    yield pa.ipc.open_stream(source)
        except pa.ArrowInvalid as error:
            reason = " ".join(str(error).split())
            raise InvalidArgument(
                f"cannot read {entry.path!r} as an Arrow file or stream: {reason}. Nothing was changed"
            ) from error
