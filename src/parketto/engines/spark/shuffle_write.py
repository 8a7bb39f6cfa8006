"""Shuffle write: distributes rows to their partitions as blocks of Arrow rows.

A task reads files, splits their rows by partition, and serializes each piece as blocks of bytes. Spark shuffles
the blocks by partition, splits partitions that are too large for one task, and never deserializes a block. So
types that Spark lacks need no special handling, and no row is converted to a JVM row and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from parketto.engines.spark.arrow_blocks import blocks, unblocked
from parketto.engines.spark.frames import positions_frame, shuffle_by
from parketto.engines.spark.shipping import PickledFunction
from parketto.engines.spark.tasks import StageProgress, raising_typed, results, task_attempt
from parketto.parquet.output import Output, Written
from parketto.parquet.partitions import pieces_by_folder
from parketto.parquet.row_source import FileRows
from parketto.runtime.batches import runs
from parketto.runtime.staging import Staging
from parketto.runtime.task import Worker
from parketto.storage.store import Store
from parketto.tasks.write_folder import write_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BLOCK_SCHEMA = "folder string, place long, packet binary"


def shuffle_write(
    spark: SparkSession,
    rows: FileRows,
    output: Output,
    store: Store,
    staging: Staging,
    memory: int,
    what: str,
    progress: StageProgress | None = None,
) -> Written:
    """Write the rows of files into the folders of their partitions."""
    blocks = positions_frame(spark, rows).mapInArrow(
        PickledFunction(_SplitRows(rows, output.partition_by, memory)), _BLOCK_SCHEMA
    )
    shuffled = shuffle_by(spark, blocks, "folder").sortWithinPartitions("folder", "place")
    writer = _WriteBlocks(store, staging, memory, output)
    written: list[Written] = results(spark, shuffled, writer, what, progress)
    return Written.total(written)


@dataclass(frozen=True)
class _SplitRows:
    """Reads files and serializes their rows as blocks by partition."""

    rows: FileRows
    partition_by: tuple[str, ...]
    memory: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with raising_typed(), Worker(self.rows.store, Staging(""), self.memory) as worker:
            for position in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
                file = replace(self.rows, files=(self.rows.files[position],))
                place = position << 40
                for run in runs(file.read(worker), worker.run_bytes):
                    for folder, piece in pieces_by_folder(run, self.partition_by):
                        for packet in blocks(piece):
                            yield pa.record_batch({"folder": [folder], "place": [place], "packet": [packet]})
                            place += 1


@dataclass(frozen=True)
class _WriteBlocks:
    """Writes blocks that are sorted by partition."""

    store: Store
    staging: Staging
    memory: int
    output: Output

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Written]:
        staging = replace(self.staging, attempt=task_attempt())
        blocks: Iterator[tuple[str, Any]] = (
            (folder.as_py(), packet)
            for batch in batches
            for folder, packet in zip(batch.column("folder"), batch.column("packet"), strict=True)
        )
        folders = (
            (folder, unblocked(packet for _, packet in found))
            for folder, found in groupby(blocks, key=lambda item: item[0])
        )
        output, checks = replace(self.output, checks=None), self.output.checks
        with Worker(self.store, staging, self.memory) as worker:
            if checks is None:
                yield from (write_folder(rows, output, folder, worker) for folder, rows in folders)
                return
            with checks.checking(worker) as check:
                for folder, rows in folders:
                    yield write_folder(check.passed(rows), output, folder, worker)
            yield Written(violations=check.found)
