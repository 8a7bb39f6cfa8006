"""Reads the rows that are added to a dataset, in micro-batches; an offset is the number of a commit.

Spark keeps one process per query that finds offsets and plans. Tasks read in others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from parketto.datasource.options import STREAM_READ, SourceOptions
from parketto.datasource.reader import read_part
from parketto.engines.spark.shipping import dumps
from parketto.engines.spark.types import stored_schema
from parketto.operations.added_files import AddedFiles, Offset, check_on_change
from parketto.operations.added_rows import added_scans, schema_template
from parketto.operations.context import DatasetContext
from parketto.operations.read import RowQuery
from parketto.operations.scan_parts import scan_parts
from parketto.parquet.file_info import FileInfo

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before Spark 4.2, which passes no limits
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Delivers every row that is added to a dataset once, whichever program adds it.

    The first micro-batch has all rows that exist, later ones those that were added since. Compactions and other
    operations that only move rows deliver nothing. The schema is that of the dataset when the stream is started:
    columns that are added later are ignored, and files without a column have NULL.

    Options, beside `where` and `columns`, which are those of batches:

    - `starting_commit`: `earliest` for all rows (the default), `latest` for rows that are added later, or the
      number of the first commit to deliver.
    - `on_change`: what to do with commits that change or remove rows. `fail` stops the stream with an error (the
      default), `skip` delivers nothing of them, `redeliver` delivers all rows of the files that they wrote.
    - `max_commits_per_batch`: the largest number of commits with new rows per micro-batch; by default all.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions(options, STREAM_READ, "reading streams")
        self._schema = schema
        self._on_change = check_on_change(self._options.get("on_change", "fail"))
        self._to_target = False
        self._target: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need the schema only.
        return {"_options": self._options, "_schema": self._schema}

    @cached_property
    def _dataset(self) -> DatasetContext:
        return self._options.dataset()._context

    @cached_property
    def _added(self) -> AddedFiles:
        return AddedFiles(self._dataset, self._on_change)

    @cached_property
    def _template(self) -> FileInfo:
        return schema_template(self._dataset, stored_schema(self._schema))

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """The offset of a new stream."""
        return _as_dict(self._added.first(self._options.get("starting_commit", "earliest")))

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch.

        Before Spark 4.2 there are no arguments: then a micro-batch has all that there is.
        """
        begin = Offset(**start) if start is not None else Offset()
        if self._target is None:
            latest = self._added.latest(begin)
            if self._to_target:
                self._target = latest
        else:
            latest = self._target
        if start is None:
            return _as_dict(latest)
        limited = limit is not None and not isinstance(limit, ReadAllAvailable)
        most = self._options.get("max_commits_per_batch") if limited else None
        return _as_dict(self._added.next(begin, latest, most))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Whether micro-batches are limited. Spark has no limit by commits, and passes this one back as it is."""
        most = self._options.get("max_commits_per_batch")
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Deliver only what exists when the stream is started."""
        self._to_target = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The files of each task."""
        entries = self._added.between(Offset(**start), Offset(**end))
        query = RowQuery(self._schema.names, self._options.get("where"))
        scans = added_scans(self._dataset, entries, query, self._template)
        return [InputPartition(dumps(part)) for scan in scans for part in scan_parts(scan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return read_part(partition.value, self._schema)


def _as_dict(offset: Offset) -> dict[str, Any]:
    return {"commit": offset.commit, **({"id": offset.id} if offset.id else {})}
