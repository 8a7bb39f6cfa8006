"""A merge whose source is too large to be at hand everywhere: Spark joins the keys, and deals out what changes.

The source goes through the join as a whole, the target only with its keys. The join says for each source row in
which row of which file its key is; rows of one key meet, so the first of them can be told from its duplicates.
What changes in a file is then brought to the task that rewrites that file, in the order of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from parketto.engines.spark.carriers import travel_name, unpack
from parketto.engines.spark.frames import RESULT_SCHEMA, WriteRows, read_frame, write_frame
from parketto.engines.spark.shipping import Shipped, ship, unship
from parketto.engines.spark.tasks import collect, raising_typed, task_attempt
from parketto.kernels.carrier import carrier_schema, recast
from parketto.kernels.keys import may_share_key
from parketto.kernels.merge import refuse_null_keys
from parketto.kernels.merge_source import check_nulls, prepared_schema
from parketto.kernels.merge_target import MergeOutcome, MergeTarget
from parketto.kernels.partitions import canonical_folder, folders
from parketto.kernels.reader import LogicalReader
from parketto.kernels.rewrite import file_writer
from parketto.kernels.rows import FileRows
from parketto.kernels.work import Staging, Worker
from parketto.kernels.write import Written
from parketto.plan.merge import duplicate_keys
from parketto.storage.bounds import bounds
from parketto.storage.footers import FileInfo
from parketto.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from parketto.engines.base import Context

_EDIT_BYTES = 64 * 1024 * 1024


class LargeMerge:
    """One merge through Spark's join."""

    def __init__(
        self, spark: SparkSession, source: FileRows, target: MergeTarget, context: Context, memory: int
    ) -> None:
        self._spark, self._target, self._context, self._memory = spark, target, context, memory
        self._schema = prepared_schema(target.schema, target.form)
        # Every reading of the source gives it in the target's columns, order and types.
        self._source = source
        self._keys = [travel_name(self._schema.get_field_index(name)) for name in target.rules.keys]
        self._payload = [travel_name(at) for at in range(len(self._schema.names))]
        self._partitioned = bool(target.form.partition_by)
        found = {name: self._source_bounds(name) for name in target.rules.keys}
        self._ranges = {name: pair for name, pair in found.items() if pair is not None}

    def run(self) -> MergeOutcome:
        """Join once, then rewrite the files with matches and write what is new."""
        source = self._distinct(self._source_frame())
        joined = self._joined(source).persist()
        try:
            edited = self._rewrite(joined) if self._target.rules.updates else {}
            added, (inserted, moved) = self._add(joined)
        finally:
            joined.unpersist()
        return self._outcome(edited, added, inserted, moved)

    def _source_frame(self) -> DataFrame:
        source = self._source
        fields = [pa.field("seq", pa.int64()), pa.field("folder", pa.string())]
        rows = FileRows(self._schema, source.store, source.files, source.form)
        added = _SourceColumns(self._target.schema, self._target.rules.keys, self._target.form.partition_by)
        return read_frame(self._spark, rows, self._memory, added=added, added_fields=fields, as_read=source.schema)

    def _distinct(self, source: DataFrame) -> DataFrame:
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812 - the customary name

        rules = self._target.rules
        if not rules.deduplicates:
            twice = source.groupBy(*self._keys).agg(F.count("*").alias("n")).where("n > 1")
            found = collect(
                self._spark,
                twice.agg(F.count("*").alias("keys"), *(F.first(key).alias(key) for key in self._keys)),
                "parketto merge: keys of the source",
            )[0]
            if found["keys"]:
                example = dict(zip(rules.keys, (found[key] for key in self._keys), strict=True))
                raise duplicate_keys(rules.strategy, rules.keys, example, found["keys"])
            return source
        order: list[Column] = [
            F.col(travel_name(self._schema.get_field_index(name))).desc_nulls_last() for name in rules.order_by
        ]
        newest = Window.partitionBy(*self._keys).orderBy(*order, F.col("seq").desc())
        return source.withColumn("rank", F.row_number().over(newest)).where("rank = 1").drop("rank")

    def _joined(self, source: DataFrame) -> DataFrame:
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812

        source = source.drop("seq")
        target = self._target_keys()
        if target is None:
            nothing = {"file": "int", "row": "long", "at_home": "boolean", "place": "int"}
            return source.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in nothing.items()))
        pairs = [F.col(f"s.{key}") == F.col(f"t.{key}") for key in self._keys]
        joined = (
            source.alias("s")
            .join(target.alias("t"), pairs, "left")
            .select("s.*", "t.file", "t.row", "t.here")
            .withColumn("at_home", F.col("here") == F.col("folder") if self._partitioned else F.lit(True))
        )
        first = Window.partitionBy(*self._keys).orderBy(F.col("at_home").desc_nulls_last(), "file", "row")
        return joined.withColumn("place", F.row_number().over(first))

    def _target_keys(self) -> DataFrame | None:
        target = self._target
        files = [file for file in target.files if may_share_key(file, target.rules.keys, self._ranges)]
        if not files:
            return None
        texts = replace(target.form, path_only={name: pa.string() for name in target.form.path_only})
        rows = FileRows(self._schema, self._context.store, target.files, texts)
        fields = [pa.field("file", pa.int32()), pa.field("row", pa.int64()), pa.field("here", pa.string())]
        wanted = {file.path for file in files}
        frame = read_frame(
            self._spark,
            rows,
            self._memory,
            columns=target.rules.keys,
            added=_TargetColumns(target),
            added_fields=fields,
            only=[position for position, file in enumerate(target.files) if file.path in wanted],
        )
        return frame.toDF(*self._keys, "file", "row", "here")

    def _source_bounds(self, name: str) -> tuple[pa.Scalar, pa.Scalar] | None:
        found = [bounds(file, name) for file in self._source.files if file.num_rows]
        pairs = [pair for pair in found if pair is not None]
        if not pairs or len(pairs) < len(found):
            return None
        lowest = min((low for low, _ in pairs), key=lambda value: value.as_py())
        return lowest, max((high for _, high in pairs), key=lambda value: value.as_py())

    def _rewrite(self, joined: DataFrame) -> dict[int, _Edited]:
        from pyspark.sql import functions as F  # noqa: N812

        home = (F.col("place") == 1) & F.col("at_home")
        edits = joined.where("file is not null").select(
            "file", "row", home.alias("home"), *(F.when(home, F.col(name)).alias(name) for name in self._payload)
        )
        parts = max(1, min(len(self._target.files), sum(f.size_bytes for f in self._target.files) // _EDIT_BYTES))
        dealt = edits.repartition(int(parts), "file").sortWithinPartitions("file", "row")
        writer = _EditFiles(self._target, self._context.store, self._context.staging, self._memory, self._schema)
        found = collect(self._spark, dealt.mapInArrow(Shipped(writer), RESULT_SCHEMA), "parketto merge: rewrite")
        results: list[_Edited] = [unship(row["result"]) for row in found]
        return {edited.position: edited for edited in results}

    def _add(self, joined: DataFrame) -> tuple[Written, list[int]]:
        from pyspark.sql import functions as F  # noqa: N812

        rules = self._target.rules
        new = F.col("file").isNull()
        moved = F.col("file").isNotNull() & (F.col("place") == 1) & ~F.col("at_home")
        wanted = (new & F.lit(rules.inserts)) | (moved & F.lit(rules.updates))
        rows = joined.where(wanted).select(*self._payload, new.alias("new"), moved.alias("moved"))
        output = replace(self._target.additions, row_schema=self._schema)
        writer = WriteRows(self._context.store, self._context.staging, self._memory, output, flags=2)
        return write_frame(self._spark, rows, writer, "parketto merge: add")

    def _outcome(self, edited: dict[int, _Edited], added: Written, inserted: int, moved: int) -> MergeOutcome:
        target = self._target
        files = dict(enumerate(target.files))
        matched = sum(edit.matched for edit in edited.values())
        updated = sum(edit.replaced for edit in edited.values()) + moved
        removed = [files[position] for position, edit in edited.items() if not edit.written.staged]
        gone = 0
        if target.rules.removes_missing:
            removed += [file for position, file in files.items() if position not in edited and file.num_rows]
            gone = target.num_rows - matched
        return MergeOutcome(
            rewritten=tuple(
                (files[position], edit.written) for position, edit in sorted(edited.items()) if edit.written.staged
            ),
            removed=tuple(removed),
            added=added,
            inserted=inserted,
            updated=updated,
            deleted=matched - updated + gone,
            ranges=self._ranges,
        )


@dataclass(frozen=True)
class _SourceColumns:
    """Checks rows of the source, and adds their place in it and the folder that they belong to."""

    target: pa.Schema
    keys: tuple[str, ...]
    partition_by: tuple[str, ...]

    def __call__(self, _file: FileInfo, position: int, row: int, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        check_nulls(batch, self.target, self.keys)
        place = (position << 40) + row + np.arange(batch.num_rows)
        found = (
            folders(pa.Table.from_batches([batch]), self.partition_by)
            if self.partition_by
            else pa.nulls(batch.num_rows, pa.string())
        )
        return {"seq": pa.array(place), "folder": found}


@dataclass(frozen=True)
class _TargetColumns:
    """Checks keys of the target, and adds where they are."""

    target: MergeTarget

    def __call__(self, file: FileInfo, position: int, row: int, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        refuse_null_keys(batch, self.target.rules.keys)
        folder = canonical_folder(file, self.target.form) if self.target.form.partition_by else None
        return {
            "file": pa.repeat(pa.scalar(position, pa.int32()), batch.num_rows),
            "row": pa.array(row + np.arange(batch.num_rows)),
            "here": pa.repeat(pa.scalar(folder, pa.string()), batch.num_rows),
        }


@dataclass(frozen=True)
class _Edited:
    """What became of one file."""

    position: int
    written: Written
    matched: int
    replaced: int


@dataclass(frozen=True)
class _EditFiles:
    """Rewrites files inside of Spark tasks: what changes comes in the order of files and rows."""

    target: MergeTarget
    store: Store
    staging: Staging
    memory: int
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        staging = replace(self.staging, attempt=task_attempt())
        pieces = ((int(piece.column("file")[0].as_py()), piece) for batch in batches for piece in _by_file(batch))
        with raising_typed(), Worker(self.store, staging, self.memory) as worker:
            for position, found in groupby(pieces, key=lambda item: item[0]):
                edited = self._edit(position, (piece for _, piece in found), worker)
                yield pa.record_batch({"result": [ship(edited)]})

    def _edit(self, position: int, pieces: Iterator[pa.RecordBatch], worker: Worker) -> _Edited:
        file = self.target.files[position]
        assert file.schema is not None, "files of a target come from a snapshot"
        schema = carrier_schema(file.schema).remove_metadata()
        reader = LogicalReader(self.store, schema, worker.batch_bytes, self.target.form)
        edits = _Edits(pieces, self.schema, schema)
        start = rows = 0
        writer = file_writer(file, "merge", self.target.compression, worker)
        for batch in reader.read(file):
            kept = edits.apply(start, batch, keep_missing=not self.target.rules.removes_missing)
            start += batch.num_rows
            rows += kept.num_rows
            for part in kept.to_batches():
                writer.write(recast(part, schema))
        if rows:
            writer.finish()
        return _Edited(position, Written(tuple(writer.staged), rows), edits.matched, edits.replaced)


class _Edits:
    """What changes in one file, taken in as its rows go by."""

    def __init__(self, pieces: Iterator[pa.RecordBatch], travelled: pa.Schema, schema: pa.Schema) -> None:
        self._pieces, self._travelled, self._schema = pieces, travelled, schema
        self._waiting: pa.Table | None = None
        self.matched = self.replaced = 0

    def apply(self, start: int, batch: pa.RecordBatch, *, keep_missing: bool) -> pa.Table:
        """A batch of the file, whose first row has the number `start`, with its changes."""
        numbers, homes, rows = self._up_to(start + batch.num_rows)
        at = numbers - start
        self.matched += len(at)
        self.replaced += int(homes.sum())
        take = np.arange(batch.num_rows)
        take[at[homes]] = batch.num_rows + np.flatnonzero(homes)
        keep = np.full(batch.num_rows, keep_missing)
        keep[at] = homes
        nullable = pa.schema(pa.field(item.name, item.type) for item in self._schema)
        table = pa.concat_tables([pa.Table.from_batches([batch]).cast(nullable), rows.cast(nullable)])
        return table.take(pa.array(take[keep]))

    def _up_to(self, stop: int) -> tuple[np.ndarray, np.ndarray, pa.Table]:
        parts = [] if self._waiting is None else [self._waiting]
        while not parts or parts[-1].column("row")[-1].as_py() < stop:
            piece = next(self._pieces, None)
            if piece is None:
                break
            if piece.num_rows:
                parts.append(pa.Table.from_batches([piece]))
        if not parts:
            empty = pa.schema(pa.field(item.name, item.type) for item in self._schema).empty_table()
            return np.empty(0, np.int64), np.empty(0, np.bool_), empty
        table = pa.concat_tables(parts)
        numbers = table.column("row").to_numpy()
        border = int(np.searchsorted(numbers, stop))
        self._waiting = table.slice(border) if border < len(numbers) else None
        ready = table.slice(0, border)
        return numbers[:border], ready.column("home").to_numpy(), self._rows(ready)

    def _rows(self, ready: pa.Table) -> pa.Table:
        payload = ready.select([travel_name(at) for at in range(len(self._travelled.names))])
        parts = [unpack(part, self._travelled) for part in payload.to_batches()]
        return pa.Table.from_batches(parts, self._travelled).select(self._schema.names)


def _by_file(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    numbers = batch.column("file").to_numpy()
    borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    for start, stop in pairwise(borders):
        if stop > start:
            yield batch.slice(start, stop - start)
