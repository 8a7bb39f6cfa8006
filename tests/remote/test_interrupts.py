"""Ctrl-C or a stopped session during Spark jobs, and too little memory for Python workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import beside
from helpers import oracle

pytestmark = pytest.mark.own_spark

DRIVER = str(Path(__file__).with_name("driver.py"))
LIMITED = str(Path(__file__).with_name("limited.py"))
OPERATIONS = 7  # that it tries with each limit


def test_interrupt_and_stopped_session_end_the_operation(tmp_path: Path) -> None:
    """The jobs are cancelled, or the error is typed; the dataset is unchanged, and nothing is left behind."""
    root = str(tmp_path / "data" / "events")
    driver = subprocess.Popen(
        [sys.executable, DRIVER, "interrupted", root],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    with driver.stdout:
        assert driver.stdout.readline() == "working\n"
        state = oracle.file_state(root)
        time.sleep(1.5)
        driver.send_signal(signal.SIGINT)
        assert driver.stdout.readline() == "interrupted, jobs that go on: []\n"
        assert driver.stdout.readline() == "working\n"
        stopped = driver.stdout.read()
    assert driver.wait() == 0
    assert stopped.startswith("OperationCancelled: the Spark session was stopped")
    assert "nothing was changed" in stopped
    assert oracle.file_state(root) == state
    assert len(oracle.data_files(root)) == 40
    assert beside(tmp_path / "data") == ["events"]


def run_limited(tmp_path: Path, *limits: str) -> list[str]:
    """The results of operations and the number of rows, with a memory limit for Spark's Python workers."""
    return subprocess.run(
        [sys.executable, LIMITED, str(tmp_path), *limits],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()


@pytest.mark.sweep
def test_too_little_memory_for_python_workers(tmp_path: Path) -> None:
    """Every operation names the setting that is too small, or has nothing to do; none shows an error of Spark."""
    *ends, rows = run_limited(tmp_path, "330m=100")
    expected = re.compile(
        r"330m [a-z ]+: (done|spark.executor.pyspark.memory: the limit of 330 MB is too little memory for a task: "
        r"Python and its libraries use \d+ MB of it. About \d+ MB would be enough, .+ Nothing was changed; .+)"
    )
    assert len(ends) == OPERATIONS
    assert [end for end in ends if not expected.fullmatch(end)] == []
    assert [end.split(":")[0] for end in ends if end.endswith("done")] == ["330m delete"], "no row matches it"
    assert rows == "330m rows: 800, beside: 0"


@pytest.mark.sweep
def test_operations_within_the_memory_of_python_workers(tmp_path: Path) -> None:
    """1 GB for each of two tasks is enough; 512 MB are enough for small files, or the error says so."""
    ends = run_limited(tmp_path, "512m=12500", "1g=100000")
    small, large = ends[: OPERATIONS + 1], ends[OPERATIONS + 1 :]
    assert small.pop() == "512m rows: 100000, beside: 0"
    assert large.pop() == "1g rows: 800000, beside: 0"
    assert [end for end in large if not end.endswith(": done")] == []
    failed = [end for end in small if not end.endswith(": done")]
    assert all(": spark.executor.pyspark.memory: the limit of 512 MB is too little" in end for end in failed)
    assert len(failed) < OPERATIONS
