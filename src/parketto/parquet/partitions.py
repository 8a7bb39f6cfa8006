"""Rows by partition: the folder of each row, and the rows of each folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, pairwise
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from parketto.parquet.bounds import bounds
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import PartitionSpec
from parketto.sorting.order import split_by_number
from parketto.storage.hive import encode_segment


def by_partition(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """The folder and rows of each partition; consume the rows before you ask for the next partition.

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
    """The rows of each partition folder, in their original order.

    >>> table = pa.table({"day": [1, 2, 1], "n": [7, 8, 9]})
    >>> [(folder, piece["n"].to_pylist()) for folder, piece in pieces_by_folder(table, ["day"])]
    [('day=1', [7, 9]), ('day=2', [8])]
    """
    codes, names = folder_codes(rows, columns)
    for number, piece in split_by_number(rows, codes):
        yield names[number], piece


class FolderNumbers:
    """Numbers the partition folders of rows in the order of their first rows.

    >>> numbers = FolderNumbers(["day"])
    >>> [number for day in (5, 7, 5) for number, _ in numbers.split(pa.table({"day": [day]}))], numbers.folders
    ([0, 1, 0], ['day=5', 'day=7'])
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._numbers: dict[str, int] = {}
        #: The folders by number.
        self.folders: list[str] = []

    def split(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The rows of each folder, in their original order, as slices of one table."""
        codes, names = folder_codes(rows, self._columns)
        known = [self._numbers.setdefault(name, len(self._numbers)) for name in names]
        self.folders += islice(self._numbers, len(self.folders), None)
        for code, piece in split_by_number(rows, codes):
            yield known[code], piece


def folder_codes(rows: pa.Table, columns: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The folder number of each row, and the folders in order of first appearance."""
    codes, count = np.zeros(rows.num_rows, np.int64), min(1, rows.num_rows)
    for name in columns:
        column = rows.column(name).combine_chunks()
        if pat.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        found, values = _encoded(column)
        # Dense codes keep the product from overflowing, and encoding it makes the codes dense again.
        codes, count = (found, values) if count < 2 else _encoded(pa.array(codes * values + found))
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(rows.num_rows)[::-1]  # the last assignment wins, so reversed: the first row
    examples = rows.select(columns).take(pa.array(first)).to_pylist()
    names = [segments(columns, [row[name] for name in columns]) for row in examples]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    if len(numbers) < len(names):  # NULL and "" share a folder
        codes = np.array([numbers[name] for name in names], np.int64)[codes]
    return codes, list(numbers)


def _encoded(column: pa.Array) -> tuple[npt.NDArray[np.int64], int]:
    """The dictionary code of each row, and the number of distinct values."""
    encoded = column.dictionary_encode("encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def segments(columns: Sequence[str], values: Sequence[object]) -> str:
    """The folder for one combination of partition values."""
    return "/".join(map(encode_segment, columns, values))


def canonical_folder(file: FileInfo, spec: PartitionSpec) -> str:
    """The folder to which Parketto would write the rows of a file.

    The actual folder may differ: `day=01` for the number 1, or a folder above the partitions. Values in the file
    take precedence over its path.
    """
    texts = dict(file.partition)
    return segments(spec.partition_by, [_value(file, name, texts[name]) for name in spec.partition_by])


def _value(file: FileInfo, column: str, text: str | None) -> object:
    known = None
    if text is not None and file.schema is not None and column in file.schema.names:
        known = bounds(file, column)
    if known is None or known[0] != known[1]:
        return text
    try:
        return known[0].as_py()
    except ValueError:  # nanoseconds that Python cannot represent
        return text


def folder_names(files: Sequence[FileInfo], spec: PartitionSpec, root: str) -> dict[str, str]:
    """The actual names of folders with non-canonical names, by their canonical names."""
    found: dict[str, str] = {}
    for file in filter(lambda each: each.num_rows, files):
        actual = file.directory[len(root) :].lstrip("/")
        found.setdefault(canonical_folder(file, spec), actual)
    return {canonical: actual for canonical, actual in found.items() if canonical != actual}
