"""Writers of batches and micro-batches: tasks stage files, and the commit publishes them.

Spark creates a writer in a process that plans, pickles it for the tasks, and commits in yet another process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from parketto.arguments import DEFAULT_TARGET_MB
from parketto.datasource.absorb import absorb
from parketto.datasource.options import STREAM, WRITE, SourceOptions
from parketto.engines.spark.shipping import dumps, loads
from parketto.engines.spark.tasks import task_attempt, task_cpus
from parketto.engines.spark.types import stored_schema
from parketto.errors import InvalidArgument
from parketto.operations.staged_write import StagedPart, StagedWrite
from parketto.parquet.row_source import checked_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Arguments of Dataset.write.
_WRITE_ARGUMENTS = [name for name in WRITE if name != "overwrite_partitions"]


@dataclass
class Message(WriterCommitMessage):
    """What a task has staged, and the write that it belongs to."""

    part: StagedPart
    #: The pickled write: the process that commits a micro-batch has not planned it.
    write: bytes


def begin(options: SourceOptions, schema: StructType, application: str = "", *, overwrite: bool) -> StagedWrite:
    """Begin a write of rows with a Spark schema."""
    partitions = options.get("overwrite_partitions", False)
    if partitions and (not overwrite or options.get("replace_where") is not None):
        raise InvalidArgument(
            "overwrite_partitions needs .mode('overwrite') and excludes replace_where; nothing was changed"
        )
    mode: Any = "overwrite_partitions" if partitions else "overwrite" if overwrite else "append"
    arguments = options.among(_WRITE_ARGUMENTS)
    rows = checked_columns(stored_schema(schema))
    return options.dataset().begin_write(rows, mode, application=application, **arguments)


def stage(write: bytes, batches: Iterator[pa.RecordBatch]) -> Message:
    """Stage the rows of one task attempt."""
    staged: StagedWrite = loads(write)
    return Message(staged.stage(batches, attempt=task_attempt(), threads=task_cpus()), write)


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of one DataFrame in one commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        found = SourceOptions(options, {**WRITE, "commit_id": str}, "batch writes")
        self._commit_id = found.get("commit_id")
        self._write = dumps(begin(found, schema, overwrite=overwrite))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Stage the rows of a task."""
        return stage(self._write, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged."""
        loads(self._write).commit([each.part for each in _ours(messages)], commit_id=self._commit_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        """Remove what the tasks have staged."""
        loads(self._write).abort()


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch in one commit, exactly once.

    Spark creates a writer in the process that plans a micro-batch, which pickles it for the tasks, and another one
    in the process that commits. Only the first one opens a staging folder, therefore: when it is pickled.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = SourceOptions(options, {**WRITE, **STREAM}, "streams")
        self._schema, self._overwrite = schema, overwrite
        self._write: bytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._write is None:
            found = begin(self._options, self._schema, self._application, overwrite=self._overwrite)
            self._write = dumps(found)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Stage the rows of a task."""
        assert self._write is not None, "the writer was pickled for this task"
        return stage(self._write, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks have staged, unless the log shows that this micro-batch is committed."""
        found = _ours(messages)
        if not found:
            return  # a micro-batch without tasks has no rows
        application = self._application
        write: StagedWrite = loads(found[0].write)
        stats = write.commit(
            [each.part for each in found],
            commit_id=f"{application}:{batchId}",
            stream={
                "app_id": application,
                "batch_id": batchId,
                "checkpoint": (checkpoint := self._options.checkpoint),
                "source_offsets": None if checkpoint is None else source_offsets(checkpoint, batchId),
            },
        )
        if self._options.get("absorb", True) and stats["files_written"]:
            absorb(self._options.dataset(), write.folders(each.part for each in found), self._target_mb)

    @property
    def _target_mb(self) -> float:
        return float(self._options.get("target_mb_per_file", DEFAULT_TARGET_MB))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove what the tasks have staged. If none has succeeded, the next micro-batch does it."""
        for each in _ours(messages)[:1]:
            loads(each.write).abort()

    @property
    def _application(self) -> str:
        """The name of the stream in the log: the given one, or the id that Spark keeps in its checkpoint.

        The id survives restarts, and a checkpoint that begins anew has another one. The path of the checkpoint has
        not that property: micro-batches of a new stream would count as replayed ones.
        """
        if given := self._options.get("app_id"):
            return str(given)
        checkpoint = self._options.checkpoint
        if checkpoint is None:
            raise InvalidArgument("a stream needs .option('checkpointLocation', …), or .option('app_id', …)")
        return query_id(checkpoint) or checkpoint


def query_id(checkpoint: str) -> str | None:
    """The id of a streaming query, from its checkpoint; None if this process cannot read it."""
    try:
        return str(json.loads(_checkpoint_file(checkpoint, "metadata"))["id"])
    except (OSError, ImportError, ValueError, KeyError):
        return None


def source_offsets(checkpoint: str, batch: int) -> str | None:
    """A hash of the offsets up to which a micro-batch reads its sources; None if this process cannot read them.

    Behind a version and metadata of Spark's, the file has a line per source.
    """
    try:
        lines = _checkpoint_file(checkpoint, f"offsets/{batch}").splitlines()[2:]
    except (OSError, ImportError, ValueError):
        return None
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:16]


def _checkpoint_file(checkpoint: str, name: str) -> bytes:
    location = checkpoint.replace("s3a://", "s3://", 1)
    with fsspec.open(f"{location.rstrip('/')}/{name}", "rb") as file:
        return bytes(file.read())


def _ours(messages: Sequence[WriterCommitMessage | None]) -> list[Message]:
    return [each for each in messages if isinstance(each, Message)]
