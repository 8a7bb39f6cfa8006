"""Cancellable jobs in the caller's session, with the caller's pool, group and tags.

A job runs in its own thread, so that the calling thread can be interrupted. Spark keeps pools, groups,
descriptions and tags per thread: the job gets copies of the caller's, which stay unchanged.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from parketto.engines.spark.session import is_connect, is_stopped
from parketto.errors import EngineUnavailable, OperationCancelled, ParkettoError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DESCRIPTION = "spark.job.description"
_CANCELLED = re.compile(r"\[(?:SPARK_JOB_CANCELLED|OPERATION_CANCELED)\]\s*(.*?)\s*(?:SQLSTATE|\n|$)")
# Spark's errors when its context, or a Connect session, ends during a job.
_STOPPED = re.compile(
    r"SparkContext was shut down|stopped SparkContext|SparkContext has been shutdown|INVALID_HANDLE\.SESSION_|"
    r"Channel closed|NO_ACTIVE_SESSION|SESSION_NOT_SAME|SESSION_ALREADY_STOPPED"
)
# Errors once the driver's JVM, or the Connect server, is gone.
_GONE = re.compile(
    r"error occurred while trying to connect to the Java server|Answer from Java side is empty|"
    r"StatusCode\.UNAVAILABLE|failed to connect to all addresses|Error while sending or receiving"
)


class Stage(NamedTuple):
    """How many of a stage's Spark tasks are done."""

    done: int
    tasks: int


class Caller:
    """The calling thread's Spark job properties. Create it in that thread, apply it in the job's thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        if is_connect(spark):
            known = vars(spark.client.thread_local)
            self._tags = set(known.get("tags", ()))
            self._extensions = list(known.get("user_context_extensions", ()))
        else:
            self._properties = _context(spark).getLocalProperties().clone()
            self._session_tags = _session_tags(spark).get()

    @contextlib.contextmanager
    def applied(self, tag: str, what: str) -> Iterator[None]:
        """Run jobs with the caller's properties and one more tag. The caller's description takes precedence."""
        if is_connect(self._spark):
            local: Any = self._spark.client.thread_local
            local.tags, local.user_context_extensions = {*self._tags, tag}, self._extensions
            yield
            return
        context = _context(self._spark)
        # Without pinned threads, other code may use the same JVM thread next.
        before = context.getLocalProperties().clone()
        context.setLocalProperties(self._properties)
        # Spark identifies a session's tag by the thread that added it: adding it again would create another one.
        tags = _session_tags(self._spark)
        tags_before = tags.get()
        tags.set(self._session_tags)
        context.addJobTag(tag)
        if context.getLocalProperty(_DESCRIPTION) is None:
            context.setLocalProperty(_DESCRIPTION, what)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # Spark may be gone, and the properties with it
                context.setLocalProperties(before)
                tags.set(tags_before)


class Watch:
    """Progress of a job's stages: from the status tracker, or as a Connect server reports it."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark, self._tag = spark, tag
        self._reported: list[Stage] = []
        if is_connect(spark):
            spark.registerProgressHandler(self._on_progress)  # type: ignore[arg-type]

    def stages(self) -> list[Stage]:
        """All stages known so far, in order."""
        if is_connect(self._spark):
            return self._reported
        tracker = self._spark.sparkContext.statusTracker()
        numbers = _context(self._spark).statusTracker().getJobIdsForTag(self._tag)
        jobs = [tracker.getJobInfo(number) for number in numbers]
        found = {stage: tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds}
        return [
            Stage(info.numCompletedTasks, info.numTasks) for _, info in sorted(found.items()) if info is not None
        ]

    def close(self) -> None:
        """Unregister the progress handler."""
        if is_connect(self._spark):
            with contextlib.suppress(Exception):  # the session may be gone
                self._spark.removeProgressHandler(self._on_progress)  # type: ignore[arg-type]

    def _on_progress(self, stages: Any, *_rest: Any, **_more: Any) -> None:
        ordered = sorted(stages or (), key=lambda stage: stage.stage_id)
        self._reported = [Stage(stage.num_completed_tasks, stage.num_tasks) for stage in ordered]


def cancel(spark: SparkSession, tag: str) -> None:
    """Cancel the jobs with a tag; callable from any thread."""
    with contextlib.suppress(Exception):  # the original error matters more, and Spark may be gone
        if is_connect(spark):
            spark.interruptTag(tag)
        else:
            spark.sparkContext.cancelJobsWithTag(tag)


@contextlib.contextmanager
def typed_errors(spark: SparkSession, known: Callable[[Exception], BaseException | None]) -> Iterator[None]:
    """Raise Parketto's own errors if jobs were cancelled, or Spark is gone.

    Args:
        spark: The session that the jobs run in.
        known: Translates other errors; returns None for those that it does not know.
    """
    try:
        yield
    except ParkettoError:
        raise
    except Exception as error:
        if (better := known(error) or _ended(spark, error)) is not None:
            raise better from (None if better.__cause__ is None else better.__cause__)
        raise


def session_stopped() -> OperationCancelled:
    """The error for an operation whose session was stopped while it ran."""
    return OperationCancelled(
        "the Spark session was stopped while the operation was running; nothing was changed. Run it again with a "
        "live session"
    )


def _ended(spark: SparkSession, error: Exception) -> ParkettoError | None:
    """The error for stopped or cancelled work; None for any other error."""
    text = str(error)
    if _STOPPED.search(text) or _has_stopped(spark):
        return session_stopped()
    if (found := _CANCELLED.search(text)) is not None:
        return OperationCancelled(
            f"the operation was cancelled on Spark ({found[1].rstrip('.') or 'interrupted'}); nothing was changed"
        )
    if _GONE.search(text):
        return EngineUnavailable(
            "Spark is gone: its JVM, or the Connect server, has ended or cannot be reached any more. Nothing was "
            f"changed; run the operation again with a live session ({_first_line(text)})"
        )
    return None


def _has_stopped(spark: SparkSession) -> bool:
    try:
        return is_stopped(spark)
    except Exception:  # noqa: BLE001 - a session that does not answer is gone, not stopped
        return False


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "no reason given"


def _context(spark: SparkSession) -> Any:
    """The JVM's SparkContext: PySpark's exposes neither all local properties nor the jobs of a tag."""
    return spark.sparkContext._jsc.sc()


def _session_tags(spark: SparkSession) -> Any:
    return spark._jsparkSession.managedJobTags()
