"""Datasets as Spark DataFrames: through Spark's own reader where it can, through Arrow where it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.engines.spark.carriers import frame_type
from parketto.engines.spark.shipping import Shipped
from parketto.engines.spark.tasks import raising_typed
from parketto.kernels.carrier import carrier_schema
from parketto.kernels.reader import LogicalReader
from parketto.kernels.rows import FileRows
from parketto.kernels.work import Staging, Worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark takes paths for patterns and URLs.
_SPECIAL = frozenset("{}[]*?\\:#,")
_NATIVE_CODECS = frozenset({"snappy", "gzip", "lz4", "zstd", "none", None})


def read_files(spark: SparkSession, rows: FileRows, root: str, memory: int) -> DataFrame:
    """The rows of files in the types that Spark has for them.

    Unsigned 64-bit numbers become decimals, nanoseconds are cut to microseconds, dictionaries become their values.
    """
    natural = natural_schema(rows.schema)
    if _spark_can(rows):
        reader = spark.read.schema(_struct(natural))
        # Only the path knows columns that are not in the files; otherwise the files alone are to be believed.
        reader = (
            reader.option("basePath", root)
            if rows.form.path_only
            else reader.option("recursiveFileLookup", "true")
        )
        return reader.parquet(*(file.path for file in rows.files))
    parts = max(1, min(len(rows.files), 4096))
    positions = pa.table({"position": pa.array(range(len(rows.files)), pa.int32())})
    frame = spark.createDataFrame(positions).repartitionByRange(parts, "position")
    return frame.mapInArrow(Shipped(_ReadNatural(rows, natural, memory)), _struct(natural))


def natural_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in which Spark sees rows."""
    return pa.schema(pa.field(item.name, natural_type(item.type)) for item in carrier_schema(schema))


def natural_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark's own type for a kind of values corresponds to.

    >>> natural_type(pa.timestamp("ns")), natural_type(pa.uint64()), natural_type(pa.large_string())
    (TimestampType(timestamp[us]), Decimal128Type(decimal128(20, 0)), DataType(string))
    """
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


def _spark_can(rows: FileRows) -> bool:
    """Whether Spark's own reader gives exactly these rows."""
    store = rows.store
    return (
        bool(rows.files)
        and store.local_path("/") is not None
        and all(_same(kind) for kind in carrier_schema(rows.schema).types)
        and all(
            file.codec in _NATIVE_CODECS
            and not file.traits.int96_timestamps
            and not _SPECIAL.intersection(file.path)
            for file in rows.files
        )
    )


def _same(kind: pa.DataType) -> bool:
    """Whether Spark reads a type as it is."""
    if pat.is_timestamp(kind):
        return kind.unit in ("us", "ms")
    if kind.num_fields and not pat.is_dictionary(kind):
        return all(_same(kind.field(at).type) for at in range(kind.num_fields))
    plain = natural_type(kind) == kind or pat.is_large_string(kind) or pat.is_large_binary(kind)
    return bool(plain and not pat.is_null(kind) and not pat.is_duration(kind))


def _struct(schema: pa.Schema) -> Any:
    from pyspark.sql import types as T  # noqa: N812 - the customary name

    return T.StructType([T.StructField(item.name, frame_type(item.type)) for item in schema])


@dataclass(frozen=True)
class _ReadNatural:
    """Reads files inside of Spark tasks, in the types that Spark has for them."""

    rows: FileRows
    natural: pa.Schema
    memory: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with raising_typed(), Worker(self.rows.store, Staging(""), self.memory) as worker:
            reader = LogicalReader(self.rows.store, self.rows.schema, worker.batch_bytes, self.rows.form)
            for position in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
                for batch in reader.read(self.rows.files[position]):
                    yield self._converted(batch)

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [_natural(column, kind) for column, kind in zip(batch.columns, self.natural.types, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.natural)


def _natural(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pat.is_null(column.type):
        return pa.nulls(len(column), kind)
    if pat.is_time(column.type):
        return column.cast(pa.time64("ns")).cast(pa.int64())
    if pat.is_timestamp(column.type) and column.type.unit == "ns":
        # Down to the microsecond before, for instants before 1970 as well.
        return pc.floor_temporal(column, unit="microsecond").cast(kind)
    return column.cast(kind, safe=False) if pat.is_nested(kind) else column.cast(kind)
