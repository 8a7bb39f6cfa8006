"""The target of a merge: its files, its partition spec, and the format of files for new rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.types as pat

from parketto.arguments import DEFAULT_TARGET_MB, MEGABYTE
from parketto.errors import InvalidArgument
from parketto.expressions.time_zones import Clock
from parketto.merge.clauses import Clauses
from parketto.merge.evolved_schema import evolved_files
from parketto.merge.row_edits import Rewriting
from parketto.merge.rules import Change, MergeRules, null_keys, unfilled
from parketto.merge.scope import Scope
from parketto.merge.source import prepared_schema
from parketto.parquet.clustering_metadata import without_record
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_info import FileInfo
from parketto.parquet.geo_area import without_bbox
from parketto.parquet.output import Output, Replaced, Written
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.partitions import canonical_folder, folder_names
from parketto.planning.edit_groups import EditGroup, edit_groups

_TARGET_BYTES = DEFAULT_TARGET_MB * MEGABYTE  # size of files with new rows, the same as after a compaction
#: A folder that no row belongs to.
NOWHERE = "\0"


@dataclass(frozen=True)
class MergeTarget:
    """The dataset to merge into; without files, one that is to be created."""

    root: str
    files: tuple[FileInfo, ...]
    spec: PartitionSpec
    schema: pa.Schema
    rules: MergeRules
    compression: str
    source: pa.Schema
    #: Only report what would happen: no file of the dataset is written.
    dry_run: bool = False
    clauses: Clauses | None = None
    scope: Scope | None = None
    #: Files of the dataset that are outside of the scope.
    outside: tuple[FileInfo, ...] = ()
    #: Whether neighbouring small files that are rewritten become one file.
    pack: bool = True
    #: The number of processes that rewrite files at once.
    processes: int = 1

    @classmethod
    def of(
        cls,
        root: str,
        files: Sequence[FileInfo],
        rules: MergeRules,
        compression: str,
        source: pa.Schema,
        partition_by: tuple[str, ...],
        *,
        dry_run: bool = False,
        pack: bool = True,
    ) -> MergeTarget:
        """A dataset's files as a target; they must have one schema and one partition spec."""
        spec = partition_spec_of(files)
        if not spec.partition_by and not any(file.num_rows for file in files):
            spec = PartitionSpec(partition_by)  # an empty file only keeps the schema, as after deletes alone
        if partition_by and partition_by != spec.partition_by:
            raise InvalidArgument(
                f"the dataset is partitioned by {list(spec.partition_by)}, not by {list(partition_by)}; leave "
                "partition_by out, or repartition first"
            )
        assert files[0].schema is not None, "files of a target come from a snapshot"
        schema = spec.row_schema(files[0].schema)
        return cls(root, tuple(files), spec, schema, rules, compression, source, dry_run, pack=pack)

    def with_clauses(self, clock: Clock) -> MergeTarget:
        """The same target with the conditions of the rules."""
        rules = self.rules
        if rules.update_when is None and rules.delete_when is None and rules.insert_when is None:
            return self
        return replace(self, clauses=Clauses.of(rules, self.source, self.schema, self.spec, clock))

    def within(self, scope: Scope) -> MergeTarget:
        """The same target, limited to the rows of a scope."""
        inside = tuple(file for file in self.files if scope.counts.get(file.path))
        outside = tuple(file for file in self.files if not scope.counts.get(file.path))
        return replace(self, files=inside, outside=outside, scope=scope)

    @property
    def all_files(self) -> tuple[FileInfo, ...]:
        """All files of the dataset."""
        return (*self.files, *self.outside)

    def evolved(self) -> MergeTarget:
        """The same target, with the columns and types that the source needs."""
        files = evolved_files(self.files, self.source, self.spec, self.unwritten)
        assert files[0].schema is not None, "files of a target come from a snapshot"
        return replace(self, files=files, schema=self.spec.row_schema(files[0].schema))

    def groups(self, edited: Mapping[str, int], removed: Collection[str] = ()) -> list[EditGroup]:
        """The groups of files to rewrite, see `edit_groups`."""
        return edit_groups(
            self.all_files, edited, removed, same_codec=False, pack=self.pack, processes=self.processes
        )

    @property
    def unwritten(self) -> tuple[str, ...]:
        """The columns of the source that only conditions use."""
        return () if self.clauses is None else tuple(item.name for item in self.clauses.extra)

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The columns of rows as they are written; those of the path are strings."""
        return prepared_schema(self.schema, self.spec)

    @cached_property
    def source_schema(self) -> pa.Schema:
        """The columns of prepared source rows: those that are written, and those that only conditions use."""
        return pa.schema([*self.row_schema, *(() if self.clauses is None else self.clauses.extra)])

    @property
    def judges(self) -> bool:
        """Whether conditions decide what happens to matched rows."""
        return self.clauses is not None and self.clauses.decide_pairs

    @cached_property
    def matched_columns(self) -> tuple[str, ...]:
        """The columns of target rows that are read to match them: the keys, and those that conditions use."""
        more = self.clauses.target_columns if self.judges and self.clauses is not None else ()
        scoped = () if self.scope is None else self.scope.columns
        return tuple(dict.fromkeys((*self.rules.keys, *more, *scoped)))

    @cached_property
    def change(self) -> Change:
        """What an update does to a row."""
        return Change.of(self.rules, self.source, self.schema, self.spec)

    @cached_property
    def rewriting(self) -> Rewriting:
        """How files with matches are rewritten."""
        change = self.change
        moves_out = change.updated is not None and change.moves != "never"
        return Rewriting(
            self.spec,
            self.compression,
            change.updated,
            not self.rules.removes_missing,
            self.additions if moves_out else None,
            # Floats that are equal keys may still differ: zero has two signs.
            frozenset(name for name in self.rules.keys if not pat.is_floating(self.schema.field(name).type)),
        )

    def refuse_unfilled(self, inserted: int) -> None:
        """Refuse new rows without values for non-nullable columns."""
        problem = unfilled(self.rules, self.source, self.schema)
        if inserted and problem is not None:
            raise problem

    def folder_of(self, file: FileInfo) -> str | None:
        """The folder that rows of a file belong to; None if rows never move."""
        match self.change.moves:
            case "never":
                return None
            case "compare":
                return canonical_folder(file, self.spec)
            case "always":
                return NOWHERE

    @property
    def num_rows(self) -> int:
        """The number of rows before the merge."""
        return sum(file.num_rows for file in self.all_files)

    @cached_property
    def additions(self) -> Output:
        """The output for new rows, in the format of the first file."""
        rows = self.row_schema
        if not self.all_files:
            file_format = FileFormat(self.schema, self.compression)
            return Output(self.root, file_format, rows, self.spec.partition_by, roll_bytes=_TARGET_BYTES)
        first = self.all_files[0]
        assert first.schema is not None, "files of a target come from a snapshot"
        file_format = FileFormat(
            first.schema,
            self.compression,
            without_bbox(without_record(first.metadata)),
            first.traits,
            readable_as=first.schema,
        )
        folders = folder_names(self.all_files, self.spec, self.root) if self.spec.partition_by else {}
        return Output(
            self.root,
            file_format,
            rows,
            self.spec.partition_by,
            roll_bytes=_TARGET_BYTES,
            prefix="merge",
            folders=folders,
        )

    def refuse_null_keys(self) -> None:
        """Refuse NULL keys that footers and paths show, unless they match; others are found when keys are read."""
        for name in () if self.rules.null_keys_match else self.rules.keys:
            for file in filter(lambda each: each.num_rows, self.files):
                in_path = name in self.spec.path_only
                if dict(file.partition)[name] is None if in_path else file.column_stats(name).null_count:
                    raise null_keys(name, "target")


@dataclass(frozen=True)
class MergeOutcome:
    """The files that a merge wrote, and its row counts."""

    rewritten: tuple[Replaced, ...]
    removed: tuple[FileInfo, ...]
    added: Written
    inserted: int
    updated: int
    deleted: int
    #: Minimum and maximum of each key of the source.
    ranges: Mapping[str, tuple[pa.Scalar, pa.Scalar]]
    #: Number of files that footers and paths could not rule out.
    scanned: int = 0
    #: The folders of rows that would be added; "" without partitions.
    added_folders: tuple[str, ...] = ()

    @property
    def rewritten_files(self) -> list[FileInfo]:
        """The files that are replaced by new ones."""
        return [file for each in self.rewritten for file in each.files]
