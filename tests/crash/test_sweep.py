"""Operations killed at every step: all or nothing, and nothing left behind."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import polars as pl  # noqa: F401 - loaded, it encodes what is compacted on the disk
import pyarrow as pa
import pytest

from conftest import WAYS_TO_PUBLISH, Place, place_of
from helpers.crash import DEATHS, mortal, sampled
from helpers.kept import kept_contents, sound_manifests
from parketto import Dataset, sql
from parketto.commit import index_rows, index_update, retention
from parketto.operations import context
from parketto.parquet.appender import RowGroupAppender


@pytest.fixture(autouse=True)
def _footer_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small datasets have a footer index, too, and kills happen while it is written."""
    for module in (index_update, context):
        monkeypatch.setattr(module, "MIN_FILES", 1)
    monkeypatch.setattr(index_rows, "SETTLED_SECONDS", -60.0)


@pytest.fixture(params=WAYS_TO_PUBLISH)
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request)


OPERATIONS: dict[str, Callable[[Dataset], object]] = {
    "compact": lambda dataset: dataset.compact(target_rows_per_file=40),
    "compact by copying": lambda dataset: dataset.compact(target_rows_per_file=40, rewrite="copy"),
    "compact by encoding": lambda dataset: dataset.compact(target_rows_per_file=40, rewrite="encode"),
    "optimize": lambda dataset: dataset.optimize(["id"], target_rows_per_file=25),
    "optimize along a curve": lambda dataset: dataset.optimize(["id", "n"], target_rows_per_file=25),
    "overwrite": lambda dataset: dataset.write(pa.table({"id": [7, 8, 9]}), "overwrite", max_rows_per_file=2),
    "partitioned": lambda dataset: dataset.write(
        pa.table({"id": [7, 8, 9], "day": [1, 2, 3]}), "overwrite", partition_by="day", naming="sequential"
    ),
    "overwrite of partitions": lambda dataset: dataset.write(
        pa.table({"id": [7, 8, 9], "n": [1, 2, 3], "day": [2, 2, 3]}), "overwrite_partitions", max_rows_per_file=1
    ),
    "replace where": lambda dataset: dataset.write(
        pa.table({"id": [3, 4, 9], "n": [1, 2, 3], "day": [2, 2, 1]}), "overwrite", replace_where="id < 10"
    ),
    "append": lambda dataset: dataset.write(
        pa.table({"id": [7, 8, 9], "n": [1, 2, 3], "day": [1, 1, 3]}), "append", max_rows_per_file=1
    ),
    "upsert": lambda dataset: dataset.merge(SOURCE, ["id"]),
    "full merge": lambda dataset: dataset.merge(SOURCE, ["id"], strategy="full_merge"),
    "insert": lambda dataset: dataset.merge(SOURCE, ["id"], strategy="insert"),
    "delete": lambda dataset: dataset.delete("id < 5 OR day = 2"),
    "update": lambda dataset: dataset.update("id BETWEEN 3 AND 30 AND day = 1", {"day": sql("day + id % 3")}),
    "delete, one file for each": lambda dataset: dataset.delete("id < 5 OR day = 2", pack=False),
    "upsert, one file for each": lambda dataset: dataset.merge(SOURCE, ["id"], pack=False),
    "packed update of one column": lambda dataset: dataset.update("id BETWEEN 3 AND 30", {"n": sql("n + 1000")}),
    "update of one column": lambda dataset: dataset.update(
        "id BETWEEN 3 AND 30", {"n": sql("n + 1000")}, pack=False
    ),
    "upsert of one column": lambda dataset: dataset.merge(NEW_NUMBERS, ["id"], update_columns=["n"], pack=False),
    "delete by keys": lambda dataset: dataset.delete(keys=SOURCE, key_columns=["id"]),
    "deduplicate": lambda dataset: dataset.deduplicate("id", "day"),
    "repartition": lambda dataset: dataset.repartition(None),
    "alter": lambda dataset: dataset.alter(add={"x": "string"}, rename={"n": "m"}, cast={"id": "double"}),
    "unify schemas": lambda dataset: dataset.unify_schema(cast={"n": "double"}),
}
# These copy the chunks of all columns but one.
EXCHANGING = ("update of one column", "upsert of one column")
# Some keys keep their partition, some move to another one, some are new, in a new partition.
SOURCE = pa.table({"id": [2, 21, 55, 500, 501], "n": [1, 2, 3, 4, 5], "day": [1, 2, 9, 2, 9]})

# Keys that exist once, and one that is new.
NEW_NUMBERS = pa.table({"id": [33, 44, 77, 500], "n": [1, 2, 3, 4], "day": [1, 1, 1, 2]})


def numbered(ids: range) -> pa.Table:
    return pa.table({"id": list(ids), "n": [number * 7919 % 101 for number in ids]})


def make(place: Place) -> None:
    if place.fs.exists(place.root.rpartition("/")[0]):
        place.fs.rm(place.root.rpartition("/")[0], recursive=True)
    place.write_files(
        {
            f"day={day}/{name}.parquet": numbered(range(first, first + 9))
            for day in (1, 2)
            for name, first in (("a", 50), ("b", 0), ("c", 20))
        }
    )
    place.write_files({"day=1/big.parquet": numbered(range(90))})
    place.fs.pipe_file(f"{place.root}/_SUCCESS", b"")
    place.fs.pipe_file(f"{place.root}/day=1/notes.txt", b"mine")


def empty_folders(place: Place) -> list[str]:
    """The folders of the dataset without anything in them, on the local disk."""
    return [folder for folder, folders, files in os.walk(place.root) if not folders and not files]


class Outcome:
    """The state of the dataset before an operation, and after one without a kill."""

    def __init__(self, place: Place, operation: Callable[[Dataset], object], engine: str = "pyarrow") -> None:
        make(place)
        self.before = place.state()
        self.rows_before = place.rows()
        dataset = place.dataset(engine=engine)
        calls = mortal(dataset)
        operation(dataset)
        self.calls = calls()
        self.rows_after = place.rows()
        self.files_after = len(place.files())
        assert place.left_behind() == []

    def check_kept(self, place: Place, state: dict[str, str]) -> None:
        """What was retired is kept as a whole; before the operation there is nothing."""
        retired = {path: content for path, content in self.before.items() if path not in state}
        found = [kept_contents(place, manifest) for manifest in sound_manifests(place)]
        assert found == ([retired] if retired else [])

    def check(self, place: Place) -> str:
        """Exactly the state before or after; files that are not data are unchanged."""
        state = place.state()
        assert empty_folders(place) == []
        self.check_kept(place, state)
        untouchable = {path: content for path, content in state.items() if not path.endswith(".parquet")}
        assert untouchable == {p: c for p, c in self.before.items() if not p.endswith(".parquet")}
        if state == self.before:
            return "before"
        assert place.rows() == self.rows_after
        assert len(place.files()) == self.files_after
        return "after"


def killed(dataset: Dataset, operation: Callable[[Dataset], object], at: int, when: str) -> bool:
    mortal(dataset, at, when)
    try:
        operation(dataset)
    except DEATHS:
        return True
    return False


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_at_every_call_and_during_recovery(
    place: Place, operation: str, share: int, count_crash_points: Any
) -> None:
    run = OPERATIONS[operation]
    outcome = Outcome(place, run)
    points, seen = 0, set()
    kills = [(at, when) for when in ("before", "after", "half") for at in range(1, outcome.calls + 1)]
    for at, when in sampled(kills, share):
        make(place)
        assert killed(place.dataset(), run, at, when), f"{operation} ends before call {at}"
        # Recovery itself is killed at each of its steps, until it completes.
        for step in range(1, 200):
            points += 1
            if not killed(place.dataset(), lambda dataset: dataset.recover(), step, when):
                break
        else:
            pytest.fail("recovery never ends")
        seen.add(outcome.check(place))
        assert not place.dataset().recover(), "recovery is idempotent"
        assert place.left_behind() == []
    assert seen == {"before", "after"}
    count_crash_points(points)


def test_killed_while_expired_files_are_removed(
    place: Place, share: int, count_crash_points: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any kill, what is kept is whole or gone, and a later operation removes the rest."""
    clock = [time.time()]
    monkeypatch.setattr(retention, "unix_time", lambda: clock[0])

    def made() -> Dataset:
        make(place)
        place.dataset(retention=10).delete("id = 0")
        place.dataset(retention=30).delete("id = 1")
        clock[0] += 20
        return place.dataset()

    def work(dataset: Dataset) -> None:
        dataset.delete("id = 2")

    dataset = made()
    calls = mortal(dataset)
    work(dataset)
    assert [manifest.number for manifest in sound_manifests(place)] == [3, 2]
    rows, number = place.rows(), calls()
    points = sampled([(at, when) for when in ("before", "after", "half") for at in range(1, number + 1)], share)
    for at, when in points:
        assert killed(made(), work, at, when), at
        for step in range(1, 200):
            if not killed(place.dataset(), lambda dataset: dataset.recover(), step, when):
                break
        assert [manifest.number for manifest in sound_manifests(place)] in ([2], [3, 2])
        assert place.left_behind() == []
        work(place.dataset())
        assert place.rows() == rows
    count_crash_points(len(points))


@pytest.mark.parametrize("operation", EXCHANGING)
def test_sweep_covers_the_replacement_of_columns(
    memory: Place, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the sweep could lose this code path unnoticed."""
    grafts = []
    original = RowGroupAppender.replace_columns
    monkeypatch.setattr(RowGroupAppender, "replace_columns", lambda *args: grafts.append(original(*args)))
    Outcome(memory, OPERATIONS[operation])
    assert grafts


@pytest.mark.parametrize("operation", OPERATIONS)
def test_next_operation_recovers_by_itself(place: Place, operation: str, share: int) -> None:
    """Without recover(): the next operation recovers."""
    run = OPERATIONS[operation]
    outcome = Outcome(place, run)
    for at in sampled(range(1, outcome.calls + 1), share):
        make(place)
        assert killed(place.dataset(), run, at, "after")
        place.dataset().compact(target_rows_per_file=1_000)
        assert place.rows() in (outcome.rows_before, outcome.rows_after)
        assert place.left_behind() == []


def test_a_dry_run_sees_the_recovered_dataset(place: Place) -> None:
    run = OPERATIONS["compact"]
    outcome = Outcome(place, run)
    for at in range(1, outcome.calls + 1):
        make(place)
        assert killed(place.dataset(), run, at, "before")
        stats = place.dataset().compact(target_rows_per_file=40, dry_run=True)
        assert stats["before_file_count"] == len(place.files())
        outcome.check(place)


@pytest.mark.parametrize("operation", ["append", "compact", "overwrite", "upsert"])
def test_a_dry_run_of_a_recovery_says_what_it_will_do(place: Place, operation: str, share: int) -> None:
    run = OPERATIONS[operation]
    kills = [(at, when) for when in ("before", "after") for at in range(1, Outcome(place, run).calls + 1)]
    seen = set()
    for at, when in sampled(kills, share):
        make(place)
        assert killed(place.dataset(), run, at, when)
        parent = place.root.rpartition("/")[0]
        found = {path: place.fs.cat_file(path) for path in place.fs.find(parent)}
        planned = place.dataset().recover(dry_run=True)
        assert {path: place.fs.cat_file(path) for path in place.fs.find(parent)} == found, (
            "a dry run changes nothing"
        )
        assert planned == {**place.dataset().recover(), "dry_run": True}
        seen.add(planned.action)
    assert seen >= {"none", "completed"}


def sweep_on(engine: str, place: Place, operation: str, share: float) -> int:
    """The process is killed at a seeded share of its steps. On Spark that is the driver: tasks only stage."""
    run = OPERATIONS[operation]
    outcome = Outcome(place, run, engine)
    chance = random.Random(operation)
    points = [(at, when) for at in range(1, outcome.calls + 1) for when in ("before", "after")]
    chosen = chance.sample(points, max(2, int(len(points) * share)))
    for at, when in chosen:
        make(place)
        assert killed(place.dataset(engine=engine), run, at, when), f"{operation} ends before call {at}"
        place.dataset().recover()
        outcome.check(place)
        assert place.left_behind() == []
    return len(chosen)


@pytest.mark.spark
@pytest.mark.parametrize("operation", OPERATIONS)
def test_driver_killed_on_spark(local: Place, operation: str, count_crash_points: Any) -> None:
    count_crash_points(sweep_on("spark", local, operation, share=0.08))


@pytest.mark.spark
@pytest.mark.sweep
@pytest.mark.parametrize("operation", OPERATIONS)
def test_driver_killed_at_every_step_on_spark(local: Place, operation: str, count_crash_points: Any) -> None:
    count_crash_points(sweep_on("spark", local, operation, share=1.0))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_on_duckdb(place: Place, operation: str, count_crash_points: Any) -> None:
    count_crash_points(sweep_on("duckdb", place, operation, share=0.1))


@pytest.mark.sweep
@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_at_every_call_on_duckdb(place: Place, operation: str, count_crash_points: Any) -> None:
    count_crash_points(sweep_on("duckdb", place, operation, share=1.0))
