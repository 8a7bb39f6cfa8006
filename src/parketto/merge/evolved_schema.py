"""The schema that a dataset gets from a merge whose source has further columns or wider types."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import IncompatibleTypes
from parketto.merge.rules import same_kind
from parketto.parquet.dataset_schema import template_file, unified
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.promotion import common_type, retyped


def evolved_schema(source: pa.Schema, dataset: pa.Schema, ignored: Collection[str] = ()) -> pa.Schema:
    """The dataset's schema with further columns, and wider types where the source needs them.

    Columns stay required if they are. `ignored` are columns of the source that files do not contain.

    >>> dataset = pa.schema({"id": pa.int32(), "name": pa.string()})
    >>> evolved_schema(pa.schema({"id": pa.int64(), "n": pa.int8()}), dataset).types
    [DataType(int64), DataType(string), DataType(int8)]
    """
    fields, wrong = [], []
    for item in dataset:
        own = source.field(item.name).type if item.name in source.names else item.type
        kind = item.type if pat.is_null(own) or same_kind(own, item.type) else common_type([item.type, own])
        if kind is None:
            wrong.append(f"{item.name!r} is {own} in the source and {item.type} in the target")
        fields.append(retyped(item, kind or item.type))
    if wrong:
        raise IncompatibleTypes(
            f"incompatible types: {'; '.join(wrong)}. No type holds the values of both exactly: cast the source's "
            "columns first; nothing was changed"
        )
    known = {*dataset.names, *ignored}
    added = [item.with_nullable(True) for item in source if item.name not in known]
    return pa.schema([*fields, *added], metadata=dataset.metadata)


def evolved_files(
    files: Sequence[FileInfo], source: pa.Schema, spec: PartitionSpec, unwritten: Collection[str] = ()
) -> tuple[FileInfo, ...]:
    """The files of a dataset, presented in the schema that the source needs. `unwritten` columns are not added."""
    like = files[0]
    assert like.schema is not None, "files of a target come from a snapshot"
    schema = evolved_schema(source, like.schema, {*spec.path_only, *unwritten})
    if schema.equals(like.schema):
        return tuple(files)
    unchanged = {item.name for item in like.schema if schema.field(item.name).type == item.type}
    traits = like.traits._replace(int96=tuple(leaf for leaf in like.traits.int96 if leaf[0] in unchanged))
    return unified([*files, template_file(schema, traits)]).files[: len(files)]
