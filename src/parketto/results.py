"""Statistics of operations: the same keys from every engine, planned or executed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict

from parketto.display import Result, counted, readable_bytes


class PlannedRewrite(TypedDict):
    """How the row groups of a file group are rewritten.

    Empty row groups do not count, except in small files that contain rows: those are not inspected individually.
    """

    copied_row_groups: int
    encoded_row_groups: int
    #: The rows of the group, the size of its files, and the planned number of new files.
    rows: int
    bytes: int
    files_after: int


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


class RuleCounts(TypedDict):
    """How many rows met an expectation, and how many broke it."""

    passed: int
    violations: int


class Repeatable(TypedDict, total=False):
    """What an operation with a `commit_id` adds to its result if the log contains this id."""

    #: Only if the commit_id was used before: the number of the commit that did the work. The counts are those of
    #: this commit (in a dry run: of the plan), and nothing was changed now.
    repeated_commit: int


class ExpectationStats(Repeatable, total=False):
    """With `expect=`: how many rows broke rules. They were left out (in a dry run: would be).

    Counts are None in a dry run with rows that can be read only once: these are not read.
    """

    #: The counts of each rule, by its name. All rows are checked against all rules.
    expectations: dict[str, RuleCounts] | None
    #: The rows that broke at least one rule.
    rows_violating: int | None
    #: With `on_violation="quarantine"`: the dataset with these rows; None if there are none.
    quarantine: str | None


class WriteStats(ExpectationStats):
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


class WritePlan(ExpectationStats):
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
    #: In a dry run: these files, as paths relative to the dataset, sorted.
    rewritten_files: NotRequired[list[str]]


class RestoreStats(TypedDict):
    """What restoring a backup did, or, in a dry run, would do. Paths are relative to the dataset, and sorted."""

    files_restored: int
    #: Files of the operation that was undone.
    files_removed: int
    rows_restored: int
    restored_files: list[str]
    removed_files: list[str]
    dry_run: bool


class UndoStats(TypedDict):
    """What undoing commits did, or, in a dry run, would do. Paths are relative to the dataset, and sorted."""

    #: The numbers of the commits that were undone; empty if the dataset was in that state already.
    undone: list[int]
    #: The files that came back, and those that the undone commits had written.
    files_restored: int
    bytes_restored: int
    files_removed: int
    bytes_removed: int
    restored_files: list[str]
    removed_files: list[str]
    #: Whether the undone commits had only moved rows, such as a compaction.
    only_moved_rows: bool
    dry_run: bool


class VacuumStats(TypedDict):
    """What a vacuum removed, or, in a dry run, would remove."""

    #: The commits whose retired files were removed: they cannot be undone any more.
    commits: list[int]
    files_removed: int
    bytes_removed: int
    #: What is still kept.
    files_kept: int
    bytes_kept: int
    dry_run: bool


class PurgedFile(TypedDict):
    """A file that contained rows which were deleted with `purge=True`, or may have contained them."""

    #: The path in the dataset, relative to it.
    path: str
    #: Where the file was: in the dataset, among the kept files of a commit, or in a backup.
    location: Literal["dataset", "history", "backup"]
    #: Of `history`: the commit that had retired it. Of `backup`: the path of the backup.
    commit: int | None
    backup: str | None


class EditStats(Repeatable):
    """What a delete or an update did, or, in a dry run, would do. Counts are exact in both cases."""

    rows_matched: int
    #: None where the condition ruled out folders: these are not listed, so the totals are not known.
    rows_before: int | None
    rows_after: int | None
    files_before: int | None
    #: Files that footers and paths could not rule out.
    files_scanned: int
    files_rewritten: int
    #: Files without remaining rows.
    files_removed: int
    #: The number of new files: one for neighbouring small files, more for rows that moved to other partitions.
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
    #: With `purge=True`: every file that contained the rows; all of them are gone (in a dry run: would be).
    purged_files: NotRequired[list[PurgedFile]]


class ChangeStats(ExpectationStats):
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


LeftBecause = Literal["budget", "left alone", "conflict", "error"]


class MaintenanceAction(TypedDict):
    """One operation of a maintenance run: one commit."""

    dataset: str
    #: `compact`, `optimize`, `unify_schema` or `vacuum`.
    operation: str
    #: The folder below the dataset; None if the dataset has no partitions, or the operation concerns all of them.
    partition: str | None
    #: Why it was due.
    reason: str
    #: The files of the partition; those that were rewritten if a schema was unified; the kept files of a vacuum.
    files_before: int
    #: In a dry run: the planned number.
    files_after: int
    #: The size of the files that were rewritten.
    rewritten_bytes: int
    seconds: float


class MaintenanceLeft(TypedDict):
    """What a maintenance run did not do."""

    dataset: str
    #: None if the dataset or partition could not be examined at all.
    operation: str | None
    partition: str | None
    #: Why it was due.
    reason: str
    #: Why it was not done.
    because: LeftBecause
    details: str
    #: The size of the files to rewrite.
    bytes: int


class MaintenanceRun(Result):
    """What a maintenance run did, why, and what it left. A mapping, serialisable with `json.dumps`.

    Keys: `datasets` (paths), `dry_run`, `actions`, `left` and `seconds`. Printed, it is a short summary.

    >>> print(MaintenanceRun(datasets=["events"], dry_run=False, actions=[], left=[], seconds=0.01))
    nothing to do in 1 dataset
    """

    @property
    def actions(self) -> list[MaintenanceAction]:
        """What was done, or would be done (`dry_run`), in this order."""
        return self["actions"]  # type: ignore[no-any-return]

    @property
    def left(self) -> list[MaintenanceLeft]:
        """What is due and was not done."""
        return self["left"]  # type: ignore[no-any-return]

    @property
    def rewritten_bytes(self) -> int:
        """The size of all files that were rewritten."""
        return sum(action["rewritten_bytes"] for action in self.actions)

    def numbers(self) -> str:
        """The summary, for a log."""
        return self.summary()

    def summary(self) -> str:
        """One line."""
        datasets = counted(len(self["datasets"]), "dataset")
        parts = []
        if self.actions:
            before, after = (sum(each[key] for each in self.actions) for key in ("files_before", "files_after"))
            verb = "would run " if self["dry_run"] else ""
            parts.append(
                f"{verb}{counted(len(self.actions), 'operation')} in {datasets}: {before:,} files -> {after:,}, "
                f"{readable_bytes(self.rewritten_bytes)} rewritten"
            )
            parts += [] if self["dry_run"] else [f"{self['seconds']:.1f} s"]
        elif not self.left:
            return f"nothing to do in {datasets}"
        else:
            parts.append(f"nothing done in {datasets}")
        return ", ".join([*parts, *([f"{len(self.left):,} left"] if self.left else [])])

    def __str__(self) -> str:
        lines = [self.summary()]
        lines += [
            f"  {each['operation']} {_place(each)}: {each['files_before']:,} files -> {each['files_after']:,}, "
            f"{readable_bytes(each['rewritten_bytes'])}: {each['reason']}"
            for each in self.actions[:_LINES]
        ]
        lines += _more(self.actions)
        lines += [
            f"  left: {each['operation'] or 'everything'} {_place(each)}: {each['because']}: {each['details']}"
            for each in self.left[:_LINES]
        ]
        return "\n".join([*lines, *_more(self.left)])

    def __repr__(self) -> str:
        return f"<MaintenanceRun: {self.summary()}>"


_LINES = 20  # of each list that a printed run shows


def _more(entries: Sequence[object]) -> list[str]:
    return [f"  … and {len(entries) - _LINES:,} more"] if len(entries) > _LINES else []


def _place(entry: MaintenanceAction | MaintenanceLeft) -> str:
    return f"{entry['dataset']}/{entry['partition']}" if entry["partition"] else entry["dataset"]
