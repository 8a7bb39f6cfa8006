"""Keys are matched by hash: equal keys always, different keys never, for every type, even if hashes collide."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parketto.merge import keys as keys_module
from parketto.merge.hashing import key_hashes
from parketto.merge.key_join import by_bucket
from parketto.merge.keys import KeyIndex
from parketto.merge.rules import MergeRules

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, True]),
    (pa.int8(), [-1, 0, -1, 127]),
    (pa.uint64(), [2**64 - 1, 0, 2**64 - 1]),
    (pa.float16(), [np.float16(0.5), np.float16(0.25), np.float16(0.5)]),
    (pa.float32(), [float("nan"), 1.5, float("nan"), 0.0, -0.0]),
    (pa.float64(), [float("nan"), 1.5, float("nan"), 0.0, -0.0]),
    (pa.decimal128(20, 2), [decimal.Decimal("1.25"), decimal.Decimal("-7"), decimal.Decimal("1.25")]),
    (pa.decimal256(50, 0), [decimal.Decimal(10**40), decimal.Decimal(1), decimal.Decimal(10**40)]),
    (pa.string(), ["", "a", "ab", "abcdefgh", "abcdefghi", "a", "x" * 300, "x" * 299 + "y", "x" * 300]),
    (pa.large_binary(), [b"", b"\0", b"\0\0", b"\0", b"\0" * 400, b"\0" * 401]),
    (pa.binary(3), [b"abc", b"abd", b"abc"]),
    (pa.date32(), [dt.date(2026, 1, 1), dt.date(1500, 1, 1), dt.date(2026, 1, 1)]),
    (pa.timestamp("ns", "UTC"), [0, 1, 0]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"]),
]


def _same(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)


@pytest.mark.parametrize(
    ("kind", "values"), VALUES, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
@pytest.mark.parametrize("others", [[], ["n"]], ids=["alone", "with another"])
def test_keys_of_every_type_are_found(kind: pa.DataType, values: list[Any], others: list[str]) -> None:
    table = pa.table({"key": pa.array([None, *values], kind).slice(1), "n": [7] * len(values)})
    plain = table.column("key").to_pylist() if not pa.types.is_timestamp(kind) else values
    found = KeyIndex(table, ["key", *others]).find(table)
    last = [max(at for at, other in enumerate(plain) if _same(value, other)) for value in plain]
    assert found.tolist() == last


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.text(max_size=12))),
    st.lists(st.tuples(st.integers(-3, 3), st.text(max_size=12))),
)
def test_key_index_agrees_with_a_dict(mine: list[tuple[int, str]], theirs: list[tuple[int, str]]) -> None:
    def table(rows: list[tuple[int, str]]) -> pa.Table:
        numbers, texts = pa.array([n for n, _ in rows], pa.int64()), pa.array([t for _, t in rows], pa.string())
        return pa.table({"n": numbers, "t": texts})

    places = {key: at for at, key in enumerate(mine)}
    assert KeyIndex(table(mine), ["n", "t"]).find(table(theirs)).tolist() == [
        places.get(key, -1) for key in theirs
    ]


def test_keys_with_equal_hashes_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def collide(columns: list[pa.Array], seed: int = 0) -> Any:
        seeds.append(seed)
        return np.zeros(len(columns[0]), np.uint64) if seed == 0 else key_hashes(columns, seed)

    monkeypatch.setattr(keys_module, "key_hashes", collide)
    table = pa.table({"key": ["a", "b", "a"]})
    index = KeyIndex(table, ["key"])
    assert index.find(pa.table({"key": ["b", "a", "c"]})).tolist() == [1, 2, -1]
    assert seeds == [0, 1, 1]


def test_equal_hash_of_a_different_key_is_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "key_hashes", lambda columns, _seed=0: np.zeros(len(columns[0]), np.uint64))
    index = KeyIndex(pa.table({"key": ["a", "a"]}), ["key"])
    assert index.find(pa.table({"key": ["b", "a"]})).tolist() == [-1, 1]


def test_buckets_are_about_equal_and_depend_on_the_key_alone() -> None:
    rows, rules = pa.table({"key": range(40_000)}), MergeRules("upsert", ("key",))
    found = dict(by_bucket(rows, rules, 8))
    assert sorted(found) == list(range(8))
    assert all(4_500 < piece.num_rows < 5_500 for piece in found.values())
    backwards = dict(by_bucket(rows.take(pa.array(np.arange(40_000)[::-1])), rules, 8))
    assert all(sorted(found[at]["key"].to_pylist()) == sorted(backwards[at]["key"].to_pylist()) for at in found)
