"""Ctrl-C while Spark works: the jobs are cancelled, the dataset is as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers import oracle

DRIVER = str(Path(__file__).with_name("driver.py"))


def test_interrupt_cancels_the_jobs(tmp_path: Path) -> None:
    root = str(tmp_path / "data" / "events")
    driver = subprocess.Popen(
        [sys.executable, DRIVER, "interrupted", root],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(DRIVER).parent)},
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
