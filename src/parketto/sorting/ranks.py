"""Ranks: values of any type as their quantile, so that every column has the same weight on a curve.

Raw bits contain little information: small integers are mostly zero bits, and strings share prefixes. The share of
rows with smaller values is enough to cut a column into parts of equal size, whatever its type and skew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from parketto.sorting.curves import Codes
from parketto.sorting.order import comparable, order_indices

_INT64_DIGITS = 18  # decimals up to this precision fit into int64


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
        if not len(self.codes):
            return np.full(len(column), self.null_code, np.uint32)
        values = comparable(column)
        numbers = _numbers(values)
        if numbers is None:
            below = _count_not_above(values, self.boundaries)
        else:
            edges = _numbers(self.boundaries)
            assert edges is not None, "boundaries are of the column's type"
            below = np.searchsorted(edges, numbers, side="right")
        found: Codes = self.codes[np.maximum(below, 1) - 1]
        if values.null_count:
            found[np.asarray(values.is_null())] = self.null_code
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
    numbers = _numbers(values)
    if numbers is not None:
        _, first, position = np.unique(numbers, return_index=True, return_inverse=True)
        distinct = values.take(pa.array(first))
    else:
        encoded = values.dictionary_encode()
        order = order_indices(pa.table({"0": encoded.dictionary}))
        position = np.argsort(order)[np.asarray(encoded.indices)]
        distinct = encoded.dictionary.take(pa.array(order))
    summed: npt.NDArray[np.float64] = np.bincount(position, weights=weights, minlength=len(distinct)).astype(float)
    return distinct, np.cumsum(summed) - summed


def _count_not_above(values: pa.Array, boundaries: pa.Array) -> npt.NDArray[np.int64]:
    """The number of boundaries not above each value, from sorting the distinct values among them."""
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary
    order = order_indices(pa.table({"0": pa.concat_arrays([boundaries, distinct.cast(boundaries.type)])}))
    is_boundary = order < len(boundaries)
    passed = np.cumsum(is_boundary)
    below = np.empty(len(distinct), np.int64)
    below[order[~is_boundary] - len(boundaries)] = passed[~is_boundary]
    if encoded.null_count:
        below = np.append(below, 0)
    found: npt.NDArray[np.int64] = below[np.asarray(encoded.indices.fill_null(len(distinct)))]
    return found


def _numbers(values: pa.Array) -> npt.NDArray[Any] | None:
    """Values as numbers of the same order, or None if impossible; NaN is the highest. NULLs become any number."""
    kind = values.type
    if pat.is_null(kind):
        return np.zeros(len(values), np.int64)
    if pat.is_boolean(kind):
        return np.asarray(values.cast(pa.uint8()).fill_null(0))
    if pat.is_floating(kind):
        return np.asarray(np.add(values.fill_null(0), kind.to_pandas_dtype()(0)))  # -0.0 becomes 0.0
    if pat.is_integer(kind):
        return np.asarray(values.fill_null(0))
    if pat.is_temporal(kind):
        return np.asarray(values.view(pa.int32() if kind.bit_width == 32 else pa.int64()).fill_null(0))
    if pat.is_decimal128(kind) and kind.precision <= _INT64_DIGITS:
        # The lower 64 bits of each value contain it completely.
        halves = np.frombuffer(values.buffers()[1], np.int64)
        return halves[2 * values.offset : 2 * (values.offset + len(values)) : 2]
    return None
