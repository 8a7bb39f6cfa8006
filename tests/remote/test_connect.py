"""The conformance suite over Spark Connect: no JVM in this process, only the public protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import beside
from helpers import oracle
from helpers.clusters import connect_server
from helpers.suites import TESTS, run_suite

pytestmark = pytest.mark.own_spark

DRIVER = str(Path(__file__).with_name("driver.py"))
CONFORMANCE = str(TESTS / "conformance")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with connect_server() as url:
        yield url


REPRESENTATIVE = (
    "test_compact.py::test_by_target_rows",
    "test_datasource.py::TestBatches::test_modes",
    "test_datasource.py::TestStreams::test_each_micro_batch_is_one_commit",
    "test_edit.py::TestDelete::test_scattered",
    "test_edit.py::TestUpdate::test_literals_and_expressions",
    "test_edit.py::TestRepartition::test_new_columns",
    "test_handlers.py::TestSql",
    "test_merge.py::test_every_strategy",
    "test_optimize.py::test_rows_are_sorted_in_every_partition",
    "test_write.py::TestPartitions::test_every_value_lands_in_a_folder_of_its_own",
)


def test_conformance(server: str) -> None:
    """Every operation; merges by broadcast and by shuffle."""
    chosen = [f"{CONFORMANCE}/{test}" for test in REPRESENTATIVE]
    options = ("--engines=spark,spark-shuffle", "--share=16", "-m", "spark and not sweep")
    assert run_suite({"SPARK_REMOTE": server}, *chosen, *options) > 8


@pytest.mark.sweep
def test_all_conformance(server: str) -> None:
    options = ("--engines=spark,spark-shuffle", "--share=1", "-k", "spark")
    assert run_suite({"SPARK_REMOTE": server}, CONFORMANCE, *options) > 700


def test_an_invalid_query_shows_its_sentence(server: str) -> None:
    """Neither the error nor the screen shows the trace of the JVM."""
    code = (
        "from parketto import SparkParquetHandler\n"
        "try:\n"
        "    SparkParquetHandler().execute_sql('SELECT nope FROM VALUES (1) AS t(x)').collect()\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "SPARK_REMOTE": server}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "`nope` cannot be resolved" in ran.stdout
    assert "org.apache.spark" not in ran.stdout + ran.stderr


def test_operations_can_be_interrupted_over_connect(server: str, tmp_path: Path) -> None:
    """By the caller's tags, by `interruptAll`, or by stopping the session; table names do not clash."""
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
    assert beside(tmp_path / "data") == ["events"]
