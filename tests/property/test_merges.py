"""Random targets, sources, keys and strategies: every engine agrees with the oracle."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Place
from helpers import oracle
from helpers.merge_oracle import merged
from parketto.engines.base import Engine

_numbers = itertools.count()

# Few values each, so that keys match.
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-3, 3)),
    "int64": (pa.int64(), st.sampled_from([-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1])),
    "uint32": (pa.uint32(), st.sampled_from([0, 1, 2**31, 2**32 - 1])),
    "text": (pa.string(), st.sampled_from(["", "a", "A", "it's", 'x"y', "ünï", "🦆", "a;--", "a\0b", " a"])),
    "date": (pa.date32(), st.sampled_from([dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2025, 2, 28)])),
    "decimal": (pa.decimal128(9, 2), st.sampled_from([Decimal("-0.01"), Decimal("0.00"), Decimal("12.34")])),
}
VALUES = st.one_of(st.none(), st.sampled_from(["x", "y", "z"]))


# Conditions in SQL and in Python, where a comparison with None is false.
CLAUSES: dict[str, tuple[str, Any]] = {
    "update_when": (
        "source.rank > target.rank OR target.rank IS NULL",
        lambda source, target: (
            target["rank"] is None or (source["rank"] is not None and source["rank"] > target["rank"])
        ),
    ),
    "delete_when": (
        "source.part = target.part",
        lambda source, target: None is not source["part"] == target["part"],
    ),
    "insert_when": ("source.rank <> 1", lambda source, _: source["rank"] not in (None, 1)),
}
REFUSED = {("insert", "update_when"), ("update", "insert_when")}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True))
    null_keys = draw(st.booleans())
    keys = st.tuples(*(st.one_of(st.none(), KINDS[kind][1]) if null_keys else KINDS[kind][1] for kind in kinds))
    rows = st.tuples(keys, VALUES, st.one_of(st.none(), st.integers(0, 3)))
    strategy = draw(st.sampled_from(["upsert", "insert", "update", "full_merge", "deduplicate"]))
    several = strategy == "deduplicate"
    source = draw(st.lists(rows, max_size=12, unique_by=None if several else lambda row: row[0]))
    return {
        "kinds": kinds,
        "null_keys": "match" if null_keys else "refuse",
        "files": draw(st.lists(st.lists(rows, max_size=6), min_size=1, max_size=4)),
        "source": source,
        "strategy": strategy,
        "order_by": ["rank"] if several and draw(st.booleans()) else [],
        "partitioned": draw(st.booleans()),
        "clauses": {
            name
            for name in ("update_when", "delete_when", "insert_when")
            if draw(st.integers(0, 3)) == 0 and (strategy, name) not in REFUSED
        },
    }


def table(case: dict[str, Any], rows: list[Any]) -> pa.Table:
    names = [f"k{at} {kind}" for at, kind in enumerate(case["kinds"])]
    types = [KINDS[kind][0] for kind in case["kinds"]]
    schema = pa.schema([*zip(names, types, strict=True), ("part", pa.string()), ("rank", pa.int64())])
    return pa.Table.from_pylist(
        [dict(zip(schema.names, [*key, *rest], strict=True)) for key, *rest in rows], schema
    )


def check(place: Place, engine: Engine, case: dict[str, Any]) -> None:
    place = Place(f"{place.root}-{next(_numbers)}", place.fs)
    tables = [table(case, rows) for rows in case["files"]]
    for number, each in enumerate(tables):
        if case["partitioned"]:
            place.dataset(engine="pyarrow").write(each, partition_by="part", naming="timestamp")
        else:
            place.write_files({f"{number}.parquet": each})
    source = table(case, case["source"])
    keys = source.schema.names[: len(case["kinds"])]
    target = [row for each in tables for row in each.to_pylist()]
    expected, stats = merged(
        target,
        source.to_pylist(),
        keys,
        case["strategy"],
        case["order_by"],
        **{name: CLAUSES[name][1] for name in case["clauses"]},
    )
    options: dict[str, Any] = {name: CLAUSES[name][0] for name in case["clauses"]}
    options |= {"strategy": case["strategy"], "dedup_order_by": case["order_by"] or None}
    options["null_keys"] = case["null_keys"]
    dataset = place.dataset(engine=engine)
    assert dataset.merge(source, keys, **options, dry_run=True) == stats
    assert dataset.merge(source, keys, **options) == stats
    rows = [
        row
        for path in oracle.data_files(place.root, place.fs)
        for row in oracle.read_file(path, place.fs).to_pylist()
    ]
    assert Counter(map(repr, rows)) == Counter(map(repr, expected))
    assert all(schema.equals(source.schema) for schema in oracle.schemas(place.root, place.fs))


COMMON = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@given(case=cases())
@settings(max_examples=60, **COMMON)
def test_merges_in_memory(memory: Place, case: dict[str, Any]) -> None:
    check(memory, "pyarrow", case)


@pytest.mark.sweep
@given(case=cases())
@settings(max_examples=1000, **COMMON)
def test_many_merges_in_memory(memory: Place, case: dict[str, Any]) -> None:
    check(memory, "pyarrow", case)


@given(case=cases())
@settings(max_examples=8, **COMMON)
def test_merges_on_every_engine(local: Place, merge_engine: Engine, case: dict[str, Any]) -> None:
    check(local, merge_engine, case)


@pytest.mark.sweep
@given(case=cases())
@settings(max_examples=150, **COMMON)
def test_many_merges_on_every_engine(local: Place, merge_engine: Engine, case: dict[str, Any]) -> None:
    check(local, merge_engine, case)
