"""Repartition a dataset by other columns: all files are replaced in one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parketto.arguments import DEFAULT_CODEC, Thresholds
from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_written
from parketto.engines.base import Context, ProgressCallback
from parketto.operations.context import DatasetContext, entries
from parketto.operations.partition_form import PartitionForm, check_has_partitions, stored_schema
from parketto.parquet.clustering_metadata import without_record
from parketto.parquet.file_format import FileFormat
from parketto.parquet.geo_area import GEO_KEY, without_bbox
from parketto.parquet.output import Output
from parketto.parquet.row_source import FileRows
from parketto.planning.naming import Naming
from parketto.planning.rewrite import check_partition_columns, prevailing_codec
from parketto.results import WritePlan, WriteStats
from parketto.runtime.staging import Staging


def repartition(
    dataset: DatasetContext,
    partition_by: str | Sequence[str] | None,
    thresholds: Thresholds,
    compression: str | None,
    progress: ProgressCallback | None,
    partition_columns: PartitionForm | None = None,
) -> WriteStats:
    """Discover → plan → execute → verify → commit → report."""
    dataset.check_exists()

    def attempt(transaction: Transaction) -> WriteStats:
        files = dataset.snapshot_in(transaction).files
        source = FileRows.of(dataset.store, files)
        columns = _partition_columns(partition_by, source, partition_columns)
        codec = compression or prevailing_codec(files) or DEFAULT_CODEC
        output = same_schema_output(dataset.root, source, columns, codec, thresholds, partition_columns)
        with transaction.conflicts_over(entries(files)):
            written = dataset.engine.write(source, output, dataset.context(transaction, progress))
        new = verify_written(dataset.store, written.staged, source.num_rows, output.format)
        stats = WriteStats(
            rows_written=written.num_rows,
            files_written=len(new),
            bytes_written=sum(file.size_bytes for file in new),
            files_replaced=len(files),
        )
        transaction.commit(
            written.staged, entries(files), naming=Naming.of(None, None), follows=columns, statistics=stats
        )
        return stats

    arguments = {
        "partition_by": partition_by,
        "partition_columns": partition_columns,
        "compression": compression,
    }
    return dataset.run(dataset.request("repartition", arguments), attempt)


def plan_repartition(
    dataset: DatasetContext,
    partition_by: str | Sequence[str] | None,
    partition_columns: PartitionForm | None = None,
) -> WritePlan:
    """What a repartition would do."""
    dataset.check_exists()
    dataset.engine.check_store(dataset.store)
    # Bounds of the partition columns determine the partition of most files, without reading them.
    stats_columns = [partition_by] if isinstance(partition_by, str) else partition_by or ()
    source = FileRows.of(dataset.store, dataset.snapshot(stats_columns=stats_columns).files)
    columns = _partition_columns(partition_by, source, partition_columns)
    counts: Mapping[str, int] = {}
    if columns:
        counts = dataset.engine.count_partitions(
            source, columns, Context(dataset.store, Staging(""), "repartition")
        )
    return WritePlan(
        dry_run=True,
        rows_written=source.num_rows,
        partitions=dict(counts),
        files_replaced=len(source.files),
        replaced_files=[file.path for file in source.files],
        rows_deleted=None,
    )


def _partition_columns(
    partition_by: str | Sequence[str] | None, source: FileRows, form: PartitionForm | None
) -> tuple[str, ...]:
    columns = check_partition_columns(partition_by, source.schema)
    if form == "path":
        check_has_partitions(columns)
    return columns


def same_schema_output(
    root: str,
    source: FileRows,
    columns: tuple[str, ...],
    codec: str,
    thresholds: Thresholds,
    form: PartitionForm | None = None,
) -> Output:
    """The output for the rows of other files, with their types, nullability and metadata, in other folders."""
    first = source.files[0]
    one_area = len({(file.metadata or {}).get(GEO_KEY) for file in source.files}) == 1
    file_metadata, schema_metadata = without_record(first.metadata), without_record(source.schema.metadata)
    if not one_area:
        file_metadata, schema_metadata = without_bbox(file_metadata), without_bbox(schema_metadata)
    rows = source.schema.with_metadata(schema_metadata or None)
    schema = stored_schema(rows, columns, form)
    # If path columns move into the files, or columns out of them, the stored Arrow schema no longer matches.
    verbatim = file_metadata if schema.equals(first.schema) else None
    file_format = FileFormat(schema, codec, verbatim, first.traits, readable_as=schema)
    return Output(root, file_format, rows, columns, roll_bytes=thresholds.target_bytes)
