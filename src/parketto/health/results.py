"""The result of `Dataset.health`: plain mappings that `json.dumps` accepts."""

from __future__ import annotations

from typing import Literal, TypedDict, get_args

#: `error`: data is lost or unreadable. `warning`: queries cost more than they need to. `note`: worth knowing.
Severity = Literal["error", "warning", "note"]
#: `damaged` if there is an error, `attention` if there is a warning, else `healthy`.
Verdict = Literal["healthy", "attention", "damaged"]
#: The names of problems, the most severe first.
ProblemName = Literal[
    "damaged-files",
    "missing-files",
    "incompatible-types",
    "changed-files",
    "drift",
    "small-files",
    "small-partitions",
    "small-row-groups",
    "large-row-groups",
    "skew",
    "overlap",
    "uncompressed",
    "mixed-codecs",
    "history",
]
PROBLEM_NAMES: tuple[ProblemName, ...] = get_args(ProblemName)


class Remedy(TypedDict):
    """What would solve a problem, as a command and in Python."""

    #: For a shell: `parketto compact data/events`.
    command: str
    #: The same in Python: `Dataset('data/events').compact()`.
    python: str
    #: What it does, in one sentence.
    effect: str


class HealthProblem(TypedDict):
    """A problem of a dataset."""

    name: ProblemName
    severity: Severity
    #: One sentence with the numbers.
    summary: str
    #: What would solve it, the first step first. Empty if only people can decide.
    remedies: list[Remedy]


class SizeBin(TypedDict):
    """How many files or row groups have a size of at least `low` and less than `high`."""

    low: int
    high: int
    count: int
    #: The sum of their sizes.
    total: int


class Sizes(TypedDict):
    """The distribution of sizes."""

    smallest: int
    median: float
    largest: int
    #: Bins between powers of two, without empty ones at the ends.
    histogram: list[SizeBin]


class DamagedFile(TypedDict):
    """A file whose footer cannot be read."""

    path: str
    reason: str


class FileHealth(TypedDict):
    """The files. Lists of paths have at most 20 entries; the counts are complete."""

    count: int
    rows: int
    bytes: int
    #: In bytes.
    sizes: Sizes | None
    #: Files below 75 % of the target size, and their total size.
    small: int
    small_bytes: int
    #: Files above 180 % of the target size. They are not split.
    large: int
    #: Files without rows.
    empty: int
    #: The number of files that `compact` would leave, as far as sizes tell.
    after_compaction: int
    damaged: list[DamagedFile]
    damaged_count: int
    #: Files that the log expects and that do not exist. Paths are relative to the dataset, as below.
    missing: list[str]
    missing_count: int
    #: The last commit before these files were published, if its own files are there or kept: `restore(to=…)` goes
    #: back to it.
    restorable: int | None
    #: Files that other programs have replaced since a commit published them.
    changed: list[str]
    changed_count: int
    #: Files that other programs have added; 0 if there is no log.
    unknown_count: int


class RowGroupHealth(TypedDict):
    """The row groups."""

    count: int
    #: In rows.
    rows: Sizes | None
    #: In bytes, before compression.
    sizes: Sizes | None
    #: Small row groups that a rewrite would merge with others of their file.
    small: int
    #: Row groups of more than a gigabyte.
    large: int


class PartitionSize(TypedDict):
    """A folder with data files."""

    #: Relative to the dataset; empty for the dataset itself.
    folder: str
    files: int
    rows: int
    bytes: int
    #: Files below 75 % of the target size.
    small_files: int


class PartitionHealth(TypedDict):
    """The partitions: the folders with data files."""

    #: The partition columns.
    columns: list[str]
    count: int
    median_bytes: float
    #: The size of the largest partition, relative to the median.
    skew: float
    #: Partitions that hold less than 75 % of the target size, so that compaction cannot fill a file.
    small: int
    #: The 30 largest ones, the largest first.
    largest: list[PartitionSize]
    #: The 10 ones with the most small files.
    most_small_files: list[PartitionSize]


class CodecShare(TypedDict):
    """A codec, and how much of the dataset it compresses."""

    codec: str
    row_groups: int
    #: Bytes before compression.
    bytes: int


class ColumnDrift(TypedDict):
    """A column that is not the same in all files."""

    column: str
    #: The number of files by type, the most frequent first (`int64 not null`).
    types: dict[str, int]
    #: Files without the column.
    missing: int
    #: The type in the dataset's schema; None if no type holds the values of all files exactly.
    unified: str | None


class SchemaHealth(TypedDict):
    """The schemas of the files."""

    #: The number of columns in all files together.
    columns: int
    #: The number of different schemas. They may differ in order and metadata only, which is no drift.
    schemas: int
    #: Files that do not have the dataset's schema.
    differing_files: int
    drift: list[ColumnDrift]


class ColumnHealth(TypedDict):
    """What queries on a column read, estimated from the bounds in footers."""

    column: str
    type: str
    #: Whether the column is one of the partition columns, or files are clustered by it.
    partition: bool
    clustered: bool
    #: The share of row groups with bounds.
    bounded: float
    #: The share of row groups that a query reads: for one value, and for a range of 1 % of the rows.
    point: float
    range: float
    #: The maximum number of row groups whose bounds contain the same value.
    depth: int
    #: What such a range would read if the rows of each partition were sorted by this column alone.
    range_if_sorted: float


class ClusteringShare(TypedDict):
    """Files that are clustered by the same columns."""

    columns: list[str]
    curve: str
    files: int


class CommitSummary(TypedDict):
    """A commit."""

    number: int
    operation: str
    at: str


class HistoryHealth(TypedDict):
    """The log, and the disk space that it and retired files take."""

    commits: int
    last: CommitSummary | None
    log_bytes: int
    #: Retired files that are kept for readers, time travel and undo.
    kept_bytes: int
    kept_files: int
    #: The part of `kept_bytes` that need not be kept any longer.
    expired_bytes: int
    #: Files of operations that are running, or were interrupted.
    staged_bytes: int


class Health(TypedDict):
    """The health of a dataset. Serialisable with `json.dumps`."""

    path: str
    #: When it was examined, in UTC.
    at: str
    verdict: Verdict
    #: The verdict in one sentence.
    summary: str
    target_mb_per_file: float
    #: The most severe first; empty if there is none.
    problems: list[HealthProblem]
    files: FileHealth
    row_groups: RowGroupHealth
    partitions: PartitionHealth
    #: The most used first.
    codecs: list[CodecShare]
    schema: SchemaHealth
    #: The examined columns, in schema order.
    columns: list[ColumnHealth]
    clustering: list[ClusteringShare]
    history: HistoryHealth
    #: The share of files whose bounds were compared for `columns`: 1 unless there are very many row groups.
    sampled: float
