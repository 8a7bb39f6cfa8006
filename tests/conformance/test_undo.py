"""Undo, restore, time travel and vacuum, after every operation and on every engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from parketto import CannotUndo, Dataset, StateUnavailable, sql
from parketto.engines.base import Engine
from parketto.operations import past_states


def rows(first: int, count: int = 6) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "n": [i % 3 for i in ids], "day": [1 + i % 2 for i in ids]})


CHANGES = pa.table({"id": [5, 2], "n": [9, 9], "day": [2, 1], "at": [2, 2], "op": ["u", "d"]})
OPERATIONS: dict[str, Callable[[Dataset], object]] = {
    "first write": lambda dataset: dataset.write(rows(0), partition_by="day", partition_columns="path"),
    "append": lambda dataset: dataset.write(rows(6)),
    "delete": lambda dataset: dataset.delete("id IN (1, 4)"),
    "compact": lambda dataset: dataset.compact(),
    "update to another partition": lambda dataset: dataset.update("id = 3", {"day": sql("day + 2")}),
    "merge": lambda dataset: dataset.merge(rows(8), "id"),
    "optimize": lambda dataset: dataset.optimize(["id"]),
    "delete by keys": lambda dataset: dataset.delete(keys=pa.table({"id": [9, 10]}), key_columns="id"),
    "apply_changes": lambda dataset: dataset.apply_changes(
        CHANGES, "id", sequence_by="n", delete_when="op = 'd'", except_columns=["op", "at"]
    ),
    "overwrite of partitions": lambda dataset: dataset.write(
        pa.table({"id": [50, 50], "n": [1, 1], "day": [2, 2]}), "overwrite_partitions"
    ),
    "deduplicate": lambda dataset: dataset.deduplicate("id"),
    "replace where": lambda dataset: dataset.write(rows(20, 1), "overwrite", replace_where="id >= 20"),
    "alter": lambda dataset: dataset.alter(add={"x": "string"}, rename={"n": "m"}),
    "unify_schema": lambda dataset: dataset.unify_schema(cast={"m": "double"}),
    "repartition": lambda dataset: dataset.repartition(None),
    "overwrite": lambda dataset: dataset.write(rows(90), "overwrite"),
    "delete of all rows": lambda dataset: dataset.delete("id >= 0"),
}


def as_rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


class Story:
    """All operations on one dataset: its files and rows after each commit."""

    def __init__(self, place: Place, engine: Engine | str) -> None:
        self.dataset = place.dataset(engine=engine)
        self.states: list[dict[str, str]] = [{}]
        self.rows: list[list[dict[str, Any]]] = [[]]
        for run in OPERATIONS.values():
            run(self.dataset)
            self.states.append(place.state())
            self.rows.append(as_rows(self.dataset.read()))

    @property
    def last(self) -> int:
        return len(OPERATIONS)


def test_every_operation_is_undone_read_and_restored(place: Place, engine: Engine) -> None:
    story = Story(place, engine)
    dataset, last = story.dataset, story.last
    history = dataset.history()
    assert [commit["number"] for commit in history] == list(range(last, 0, -1)), "each operation is one commit"
    times = {commit["number"]: commit["at"] for commit in history}
    for number in range(1, last + 1):
        assert as_rows(dataset.read(as_of=number)) == story.rows[number]
        assert dataset.count(as_of=times[number]) == len(story.rows[number])
        assert dataset.count("id % 2 = 0", as_of=number) == sum(row["id"] % 2 == 0 for row in story.rows[number])
    for number in range(last - 1, -1, -1):
        assert dataset.history(1)[0]["can_undo"]
        dry = dataset.undo(dry_run=True)
        assert place.state() == story.states[number + 1]
        stats = dataset.undo()
        assert stats == {**dry, "dry_run": False}
        assert stats["undone"] == [number + 1]
        assert place.state() == story.states[number], f"commit {number + 1} is undone"
    with pytest.raises(CannotUndo, match="no commit to undo"):
        dataset.undo()
    # Undos are commits like others: all states can still be restored.
    for number in (last, 3, 7, 0, last - 2):
        dataset.restore(to=number)
        assert place.state() == story.states[number]
    report = dataset.check()
    assert (report["healthy"], report["missing"], report["unknown"]) == (True, [], [])
    assert place.left_behind() in ([], [path for path in place.left_behind() if "/changes/" in path])


def test_vacuum_ends_undo_and_time_travel(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(memory, "pyarrow")
    dataset = story.dataset
    before = memory.state()
    assert dataset.vacuum()["commits"] == [], "nothing is expired"
    dry = dataset.vacuum(older_than=0)
    assert dry["files_removed"] > 10
    assert memory.state() == before
    assert dataset.history(1)[0]["can_undo"]
    assert dataset.vacuum(older_than=0, dry_run=False) == {**dry, "dry_run": False}
    assert dataset.vacuum(older_than=0)["files_removed"] == 0
    assert memory.state() == before
    assert not any(commit["can_undo"] for commit in dataset.history())
    with pytest.raises(CannotUndo, match="no longer kept: a vacuum or a purge removed it"):
        dataset.undo()
    with pytest.raises(StateUnavailable, match=f"You can read the states? after commits? .*{story.last}"):
        dataset.read(as_of=3)
    monkeypatch.setattr(past_states, "unix_time", lambda: time.time() + 10 * 365 * 86_400)
    with pytest.raises(CannotUndo, match=r"no longer kept: its time ended at 2\d{3}-"):
        dataset.undo()


def test_states_are_read_with_pruning_and_columns_of_paths(place: Place) -> None:
    """The column of the partitions is only in the path of the files, also after a repartition."""
    dataset = place.dataset()
    dataset.write(rows(0), partition_by="day", partition_columns="path")
    dataset.repartition("n")
    dataset.delete("day = 1")
    assert as_rows(dataset.read(as_of=1)) == as_rows(rows(0))
    assert dataset.read(["id"], where="day = 2 AND id > 2", as_of=1).to_pydict() == {"id": [3, 5]}
    assert dataset.read(partition_filter="day=1", as_of=1).column("id").to_pylist() == [0, 2, 4]
    assert dataset.count(partition_filter=["n=1"], as_of=2) == 2
    assert dataset.scan(limit=2, as_of=1).read_all().num_rows == 2
    assert sorted(dataset.read().column("id").to_pylist()) == [1, 3, 5]
