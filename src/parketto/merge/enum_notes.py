"""Polars' notes of an enum's values. Polars reads others as NULL, so a note must list all values of its file."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from parketto.parquet.dataset_schema import template_file, unified
from parketto.parquet.file_info import FileInfo

_ENUM = b"_PL_ENUM"


def without_enum_notes(schema: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """A schema of files that get new rows, without notes that the rows do not have as well.

    >>> enum = pa.field("v", pa.string(), metadata={"_PL_ENUM_VALUES2": "1;a1;b"})
    >>> without_enum_notes(pa.schema([enum]), pa.schema({"v": pa.string()})).field("v").metadata
    >>> without_enum_notes(pa.schema([enum]), pa.schema([enum])).field("v").metadata
    {b'_PL_ENUM_VALUES2': b'1;a1;b'}
    """
    for at, item in enumerate(schema):
        if item.metadata and item.name in rows.names:
            own = rows.field(item.name).metadata or {}
            kept = {
                key: value
                for key, value in item.metadata.items()
                if not key.startswith(_ENUM) or own.get(key) == value
            }
            if len(kept) < len(item.metadata):
                schema = schema.set(at, item.with_metadata(kept) if kept else item.remove_metadata())
    return schema


def files_without_enum_notes(files: Sequence[FileInfo], rows: pa.Schema) -> tuple[FileInfo, ...]:
    """The files of a dataset, presented so that their columns can get the values of rows."""
    like = files[0]
    assert like.schema is not None, "files to change come from a snapshot"
    schema = without_enum_notes(like.schema, rows)
    if schema is like.schema:
        return tuple(files)
    return unified([*files, template_file(schema, like.traits)]).files[: len(files)]
