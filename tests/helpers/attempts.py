"""Speculative attempts: the first attempt at a task waits until another one has staged all of its files.

Both record what they staged, so that a test can verify that two attempts ran at the same time.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.slow import stage_of
from parketto.engines.base import Context, GroupResult
from parketto.engines.spark.engine import SparkEngine
from parketto.engines.spark.shipping import Batches, PickledFunction
from parketto.engines.spark.tasks import task_attempt
from parketto.planning.rewrite import RewritePlan
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker
from parketto.tasks.rewrite import RewriteGroup

PATIENCE = 60.0  # seconds


@dataclass(frozen=True)
class Meeting:
    """Synchronises attempts by marker files in a folder. `only` is the one task that is delayed."""

    marks: str
    name: str
    only: int | None = None

    def arrive(self) -> Attempt:
        """Delay a first attempt until another one has staged its files; other attempts continue."""
        attempt = Attempt(self, task_attempt(), time.time())
        if self.only in (None, attempt.partition) and attempt.is_first():
            wait_until(lambda: attempt.reports("staged"), "no second attempt has staged files")
        return attempt


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task."""

    meeting: Meeting
    name: str
    began: float

    @property
    def partition(self) -> int:
        return int(self.name.split("-")[1])

    def is_first(self) -> bool:
        """Whether it is the first attempt at its task; records the process id of the first one."""
        temporary = self._path("arrived").with_suffix(".tmp")
        temporary.write_text(f"{self.name} {os.getpid()}")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, self._first)
        return self._first.read_text().split()[0] == self.name

    def leave(self, folder: str) -> None:
        """Record the staged files; a second attempt waits until the first one has staged its files, too."""
        if not self._first.exists():
            return
        name, pid = self._first.read_text().split()
        ends = (f".{self.name}.staged", f"-{self.name}")
        files = sorted(path.name for path in Path(folder).rglob("*") if path.name.endswith(ends))
        kind = "late" if name == self.name else "staged"
        report = {"attempt": self.name, "files": files, "began": self.began, "ended": time.time()}
        temporary = self._path(kind).with_suffix(".tmp")
        temporary.write_text(json.dumps(report))
        temporary.rename(self._path(kind))
        if kind == "staged":
            wait_until(
                lambda: self.reports("late") or not Path(f"/proc/{pid}").exists(), "the first attempt never ended"
            )

    def reports(self, kind: str) -> list[Path]:
        """The reports of attempts at this task."""
        return list(Path(self.meeting.marks).glob(f"{kind}-{self.meeting.name}-{self.partition}-*.json"))

    @property
    def _first(self) -> Path:
        return Path(self.meeting.marks, f"first-{self.meeting.name}-{self.partition}")

    def _path(self, kind: str) -> Path:
        return Path(self.meeting.marks, f"{kind}-{self.meeting.name}-{self.partition}-{self.name}.json")


def wait_until(condition: Callable[[], object], otherwise: str) -> None:
    """Wait for a condition that other processes fulfil."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


class OvertakenShipped(PickledFunction):
    """A function over batches. In one stage, first attempts are delayed after they received their rows."""

    marks, stage = "", ""
    only: int | None = None

    def __init__(self, function: Callable[[Batches], Iterator[Any]]) -> None:
        super().__init__(function)
        self._meeting = None
        work: Any = stage_of(function)
        if type(work).__name__ == self.stage:
            self._meeting = Meeting(self.marks, self.stage, self.only)
            self._folder = work.staging.directory

    def __call__(self, batches: Batches) -> Iterator[Any]:
        if self._meeting is None:
            yield from super().__call__(batches)
            return
        attempts: list[Attempt] = []

        def held_up(meeting: Meeting) -> Iterator[Any]:
            yield from batches
            attempts.append(meeting.arrive())

        yield from super().__call__(held_up(self._meeting))
        attempts[0].leave(self._folder)


@dataclass(frozen=True)
class OvertakenRewrite(RewriteGroup):
    """Rewrites a group; the first attempt at one task is delayed before that."""

    meeting: Meeting | None = None

    def run(self, worker: Worker) -> tuple[StagedFile, ...]:
        assert self.meeting is not None
        attempt = self.meeting.arrive()
        staged = super().run(worker)
        attempt.leave(worker.staging.directory)
        return staged


class OvertakenSpark(SparkEngine):
    """Spark, with a delayed first attempt at rewriting files."""

    marks = ""

    def rewrite(self, plan: RewritePlan, context: Context) -> list[GroupResult]:
        tasks = [
            OvertakenRewrite(group, plan.operation, plan.clustering, Meeting(self.marks, f"group{number}", 0))
            for number, group in enumerate(plan.groups)
        ]
        return [GroupResult(g, s) for g, s in zip(plan.groups, self.run(tasks, context), strict=True)]
