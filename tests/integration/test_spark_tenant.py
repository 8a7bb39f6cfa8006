"""Operations in a shared Spark session: jobs keep the caller's tags and groups, and can be cancelled by them."""

from __future__ import annotations

import ast
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import parketto
from conftest import Place
from helpers.slow import SlowShipped, SlowSpark, wait_for_mark
from parketto import Dataset, EngineUnavailable, OperationCancelled, ParkettoError
from parketto.engines.spark import shipping
from parketto.engines.spark.engine import SparkEngine
from parketto.engines.spark.frames import SpoolRows
from parketto.engines.spark.tasks import task_attempt
from parketto.merge.rules import MergeRules
from parketto.merge.source import PrepareSource
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.row_source import ArrowRows
from parketto.runtime.staging import Staging
from parketto.runtime.task import Worker
from parketto.storage.opening import open_store

pytestmark = pytest.mark.spark


class Running:
    """A compaction in a thread of its own, with tasks that take their time."""

    def __init__(self, place: Place, spark: Any, marks: Path, before: Callable[[], None]) -> None:
        marks.mkdir()
        self.error: BaseException | None = None
        self.engine = SlowSpark(spark)
        self.engine.marks, self.engine.seconds = str(marks), 30
        self._dataset, self._marks, self._before = Dataset(place.root, self.engine), marks, before
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def properties(self) -> dict[str, str]:
        """The properties of the job, as soon as one of its tasks has staged a file."""
        found: dict[str, str] = ast.literal_eval(wait_for_mark(self._marks))
        return found

    def result(self) -> BaseException | None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the operation goes on"
        return self.error

    def _run(self) -> None:
        self._before()
        try:
            self._dataset.compact()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.error = error


@pytest.fixture
def files(local: Place) -> Place:
    tables = {f"day={day}/{n}.parquet": pa.table({"id": [day * 4 + n]}) for day in range(4) for n in range(4)}
    local.write_files(tables)
    return local


def own_tag(properties: dict[str, str]) -> str:
    (tag,) = (tag for tag in properties["spark.job.tags"].split(",") if tag.startswith("parketto-"))
    return tag


@pytest.mark.parametrize("how", ["group", "tag", "own tag", "all"])
def test_cancelling_ends_the_operation(files: Place, spark: Any, tmp_path: Path, how: str) -> None:
    """Nothing is committed or left behind."""
    context = spark.sparkContext

    def before() -> None:
        context.setJobGroup("night shift", "the caller's")
        context.addJobTag("the-callers-tag")
        context.setLocalProperty("spark.scheduler.pool", "slow lane")

    state = files.state()
    running = Running(files, spark, tmp_path / "marks", before)
    properties = running.properties()
    assert properties["spark.scheduler.pool"] == "slow lane"
    assert properties["spark.jobGroup.id"] == "night shift"
    assert properties["spark.job.description"] == "the caller's"
    match how:
        case "group":
            context.cancelJobGroup("night shift")
        case "tag":
            context.cancelJobsWithTag("the-callers-tag")
        case "own tag":
            context.cancelJobsWithTag(own_tag(properties))
        case "all":
            context.cancelAllJobs()
    error = running.result()
    assert isinstance(error, OperationCancelled)
    assert "nothing was changed" in str(error)
    assert files.state() == state
    assert files.left_behind() == []


#: Operations by shuffle, and the stages in which they are cancelled.
STAGES = [
    ("merge", ["SpoolRows", "Read", "Join", "Edit"]),
    ("write", ["WriteRows"]),
    ("write to partitions", ["WriteRows"]),
    ("optimize", ["ReadRows", "WriteRows"]),
    ("optimize along a curve", ["WriteBuckets"]),
    ("repartition", ["_SplitRows", "_WriteBlocks"]),
]
USUAL = (("merge", "Join"), ("merge", "Edit"), ("write", "WriteRows"), ("optimize", "WriteRows"))


@pytest.mark.parametrize(
    ("operation", "stage"),
    [
        pytest.param(name, stage, marks=[] if (name, stage) in USUAL else [pytest.mark.sweep])
        for name, stages in STAGES
        for stage in stages
    ],
)
def test_cancelling_in_every_stage(
    files: Place, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, stage: str
) -> None:
    """A task of that stage is done, and its staged files must be removed."""
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setattr(SlowShipped, "marks", str(marks))
    every = (
        "SpoolRows",
        "Read",
        "Join",
        "Edit",
        "WriteRows",
        "ReadRows",
        "WriteBuckets",
        "_SplitRows",
        "_WriteBlocks",
    )
    monkeypatch.setattr(SlowShipped, "seconds", {name: 30 if name == stage else 0 for name in every})
    for module in ("clustering", "shuffle_write", "frames", "merging", "tasks"):
        monkeypatch.setattr(f"parketto.engines.spark.{module}.PickledFunction", SlowShipped, raising=False)
    if operation == "write":
        files.fs.rm(files.root, recursive=True)
        files.write_files({"a.parquet": pa.table({"id": [1], "day": ["1"]})})
    dataset = Dataset(files.root, SparkEngine(spark, broadcast_mb=1e-6, shuffle_mb=1e-6))
    rows = spark.range(100).selectExpr("id", "cast(id % 4 AS string) AS day")
    run = {
        "merge": lambda: dataset.merge(rows, ["id"]),
        "write": lambda: dataset.write(rows),
        "write to partitions": lambda: dataset.write(rows),
        "optimize": lambda: dataset.optimize(["id"], curve="linear"),
        "optimize along a curve": lambda: dataset.optimize(["id", "n"]),
        "repartition": lambda: dataset.repartition(partition_by=["id"]),
    }[operation]
    if operation == "optimize along a curve":
        tables = {f"{n}.parquet": pa.table({"id": range(100), "n": [n] * 100}) for n in range(4)}
        files.fs.rm(files.root, recursive=True)
        files.write_files(tables)
    state, errors = files.state(), []

    def work() -> None:
        spark.sparkContext.setJobGroup("to be cancelled", "the caller's")
        try:
            run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for_mark(marks, of=stage)
    spark.sparkContext.cancelJobGroup("to be cancelled")
    thread.join(60)
    assert not thread.is_alive(), "the operation goes on"
    (error,) = errors
    assert isinstance(error, OperationCancelled), error
    assert files.state() == state
    assert files.left_behind() == []


def test_jobs_keep_the_tags_of_the_session(files: Place, spark: Any, tmp_path: Path) -> None:
    """Spark looks up tags by the thread that added them, and so does `interruptTag`."""
    engine = SlowSpark(spark)
    engine.marks, engine.seconds = str(tmp_path / "marks"), 0
    Path(engine.marks).mkdir()
    spark.addTag("mine")
    try:
        known = spark._jsparkSession.managedJobTags().get().apply("mine")
        Dataset(files.root, engine).compact()
        assert known in ast.literal_eval(wait_for_mark(Path(engine.marks)))["spark.job.tags"].split(",")
        assert spark.getTags() == {"mine"}
    finally:
        spark.removeTag("mine")


def test_cancelled_job_group_cancels_later_jobs(files: Place, spark: Any) -> None:
    """`cancelJobGroupAndFutureJobs` between two jobs ends the operation."""
    context, engine = spark.sparkContext, SparkEngine(spark, broadcast_mb=1e-6, shuffle_mb=1e-6)
    state, errors = files.state(), []

    def merge() -> None:
        context.setJobGroup("over", "the caller's")
        context._jsc.sc().cancelJobGroupAndFutureJobs("over")
        try:
            Dataset(files.root, engine).merge(pa.table({"id": [1], "day": ["0"]}), ["id"])
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            errors.append(error)

    thread = threading.Thread(target=merge)
    thread.start()
    thread.join()
    (error,) = errors
    assert isinstance(error, OperationCancelled)
    assert files.state() == state
    assert files.left_behind() == []


@pytest.mark.parametrize("fails", [False, True])
def test_session_state_is_restored(files: Place, spark: Any, fails: bool) -> None:
    """Settings, views, listeners, tags and properties, after operations of every kind, also failed ones."""
    context = spark.sparkContext
    context.setJobGroup("mine", "the caller's")
    context.setLocalProperty("spark.scheduler.pool", "slow lane")
    context.addJobTag("job-tag")
    spark.addTag("session-tag")
    spark.range(3).createOrReplaceTempView("the_callers_view")
    settings = {key: spark.conf.get(key) for key in spark.conf.getAll}
    try:
        before = _described(spark)
        dataset = Dataset(files.root, SparkEngine(spark, broadcast_mb=1e-6, shuffle_mb=1e-6))
        if fails:
            path = f"{files.root}/day=1/2.parquet"
            files.fs.pipe_file(path, files.fs.cat_file(path)[:-40] + b"0" * 40)
        for run in (
            lambda: dataset.merge(spark.range(8).selectExpr("id", "'0' AS day"), ["id"]),
            lambda: dataset.write(spark.range(4).selectExpr("id", "'1' AS day")),
            lambda: dataset.delete("id = 3"),
            lambda: dataset.compact(progress=lambda _: None),
            lambda: dataset.optimize(["id"]),
            lambda: dataset.repartition(partition_by=["id"]),
        ):
            with contextlib.suppress(ParkettoError) if fails else contextlib.nullcontext():
                run()
            assert _described(spark) == before
        assert {key: spark.conf.get(key) for key in spark.conf.getAll} == settings
    finally:
        spark.catalog.dropTempView("the_callers_view")
        spark.clearTags()
        context.clearJobTags()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.scheduler.pool"):
            context.setLocalProperty(name, None)


def _described(spark: Any) -> tuple[object, ...]:
    context = spark.sparkContext
    views = sorted(table.name for table in spark.catalog.listTables())
    bus, queries = context._jsc.sc().listenerBus(), spark._jsparkSession.listenerManager()
    listeners = (bus.listeners().size(), len(queries.listListeners()))
    return str(context._jsc.sc().getLocalProperties()), spark.getTags(), context.getJobTags(), views, listeners


def test_attempts_never_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retried stage counts task attempts from 0 again, while a task of its first attempt may still write."""
    import pyspark

    store, _ = open_store(str(tmp_path))
    (tmp_path / "spool").mkdir()
    rows = pa.table({"c0": [1, 2]})
    paths, sources = [], []
    for attempt in (7, 8):
        known = {"stageId": 3, "partitionId": 1, "attemptNumber": 0, "taskAttemptId": attempt, "cpus": 1}
        context = SimpleNamespace(**{name: lambda value=value: value for name, value in known.items()})
        monkeypatch.setattr(pyspark.TaskContext, "get", lambda context=context: context)
        spool = SpoolRows(store, Staging(str(tmp_path)), 1 << 24, pa.schema([("id", pa.int64())]))
        paths += [*spool(iter(rows.to_batches()))]
        given, rules = ArrowRows(rows.schema, rows.to_batches()), MergeRules("upsert", ("c0",))
        task = PrepareSource(given, rows.schema, PartitionSpec(), rules, str(tmp_path / "source"))
        with Worker(store, Staging(str(tmp_path), attempt=task_attempt()), 1 << 24) as worker:
            sources.append(task.run(worker).path)
    assert len({*paths, *sources}) == 4
    assert all(Path(path).name.startswith("rows-00000001-") for path in paths)


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        (("9.9.9", pa.__version__), rf"workers have Parketto {parketto.__version__} and the driver has 9\.9\.9"),
        ((parketto.__version__, "9.1.0"), rf"workers have PyArrow {pa.__version__} and the driver has 9\.1\.0"),
    ],
)
def test_workers_with_other_versions_are_refused(
    files: Place, spark: Any, monkeypatch: pytest.MonkeyPatch, versions: tuple[str, str], told: str
) -> None:
    """Before anything is written, by tasks and by DataFrame writes."""
    monkeypatch.setattr(shipping, "VERSIONS", versions)
    state, dataset = files.state(), Dataset(files.root, SparkEngine(spark))
    for run in (dataset.compact, lambda: dataset.write(spark.range(4).selectExpr("id", "'1' AS day"))):
        with pytest.raises(EngineUnavailable, match=told):
            run()
    assert files.state() == state
    assert files.left_behind() == []


def test_minor_versions_of_arrow_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    content = shipping.dumps(pa.schema([("a", pa.int8())]))
    monkeypatch.setattr(shipping, "VERSIONS", (parketto.__version__, f"{pa.__version__.split('.')[0]}.99.1"))
    assert shipping.loads(content) == pa.schema([("a", pa.int8())])
