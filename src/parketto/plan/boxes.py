"""Files and row groups as boxes over the clustering columns: which of them meet, and their order along a curve.

Boxes stand in a coarse grid whose lines are ranks among all bounds, so that any type can be a side. Sums over the
grid answer for all boxes at once which of them meet some of the others; no box is ever compared with every other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from parketto.layout.curves import KEY_BITS, hilbert
from parketto.plan.skipping import Floats, Spans, spans
from parketto.storage.footers import FileInfo
from parketto.storage.row_groups import RowGroupInfo

# So many cells has the grid at most, shared by its dimensions. Columns beyond these have no part in it: a box has
# twice as many corners with each.
_GRID_BITS = 14
_DIMENSIONS = 7
_CURVE_BITS = 10

Cells = npt.NDArray[np.int64]


class Boxes:
    """The row groups of files as boxes over some columns. What they cover is worked out once."""

    def __init__(self, files: Sequence[FileInfo], columns: Sequence[str]) -> None:
        self.files, self.columns = files, columns
        found = [(file.path, group) for file in files for group in file.row_groups if group.num_rows]
        #: The path of the file that each row group is in.
        self.paths = [path for path, _ in found]
        self.groups = [group for _, group in found]

    @cached_property
    def spans(self) -> dict[str, Spans]:
        """For each column what the row groups cover of it."""
        return {column: spans(self.groups, column) for column in self.columns}

    def of(self, paths: Collection[str]) -> npt.NDArray[np.bool_]:
        """Which row groups are in files of these paths."""
        return np.array([path in paths for path in self.paths], bool)

    def meeting(self, paths: Collection[str]) -> tuple[list[FileInfo], list[FileInfo]]:
        """The files of these paths, and the others of which some row group meets one of theirs in every column."""
        new = self.of(paths)
        met: set[str] = set()
        if new.any() and not new.all():
            low, high = self._cells
            touched = _touches(_painted(low[new], high[new]), low, high) & ~new
            met = {self.paths[at] for at in np.flatnonzero(touched)}
        return (
            [file for file in self.files if file.path in paths],
            [file for file in self.files if file.path in met and file.path not in paths],
        )

    @cached_property
    def _cells(self) -> tuple[Cells, Cells]:
        """The first and the last cell of each box, in every dimension of the grid."""
        used = self.columns[:_DIMENSIONS]
        cells = 1 << (_GRID_BITS // len(used))
        low, high = [], []
        for column in used:
            found = self.spans[column]
            nothing = found.high < found.low
            low.append(_cell(np.where(nothing, 1.0, found.low), cells, np.floor))
            # A box that ends where a cell begins does not reach into it.
            high.append(np.maximum(low[-1], _cell(np.where(nothing, 1.0, found.high), cells, np.ceil) - 1))
        return np.stack(low, axis=1), np.stack(high, axis=1)


def along_curve(files: Sequence[FileInfo]) -> list[FileInfo]:
    """Files that record a layout in the order of the middles of their boxes along a curve; others as they come."""
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
    place = middles[0] if clustering.is_linear else hilbert(middles, bits)
    return [files[at] for at in np.argsort(place, kind="stable")]


def _hull(file: FileInfo, columns: Sequence[str]) -> RowGroupInfo:
    return RowGroupInfo(max(1, file.num_rows), 0, columns={name: file.column_stats(name) for name in columns})


def _cell(share: Floats, cells: int, rounding: Callable[[Floats], Any]) -> Cells:
    top = cells if rounding is np.ceil else cells - 1
    found: Cells = np.minimum(rounding(share * cells), top).astype(np.int64)
    return found


def _painted(low: Cells, high: Cells) -> npt.NDArray[Any]:
    """How many boxes cover each cell of the grid."""
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


def _touches(covered: npt.NDArray[Any], low: Cells, high: Cells) -> npt.NDArray[Any]:
    """Which boxes have a covered cell, from the sums of all cells below and beside each."""
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
