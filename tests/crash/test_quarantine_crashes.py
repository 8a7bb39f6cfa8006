"""Writes with a quarantine killed at every step: both datasets change, or none does.

At every moment, also before recovery: if the rows that pass are visible, so are those in the quarantine. After
recovery both have changed or none has. A repeated write leaves no row out, and duplicates none.
"""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from helpers.crash import DEATHS, mortal, sampled
from parketto import CommitFailed, Dataset
from parketto.commit.quarantine import announcements, interrupted

FIRST = pa.table({"id": [1, 2, None], "price": [1.0, -1.0, 5.0]})
SECOND = pa.table({"id": [1, 3, 4, None], "price": [7.0, 3.0, 0.0, 1.0]})
RULES = {"positive price": "price > 0", "has id": "id IS NOT NULL"}
WORKER = str(Path(__file__).with_name("quarantine_worker.py"))
State = tuple[list[Any], list[Any]]


def write(dataset: Dataset, rows: pa.Table, **options: Any) -> Any:
    return dataset.write(rows, expect=RULES, on_violation="quarantine", **options)


def merge(dataset: Dataset, rows: pa.Table, **options: Any) -> Any:
    return dataset.merge(rows, "id", expect=RULES, on_violation="quarantine", **options)


def apply(dataset: Dataset, rows: pa.Table, **options: Any) -> Any:
    return dataset.apply_changes(
        rows, "id", sequence_by="price", expect=RULES, on_violation="quarantine", **options
    )


def overwrite(dataset: Dataset, rows: pa.Table, **options: Any) -> Any:
    return write(dataset, rows, mode="overwrite", **options)


OPERATIONS = [write, overwrite, merge, apply]


def quarantine_of(place: Place) -> str:
    return f"{place.root}_quarantine"


def make(place: Place) -> None:
    parent = place.root.rpartition("/")[0]
    if place.fs.exists(parent):
        place.fs.rm(parent, recursive=True)
    write(place.dataset(), FIRST)


def rows_of(root: str, place: Place) -> list[Any]:
    """What a plain reader finds."""
    paths = oracle.data_files(root, place.fs)
    found = [row for path in paths for row in oracle.read_file(path, place.fs).to_pylist()]
    return sorted(((row["id"], row["price"], row.get("broken_rules")) for row in found), key=repr)


def state(place: Place) -> State:
    return rows_of(place.root, place), rows_of(quarantine_of(place), place)


def left_behind(place: Place) -> list[str]:
    return [path for path in place.left_behind() if path != quarantine_of(place)]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call(
    place: Place, operation: Callable[..., Any], when: str, share: int, count_crash_points: Any
) -> None:
    make(place)
    before, dataset = state(place), place.dataset()
    calls = mortal(dataset)
    operation(dataset, SECOND)
    after, seen = state(place), set()
    assert all(old != new for old, new in zip(before, after, strict=True))
    points = sampled(range(1, calls() + 1), share)
    for at in points:
        make(place)
        dataset = place.dataset()
        mortal(dataset, at, when)
        with pytest.raises(DEATHS):
            operation(dataset, SECOND)
        rows, quarantined = state(place)
        assert rows != after[0] or quarantined == after[1], f"visible without its quarantine: {when} call {at}"
        place.dataset().recover()
        Dataset(quarantine_of(place), filesystem=place.fs).recover()
        found = state(place)
        assert found in (before, after), f"killed {when} call {at}"
        assert left_behind(place) == []
        seen.add(found == after)
    assert seen == {False, True}
    count_crash_points(len(points))


@pytest.mark.parametrize("history", ["on", "off"])
@pytest.mark.parametrize("commit_id", [None, "orders:2"])
def test_a_repeated_write_loses_and_duplicates_nothing(
    place: Place, commit_id: str | None, history: str, share: int, count_crash_points: Any
) -> None:
    """Without `recover()`: the next write with a quarantine finds what the dead one has left."""
    make(place)
    dataset = place.dataset(history=history)
    calls = mortal(dataset)
    write(dataset, SECOND, commit_id=commit_id)
    once = state(place)
    write(place.dataset(), SECOND)
    twice, seen = state(place), []
    points = sampled(range(1, calls() + 1), share)
    for at in points:
        make(place)
        dataset = place.dataset(history=history)
        mortal(dataset, at, "after")
        with pytest.raises(DEATHS):
            write(dataset, SECOND, commit_id=commit_id)
        write(place.dataset(history=history), SECOND, commit_id=commit_id)
        found = state(place)
        # Without a commit_id, rows that were committed before the kill are written once more: to both datasets.
        assert found in ([once] if commit_id else [once, twice]), f"killed after call {at}"
        seen.append(found)
    assert once in seen
    assert commit_id or twice in seen
    count_crash_points(len(points))


def before_creating(dataset: Dataset, folder: str, action: Callable[[], None]) -> None:
    """Call a function before the first file is created in a folder."""
    store, base = dataset._store, type(dataset._store)
    done: list[str] = []

    def create(self: Any, path: str, content: bytes) -> None:
        if path.startswith(folder) and not done:
            done.append(path)
            action()
        base.create(self, path, content)

    store.__class__ = type("Observed", (base,), {"create": create})


def no_space() -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


def test_a_commit_that_fails_takes_its_quarantine_back(local: Place) -> None:
    """The quarantine is committed, then the record of the write cannot be created."""
    make(local)
    before, dataset = state(local), local.dataset()
    log = dataset._context.workspace.log.folder
    before_creating(dataset, log, no_space)
    with pytest.raises(CommitFailed):
        write(dataset, SECOND)
    assert state(local) == before
    operations = [commit["operation"] for commit in Dataset(quarantine_of(local)).history()]
    assert operations == ["delete", "quarantine", "quarantine"], "it failed before the quarantine was committed"
    assert left_behind(local) == []


def test_compacted_rows_of_a_dead_write_are_removed_too(local: Place) -> None:
    make(local)
    before, dataset = state(local), local.dataset()
    log = dataset._context.workspace.log.folder
    mortal(dataset, lambda name, path: name == "create" and str(path).startswith(log))
    with pytest.raises(DEATHS):
        write(dataset, SECOND)
    quarantine = Dataset(quarantine_of(local))
    quarantine.compact()
    assert len(quarantine.files()) == 1
    assert rows_of(quarantine_of(local), local) != before[1]
    local.dataset().recover()
    assert state(local) == before


def test_a_running_write_keeps_its_quarantine(local: Place) -> None:
    """Another process that recovers does not take a write that is about to commit for a dead one."""
    make(local)
    running, dataset = state(local), local.dataset()
    log = dataset._context.workspace.log.folder
    seen: list[State] = []

    def look() -> None:
        workspace = local.dataset()._context.workspace
        announced = announcements(workspace)
        assert len(announced) == 1 - len(seen)
        assert interrupted(workspace, announced) == []
        seen.append(state(local))

    before_creating(dataset, log, look)
    write(dataset, SECOND)
    assert seen[0][0] == running[0]
    assert seen[0][1] == state(local)[1] != running[1]


def kill_repeatedly(place: Place, kills: int, seed: int) -> int:
    chance = random.Random(seed)
    batches = 0
    for kill in range(kills):
        worker = subprocess.Popen([sys.executable, WORKER, place.root], stdout=subprocess.PIPE)
        assert worker.stdout is not None
        with worker.stdout:
            worker.stdout.readline()
            time.sleep(chance.uniform(0.0, 0.4))
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        place.dataset().recover()
        Dataset(quarantine_of(place)).recover()
        rows, quarantined = state(place)
        written = [number for number, *_ in rows]
        assert written == [number for number, *_ in quarantined], f"kill {kill}"
        assert len(set(written)) == len(written), f"kill {kill}"
        assert left_behind(place) == []
        batches = len(written)
    return batches


def test_killed_processes_leave_both_datasets_together(local: Place, count_crash_points: Any) -> None:
    assert kill_repeatedly(local, 4, seed=3) > 4
    count_crash_points(4)
