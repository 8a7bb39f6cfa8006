"""Random rows and rules: the split agrees with plain Python, for every engine and way to write."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import fsspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from parketto import Dataset
from parketto.expressions.dispatch import predicate
from parketto.parquet.row_checks import Violations
from parketto.tasks.expectations import Expectations

Row = dict[str, Any]
_numbers = itertools.count()
SCHEMA = pa.schema({"n": pa.int64(), "x": pa.float64(), "name": pa.string()})
#: Conditions, and the same in plain Python: True, False, or None for NULL.
RULES: dict[str, Callable[[Row], bool | None]] = {
    "n > 2": lambda row: None if row["n"] is None else row["n"] > 2,
    "x <= 0 OR x IS NULL": lambda row: row["x"] is None or row["x"] <= 0,
    "name = 'a'": lambda row: None if row["name"] is None else row["name"] == "a",
    "n IS NOT NULL AND name IS NOT NULL": lambda row: row["n"] is not None and row["name"] is not None,
    "NOT (n = 4)": lambda row: None if row["n"] is None else row["n"] != 4,
    "TRUE": lambda row: True,
    "FALSE": lambda row: False,
    "NULL": lambda row: None,
}
rows = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(0, 6),
            "x": st.none() | st.sampled_from([-1.0, 0.0, 2.5]),
            "name": st.none() | st.sampled_from(["a", "b", ""]),
        }
    ),
    max_size=30,
)
rules = st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=4, unique=True)


def broken(row: Row, names: list[str]) -> list[str]:
    return [name for name in names if RULES[name](row) is not True]


def as_counter(found: list[Row]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in found)


@given(rows, rules, st.integers(1, 10))
@settings(max_examples=150, deadline=None)
def test_split_agrees_with_plain_python(given_rows: list[Row], names: list[str], size: int) -> None:
    conditions = tuple(predicate(name, SCHEMA) for name in names)
    expectations: Expectations = pickle.loads(pickle.dumps(Expectations(tuple(names), conditions, SCHEMA, SCHEMA)))
    passed, violating, total = [], [], Violations()
    for start in range(0, len(given_rows), size):
        found = expectations.split(pa.RecordBatch.from_pylist(given_rows[start : start + size], SCHEMA))
        passed += found.passed.to_pylist()
        violating += [] if found.violating is None else found.violating.to_pylist()
        total += found.found
    assert passed == [row for row in given_rows if not broken(row, names)]
    assert violating == [{**row, "broken_rules": broken(row, names)} for row in given_rows if broken(row, names)]
    if given_rows:
        assert (total.rows, total.violating) == (len(given_rows), len(violating))
        assert total.counts == tuple(sum(name in broken(row, names) for row in given_rows) for name in names)
        first = [next((row for row in given_rows if name in broken(row, names)), None) for name in names]
        assert list(total.examples) == first


@given(rows, rules, st.sampled_from(["pyarrow", "duckdb"]), st.sampled_from([None, "name"]), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_no_row_is_lost_between_dataset_and_quarantine(
    given_rows: list[Row], names: list[str], engine: str, partition_by: str | None, size: int
) -> None:
    root = f"memory://expectations-{next(_numbers)}/events"
    table = pa.Table.from_pylist(given_rows, SCHEMA)
    dataset = Dataset(root, engine)
    batches = iter(table.to_batches(max_chunksize=size) or [pa.RecordBatch.from_pylist([], SCHEMA)])
    stats = dataset.write(
        batches, expect={name: name for name in names}, on_violation="quarantine", partition_by=partition_by
    )
    wrong = [{**row, "broken_rules": broken(row, names)} for row in given_rows if broken(row, names)]
    passed = [row for row in given_rows if not broken(row, names)]
    assert as_counter(dataset.read().select(SCHEMA.names).to_pylist()) == as_counter(passed)
    assert stats["rows_violating"] == len(wrong)
    if wrong:
        found = Dataset(f"{root}_quarantine", "pyarrow").read().select([*SCHEMA.names, "broken_rules"])
        assert as_counter(found.to_pylist()) == as_counter(wrong)
    else:
        assert stats["quarantine"] is None
    fsspec.filesystem("memory").rm(root.rpartition("/")[0].removeprefix("memory:/"), recursive=True)
