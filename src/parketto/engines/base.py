"""The engine protocol: what an engine receives and returns. Every engine folder implements it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from parketto.errors import InvalidArgument
from parketto.runtime.task import Task, Worker, WorkUnit

if TYPE_CHECKING:  # what only some operations need is imported by them
    from parketto.engines.text_files import TextFormat
    from parketto.engines.text_types import KnownTypes
    from parketto.expressions.derived import DerivedColumns
    from parketto.merge.target import MergeOutcome, MergeTarget
    from parketto.parquet.file_info import FileInfo
    from parketto.parquet.output import Output, Written
    from parketto.parquet.row_source import FileRows, FrameRows, RowSource
    from parketto.planning.rewrite import FileGroup, RewritePlan
    from parketto.runtime.staging import StagedFile, Staging
    from parketto.storage.store import FileEntry, Store
    from parketto.tasks.scan import Scan

Result = TypeVar("Result")
_PATTERN = frozenset("*?[]{},\\")  # characters in paths that DuckDB or Spark interpret


class Progress(NamedTuple):
    """Progress of an operation: `done` of `total` pieces of work; bytes count the input, where known."""

    operation: str
    done: int
    total: int
    done_bytes: int
    total_bytes: int


ProgressCallback = Callable[[Progress], None]
FileFormatName = Literal["csv", "json", "parquet", "arrow"]


@dataclass
class Context:
    """What an engine works with: the store, the staging area, and the progress callback."""

    store: Store
    staging: Staging
    operation: str = ""
    progress: ProgressCallback | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    #: Callbacks that stop work which does not check `cancelled`.
    on_cancel: list[Callable[[], None]] = field(default_factory=list)
    #: State that an engine keeps for the duration of the operation, such as its session.
    kept: dict[str, Any] = field(default_factory=dict)

    def cancel(self) -> None:
        """Stop all work of the operation soon."""
        self.cancelled.set()
        for callback in self.on_cancel:
            callback()

    def reporter(self, pieces: Sequence[WorkUnit]) -> Callable[[WorkUnit], None]:
        """A thread-safe function to call when a piece of work (a task, a file) is done."""
        total_bytes = sum(piece.size_bytes for piece in pieces)
        lock = threading.Lock()
        done = done_bytes = 0

        def report(piece: WorkUnit) -> None:
            nonlocal done, done_bytes
            if self.progress is None:
                return
            with lock:
                done += 1
                done_bytes += piece.size_bytes
                self.progress(Progress(self.operation, done, len(pieces), done_bytes, total_bytes))

        return report

    def counter(self) -> Callable[[int, int], None] | None:
        """A function to call with the finished and total pieces of work; None without a progress callback."""
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
    """The new files of a group."""

    group: FileGroup
    staged: tuple[StagedFile, ...]


class Engine(Protocol):
    """Executes plans. It writes to staging and nowhere else."""

    name: str
    #: With at least this many files, tasks read the footers; None: never.
    footers_in_tasks: int | None

    def check_store(self, store: Store) -> None:
        """Refuse a store that the engine cannot reach."""

    def task_processes(self) -> int:
        """The number of processes that run tasks at once."""

    def timezone(self) -> str | None:
        """The time zone that the engine assumes for times without one; None if it has none."""

    def adopt(self, rows: Any) -> RowSource | None:
        """The engine's own DataFrame type as a row source; None for any other object."""

    def run(self, tasks: Sequence[Task[Result]], context: Context) -> list[Result]:
        """Run independent tasks; results are in task order."""

    def run_here(self, task: Task[Result], context: Context) -> Result:
        """Run a task in this process, for rows that are already in its memory."""

    def rewrite(self, plan: RewritePlan, context: Context) -> Sequence[GroupResult]:
        """Write the new files of every group of the plan."""

    def merge(self, source: RowSource, target: MergeTarget, context: Context) -> MergeOutcome:
        """Write the new files of a merge."""

    def write(self, source: RowSource, output: Output, context: Context) -> Written:
        """Write rows as new files; at least one, even without rows."""

    def count_partitions(self, source: RowSource, columns: tuple[str, ...], context: Context) -> Counter[str]:
        """Row counts by partition folder; nothing is written."""

    def scan(self, source: RowSource, function: Scan[Result], context: Context) -> list[Result]:
        """The results of a function over the rows of a source, one for each part; nothing is written."""

    def derived(self, source: FileRows | FrameRows, columns: DerivedColumns) -> RowSource:
        """The rows of a source with computed columns."""

    def scan_files(
        self, store: Store, entries: Sequence[FileEntry], format_name: TextFormat, known: KnownTypes
    ) -> RowSource:
        """The rows of CSV or JSON files, read by the engine's own reader where it can."""

    def transformed(self, rows: FileRows, root: str, function: Callable[[Any], Any]) -> RowSource:
        """The result of a function that receives files under `root` as the engine's own DataFrame type."""


class TaskEngine:
    """Base of the engines that run Arrow tasks; subclasses choose where the tasks run."""

    name = ""
    footers_in_tasks: int | None = None

    def check_store(self, store: Store) -> None:
        """Accept every store: the tasks run in this process."""

    def task_processes(self) -> int:
        """One: a single task encodes in several threads, which is faster than several tasks in one interpreter."""
        return 1

    def timezone(self) -> str | None:
        """None: the engine has no time zone of its own."""
        return None

    def adopt(self, rows: Any) -> RowSource | None:  # noqa: ARG002
        """None: the engine has no DataFrame type of its own."""
        return None

    def run(self, tasks: Sequence[Task[Result]], context: Context) -> list[Result]:
        """Run independent tasks; results are in task order."""
        raise NotImplementedError

    def run_here(self, task: Task[Result], context: Context) -> Result:
        """Run a task in this process."""
        with self.worker(context) as worker:
            return task.run(worker)

    def worker(self, context: Context) -> Worker:
        """The resources for a single task in this process."""
        raise NotImplementedError

    def write(self, source: RowSource, output: Output, context: Context) -> Written:
        """Write rows as new files; at least one, even without rows."""
        from parketto.parquet.row_source import FileRows, FrameRows
        from parketto.tasks.write import copy_rows, write_rows

        assert not isinstance(source, FrameRows), "only the Spark engine adopts DataFrames"
        with self.worker(context) as worker:
            if isinstance(source, FileRows):
                worker.file_read = context.reporter(source.files)
                return copy_rows(source, output, worker)
            return write_rows(source.read(worker), output, worker, prefetch=False)

    def count_partitions(self, source: RowSource, columns: tuple[str, ...], context: Context) -> Counter[str]:
        """Row counts by partition folder, from footers where they suffice."""
        from parketto.parquet.row_source import FileRows
        from parketto.tasks.count import count_tasks

        assert isinstance(source, FileRows), "only the Spark engine adopts or returns DataFrames"
        counts, tasks = count_tasks(source, columns)
        for found in self.run(tasks, context):
            counts.update(found)
        return counts

    def scan(self, source: RowSource, function: Scan[Result], context: Context) -> list[Result]:
        """The results of a function over the rows of a source: one per file, or one for rows in memory."""
        from parketto.parquet.row_source import FileRows, FrameRows
        from parketto.tasks.scan import ScanFiles

        if isinstance(source, FrameRows):
            raise InvalidArgument(f"the {self.name} engine cannot read a {type(source.frame).__name__}")
        if isinstance(source, FileRows):
            parts = [replace(source, files=(file,)) for file in source.files]
            return self.run([ScanFiles(part, function) for part in parts], context)
        with self.worker(context) as worker:
            return [function(worker.until_cancelled(source.read(worker)))]

    def derived(self, source: FileRows | FrameRows, columns: DerivedColumns) -> RowSource:
        """The rows of files with computed columns, which tasks compute when they read a file."""
        from parketto.parquet.row_source import FrameRows

        if isinstance(source, FrameRows):
            raise InvalidArgument(f"the {self.name} engine cannot read a {type(source.frame).__name__}")
        return replace(source, schema=columns.schema, transform=columns)

    def scan_files(
        self, store: Store, entries: Sequence[FileEntry], format_name: TextFormat, known: KnownTypes
    ) -> RowSource:
        """The rows of CSV or JSON files, read by PyArrow in this process."""
        from parketto.engines.text_files import text_rows

        return text_rows(store, entries, format_name, known)

    def transformed(self, rows: FileRows, root: str, function: Callable[[Any], Any]) -> RowSource:  # noqa: ARG002
        """Raise: the engine has no DataFrame type of its own."""
        raise InvalidArgument(
            f"a function over Spark DataFrames needs the Spark engine; the {self.name} engine uses Polars frames"
        )

    def merge(self, source: RowSource, target: MergeTarget, context: Context) -> MergeOutcome:
        """Write the new files of a merge; the source is held in memory."""
        from parketto.engines.merging import broadcast_merge
        from parketto.parquet.row_source import FrameRows

        assert not isinstance(source, FrameRows), "only the Spark engine adopts DataFrames"
        return broadcast_merge(self, source, target, context)

    def rewrite(self, plan: RewritePlan, context: Context) -> Sequence[GroupResult]:
        """Write the new files of every group of the plan, one task per group."""
        from parketto.tasks.rewrite import RewriteGroup

        tasks = [RewriteGroup(group, plan.operation, plan.clustering) for group in plan.groups]
        results = self.run(tasks, context)
        return [GroupResult(group, staged) for group, staged in zip(plan.groups, results, strict=True)]


def plain_local_paths(store: Store, entries: Sequence[FileEntry]) -> list[str] | None:
    """The local paths of files for an engine's own reader; None if it cannot read one of them by its name."""
    paths = [store.local_path(entry.path) for entry in entries]
    if any(path is None or _PATTERN.intersection(path) for path in paths):
        return None
    return [path for path in paths if path is not None]


def largest_first(tasks: Sequence[Task[Result]]) -> Iterator[tuple[int, Task[Result]]]:
    """Tasks with their positions, largest first, so that all cores finish at about the same time."""
    return iter(sorted(enumerate(tasks), key=lambda item: item[1].size_bytes, reverse=True))


def widest_row(task: object) -> float:
    """Estimated bytes of the widest rows in a task's files, from file sizes and row counts; at least 1."""
    files: Sequence[FileInfo] = getattr(task, "files", ())
    return max((file.size_bytes / file.num_rows for file in files if file.num_rows), default=1.0)
