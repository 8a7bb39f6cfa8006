"""The form of a dataset: which columns make its folders, and whether they stand in the files as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from parketto.errors import InvalidArgument, quoted
from parketto.plan.pruning import partition_types
from parketto.storage.footers import FileInfo


@dataclass(frozen=True)
class Form:
    """Partition columns in the order of the path; those that stand only there have a type inferred from it."""

    partition_by: tuple[str, ...] = ()
    path_only: Mapping[str, pa.DataType] = field(default_factory=dict)

    def row_schema(self, file_schema: pa.Schema) -> pa.Schema:
        """The columns that a reader of the dataset sees: the file's, then those of the path."""
        for name, kind in self.path_only.items():
            if name not in file_schema.names:
                file_schema = file_schema.append(pa.field(name, kind))
        return file_schema

    def file_schema(self, row_schema: pa.Schema) -> pa.Schema:
        """The columns that go into files."""
        inside = [item for item in row_schema if item.name not in self.path_only]
        return pa.schema(inside, metadata=row_schema.metadata)


def form_of(files: Sequence[FileInfo]) -> Form:
    """The form that all files of a dataset share. Files without rows have no say if there are others."""
    files = [file for file in files if file.num_rows] or files
    if not files:
        return Form()
    forms: dict[tuple[tuple[str, ...], frozenset[str]], FileInfo] = {}
    for file in files:
        names = tuple(name for name, _ in file.partition)
        inside = frozenset(file.schema.names if file.schema is not None else ())
        forms.setdefault((names, frozenset(names) - inside), file)
    if len(forms) > 1:
        (one, first), (other, second) = list(forms.items())[:2]
        raise InvalidArgument(
            f"the files are partitioned in different ways: {first.path!r} by {quoted(one[0])}, {second.path!r} by "
            f"{quoted(other[0])}; in the files stand {quoted(sorted(set(one[0]) - one[1]))} and "
            f"{quoted(sorted(set(other[0]) - other[1]))}. Bring them into one form first"
        )
    (names, outside), _ = next(iter(forms.items()))
    types = partition_types(files) if outside else {}
    return Form(names, {name: types.get(name, pa.string()) for name in names if name in outside})
