"""Cutting rows that are in the order of their partitions into the partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from parketto.layout.order import by_number
from parketto.plan.form import Form
from parketto.storage.bounds import bounds
from parketto.storage.footers import FileInfo
from parketto.storage.hive import encode_segment


def by_partition(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """The folder of each partition, with its rows; each partition's rows must be used before the next one's.

    >>> batch = pa.record_batch({"day": [1, 1, 2], "n": [7, 8, 9]})
    >>> [(folder, [rows.num_rows for rows in found]) for folder, found in by_partition([batch], ["day"])]
    [('day=1', [2]), ('day=2', [1])]
    """
    pieces = (piece for batch in batches for piece in _pieces(batch, columns))
    for folder, found in groupby(pieces, key=itemgetter(0)):
        yield folder, (rows for _, rows in found)


def _pieces(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    if batch.num_rows == 0:
        return
    codes = [
        batch.column(name).dictionary_encode("encode").indices.to_numpy(zero_copy_only=False) for name in columns
    ]
    changes = np.any([column[1:] != column[:-1] for column in codes], axis=0)
    borders = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    for start, stop in pairwise(borders):
        values = [batch.column(name)[start].as_py() for name in columns]
        yield segments(columns, values), batch.slice(start, stop - start)


def folders(rows: pa.Table, columns: Sequence[str]) -> pa.Array:
    """The partition folder of each row.

    >>> folders(pa.table({"day": [1, 2, 1]}), ["day"]).to_pylist()
    ['day=1', 'day=2', 'day=1']
    """
    codes, names = folder_codes(rows, columns)
    return pa.array(names, pa.string()).take(pa.array(codes))


def pieces_by_folder(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each partition folder, in their order.

    >>> table = pa.table({"day": [1, 2, 1], "n": [7, 8, 9]})
    >>> [(folder, piece["n"].to_pylist()) for folder, piece in pieces_by_folder(table, ["day"])]
    [('day=1', [7, 9]), ('day=2', [8])]
    """
    codes, names = folder_codes(rows, columns)
    order, spans = by_number(codes)
    ordered = rows.take(pa.array(order))
    for number, start, stop in spans:
        yield names[number], ordered.slice(start, stop - start)


def folder_codes(rows: pa.Table, columns: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """For each row the number of its folder, and the folders, in the order in which they first come."""
    codes, count = np.zeros(rows.num_rows, np.int64), min(1, rows.num_rows)
    for name in columns:
        column = rows.column(name).combine_chunks()
        if pat.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        found, values = _encoded(column)
        # Codes of the columns so far are dense, so that the product never overflows; and then they are again.
        codes, count = (found, values) if count < 2 else _encoded(pa.array(codes * values + found))
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(rows.num_rows)[::-1]  # of several rows the last that is assigned counts
    examples = rows.select(columns).take(pa.array(first)).to_pylist()
    return codes, [segments(columns, [row[name] for name in columns]) for row in examples]


def _encoded(column: pa.Array) -> tuple[npt.NDArray[np.int64], int]:
    """For each row the number of its value, from 0; and how many values there are."""
    encoded = column.dictionary_encode("encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def segments(columns: Sequence[str], values: Sequence[object]) -> str:
    """The folder of one combination of partition values."""
    return "/".join(map(encode_segment, columns, values))


def canonical_folder(file: FileInfo, form: Form) -> str:
    """The folder that rows of a file would be written to today.

    Somebody else may have named it otherwise: `day=01` for the number 1, or a folder above the partitions. What
    the file itself says counts.
    """
    texts = dict(file.partition)
    return segments(form.partition_by, [_value(file, name, texts[name]) for name in form.partition_by])


def _value(file: FileInfo, column: str, text: str | None) -> object:
    known = None
    if text is not None and file.schema is not None and column in file.schema.names:
        known = bounds(file, column)
    if known is None or known[0] != known[1]:
        return text
    try:
        return known[0].as_py()
    except ValueError:  # nanoseconds that Python cannot hold
        return text


def folder_names(files: Sequence[FileInfo], form: Form, root: str) -> dict[str, str]:
    """Folders under another name than the one they would get today: today's name to the actual one."""
    found: dict[str, str] = {}
    for file in filter(lambda each: each.num_rows, files):
        actual = file.directory[len(root) :].lstrip("/")
        found.setdefault(canonical_folder(file, form), actual)
    return {today: actual for today, actual in found.items() if today != actual}
