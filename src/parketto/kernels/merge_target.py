"""The target of a merge, as the plan sees it: its files, its form, and what files for new rows are like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from parketto.errors import InvalidArgument
from parketto.kernels.merge_source import prepared_schema
from parketto.kernels.partitions import folder_names
from parketto.kernels.rows import common_schema
from parketto.kernels.write import Output, Written
from parketto.kernels.writer import FileFormat
from parketto.plan.form import Form, form_of
from parketto.plan.merge import MergeRules, null_keys
from parketto.storage.footers import FileInfo


@dataclass(frozen=True)
class MergeTarget:
    """The dataset that is merged into; without files one that is about to be made."""

    root: str
    files: tuple[FileInfo, ...]
    form: Form
    schema: pa.Schema
    rules: MergeRules
    compression: str

    @classmethod
    def of(
        cls,
        root: str,
        files: Sequence[FileInfo],
        rules: MergeRules,
        compression: str,
        partition_by: tuple[str, ...],
    ) -> MergeTarget:
        """The files of a dataset, which must have the same columns and the same form."""
        form = form_of(files)
        if partition_by and partition_by != form.partition_by:
            raise InvalidArgument(
                f"the dataset is partitioned by {list(form.partition_by)}, not by {list(partition_by)}; leave "
                "partition_by out, or repartition first"
            )
        return cls(root, tuple(files), form, form.row_schema(common_schema(files)), rules, compression)

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
            return Output(self.root, file_format, rows, self.form.partition_by)
        first = self.files[0]
        assert first.schema is not None, "files of a target come from a snapshot"
        file_format = FileFormat(
            first.schema, self.compression, first.metadata or {}, first.traits, readable_as=first.schema
        )
        folders = folder_names(self.files, self.form, self.root) if self.form.partition_by else {}
        return Output(self.root, file_format, rows, self.form.partition_by, prefix="merge", folders=folders)

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
