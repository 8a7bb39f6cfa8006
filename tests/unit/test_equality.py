"""Equality of rows: the same values in every type that Parquet has."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from parketto.parquet.equality import equal_values

NAN = float("nan")
CASES: list[tuple[pa.DataType, list[Any], list[Any], list[bool]]] = [
    (pa.int8(), [1, 2, None, None], [1, 3, None, 1], [True, False, True, False]),
    (pa.float64(), [NAN, 0.0, 1.5, None], [NAN, -0.0, 1.5, NAN], [True, False, True, False]),
    (pa.float32(), [NAN, 0.0], [NAN, 0.0], [True, True]),
    (pa.float16(), [NAN, 0.5, -0.0], [NAN, 0.25, 0.0], [True, False, False]),
    (pa.bool_(), [True, False, None], [True, True, None], [True, False, True]),
    (pa.string(), ["a", "", None], ["a", None, ""], [True, False, False]),
    (pa.string_view(), ["a", "b"], ["a", "c"], [True, False]),
    (pa.binary(2), [b"ab", b"cd"], [b"ab", b"cx"], [True, False]),
    (pa.date32(), [dt.date(2020, 1, 1)], [dt.date(2020, 1, 2)], [False]),
    (pa.decimal128(9, 2), [Decimal("1.00"), None], [Decimal("1.00"), None], [True, True]),
    (pa.decimal256(50, 2), [Decimal("1.00")], [Decimal("1.01")], [False]),
    (pa.null(), [None], [None], [True]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None], ["a", "c", None], [True, False, True]),
    (
        pa.struct([("x", pa.int8()), ("y", pa.float32())]),
        [{"x": 1, "y": NAN}, {"x": None, "y": 1.0}, None],
        [{"x": 1, "y": NAN}, {"x": 2, "y": 1.0}, {"x": None, "y": None}],
        [True, False, False],
    ),
    (pa.list_(pa.int8()), [[1], [1, 2], None, [3]], [[1], [2, 1], [], [3, 4]], [True, False, False, False]),
    (pa.list_(pa.int8(), 2), [[1, 2], [3, 4], None], [[1, 2], [3, 5], None], [True, False, True]),
    (pa.large_list(pa.list_(pa.string())), [[["a"], None], [[]]], [[["a"], None], [None]], [True, False]),
    (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [("a", 1)]], [[("a", 1)], [("a", 2)]], [True, False]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]))
def test_equal_values(case: tuple[pa.DataType, list[Any], list[Any], list[bool]]) -> None:
    kind, one, other, expected = case
    assert equal_values(pa.array(one, kind), pa.array(other, kind)).tolist() == expected
    assert equal_values(pa.array(other, kind), pa.array(one, kind)).tolist() == expected
    padded = [pa.array([*rows[:1], *rows, *rows[:1]], kind).slice(1, len(rows)) for rows in (one, other)]
    assert equal_values(*padded).tolist() == expected, "slices"
    assert equal_values(pa.array([], kind), pa.array([], kind)).tolist() == []
