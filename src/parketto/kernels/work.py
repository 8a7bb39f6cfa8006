"""What a task is, and what it works with. A task is plain data: it can be run in another process."""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from parketto.errors import OperationCancelled
from parketto.kernels.limits import address_space_limit, data_bytes
from parketto.kernels.memory import TASK_MEMORY
from parketto.storage.footers import FileInfo
from parketto.storage.store import Store

# Of a worker's share of memory: decoded rows that wait for their row group, a run that is being sorted
# (twice: before and after), batches on their way. The rest is what encoding and compressing need.
_ROW_GROUP_SHARE = 8
_RUN_SHARE = 6
_BATCH_SHARE = 32


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A new file: where it is written, and where the commit will put it."""

    path: str
    destination: str


@dataclass(frozen=True, slots=True)
class Staging:
    """Where an operation may write. Only the commit moves anything from here into the dataset.

    `local` is the same folder for programs that know nothing but the local disk, if it is there.
    """

    directory: str
    local: str | None = None
    #: Which attempt at a task writes here, where a task may be tried more than once.
    attempt: str = ""

    def new_file(self, directory: str, name: str) -> StagedFile:
        """Where to write a file of that name (see `unique_names`), bound for a directory of the dataset."""
        attempt = f".{self.attempt}" if self.attempt else ""
        return StagedFile(f"{self.directory}/new/{name}{attempt}.staged", f"{directory}/{name}")

    def of_attempt(self, path: str) -> str:
        """A path that belongs to the attempt alone: another one at the same task may still write to its own."""
        return f"{path}.{self.attempt}" if self.attempt else path

    def restored_file(self, number: int, directory: str, name: str) -> StagedFile:
        """Where to put a file that returns to its place under its own name."""
        return StagedFile(f"{self.directory}/new/{number}.staged", f"{directory}/{name}")

    def spool_path(self, name: str) -> str:
        """Where to keep rows that several tasks read; it is gone when the operation ends."""
        return f"{self.directory}/spool/{name}"


def unique_names(prefix: str) -> Iterator[str]:
    """Names that nobody else will ever use, which sort in the order they are given out."""
    token = uuid.uuid4().hex
    return (f"{prefix}-{token}-{number:05d}.parquet" for number in count())


def cores() -> int:
    """How many threads of this process can work at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Piece(Protocol):
    """Something that is work: a task, or a file that is read."""

    @property
    def size_bytes(self) -> int:
        """How much work it is, in bytes of input."""


class Worker:
    """What one task at a time works with: the files, a place to stage new ones, and a share of memory.

    Args:
        store: Where the dataset is.
        staging: Where new files go.
        memory: How many bytes the task may use for data; fewer if the address space of the process is limited.
        threads: How many threads the task may keep busy; with such a limit one.
        any_thread: Whether libraries may use the threads that they have, however many these are.
        cancelled: Set when the task should stop at its next batch.
    """

    def __init__(
        self,
        store: Store,
        staging: Staging,
        memory: int,
        *,
        threads: int = 1,
        any_thread: bool = False,
        cancelled: threading.Event | None = None,
    ) -> None:
        if address_space_limit() is not None:
            memory, threads, any_thread = data_bytes(memory), 1, False
        self.store, self.staging, self.threads, self.any_thread = store, staging, threads, any_thread
        self._memory = memory
        self.row_group_bytes = memory // _ROW_GROUP_SHARE
        self.run_bytes = memory // _RUN_SHARE
        self.batch_bytes = memory // _BATCH_SHARE
        #: What tasks of one operation may keep for the next one, such as an index that several of them use.
        self.cache: dict[object, Any] = {}
        #: Called with each file of which all rows were read.
        self.file_read: Callable[[Piece], None] | None = None
        self._cancelled = cancelled
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Worker:
        TASK_MEMORY.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        TASK_MEMORY.__exit__(kind, error, trace)
        if self._scratch is not None:
            self._scratch.cleanup()

    def shared_by(self, threads: int) -> Worker:
        """What each of some threads works with that do the work of this one together."""
        return Worker(
            self.store,
            self.staging,
            self._memory // threads,
            threads=self.threads // threads,
            any_thread=self.any_thread,
            cancelled=self._cancelled,
        )

    @property
    def use_threads(self) -> bool:
        """Whether there is more than one."""
        return self.threads > 1

    @property
    def widths(self) -> dict[tuple[str, ...], float]:
        """How wide rows of some columns are, as far as tasks of the operation have seen."""
        found: dict[tuple[str, ...], float] = self.cache.setdefault("widths", {})
        return found

    def new_files(self, prefix: str, directory: str) -> Callable[[], StagedFile]:
        """A function that says where the next new file of a directory is to be written."""
        names = unique_names(prefix)
        return lambda: self.staging.new_file(directory, next(names))

    def scratch_directory(self) -> str:
        """A local folder for spilled data; beside the staged files if those are local, so that it is swept too."""
        if self._scratch is None:
            beside = self.staging.local
            self._scratch = tempfile.TemporaryDirectory(
                prefix="parketto-", dir=beside if beside is not None and os.path.isdir(beside) else None
            )
        return self._scratch.name

    def check_cancelled(self) -> None:
        """End here if somebody has cancelled the operation."""
        if self._cancelled is not None and self._cancelled.is_set():
            raise OperationCancelled("the operation was cancelled; nothing was changed")

    def until_cancelled(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, until somebody cancels the operation."""
        for batch in batches:
            self.check_cancelled()
            yield batch


def widest_row(task: object) -> float:
    """About how many bytes the widest rows of a task's files take, as far as sizes of files tell; at least 1."""
    files: Sequence[FileInfo] = getattr(task, "files", ())
    return max((file.size_bytes / file.num_rows for file in files if file.num_rows), default=1.0)


Result_co = TypeVar("Result_co", covariant=True)


class Task(Piece, Protocol[Result_co]):
    """Work on some files that needs no other task's result. It is picklable, and so is what it returns."""

    def run(self, worker: Worker) -> Result_co:
        """Do it. It may be run again after a failure: what a failed run staged is never published."""


AnyTask = Task[Any]
