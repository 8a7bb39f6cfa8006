"""Rewriting a file of which some rows change: they get new values in their place, leave for elsewhere, or go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parketto.kernels.carrier import carrier_schema, recast
from parketto.kernels.merge_source import prepared_schema
from parketto.kernels.reader import LogicalReader
from parketto.kernels.rewrite import file_writer, row_group_ends
from parketto.kernels.work import Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.plan.form import Form
from parketto.storage.footers import FileInfo

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowEdits:
    """What happens to some rows of a batch.

    `at` are their positions, `rows` the new values for each; of these rows some are the `homes` of their new
    values, some leave with them (`leaving`), and the others go.
    """

    at: Indices
    homes: Flags
    leaving: Flags
    rows: pa.Table


@dataclass(frozen=True)
class Rewriting:
    """How files are rewritten."""

    form: Form
    compression: str | None
    #: The columns that new values are for; None: all of them.
    updated: frozenset[str] | None
    #: Whether rows stay that nothing is said of.
    keeps_others: bool
    #: Where rows go that leave.
    elsewhere: Output | None = None


@dataclass(frozen=True)
class Rewritten:
    """What was written in the place of a file, and what of it was written elsewhere."""

    kept: Written = field(default_factory=Written)
    left: Written = field(default_factory=Written)


def rewrite_file(
    file: FileInfo, rewriting: Rewriting, edits_of: Callable[[int, pa.RecordBatch], RowEdits], worker: Worker
) -> Rewritten:
    """Stream a file through. `edits_of` gets the number of a batch's first row, and the batch.

    If no row stays, there is no file.
    """
    assert file.schema is not None, "files to rewrite come from a snapshot"
    schema = carrier_schema(file.schema).remove_metadata()
    start = rows = 0
    writer, ends = file_writer(file, "merge", rewriting.compression, worker), row_group_ends(file)
    names = [*schema.names, *(name for name in rewriting.form.path_only if name not in schema.names)]
    spool = _Spool(worker)
    try:
        for batch in worker.until_cancelled(logical_rows(worker, file, names, rewriting.form)):
            edits = edits_of(start, batch)
            start += batch.num_rows
            kept = _kept(batch.select(schema.names), edits, rewriting)
            rows += kept.num_rows
            for part in kept.to_batches():
                writer.write(recast(part, schema))
            if start in ends:
                writer.cut()
            if edits.leaving.any():
                spool.add(_left(batch, edits, rewriting.updated))
        if rows:
            writer.finish()
    except BaseException:
        writer.abandon()
        raise
    left = Written()
    if spool.rows:
        assert rewriting.elsewhere is not None, "rows leave for somewhere"
        wanted = rewriting.elsewhere.row_schema.names
        leaving = (part.select(wanted) for part in spool.read())
        left = write_rows(leaving, rewriting.elsewhere, worker, at_least_one=False)
    return Rewritten(Written(tuple(writer.staged), rows), left)


def _kept(batch: pa.RecordBatch, edits: RowEdits, rewriting: Rewriting) -> pa.Table:
    """A batch with the rows that stay, changed or not."""
    if not len(edits.at) and rewriting.keeps_others:
        return pa.Table.from_batches([batch])
    own = np.arange(batch.num_rows)
    new = own.copy()
    new[edits.at[edits.homes]] = batch.num_rows + np.flatnonzero(edits.homes)
    keep = np.full(batch.num_rows, rewriting.keeps_others)
    keep[edits.at] = edits.homes
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if edits.homes.any() and (rewriting.updated is None or name in rewriting.updated):
            both = pa.chunked_array([column, *edits.rows.column(name).cast(column.type).chunks])
            columns[name] = both.take(pa.array(new[keep]))
        else:
            columns[name] = column.take(pa.array(own[keep]))
    return pa.table(columns)


def _left(batch: pa.RecordBatch, edits: RowEdits, updated: frozenset[str] | None) -> pa.Table:
    """The rows that leave, whole: new values where there are any, old ones elsewhere."""
    here, new = pa.array(edits.at[edits.leaving]), pa.array(np.flatnonzero(edits.leaving))
    return pa.table(
        {
            name: edits.rows.column(name).cast(column.type).take(new)
            if updated is None or name in updated
            else column.take(here)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
    )


def logical_rows(worker: Worker, file: FileInfo, names: Sequence[str], form: Form) -> Iterator[pa.RecordBatch]:
    """Rows of a file in the types of a prepared source: columns of the path as texts."""
    assert file.schema is not None, "files to read come from a snapshot"
    texts = replace(form, path_only={name: pa.string() for name in form.path_only})
    whole = prepared_schema(texts.row_schema(file.schema), texts)
    schema = pa.schema([whole.field(name) for name in names])
    reader = LogicalReader(worker.store, schema, worker.batch_bytes, texts, use_threads=worker.use_threads)
    yield from reader.read(file)


class _Spool:
    """Rows that are needed again later, on disk meanwhile."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._path, self.rows = worker, "", 0
        self._sink: pa.NativeFile | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Keep some rows."""
        if self._writer is None:
            self._path = f"{self._worker.scratch_directory()}/leaving.arrows"
            self._sink = pa.OSFile(self._path, "wb")
            self._writer = pa.ipc.new_stream(self._sink, rows.schema)
        self.rows += rows.num_rows
        self._writer.write_table(rows)

    def read(self) -> Iterator[pa.RecordBatch]:
        """All of them."""
        if self._writer is not None and self._sink is not None:
            self._writer.close()
            self._sink.close()
        with pa.OSFile(self._path, "rb") as source, pa.ipc.open_stream(source) as reader:
            yield from reader
