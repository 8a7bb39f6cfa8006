"""A standalone cluster of a master and two workers, each in its own process; and executors that die."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import parketto
from conftest import beside
from helpers import oracle
from helpers.clusters import StandaloneCluster, bare_python, descendants, standalone_cluster
from helpers.suites import TESTS, run_suite

pytestmark = pytest.mark.own_spark

DRIVER = str(Path(__file__).with_name("driver.py"))
SOURCE = Path(parketto.__file__).parents[1]
SMOKE = (
    "test_every_strategy or test_scattered or test_by_target_rows or test_literals_and_expressions or "
    "test_new_columns or test_every_value_lands_in_a_folder or test_modes or test_each_micro_batch"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    with standalone_cluster(workers=2) as running:
        yield running


@pytest.mark.sweep
def test_smoke(cluster: StandaloneCluster) -> None:
    found = run_suite(
        {"MASTER": cluster.url},
        str(TESTS / "conformance"),
        "--engines=spark,spark-shuffle",
        "-k",
        f"spark and ({SMOKE})",
    )
    assert found > 5


@contextmanager
def driving(cluster: StandaloneCluster, tmp_path: Path, *how: str, **settings: str) -> Iterator[Driver]:
    """A running driver. It must succeed and leave nothing beside the dataset."""
    process = subprocess.Popen(
        [sys.executable, DRIVER, how[0], str(tmp_path / "data" / "events"), *how[1:]],
        env={**os.environ, "MASTER": cluster.url, **settings},
        stdout=subprocess.PIPE,
        text=True,
    )
    driver = Driver(process, tmp_path / "marks")
    try:
        yield driver
        driver.report = process.communicate()[0]
    finally:
        process.kill()  # unless it has ended
    assert process.returncode == 0, driver.report
    assert beside(tmp_path / "data") == ["events"]


@dataclass
class Driver:
    """A driver in a process of its own, and the marks that its tasks leave."""

    process: subprocess.Popen[str]
    marks: Path
    report: str = ""

    def wait_for(self, *patterns: str) -> None:
        """Wait for marks of each kind."""
        while not all(any(self.marks.glob(pattern)) for pattern in patterns):
            assert self.process.poll() is None, "the driver ended too early"
            time.sleep(0.05)

    def reports(self, kind: str) -> dict[str, Any]:
        """The reports of attempts, by task and attempt."""
        found = sorted(self.marks.glob(f"{kind}-*.json"))
        return {path.stem.partition("-")[2]: json.loads(path.read_text()) for path in found}


def kill_executors(cluster: StandaloneCluster, tmp_path: Path, mark: str, *how: str) -> str:
    """The output of a driver whose executors die when a task has written its files but is not done yet."""
    with driving(cluster, tmp_path, *how) as driver:
        driver.wait_for(mark)
        for executor in cluster.executor_pids():
            os.kill(executor, signal.SIGKILL)
    return driver.report


def ids(tmp_path: Path) -> list[int]:
    paths = oracle.data_files(str(tmp_path / "data" / "events"))
    return sorted(row["id"] for path in paths for row in oracle.read_file(path).to_pylist())


@pytest.mark.sweep
def test_killed_executor(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Its tasks are run again elsewhere: every row exists once, and its staged files are removed."""
    report = kill_executors(cluster, tmp_path, "*", "slowly")
    assert "tried again" in report, "no task had to be run again, so nothing was tested"
    assert ids(tmp_path) == list(range(4000))


@pytest.mark.sweep
@pytest.mark.parametrize("stage", ["SpoolRows", "Read", "Join", "Edit", "_WriteBlocks", "WriteAdditions"])
def test_killed_executors_in_a_merge_by_a_join(cluster: StandaloneCluster, tmp_path: Path, stage: str) -> None:
    """Their shuffle files are lost, and stages are retried: every row exists once."""
    how = "in tasks" if stage == "WriteAdditions" else "shuffled"
    report = kill_executors(cluster, tmp_path, f"{stage}-*", "joining", how)
    assert "{'inserted': 100, 'updated': 100, 'deleted': 0, 'total': 4100}" in report
    assert ids(tmp_path) == list(range(4100))


@pytest.mark.sweep
@pytest.mark.parametrize("stage", ["Edit", "Join", "WriteRows"])
def test_retried_stage_while_its_first_attempt_still_writes(
    cluster: StandaloneCluster, tmp_path: Path, stage: str
) -> None:
    """An executor dies with its shuffle files, and the stage is retried, while a task on the other one goes on."""
    with driving(cluster, tmp_path, "overtaken", stage) as driver:
        driver.wait_for(f"first-{stage}-0", f"first-{stage}-1")
        _, lost = (driver.marks / f"first-{stage}-1").read_text().split()
        [killed] = [pid for pid in cluster.executor_pids() if int(lost) in descendants(pid)]
        os.kill(killed, signal.SIGKILL)
    check_concurrent_attempts(driver)
    if stage != "WriteRows":
        assert "{'inserted': 200, 'updated': 4000, 'deleted': 0, 'total': 4200}" in driver.report
    assert ids(tmp_path) == list(range(4200))


def check_concurrent_attempts(driver: Driver) -> None:
    """Two attempts at one task, at the same time, have staged files of different names."""
    late, staged = driver.reports("late"), driver.reports("staged")
    assert late, "no first attempt went on writing, so nothing was tested"
    for task, first in late.items():
        place = task.removesuffix(first["attempt"])
        [other] = [report for name, report in staged.items() if name.startswith(place)]
        print(f"{task}: {first['files']} while {other['files']}")
        assert first["attempt"] != other["attempt"]
        assert first["files"]
        assert other["files"]
        assert not set(first["files"]) & set(other["files"])
        assert first["began"] < other["ended"] < first["ended"]


@pytest.mark.sweep
def test_speculation(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Rows of a DataFrame, then a compaction: of two attempts at the same task, one counts."""
    quickly = ("=true", ".interval=100ms", ".multiplier=1", ".quantile=0.5", ".task.duration.threshold=1s")
    settings = arguments(f"spark.speculation{setting}" for setting in quickly)
    with driving(cluster, tmp_path, "speculative", PYSPARK_SUBMIT_ARGS=settings) as driver:
        pass
    check_concurrent_attempts(driver)
    assert {name[:5] for name in driver.reports("late")} == {"Write", "group"}
    assert ids(tmp_path) == list(range(4200))
    assert len(oracle.data_files(str(tmp_path / "data" / "events"))) == 8


def run_elsewhere(cluster: StandaloneCluster, tmp_path: Path, how: str, python: str, *settings: str) -> str:
    """The output of a driver whose executors use another Python."""
    variables = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with driving(cluster, tmp_path, how, **variables, PYSPARK_SUBMIT_ARGS=arguments(settings)) as driver:
        pass
    return driver.report


def arguments(settings: Iterable[str]) -> str:
    """The arguments for `spark-submit`."""
    return " ".join([*(f"--conf {setting}" for setting in settings), "pyspark-shell"])


@pytest.mark.sweep
def test_executors_need_only_a_zip_of_the_package(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Their Python has the dependencies of Spark only; the zip has no package metadata."""
    python = bare_python(tmp_path / "bare")
    package = shutil.make_archive(str(tmp_path / "parketto"), "zip", SOURCE, "parketto")
    found = run_elsewhere(cluster, tmp_path, "everything", python, f"spark.submit.pyFiles={package}")
    assert found == "rows: 4000\n"


@pytest.mark.sweep
def test_packed_environment(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Distributed by `spark.archives`; without Parketto in it the error says what is missing."""
    python = bare_python(tmp_path / "bare")
    assert "cannot import parketto" in run_elsewhere(cluster, tmp_path, "brief", python)
    shutil.copytree(SOURCE / "parketto", tmp_path / "environment" / "site" / "parketto")
    bare_python(tmp_path / "environment")
    archive = shutil.make_archive(str(tmp_path / "environment"), "gztar", tmp_path / "environment")
    shutil.rmtree(tmp_path / "environment")  # so that only the archive can be used
    shutil.rmtree(tmp_path / "data")
    settings = f"spark.archives={archive}#environment"
    assert run_elsewhere(cluster, tmp_path, "brief", "./environment/bin/python", settings) == "rows: 4000\n"
