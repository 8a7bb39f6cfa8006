"""Writes whose rows are staged by several processes: planned in one, staged in many, committed in one."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from parketto.arguments import MEGABYTE
from parketto.commit.lease import Lease
from parketto.commit.transaction import Transaction
from parketto.engines.base import Context
from parketto.engines.pyarrow.engine import PyArrowEngine
from parketto.errors import CommitConflict, CommitFailed, CommitStateUnknown, InvalidArgument
from parketto.expressions.derived import DerivedColumns
from parketto.expressions.dispatch import predicate
from parketto.operations.context import DatasetContext
from parketto.operations.expectations import leased
from parketto.operations.overwrite import check_partitioned
from parketto.operations.replace import replace_matching
from parketto.operations.write import write
from parketto.operations.write_output import WriteRequest, append_output, overwrite_output
from parketto.parquet.file_info import describe
from parketto.parquet.output import Output, Written
from parketto.parquet.row_source import ArrowRows, RowSource
from parketto.results import WriteStats
from parketto.runtime.pickling import dumps, loads
from parketto.runtime.staging import Staging
from parketto.runtime.task import Worker
from parketto.storage.listing import refuse_foreign, relative, retry_on_vanished_files
from parketto.storage.store import FileEntry
from parketto.tasks.write import write_rows

_TASK_BYTES = 256 * MEGABYTE  # for the data of one task, as on the engines


@dataclass(frozen=True)
class StagedPart:
    """The files that one process has staged. It can be pickled."""

    written: Written

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.written.num_rows


@dataclass(frozen=True, repr=False)
class StagedWrite:
    """A write in several processes, from `Dataset.begin_write`. It can be pickled.

    Call `stage` in any process, any number of times; then `commit` in one process with the parts that count, or
    `abort`. Parts that are not committed, such as those of failed tasks, are removed.
    """

    _dataset: DatasetContext
    _lease: Lease
    _schema: pa.Schema
    _derived: DerivedColumns | None
    #: As the caller has specified it, and as the existing files require it.
    _given: Output
    _output: Output
    _request: WriteRequest

    @classmethod
    def begin(
        cls,
        dataset: DatasetContext,
        schema: pa.Schema,
        derived: DerivedColumns | None,
        output: Output,
        request: WriteRequest,
        application: str = "",
    ) -> StagedWrite:
        """Check that the rows fit the dataset, and open a staging folder."""
        refuse_foreign(dataset.store, dataset.root)
        if request.commit_id is not None:
            raise InvalidArgument("commit_id belongs to the commit: pass it to `commit`")
        # The commit runs where no engine may be available. PyArrow always is.
        dataset = replace(dataset, engine=PyArrowEngine())

        if request.edits:
            predicate(request.replace_where, output.row_schema, dataset.clock())  # raises if it is invalid

        def planned() -> tuple[Output, list[FileEntry]]:
            existing = dataset.listed_if_any()
            if request.mode == "overwrite" and not request.edits:
                return overwrite_output(dataset, existing, output, request), existing
            like = append_output(dataset, existing, ArrowRows(output.row_schema, iter(())), output, request)
            if request.mode == "overwrite_partitions":
                check_partitioned(like, existing)
            return like, existing

        like, existing = retry_on_vanished_files(dataset.root, planned)
        bound = request.bound(ArrowRows(output.row_schema, ()), dataset.clock())
        lease = Lease.open(dataset.workspace, application)
        if bound is not None:
            bound = leased(bound, lease.id, application)
            request, like = replace(request, expect=bound.expect), replace(like, checks=bound.checks)
        self = cls(dataset, lease, schema, derived, output, like, request)
        if self._replaces_files:
            dataset.store.write(self._plan_path, json.dumps([[f.path, f.fingerprint] for f in existing]).encode())
        return self

    def __repr__(self) -> str:
        return f"StagedWrite({self._dataset.root!r}, mode={self._request.mode!r})"

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows to stage."""
        return self._schema

    def stage(self, batches: Iterable[pa.RecordBatch], *, attempt: str = "", threads: int = 1) -> StagedPart:
        """Write rows to staged files, in bounded memory.

        Args:
            batches: The rows, in the schema of the write, or with other encodings of the same values.
            attempt: A name that no other call uses. Two attempts at the same task never share a file.
            threads: How many threads to use.
        """
        store, lease = self._dataset.store, self._lease
        staging = Staging(lease.directory, store.local_path(lease.directory), attempt)
        with lease.kept_alive(store), Worker(store, staging, _TASK_BYTES, threads=threads) as worker:
            written = write_rows(self._rows(batches), self._output, worker, at_least_one=False, prefetch=False)
        return StagedPart(written)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = iter(batches)
        return rows if self._derived is None else self._derived(rows)

    def commit(
        self,
        parts: Iterable[StagedPart],
        *,
        commit_id: str | None = None,
        stream: Mapping[str, Any] | None = None,
    ) -> WriteStats:
        """Publish the staged files in one commit, and end the write. Other staged files are removed.

        Args:
            parts: The parts to publish.
            commit_id: As for `Dataset.write`: if the log contains it, nothing is published.
            stream: The stream and the micro-batch, for the log. The numbers of a stream's commit ids only grow: a
                number that is not larger than the last one counts as committed.

        Raises:
            CommitConflict: The dataset has changed in a way that the staged files do not fit. Nothing was changed.
        """
        written = Written.total(part.written for part in parts)
        try:
            self._check_staged(written)
            request = replace(self._request, commit_id=commit_id)
            operation = replace_matching if request.edits else write
            rows = ArrowRows(self._given.row_schema, iter(()))
            stats = operation(self._staged_dataset(written, stream), rows, self._given, request)
        except CommitStateUnknown:
            raise  # the process that settles the commit needs the staged files
        except BaseException:
            self.abort()
            raise
        self.abort()  # nothing is left, unless it was committed before
        return stats

    def _staged_dataset(self, written: Written, stream: Mapping[str, Any] | None) -> _StagedDataset:
        own = {name: getattr(self._dataset, name) for name in self._dataset.__dataclass_fields__}
        staged = {"engine": _StagedEngine(self._output, written), "lease": self._lease, "stream": stream}
        folders = {posixpath.dirname(file.destination) for file in written.staged}
        return _StagedDataset(
            **own | staged, planned=self._planned(), folders=None if self._request.mode == "overwrite" else folders
        )

    def folders(self, parts: Iterable[StagedPart]) -> set[str]:
        """The folders of the dataset that parts add files to, relative to it."""
        files = (file for part in parts for file in part.written.staged)
        return {posixpath.dirname(relative(file.destination, self._dataset.root)) for file in files}

    def abort(self) -> None:
        """Remove all staged files."""
        self._dataset.workspace.discard(self._lease.directory)
        place = None if self._request.expect is None else self._request.expect.quarantine
        if place is not None and place.lease is not None:
            place.workspace.discard(place.lease.directory)

    @property
    def _replaces_files(self) -> bool:
        return self._request.mode != "append" and not self._request.edits

    @property
    def _plan_path(self) -> str:
        return f"{self._lease.directory}/plan"

    def _planned(self) -> dict[str, str] | None:
        """The files that existed when the write began, if it replaces files."""
        if not self._replaces_files:
            return None
        return dict(json.loads(self._dataset.store.read(self._plan_path)))

    def _check_staged(self, written: Written) -> None:
        paths = [file.path for file in written.staged]
        missing = sorted(set(paths) - self._dataset.store.stat_many(paths).keys())
        if missing or (self._replaces_files and self._dataset.store.stat(self._plan_path) is None):
            raise CommitFailed(
                f"the staged files in {self._lease.directory!r} are gone: no process has worked on this write for "
                "15 minutes, or its application has begun another one. Nothing was changed; write the rows again"
            )

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        fields = [getattr(self, name) for name in self.__dataclass_fields__]
        return _restored, (dumps(fields),)


def _restored(content: bytes) -> StagedWrite:
    return StagedWrite(*loads(content))


class _StagedEngine(PyArrowEngine):
    """An engine whose rows are staged already."""

    def __init__(self, output: Output, written: Written) -> None:
        super().__init__()
        self._output, self._written = output, written

    def write(self, source: RowSource, output: Output, context: Context) -> Written:
        if not _same_files(output, self._output):
            raise CommitConflict(
                "another writer has changed the schema or the partitions of the dataset since this write began; "
                "nothing was changed, run it again"
            )
        if self._written.num_rows:
            return self._written
        empty = super().write(source, replace(output, checks=None), context)
        return replace(empty, violations=self._written.violations)


def _same_files(one: Output, other: Output) -> bool:
    # Formats that are taken from rows and from files describe the same files differently: empty ones are compared.
    ours, theirs = (describe(output.format.encoded(None)) for output in (one, other))
    return one.partition_by == other.partition_by and (ours.schema, ours.traits) == (theirs.schema, theirs.traits)


@dataclass(frozen=True)
class _StagedDataset(DatasetContext):
    """A dataset whose files are those that existed when a write began."""

    #: Their fingerprints by path; None: all files.
    planned: Mapping[str, str] | None = None
    #: The folders whose files the write may replace; None: all.
    folders: set[str] | None = None

    def existing(self, transaction: Transaction, *, loosely: bool = False) -> list[FileEntry]:
        found = super().existing(transaction, loosely=loosely)
        if self.planned is None:
            return found
        same = [entry for entry in found if self.planned.get(entry.path) == entry.fingerprint]
        for path in self.planned.keys() - {entry.path for entry in same}:
            if self.folders is None or posixpath.dirname(path) in self.folders:
                raise CommitConflict.over(path, gone=path not in {entry.path for entry in found})
        return same
