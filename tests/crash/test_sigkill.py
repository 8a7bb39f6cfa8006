"""Real processes, killed by SIGKILL at seeded random moments."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from worker import ROWS, version_table

from conftest import Place
from helpers import oracle
from helpers.clusters import descendants
from helpers.kept import sound_manifests
from parketto import Dataset

WORKER = str(Path(__file__).with_name("worker.py"))
UNDO_WORKER = str(Path(__file__).with_name("undo_worker.py"))
SPARK_WORKER = str(Path(__file__).with_name("spark_worker.py"))


def kill_repeatedly(place: Place, kills: int, seed: int) -> dict[str, int]:
    chance = random.Random(seed)
    Dataset(place.root).write(version_table(0))
    found = {"completed": 0, "rolled back": 0, "staging": 0, "nothing": 0}
    for attempt in range(kills):
        worker = subprocess.Popen(
            # Single renames take longer than a swap, so a kill hits them more often.
            [sys.executable, WORKER, place.root, str(1000 * (attempt + 1)), "auto" if attempt % 3 else "rename"],
            stdout=subprocess.PIPE,
        )
        assert worker.stdout is not None
        with worker.stdout:
            worker.stdout.readline()
            time.sleep(chance.uniform(0.0, 0.6))
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        recovery = place.dataset().recover()
        found[recovery.action if recovery.action != "none" else "staging" if recovery else "nothing"] += 1
        rows = [row for path in oracle.data_files(place.root) for row in oracle.read_file(path).to_pylist()]
        assert sorted(row["id"] for row in rows) == list(range(ROWS)), f"kill {attempt}: {recovery}"
        assert len({row["version"] for row in rows}) == 1, f"kill {attempt}: {recovery}"
        assert all(row["text"] == f"text {row['id']}" for row in rows), f"kill {attempt}: {recovery}"
        assert place.left_behind() == []
    return found


def test_killed_processes_lose_nothing(local: Place, count_crash_points: Any) -> None:
    kills = 4
    found = kill_repeatedly(local, kills, seed=20)
    assert found["nothing"] < kills, "every kill missed: the test tests nothing"
    count_crash_points(kills)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
def test_many_killed_processes_lose_nothing(local: Place, seed: int, count_crash_points: Any) -> None:
    found = kill_repeatedly(local, 50, seed)
    assert found["nothing"] < 50, "every kill missed: the test tests nothing"
    count_crash_points(50)


def kill_undos(place: Place, kills: int, seed: int) -> Counter[str]:
    """Returns the operations that were the last one before a kill."""
    chance, found = random.Random(seed), Counter[str]()
    for attempt in range(kills):
        one = Place(f"{place.root}-{attempt}/events", place.fs)
        one.dataset().write(version_table(0), max_rows_per_file=25)
        worker = subprocess.Popen(
            [sys.executable, UNDO_WORKER, one.root, "auto" if attempt % 3 else "rename"], stdout=subprocess.PIPE
        )
        assert worker.stdout is not None
        with worker.stdout:
            assert worker.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0.0, 1.0))
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        recovery = one.dataset().recover()
        states = states_by_log(one.dataset())
        rows = [row for path in oracle.data_files(one.root) for row in oracle.read_file(path).to_pylist()]
        version, lowest = states[max(states)]
        assert sorted(row["id"] for row in rows) == list(range(lowest, ROWS)), f"kill {attempt}: {recovery}"
        assert {row["version"] for row in rows} == {version}, f"kill {attempt}: {recovery}"
        assert one.left_behind() == []
        sound_manifests(one)
        # What is kept still leads back, whatever was killed.
        one.dataset().restore(to=1)
        assert sorted(one.dataset().read().column("id").to_pylist()) == list(range(ROWS))
        found[f"{one.dataset().history(2)[-1]['operation']}, {recovery.action}"] += 1
    return found


def states_by_log(dataset: Dataset) -> dict[int, tuple[int, int]]:
    """The version of the rows and the lowest id after each commit, by what the operations mean."""
    states: dict[int, tuple[int, int]] = {}
    for commit in reversed(dataset.history()):
        number, operation = commit["number"], commit["operation"]
        version, lowest = states.get(number - 1, (0, 0))
        if operation == "update":
            version = int(commit["arguments"]["values"]["version"])
        elif operation == "delete":
            lowest = 100
        elif operation in ("undo", "restore"):  # in this history, all later commits are undone already
            version, lowest = states[min(commit["statistics"]["undone"]) - 1]
        states[number] = (version, lowest)
    return states


def test_killed_undos_are_done_or_not(local: Place, count_crash_points: Any) -> None:
    kill_undos(local, 4, seed=3)
    count_crash_points(4)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2))
def test_many_killed_undos_are_done_or_not(local: Place, seed: int, count_crash_points: Any) -> None:
    found = kill_undos(local, 50, seed)
    assert {name.partition(",")[0] for name in found} >= {"update", "delete", "compact", "undo", "restore"}, found
    assert any(not name.endswith(", none") for name in found), "no commit was interrupted"
    count_crash_points(50)


def kill_drivers(place: Place, kills: int, seed: int) -> None:
    """The driver dies at once, its JVM and tasks a little later: tasks can stage files, but not publish."""
    chance = random.Random(seed)
    Dataset(place.root).write(version_table(0))
    for attempt in range(kills):
        worker = subprocess.Popen(
            [sys.executable, WORKER, place.root, str(1000 * (attempt + 1)), "auto", "spark"],
            stdout=subprocess.PIPE,
        )
        assert worker.stdout is not None
        with worker.stdout:
            assert worker.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0.2, 6.0))
            helpers = descendants(worker.pid)
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        recovery = place.dataset().recover()
        rows = [row for path in oracle.data_files(place.root) for row in oracle.read_file(path).to_pylist()]
        assert sorted(row["id"] for row in rows) == list(range(ROWS)), f"kill {attempt}: {recovery}"
        assert len({row["version"] for row in rows}) == 1, f"kill {attempt}: {recovery}"
        assert all(row["text"] == f"text {row['id']}" for row in rows), f"kill {attempt}: {recovery}"
        wait_for_the_end(helpers)
        place.dataset().recover()
        assert place.left_behind() == []


def wait_for_the_end(pids: list[int]) -> None:
    """Processes of a driver that was killed end by themselves."""
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.own_spark
@pytest.mark.sweep
def test_many_killed_spark_drivers_lose_nothing(local: Place, count_crash_points: Any) -> None:
    kill_drivers(local, 25, seed=8)
    count_crash_points(25)


@pytest.mark.own_spark
@pytest.mark.parametrize("operation", ["merge", pytest.param("compact", marks=pytest.mark.sweep)])
def test_spark_driver_killed_while_files_are_staged(
    local: Place, tmp_path: Path, operation: str, count_crash_points: Any
) -> None:
    """By tasks of a compaction or of a merge by shuffle: recovery removes the staged files only."""
    Dataset(local.root).write(version_table(0), max_rows_per_file=50)
    before, marks = local.state(), tmp_path / "marks"
    marks.mkdir()
    driver = subprocess.Popen([sys.executable, SPARK_WORKER, operation, local.root, str(marks)])
    try:
        while not list(marks.glob("Edit-*" if operation == "merge" else "*")):
            assert driver.poll() is None, "the driver ended too early"
            time.sleep(0.05)
        helpers = descendants(driver.pid)
    finally:
        driver.kill()
        driver.wait()
    assert any(path.endswith(".staged") for path in local.left_behind()), (
        "nothing was staged, so nothing was tested"
    )
    recovery = local.dataset().recover()
    assert recovery
    assert recovery.action == "none"
    assert local.state() == before
    wait_for_the_end(helpers)
    local.dataset().recover()
    assert local.left_behind() == []
    count_crash_points(1)
