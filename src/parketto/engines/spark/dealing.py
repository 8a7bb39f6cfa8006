"""Dealing rows out to their partitions: Spark shuffles packets of Arrow rows, not rows.

A task that reads files cuts their rows by partition and packs each piece into one packet of bytes. Spark brings
the packets of a partition together, splits partitions that are too large for one task, and never looks inside. So
types that Spark does not have need no care, and no row is turned into a row of the JVM and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from parketto.engines.spark.frames import positions_frame, together
from parketto.engines.spark.packets import packets, unpacked
from parketto.engines.spark.shipping import Shipped
from parketto.engines.spark.tasks import StageProgress, raising_typed, results, task_attempt
from parketto.kernels.partitions import pieces_by_folder
from parketto.kernels.rows import FileRows
from parketto.kernels.sizes import runs
from parketto.kernels.work import Staging, Worker
from parketto.kernels.write import Output, Written, write_folder
from parketto.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKET_SCHEMA = "folder string, place long, packet binary"


def write_dealt(
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
    packets = positions_frame(spark, rows, range(len(rows.files))).mapInArrow(
        Shipped(_Deal(rows, output.partition_by, memory)), _PACKET_SCHEMA
    )
    dealt = together(spark, packets, "folder").sortWithinPartitions("folder", "place")
    writer = _WriteDealt(store, staging, memory, output)
    written: list[Written] = results(spark, dealt, writer, what, progress)
    return Written(
        tuple(staged for each in written for staged in each.staged), sum(each.num_rows for each in written)
    )


@dataclass(frozen=True)
class _Deal:
    """Reads files and packs their rows by partition."""

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
                        for packet in packets(piece):
                            yield pa.record_batch({"folder": [folder], "place": [place], "packet": [packet]})
                            place += 1


@dataclass(frozen=True)
class _WriteDealt:
    """Writes the packets of partitions, which come one partition after the other."""

    store: Store
    staging: Staging
    memory: int
    output: Output

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Written]:
        staging = replace(self.staging, attempt=task_attempt())
        packets: Iterator[tuple[str, Any]] = (
            (folder.as_py(), packet)
            for batch in batches
            for folder, packet in zip(batch.column("folder"), batch.column("packet"), strict=True)
        )
        with Worker(self.store, staging, self.memory) as worker:
            for folder, found in groupby(packets, key=lambda item: item[0]):
                yield write_folder(unpacked(packet for _, packet in found), self.output, folder, worker)
