"""The schema of a dataset whose files differ: the union of their columns, in types that hold all values exactly.

Files keep their own schemas until they are rewritten. `unified` presents each of them in the dataset's schema, so
that every later step sees one schema; the reader converts (`FileInfo.stored`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import IncompatibleTypes, InvalidArgument
from parketto.parquet.annotations import Annotation
from parketto.parquet.bounds import typed_bounds
from parketto.parquet.clustering_metadata import without_record
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_info import STANDARD_LAYOUT, FileInfo, PhysicalTraits, describe
from parketto.parquet.geo_area import without_bbox
from parketto.parquet.pandas_schema import PANDAS_KEY, fitted_pandas_schema
from parketto.parquet.promotion import POLARS_NOTE, common_metadata, common_type, promoted, retyped
from parketto.parquet.row_group_info import ColumnStats, RowGroupInfo
from parketto.parquet.spark_schema import SPARK_SCHEMA_KEY, merged_notes, unnamed_types

_ARROW_SCHEMA = b"ARROW:schema"
# Entries that describe the columns of one file. They would be wrong for other columns.
_FIELD_ID = b"PARQUET:field_id"
_DESCRIBING_KEYS = frozenset({_ARROW_SCHEMA, SPARK_SCHEMA_KEY, PANDAS_KEY})


@dataclass(frozen=True)
class Unified:
    """Files presented in one schema, and the columns that are not the same in all of them."""

    files: tuple[FileInfo, ...]
    reconciled: tuple[str, ...] = ()


def unified(files: Sequence[FileInfo], casts: Mapping[str, pa.DataType] | None = None) -> Unified:
    """The files in the schema of the dataset that they form, in path order.

    Args:
        files: The files.
        casts: The types of some columns, whatever the files have.

    Raises:
        IncompatibleTypes: A column has types without a common one.
    """
    layouts = _layouts(files)
    if len(layouts) < 2 and not casts:
        return Unified(tuple(files))
    template = _template(list(layouts.values()), casts or {})
    targets: dict[tuple[int, int], FileInfo | None] = {}
    variants: dict[str, FileInfo] = {}
    found = []
    for file in files:
        key = (id(file.schema), id(file.traits))
        if key not in targets:
            target = _with_metadata_of(file, template, variants)
            targets[key] = None if has_layout_of(file, target) else target
        presented = targets[key]
        found.append(file if presented is None else _presented(file, presented))
    return Unified(tuple(found), _reconciled(layouts.values(), template))


def _with_metadata_of(file: FileInfo, template: FileInfo, variants: dict[str, FileInfo]) -> FileInfo:
    """The template with the metadata of a file's columns (a unit, say), which may differ between files.

    So files with values in different units are read together, but never merged into one file.
    """
    assert template.schema is not None, "a footer always has a schema"
    assert file.schema is not None, "files to unify come from a snapshot"
    schema = template.schema
    for at, item in enumerate(schema):
        if item.name in file.schema.names:
            own = {
                key: value
                for key, value in (file.schema.field(item.name).metadata or {}).items()
                if not key.startswith((_FIELD_ID, POLARS_NOTE))
            }
            if own.items() - (item.metadata or {}).items():
                schema = schema.set(at, item.with_metadata({**(item.metadata or {}), **own}))
    if schema is template.schema:
        return template
    key = schema_key(schema)
    if key not in variants:
        variants[key] = template_file(schema, template.traits)
    return variants[key]


def dataset_schema(files: Sequence[FileInfo]) -> pa.Schema:
    """The schema of the columns that files contain, once those that differ are unified."""
    layouts = _layouts(files)
    first = next(iter(layouts.values()))
    schema = first.schema if len(layouts) < 2 else _template(list(layouts.values()), {}).schema
    assert schema is not None, "a footer always has a schema"
    return schema


def schema_key(schema: pa.Schema) -> str:
    """A text that is equal for equal fields, with their metadata (a unit, an id), but without schema metadata."""
    return str(schema.to_string(truncate_metadata=False, show_field_metadata=True, show_schema_metadata=False))


_LayoutKey = tuple[str, PhysicalTraits, tuple[tuple[str, str], ...]]


def layout_key(file: FileInfo) -> _LayoutKey:
    """What is equal for files with the same schema, and the same types in Parquet's own terms."""
    assert file.schema is not None, "files to unify come from a snapshot"
    return schema_key(file.schema), file.traits, tuple(sorted(unnamed_types(file.schema.metadata).items()))


def has_layout_of(file: FileInfo, other: FileInfo) -> bool:
    """Whether two files have the same schema, and the same types in Parquet's own terms."""
    return layout_key(file) == layout_key(other)


def _layouts(files: Sequence[FileInfo]) -> dict[_LayoutKey, FileInfo]:
    """The first file of each layout. Thousands of files mostly share one, and the objects that describe it."""
    found: dict[_LayoutKey, FileInfo] = {}
    seen: set[tuple[int, int]] = set()
    for file in files:
        if (key := (id(file.schema), id(file.traits))) not in seen:
            seen.add(key)
            found.setdefault(layout_key(file), file)
    return found


def _template(files: Sequence[FileInfo], casts: Mapping[str, pa.DataType]) -> FileInfo:
    """An empty file with the dataset's schema, as Arrow writes it."""
    for file in files:
        assert file.schema is not None, "files to unify come from a snapshot"
        if len(set(file.schema.names)) < len(file.schema.names):
            raise InvalidArgument(
                f"{file.path!r} has duplicate column names, so its columns cannot be matched by name"
            )
    names = list(dict.fromkeys(name for file in files for name in _names(file)))
    fields = [_common_field(name, files, casts.get(name)) for name in names]
    notes = merged_notes([file.schema.metadata for file in files if file.schema is not None])
    schema = pa.schema(fields, metadata=notes or None)
    traits = PhysicalTraits(
        int96=tuple(leaf for leaf in _shared_int96(files) if _is_unchanged(leaf[0], schema, files)),
        integer_decimals=all(file.traits.integer_decimals for file in files),
        utc_times=all(file.traits.utc_times for file in files),
        annotations=_shared_annotations(files),
    )
    return template_file(schema, traits)


def template_file(schema: pa.Schema, traits: PhysicalTraits = STANDARD_LAYOUT) -> FileInfo:
    """An empty file with a schema, as Arrow writes it."""
    return describe(FileFormat(schema, "none", None, traits).encoded(None))


def _names(file: FileInfo) -> list[str]:
    assert file.schema is not None, "files to unify come from a snapshot"
    return list(file.schema.names)


def _with_column(name: str, files: Iterable[FileInfo]) -> list[tuple[FileInfo, pa.Field]]:
    return [
        (file, file.schema.field(name)) for file in files if file.schema is not None and name in file.schema.names
    ]


def _common_field(name: str, files: Sequence[FileInfo], cast: pa.DataType | None) -> pa.Field:
    found = _with_column(name, files)
    fields = [field for _, field in found]
    spark_types = [unnamed_types(file.schema.metadata).get(name) for file, _ in found if file.schema is not None]
    kind = cast or (common_type(field.type for field in fields) if len(set(spark_types)) == 1 else None)
    if kind is None:
        raise _conflict(name, found, spark_types)
    nullable = len(found) < len(files) or any(field.nullable or pat.is_null(field.type) for field in fields)
    return retyped(common_metadata(fields), kind).with_nullable(nullable)


def _conflict(
    name: str, found: Sequence[tuple[FileInfo, pa.Field]], spark_types: Sequence[str | None]
) -> IncompatibleTypes:
    """The error for a column, with two types that do not meet and a file of each."""
    shown = [(kind or field.type, file.path) for (file, field), kind in zip(found, spark_types, strict=True)]
    first, other = shown[0], next(each for each in shown if each[0] != shown[0][0])
    for at, (_, field) in enumerate(found):
        if spark_types[at] != spark_types[0] or common_type([found[0][1].type, field.type]) is None:
            other = shown[at]
            break
    return other_types(name, first, other)


def other_types(column: str, *found: tuple[object, str]) -> IncompatibleTypes:
    """The error for a column whose types have no common one: each type, with a file that has it."""
    each = " and ".join(f"{kind} in {path!r}" for kind, path in found)
    return IncompatibleTypes(
        f"column {column!r} is {each}, and no type holds the values of both exactly. Choose one with "
        f"Dataset.unify_schema(cast={{{column!r}: ...}}), or move the files of one type into another dataset. "
        "Nothing was changed"
    )


def _shared_int96(files: Sequence[FileInfo]) -> list[tuple[str, int]]:
    """The leaves that are INT96 in every file that has their column."""
    every = list(dict.fromkeys(leaf for file in files for leaf in file.traits.int96))
    return [leaf for leaf in every if all(leaf in file.traits.int96 for file, _ in _with_column(leaf[0], files))]


def _is_unchanged(name: str, schema: pa.Schema, files: Sequence[FileInfo]) -> bool:
    return all(field.type == schema.field(name).type for _, field in _with_column(name, files))


def _shared_annotations(files: Sequence[FileInfo]) -> tuple[Annotation, ...]:
    """The annotations of all files; a column must have the same ones in every file that has it."""
    found: dict[str, tuple[tuple[Annotation, ...], FileInfo]] = {}
    for file in files:
        for name in _names(file):
            own = tuple(each for each in file.traits.annotations if each[0][0] == name.encode())
            known, first = found.setdefault(name, (own, file))
            if {logical for _, logical in known} != {logical for _, logical in own}:
                kinds = ("annotated" if annotations else "not annotated" for annotations in (known, own))
                raise other_types(name, *zip(kinds, (first.path, file.path), strict=True))
    return tuple(annotation for annotations, _ in found.values() for annotation in annotations)


def _reconciled(files: Iterable[FileInfo], template: FileInfo) -> tuple[str, ...]:
    """The columns that some file lacks, or has with another type or nullability."""
    assert template.schema is not None, "a footer always has a schema"
    layouts = list(files)
    return tuple(
        item.name
        for item in template.schema
        if len(found := _with_column(item.name, layouts)) < len(layouts)
        or any(field.type != item.type or field.nullable != item.nullable for _, field in found)
    )


def _presented(file: FileInfo, template: FileInfo) -> FileInfo:
    """A file in the schema of a template. Its rows are converted when they are read."""
    return replace(
        file,
        schema=template.schema,
        traits=template.traits,
        metadata=conformed_metadata(file, template, {name: name for name in _names(file)}),
        row_groups=presented_row_groups(file, template),
        own=file.stored,
    )


def conformed_metadata(file: FileInfo, template: FileInfo, origins: Mapping[str, str]) -> dict[bytes, bytes]:
    """The metadata of a file in the schema of a template: its own, with a description of the new columns.

    Args:
        file: The file.
        template: A file with the new schema.
        origins: For each column of the file that is kept, by its new name, its old name.
    """
    own = {key: value for key, value in (file.metadata or {}).items() if key not in _DESCRIBING_KEYS}
    pandas = fitted_pandas_schema(file.metadata, file.schema, template.schema, origins)
    found = {**own, **(template.metadata or {}), **pandas}
    if (entry := found.get(_ARROW_SCHEMA)) is not None and (own or pandas):
        # Arrow reads metadata only from its own schema entry.
        shown = without_bbox(without_record({key: found[key] for key in found if key != _ARROW_SCHEMA}))
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(entry))).with_metadata(dict(shown))
        found[_ARROW_SCHEMA] = base64.b64encode(schema.serialize())
    return found


def presented_row_groups(file: FileInfo, template: FileInfo) -> tuple[RowGroupInfo, ...]:
    """The row groups with bounds in the types of the template."""
    assert template.schema is not None, "a footer always has a schema"
    assert file.schema is not None, "files to unify come from a snapshot"
    columns: list[dict[str, ColumnStats]] = [{} for _ in file.row_groups]
    for item in template.schema:
        for found, stats in zip(columns, presented_stats(file, item) or (), strict=False):
            found[item.name] = stats
    return tuple(replace(group, columns=found) for group, found in zip(file.row_groups, columns, strict=True))


def presented_stats(file: FileInfo, field: pa.Field) -> Sequence[ColumnStats] | None:
    """The bounds of a column in each row group, in the type of a field; None if they were not read."""
    assert file.schema is not None, "files to unify come from a snapshot"
    if field.name not in file.schema.names:
        constant = path_value(file, field)
        value = None if constant is None else _count(pa.array([constant]))[0]
        return [ColumnStats(value, value, group.num_rows if value is None else 0) for group in file.row_groups]
    if not file.row_groups or field.name not in file.row_groups[0].columns:
        return None
    return _converted_stats(file, field, [group.columns[field.name] for group in file.row_groups])


def path_value(file: FileInfo, field: pa.Field) -> pa.Scalar | None:
    """The value of a column that a file lacks, if its path has one."""
    text = dict(file.partition).get(field.name)
    if text is None:
        return None
    try:
        return pa.scalar(text).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        why = ""
        if pat.is_timestamp(field.type) and field.type.tz is not None:
            why = (
                ", which has no offset such as +00:00, so that the instant depends on the time zone of its writer"
            )
        raise IncompatibleTypes(
            f"partition column {field.name!r} is {field.type} in other files, but {text!r} in the path "
            f"{file.path!r}{why}. Rename the folder, or add the column to its files. Nothing was changed"
        ) from None


def _converted_stats(file: FileInfo, field: pa.Field, stats: Sequence[ColumnStats]) -> Sequence[ColumnStats]:
    assert file.schema is not None, "files to unify come from a snapshot"
    own = file.schema.field(field.name).type
    if own == field.type or _have_same_bounds(own, field.type):
        return stats
    values = typed_bounds(file, field.name, [end for each in stats for end in (each.min, each.max)])
    try:
        ends = [None] * (2 * len(stats)) if values is None else _count(promoted(values, field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        ends = [None] * (2 * len(stats))
    return [ColumnStats(ends[2 * at], ends[2 * at + 1], each.null_count) for at, each in enumerate(stats)]


def _have_same_bounds(own: pa.DataType, kind: pa.DataType) -> bool:
    """Whether bounds are the same Python values for both types."""
    plain = [each.value_type if pat.is_dictionary(each) else each for each in (own, kind)]
    families = (
        (pat.is_integer,),
        (pat.is_floating,),
        (pat.is_string, pat.is_large_string, pat.is_string_view),
        (pat.is_binary, pat.is_large_binary, pat.is_binary_view),
    )
    return any(all(any(test(each) for test in tests) for each in plain) for tests in families)


def _count(values: pa.Array) -> list[Any]:
    """Bounds as in footers: dates and times are integers."""
    if pat.is_date64(values.type):
        values = values.cast(pa.date32())
    if pat.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    if pat.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return list(values.to_pylist())
