"""Schema drift: the columns that are not the same in all files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.types as pat

from parketto.health.results import ColumnDrift, SchemaHealth
from parketto.health.tally import Layout, Tally
from parketto.parquet.promotion import common_type


def schema_health(tally: Tally) -> SchemaHealth:
    """How the schemas of the files differ."""
    layouts = list(tally.layouts.values())
    fields = _fields(layouts)
    drift = [each for name, found in fields.items() if (each := _drift(name, found, layouts)) is not None]
    unified = {each["column"]: each["unified"] for each in drift}
    fitting = sum(layout.files for layout in layouts if _has_types(layout.schema, unified))
    return SchemaHealth(
        columns=len(fields),
        schemas=len(layouts) + tally.other_layouts,
        differing_files=tally.files - fitting,
        drift=drift,
    )


def dataset_types(layouts: Iterable[Layout]) -> dict[str, pa.DataType | None]:
    """The type of each column in the dataset; None if no type holds the values of all files exactly."""
    return {name: _common(found) for name, found in _fields(layouts).items()}


def _fields(layouts: Iterable[Layout]) -> dict[str, Counter[pa.Field]]:
    """For each column, its fields without metadata, and how many files have them."""
    found: dict[str, Counter[pa.Field]] = {}
    for layout in layouts:
        for item in layout.schema:
            found.setdefault(item.name, Counter())[item.remove_metadata()] += layout.files
    return found


def _common(fields: Iterable[pa.Field]) -> pa.DataType | None:
    return common_type(item.type for item in fields)


def _drift(name: str, fields: Counter[pa.Field], layouts: Iterable[Layout]) -> ColumnDrift | None:
    missing = sum(layout.files for layout in layouts if name not in layout.schema.names)
    if not missing and len(fields) == 1:
        return None
    kind = _common(fields)
    nullable = bool(missing) or any(item.nullable or pat.is_null(item.type) for item in fields)
    return ColumnDrift(
        column=name,
        types={_text(item): files for item, files in fields.most_common()},
        missing=missing,
        unified=None if kind is None else _text(pa.field(name, kind, nullable)),
    )


def _has_types(schema: pa.Schema, wanted: Mapping[str, str | None]) -> bool:
    names = set(schema.names)
    return all(name in names and _text(schema.field(name)) == text for name, text in wanted.items())


def _text(item: pa.Field) -> str:
    return f"{item.type}" if item.nullable else f"{item.type} not null"
