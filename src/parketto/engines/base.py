"""What an engine is given and what it gives back. Every engine folder implements this one protocol."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Protocol

import pyarrow as pa

from parketto.errors import ParkettoError
from parketto.plan.rewrite import FileGroup, RewritePlan
from parketto.storage.store import Store


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A new file: where an engine writes it, and where the commit will put it."""

    path: str
    destination: str


class Staging(Protocol):
    """The place where an engine may write."""

    def new_file(self, directory: str, name: str) -> StagedFile:
        """Where to write a file of that name (see `unique_names`), bound for a directory of the dataset."""

    def scratch_directory(self) -> str:
        """A local folder for spilled data; it is gone when the operation ends."""


def unique_names(prefix: str) -> Iterator[str]:
    """Names that nobody else will ever use, which sort in the order they are given out."""
    token = uuid.uuid4().hex
    return (f"{prefix}-{token}-{number:05d}.parquet" for number in count())


class Progress(NamedTuple):
    """How far an operation is. `done` of `total` groups of files; bytes are those of the input."""

    operation: str
    done: int
    total: int
    done_bytes: int
    total_bytes: int


ProgressCallback = Callable[[Progress], None]


class Cancelled(ParkettoError):
    """The operation was cancelled while an engine was at work; nothing was changed."""


@dataclass
class Context:
    """What an engine works with: the store, its staging, and somebody who wants to know how far it is."""

    store: Store
    staging: Staging
    progress: ProgressCallback | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def check_cancelled(self) -> None:
        """Stop here if the operation was cancelled; engines call it between batches."""
        if self.cancelled.is_set():
            raise Cancelled("cancelled")


@dataclass(frozen=True)
class GroupResult:
    """The files that a group became."""

    group: FileGroup
    staged: tuple[StagedFile, ...]


@dataclass(frozen=True)
class WriteRequest:
    """Rows from outside that become new files: in a directory, or in one for each partition."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    directory: str
    compression: str
    max_rows: int | None = None
    partition_by: tuple[str, ...] = ()


class Engine(Protocol):
    """Carries out plans. It writes into staging and nowhere else."""

    name: str

    def rewrite(self, plan: RewritePlan, context: Context) -> Sequence[GroupResult]:
        """Write the new files of every group of the plan."""

    def write(self, request: WriteRequest, context: Context) -> Sequence[StagedFile]:
        """Write rows as new files; at least one, even without rows."""
