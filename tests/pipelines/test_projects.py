"""A project of `parketto init-pipeline` runs as its recipes say: by `spark-pipelines`, Airflow, on clusters."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from helpers.clusters import connect_server, standalone_cluster
from parketto import Dataset
from parketto.cli.pipelines import create
from sample_events import Feed

pytestmark = pytest.mark.own_spark
ROOT = Path(__file__).parents[2]
STEPS = ["merge", "aggregate", "maintain"]


def run(command: list[str], project: Path, **variables: str) -> str:
    """The output of a command of `parketto`."""
    done = subprocess.run(
        [sys.executable, "-m", "parketto.cli", *command],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def dataset(project: Path, name: str) -> Dataset:
    return Dataset(str(project / "data" / name), engine="pyarrow")


def check(project: Path, feed: Feed) -> None:
    """All that was delivered is there, exactly once; and what was made of it is right."""
    events, latest, daily = (dataset(project, name).read() for name in ("events", "latest", "daily"))
    pairs = zip(events["id"].to_pylist(), events["version"].to_pylist(), strict=True)
    assert Counter(pairs) == feed.delivered
    expected = {(row["id"], row["version"], row["kind"], row["at"]) for row in feed.latest.values()}
    assert latest.num_rows == len(expected)
    assert {
        (row["id"], row["version"], row["kind"], row["at"].isoformat()) for row in latest.to_pylist()
    } == expected
    totals = {
        (str(row["day"]), row["kind"]): (row["events"], round(row["amount"] * 100)) for row in daily.to_pylist()
    }
    assert daily.num_rows == len(totals)
    assert totals == feed.totals()


def landed(project: Path, feed: Feed) -> list[dict[str, Any]]:
    """First events: new ones only."""
    events = feed.events(600, [0, 1])
    feed.land(project / "landing", list(events), 2)
    return events


def land_more(project: Path, feed: Feed, first: list[dict[str, Any]]) -> None:
    """New, late, corrected, repeated and broken ones."""
    more = feed.events(200, [2]) + feed.events(100, [0]) + feed.corrections(50) + feed.repeats(first, 80)
    feed.land(project / "landing", more, 2, broken=4)


class Task(SimpleNamespace):
    """Stands for an operator of Airflow: it keeps its arguments and what follows it."""

    def __rshift__(self, other: Task) -> Task:
        self.next = other
        return other


class Context(SimpleNamespace):
    """Stands for Airflow's DAG."""

    def __init__(self, dag_id: str, **arguments: Any) -> None:
        super().__init__(dag_id=dag_id, **arguments)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def dag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module of the DAG, for a project in a temporary folder."""
    operators = "airflow.providers.apache.spark.operators"
    stubs = {
        f"{operators}.spark_pipelines": {"SparkPipelinesOperator": Task},
        f"{operators}.spark_submit": {"SparkSubmitOperator": Task},
        "airflow.sdk": {"DAG": Context},
    }
    parents = {name.rsplit(".", depth)[0] for name in stubs for depth in range(1, name.count(".") + 1)}
    for name in sorted({*parents, *stubs}):
        module = ModuleType(name)
        module.__dict__.update(stubs.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("PARKETTO_PIPELINE", str(tmp_path / "project"))
    path = ROOT / "examples" / "airflow" / "parketto_pipeline.py"
    spec = importlib.util.spec_from_file_location("parketto_pipeline_dag", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sweep
def test_the_commands_of_the_dag(dag: ModuleType, tmp_path: Path) -> None:
    """The pipeline from JSON to totals, by the commands that Airflow's operators run; a dry run writes nothing."""
    project, feed = tmp_path / "project", Feed()
    create(project)
    land_more(project, feed, landed(project, feed))
    assert dag.dag.max_active_runs == 1
    first, then = dag.ingest, dag.ingest.next
    assert (first.task_id, then.task_id) == ("ingest", "merge")

    assert "Run is COMPLETED" in run(["spark-pipelines", "dry-run", "--spec", first.pipeline_spec], project)
    assert not (project / "data").exists()

    assert "Run is COMPLETED" in run(["spark-pipelines", "run", "--spec", first.pipeline_spec], project)
    submit = ["spark-submit", "--master", "local[2]", "--conf", "spark.ui.enabled=false", then.application]
    assert "merge: 900 events inserted" in run([*submit, *then.application_args], project)
    check(project, feed)
    assert not (project / "spark-warehouse").exists()


@pytest.mark.sweep
def test_a_standalone_cluster(tmp_path: Path) -> None:
    """Both programs run on a cluster, and a second run adds what has landed meanwhile."""
    project, feed = tmp_path / "project", Feed()
    create(project)
    first = landed(project, feed)
    with standalone_cluster(workers=1) as cluster:
        settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        for _ in range(2):
            run(["spark-pipelines", "run", "--master", cluster.url], project, **settings)
            run(["spark-submit", "--master", cluster.url, "run.py", *STEPS], project, **settings)
            check(project, feed)
            land_more(project, feed, first)


@pytest.mark.sweep
def test_spark_connect(tmp_path: Path) -> None:
    """The same over Spark Connect, by `run.py` alone."""
    project, feed = tmp_path / "project", Feed()
    create(project)
    land_more(project, feed, landed(project, feed))
    with connect_server() as url:
        done = subprocess.run(
            [sys.executable, "run.py"],
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "SPARK_REMOTE": url},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    check(project, feed)
