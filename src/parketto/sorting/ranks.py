"""Ranks: values of any type as their quantile, so that every column has the same weight on a curve.

Raw bits contain little information: small integers are mostly zero bits, and strings share prefixes. The share of
rows with smaller values is enough to cut a column into parts of equal size, whatever its type and skew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parketto.sorting.curves import Codes
from parketto.sorting.order import comparable
from parketto.sorting.ordinals import numbers, ordinals, repeats


@dataclass(frozen=True)
class Weighted:
    """Representative values, and how many rows of a dataset each one represents."""

    values: pa.Array
    weights: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ranking:
    """Maps a column's values to rank codes, learned from a sample.

    Boundaries are ascending and distinct. A value gets the code of the last boundary that is not above it: the
    share of the sample below the middle of that interval, as an integer. So a value that half of the rows have
    takes half of the code range, and three distinct values are far apart.
    """

    boundaries: pa.Array
    codes: Codes
    null_code: int

    def __call__(self, column: pa.Array) -> Codes:
        """The codes of values; NULLs get the highest one."""
        if not len(self.codes) or column.null_count == len(column):
            return np.full(len(column), self.null_code, np.uint32)
        values = comparable(column)
        if repeats(values):
            encoded = values.dictionary_encode()
            found: Codes = self._of(encoded.dictionary)[encoded.indices.fill_null(0).to_numpy()]
        else:
            found = self._of(values)
        if values.null_count:
            found = np.where(np.asarray(values.is_null()), np.uint32(self.null_code), found)
        return found

    def _of(self, values: pa.Array) -> Codes:
        known, edges = numbers(values), numbers(self.boundaries)
        if known is None or edges is None:
            # Values that have no number are ordered together with the boundaries.
            together = ordinals(pa.concat_arrays([self.boundaries, values.cast(self.boundaries.type)])).of_rows
            edges, known = together[: len(self.boundaries)], together[len(self.boundaries) :]
        # Where the boundaries are among sorted values: faster than where each value is among the boundaries.
        order = np.argsort(known)
        starts = np.searchsorted(known[order], edges[1:], side="left")
        found = np.empty(len(known), np.uint32)
        found[order] = np.repeat(self.codes, np.diff(starts, prepend=0, append=len(known)))
        return found


def rank(sample: pa.Array, bits: int, others: Weighted | None = None, share: float = 1.0) -> Ranking:
    """A ranking learned from a sample of values.

    Args:
        sample: Some of the values.
        bits: The number of bits per code.
        others: Values of rows outside the sampled set; ranks then refer to all rows.
        share: The sampled share of the rows.

    >>> ranking = rank(pa.array(["a", "b", "b", "b", "c", None, None, None]), bits=3)
    >>> ranking.boundaries.to_pylist(), ranking.codes.tolist(), ranking.null_code
    (['a', 'b', 'c'], [0, 2, 4], 6)
    """
    values = comparable(sample)
    valid = values.drop_null()
    weights = np.ones(len(valid))
    if others is not None:
        valid = pa.concat_arrays([valid, comparable(others.values)])
        weights = np.concatenate([weights, others.weights * share])
    filled = weights.sum()
    total, steps = max(1.0, filled + values.null_count), 1 << bits
    null_code = min(steps - 1, int((filled + total) / 2 / total * steps))
    if not len(valid):
        return Ranking(valid, np.empty(0, np.uint32), null_code)
    distinct, starts = _distinct(valid, weights)
    ends = np.append(starts[1:], filled)
    kept = _boundaries(starts, ends, total / steps)
    middles = (starts[kept] + np.append(starts[kept][1:], filled)) / 2
    codes = np.minimum(steps - 1, middles / total * steps).astype(np.uint32)
    return Ranking(distinct.take(pa.array(kept)), codes, null_code)


def _boundaries(
    starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64], step: float
) -> npt.NDArray[np.int64]:
    """Which distinct values begin an interval: the first of each step, values that fill a step, and their next."""
    number = (starts / step).astype(np.int64)
    begins = np.append(True, number[1:] != number[:-1])
    heavy = ends - starts >= step
    begins |= heavy
    begins[1:] |= heavy[:-1]
    return np.flatnonzero(begins)


def _distinct(values: pa.Array, weights: npt.NDArray[np.float64]) -> tuple[pa.Array, npt.NDArray[np.float64]]:
    """The distinct values in order, and the total weight below each."""
    known = numbers(values)
    _, first, position = np.unique(
        ordinals(values).of_rows if known is None else known, return_index=True, return_inverse=True
    )
    distinct = values.take(pa.array(first))
    summed: npt.NDArray[np.float64] = np.bincount(position, weights=weights, minlength=len(distinct)).astype(float)
    return distinct, np.cumsum(summed) - summed
