"""Ctrl-C while Spark works: the jobs are cancelled, the dataset is as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import oracle

DRIVER = str(Path(__file__).with_name("driver.py"))


def test_interrupt_cancels_the_jobs(tmp_path: Path) -> None:
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
        report = driver.stdout.read()
    assert driver.wait() == 0
    assert report == "interrupted, jobs that go on: []\n"
    assert oracle.file_state(root) == state
    assert os.listdir(tmp_path / "data") == ["events"]


def test_stopped_session_ends_the_operation(tmp_path: Path) -> None:
    """With a typed error; the dataset is as it was, and nothing stays behind."""
    root = str(tmp_path / "data" / "events")
    report = subprocess.run(
        [sys.executable, DRIVER, "stopped", root], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    assert report[0] == "working"
    assert report[1].startswith("OperationCancelled: the Spark session was stopped")
    assert "nothing was changed" in report[1]
    assert len(oracle.data_files(root)) == 40
    assert os.listdir(tmp_path / "data") == ["events"]


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("330m", "OutOfMemory: spark.executor.pyspark.memory: the limit of 330 MB is too little"),
        pytest.param("1g", "rows: 804000", marks=pytest.mark.sweep),
    ],
)
def test_memory_of_python_workers(tmp_path: Path, limit: str, told: str) -> None:
    """Spark limits the address space of its workers: tasks keep within it, or say what would be enough."""
    root = str(tmp_path / "data" / "events")
    arguments = f"--master local[2] --conf spark.executor.pyspark.memory={limit} pyspark-shell"
    report = subprocess.run(
        [sys.executable, DRIVER, "limited", root],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": arguments},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert report.startswith(told)
    assert os.listdir(tmp_path / "data") == ["events"]
