"""The conformance suite over Spark Connect: no JVM in this process, nothing but the public protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import oracle
from helpers.clusters import connect_server
from helpers.suites import TESTS, run_suite

DRIVER = str(Path(__file__).with_name("driver.py"))
CONFORMANCE = str(TESTS / "conformance")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with connect_server() as url:
        yield url


# Classes over operations that are in the suite anyway.
LATER = ("crud", "partial_merge", "repartitioner", "compactor")


def test_conformance(server: str) -> None:
    """Every operation with the source at hand in every task; merges by a join have a test of their own."""
    chosen = "spark and not (" + " or ".join(LATER) + ")"
    assert run_suite({"SPARK_REMOTE": server}, CONFORMANCE, "--engines=spark", "-k", chosen) > 200


@pytest.mark.sweep
def test_later_conformance(server: str) -> None:
    chosen = "spark and (" + " or ".join(LATER) + ")"
    assert run_suite({"SPARK_REMOTE": server}, CONFORMANCE, "--engines=spark", "-k", chosen) > 100


def test_merges_through_the_join(server: str) -> None:
    chosen = "test_every_strategy or test_both_forms or test_types_that_spark_cannot_hold or test_hostile_names"
    merges = f"{CONFORMANCE}/test_merge.py"
    assert run_suite({"SPARK_REMOTE": server}, merges, "--engines=spark-shuffle", "-k", chosen) > 15


@pytest.mark.sweep
def test_everything_through_the_join(server: str) -> None:
    merges = f"{CONFORMANCE}/test_merge.py"
    assert run_suite({"SPARK_REMOTE": server}, merges, "--engines=spark-shuffle", "-k", "spark") > 80


def test_guest_of_a_session(server: str, tmp_path: Path) -> None:
    """Who interrupts the caller's tags, or all, or stops the session ends the operation; names do not clash."""
    root = str(tmp_path / "data" / "events")
    driver = subprocess.run(
        [sys.executable, DRIVER, "connected", root],
        env={**os.environ, "SPARK_REMOTE": server},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    by_tag, by_all, tags, counts, views, by_stop = (
        line for line in driver.stdout.splitlines() if line != "working"
    )
    assert by_tag.startswith("OperationCancelled: the operation was cancelled")
    assert by_all.startswith("OperationCancelled: the operation was cancelled")
    assert tags == "tags: {'mine'}"
    assert counts == "counts: 500 4000 90 1"
    assert views == "views: lasting"
    assert by_stop.startswith("OperationCancelled: the Spark session was stopped")
    assert len(oracle.data_files(root)) == 40
    assert os.listdir(tmp_path / "data") == ["events"]
