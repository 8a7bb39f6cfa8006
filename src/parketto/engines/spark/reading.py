"""Datasets as Spark DataFrames: by Spark's own reader where that is exact, else by Arrow."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.engines.spark.shipping import PickledFunction
from parketto.engines.spark.tasks import raising_typed
from parketto.engines.spark.types import frame_type
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.exchange_types import exchange_name
from parketto.parquet.int96 import MICROSECONDS, with_instants
from parketto.parquet.logical_reader import LogicalReader
from parketto.parquet.row_source import FileRows
from parketto.parquet.spark_schema import needs_spark_schema, noted_fields, spark_only_types
from parketto.runtime.staging import Staging
from parketto.runtime.task import Worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Characters in paths that Spark interprets, as in glob patterns and URLs.
_SPECIAL = frozenset("{}[]*?\\:#,")
# Spark decodes every escaped byte as one character.
_ESCAPED_BYTES = re.compile("%[89A-Fa-f]")
_NATIVE_CODECS = frozenset({"snappy", "gzip", "lz4", "zstd", "none", None})


def read_files(spark: SparkSession, rows: FileRows, root: str, memory: int) -> DataFrame:
    """The rows of files as a DataFrame, in Spark's types.

    Unsigned 64-bit numbers become decimals, nanoseconds are truncated to microseconds, dictionaries become their
    values. Intervals, variants and geometries get Spark's own types from its reader; read by Arrow, they keep
    their storage types.
    """
    natural = natural_schema(rows.schema)
    if _spark_can(rows, root):
        reader = spark.read.schema(_described(natural, rows.schema))
        # Columns that are not in the files come from the path; otherwise the files alone count.
        reader = (
            reader.option("basePath", root)
            if rows.spec.path_only
            else reader.option("recursiveFileLookup", "true")
        )
        return _selected(reader.parquet(*(file.path for file in rows.files)), natural.names)
    parts = max(1, min(len(rows.files), 4096))
    positions = pa.table({"position": pa.array(range(len(rows.files)), pa.int32())})
    frame = spark.createDataFrame(positions).repartitionByRange(parts, "position")
    return frame.mapInArrow(PickledFunction(_ReadNatural(rows, natural, memory)), _struct(natural))


def _selected(frame: DataFrame, names: list[str]) -> DataFrame:
    """The requested columns, in order: Spark reads all columns of the path, and puts them last."""
    found = frame.columns
    if found == names:
        return frame
    # By position, so that Spark does not parse the names.
    numbered = frame.toDF(*map(exchange_name, range(len(found))))
    return numbered.select(*(exchange_name(found.index(name)) for name in names)).toDF(*names)


def natural_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of rows in Spark's types."""
    return pa.schema(pa.field(item.name, natural_type(item.type)) for item in decoded_schema(schema))


def natural_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow equivalent of the Spark type for an Arrow type.

    >>> natural_type(pa.timestamp("ns")), natural_type(pa.uint64()), natural_type(pa.large_string())
    (TimestampType(timestamp[us]), Decimal128Type(decimal128(20, 0)), DataType(string))
    """
    if isinstance(kind, pa.BaseExtensionType):
        return natural_type(kind.storage_type)
    if pat.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(kind.bit_width, pa.decimal128(20, 0))
    if pat.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pat.is_date(kind):
        return pa.date32()
    if pat.is_time(kind):
        return pa.int64()
    if pat.is_duration(kind):
        return pa.duration("us")
    if pat.is_float16(kind):
        return pa.float32()
    if pat.is_decimal(kind):
        fits = kind.precision <= 38 and 0 <= kind.scale <= kind.precision
        return pa.decimal128(kind.precision, kind.scale) if fits else pa.string()
    if pat.is_large_string(kind):
        return pa.string()
    if pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind):
        return pa.binary()
    if pat.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([pa.field(item.name, natural_type(item.type)) for item in fields])
    if pat.is_map(kind):
        return pa.map_(natural_type(kind.key_type), natural_type(kind.item_type))
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return pa.list_(natural_type(kind.value_type))
    return kind


def _spark_can(rows: FileRows, root: str) -> bool:
    """Whether Spark's own reader returns exactly these rows."""
    store, described = rows.store, spark_only_types(rows.schema.metadata)
    return (
        bool(rows.files)
        and store.local_path("/") is not None
        and all(item.name in described or _same(item.type) for item in _with_microseconds(rows))
        and all(
            file.has_stored_types
            and file.codecs <= _NATIVE_CODECS
            and _distinct([*(file.schema or rows.schema).names, *rows.spec.path_only])
            and _finds(file.path, root if rows.spec.path_only else posixpath.dirname(file.path))
            for file in rows.files
        )
    )


def _with_microseconds(rows: FileRows) -> pa.Schema:
    """The schema of rows; columns that are INT96 in all files are microseconds, as in Spark."""
    schema = decoded_schema(rows.schema)
    common = set.intersection(*(set(file.traits.int96) for file in rows.files))
    return with_instants(schema, common, MICROSECONDS)


def _finds(path: str, root: str) -> bool:
    """Whether Spark reads a path literally, and the folders below the root as the right partitions."""
    *folders, name = path[len(root) :].strip("/").split("/")
    return (
        not _SPECIAL.intersection(path)
        and not name.startswith(("_", "."))
        and all("=" in each.rstrip("=") and not _ESCAPED_BYTES.search(each) for each in folders)
    )


def _distinct(names: Sequence[str]) -> bool:
    """Whether names are distinct for Spark, which ignores case."""
    return len({name.lower() for name in names}) == len(names)


def _same(kind: pa.DataType) -> bool:
    """Whether Spark reads a type unchanged."""
    if pat.is_timestamp(kind):
        return kind.unit in ("us", "ms")
    if kind.num_fields and not pat.is_dictionary(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return _distinct([item.name for item in fields]) and all(_same(item.type) for item in fields)
    plain = natural_type(kind) == kind or pat.is_large_string(kind) or pat.is_large_binary(kind)
    return bool(plain and not pat.is_null(kind) and not pat.is_duration(kind))


def _struct(schema: pa.Schema) -> Any:
    from pyspark.sql import types as T  # noqa: N812 - the customary name

    return T.StructType([T.StructField(item.name, frame_type(item.type)) for item in schema])


def _described(natural: pa.Schema, schema: pa.Schema) -> Any:
    """The Spark schema to read columns with; types that Spark has recorded itself are kept."""
    from pyspark.sql import types as T  # noqa: N812

    recorded = {name: field for name, field in noted_fields(schema.metadata).items() if needs_spark_schema(field)}
    fields = [
        T.StructField.fromJson({"nullable": True, "metadata": {}, **recorded[item.name]})
        if item.name in recorded
        else T.StructField(item.name, frame_type(item.type))
        for item in natural
    ]
    return T.StructType(fields)


@dataclass(frozen=True)
class _ReadNatural:
    """Reads files in Spark tasks, in Spark's types."""

    rows: FileRows
    natural: pa.Schema
    memory: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with raising_typed(), Worker(self.rows.store, Staging(""), self.memory) as worker:
            reader = LogicalReader(self.rows.store, self.rows.schema, worker.batch_bytes, self.rows.spec)
            for position in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
                for batch in reader.read(self.rows.files[position]):
                    yield natural_batch(batch, self.natural)


def natural_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows in Spark's types."""
    columns = [_natural(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _natural(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if isinstance(column, pa.ExtensionArray):
        return _natural(column.storage, kind)
    if pat.is_null(column.type):
        return pa.nulls(len(column), kind)
    if pat.is_nested(kind):
        return _natural_nested(column, kind)
    if pat.is_time(column.type):
        return column.cast(pa.time64("ns")).cast(pa.int64())
    if pat.is_timestamp(column.type) and column.type.unit == "ns":
        # Round down, before 1970 as well; in UTC, where no hour occurs twice.
        return pc.floor_temporal(column.cast(pa.timestamp("ns", kind.tz)), unit="microsecond").cast(kind)
    return column.cast(kind, safe=not (pat.is_duration(kind) and column.type.unit == "ns"))


def _natural_nested(column: pa.Array, kind: pa.DataType) -> pa.Array:
    mask = column.is_null()
    if pat.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        children = [_natural(child, item.type) for child, item in zip(column.flatten(), fields, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if pat.is_map(kind):
        entries = pa.struct([column.type.key_field, column.type.item_field])
        column = column.cast(pa.list_(entries))
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    values = column.flatten()  # without the hidden values of NULL lists
    if pat.is_map(kind):
        keys, items = values.flatten()
        keys, items = _natural(keys, kind.key_type), _natural(items, kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    return pa.ListArray.from_arrays(offsets, _natural(values, kind.value_type), type=kind, mask=mask)
