"""Tasks, and the workers that run them. A task is plain data, so it can run in another process."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from parketto.errors import OperationCancelled
from parketto.runtime.address_space import address_space_limit, data_bytes
from parketto.runtime.memory import TASK_MEMORY
from parketto.runtime.staging import StagedFile, Staging, unique_names
from parketto.storage.store import Store

# Fractions (1/n) of a worker's memory: the decoded rows of a row group, a sort run (which is held twice: before
# and after), and a batch. Encoding and compression need the rest.
_ROW_GROUP_SHARE = 8
_RUN_SHARE = 6
_BATCH_SHARE = 32


def cores() -> int:
    """The number of threads of this process that can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkUnit(Protocol):
    """A unit of work: a task, or a file to read."""

    @property
    def size_bytes(self) -> int:
        """The amount of work, in bytes of input."""


class Worker:
    """The resources of one task at a time: the store, staging for new files, and a share of memory.

    Args:
        store: The store of the dataset.
        staging: The staging of new files.
        memory: The bytes that the task may use for data; less if the address space of the process is limited.
        threads: The number of threads that the task may keep busy; one if the address space is limited.
        any_thread: Whether libraries may use all threads of their own thread pools.
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
        #: Shared by the tasks of one operation, for example for an index that several of them use.
        self.cache: dict[object, Any] = {}
        #: Called with each file after all of its rows were read.
        self.file_read: Callable[[WorkUnit], None] | None = None
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
        """A worker with the share of each of several threads that split the work of this one."""
        return Worker(
            self.store,
            self.staging,
            self._memory // threads,
            threads=self.threads // threads,
            any_thread=self.any_thread,
            cancelled=self._cancelled,
        )

    def share_for(self, store: Store, staging: Staging, share: int) -> Worker:
        """A worker with a share (1/n) of the memory, for files that are staged elsewhere."""
        return Worker(store, staging, self._memory // share, cancelled=self._cancelled)

    @property
    def use_threads(self) -> bool:
        """Whether the task may use more than one thread."""
        return self.threads > 1

    @property
    def widths(self) -> dict[tuple[str, ...], float]:
        """Row widths by column names, as measured by the tasks of the operation."""
        found: dict[tuple[str, ...], float] = self.cache.setdefault("widths", {})
        return found

    def new_files(self, prefix: str, directory: str) -> Callable[[], StagedFile]:
        """A function that returns the paths of the next new file of a directory."""
        names = unique_names(prefix)
        return lambda: self.staging.new_file(directory, next(names))

    def scratch_directory(self) -> str:
        """A local directory for spill files; in staging if that is local, so that cleanup removes it too."""
        if self._scratch is None:
            local = self.staging.local
            self._scratch = tempfile.TemporaryDirectory(
                prefix="parketto-", dir=local if local is not None and os.path.isdir(local) else None
            )
        return self._scratch.name

    def check_cancelled(self) -> None:
        """Raise `OperationCancelled` if the operation was cancelled."""
        if self._cancelled is not None and self._cancelled.is_set():
            raise OperationCancelled("the operation was cancelled; nothing was changed")

    def until_cancelled(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, until the operation is cancelled."""
        for batch in batches:
            self.check_cancelled()
            yield batch


Result_co = TypeVar("Result_co", covariant=True)


class Task(WorkUnit, Protocol[Result_co]):
    """Work on some files that needs no other task's result. The task and its result are picklable."""

    def run(self, worker: Worker) -> Result_co:
        """Run the task. It may run again after a failure: what a failed attempt staged is never published."""


AnyTask = Task[Any]
