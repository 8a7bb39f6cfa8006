"""Ranks and buckets: sizes are bounded for any distribution of values, and range queries read few buckets."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from parketto.sorting.buckets import Buckets, cut_buckets
from parketto.sorting.curves import CURVES
from parketto.sorting.order import order_indices
from parketto.sorting.ranks import Weighted, rank


def numbered(table: pa.Table, columns: list[str], curve: str, count: int) -> tuple[Buckets, np.ndarray]:
    buckets = cut_buckets(table, columns, curve, count)
    return buckets, buckets.of([table.column(name).combine_chunks() for name in columns])


def sizes(table: pa.Table, columns: list[str], curve: str, count: int) -> np.ndarray:
    buckets, numbers = numbered(table, columns, curve, count)
    return np.bincount(numbers, minlength=buckets.count)


def test_ranks_ignore_a_common_prefix_of_strings() -> None:
    texts = [f"https://example.org/a/very/long/path/{number:04d}" for number in range(1000)]
    codes = rank(pa.array(texts), bits=8)(pa.array(texts))
    assert len(np.unique(codes)) == 256
    assert (np.diff(codes.astype(int)) >= 0).all()


def test_ranks_of_few_values_are_far_apart() -> None:
    codes = rank(pa.array(["a", "b", "c"] * 100), bits=8)(pa.array(["a", "b", "c"]))
    assert (np.diff(codes.astype(int)) > 60).all()


def test_ranks_of_values_that_are_not_in_the_sample_keep_the_order() -> None:
    ranking = rank(pa.array([10, 20, 30, 40]), bits=4)
    codes = ranking(pa.array([-5, 10, 15, 20, 99, None]))
    assert codes[0] == codes[1] == codes[2] < codes[3] < codes[4] <= codes[5]


def test_ranks_of_samples_without_values_are_in_range() -> None:
    for sample in (pa.array([], pa.string()), pa.array([None, None], pa.int64()), pa.nulls(3)):
        codes = rank(sample, bits=3)(sample)
        assert len(set(codes.tolist())) <= 1
        assert (codes < 8).all()


def test_empty_batches_have_no_ranks() -> None:
    for kind in (pa.decimal128(10, 2), pa.decimal128(30, 2), pa.decimal64(10, 2), pa.string(), pa.time32("s")):
        known = (
            pa.array([1, 2], pa.int32()).cast(pa.string()).cast(kind)
            if kind != pa.time32("s")
            else pa.array([1], kind)
        )
        assert rank(known, bits=3)(pa.array([], kind)).tolist() == []


def test_null_inside_of_a_dictionary_ranks_as_null() -> None:
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0]), pa.array(["a", None, "b"]))
    plain = pa.array(["a", None, "b", "a"])
    assert rank(hidden, bits=4)(hidden).tolist() == rank(plain, bits=4)(plain).tolist()


def test_decimals_of_every_width_have_the_same_ranks() -> None:
    values = [Decimal("-99999.99"), None, Decimal("0.00"), Decimal("0.01"), Decimal("99999.99"), Decimal("-0.01")]
    kinds = (
        pa.decimal32(7, 2),
        pa.decimal64(9, 2),
        pa.decimal128(18, 2),
        pa.decimal128(38, 2),
        pa.decimal256(76, 2),
    )
    found = [rank(pa.array(values, kind), bits=4)(pa.array(values, kind)).tolist() for kind in kinds]
    assert all(codes == found[0] for codes in found)


def test_ranks_of_non_finite_floats_keep_the_order() -> None:
    values = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, None]
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        array = pa.array([None if v is None else np.float16(v) for v in values], pa.float16()).cast(kind)
        nan, high, low, minus, zero, some, null = rank(array, bits=8)(array).tolist()
        assert low < minus == zero < some < high < nan < null


def test_ranks_of_new_rows_depend_on_untouched_rows() -> None:
    """Ten new rows at the lower end of many others stay at the lower end."""
    around = Weighted(pa.array([0, 1000]), np.array([500.0, 500.0]))
    codes = rank(pa.array(range(10)), 8, around)(pa.array([0, 9, 1000]))
    assert codes[1] < 140
    assert codes[2] > 180


SKEWED: dict[str, Callable[[np.random.Generator, int], pa.Array]] = {
    "half are one value": lambda chance, rows: pa.array(
        np.where(chance.random(rows) < 0.5, 7, chance.integers(0, 10**6, rows))
    ),
    "half are NULL": lambda chance, rows: pa.array(
        chance.integers(0, 10**6, rows), mask=chance.random(rows) < 0.5
    ),
    "all are one value": lambda chance, rows: pa.array(np.full(rows, 3)),
    "all are NULL": lambda chance, rows: pa.nulls(rows, pa.int64()),
    "two values": lambda chance, rows: pa.array(chance.integers(0, 2, rows)),
    "few are many": lambda chance, rows: pa.array(chance.zipf(1.3, rows).clip(max=10**9)),
    "NaN and numbers": lambda chance, rows: pa.array(
        np.where(chance.random(rows) < 0.4, np.nan, chance.random(rows))
    ),
    "evenly spread": lambda chance, rows: pa.array(chance.random(rows)),
}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("other", ["evenly spread", "half are NULL", "all are one value"])
@pytest.mark.parametrize("skew", SKEWED)
def test_skewed_values_do_not_make_large_buckets(skew: str, other: str, curve: str) -> None:
    chance, rows, count = np.random.default_rng(5), 20_000, 32
    table = pa.table({"a": SKEWED[skew](chance, rows), "b": SKEWED[other](chance, rows)})
    found = sizes(table, ["a", "b"], curve, count)
    assert found.max() <= 2 * rows / count, found.tolist()
    assert 0.6 * count <= len(found) <= 1.6 * count


@pytest.mark.parametrize("dimensions", [1, 2, 5, 8, 13, 14, 15, 20, 21, 40, 63])
@pytest.mark.parametrize("curve", CURVES)
def test_rows_with_equal_keys_are_distributed_in_any_number_of_dimensions(curve: str, dimensions: int) -> None:
    """Keys of many dimensions have more digits than a floating-point number."""
    chance, rows, count = np.random.default_rng(6), 4_000, 16
    same = chance.random(rows) < 0.6
    names = [f"c{at}" for at in range(dimensions)]
    table = pa.table(
        {name: np.where(same, at * 389 % 1000, chance.integers(0, 1000, rows)) for at, name in enumerate(names)}
    )
    found = sizes(table, names, curve, count)
    assert found.max() <= 2.2 * rows / count, found.tolist()


def test_rows_with_equal_keys_are_distributed_evenly_for_any_batch_size() -> None:
    table = pa.table({"a": np.ones(1000, int), "b": np.ones(1000, int)})
    buckets = cut_buckets(table, ["a", "b"], "hilbert", 10)
    column = pa.array(np.ones(1000, int))
    whole = buckets.of([column, column])
    assert sorted(set(np.bincount(whole).tolist())) == [111, 112], "nine of them, none above 120"
    pieces = [buckets.of([column[at : at + 33]] * 2, at) for at in range(0, 1000, 33)]
    assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("buckets", [1, 2, 3, 8, 12, 33, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 12, 40])
def test_parts_are_of_about_equal_size_and_none_is_empty(buckets: int, count: int) -> None:
    chance = np.random.default_rng(7)
    table = pa.table({"a": chance.random(8000), "b": chance.random(8000)})
    cut = cut_buckets(table, ["a", "b"], "hilbert", buckets)
    firsts = cut.parts(count)
    widths = np.diff([*firsts.tolist(), cut.count])
    assert firsts[0] == 0
    assert len(firsts) == min(count, cut.count)
    assert (widths > 0).all()
    assert widths.max() <= math.ceil(1.5 * cut.count / len(firsts)), widths.tolist()


@pytest.mark.parametrize(("dimensions", "count"), [(2, 64), (2, 256), (3, 64), (3, 512), (4, 256), (4, 1024)])
def test_a_range_of_one_percent_reads_little_more_than_the_ideal(dimensions: int, count: int) -> None:
    rows = 128 * count
    chance = np.random.default_rng(dimensions)
    names = [f"c{at}" for at in range(dimensions)]
    table = pa.table({name: chance.random(rows) for name in names})
    buckets, numbers = numbered(table, names, "hilbert", count)
    starts = chance.random(400) * 0.99
    shares = []
    for name in names:
        values = table.column(name).to_numpy()
        low, high = np.full(buckets.count, np.inf), np.full(buckets.count, -np.inf)
        np.minimum.at(low, numbers, values)
        np.maximum.at(high, numbers, values)
        shares.append(((low <= starts[:, None] + 0.01) & (high >= starts[:, None])).mean())
    ideal = buckets.count ** (-1 / dimensions) + 0.01
    assert np.mean(shares) <= 1.35 * ideal, (shares, ideal)
    assert max(shares) <= 1.35 * 1.35 * ideal, "no column is skipped much worse than the others"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("values", [1, 3, 60, 100_000])
def test_repeated_strings_are_sorted_like_other_strings(kind: pa.DataType, values: int) -> None:
    """They are sorted by rank: NULLs still come last, equal rows keep their order, bytes are compared."""
    chance = np.random.default_rng(values)
    begins = ("é", "z", "\U0001f600")
    texts = [None if number % 9 == 8 else f"{begins[number % 3]}{number}" for number in range(values)]
    column = pa.array([texts[at] for at in chance.integers(0, values, 5000)], kind)
    other = chance.integers(0, 3, 5000)
    keys = pa.table({"0": pa.chunked_array([column.slice(0, 1000), column.slice(1000)]), "1": other})
    expected = sorted(
        range(5000),
        key=lambda at: (column[at].as_py() is None, (column[at].as_py() or "").encode(), other[at], at),
    )
    assert order_indices(keys).tolist() == expected
