"""Laying a dataset out by other partition columns: all files are replaced, in one step."""

from __future__ import annotations

from collections.abc import Sequence

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_written
from parketto.engines.base import ProgressCallback
from parketto.errors import CommitFailed
from parketto.kernels.rows import FileRows
from parketto.kernels.write import Output
from parketto.kernels.writer import FileFormat
from parketto.operations.place import Place, entries
from parketto.plan.limits import DEFAULT_CODEC, Thresholds
from parketto.plan.naming import Naming
from parketto.plan.rewrite import FileGroup, check_partition_columns, prevailing_codec
from parketto.rowgroups.area import AREA, without_area
from parketto.stats import WriteStats
from parketto.storage.clustering import without_record
from parketto.storage.footers import FileInfo


def repartition(
    place: Place,
    partition_by: str | Sequence[str] | None,
    thresholds: Thresholds,
    compression: str | None,
    progress: ProgressCallback | None,
) -> WriteStats:
    """Discover → plan → execute → verify → commit → report."""
    place.check_exists()

    def attempt(transaction: Transaction) -> WriteStats:
        files = place.snapshot_in(transaction).files
        source = FileRows.of(place.store, files)
        columns = check_partition_columns(partition_by, source.schema)
        codec = compression or prevailing_codec(files) or DEFAULT_CODEC
        output = same_rows(place.root, source, columns, codec, thresholds)
        with transaction.conflicts_over(entries(files)):
            written = place.engine.write(source, output, place.context(transaction, progress))
        new = verify_written(place.store, written.staged, source.num_rows, source.schema.names)
        check_one_schema(new)
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

    arguments = {"partition_by": partition_by, "compression": compression}
    return place.run(place.request("repartition", arguments), attempt)


def same_rows(root: str, source: FileRows, columns: tuple[str, ...], codec: str, thresholds: Thresholds) -> Output:
    """Files with exactly the rows of other files: their types, nullability and metadata, in other folders."""
    first = FileGroup((source.files[0],))
    one_area = len({(file.metadata or {}).get(AREA) for file in source.files}) == 1
    first_notes, notes = without_record(first.metadata), without_record(source.schema.metadata)
    if not one_area:
        first_notes, notes = without_area(first_notes), without_area(notes)
    # Where columns of the path come into the files, Arrow's description of the old schema is no longer true.
    verbatim = first_notes if source.schema.equals(first.schema) else None
    schema = source.schema.with_metadata(notes or None)
    file_format = FileFormat(schema, codec, verbatim, first.traits, readable_as=schema)
    return Output(root, file_format, schema, columns, roll_bytes=thresholds.target_bytes)


def check_one_schema(files: Sequence[FileInfo]) -> None:
    """What was written has the same columns everywhere."""
    for file in files:
        if file.schema is None or not file.schema.equals(files[0].schema):
            raise CommitFailed(f"the files written differ in their schema: {file.path!r}. Nothing was changed")
