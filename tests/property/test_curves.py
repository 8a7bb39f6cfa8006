"""Curves, ranks and buckets, compared with slow and obvious plain Python."""

from __future__ import annotations

import decimal
import itertools
import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parketto.sorting.buckets import cut_buckets, roundest
from parketto.sorting.curves import CURVES, KEY_BITS, hilbert, morton
from parketto.sorting.ranks import Weighted, rank


def grid(dimensions: int, bits: int) -> list[np.ndarray]:
    """Every point of a small grid, as one array for each coordinate."""
    points = np.indices((1 << bits,) * dimensions).reshape(dimensions, -1)
    return [axis.astype(np.uint32) for axis in points]


@pytest.mark.parametrize(("dimensions", "bits"), [(1, 6), (2, 1), (2, 5), (3, 3), (4, 1), (4, 3), (5, 2), (8, 1)])
@pytest.mark.parametrize("curve", CURVES)
def test_a_curve_passes_through_every_point_once(curve: str, dimensions: int, bits: int) -> None:
    keys = CURVES[curve](grid(dimensions, bits), bits)
    assert np.array_equal(np.sort(keys), np.arange(1 << (dimensions * bits), dtype=np.uint64))


@pytest.mark.parametrize(("dimensions", "bits"), [(1, 5), (2, 1), (2, 6), (3, 1), (3, 4), (4, 1), (4, 3), (6, 2)])
def test_every_step_of_the_hilbert_curve_is_to_a_neighbour(dimensions: int, bits: int) -> None:
    points = np.stack(grid(dimensions, bits), axis=1).astype(int)
    along = points[np.argsort(hilbert(grid(dimensions, bits), bits))]
    steps = np.abs(np.diff(along, axis=0))
    assert (steps.sum(axis=1) == 1).all()


@st.composite
def coordinates(draw: st.DrawFn) -> tuple[list[np.ndarray], int]:
    dimensions = draw(st.integers(1, 12) | st.sampled_from([21, 31, 63]))
    bits = draw(st.integers(1, min(32, KEY_BITS // dimensions)))
    rows = draw(st.integers(0, 20))
    seed = draw(st.integers(0, 2**32))
    chance = np.random.default_rng(seed)
    return [chance.integers(0, 1 << bits, rows).astype(np.uint32) for _ in range(dimensions)], bits


def plain_morton(point: Sequence[int], bits: int) -> int:
    key = 0
    for bit in range(bits - 1, -1, -1):
        for value in point:
            key = key << 1 | (value >> bit & 1)
    return key


@settings(deadline=None)
@given(coordinates())
def test_zorder_interleaves_bits(given_points: tuple[list[np.ndarray], int]) -> None:
    axes, bits = given_points
    expected = [plain_morton([int(axis[row]) for axis in axes], bits) for row in range(len(axes[0]))]
    assert morton(axes, bits).tolist() == expected


@settings(deadline=None)
@given(coordinates())
def test_curves_do_not_modify_their_inputs(given_points: tuple[list[np.ndarray], int]) -> None:
    axes, bits = given_points
    before = [axis.copy() for axis in axes]
    for curve in CURVES.values():
        keys = curve(axes, bits)
        assert (keys < np.uint64(1 << (bits * len(axes)))).all()
        assert all(map(np.array_equal, axes, before))
        halves = [curve([axis[part] for axis in axes], bits) for part in (slice(0, 7), slice(7, None))]
        assert np.array_equal(np.concatenate(halves), keys), "a point's key does not depend on its batch"


def trailing_zeros(number: int) -> int:
    return 64 if number == 0 else (number & -number).bit_length() - 1


@settings(deadline=None)
@given(st.integers(0, 3000), st.integers(0, 300))
def test_roundest_number_of_a_range_has_the_most_trailing_zeros(low: int, more: int) -> None:
    found = roundest(low, low + more)
    if more == 0:
        assert found == low
    else:
        assert found == max(range(low + 1, low + more + 1), key=trailing_zeros)


@settings(deadline=None)
@given(st.integers(2**52, 2**63 - 2**20), st.integers(1, 2**20))
def test_roundest_number_is_exact_for_large_integers(low: int, more: int) -> None:
    found = roundest(low, low + more)
    assert low < found <= low + more
    rounder = 1 << (trailing_zeros(found) + 1)
    assert (low + more) // rounder == low // rounder, "no rounder one is inside"


_WIDE = decimal.Context(prec=100)


def decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: decimal.Decimal(n).scaleb(-scale, context=_WIDE))


_texts = st.text(max_size=4).map(lambda text: "a long beginning that all of them share " + text)
_bytes = st.binary(max_size=3)
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    **{
        str(kind): (kind, st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1))
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    **{
        str(kind): (kind, st.integers(0, 2**kind.bit_width - 1))
        for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    },
    "float16": (pa.float16(), st.floats(width=16).map(np.float16)),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0])),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), _texts),
    "large_string": (pa.large_string(), _texts),
    "string_view": (pa.string_view(), _texts),
    "binary": (pa.binary(), _bytes),
    "large_binary": (pa.large_binary(), _bytes),
    "binary_view": (pa.binary_view(), _bytes),
    "binary(2)": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "date32": (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    "date64": (pa.date64(), st.integers(-(2**20), 2**20).map(lambda day: day * 86_400_000)),
    **{
        f"timestamp {unit} {zone}": (pa.timestamp(unit, zone), st.integers(-(2**63) + 1, 2**63 - 1))
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Rome")
    },
    "time32 s": (pa.time32("s"), st.integers(0, 86_399)),
    "time32 ms": (pa.time32("ms"), st.integers(0, 86_399_999)),
    "time64 us": (pa.time64("us"), st.integers(0, 86_399_999_999)),
    "time64 ns": (pa.time64("ns"), st.integers(0, 86_399_999_999_999)),
    **{f"duration {unit}": (pa.duration(unit), st.integers(-(2**63) + 1, 2**63 - 1)) for unit in ("s", "ns")},
    "decimal32": (pa.decimal32(7, 2), decimals(7, 2)),
    "decimal64": (pa.decimal64(17, 3), decimals(17, 3)),
    "decimal128 short": (pa.decimal128(18, 18), decimals(18, 18)),
    "decimal128 long": (pa.decimal128(38, 5), decimals(38, 5)),
    "decimal256": (pa.decimal256(76, 9), decimals(76, 9)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), _texts),
    "dictionary of numbers": (pa.dictionary(pa.int32(), pa.int64()), st.integers(-3, 3)),
    "null": (pa.null(), st.none()),
}


def array_of(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def sort_key(value: Any) -> tuple[int, Any]:
    """Ascending, NaN after numbers, NULLs last."""
    if value is None:
        return 2, 0
    if isinstance(value, float | np.floating) and math.isnan(value):
        return 1, 0
    return 0, value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_ranks_follow_the_order_of_values(name: str, data: st.DataObject) -> None:
    kind, values = KINDS[name]
    known = data.draw(st.lists(values | st.none(), max_size=30))
    asked = data.draw(st.lists(values | st.none() | st.sampled_from([None, *known]), max_size=12))
    bits = data.draw(st.integers(1, 6))
    ranking = rank(array_of(kind, known), bits)
    everything = [*known, *asked]
    codes = ranking(array_of(kind, everything))
    assert codes.dtype == np.uint32
    assert (codes < 1 << bits).all()
    ordered = sorted(zip(map(sort_key, everything), codes.tolist(), strict=True))
    for (before, code), (after, next_code) in itertools.pairwise(ordered):
        assert code <= next_code
        if before == after:
            assert code == next_code, "equal values have equal ranks"
    shifted = array_of(kind, [None, *everything, None]).slice(1, len(everything))
    assert np.array_equal(pickle.loads(pickle.dumps(ranking))(shifted), codes), (
        "ranks do not depend on positions in the array"
    )


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 40) | st.none(), min_size=1, max_size=200),
    st.lists(st.tuples(st.integers(0, 40), st.floats(0.5, 50)), max_size=5),
    st.integers(1, 5),
)
def test_ranks_are_quantiles_of_all_rows(
    values: list[int | None], others: list[tuple[int, float]], bits: int
) -> None:
    """A value's code is the middle of its interval among all rows; an interval is one value or at most a step."""
    around = Weighted(
        pa.array([value for value, _ in others], pa.int64()), np.array([w for _, w in others], float)
    )
    ranking = rank(pa.array(values, pa.int64()), bits, around)
    weights: dict[int, float] = {}
    for value, weight in [*((value, 1.0) for value in values if value is not None), *others]:
        weights[value] = weights.get(value, 0) + weight
    total, steps = sum(weights.values()) + values.count(None), 1 << bits
    for value, weight in weights.items():
        below = sum(w for other, w in weights.items() if other < value)
        code = int(ranking(pa.array([value]))[0])
        if weight >= total / steps:
            assert code == min(steps - 1, int((below + weight / 2) / total * steps + 1e-9)) or math.isclose(
                (below + weight / 2) / total * steps, round((below + weight / 2) / total * steps)
            )
        assert (
            (below - total / steps) / total * steps - 1 <= code <= (below + weight + total / steps) / total * steps
        )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(0, 300),
    st.integers(1, 40),
    st.sampled_from(sorted(CURVES)),
    st.sampled_from([2, 5, 1000]),
    st.integers(0, 2**32),
)
def test_buckets_are_ordered_along_the_curve(
    dimensions: int, rows: int, count: int, curve: str, distinct: int, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    names = [f"c{at}" for at in range(dimensions)]
    table = pa.table(
        {name: pa.array(chance.integers(0, distinct, rows), mask=chance.random(rows) < 0.1) for name in names}
    )
    buckets = cut_buckets(table, names, curve, count)
    columns = [column.combine_chunks() for column in table.columns]
    numbers, keys = buckets.of(columns), buckets.keys(columns)
    assert ((numbers >= 0) & (numbers < buckets.count)).all()
    place = np.searchsorted(buckets.cuts, keys, side="right") - 1
    assert np.array_equal(np.maximum(place, 0), buckets._cut_indices(buckets._codes(columns))), (
        "lookup and binary search agree"
    )
    order = np.argsort(keys, kind="stable")
    firsts = buckets.numbers[np.maximum(place, 0)][order]
    assert (np.diff(firsts) >= 0).all()
    assert (numbers >= buckets.numbers[np.maximum(place, 0)]).all()
    copied = pickle.loads(pickle.dumps(buckets))
    pieces = [copied.of([column.slice(start, 7) for column in columns], start) for start in range(0, rows, 7)]
    assert np.array_equal(np.concatenate(pieces) if pieces else numbers, numbers)
    parts = buckets.parts(min(4, count))
    assert parts[0] == 0
    assert (np.diff(parts) > 0).all()
    assert parts[-1] < buckets.count or buckets.count == 1
