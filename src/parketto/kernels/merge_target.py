"""The target of a merge, as the plan sees it: its files, its form, and what files for new rows are like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.kernels.merge_source import prepared_schema
from parketto.kernels.partitions import canonical_folder, folder_names
from parketto.kernels.replacing import Rewriting
from parketto.kernels.rows import common_schema
from parketto.kernels.write import Output, Written
from parketto.kernels.writer import FileFormat
from parketto.plan.form import Form, form_of
from parketto.plan.limits import DEFAULT_TARGET_MB, MEGABYTE
from parketto.plan.merge import Change, MergeRules, null_keys, unfilled
from parketto.rowgroups.area import without_area
from parketto.storage.clustering import without_record
from parketto.storage.footers import FileInfo

# Files of rows that are new are as large as a compaction would make them.
_TARGET_BYTES = DEFAULT_TARGET_MB * MEGABYTE
#: A folder that no row belongs to.
NOWHERE = "\0"


@dataclass(frozen=True)
class MergeTarget:
    """The dataset that is merged into; without files one that is about to be made."""

    root: str
    files: tuple[FileInfo, ...]
    form: Form
    schema: pa.Schema
    rules: MergeRules
    compression: str
    source: pa.Schema
    #: Only say what would happen: no file of the dataset's is written.
    dry_run: bool = False

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
    ) -> MergeTarget:
        """The files of a dataset, which must have the same columns and the same form."""
        form = form_of(files)
        if partition_by and partition_by != form.partition_by:
            raise InvalidArgument(
                f"the dataset is partitioned by {list(form.partition_by)}, not by {list(partition_by)}; leave "
                "partition_by out, or repartition first"
            )
        schema = form.row_schema(common_schema(files))
        return cls(root, tuple(files), form, schema, rules, compression, source, dry_run)

    @cached_property
    def change(self) -> Change:
        """What an update does to a row."""
        return Change.of(self.rules, self.source, self.schema, self.form)

    @cached_property
    def rewriting(self) -> Rewriting:
        """How files with matches are rewritten."""
        change = self.change
        leaves = change.updated is not None and change.moves != "never"
        return Rewriting(
            self.form,
            self.compression,
            change.updated,
            not self.rules.removes_missing,
            self.additions if leaves else None,
            # Floats that are the same key may still differ: a zero has two signs.
            frozenset(name for name in self.rules.keys if not pat.is_floating(self.schema.field(name).type)),
        )

    @property
    def lacks_values(self) -> bool:
        """Whether the source lacks a column that may not be NULL."""
        return unfilled(self.rules, self.source, self.schema) is not None

    def refuse_unfilled(self, inserted: int) -> None:
        """Rows that are new must have what may not be NULL."""
        problem = unfilled(self.rules, self.source, self.schema)
        if inserted and problem is not None:
            raise problem

    def home_of(self, file: FileInfo) -> str | None:
        """The folder that rows of a file are at home in; None where rows do not move."""
        match self.change.moves:
            case "never":
                return None
            case "compare":
                return canonical_folder(file, self.form)
            case "always":
                return NOWHERE

    @property
    def num_rows(self) -> int:
        """The rows that there are before the merge."""
        return sum(file.num_rows for file in self.files)

    @cached_property
    def additions(self) -> Output:
        """What files for new rows are like: as the first of the others."""
        rows = prepared_schema(self.schema, self.form)
        if not self.files:
            file_format = FileFormat(self.schema, self.compression)
            return Output(self.root, file_format, rows, self.form.partition_by, roll_bytes=_TARGET_BYTES)
        first = self.files[0]
        assert first.schema is not None, "files of a target come from a snapshot"
        file_format = FileFormat(
            first.schema,
            self.compression,
            without_area(without_record(first.metadata)),
            first.traits,
            readable_as=first.schema,
        )
        folders = folder_names(self.files, self.form, self.root) if self.form.partition_by else {}
        return Output(
            self.root,
            file_format,
            rows,
            self.form.partition_by,
            roll_bytes=_TARGET_BYTES,
            prefix="merge",
            folders=folders,
        )

    def refuse_null_keys(self) -> None:
        """NULLs among the keys, as far as footers and paths tell; the rest is seen when keys are read."""
        for name in self.rules.keys:
            for file in filter(lambda each: each.num_rows, self.files):
                in_path = name in self.form.path_only
                if dict(file.partition)[name] is None if in_path else file.column_stats(name).null_count:
                    raise null_keys(name, "target")


@dataclass(frozen=True)
class MergeOutcome:
    """What a merge wrote, and what that did to the rows."""

    rewritten: tuple[tuple[FileInfo, Written], ...]
    removed: tuple[FileInfo, ...]
    added: Written
    inserted: int
    updated: int
    deleted: int
    #: The lowest and the highest value of each key of the source.
    ranges: Mapping[str, tuple[pa.Scalar, pa.Scalar]]
    #: How many files footers and paths could not rule out.
    scanned: int = 0
    #: The folders of rows that would be added; "" where there are no partitions.
    added_folders: tuple[str, ...] = ()
