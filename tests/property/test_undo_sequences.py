"""Any sequence of operations: undone one by one, it gives each earlier state; any state can be restored.

The column with the numbers is `n` or, once renamed, `m`; `x` is there at times, in one type or another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conftest import Place
from parketto import CannotUndo, Dataset, DatasetNotFound, sql

_numbers = count()


def _rows(seed: int) -> pa.Table:
    return pa.table({"id": [seed % 7, seed % 5 + 3], "n": [seed, -seed], "day": [seed % 2, (seed + 1) % 2]})


STEPS: dict[str, Callable[[Dataset, int], Any]] = {
    "append": lambda dataset, seed: dataset.write(_rows(seed)),
    # The names of removed files are used again.
    "append by number": lambda dataset, seed: dataset.write(_rows(seed), basename_template="f_{}.parquet"),
    "delete": lambda dataset, seed: dataset.delete(f"id = {seed % 7}"),
    "update": lambda dataset, seed: dataset.update(f"id < {seed % 7}", {"n": sql("n + 1")}),
    "merge": lambda dataset, seed: dataset.merge(
        pa.table({"id": [seed % 7], "n": [seed], "day": [seed % 2]}), "id"
    ),
    "overwrite": lambda dataset, seed: dataset.write(_rows(seed), "overwrite", basename_template="f_{}.parquet"),
    "compact": lambda dataset, _: dataset.compact(),
    "optimize": lambda dataset, _: dataset.optimize(["n"]),
    "repartition": lambda dataset, seed: dataset.repartition("day" if seed % 2 else None),
    "deduplicate": lambda dataset, _: dataset.deduplicate("id"),
}


def _names(dataset: Dataset) -> list[str]:
    """The columns of a dataset; those of the first rows if it has no files."""
    try:
        return list(dataset.schema.names)
    except DatasetNotFound:
        return ["id", "n", "day"]


def _number(dataset: Dataset) -> str:
    return "m" if "m" in _names(dataset) else "n"


def _fitted(dataset: Dataset, seed: int) -> pa.Table:
    """Rows with the columns of a dataset."""
    found = _rows(seed).rename_columns({"n": _number(dataset)})
    if "x" in _names(dataset):
        found = found.append_column("x", pa.array([seed, -seed]).cast(dataset.schema.field("x").type))
    return found


def _add(dataset: Dataset, _: int) -> None:
    if "x" not in _names(dataset):
        dataset.alter(add={"x": "bigint"})


def _drop(dataset: Dataset, _: int) -> None:
    if "x" in _names(dataset):
        dataset.alter(drop="x")


def _cast(dataset: Dataset, seed: int) -> None:
    if "x" in _names(dataset):
        change = dataset.unify_schema if seed % 2 else dataset.alter
        change(cast={"x": "bigint" if pa.types.is_string(dataset.schema.field("x").type) else "string"})


def _rename(dataset: Dataset, _: int) -> None:
    old = _number(dataset)
    dataset.alter(rename={old: "n" if old == "m" else "m"})


CHANGES: dict[str, Callable[[Dataset, int], Any]] = {
    "append": lambda dataset, seed: dataset.write(_fitted(dataset, seed)),
    "append again": lambda dataset, seed: dataset.write(_fitted(dataset, seed + 1)),
    "delete": lambda dataset, seed: dataset.delete(f"id = {seed % 7}"),
    "delete of a partition": lambda dataset, seed: dataset.delete(f"day = {seed % 2}"),
    "update": lambda dataset, seed: dataset.update(
        f"id < {seed % 7}", {_number(dataset): sql(f"{_number(dataset)} + 1")}
    ),
    "compact": STEPS["compact"],
    "repartition": STEPS["repartition"],
    "overwrite": lambda dataset, seed: dataset.write(_fitted(dataset, seed), "overwrite"),
    "rename": _rename,
    "add": _add,
    "drop": _drop,
    "cast": _cast,
}
Steps = st.lists(st.tuples(st.sampled_from([*STEPS]), st.integers(0, 30)), min_size=1, max_size=6)


class Run:
    """A dataset, and its rows after each commit."""

    def __init__(self, steps: list[tuple[str, int]]) -> None:
        self.place = Place(f"/undo-{next(_numbers)}/events", fsspec.filesystem("memory"))
        self.dataset = self.place.dataset()
        self.dataset.write(_rows(3), partition_by="day")
        self.rows = {0: None, 1: self.place.rows()}
        for name, seed in steps:
            STEPS[name](self.dataset, seed)
            self.note()

    @property
    def last(self) -> int:
        return self.dataset.history(1)[0]["number"]

    def note(self) -> None:
        self.rows[self.last] = self.now()

    def now(self) -> Any:
        """The rows; None without files."""
        return self.place.rows() if self.place.files() else None

    def close(self) -> None:
        self.place.fs.rm(self.place.root.rpartition("/")[0], recursive=True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=Steps)
def test_undone_one_by_one(steps: list[tuple[str, int]]) -> None:
    run = Run(steps)
    for number in sorted(run.rows, reverse=True)[1:]:
        run.dataset.undo()
        assert run.now() == run.rows[number]
    run.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=Steps,
    jumps=st.lists(st.tuples(st.sampled_from(["undo", "restore", "write"]), st.integers(0, 12)), max_size=5),
)
@example(steps=[("append", 0), ("repartition", 0), ("append", 0)], jumps=[("undo", 3)])
def test_undo_restore_and_writes_in_any_order(steps: list[tuple[str, int]], jumps: list[tuple[str, int]]) -> None:
    """An undo that is possible changes exactly what its commits did, so undoing it gives the state before."""
    run = Run(steps)
    for kind, number in jumps:
        before, last = run.now(), run.last
        number = number % (last + 1)
        if kind == "restore":
            run.dataset.restore(to=number)
            assert run.now() == run.rows[number]
        elif kind == "write":
            run.dataset.write(_rows(number), basename_template="f_{}.parquet")
        else:
            possible = {commit["number"]: commit["can_undo"] for commit in run.dataset.history()}
            try:
                run.dataset.undo(number)
            except CannotUndo:
                assert not possible.get(number)
                assert run.now() == before
                continue
            assert possible[number]
            run.note()
            run.dataset.undo(run.last)
            assert run.now() == before, "an undo can be undone"
        run.note()
    for number, rows in run.rows.items():
        if rows is not None:
            assert run.dataset.count(as_of=number) == sum(rows.values())
    run.close()


class ColumnRun:
    """A dataset whose columns change, and its rows after each commit."""

    def __init__(self) -> None:
        self.place = Place(f"/undo-{next(_numbers)}/events", fsspec.filesystem("memory"))
        self.dataset = self.place.dataset()
        self.dataset.write(_rows(3), partition_by="day")
        self.rows: dict[int, Counter[Any]] = {0: Counter()}
        self.note()

    @property
    def last(self) -> int:
        return self.dataset.history(1)[0]["number"]

    def note(self) -> None:
        self.rows.setdefault(self.last, self.now())

    def now(self) -> Counter[Any]:
        """The rows, under whatever name the numbers are."""
        if not self.place.files():
            return Counter()
        assert not {"n", "m"} <= {*_names(self.dataset)}, "all files have the same name of a column"
        number = _number(self.dataset)
        return Counter((row["id"], row[number], row["day"]) for row in self.dataset.read().to_pylist())

    def changed(self, number: int) -> Counter[Any]:
        """What a commit has done: how many there are more of each row."""
        found = Counter(self.rows[number])
        found.subtract(self.rows[number - 1])
        return found

    def undo(self, number: int) -> bool:
        """Undo a commit, if that is possible."""
        before, state = self.now(), self.place.state()
        possible = {commit["number"]: commit["can_undo"] for commit in self.dataset.history()}
        try:
            undone = self.dataset.undo(number)["undone"]
        except CannotUndo as error:
            undone, why = [], str(error)
        if not undone:
            assert self.place.state() == state
            assert "other types" in why or not possible.get(number), "types of written rows are in no log"
            return False
        assert possible[number]
        expected = Counter(before)
        for each in undone:
            expected.subtract(self.changed(each))
        assert +self.now() == +expected, f"{undone} are undone"
        return True

    def close(self) -> None:
        self.place.fs.rm(self.place.root.rpartition("/")[0], recursive=True)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([*CHANGES, "undo", "undo", "undo"]), st.integers(0, 30)), min_size=2, max_size=9
    )
)
@example(steps=[("append", 0), ("delete", 0), ("rename", 0), ("undo", 3)])
@example(steps=[("add", 0), ("append", 0), ("delete", 0), ("cast", 0), ("undo", 4)])
@example(steps=[("undo", 0), ("undo", 1), ("append", 0), ("append", 0), ("undo", 0), ("undo", 26)])
@example(steps=[("rename", 0), ("append", 4), ("undo", 2), ("undo", 3), ("undo", 2), ("append", 0), ("undo", 5)])
def test_files_come_back_to_the_same_columns_only(steps: list[tuple[str, int]]) -> None:
    """An undo takes back the rows that its commits have changed and nothing else, or it changes nothing."""
    run = ColumnRun()
    for name, seed in steps:
        if name == "undo":
            if run.undo(1 + seed % run.last):
                run.note()
        elif name in ("append", "append again") or run.place.files():
            CHANGES[name](run.dataset, seed)
            run.note()
    for number in sorted(run.rows, reverse=True)[1:]:
        run.dataset.restore(to=number)
        assert run.now() == run.rows[number]
    run.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(st.tuples(st.sampled_from([*CHANGES]), st.integers(0, 30)), min_size=1, max_size=7))
def test_changes_of_columns_undone_one_by_one(steps: list[tuple[str, int]]) -> None:
    run = ColumnRun()
    for name, seed in steps:
        if name in ("append", "append again") or run.place.files():
            CHANGES[name](run.dataset, seed)
            run.note()
    redone = run.last
    for number in sorted(run.rows, reverse=True)[1:]:
        run.dataset.undo()
        assert run.now() == run.rows[number]
    for undo in range(run.last, redone, -1):
        run.dataset.undo(undo)
    assert run.now() == run.rows[redone], "all are done again"
    with pytest.raises(CannotUndo):
        run.dataset.undo(redone + 1)
    run.close()
