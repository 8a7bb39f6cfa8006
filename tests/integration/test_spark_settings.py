"""Whatever a user has set in a session, operations give the same rows, and leave the settings as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.history import history
from parketto import Dataset
from parketto.engines.spark.engine import SparkEngine

pytestmark = pytest.mark.spark

WORKER = str(Path(__file__).with_name("worker_settings.py"))
ZONE = "spark.sql.session.timeZone"
IN_SESSION = {
    "ansi": {"spark.sql.ansi.enabled": "true"},
    "not ansi": {"spark.sql.ansi.enabled": "false"},
    "New York": {ZONE: "America/New_York"},
    "Kolkata": {ZONE: "Asia/Kolkata"},
    "case sensitive": {"spark.sql.caseSensitive": "true"},
    "not adaptive": {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "200"},
    "small batches": {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"},
}
OF_CONTEXT = {
    "kryo": {"spark.serializer": "org.apache.spark.serializer.KryoSerializer"},
    "fair": {"spark.scheduler.mode": "FAIR"},
    "two cores for a task": {"spark.task.cpus": "2"},
    "workers are not used again": {"spark.python.worker.reuse": "false"},
    "defaults": {},
}


def _together(settings: dict[str, dict[str, str]]) -> dict[str, str]:
    return {key: value for each in settings.values() for key, value in each.items()}


def _expected(folder: Path, zone: str) -> list[list[str]]:
    dataset = Dataset(str(folder / "expected"), engine="pyarrow", timezone=zone)
    return [list(step) for step in history(dataset, dataset, lambda rows: rows)]


def _check_in_session(spark: Any, folder: Path, settings: dict[str, str]) -> None:
    session = spark.newSession()
    for key, value in settings.items():
        session.conf.set(key, value)
    root, before = str(folder / "data"), session.conf.getAll
    large = Dataset(root, engine=SparkEngine(session, broadcast_mb=1e-6, shuffle_mb=1e-6))
    dataset = Dataset(root, engine="spark", spark=session)
    found = [list(step) for step in history(dataset, large, session.createDataFrame)]
    assert found == _expected(folder, settings.get(ZONE, "UTC"))
    assert session.conf.getAll == before
    assert session.catalog.listTables() == []


def _check_in_context(folder: Path, settings: dict[str, str]) -> None:
    quick = {"spark.sql.shuffle.partitions": "4", ZONE: "UTC", **settings}
    done = subprocess.run(
        [sys.executable, WORKER, str(folder / "data"), json.dumps(quick)],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"history": _expected(folder, quick[ZONE]), "changed": [], "views": 0}


def test_all_settings_of_a_session_at_once(spark: Any, tmp_path: Path) -> None:
    """With fewer shuffle partitions than Spark's 200, which only take longer."""
    together = _together({name: IN_SESSION[name] for name in list(IN_SESSION)[1:]})
    _check_in_session(spark, tmp_path, together | {"spark.sql.shuffle.partitions": "20"})


@pytest.mark.sweep
@pytest.mark.parametrize("name", IN_SESSION)
def test_settings_of_a_session(spark: Any, tmp_path: Path, name: str) -> None:
    _check_in_session(spark, tmp_path, IN_SESSION[name])


@pytest.mark.sweep
@pytest.mark.own_spark
def test_most_settings_of_a_context_at_once(tmp_path: Path) -> None:
    """All but a new Python worker per task, which takes half a minute to start."""
    _check_in_context(tmp_path, _together({name: OF_CONTEXT[name] for name in list(OF_CONTEXT)[:3]}))


@pytest.mark.sweep
@pytest.mark.parametrize("name", OF_CONTEXT)
def test_settings_of_a_context(tmp_path: Path, name: str) -> None:
    _check_in_context(tmp_path, OF_CONTEXT[name])
