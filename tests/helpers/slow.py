"""Slow tasks, so that tests can interfere. Spark's workers import them by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from parketto.engines.base import Context, GroupResult
from parketto.engines.spark.engine import SparkEngine
from parketto.engines.spark.shipping import Batches, PickledFunction
from parketto.engines.spark.tasks import LastStage
from parketto.merge.key_join import WriteAdditions
from parketto.parquet.output import Written
from parketto.planning.rewrite import RewritePlan
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker
from parketto.tasks.rewrite import RewriteGroup


@dataclass(frozen=True)
class SlowRewrite(RewriteGroup):
    """Leaves a marker with the properties of its job after writing its files, and ends a while later."""

    marks: str = ""
    seconds: float = 1.5

    def run(self, worker: Worker) -> tuple[StagedFile, ...]:
        from pyspark import TaskContext

        staged = super().run(worker)
        properties: Any = getattr(TaskContext.get(), "_localProperties", {})
        name = os.path.join(self.marks, f"{os.getpid()}-{time.time_ns()}")
        Path(f"{name}.tmp").write_text(repr(dict(properties)))
        os.rename(f"{name}.tmp", name)
        time.sleep(self.seconds)
        return staged


class SlowSpark(SparkEngine):
    """Spark, with slow tasks that leave markers in a folder."""

    marks = ""
    seconds = 1.5

    def rewrite(self, plan: RewritePlan, context: Context) -> list[GroupResult]:
        print("working", flush=True)
        tasks = [
            SlowRewrite(group, plan.operation, plan.clustering, self.marks, self.seconds) for group in plan.groups
        ]
        return [GroupResult(g, s) for g, s in zip(plan.groups, self.run(tasks, context), strict=True)]


def stage_of(function: Callable[[Batches], Iterator[Any]]) -> object:
    """The stage that a function over batches runs; the last stage of a job is wrapped in another function."""
    return function.stage if isinstance(function, LastStage) else function


class SlowShipped(PickledFunction):
    """A function over batches that leaves a marker after writing its files, and ends a while later."""

    marks = ""
    seconds: ClassVar[dict[str, float]] = {}  # for some functions; for others it is 1.5

    def __init__(self, function: Callable[[Batches], Iterator[Any]]) -> None:
        super().__init__(function)
        name = type(stage_of(function)).__name__
        self._mark, self._seconds = os.path.join(self.marks, name), self.seconds.get(name, 1.5)

    def __call__(self, batches: Batches) -> Iterator[Any]:
        yield from super().__call__(batches)
        Path(f"{self._mark}-{os.getpid()}-{time.time_ns()}").touch()
        time.sleep(self._seconds)


@dataclass(frozen=True)
class SlowAdditions(WriteAdditions):
    """Writes the rows that a merge adds, leaves a marker, and ends a while later."""

    marks: ClassVar[str] = ""
    folder: str = field(default_factory=lambda: SlowAdditions.marks)

    def run(self, worker: Worker) -> Written:
        written = super().run(worker)
        Path(self.folder, f"WriteAdditions-{os.getpid()}-{time.time_ns()}").touch()
        time.sleep(1.5)
        return written


def wait_for_mark(folder: Path, seconds: float = 60.0, of: str = "") -> str:
    """The content of the first marker, or of the first one of a kind."""
    deadline = time.monotonic() + seconds
    while True:
        marks = [path for path in folder.iterdir() if not path.name.endswith(".tmp")]
        found = [path for path in marks if not of or path.name.startswith(f"{of}-")]
        if found:
            return found[0].read_text()
        assert time.monotonic() < deadline, "no task has begun"
        time.sleep(0.02)
