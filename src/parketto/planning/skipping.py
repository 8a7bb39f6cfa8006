"""Estimates of how much of a dataset queries can skip, from footers alone.

A row group is an interval between the bounds of a column, and its rows are assumed to be uniform in between. All
row groups together give the column's quantiles, in which every row group covers an interval again: its length is
the probability that a query reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parketto.parquet.row_group_info import RowGroupInfo
from parketto.results import ColumnReads

RANGE = 0.01  # share of the rows that the estimated range queries select
_MIN_WIDTH = 1e-6  # of a cell, relative to all gaps: single values get a width, too

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spans:
    """For each row group, the interval of a column's quantiles that it covers; empty ones are never read."""

    low: Floats
    high: Floats
    depth: int

    @property
    def point(self) -> Floats:
        """For each row group, the probability that it is read for the value of a row."""
        return np.maximum(0.0, self.high - self.low)

    @property
    def range(self) -> Floats:
        """For each row group, the probability that it is read for a range of 1 % of the rows."""
        reach = np.minimum(self.high, 1 - RANGE) - np.maximum(self.low - RANGE, 0.0)
        return np.where(self.high < self.low, 0.0, np.clip(reach / (1 - RANGE), 0.0, 1.0))


def spans(groups: Sequence[RowGroupInfo], column: str) -> Spans:
    """The intervals of a column's quantiles that row groups cover.

    >>> from parketto.parquet.row_group_info import ColumnStats
    >>> halves = [RowGroupInfo(10, 80, columns={"n": ColumnStats(n, n + 9, 0)}) for n in (0, 10)]
    >>> spans(halves, "n").point.tolist()
    [0.5, 0.5]
    """
    bounds = _comparable([_bounds(group, column) for group in groups])
    known = np.array([bound is not None and bound != _NEVER for bound in bounds], bool)
    never = np.array([bound == _NEVER for bound in bounds], bool)
    low = np.where(never, 1.0, 0.0)
    high = np.where(never, 0.0, 1.0)
    if not known.any():
        return Spans(low, high, int(np.count_nonzero(~never)))
    pairs = [bound for bound in bounds if bound is not None and bound != _NEVER]
    numbers, position = _ranked([value for pair in pairs for value in pair])
    # Every bound is a cell of almost no width, and every gap between two bounds is a cell.
    first, last = 2 * position[::2], 2 * position[1::2] + 1
    widths = _widths(numbers)
    edges = np.concatenate([[0.0], np.cumsum(widths)])
    rows = np.array([group.num_rows for group, inside in zip(groups, known, strict=True) if inside], float)
    density = _covered(first, last, rows / (edges[last] - edges[first]), len(widths))
    below = np.concatenate([[0.0], np.cumsum(density * widths)])
    below /= below[-1]
    low[known], high[known] = below[first], below[last]
    everywhere = int(np.count_nonzero(~known & ~never))
    return Spans(low, high, everywhere + int(_covered(first, last, np.ones(len(pairs)), len(widths)).max()))


def column_reads(groups: Sequence[RowGroupInfo], column: str) -> ColumnReads:
    """What queries on a column read of row groups."""
    if not groups:
        return ColumnReads(point=0.0, range=0.0, depth=0)
    found = spans(groups, column)
    return ColumnReads(point=float(found.point.mean()), range=float(found.range.mean()), depth=found.depth)


_NEVER = (None, None)


def _bounds(group: RowGroupInfo, column: str) -> tuple[Any, Any] | None:
    """The bounds of a row group; `_NEVER` if it has no value at all, None if unknown."""
    stats = group.columns.get(column)
    if not group.num_rows or (stats is not None and stats.null_count == group.num_rows):
        return _NEVER
    if stats is None:
        return None
    low, high = stats.min, stats.max
    if low is None or high is None or low != low or high != high or high < low:
        return None
    return low, high


def _comparable(bounds: list[Any]) -> list[Any]:
    """Bounds that can be compared: if files differ in the type of a column, only the most common one counts."""
    families = Counter(_family(bound[0]) for bound in bounds if bound is not None and bound != _NEVER)
    if len(families) < 2:
        return bounds
    most = families.most_common(1)[0][0]
    return [
        None if bound is not None and bound != _NEVER and _family(bound[0]) is not most else bound
        for bound in bounds
    ]


def _family(value: Any) -> type:
    return type(value) if isinstance(value, str | bytes) else float


def _ranked(values: Sequence[Any]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The distinct values in ascending order, as numbers, and the position of every value among them."""
    if all(type(value) in (int, float) for value in values):
        array = np.array(values)
        if array.dtype.kind in "iuf":
            distinct, position = np.unique(array, return_inverse=True)
            return _finite(distinct.astype(float)), position
    ordered = sorted(set(values))
    positions = {value: at for at, value in enumerate(ordered)}
    return _numbers(ordered), np.array([positions[value] for value in values])


def _widths(numbers: Floats) -> Floats:
    """The widths of the cells of bounds, and of the gaps between them."""
    gaps = np.diff(numbers)
    span = max(float(gaps.sum()), 1e-300)
    widths = np.full(2 * len(numbers), _MIN_WIDTH)
    widths[1:-1:2] = np.maximum(gaps / span, _MIN_WIDTH)
    return widths


def _numbers(values: Sequence[Any]) -> Floats:
    """Distinct bounds in ascending order as numbers; strings by their bytes after the common prefix."""
    if not isinstance(values[0], str | bytes):
        return _finite(np.array([float(value) for value in values]))
    texts = [value.encode() if isinstance(value, str) else value for value in values]
    ends = list(zip(texts[0], texts[-1], strict=False))
    start = next((at for at, (one, other) in enumerate(ends) if one != other), len(ends))
    return np.array([float(int.from_bytes(text[start : start + 8].ljust(8, b"\0"))) for text in texts])


def _finite(numbers: Floats) -> Floats:
    """Numbers whose differences are finite: scaled down, or replaced by ranks if one is infinite."""
    if not np.isfinite(numbers).all():
        return np.arange(float(len(numbers)))
    return numbers / max(1.0, float(np.abs(numbers).max()))


def _covered(first: npt.NDArray[Any], last: npt.NDArray[Any], weight: Floats, cells: int) -> Floats:
    """The total weight of the intervals that cover each cell, in one pass over their starts and ends."""
    steps = np.zeros(cells + 1)
    np.add.at(steps, first, weight)
    np.add.at(steps, last, -weight)
    return np.maximum(0.0, np.cumsum(steps)[:-1])
