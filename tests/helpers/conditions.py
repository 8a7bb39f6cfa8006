"""Random small tables, and random conditions on them that all SQL databases evaluate equally."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

NAN = float("nan")
COLUMNS = {
    "i": (pa.int64(), [-3, -2, -1, 0, 1, 2, 3]),
    "f": (pa.float64(), [NAN, -1.0, 0.0, 0.5, 2.0, float("inf")]),
    "s": (pa.string(), ["", "a", "ab", "b", "B", "ä", "a\nb"]),
    "d": (pa.decimal128(6, 2), [Decimal(text) for text in ("-1.50", "0", "0.5", "2", "2.25")]),
    "t": (pa.date32(), [dt.date(2024, 1, day) for day in (1, 2, 3, 4)]),
    "b": (pa.bool_(), [True, False]),
}
LITERALS = {
    "i": ["-2", "0", "1", "1.5", "NULL"],
    "f": ["-1", "0.5", "2", "CAST('NaN' AS DOUBLE)", "1e300", "NULL"],
    "s": ["''", "'a'", "'ab'", "'b'", "NULL"],
    "d": ["0", "0.5", "2.249", "2.25", "-1", "NULL"],
    "t": ["'2024-01-02'", "DATE '2024-01-03'", "NULL"],
}


@st.composite
def tables(draw):
    # One draw instead of one per value: the conditions are what is worth shrinking.
    chance = random.Random(draw(st.integers(0, 10**6)))
    size = chance.randint(1, 6)
    nulls = chance.choice([0, 0.3, 0.9])
    return pa.table(
        {
            name: pa.array([None if chance.random() < nulls else chance.choice(values) for _ in range(size)], kind)
            for name, (kind, values) in COLUMNS.items()
        }
    )


@st.composite
def simple(draw):
    name = draw(st.sampled_from(sorted(LITERALS)))
    value = st.sampled_from(LITERALS[name])
    operator = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
    kind = draw(st.integers(0, 9))
    if kind <= 3:
        return f"{name} {draw(operator)} {draw(value)}"
    if kind == 4:
        return f"{name} {draw(st.sampled_from(['IN', 'NOT IN']))} ({draw(value)}, {draw(value)}, {draw(value)})"
    if kind == 5:
        return f"{name} {draw(st.sampled_from(['', 'NOT']))} BETWEEN {draw(value)} AND {draw(value)}"
    if kind == 6:
        return f"{name} IS {draw(st.sampled_from(['', 'NOT']))} NULL"
    if kind == 7:
        pattern = draw(st.sampled_from(["a%", "%b", "_", "%", "", "a_b", "%B%"]))
        return f"s {draw(st.sampled_from(['LIKE', 'NOT LIKE', 'ILIKE']))} '{pattern}'"
    if kind == 8:
        numbers = st.sampled_from(["i", "f", "d"])
        return f"{draw(numbers)} {draw(operator)} {draw(numbers)}"
    calculated = ["i + 1", "i * d", "d - 0.25", "i / 2", "i % 2", "d % 2", "-i", "abs(d)", "round(d, 1)", "f * 2"]
    calculated += [
        "i / nullif(i, 0)",
        "f / 4",
        "coalesce(i, 0)",
        "nullif(i, 1)",
        "length(s)",
        "day(t)",
        "greatest(i, d)",
    ]
    calculated += ["CASE WHEN b THEN i ELSE d END", "CASE i WHEN 1 THEN 5 WHEN 2 THEN 6 END", "least(i, f)"]
    other = draw(st.sampled_from(["0", "1", "0.5", "i", "d"]))
    return f"{draw(st.sampled_from(calculated))} {draw(operator)} {other}"


def conditions():
    leaves = simple() | st.sampled_from(["b", "b IS NOT TRUE", "b IS FALSE", "TRUE", "NULL", "s || 'x' = 'ax'"])

    def joined(parts):
        pairs = st.tuples(parts, st.sampled_from(["AND", "OR"]), parts).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
        return pairs | parts.map(lambda part: f"NOT ({part})") | parts.map(lambda part: f"({part}) IS NULL")

    return st.recursive(leaves, joined, max_leaves=4)
