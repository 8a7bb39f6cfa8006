"""Any sequence of operations: undone one by one, it gives each earlier state; any state can be restored."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import fsspec
import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conftest import Place
from parketto import CannotUndo, Dataset, sql

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
