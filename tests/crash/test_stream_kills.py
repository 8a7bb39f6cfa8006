"""Streams killed with SIGKILL at random moments and started again: every row once, nothing left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from conftest import Place
from parketto import Dataset

WORKER = Path(__file__).with_name("stream_worker.py")
ROWS_PER_FILE = 20
CHECKPOINTS = ("checkpoint-appended", "checkpoint-merged")


def land(folder: Path, number: int) -> None:
    """Add a file. Each one repeats some ids of the one before."""
    first = number * ROWS_PER_FILE
    lines = [
        json.dumps({"id": id_, "day": id_ % 3, "text": f"file {number:03d}"})
        for id_ in range(first - 5 if number else first, first + ROWS_PER_FILE)
    ]
    hidden = folder / "landing" / f".{number:04d}.json"
    hidden.write_text("\n".join(lines))
    os.utime(hidden, (1_790_000_000 + number,) * 2)  # Spark reads the oldest file first
    hidden.rename(folder / "landing" / f"{number:04d}.json")


def expected(files: int, *, merged: bool) -> list[tuple[int, str]]:
    rows = [
        (id_, f"file {number:03d}")
        for number in range(files)
        for id_ in range(number * ROWS_PER_FILE - (5 if number else 0), (number + 1) * ROWS_PER_FILE)
    ]
    return sorted(dict(rows).items() if merged else rows)


def run(folder: Path, kill_after: float | None) -> bool:
    """Run the streams until all files are processed, or they are killed; returns whether they have ended."""
    with open(folder / "errors.txt", "wb") as errors:
        worker = subprocess.Popen(
            [sys.executable, WORKER, folder], stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    assert worker.stdout is not None
    with worker.stdout:
        assert worker.stdout.readline() == b"started\n"
        if kill_after is None:
            ended = worker.stdout.readline() == b"done\n"
            worker.wait()
            return ended
        time.sleep(kill_after)
        # The whole process group: the driver, its JVM, and all Python workers.
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        return False


def check(folder: Path, files: int) -> None:
    for name, merged in (("appended", False), ("merged", True)):
        rows = Dataset(folder / name, "pyarrow").read(columns=["id", "text"]).to_pylist()
        assert sorted((row["id"], row["text"]) for row in rows) == expected(files, merged=merged), name
    staged = [
        path for path in Place(str(folder / "appended"), fsspec.filesystem("file")).left_behind() if "/tx-" in path
    ]
    assert staged == []


def kill_repeatedly(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    (folder / "landing").mkdir()
    files = 0
    older: dict[str, Path] = {}
    for attempt in range(kills):
        for _ in range(3):
            land(folder, files)
            files += 1
        if chance.random() < 0.3 and older:
            for name, copy in older.items():  # as an administrator restores it
                shutil.rmtree(folder / name, ignore_errors=True)
                shutil.copytree(copy, folder / name)
        run(folder, chance.uniform(0.0, 12.0))
        if chance.random() < 0.5:
            for name in CHECKPOINTS:
                if (folder / name).exists():
                    older[name] = folder / f"older-{name}-{attempt}"
                    shutil.copytree(folder / name, older[name])
    assert run(folder, None), (folder / "errors.txt").read_text()[-4000:]
    check(folder, files)


@pytest.mark.own_spark
def test_killed_streams_write_every_row_once(tmp_path: Path, count_crash_points: Any) -> None:
    kill_repeatedly(tmp_path, 1, seed=3)
    count_crash_points(1)


@pytest.mark.sweep
@pytest.mark.own_spark
@pytest.mark.parametrize("seed", range(5))
def test_many_killed_streams_write_every_row_once(tmp_path: Path, seed: int, count_crash_points: Any) -> None:
    kill_repeatedly(tmp_path, 10, seed)
    count_crash_points(10)
