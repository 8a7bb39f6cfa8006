"""Shared by the tests of both handlers: rows, sources, storage, and functions to inspect results and files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from conftest import Place
from helpers import oracle
from parketto import DuckDBParquetHandler, SparkParquetHandler

Handler = DuckDBParquetHandler | SparkParquetHandler

TABLE = pa.table({"id": pa.array(range(10), pa.int64()), "name": [f"n{n}" for n in range(10)]})
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
CODECS = ["snappy", "gzip", "lz4", "zstd", "brotli", "none"]
SOURCES: dict[str, Callable[[str], Any]] = {
    # Every kind of source that both handlers accept, for a folder with the file "a.parquet".
    "table": lambda _: TABLE,
    "chunked": lambda _: pa.concat_tables([TABLE.slice(0, 3), TABLE.slice(3)]),
    "batch": lambda _: TABLE.to_batches()[0],
    "reader": lambda _: TABLE.to_reader(max_chunksize=3),
    "pandas": lambda _: TABLE.to_pandas(),
    "pandas index": lambda _: TABLE.to_pandas().set_index("id"),
    "polars": lambda _: pl.from_arrow(TABLE),
    "lazy": lambda _: pl.from_arrow(TABLE).lazy(),
    "file": lambda folder: f"{folder}/a.parquet",
    "dataset": lambda folder: folder,
}
SQL_VALUES: list[Any] = [
    "'; DROP TABLE x; --",
    "a\\'b\n\0",
    None,
    dt.date(1969, 12, 31),
    '"; SELECT 1; --',
    "$1 ? $name :name",
    Decimal("1.50"),
    b"\x00'\xff",
    2**40,
    -1.5,
    True,
    [1, 2],
]


class ReadOnly(DirFileSystem):  # type: ignore[misc]
    """Storage without write access."""

    def makedirs(self, *_args: Any, **_options: Any) -> None:
        raise PermissionError("403: no write access to this bucket")

    mkdir = makedirs


def pairs(*rows: tuple[Any, Any]) -> pa.Table:
    ids, values = [id_ for id_, _ in rows], [value for _, value in rows]
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.string())})


def counted(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Numbers as another type, such as timestamps."""
    return pa.array(values, pa.int64()).cast(kind)


def nested(values: list[Any], plain: pa.DataType, kind: pa.DataType) -> pa.Array:
    return pa.array(values, plain).cast(kind)


def failing(table: pa.Table) -> pa.RecordBatchReader:
    """A reader that fails after its rows."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches()
        raise RuntimeError("boom")

    return pa.RecordBatchReader.from_batches(table.schema, batches())


def table_of(result: Any) -> pa.Table:
    """The result of a handler as a PyArrow table."""
    return result if isinstance(result, pa.Table) else result.toArrow()


def by_id(result: Any) -> list[dict[str, Any]]:
    return sorted(table_of(result).to_pylist(), key=lambda row: row["id"])


def tuples(result: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table_of(result).to_pylist()]


def sorted_rows(result: Any) -> list[str]:
    return sorted(map(repr, table_of(result).to_pylist()))


def read_both_ways(handler: SparkParquetHandler, path: Any, **options: Any) -> pa.Table:
    """What Spark reads; its own reader and the one through Arrow must agree on types and rows."""
    from parketto.engines.spark import reading

    frames = []
    for through_arrow in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if through_arrow:
                patch.setattr(reading, "_spark_can", lambda *_: False)
            frames.append(handler.read_parquet(path, **options))
    own, through = (frame.toArrow() for frame in frames)
    assert frames[0].dtypes == frames[1].dtypes
    assert sorted_rows(own) == sorted_rows(through)
    return own


def written(place: Place) -> pa.Table:
    """The rows of all files, read without Parketto."""
    found = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    return pa.concat_tables(found)


def touched(place: Place) -> dict[str, tuple[str, Any]]:
    """Every file with a hash of its bytes and, if the filesystem has it, the time of its last change."""
    times = {path[len(place.root) :]: place.fs.modified(path) for path in place.fs.find(place.root)}
    return {name: (content, times[name]) for name, content in place.state().items()}


def codecs(place: Place) -> set[str]:
    footers = [
        pq.ParquetFile(pa.BufferReader(place.fs.cat_file(path))).metadata
        for path in oracle.data_files(place.root, place.fs)
    ]
    return {
        footer.row_group(group).column(column).compression
        for footer in footers
        for group in range(footer.num_row_groups)
        for column in range(footer.num_columns)
    }


def stored_codec(codec: str) -> str:
    """The name of a codec in footers."""
    return {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
