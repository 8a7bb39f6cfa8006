"""INT96 timestamps: which leaves have them, and their Arrow types.

Spark writes timestamps as INT96 by default. Parquet does not define their meaning; Spark treats them as instants,
and so does Parketto. Arrow reads them as nanoseconds without a time zone, whatever the file's Arrow schema
declares. Nanoseconds cover only the years 1677 to 2262. Spark has microseconds, so its files are read as
microseconds: all years fit, and INT96 has the same type as Spark's 64-bit timestamps.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from parketto.errors import UnreadableFile
from parketto.parquet.compatible import SPARK_VERSION
from parketto.parquet.spark_schema import SPARK_SCHEMA_KEY

#: The types of INT96 timestamps: from writers with microseconds (Spark), and from all others.
MICROSECONDS, NANOSECONDS = pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")
_ARROW_SCHEMA = b"ARROW:schema"
_NANOSECOND_SECONDS = 2**63 // 10**9  # the seconds that 64-bit nanoseconds can represent
_BATCH_ROWS = 32 * 1024


def leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types of a column's leaves, in the order of Parquet's leaf columns.

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
    """The leaves of a schema, each as the name of its column and its number within the column.

    >>> leaf_names(pa.schema({"a": pa.int8(), "m": pa.map_(pa.string(), pa.int8())}))
    [('a', 0), ('m', 0), ('m', 1)]
    """
    return [(item.name, number) for item in schema for number, _ in enumerate(leaf_types(item.type))]


def int96_leaves(physical_types: Sequence[str], schema: pq.ParquetSchema) -> tuple[tuple[str, int], ...]:
    """The leaves of a file that are INT96 timestamps, given the physical types of all leaves."""
    if "INT96" not in physical_types:
        return ()
    pairs = zip(leaf_names(schema.to_arrow_schema()), physical_types, strict=True)
    return tuple(leaf for leaf, physical in pairs if physical == "INT96")


def int96_type(notes: Mapping[bytes, bytes], int96: Collection[tuple[str, int]]) -> pa.DataType:
    """The type of a file's INT96 timestamps: microseconds if its writer had no finer unit, else nanoseconds.

    >>> int96_type({SPARK_VERSION: b"4.1.0"}, [("at", 0)]), int96_type({}, [("at", 0)])
    (TimestampType(timestamp[us, tz=UTC]), TimestampType(timestamp[ns, tz=UTC]))
    """
    if _ARROW_SCHEMA not in notes:
        return MICROSECONDS if SPARK_VERSION in notes or SPARK_SCHEMA_KEY in notes else NANOSECONDS
    # The Arrow schema records the types before they were written as INT96.
    written = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(notes[_ARROW_SCHEMA])))
    kinds = (kind for item in written for kind in leaf_types(item.type))
    original = dict(zip(leaf_names(written), kinds, strict=True))
    coarse = all(
        pat.is_timestamp(kind) and kind.unit != "ns" for leaf in int96 for kind in [original.get(leaf, pa.null())]
    )
    return MICROSECONDS if coarse else NANOSECONDS


def is_micros(schema: pa.Schema | None, int96: Collection[tuple[str, int]]) -> bool:
    """Whether a file's schema declares its INT96 timestamps as microseconds."""
    if schema is None or not int96:
        return False
    kinds = (kind for item in schema for kind in leaf_types(item.type))
    return any(
        leaf in int96 and kind == MICROSECONDS for leaf, kind in zip(leaf_names(schema), kinds, strict=True)
    )


def with_instants(
    schema: pa.Schema, int96: Collection[tuple[str, int]], instant: pa.DataType = NANOSECONDS
) -> pa.Schema:
    """A schema as Arrow reads it, with INT96 timestamps as instants.

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


def _map_leaves(kind: pa.DataType, convert: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with each leaf replaced by the result of `convert`, called in leaf order."""
    if isinstance(kind, pa.BaseExtensionType) or not pat.is_nested(kind):
        return convert(kind)
    fields = [kind.field(at) for at in range(kind.num_fields)]
    if pat.is_map(kind):
        key, item = kind.key_field, kind.item_field
        key = key.with_type(_map_leaves(key.type, convert))
        return pa.map_(key, item.with_type(_map_leaves(item.type, convert)), kind.keys_sorted)
    fields = [item.with_type(_map_leaves(item.type, convert)) for item in fields]
    if pat.is_struct(kind):
        return pa.struct(fields)
    if pat.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.large_list(fields[0]) if pat.is_large_list(kind) else pa.list_(fields[0])


def in_seconds(source: Any) -> pq.ParquetFile:
    """A file whose INT96 timestamps are read as seconds, which can represent all of them."""
    return pq.ParquetFile(
        source, pre_buffer=False, coerce_int96_timestamp_unit="s", page_checksum_verification=True
    )


def check_int96_range(
    path: str, seconds: pq.ParquetFile, numbers: Sequence[int], leaves: Sequence[str] | None = None
) -> None:
    """Raise for years before 1677 or after 2262: Arrow decodes INT96 to nanoseconds, which silently overflow."""
    schema = seconds.metadata.schema
    columns = [c.path for c in map(schema.column, range(len(schema))) if c.physical_type == "INT96"]
    if leaves is not None:
        columns = [column for column in columns if column in leaves]
    for batch in seconds.iter_batches(_BATCH_ROWS, row_groups=list(numbers), columns=columns):
        for found in filter(lambda array: array.type == pa.timestamp("s"), _leaf_arrays(batch.columns)):
            bounds = pc.min_max(found.cast(pa.int64()))
            if bounds["min"].is_valid and (
                bounds["min"].as_py() <= -_NANOSECOND_SECONDS or bounds["max"].as_py() >= _NANOSECOND_SECONDS
            ):
                raise UnreadableFile(path, "it has INT96 timestamps outside of the years 1677 to 2262")


def _leaf_arrays(arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
    for array in arrays:
        if array.type.num_fields == 0 or isinstance(array, pa.DictionaryArray):
            yield array
        else:
            yield from _leaf_arrays(array.flatten() if pat.is_struct(array.type) else [array.values])
