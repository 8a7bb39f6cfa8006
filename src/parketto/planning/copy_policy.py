"""Copy policy: which row groups of merged files are copied as bytes, and which are re-encoded.

Copying is nearly free, and keeps the bounds, Bloom filters and order of a row group. But small row groups make
files larger and slower to read. So adjacent small ones are re-encoded into few large ones; the others are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal, TypeAlias, get_args

from parketto.errors import InvalidArgument, quoted
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_group_info import RowGroupInfo

#: How rows get into new files: copied where beneficial, copied wherever possible, or always encoded.
Rewrite = Literal["auto", "copy", "encode"]
REWRITES: tuple[Rewrite, ...] = get_args(Rewrite)
#: For each file, for each of its row groups, whether it is copied.
Copies: TypeAlias = tuple[tuple[bool, ...], ...]

# Readers pay the overhead of a row group per column chunk, so the threshold is in rows. CPU time of full scans of
# 3, 8 and 50 columns, relative to row groups of a million rows: with 5,000 rows, DuckDB takes 1.2 to 1.6 times as
# long and Spark 1.7 to 2.6 times; with 10,000, 1.0 to 1.5 and 1.5 to 1.9 times. From 25,000 to 100,000 both are
# about flat, at 1.0 to 1.5 and 1.1 to 1.5 times; the rest comes from files that are up to a quarter larger, due to
# dictionaries of high-cardinality columns. The threshold is above the bend.
_MIN_COPY_ROWS = 32 * 1024
# Long values fill a column chunk with fewer rows. One that fills a page of the usual size is not small.
_MIN_COPY_CHUNK_BYTES = 1024 * 1024
# Assumed maximum compression ratio of a small file. Beyond it, row groups that are worth copying may be encoded,
# which costs small files nothing.
_MAX_COMPRESSION_RATIO = 16

# The indices of a file, and of a row group in it.
_Position: TypeAlias = tuple[int, int]


def check_rewrite(rewrite: object) -> Rewrite:
    """The validated rewrite mode."""
    for known in REWRITES:
        if rewrite == known:
            return known
    raise InvalidArgument(f"unknown rewrite {rewrite!r}; valid choices: {quoted(REWRITES)}")


def is_worth_copying(group: RowGroupInfo, columns: int) -> bool:
    """Whether a row group with `columns` columns is large enough to be copied.

    >>> is_worth_copying(RowGroupInfo(50_000, 3_000_000), 8), is_worth_copying(RowGroupInfo(25_000, 900_000), 8)
    (True, False)
    """
    return group.num_rows >= _MIN_COPY_ROWS or group.total_byte_size >= _MIN_COPY_CHUNK_BYTES * max(1, columns)


def is_small(file: FileInfo) -> bool:
    """Whether no row group of a file is worth copying, unless it is isolated; they need no inspection.

    >>> is_small(FileInfo("a.parquet", 40_000, 500)), is_small(FileInfo("a.parquet", 40_000, 50_000))
    (True, False)
    """
    columns = max(1, len(file.traits.leaves))
    return (
        file.num_rows < _MIN_COPY_ROWS
        and file.size_bytes * _MAX_COMPRESSION_RATIO < _MIN_COPY_CHUNK_BYTES * columns
    )


def non_empty_row_groups(file: FileInfo) -> list[int]:
    """The indices of the row groups with rows; of all row groups in a small file with rows."""
    if is_small(file):
        return list(range(len(file.row_groups) if file.num_rows else 0))
    return [number for number, group in enumerate(file.row_groups) if group.num_rows]


def copies(
    files: Sequence[FileInfo], rewrite: Rewrite, codec: str | None = None, *, keeps_row_groups: bool = False
) -> Copies:
    """Which row groups are copied when files are merged into one.

    Args:
        files: The files, in merge order.
        rewrite: The requested mode.
        codec: The required codec; None keeps that of each row group.
        keeps_row_groups: Whether row groups are kept, however small.
    """
    if rewrite == "encode":
        return tuple((False,) * len(file.row_groups) for file in files)

    same_types = [file.has_stored_types for file in files]

    def group_at(position: _Position) -> RowGroupInfo:
        return files[position[0]].row_groups[position[1]]

    def is_possible(position: _Position) -> bool:
        group = group_at(position)
        return group.num_rows > 0 and (codec is None or group.codec == codec) and same_types[position[0]]

    if rewrite == "auto" and not keeps_row_groups:
        positions = [(at, number) for at, file in enumerate(files) for number in non_empty_row_groups(file)]
        large = {
            (at, number)
            for at, number in positions
            if not is_small(files[at])
            and is_possible((at, number))
            and is_worth_copying(group_at((at, number)), len(files[at].traits.leaves))
        }
        chosen = large | {position for position in _isolated(positions, large) if is_possible(position)}
    else:
        positions = [(at, number) for at, file in enumerate(files) for number in range(len(file.row_groups))]
        chosen = {position for position in positions if is_possible(position)}
    return tuple(
        tuple((at, number) in chosen for number in range(len(file.row_groups))) for at, file in enumerate(files)
    )


def _isolated(positions: Sequence[_Position], large: set[_Position]) -> set[_Position]:
    """Small row groups without a small neighbour to merge with."""
    runs = [list(run) for _, run in groupby(positions, key=large.__contains__)]
    return {run[0] for run in runs if len(run) == 1}
