"""The schema of files with appended rows, and the checks that rows fit the dataset."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, cast

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import IncompatibleTypes, InvalidArgument, quoted
from parketto.merge.enum_notes import without_enum_notes
from parketto.merge.rules import same_kind
from parketto.parquet.decoded_types import cast_column
from parketto.parquet.promotion import common_type, is_castable, retyped
from parketto.parquet.row_source import ArrowRows, RowSource

#: How rows meet the dataset's schema: they are cast to it, they may extend it, or they must have it.
SchemaMode = Literal["cast", "evolve", "strict"]
SCHEMA_MODES = ("cast", "evolve", "strict")
_OTHERWISE = "or use mode='overwrite' to replace the dataset; nothing was written"


def check_schema_mode(mode: str) -> SchemaMode:
    """Validate a schema mode."""
    if mode not in SCHEMA_MODES:
        raise InvalidArgument(f"unknown schema {mode!r}; valid choices: {quoted(SCHEMA_MODES)}")
    return cast("SchemaMode", mode)


def has_same_columns(rows: pa.Schema, dataset: pa.Schema, path_only: Collection[str] = ()) -> bool:
    """Whether rows have the columns of a dataset, in types whose values its types hold, whatever they are.

    >>> dataset = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> has_same_columns(pa.schema({"name": pa.large_string(), "id": pa.int32()}), dataset)
    True
    """
    if set(rows.names) != {*dataset.names, *path_only}:
        return False
    return all(
        same_kind(rows.field(item.name).type, item.type)
        or common_type([rows.field(item.name).type, item.type]) == item.type
        for item in dataset
    )


def fits_file(rows: RowSource, file: pa.Schema, path_only: Collection[str] = ()) -> bool:
    """Whether a file could contain these rows, so that nothing about other files matters.

    A finer unit or a NULL may not fit. Rows in memory are looked at; others do not fit if they might not.
    """
    if not has_same_columns(rows.schema, file, path_only):
        return False
    doubtful = [item for item in file if not _holds_all(item, rows.schema.field(item.name))]
    if not doubtful or not isinstance(rows, ArrowRows) or not rows.repeatable:
        return not doubtful
    try:
        return not any(
            cast_column(batch.column(item.name), item).null_count and not item.nullable
            for batch in rows.batches
            for item in doubtful
        )
    except IncompatibleTypes:
        return False


def _holds_all(item: pa.Field, rows: pa.Field) -> bool:
    """Whether a column can have all values of appended rows, whatever they are."""
    if rows.nullable and not item.nullable:
        return False
    if not (pat.is_temporal(item.type) or pat.is_nested(item.type)):
        return True  # the same columns: only units and NULLs inside of nested values can differ
    return bool(common_type([rows.type, item.type]) == item.type)


def appended_schema(
    rows: pa.Schema, dataset: pa.Schema, path_only: Collection[str] = (), mode: SchemaMode = "strict"
) -> pa.Schema:
    """The schema of new files.

    Args:
        rows: The schema of the rows, with columns in any order.
        dataset: The schema of the dataset.
        path_only: Partition columns that are stored only in the path, as untyped text.
        mode: `"strict"`: the dataset's, if the rows have the same columns and types. Encodings of the same values
            (strings of any width, dictionaries, timestamps of any unit) are one type. `"cast"`: the dataset's.
            Rows may lack nullable columns, and are cast where no value changes. `"evolve"`: the dataset's with
            further columns, and wider types where the rows need them.

    Raises:
        InvalidArgument: Columns are missing, or the dataset lacks them.
        IncompatibleTypes: A column has a type that does not fit the dataset.

    >>> dataset = pa.schema({"id": pa.int64(), "at": pa.timestamp("ms", "UTC")})
    >>> appended_schema(pa.schema({"at": pa.timestamp("us", "UTC"), "id": pa.int64()}), dataset).types
    [DataType(int64), TimestampType(timestamp[ms, tz=UTC])]
    >>> appended_schema(pa.schema({"id": pa.int32(), "n": pa.int8()}), dataset, mode="evolve").names
    ['id', 'at', 'n']
    """
    _check_columns(rows, dataset, path_only, mode)
    fields, wrong = [], []
    for item in dataset:
        own = rows.field(item.name) if item.name in rows.names else item
        kind = _fitting_type(own.type, item.type, mode)
        if kind is None:
            wrong.append(f"{item.name!r} is {own.type} in the rows and {item.type} in the dataset")
        nullable = item.nullable or (mode == "evolve" and (item.name not in rows.names or own.nullable))
        fields.append(retyped(item, kind or item.type).with_nullable(nullable))
    if wrong:
        raise IncompatibleTypes(
            f"the rows do not fit the dataset: {'; '.join(wrong)}. {_HINTS[mode]}, {_OTHERWISE}"
        )
    known = {*dataset.names, *path_only}
    added = [item.with_nullable(True) for item in rows if item.name not in known]
    return without_enum_notes(pa.schema([*fields, *added], metadata=rows.metadata), rows)


_HINTS = {
    "strict": "Cast these columns first, pass schema='cast' or schema='evolve'",
    "cast": "Cast these columns first, pass schema='evolve' if a wider type is meant",
    "evolve": "No type holds the values of both exactly: cast these columns first",
}


def _fitting_type(rows: pa.DataType, dataset: pa.DataType, mode: SchemaMode) -> pa.DataType | None:
    """The type of a column in new files; None if the rows do not fit."""
    if mode == "evolve" and pat.is_temporal(rows) and pat.is_temporal(dataset):
        return common_type([dataset, rows])  # the finer unit
    if pat.is_null(rows) or same_kind(rows, dataset):
        return dataset
    if mode == "evolve":
        return common_type([dataset, rows])
    return dataset if mode == "cast" and is_castable(rows, dataset) else None


def _check_columns(rows: pa.Schema, dataset: pa.Schema, path_only: Collection[str], mode: SchemaMode) -> None:
    expected = [*dataset.names, *(name for name in path_only if name not in dataset.names)]
    only_rows = [name for name in rows.names if name not in expected]
    missing = [name for name in expected if name not in rows.names]
    if mode == "strict" and (only_rows or missing):
        raise InvalidArgument(
            f"the rows do not fit the dataset: only the rows have {quoted(only_rows)}, only the dataset has "
            f"{quoted(missing)}. With schema='strict', rows need the same columns, in any order: add missing ones "
            f"as NULLs and drop the others, {_OTHERWISE}"
        )
    if mode == "cast" and only_rows:
        raise InvalidArgument(
            f"the rows do not fit the dataset: only the rows have {quoted(only_rows)}; the dataset has "
            f"{quoted(expected)}. Pass schema='evolve' to add columns, drop them from the rows, {_OTHERWISE}"
        )
    # A column that new files lack becomes nullable, if the schema may change.
    required = [
        name for name in missing if name in path_only or (mode == "cast" and not dataset.field(name).nullable)
    ]
    if required:
        raise InvalidArgument(
            f"the rows lack {quoted(required)}, which cannot be NULL; add them to the rows, {_OTHERWISE}"
        )
