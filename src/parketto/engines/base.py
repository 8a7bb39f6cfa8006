"""What an engine is given and what it gives back. Every engine folder implements this one protocol."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from parketto.engines.merging import merge_small
from parketto.errors import InvalidArgument
from parketto.kernels.counting import count_tasks
from parketto.kernels.merge_target import MergeOutcome, MergeTarget
from parketto.kernels.rewrite import RewriteGroup
from parketto.kernels.rows import FileRows, FrameRows, RowSource
from parketto.kernels.work import Piece, StagedFile, Staging, Task, Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.plan.rewrite import FileGroup, RewritePlan
from parketto.storage.store import Store

Result = TypeVar("Result")


class Progress(NamedTuple):
    """How far an operation is. `done` of `total` pieces of work; bytes are those of the input, where known."""

    operation: str
    done: int
    total: int
    done_bytes: int
    total_bytes: int


ProgressCallback = Callable[[Progress], None]


@dataclass
class Context:
    """What an engine works with: the store, its staging, and somebody who wants to know how far it is."""

    store: Store
    staging: Staging
    operation: str = ""
    progress: ProgressCallback | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    #: What ends work that looks at no event, when the operation is cancelled.
    on_cancel: list[Callable[[], None]] = field(default_factory=list)
    #: What an engine keeps for as long as the operation takes, such as the session that it runs on.
    kept: dict[str, Any] = field(default_factory=dict)

    def cancel(self) -> None:
        """Make all work of the operation end soon."""
        self.cancelled.set()
        for end in self.on_cancel:
            end()

    def reporter(self, pieces: Sequence[Piece]) -> Callable[[Piece], None]:
        """A function to call, from any thread, when a piece of work (a task, a file) is done."""
        total_bytes = sum(piece.size_bytes for piece in pieces)
        lock = threading.Lock()
        done = done_bytes = 0

        def report(piece: Piece) -> None:
            nonlocal done, done_bytes
            if self.progress is None:
                return
            with lock:
                done += 1
                done_bytes += piece.size_bytes
                self.progress(Progress(self.operation, done, len(pieces), done_bytes, total_bytes))

        return report

    def counter(self) -> Callable[[int, int], None] | None:
        """A function to call with how many pieces of work are done, of how many; None if nobody asks."""
        if self.progress is None:
            return None
        callback, last = self.progress, 0

        def count(done: int, total: int) -> None:
            nonlocal last
            if done > last:
                last = done
                callback(Progress(self.operation, done, total, 0, 0))

        return count


@dataclass(frozen=True)
class GroupResult:
    """The files that a group became."""

    group: FileGroup
    staged: tuple[StagedFile, ...]


class Engine(Protocol):
    """Carries out plans. It writes into staging and nowhere else."""

    name: str
    #: From how many files on footers are read in tasks; None if never.
    footers_in_tasks: int | None

    def check_store(self, store: Store) -> None:
        """Refuse a store that the engine cannot reach."""

    def timezone(self) -> str | None:
        """The time zone in which the engine reads times that do not say theirs; None if it has none of its own."""

    def adopt(self, rows: Any) -> RowSource | None:
        """The engine's own kind of frame as a source of rows; None for anything else."""

    def run(self, tasks: Sequence[Task[Result]], context: Context) -> list[Result]:
        """Run tasks that do not depend on each other; results come in the order of the tasks."""

    def run_here(self, task: Task[Result], context: Context) -> Result:
        """Run a task in this process: one whose rows are here already."""

    def rewrite(self, plan: RewritePlan, context: Context) -> Sequence[GroupResult]:
        """Write the new files of every group of the plan."""

    def merge(self, source: RowSource, target: MergeTarget, context: Context) -> MergeOutcome:
        """Write the new files of a merge."""

    def write(self, source: RowSource, output: Output, context: Context) -> Written:
        """Write rows as new files; at least one, even without rows."""

    def count_partitions(self, source: RowSource, columns: tuple[str, ...], context: Context) -> Counter[str]:
        """How many rows belong into the folder of each partition; nothing is written."""

    def transformed(self, rows: FileRows, root: str, function: Callable[[Any], Any]) -> RowSource:
        """What a function over the engine's own kind of frame makes of the rows of files below a folder."""


class TaskEngine:
    """The part that engines share whose work is tasks with Arrow inside: they differ in where tasks run."""

    name = ""
    footers_in_tasks: int | None = None

    def check_store(self, store: Store) -> None:
        """Threads of this process reach whatever the process reaches."""

    def timezone(self) -> str | None:
        """No time zone of its own."""
        return None

    def adopt(self, rows: Any) -> RowSource | None:  # noqa: ARG002
        """No frames of its own."""
        return None

    def run(self, tasks: Sequence[Task[Result]], context: Context) -> list[Result]:
        """Run tasks that do not depend on each other; results come in the order of the tasks."""
        raise NotImplementedError

    def run_here(self, task: Task[Result], context: Context) -> Result:
        """Run a task in this process."""
        with self.worker(context) as worker:
            return task.run(worker)

    def worker(self, context: Context) -> Worker:
        """What a single task in this process works with."""
        raise NotImplementedError

    def write(self, source: RowSource, output: Output, context: Context) -> Written:
        """Write rows as new files; at least one, even without rows."""
        if isinstance(source, FrameRows):
            raise InvalidArgument(f"the {self.name} engine cannot read a {type(source.frame).__name__}")
        with self.worker(context) as worker:
            if isinstance(source, FileRows):
                worker.file_read = context.reporter(source.files)
            ours = isinstance(source, FileRows) and source.transform is None
            return write_rows(source.read(worker), output, worker, ahead=ours)

    def count_partitions(self, source: RowSource, columns: tuple[str, ...], context: Context) -> Counter[str]:
        """How many rows belong into the folder of each partition, from footers where these tell."""
        if not isinstance(source, FileRows):
            raise InvalidArgument(f"the {self.name} engine counts rows of files, not of a {type(source).__name__}")
        counts, tasks = count_tasks(source, columns)
        for found in self.run(tasks, context):
            counts.update(found)
        return counts

    def transformed(self, rows: FileRows, root: str, function: Callable[[Any], Any]) -> RowSource:  # noqa: ARG002
        """No frames of its own."""
        raise InvalidArgument(
            f"a function over Spark DataFrames needs the Spark engine; the {self.name} engine gives Polars frames"
        )

    def merge(self, source: RowSource, target: MergeTarget, context: Context) -> MergeOutcome:
        """Write the new files of a merge; the source is held in memory."""
        if isinstance(source, FrameRows):
            raise InvalidArgument(f"the {self.name} engine cannot read a {type(source.frame).__name__}")
        return merge_small(self, source, target, context)

    def rewrite(self, plan: RewritePlan, context: Context) -> Sequence[GroupResult]:
        """Write the new files of every group of the plan, one task for each group."""
        tasks = [RewriteGroup(group, plan.operation, plan.clustering) for group in plan.groups]
        results = self.run(tasks, context)
        return [GroupResult(group, staged) for group, staged in zip(plan.groups, results, strict=True)]


def largest_first(tasks: Sequence[Task[Result]]) -> Iterator[tuple[int, Task[Result]]]:
    """Tasks with their positions, in an order in which all cores end at about the same time."""
    return iter(sorted(enumerate(tasks), key=lambda item: item[1].size_bytes, reverse=True))
