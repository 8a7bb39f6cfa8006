"""Runs Arrow tasks on Spark: a bundle of tasks is sent as a row, and becomes one Spark task."""

from __future__ import annotations

import base64
import contextlib
import heapq
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from parketto.engines.spark.jobs import Caller, Stage, Watch, cancel, typed_errors
from parketto.engines.spark.session import is_connect, is_local
from parketto.engines.spark.shipping import MARK, Batches, PickledFunction, dumps, loads
from parketto.errors import EngineUnavailable, OutOfMemory, ParkettoError
from parketto.runtime.address_space import address_space_error, address_space_limit
from parketto.runtime.staging import Staging
from parketto.runtime.task import AnyTask, Task, Worker
from parketto.runtime.threads import ThreadPool
from parketto.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = TypeVar("Result")

# Bytes of files per bundle: a Spark task costs some hundredths of a second before it does anything.
_BUNDLE_BYTES = 32 * 1024 * 1024
_BUNDLES_PER_CORE = 2
_SHORT_BYTES = 320 * 1024 * 1024  # up to this many bytes per core, each core gets one bundle
_POLL_SECONDS = 0.2


StageProgress = Callable[[list[Stage]], None]
_RESULT_SCHEMA = "position long, failed boolean, result binary"


@dataclass(frozen=True)
class Bundle:
    """Tasks, and the resources to run them with."""

    store: Store
    staging: Staging
    memory: int
    tasks: tuple[tuple[int, AnyTask], ...]
    #: Number of threads that may run at once.
    threads: int = 1

    def run(self, attempt: str) -> Iterator[tuple[int, bool, bytes]]:
        """Run the tasks one after the other. An error that a retry would only repeat is a result, too."""
        # Staged files are named by task attempt: those of a failed or superseded attempt are never published.
        staging = replace(self.staging, attempt=attempt)
        # Several threads are allowed if there are fewer bundles than cores, or several cores per task.
        threads = max(self.threads, task_cpus())
        position = self.tasks[0][0]
        try:
            with (
                memory_errors(),
                Worker(self.store, staging, self.memory, threads=threads, any_thread=True) as worker,
            ):
                for position, task in self.tasks:
                    yield position, False, dumps(task.run(worker))
        except (ParkettoError, FileNotFoundError, PermissionError) as error:
            yield position, True, dumps(error)


_MISSING_MODULE = re.compile(r"No module named '([A-Za-z0-9_]+)")
# Python's and Arrow's errors if there is no memory for a thread or a mapped file.
_NO_ROOM = re.compile("can't start new thread|Failed to launch worker thread|Cannot allocate memory")
_OTHER_VERSION = re.compile(rf"{MARK}(.*)")
_ERROR = re.compile(r"parketto-error:([A-Za-z0-9+/=]+):")


@contextlib.contextmanager
def raising_typed() -> Iterator[None]:
    """Pass Parketto's errors from a task to the driver as objects: Spark itself passes on only the message."""
    failed: list[Exception] = []
    with catching(failed):
        yield
    for error in failed:
        packed = base64.b64encode(dumps(error)).decode()
        raise RuntimeError(f"parketto-error:{packed}: {error}") from error


@contextlib.contextmanager
def catching(failed: list[Exception]) -> Iterator[None]:
    """Collect an error that a retry would only repeat; if it were raised, Spark would retry the task."""
    try:
        with own_cores(), memory_errors():
            yield
    except (ParkettoError, FileNotFoundError, PermissionError) as error:
        failed.append(error)


def _typed(error: Exception) -> BaseException | None:
    found = _ERROR.search(str(error))
    if found is None:
        return None
    unpacked: BaseException = loads(base64.b64decode(found[1]))
    return unpacked


def task_attempt() -> str:
    """The id of the running task attempt: stage, partition, and a number that is unique to the attempt.

    Attempt numbers restart when Spark retries a stage, while an attempt of the first try may still be writing.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs inside of Spark tasks only"
    return f"{context.stageId()}-{context.partitionId()}-{context.taskAttemptId()}"


def task_cpus() -> int:
    """The number of cores of the task (`spark.task.cpus`)."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs inside of Spark tasks only"
    return context.cpus()


@contextlib.contextmanager
def own_cores(threads: int = 1) -> Iterator[None]:
    """Limit Arrow and Polars to the cores of the task."""
    cores, before = max(threads, task_cpus()), pa.cpu_count()
    # Polars reads it once, when it is imported.
    os.environ.setdefault("POLARS_MAX_THREADS", str(task_cpus()))
    pa.set_cpu_count(cores)
    try:
        yield
    finally:
        pa.set_cpu_count(before)


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Raise an error that names the setting, if Spark limits the memory of its Python workers too much."""
    try:
        yield
    except Exception as error:
        limit = address_space_limit()
        if limit is None or not (isinstance(error, MemoryError) or _NO_ROOM.search(str(error))):
            raise
        short = error if isinstance(error, OutOfMemory) else address_space_error(2 * limit)
        raise OutOfMemory(
            f"spark.executor.pyspark.memory: {short}, for each task that an executor runs at once. Nothing was "
            "changed; raise the setting, or let fewer tasks run at once (spark.executor.cores, spark.task.cpus)",
            short.enough_mb,
        ) from error


def run_bundles(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of a Spark task: unpickles its bundles and runs them."""
    attempt = task_attempt()
    for batch in batches:
        for payload in batch.column("payload"):
            bundle: Bundle = loads(payload.as_py())
            with own_cores(bundle.threads):
                for position, failed, result in bundle.run(attempt):
                    yield pa.record_batch({"position": [position], "failed": [failed], "result": [result]})


def payload_frame(spark: SparkSession, payloads: Sequence[bytes]) -> DataFrame:
    """A DataFrame of payloads, one per Spark task."""
    table = pa.table({"id": pa.array(range(len(payloads)), pa.int32()), "payload": payloads})
    frame = spark.createDataFrame(table)
    # Spark itself spreads rows evenly over all cores, without a shuffle, which takes longer than much of the work.
    # A Connect server does not guarantee that.
    if len(payloads) > parallelism(spark) or is_connect(spark):
        frame = frame.repartitionById(len(payloads), "id")
    return frame


def run_tasks(
    spark: SparkSession,
    tasks: Sequence[Task[Result]],
    store: Store,
    staging: Staging,
    memory: int,
    report: Callable[[AnyTask], None] | None,
    operation: str,
) -> list[Result]:
    """Run tasks on Spark; results are in task order."""
    cores = parallelism(spark)
    bundles = _bundled(tasks, cores)
    threads = _threads_for_each(spark, cores, len(bundles))
    payloads = [dumps(Bundle(store, staging, memory, tuple(bundle), threads)) for bundle in bundles]
    frame = payload_frame(spark, payloads)
    reported = 0

    def report_first(finished: int) -> None:
        nonlocal reported
        # Until the end, only the number of finished bundles is known, not which ones.
        for bundle in bundles[reported:finished]:
            for _, task in bundle:
                if report is not None:
                    report(task)
        reported = max(reported, finished)

    frame = frame.mapInArrow(run_bundles, _RESULT_SCHEMA)
    # The last stage does the work. A stage before it only distributes the bundles.
    watch = None if report is None else lambda stages: report_first(_finished(stages, len(bundles)))
    found = collect(spark, frame, f"parketto {operation}", watch)
    report_first(len(bundles))
    results: dict[int, Result] = {}
    for row in found:
        result = loads(row["result"])
        if row["failed"]:
            raise result
        results[row["position"]] = result
    return [results[position] for position in range(len(tasks))]


@dataclass(frozen=True)
class LastStage:
    """The last stage of a job: returns results of any kind; Parketto's errors are results, too."""

    stage: Callable[[Batches], Iterator[Any]]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """The pickled results."""
        failed: list[Exception] = []
        with catching(failed):
            yield from (pa.record_batch({"result": [dumps(result)]}) for result in self.stage(batches))
        yield from (pa.record_batch({"result": [dumps(error)]}) for error in failed)


def results(
    spark: SparkSession,
    frame: DataFrame,
    stage: Callable[[Batches], Iterator[Any]],
    what: str,
    progress: StageProgress | None = None,
) -> list[Any]:
    """The results of a job's last stage, applied to a DataFrame."""
    last = frame.mapInArrow(PickledFunction(LastStage(stage)), "result binary")
    found = [loads(row["result"]) for row in collect(spark, last, what, progress)]
    for error in (each for each in found if isinstance(each, Exception)):
        raise error
    return found


def collect(spark: SparkSession, frame: DataFrame, what: str, progress: StageProgress | None = None) -> list[Any]:
    """The rows of a DataFrame of results. An interrupt cancels the job on the cluster before it propagates.

    The job runs in its own thread, so that this one can be interrupted, and can poll its progress. It has the
    pool, group, description and tags of this thread, and one more tag, `parketto-<uuid>`.
    """
    tag = f"parketto-{uuid.uuid4().hex}"
    with spark_errors(spark):
        caller = Caller(spark)

        def job() -> list[Any]:
            with caller.applied(tag, what):
                return frame.collect()

        watch = Watch(spark, tag) if progress is not None else None
        with ThreadPool(1, "parketto-spark") as pool:
            try:
                return _awaited(pool.submit(job), watch, progress)
            except BaseException:
                cancel(spark, tag)  # for an interrupt, or an error of a progress callback: a failed job has ended
                raise
            finally:
                if watch is not None:
                    watch.close()


def spark_errors(spark: SparkSession) -> AbstractContextManager[None]:
    """Raise errors of jobs with the types that they had in their tasks, or that callers know."""
    return typed_errors(spark, _known)


def _known(error: Exception) -> BaseException | None:
    if (typed := _typed(error)) is not None:
        return typed
    if (other := _OTHER_VERSION.search(str(error))) is not None:
        return EngineUnavailable(other[1])
    if (missing := _MISSING_MODULE.search(str(error))) is not None:
        unavailable = EngineUnavailable(
            f"Spark's workers cannot import {missing[1]}: install it in their Python as well, or send it "
            "along with spark.submit.pyFiles or spark.archives"
        )
        unavailable.__cause__ = error
        return unavailable
    return None


def _awaited(job: Future[list[Any]], watch: Watch | None, progress: StageProgress | None) -> list[Any]:
    """The result of a job; its progress is reported meanwhile."""
    while True:
        try:
            rows = job.result(timeout=_POLL_SECONDS)
        except NotYet:
            if job.done():
                raise
            if watch is not None and progress is not None:
                progress(watch.stages())
        else:
            if watch is not None and progress is not None:
                # The tracker lags behind, and a short job ends before the first poll.
                progress([Stage(stage.tasks, stage.tasks) for stage in watch.stages()] or [Stage(1, 1)])
            return rows


def _finished(stages: list[Stage], bundles: int) -> int:
    """The number of finished bundles, as far as the stages show it."""
    return stages[-1].done if stages and stages[-1].tasks == bundles else 0


def parallelism(spark: SparkSession) -> int:
    """The number of tasks that run at once; over Connect a guess, because the server does not report it."""
    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 8)
    return int(spark.sparkContext.defaultParallelism)


def _threads_for_each(spark: SparkSession, cores: int, bundles: int) -> int:
    """The number of threads per bundle: one on a cluster, where the other cores are for other tasks."""
    return max(1, cores // max(1, bundles)) if is_local(spark) else 1


def _bundled(tasks: Sequence[AnyTask], parallelism: int) -> list[list[tuple[int, AnyTask]]]:
    """Tasks in bundles of about equal size: enough for all cores, and each large enough for a Spark task."""
    total = sum(task.size_bytes for task in tasks)
    wanted = max(parallelism * _BUNDLES_PER_CORE, total // _BUNDLE_BYTES)
    if total <= parallelism * _SHORT_BYTES:
        wanted = parallelism
    bundles: list[list[tuple[int, AnyTask]]] = [[] for _ in range(min(len(tasks), wanted))]
    loads = [(0, number) for number in range(len(bundles))]
    for position, task in sorted(enumerate(tasks), key=lambda item: item[1].size_bytes, reverse=True):
        load, number = heapq.heappop(loads)
        bundles[number].append((position, task))
        heapq.heappush(loads, (load + task.size_bytes + 1, number))
    return bundles


def stage_progress(count: Callable[[int, int], None] | None) -> StageProgress | None:
    """The progress function of a shuffle: counts the Spark tasks of all stages known so far."""
    if count is None:
        return None
    return lambda stages: count(sum(stage.done for stage in stages), sum(stage.tasks for stage in stages))
