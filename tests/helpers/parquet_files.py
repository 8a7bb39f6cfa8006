"""Helpers to write, combine and read Parquet files, and to check their pages."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.footer import Footer, read_footer
from parketto.parquet.thrift import I32, I64, LIST, decode, decode_first, key

_LOCATIONS = {key(1, LIST): {}}


def in_memory(table: pa.Table, **options: Any) -> io.BytesIO:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink


def content(path: Any) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def footer_of(path: Any) -> Footer:
    with open(path, "rb") as file:
        return read_footer(file)


def any_arrow(_one: bytes | None, _other: bytes | None) -> bool:
    return True


def joined(sources: Iterable[Any], **options: Any) -> bytes:
    """The files combined into one, in memory."""
    sink = io.BytesIO()
    with RowGroupAppender(sink, **options) as out:
        for source in sources:
            out.append(source, read_footer(source))
        assert out.finish() == len(sink.getvalue())
    return sink.getvalue()


def join_paths(paths: Iterable[Any], target: Any, **options: Any) -> str:
    """The files combined into one, on disk."""
    with open(target, "wb") as sink, RowGroupAppender(sink, **options) as out:
        for path in paths:
            with open(path, "rb") as source:
                out.append(source, read_footer(source))
    return str(target)


def read_by_duckdb(paths: list[str], where: str = "true") -> list[Any]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(f"SELECT * FROM read_parquet($1) WHERE {where}", [paths]).fetchall()


def read_by_polars(paths: list[str], where: Any = True) -> pl.DataFrame:
    return pl.concat([pl.scan_parquet(path).filter(where).collect() for path in paths])


def read_by_pyarrow(paths: list[str], filters: Any = None) -> pa.Table:
    return pa.concat_tables([pq.read_table(path, filters=filters) for path in paths])


def assert_same_rows(out: str, inputs: list[str], *, polars: bool = True) -> None:
    """Three readers get the same rows from the output as from the inputs."""
    pq.ParquetFile(out).metadata.to_dict()
    assert read_by_pyarrow([out]).equals(read_by_pyarrow(inputs))
    assert read_by_duckdb([out]) == read_by_duckdb(inputs)
    if polars:
        assert read_by_polars([out]).equals(read_by_polars(inputs))


def page_places(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(row group, column, offset, size) of every page that an offset index lists."""
    footer = read_footer(io.BytesIO(data))
    for number, group in enumerate(footer.row_groups):
        for position, column in enumerate(group.columns):
            if column.offset_index:
                start, size = column.offset_index
                for page in decode(data[start : start + size], _LOCATIONS)[key(1, LIST)]:
                    yield number, position, page[key(1, I64)], page[key(2, I32)]


def check_pages(data: bytes) -> int:
    """Check the position, header and size of every page in the offset indexes; return their number."""
    footer = read_footer(io.BytesIO(data))
    pages = 0
    for group, position, offset, size in page_places(data):
        column = footer.row_groups[group].columns[position]
        assert column.start <= offset
        assert offset + size <= column.start + column.size
        header, length = decode_first(data[offset : offset + size])
        assert header[key(1, I32)] in (0, 3)
        assert length + header[key(3, I32)] == size
        pages += 1
    return pages


def check_chunks(data: bytes) -> None:
    """Every column chunk is a chain of pages that ends where the chunk does."""
    footer: Footer = read_footer(io.BytesIO(data))
    for group in footer.row_groups:
        for column in group.columns:
            at, end = column.start, column.start + column.size
            while at < end:
                header, length = decode_first(data[at:end])
                at += length + header[key(3, I32)]
            assert at == end
