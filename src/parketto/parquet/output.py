"""The specification of new files, and the files that were written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from parketto.arguments import DEFAULT_CODEC
from parketto.parquet.clustering_metadata import without_record
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_info import FileInfo
from parketto.parquet.geo_area import GEO_KEY, merged_geo, without_bbox
from parketto.parquet.row_checks import RowChecks, Violations
from parketto.parquet.row_group_info import writable_codec
from parketto.runtime.staging import StagedFile


@dataclass(frozen=True)
class Output:
    """The specification of new files.

    `row_schema` is the schema of the input rows. The files have it too, without the partition columns if only the
    path contains those (then the format's schema lacks them).
    """

    directory: str
    format: FileFormat
    row_schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    max_rows: int | None = None
    roll_bytes: int | None = None
    row_group_rows: int | None = None
    #: Whether to write all rows to one file.
    single: bool = False
    prefix: str = "part"
    #: The columns by which to sort the rows of each file, which declares that order.
    sort_by: tuple[str, ...] = ()
    #: Existing partition folders with non-canonical names (`day=01`), by their canonical names (`day=1`).
    folders: Mapping[str, str] = field(default_factory=dict)
    #: Decides which rows are written; None: all.
    checks: RowChecks | None = None

    def directory_of(self, folder: str) -> str:
        """The directory of a partition, by its canonical name."""
        return f"{self.directory}/{self.folders.get(folder, folder)}"


@dataclass(frozen=True)
class Written:
    """Staged files, the number of rows in them, and the rows that checks have left out."""

    staged: tuple[StagedFile, ...] = ()
    num_rows: int = 0
    violations: Violations = field(default_factory=Violations)

    def __add__(self, other: Written) -> Written:
        return Written(
            self.staged + other.staged, self.num_rows + other.num_rows, self.violations + other.violations
        )

    @classmethod
    def total(cls, parts: Iterable[Written]) -> Written:
        """The sum of many parts, in linear time."""
        found = list(parts)
        return cls(
            tuple(staged for each in found for staged in each.staged),
            sum(each.num_rows for each in found),
            sum((each.violations for each in found if each.violations.rows), Violations()),
        )


@dataclass(frozen=True)
class Replaced:
    """Neighbouring files, and the new files with the rows that are left of them."""

    files: tuple[FileInfo, ...]
    written: Written = field(default_factory=Written)


@dataclass(frozen=True)
class Rewrite:
    """What became of files: those that are replaced, and those without remaining rows. The others stay."""

    replaced: tuple[Replaced, ...] = ()
    emptied: tuple[FileInfo, ...] = ()

    @classmethod
    def total(cls, parts: Iterable[Rewrite]) -> Rewrite:
        """All parts together, in order."""
        found = list(parts)
        return cls(
            tuple(each for part in found for each in part.replaced),
            tuple(file for part in found for file in part.emptied),
        )

    @property
    def written(self) -> Written:
        """All new files."""
        return Written.total(each.written for each in self.replaced)


def output_like(
    file: FileInfo,
    prefix: str,
    compression: str | None = None,
    changed: Collection[str] = (),
    neighbours: Sequence[FileInfo] = (),
) -> Output:
    """The specification of files like an existing one: the same directory, schema, metadata and physical types.

    Args:
        file: The existing file.
        prefix: The prefix of the new file names.
        compression: The codec; None: that of the file.
        changed: Columns with new values; their GeoParquet bounding boxes are dropped.
        neighbours: Files whose rows may go to the same new file; bounding boxes cover them, too.
    """
    assert file.schema is not None, "files to rewrite come from a snapshot"
    schema = decoded_schema(file.schema)
    codec = compression or writable_codec(file.codec) or DEFAULT_CODEC
    metadata = dict(kept_metadata(file))
    if neighbours and GEO_KEY in metadata:
        metadata[GEO_KEY] = merged_geo([(each.metadata or {})[GEO_KEY] for each in (file, *neighbours)])
    file_format = FileFormat(schema, codec, without_bbox(metadata, changed), file.traits, readable_as=file.schema)
    return Output(file.directory, file_format, schema, prefix=prefix)


def kept_metadata(file: FileInfo) -> Mapping[bytes, bytes]:
    """The key-value metadata that a rewritten file keeps: all except an unreadable clustering record."""
    metadata = file.metadata or {}
    return metadata if file.clustering is not None else without_record(metadata)
