"""INT96 timestamps: which leaves have them, and what they are to Arrow.

Spark writes its timestamps as INT96 unless it is told otherwise. Parquet does not say what they mean; Spark takes
them for instants, and so does Parketto. Arrow reads them as nanoseconds without a time zone, whatever its own note
on the schema says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

#: What an INT96 timestamp is to Parketto.
INSTANT = pa.timestamp("ns", "UTC")


def leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types of a column's leaves, in the order in which Parquet counts them.

    >>> list(leaf_types(pa.struct({"a": pa.int8(), "b": pa.list_(pa.date32())})))
    [DataType(int8), DataType(date32[day])]
    """
    if isinstance(kind, pa.BaseExtensionType):
        yield from leaf_types(kind.storage_type)
    elif pat.is_nested(kind):
        for at in range(kind.num_fields):
            yield from leaf_types(kind.field(at).type)
    else:
        yield kind


def leaf_names(schema: pa.Schema) -> list[tuple[str, int]]:
    """The leaves of a schema: the name of the column, and the number of the leaf inside of it.

    >>> leaf_names(pa.schema({"a": pa.int8(), "m": pa.map_(pa.string(), pa.int8())}))
    [('a', 0), ('m', 0), ('m', 1)]
    """
    return [(item.name, number) for item in schema for number, _ in enumerate(leaf_types(item.type))]


def int96_leaves(physical_types: Sequence[str], schema: pq.ParquetSchema) -> tuple[tuple[str, int], ...]:
    """Which leaves of a file are INT96 timestamps, given the physical types of all of them."""
    if "INT96" not in physical_types:
        return ()
    pairs = zip(leaf_names(schema.to_arrow_schema()), physical_types, strict=True)
    return tuple(leaf for leaf, physical in pairs if physical == "INT96")


def with_instants(
    schema: pa.Schema, int96: Collection[tuple[str, int]], instant: pa.DataType = INSTANT
) -> pa.Schema:
    """A schema as Arrow reads it, with INT96 timestamps as the instants that they are.

    >>> with_instants(pa.schema({"at": pa.timestamp("ns"), "n": pa.int8()}), [("at", 0)]).types
    [TimestampType(timestamp[ns, tz=UTC]), DataType(int8)]
    """
    if not int96:
        return schema
    fields = [item.with_type(_with_instants(item, int96, instant)) for item in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _with_instants(field: pa.Field, int96: Collection[tuple[str, int]], instant: pa.DataType) -> pa.DataType:
    numbers = count()
    return _map_leaves(field.type, lambda kind: instant if (field.name, next(numbers)) in int96 else kind)


def _map_leaves(kind: pa.DataType, changed: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with other leaves: the function is asked for each in its order."""
    if isinstance(kind, pa.BaseExtensionType) or not pat.is_nested(kind):
        return changed(kind)
    fields = [kind.field(at) for at in range(kind.num_fields)]
    if pat.is_map(kind):
        key, item = kind.key_field, kind.item_field
        key = key.with_type(_map_leaves(key.type, changed))
        return pa.map_(key, item.with_type(_map_leaves(item.type, changed)), kind.keys_sorted)
    fields = [item.with_type(_map_leaves(item.type, changed)) for item in fields]
    if pat.is_struct(kind):
        return pa.struct(fields)
    if pat.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.large_list(fields[0]) if pat.is_large_list(kind) else pa.list_(fields[0])
