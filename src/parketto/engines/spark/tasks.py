"""Running tasks on Spark: bundles of them travel as rows, and each bundle is one Spark task with Arrow inside."""

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
from parketto.engines.spark.shipping import MARK, Batches, Shipped, ship, unship
from parketto.errors import EngineUnavailable, OutOfMemory, ParkettoError
from parketto.kernels.crew import Crew
from parketto.kernels.limits import address_space_limit, too_little
from parketto.kernels.work import AnyTask, Staging, Task, Worker
from parketto.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = TypeVar("Result")

# A Spark task costs some hundredths of a second before it does anything.
_BUNDLE_BYTES = 32 * 1024 * 1024
_BUNDLES_PER_CORE = 2
# Where each core has no more to do than this, it gets all of it at once.
_SHORT_BYTES = 320 * 1024 * 1024
_POLL_SECONDS = 0.2


StageProgress = Callable[[list[Stage]], None]
_RESULT_SCHEMA = "position long, failed boolean, result binary"


@dataclass(frozen=True)
class Bundle:
    """Some tasks and all that they need to know."""

    store: Store
    staging: Staging
    memory: int
    tasks: tuple[tuple[int, AnyTask], ...]
    #: How many threads may be busy at once.
    threads: int = 1

    def run(self, attempt: str) -> Iterator[tuple[int, bool, bytes]]:
        """Run the tasks one after the other; an error that another attempt would only repeat is a result, too."""
        # What is staged carries the attempt: of an attempt that failed or was overtaken nothing is ever published.
        staging = replace(self.staging, attempt=attempt)
        # Fewer bundles than cores, or several cores for each task: both are leave to use several threads.
        threads = max(self.threads, task_cpus())
        position = self.tasks[0][0]
        try:
            with (
                memory_errors(),
                Worker(self.store, staging, self.memory, threads=threads, any_thread=True) as worker,
            ):
                for position, task in self.tasks:
                    yield position, False, ship(task.run(worker))
        except (ParkettoError, FileNotFoundError, PermissionError) as error:
            yield position, True, ship(error)


_MISSING_MODULE = re.compile(r"No module named '([A-Za-z0-9_]+)")
# Python's and Arrow's words for a thread, or a mapped file, that there is no room for.
_NO_ROOM = re.compile("can't start new thread|Failed to launch worker thread|Cannot allocate memory")
_OTHER_VERSION = re.compile(rf"{MARK}(.*)")
_ERROR = re.compile(r"parketto-error:([A-Za-z0-9+/=]+):")


@contextlib.contextmanager
def raising_typed() -> Iterator[None]:
    """Send an error of ours from a task to the driver as it is: Spark itself passes on no more than its text."""
    failed: list[Exception] = []
    with catching(failed):
        yield
    for error in failed:
        packed = base64.b64encode(ship(error)).decode()
        raise RuntimeError(f"parketto-error:{packed}: {error}") from error


@contextlib.contextmanager
def catching(failed: list[Exception]) -> Iterator[None]:
    """Keep an error that another attempt would only repeat; Spark would try a task that raises it again."""
    try:
        with own_cores(), memory_errors():
            yield
    except (ParkettoError, FileNotFoundError, PermissionError) as error:
        failed.append(error)


def _typed(error: Exception) -> BaseException | None:
    found = _ERROR.search(str(error))
    if found is None:
        return None
    unpacked: BaseException = unship(base64.b64decode(found[1]))
    return unpacked


def task_attempt() -> str:
    """Which attempt at which task this is: stage, partition, and a number that no other attempt has.

    Spark counts attempts at a task anew when it tries a stage again, while one of the first time may still write.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs inside of Spark tasks only"
    return f"{context.stageId()}-{context.partitionId()}-{context.taskAttemptId()}"


def task_cpus() -> int:
    """How many cores the task has (`spark.task.cpus`)."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs inside of Spark tasks only"
    return context.cpus()


@contextlib.contextmanager
def own_cores(threads: int = 1) -> Iterator[None]:
    """Have Arrow and Polars use the cores of the task, not those of others."""
    cores, before = max(threads, task_cpus()), pa.cpu_count()
    # Polars reads it once, when it is loaded.
    os.environ.setdefault("POLARS_MAX_THREADS", str(task_cpus()))
    pa.set_cpu_count(cores)
    try:
        yield
    finally:
        pa.set_cpu_count(before)


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Say which setting is too small, where Spark limits the memory of its Python workers."""
    try:
        yield
    except Exception as error:
        limit = address_space_limit()
        if limit is None or not (isinstance(error, MemoryError) or _NO_ROOM.search(str(error))):
            raise
        short = error if isinstance(error, OutOfMemory) else too_little(2 * limit)
        raise OutOfMemory(
            f"spark.executor.pyspark.memory: {short}, for each task that an executor runs at once. Nothing was "
            "changed; raise the setting, or let fewer tasks run at once (spark.executor.cores, spark.task.cpus)",
            short.enough_mb,
        ) from error


def run_bundles(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a Spark task does: it unpacks its bundles and runs them."""
    attempt = task_attempt()
    for batch in batches:
        for payload in batch.column("payload"):
            bundle: Bundle = unship(payload.as_py())
            with own_cores(bundle.threads):
                for position, failed, result in bundle.run(attempt):
                    yield pa.record_batch({"position": [position], "failed": [failed], "result": [result]})


def payload_frame(spark: SparkSession, payloads: Sequence[bytes]) -> DataFrame:
    """A frame of payloads, each in a Spark task of its own."""
    table = pa.table({"id": pa.array(range(len(payloads)), pa.int32()), "payload": payloads})
    frame = spark.createDataFrame(table)
    # Spark spreads rows evenly by itself, over as many partitions as there are cores, and without a shuffle, which
    # takes longer than much of the work. A Connect server does not say what it will do.
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
    """Run tasks on Spark; results come in the order of the tasks."""
    cores = parallelism(spark)
    bundles = _bundled(tasks, cores)
    threads = _threads_for_each(spark, cores, len(bundles))
    payloads = [ship(Bundle(store, staging, memory, tuple(bundle), threads)) for bundle in bundles]
    frame = payload_frame(spark, payloads)
    told = 0

    def tell(finished: int) -> None:
        nonlocal told
        # Which of the bundles are done is not known before the end; how many is.
        for bundle in bundles[told:finished]:
            for _, task in bundle:
                if report is not None:
                    report(task)
        told = max(told, finished)

    frame = frame.mapInArrow(run_bundles, _RESULT_SCHEMA)
    # The last stage is the work. One before it only deals the bundles out.
    watch = None if report is None else lambda stages: tell(_working(stages, len(bundles)))
    found = collect(spark, frame, f"parketto {operation}", watch)
    tell(len(bundles))
    results: dict[int, Result] = {}
    for row in found:
        result = unship(row["result"])
        if row["failed"]:
            raise result
        results[row["position"]] = result
    return [results[position] for position in range(len(tasks))]


@dataclass(frozen=True)
class LastStage:
    """What a job ends with: results of any kind, and an error of ours is one."""

    stage: Callable[[Batches], Iterator[Any]]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """The results as bytes."""
        failed: list[Exception] = []
        with catching(failed):
            yield from (pa.record_batch({"result": [ship(result)]}) for result in self.stage(batches))
        yield from (pa.record_batch({"result": [ship(error)]}) for error in failed)


def results(
    spark: SparkSession,
    frame: DataFrame,
    stage: Callable[[Batches], Iterator[Any]],
    what: str,
    progress: StageProgress | None = None,
) -> list[Any]:
    """What the last stage of a job makes of a frame."""
    last = frame.mapInArrow(Shipped(LastStage(stage)), "result binary")
    found = [unship(row["result"]) for row in collect(spark, last, what, progress)]
    for error in (each for each in found if isinstance(each, Exception)):
        raise error
    return found


def collect(spark: SparkSession, frame: DataFrame, what: str, progress: StageProgress | None = None) -> list[Any]:
    """The rows of a frame of descriptions. An interrupt cancels the job on the cluster before it goes on.

    The job runs in a thread of its own, so that this one can be interrupted, and ask how far it is. It has the
    pool, group, description and tags of this thread, and one more tag, `parketto-<uuid>`.
    """
    tag = f"parketto-{uuid.uuid4().hex}"
    with spark_errors(spark):
        caller = Caller(spark)

        def job() -> list[Any]:
            with caller.applied(tag, what):
                return frame.collect()

        watch = Watch(spark, tag) if progress is not None else None
        with Crew(1, "parketto-spark") as crew:
            try:
                return _awaited(crew.submit(job), watch, progress)
            except BaseException:
                cancel(spark, tag)  # unless it has failed itself: an interrupt, or an error of a progress callback
                raise
            finally:
                if watch is not None:
                    watch.close()


def spark_errors(spark: SparkSession) -> AbstractContextManager[None]:
    """Errors of jobs with the types that they had in their tasks, or that callers know."""
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
    """What a job returns; how far it is, is told meanwhile."""
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
                # The tracker lags behind, and a short job is over before it is first asked.
                progress([Stage(stage.tasks, stage.tasks) for stage in watch.stages()] or [Stage(1, 1)])
            return rows


def _working(stages: list[Stage], bundles: int) -> int:
    """How many bundles are done, as far as the stages tell."""
    return stages[-1].done if stages and stages[-1].tasks == bundles else 0


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once; over Connect a guess, because nobody tells."""
    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 8)
    return int(spark.sparkContext.defaultParallelism)


def _threads_for_each(spark: SparkSession, cores: int, bundles: int) -> int:
    """How many threads a bundle may use: on a cluster one, because other cores are for other people's tasks."""
    return max(1, cores // max(1, bundles)) if is_local(spark) else 1


def _bundled(tasks: Sequence[AnyTask], parallelism: int) -> list[list[tuple[int, AnyTask]]]:
    """Tasks in bundles of about equal size: enough for all cores, and no more than are worth a Spark task."""
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
    """Progress of a shuffle: the Spark tasks of all stages that are known so far."""
    if count is None:
        return None
    return lambda stages: count(sum(stage.done for stage in stages), sum(stage.tasks for stage in stages))
