"""Statistics of operations: the same keys from every engine, planned or executed."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class PlannedRewrite(TypedDict):
    """How the row groups of a file group are rewritten.

    Empty row groups do not count, except in small files that contain rows: those are not inspected individually.
    """

    copied_row_groups: int
    encoded_row_groups: int


class MaintenanceStats(TypedDict):
    """What a compaction or optimisation did, or, in a dry run, would do.

    Counts and bytes cover the files that match `partition_filter`.
    """

    before_file_count: int
    #: In a dry run: the planned number of files.
    after_file_count: int
    before_total_bytes: int
    #: In a dry run: the same as before, because the compressed size is only known after writing.
    after_total_bytes: int
    #: Number and size of the files that were rewritten.
    compacted_file_count: int
    rewritten_bytes: int
    #: The codec of the rewritten files; `mixed` if there are several.
    compression_codec: str | None
    dry_run: bool
    #: The clustering columns; None for a compaction.
    zorder_columns: list[str] | None
    #: The space-filling curve that orders rows, or `linear`; None for a compaction.
    curve: str | None
    #: For each clustering column, the share of row groups that point and 1 % range queries read, before and after.
    #: In a dry run `after` is an estimate for uniformly distributed values.
    expected_reads: dict[str, dict[Literal["before", "after"], ColumnReads]] | None
    #: Why nothing was rewritten; None if something was.
    unchanged_because: str | None
    #: The columns that rewritten files get in another type, or at all: files of the dataset differ in them.
    reconciled_columns: list[str]
    #: The paths of the files to merge, one list per group.
    planned_groups: list[list[str]] | None

    #: For each of these groups, how many row groups are copied as bytes, and how many are re-encoded.
    planned_rewrites: list[PlannedRewrite] | None
    #: With `backup=`: where the replaced files are, for `restore`; None if none were replaced.
    backup_path: str | None


class WriteStats(TypedDict):
    """What a write did."""

    rows_written: int
    files_written: int
    bytes_written: int
    #: Files whose rows were replaced; with `replace_where` also those that were rewritten without some rows.
    files_replaced: int
    #: With `replace_where`: the rows that matched and were replaced.
    rows_deleted: NotRequired[int]
    #: Of `write_from`: the files that were read.
    source_files: NotRequired[list[str]]


class WritePlan(TypedDict):
    """What a write or a repartition would do (`dry_run=True`). Nothing was written.

    Counts are exact. They are None if the rows can be read only once (a `RecordBatchReader`): these are not read.
    """

    dry_run: Literal[True]
    rows_written: int | None
    #: The rows that each partition would get, by folder (`day=1`); empty without partitions.
    partitions: dict[str, int] | None
    files_replaced: int | None
    #: The paths of these files.
    replaced_files: list[str] | None
    #: With `replace_where`: the rows that match and would be replaced; else None.
    rows_deleted: int | None
    #: Of `write_from`: the files that were read.
    source_files: NotRequired[list[str]]


class PartitionInfo(TypedDict):
    """A partition of a dataset."""

    #: The value of each partition column; None is NULL.
    values: dict[str, Any]
    files: int
    rows: int
    bytes: int


class AlterStats(TypedDict):
    """What a change of the schema did, or, in a dry run, would do."""

    files_before: int
    #: Number and size of the files that were rewritten.
    files_rewritten: int
    rewritten_bytes: int
    dry_run: bool
    #: With `backup=`: where the replaced files are, for `restore`; None if none were replaced.
    backup_path: str | None


class RestoreStats(TypedDict):
    """What restoring a backup did."""

    files_restored: int
    #: Files of the operation that was undone.
    files_removed: int
    rows_restored: int


class EditStats(TypedDict):
    """What a delete or an update did, or, in a dry run, would do. Counts are exact in both cases."""

    rows_matched: int
    rows_before: int
    rows_after: int
    files_before: int
    #: Files that footers and paths could not rule out.
    files_scanned: int
    files_rewritten: int
    #: Files without remaining rows.
    files_removed: int
    #: New files: rewritten ones, and those for rows that moved to another partition.
    files_written: int
    rewritten_bytes: int
    partitions_affected: int
    dry_run: bool
    #: Where the replaced files are kept; None without a backup.
    backup_path: str | None
    #: The files that were rewritten or removed: paths relative to the dataset, sorted.
    rewritten_files: list[str]
    #: The files that were written, likewise; empty in a dry run.
    added_files: list[str]


class ChangeStats(TypedDict):
    """What applied changes did, in rows. With history (`scd=2`) a row is a version of a key."""

    #: New rows, or versions.
    inserted: int
    #: Rows that got new values, or versions that got another end.
    updated: int
    #: Rows that were deleted, or versions that a delete of the same sequence has replaced.
    deleted: int
    #: Records without an effect: stale, repeated, or superseded by another record.
    ignored: int
    #: The rows of the dataset afterwards.
    total: int
    #: With `backup=`: where the replaced files are, for `restore`; None if none were replaced.
    backup_path: NotRequired[str | None]


class Damage(TypedDict):
    """A damaged file, row group or column."""

    path: str
    #: The ordinal of the row group, from 0; None if the whole file is affected.
    row_group: int | None
    #: The column, as a dotted path if nested (`trade.price`); None if the file or row group is affected.
    column: str | None
    reason: str


class ChangedFile(TypedDict):
    """A file that differs from the one recorded for its path."""

    path: str
    reason: str


class OtherSchema(TypedDict):
    """Files whose schema differs from that of most files."""

    paths: list[str]
    difference: str


class CheckReport(TypedDict):
    """The result of a dataset check. Serialisable with `json.dumps`."""

    #: True if nothing is damaged, missing or changed.
    healthy: bool
    #: True if all pages were decoded, False if only footers were read.
    deep: bool
    files_checked: int
    #: Totals of the files; those with an unreadable footer only count in `bytes`.
    rows: int
    row_groups: int
    bytes: int
    #: Column chunks and pages that were decoded; 0 unless `deep`.
    columns_checked: int
    pages_checked: int
    #: Every damaged file, row group or column, ordered by path.
    damaged: list[Damage]
    #: Expected files that do not exist; empty if there is no record of expected files.
    missing: list[str]
    #: Files that were replaced or rewritten since they were recorded; empty if there is no record.
    changed: list[ChangedFile]
    #: Unexpected files: other programs added them. No damage.
    unknown: list[str]
    #: Files whose columns differ from those of most files. No damage.
    other_schemas: list[OtherSchema]
    #: Remarks, such as files that other writers removed during the check.
    notes: list[str]


class ColumnReads(TypedDict):
    """The share of row groups that queries on a column read, and how many row groups overlap."""

    point: float
    #: A range of 1 % of the rows.
    range: float
    #: The maximum number of row groups whose bounds contain the same value.
    depth: int
