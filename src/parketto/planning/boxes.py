"""Bounding boxes of files and row groups over the clustering columns: overlaps, and order along a curve.

Boxes are placed in a coarse grid whose lines are ranks among all bounds, so that columns of any type work. Prefix
sums over the grid find the overlaps of all boxes at once, without pairwise comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_group_info import RowGroupInfo
from parketto.planning.skipping import Floats, Spans, spans
from parketto.sorting.curves import KEY_BITS, hilbert

_GRID_BITS = 14  # the grid has at most 2**14 cells, shared by its dimensions
_MAX_DIMENSIONS = 7  # further columns are ignored: each would double the corners of a box
_CURVE_BITS = 10  # per column, where files are ordered along a curve

Cells = npt.NDArray[np.int64]


class Boxes:
    """The bounding boxes of the row groups of files over some columns. Spans are computed once."""

    def __init__(self, files: Sequence[FileInfo], columns: Sequence[str]) -> None:
        self.files, self.columns = files, columns
        found = [(file.path, group) for file in files for group in file.row_groups if group.num_rows]
        #: The file path of each row group.
        self.paths = [path for path, _ in found]
        self.groups = [group for _, group in found]

    @cached_property
    def spans(self) -> dict[str, Spans]:
        """For each column, the span of each row group."""
        return {column: spans(self.groups, column) for column in self.columns}

    def of(self, paths: Collection[str]) -> npt.NDArray[np.bool_]:
        """A mask of the row groups that are in files of these paths."""
        return np.array([path in paths for path in self.paths], bool)

    def meeting(self, paths: Collection[str]) -> tuple[list[FileInfo], list[FileInfo]]:
        """The files of these paths, and the other files with a row group that overlaps theirs in every column."""
        new = self.of(paths)
        overlapped: set[str] = set()
        if new.any() and not new.all():
            low, high = self._cells
            overlapping = _overlaps(_covered_cells(low[new], high[new]), low, high) & ~new
            overlapped = {self.paths[at] for at in np.flatnonzero(overlapping)}
        return (
            [file for file in self.files if file.path in paths],
            [file for file in self.files if file.path in overlapped and file.path not in paths],
        )

    @cached_property
    def _cells(self) -> tuple[Cells, Cells]:
        """The first and the last grid cell of each box, in every dimension."""
        used = self.columns[:_MAX_DIMENSIONS]
        cells = 1 << (_GRID_BITS // len(used))
        low, high = [], []
        for column in used:
            found = self.spans[column]
            is_empty = found.high < found.low
            low.append(_cell(np.where(is_empty, 1.0, found.low), cells, np.floor))
            # A box that ends where a cell begins does not reach into it.
            high.append(np.maximum(low[-1], _cell(np.where(is_empty, 1.0, found.high), cells, np.ceil) - 1))
        return np.stack(low, axis=1), np.stack(high, axis=1)


def along_curve(files: Sequence[FileInfo]) -> list[FileInfo]:
    """Clustered files ordered by the centres of their boxes along a curve; other files in input order."""
    clustering = files[0].clustering
    if clustering is None:
        return list(files)
    columns = clustering.columns[: 1 if clustering.is_linear else KEY_BITS]
    hulls = [_hull(file, columns) for file in files]
    bits = max(1, min(_CURVE_BITS, KEY_BITS // len(columns)))
    middles = []
    for column in columns:
        found = spans(hulls, column)
        middle = np.where(found.high < found.low, 1.0, (found.low + found.high) / 2)
        middles.append(np.minimum(middle * (1 << bits), (1 << bits) - 1).astype(np.uint32))
    position = middles[0] if clustering.is_linear else hilbert(middles, bits)
    return [files[at] for at in np.argsort(position, kind="stable")]


def _hull(file: FileInfo, columns: Sequence[str]) -> RowGroupInfo:
    return RowGroupInfo(max(1, file.num_rows), 0, columns={name: file.column_stats(name) for name in columns})


def _cell(share: Floats, cells: int, rounding: Callable[[Floats], Any]) -> Cells:
    top = cells if rounding is np.ceil else cells - 1
    found: Cells = np.minimum(rounding(share * cells), top).astype(np.int64)
    return found


def _covered_cells(low: Cells, high: Cells) -> npt.NDArray[Any]:
    """Which cells of the grid are covered by a box."""
    dimensions = low.shape[1]
    size = 1 << (_GRID_BITS // dimensions)
    grid = np.zeros((size + 1,) * dimensions)
    for corner in product((0, 1), repeat=dimensions):
        ends = np.array(corner)
        at = np.where(ends, high + 1, low)
        np.add.at(grid, tuple(at.T), (-1.0) ** ends.sum())
    for axis in range(dimensions):
        np.cumsum(grid, axis=axis, out=grid)
    return np.asarray(grid[(slice(size),) * dimensions] > 0.5)


def _overlaps(covered: npt.NDArray[Any], low: Cells, high: Cells) -> npt.NDArray[Any]:
    """Which boxes contain a covered cell, from prefix sums over the grid."""
    dimensions = low.shape[1]
    sums = np.zeros(tuple(size + 1 for size in covered.shape))
    sums[(slice(1, None),) * dimensions] = covered
    for axis in range(dimensions):
        np.cumsum(sums, axis=axis, out=sums)
    total = np.zeros(len(low))
    for corner in product((0, 1), repeat=dimensions):
        ends = np.array(corner)
        at = np.where(ends, high + 1, low)
        total += sums[tuple(at.T)] * (-1.0) ** (dimensions - ends.sum())
    return total > 0.5
