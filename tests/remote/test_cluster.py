"""A cluster of a master and two workers, each in processes of its own; and what happens when one of them dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import parketto
from helpers import oracle
from helpers.clusters import StandaloneCluster, bare_python, standalone_cluster
from helpers.suites import TESTS, run_suite

DRIVER = str(Path(__file__).with_name("driver.py"))
SOURCE = Path(parketto.__file__).parents[1]
SMOKE = (
    "test_every_strategy or test_scattered or test_by_target_rows or test_literals_and_expressions or "
    "test_new_columns or test_every_value_lands_in_a_folder"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    with standalone_cluster(workers=2) as running:
        yield running


def test_smoke(cluster: StandaloneCluster) -> None:
    found = run_suite(
        {"MASTER": cluster.url},
        str(TESTS / "conformance"),
        "--engines=spark,spark-shuffle",
        "-k",
        f"spark and ({SMOKE})",
    )
    assert found > 10


def kill_executors(cluster: StandaloneCluster, tmp_path: Path, how: str, mark: str) -> str:
    """What a driver reports whose executors die as soon as a task has written its files, and is not done yet."""
    root = str(tmp_path / "data" / "events")
    driver = subprocess.Popen(
        [sys.executable, DRIVER, how, root],
        env={**os.environ, "MASTER": cluster.url},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    with driver.stdout:
        assert driver.stdout.readline() == "working\n"
        while not list((tmp_path / "marks").glob(mark)):
            assert driver.poll() is None, "it ended before its time"
            time.sleep(0.05)
        for executor in cluster.executor_pids():
            os.kill(executor, signal.SIGKILL)
        report = driver.stdout.read()
    assert driver.wait() == 0, report
    assert os.listdir(tmp_path / "data") == ["events"]
    return report


def ids(tmp_path: Path) -> list[int]:
    paths = oracle.data_files(str(tmp_path / "data" / "events"))
    return sorted(row["id"] for path in paths for row in oracle.read_file(path).to_pylist())


def test_killed_executor(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Its tasks are run again elsewhere: every row once, nothing left behind of what it had staged."""
    report = kill_executors(cluster, tmp_path, "slowly", "*")
    assert "tried again" in report, "the test tests nothing if no task had to be run again"
    assert ids(tmp_path) == list(range(4000))


@pytest.mark.sweep
@pytest.mark.parametrize("stage", ["SpoolRows", "ReadRows", "_EditFiles", "WriteRows"])
def test_killed_executors_in_a_merge_by_a_join(cluster: StandaloneCluster, tmp_path: Path, stage: str) -> None:
    """What they had shuffled is gone with them, and stages are tried again: every row once."""
    report = kill_executors(cluster, tmp_path, "joining", f"{stage}-*")
    assert "{'inserted': 100, 'updated': 100, 'deleted': 0, 'total': 4100}" in report
    assert ids(tmp_path) == list(range(4100))


def run_everything(cluster: StandaloneCluster, root: Path, python: str, *settings: str) -> str:
    """What a driver reports whose executors have another Python."""
    arguments = " ".join(f"--conf {setting}" for setting in settings)
    variables = {
        "MASTER": cluster.url,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell",
    }
    command = [sys.executable, DRIVER, "everything", str(root)]
    env = {**os.environ, **variables}
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_bare_executors(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """They have what Spark needs and nothing else: a zip of the package, without metadata, is enough."""
    python = bare_python(tmp_path / "bare")
    package = shutil.make_archive(str(tmp_path / "parketto"), "zip", SOURCE, "parketto")
    found = run_everything(cluster, tmp_path / "data" / "events", python, f"spark.submit.pyFiles={package}")
    assert found == "rows: 4000\n"
    assert os.listdir(tmp_path / "data") == ["events"]


@pytest.mark.sweep
def test_packed_environment(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """As `spark.archives` brings it to executors; without Parketto in it the error says what is missing."""
    python = bare_python(tmp_path / "bare")
    assert "cannot import parketto" in run_everything(cluster, tmp_path / "data" / "none", python)
    shutil.copytree(SOURCE / "parketto", tmp_path / "environment" / "site" / "parketto")
    bare_python(tmp_path / "environment", '$(dirname "$0")/../site')
    archive = shutil.make_archive(str(tmp_path / "environment"), "gztar", tmp_path / "environment")
    settings = f"spark.archives={archive}#environment"
    found = run_everything(cluster, tmp_path / "data" / "events", "./environment/bin/python", settings)
    assert found == "rows: 4000\n"
