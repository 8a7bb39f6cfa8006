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

from parketto.engines.spark.frames import RESULT_SCHEMA, WriteRows, read_frame, write_frame
from parketto.engines.spark.shipping import Shipped, ship, unship
from parketto.engines.spark.tasks import collect, raising_typed, stage_progress, task_attempt
from parketto.kernels.joined import (
    SOURCE_FIELDS,
    TARGET_FIELDS,
    Edited,
    FileCounts,
    SourceColumns,
    TargetColumns,
    edit_file,
    joined_outcome,
    planned_outcome,
)
from parketto.kernels.keys import may_share_key
from parketto.kernels.merge_source import prepared_schema
from parketto.kernels.merge_target import MergeOutcome, MergeTarget
from parketto.kernels.rows import FileRows
from parketto.kernels.travel import travel_name
from parketto.kernels.work import Staging, Worker
from parketto.kernels.write import Written
from parketto.plan.merge import duplicate_keys
from parketto.storage.bounds import bounds
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
        self._compares = target.change.moves != "never"
        self._limited = target.change.updated is not None
        self._scanned = 0
        self._progress = stage_progress(context.counter())
        found = {name: self._source_bounds(name) for name in target.rules.keys}
        self._ranges = {name: pair for name, pair in found.items() if pair is not None}

    def run(self) -> MergeOutcome:
        """Join once, then rewrite the files with matches and write what is new."""
        source = self._distinct(self._source_frame())
        joined = self._joined(source).persist()
        try:
            if self._target.dry_run:
                return self._planned(joined)
            if self._target.lacks_values:
                self._target.refuse_unfilled(joined.where("file is null").count() * self._target.rules.inserts)
            edited = self._rewrite(joined) if self._target.rules.updates else {}
            added, (inserted, moved) = self._add(joined)
        finally:
            joined.unpersist()
        return joined_outcome(self._target, edited, added, inserted, moved, self._ranges, self._scanned)

    def _source_frame(self) -> DataFrame:
        source = self._source
        rows = FileRows(self._schema, source.store, source.files, source.form)
        added = SourceColumns(self._target)
        return read_frame(
            self._spark, rows, self._memory, added=added, added_fields=SOURCE_FIELDS, as_read=source.schema
        )

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
            .withColumn("at_home", F.col("here") == F.col("folder") if self._compares else F.lit(True))
        )
        first = Window.partitionBy(*self._keys).orderBy(F.col("at_home").desc_nulls_last(), "file", "row")
        return joined.withColumn("place", F.row_number().over(first))

    def _target_keys(self) -> DataFrame | None:
        target = self._target
        files = [file for file in target.files if may_share_key(file, target.rules.keys, self._ranges)]
        self._scanned = len(files)
        if not files:
            return None
        texts = replace(target.form, path_only={name: pa.string() for name in target.form.path_only})
        rows = FileRows(self._schema, self._context.store, target.files, texts)
        wanted = {file.path for file in files}
        frame = read_frame(
            self._spark,
            rows,
            self._memory,
            columns=target.rules.keys,
            added=TargetColumns(target),
            added_fields=TARGET_FIELDS,
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

    def _rewrite(self, joined: DataFrame) -> dict[int, Edited]:
        from pyspark.sql import functions as F  # noqa: N812

        first = F.col("place") == 1
        home, leaving = first & F.col("at_home"), first & ~F.col("at_home") & F.lit(self._limited)
        values = (F.when(home | leaving, F.col(name)).alias(name) for name in self._payload)
        edits = joined.where("file is not null").select(
            "file", "row", home.alias("home"), leaving.alias("leaving"), *values
        )
        parts = max(1, min(len(self._target.files), sum(f.size_bytes for f in self._target.files) // _EDIT_BYTES))
        dealt = edits.repartition(int(parts), "file").sortWithinPartitions("file", "row")
        writer = _EditFiles(self._target, self._context.store, self._context.staging, self._memory, self._schema)
        rewritten = dealt.mapInArrow(Shipped(writer), RESULT_SCHEMA)
        found = collect(self._spark, rewritten, "parketto merge: rewrite", self._progress)
        results: list[Edited] = [unship(row["result"]) for row in found]
        return {edited.position: edited for edited in results}

    def _planned(self, joined: DataFrame) -> MergeOutcome:
        """Only count what would happen."""
        from pyspark.sql import functions as F  # noqa: N812

        rules = self._target.rules
        first, found = F.col("place") == 1, F.col("file").isNotNull()
        home = (first & F.col("at_home")).cast("long")
        counts: dict[int, FileCounts] = {}
        if rules.updates:
            by_file = joined.where(found).groupBy("file")
            rows = by_file.agg(
                F.count("*").alias("n"), F.sum(first.cast("long")).alias("f"), F.sum(home).alias("h")
            )
            for row in collect(self._spark, rows, "parketto merge: count"):
                counts[row["file"]] = FileCounts(row["n"], row["f"], row["h"])
        new = ~found & F.lit(rules.inserts)
        moved = found & first & ~F.col("at_home") & F.lit(rules.updates)
        folder = F.coalesce("folder", F.lit(""))
        total = collect(
            self._spark,
            joined.agg(F.count_if(new).alias("new"), F.collect_set(F.when(new | moved, folder)).alias("folders")),
            "parketto merge: count",
        )[0]
        self._target.refuse_unfilled(total["new"])
        return planned_outcome(self._target, counts, total["new"], total["folders"], self._ranges, self._scanned)

    def _add(self, joined: DataFrame) -> tuple[Written, list[int]]:
        from pyspark.sql import functions as F  # noqa: N812

        rules = self._target.rules
        new = F.col("file").isNull()
        moved = F.col("file").isNotNull() & (F.col("place") == 1) & ~F.col("at_home")
        wanted = (new & F.lit(rules.inserts)) | (moved & F.lit(rules.updates and not self._limited))
        rows = joined.where(wanted).select(*self._payload, new.alias("new"), moved.alias("moved"))
        output = replace(self._target.additions, row_schema=self._schema)
        writer = WriteRows(self._context.store, self._context.staging, self._memory, output, flags=2)
        return write_frame(self._spark, rows, writer, "parketto merge: add", self._progress)


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
                changes = (piece for _, piece in found)
                edited = edit_file(position, changes, self.target, self.schema, worker)
                yield pa.record_batch({"result": [ship(edited)]})


def _by_file(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    numbers = batch.column("file").to_numpy()
    borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    for start, stop in pairwise(borders):
        if stop > start:
            yield batch.slice(start, stop - start)
