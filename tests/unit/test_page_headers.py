"""Page indexes computed from page headers: they match the contents of the pages, or are omitted."""

from __future__ import annotations

import datetime as dt
import io
import math
import struct
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.parquet_files import check_chunks, check_pages, in_memory
from parketto.errors import FooterError
from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.footer import MetaKeys, read_footer
from parketto.parquet.offsets import compute_offsets
from parketto.parquet.page_index import PageIndex, index_pages
from parketto.parquet.thrift import BINARY, FALSE, I64, LIST, decode, decode_list, key

ROWS = 3000
SMALL_PAGES = {"data_page_size": 512, "write_batch_size": 64}


def table(rows: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "word": pa.array([None if n % 3 == 0 or n > 2500 else f"w{n % 100:03}" for n in range(rows)]),
            "real": pa.array([(n % 500 + 1) / 7 for n in range(rows)], pa.float64()),
            "flag": pa.array([n % 2 == 0 for n in range(rows)]),
            "day": pa.array([dt.date(2020, 1, 1) + dt.timedelta(n % 400) for n in range(rows)]),
            "empty": pa.array([None] * rows, pa.int32()),
        }
    )


def by_polars(rows: pa.Table, **options: Any) -> io.BytesIO:
    sink = io.BytesIO()
    pl.from_arrow(rows).write_parquet(sink, compression="snappy", **options)  # type: ignore[union-attr]
    return sink


def pages_of(made: PageIndex, num_rows: int) -> list[tuple[int, int, bool, bytes, bytes, int]]:
    """The pages of a column: first row, end, all NULL, bounds, NULLs."""
    places = decode(made.offset_index, {key(1, LIST): {}})[key(1, LIST)]
    first = [page[key(3, I64)] for page in places]
    bounds = decode(made.column_index)
    nulls = bounds[key(1, LIST)][-len(first) :]
    least, most = (decode_list(bounds[key(number, LIST)], BINARY) for number in (2, 3))
    counts = integers(bounds[key(5, LIST)], len(first))
    ends = [*first[1:], num_rows]
    return list(zip(first, ends, [null == 1 for null in nulls], least, most, counts, strict=True))


def slice_of(place_of: tuple[int, int]) -> slice:
    return slice(place_of[0], place_of[0] + place_of[1])


def integers(raw: bytes, count: int) -> list[int]:
    found, at = [], 1 if count < 15 else 2 if count < 128 else 3
    while at < len(raw):
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        found.append(value >> 1 ^ -(value & 1))
    assert len(found) == count
    return found


PLAIN = {"int64": "<q", "int32": "<i", "double": "<d", "date32[day]": "<i", "bool": "<?"}


def plain(value: Any, kind: pa.DataType) -> bytes:
    if pa.types.is_date(kind):
        value = (value - dt.date(1970, 1, 1)).days
    return value.encode() if isinstance(value, str) else struct.pack(PLAIN[str(kind)], value)


def value_of(raw: bytes, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return raw.decode()
    (value,) = struct.unpack(PLAIN[str(kind)], raw)
    return dt.date(1970, 1, 1) + dt.timedelta(value) if pa.types.is_date(kind) else value


def taken_over(source: io.BytesIO, like: pa.Table) -> bytes:
    whole = in_memory(like.schema.empty_table())
    source.seek(0)
    with RowGroupAppender(source) as out:
        out.take_over(read_footer(whole))
        out.finish()
    return source.getvalue()


def test_longer_original_footer_leaves_unused_bytes() -> None:
    """A file that is taken over is not truncated: bytes between its pages and its new footer are unused."""
    given = table(200)
    source = by_polars(given, metadata={"story": "once upon a time " * 2000})
    before = len(source.getvalue())
    taken = taken_over(source, given)
    assert len(taken) == before
    assert b"once upon a time" not in taken
    found = pq.ParquetFile(pa.BufferReader(taken))
    assert found.metadata.metadata is None or b"story" not in found.metadata.metadata
    assert found.read() == given
    assert pl.read_parquet(taken).to_arrow().cast(given.schema) == given
    assert check_pages(taken) > 0


@pytest.mark.parametrize("rows", [1, 14, 15, 200, ROWS])
@pytest.mark.parametrize("writer", ["polars", "arrow"])
def test_page_index_has_the_rows_and_bounds_of_every_page(rows: int, writer: str) -> None:
    """The index entry of each page is compared with the values of its rows."""
    given = table(rows)
    source = by_polars(given, data_page_size=512) if writer == "polars" else in_memory(given, **SMALL_PAGES)
    (group,) = read_footer(source).row_groups
    pages = 0
    for column, chunk in zip(given.columns, group.columns, strict=True):
        made = index_pages(source, chunk, rows)
        assert made is not None
        if not made.column_index:  # Arrow writes no statistics for a single NULL
            assert (writer, rows) == ("arrow", 1)
            continue
        for first, end, empty, least, most, nulls in pages_of(made, rows):
            values = column.slice(first, end - first).to_pylist()
            there = [value for value in values if value is not None]
            pages += 1
            assert nulls == len(values) - len(there)
            assert empty == (not there)
            if there and (column.type == pa.float64() or writer == "arrow"):
                assert least == plain(min(there), column.type)
                assert most == plain(max(there), column.type)
            elif there:  # with a dictionary, Polars gives each page the bounds of the column chunk
                assert value_of(least, column.type) <= min(there)
                assert value_of(most, column.type) >= max(there)
            else:
                assert (least, most) == (b"", b"")
    assert pages > (100 if rows == ROWS else 0)


def test_file_of_polars_gets_page_indexes_when_taken_over() -> None:
    given = table()
    data = taken_over(by_polars(given, data_page_size=512, row_group_size=700), given)
    assert pq.read_table(io.BytesIO(data)).equals(given)
    assert check_pages(data) > 100
    check_chunks(data)
    assert all(
        column.offset_index and column.column_index
        for group in read_footer(io.BytesIO(data)).row_groups
        for column in group.columns
    )


def test_taken_over_file_has_the_requested_schema_and_metadata() -> None:
    """Metadata and types come from the given footer; nothing of the footer of Polars is left."""
    given = table().replace_schema_metadata({"owner": "us"})
    data = taken_over(by_polars(given, row_group_size=700), given)
    found, expected = pq.ParquetFile(io.BytesIO(data)), pq.ParquetFile(in_memory(given))
    assert found.schema_arrow.equals(expected.schema_arrow, check_metadata=True)
    assert found.schema.equals(expected.schema)
    assert found.metadata.num_row_groups == 5
    assert found.read().equals(given)
    assert data.count(b"PAR1") == 2
    footer = read_footer(io.BytesIO(data))
    assert footer.column_orders == read_footer(in_memory(given)).column_orders


def test_float_bounds_handle_zeros_and_nan() -> None:
    """As the format requires: bounds of zero include -0.0 and +0.0, and NaN is never a bound."""
    given = pa.table({"zeros": [0.0, 0.0] * 8, "nan": [math.nan] * 16, "both": [math.nan, 1.0] * 8})
    source = by_polars(given)
    zeros, nan, both = (index_pages(source, column, 16) for column in read_footer(source).row_groups[0].columns)
    assert zeros
    assert [page[3:5] for page in pages_of(zeros, 16)] == [(struct.pack("<d", -0.0), struct.pack("<d", 0.0))]
    assert nan
    assert nan.offset_index
    assert not nan.column_index
    assert both
    assert [page[3:5] for page in pages_of(both, 16)] == [(struct.pack("<d", 1.0), struct.pack("<d", 1.0))]


def test_very_long_bounds_are_omitted() -> None:
    source = by_polars(pa.table({"text": ["\U0010ffff" * 2000, "y"]}))  # no text of 64 bytes is greater
    made = index_pages(source, read_footer(source).row_groups[0].columns[0], 2)
    assert made
    assert made.offset_index
    assert not made.column_index


def test_truncated_bounds_are_not_marked_exact() -> None:
    given = pa.table({"text": ["a" * 70, "z" * 70], "short": ["a", "z"], "number": [1, 2]})
    data = taken_over(by_polars(given), given)
    columns = read_footer(io.BytesIO(data)).row_groups[0].columns
    text, short, number = (decode(column.meta[MetaKeys.STATISTICS]) for column in columns)
    assert text[key(6, BINARY)] <= b"a" * 70
    assert text[key(5, BINARY)] >= b"z" * 70
    exactly = {key(7, FALSE), key(8, FALSE)}
    assert exactly <= text.keys()
    assert exactly.isdisjoint(short)
    assert exactly.isdisjoint(number)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_page_locations_equal_the_offset_index_of_arrow(version: str) -> None:
    """Nested columns are included if their page headers have row counts."""
    rows = table().append_column("list", pa.array([[n, None] if n % 5 else None for n in range(ROWS)]))
    rows = rows.append_column("struct", pa.array([{"id": n, "tags": [str(n)] * (n % 3)} for n in range(ROWS)]))
    source = in_memory(rows, write_page_index=True, data_page_version=version, **SMALL_PAGES)
    data, footer = source.getvalue(), read_footer(source)
    compared = 0
    for group in footer.row_groups:
        for column, leaf in zip(group.columns, footer.leaves, strict=True):
            assert column.offset_index
            listed = decode(data[slice_of(column.offset_index)], {key(1, LIST): {}})[key(1, LIST)]
            made = index_pages(source, column, group.num_rows)
            if made is None:
                assert leaf.repeated
                assert version == "1.0"
                continue
            pages = decode(made.offset_index, {key(1, LIST): {}})[key(1, LIST)]
            assert pages == listed
            compared += len(pages)
    assert compared > 50


def test_page_with_as_many_nulls_as_rows_is_not_a_null_page() -> None:
    """Rows have a value and a NULL each: readers must not skip the page."""
    rows = pa.table({"list": pa.array([[1, None]] * 1000)})
    source = in_memory(rows, data_page_version="2.0", **SMALL_PAGES)
    (group,) = read_footer(source).row_groups
    made = index_pages(source, group.columns[0], group.num_rows)
    assert made is not None
    assert made.offset_index
    if made.column_index:
        assert not any(empty for _, _, empty, *_ in pages_of(made, group.num_rows))


def test_page_indexes_are_computed_only_if_missing() -> None:
    with_index, without = in_memory(table(), write_page_index=True), in_memory(table(), write_page_index=False)
    for source, index_all in ((with_index, True), (without, True), (without, False)):
        placed = compute_offsets(source, read_footer(source), [0], 4, index_all=index_all)
        assert all(
            bool(chunk.offset_index) == (source is with_index or index_all) for chunk in placed.groups[0].chunks
        )


def test_taking_over_a_file_with_another_schema_is_refused() -> None:
    with pytest.raises(FooterError, match="taken over"):
        taken_over(by_polars(table()), table().drop_columns(["day"]))
    with pytest.raises(FooterError, match="taken over"):
        taken_over(by_polars(table()), table().set_column(0, "id", table()["id"].cast(pa.int32())))
    required = table().cast(table().schema.set(0, pa.field("id", pa.int64(), nullable=False)))
    with pytest.raises(FooterError, match="taken over"):
        taken_over(by_polars(table()), required)


def test_damaged_page_headers_raise_only_footer_errors() -> None:
    """Each byte of the first headers is changed: the result is an index, none, or a FooterError."""
    source = by_polars(table(), data_page_size=512)
    data = bytearray(source.getvalue())
    group = read_footer(source).row_groups[0]
    for column in group.columns:
        for at in range(column.start, min(column.start + 60, column.start + column.size)):
            for value in (0, 1, 0x15, 0x7F, 0x80, 0xFF, data[at] ^ 0x10):
                changed = bytearray(data)
                changed[at] = value
                try:
                    found = index_pages(io.BytesIO(changed), column, group.num_rows)
                except FooterError:
                    continue
                assert found is None or found.offset_index
