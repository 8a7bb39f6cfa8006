"""Which row groups of files that are put together are copied as bytes, and which are encoded anew.

Copying costs next to nothing, and a copy has what the row group had: its bounds, its Bloom filters, its order. But
small row groups make files that are larger and slower to read, whoever writes them. So small ones that stand
together are made into few good ones, and the others are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal, TypeAlias, get_args

from parketto.errors import InvalidArgument, quoted
from parketto.storage.footers import FileInfo
from parketto.storage.row_groups import RowGroupInfo

#: How rows come into new files: copied where that is good, wherever it is possible, or nowhere.
Rewrite = Literal["auto", "copy", "encode"]
REWRITES: tuple[Rewrite, ...] = get_args(Rewrite)
#: For each file, for each of its row groups, whether it is copied.
Copies: TypeAlias = tuple[tuple[bool, ...], ...]

# What a row group costs its readers beyond its values, they pay for each column chunk: so it is rows that count.
# Processor time of full scans of 3, 8 and 50 columns, against row groups of a million rows: with 5,000 rows DuckDB
# took 1.2 to 1.6 times as long and Spark 1.7 to 2.6 times; with 10,000, 1.0 to 1.5 and 1.5 to 1.9 times. From
# 25,000 to 100,000 both are about flat, at 1.0 to 1.5 and 1.1 to 1.5 times; what is left comes from files that are
# up to a quarter larger, by dictionaries of values that hardly repeat. The border lies above the bend.
_WORTH_ROWS = 32 * 1024
# Long values make a chunk large with fewer rows. One that fills a page of the usual size is no small one.
_WORTH_CHUNK_BYTES = 1024 * 1024
# So many times larger at most are values taken to be than their bytes in a small file. If they are larger still,
# row groups may be encoded that were worth copying; small files have nothing to lose by that.
_MOST_COMPRESSED = 16

# The number of a file, and of a row group in it.
_Place: TypeAlias = tuple[int, int]


def check_rewrite(rewrite: object) -> Rewrite:
    """How rows come into new files, if there is such a way."""
    for known in REWRITES:
        if rewrite == known:
            return known
    raise InvalidArgument(f"unknown rewrite {rewrite!r}; valid ways: {quoted(REWRITES)}")


def is_worth_copying(group: RowGroupInfo, columns: int) -> bool:
    """Whether a row group of so many columns is large enough to stay as it is.

    >>> is_worth_copying(RowGroupInfo(50_000, 3_000_000), 8), is_worth_copying(RowGroupInfo(25_000, 900_000), 8)
    (True, False)
    """
    return group.num_rows >= _WORTH_ROWS or group.total_byte_size >= _WORTH_CHUNK_BYTES * max(1, columns)


def is_small(file: FileInfo) -> bool:
    """Whether no row group of a file is worth copying, unless it lies alone: they need not be looked at.

    >>> is_small(FileInfo("a.parquet", 40_000, 500)), is_small(FileInfo("a.parquet", 40_000, 50_000))
    (True, False)
    """
    columns = max(1, len(file.traits.leaves))
    return file.num_rows < _WORTH_ROWS and file.size_bytes * _MOST_COMPRESSED < _WORTH_CHUNK_BYTES * columns


def filled(file: FileInfo) -> list[int]:
    """The numbers of the row groups that have rows; in a small file that has rows they all count."""
    if is_small(file):
        return list(range(len(file.row_groups) if file.num_rows else 0))
    return [number for number, group in enumerate(file.row_groups) if group.num_rows]


def copies(
    files: Sequence[FileInfo], rewrite: Rewrite, codec: str | None = None, *, keeps_row_groups: bool = False
) -> Copies:
    """Which row groups are copied if files become one file.

    Args:
        files: The files, in the order in which they are put together.
        rewrite: The way that is asked for.
        codec: The codec that row groups must have; None leaves each its own.
        keeps_row_groups: Whether row groups are what they should be, however small.
    """
    if rewrite == "encode":
        return tuple((False,) * len(file.row_groups) for file in files)

    def group_at(place: _Place) -> RowGroupInfo:
        return files[place[0]].row_groups[place[1]]

    def is_possible(place: _Place) -> bool:
        return group_at(place).num_rows > 0 and (codec is None or group_at(place).codec == codec)

    if rewrite == "auto" and not keeps_row_groups:
        places = [(at, number) for at, file in enumerate(files) for number in filled(file)]
        good = {
            (at, number)
            for at, number in places
            if not is_small(files[at])
            and is_possible((at, number))
            and is_worth_copying(group_at((at, number)), len(files[at].traits.leaves))
        }
        chosen = good | {place for place in _lonely(places, good) if is_possible(place)}
    else:
        places = [(at, number) for at, file in enumerate(files) for number in range(len(file.row_groups))]
        chosen = {place for place in places if is_possible(place)}
    return tuple(
        tuple((at, number) in chosen for number in range(len(file.row_groups))) for at, file in enumerate(files)
    )


def _lonely(places: Sequence[_Place], good: set[_Place]) -> set[_Place]:
    """Those between good ones, or at an end, with none beside them to be put together with."""
    runs = [list(run) for _, run in groupby(places, key=good.__contains__)]
    return {run[0] for run in runs if len(run) == 1}
