"""Row groups copied except for some columns: readers see the new columns, and refused patches write nothing."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.exotic import exotic
from helpers.parquet_files import (
    any_arrow,
    check_chunks,
    check_pages,
    in_memory,
    read_by_duckdb,
    read_by_polars,
)
from parketto.errors import FooterError, InvalidArgument
from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.footer import ChunkKeys, FileKeys, Footer, GroupKeys, MetaKeys, read_footer
from parketto.parquet.thrift import encode

ROWS, GROUPS = 1200, 3
PER_GROUP = ROWS // GROUPS
CODECS = ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]


def table(first: int = 0) -> pa.Table:
    """Columns of several types. A different `first` changes all values, and their ranges."""
    ids = range(first, first + ROWS)
    return pa.table(
        {
            "flag": pa.array([n % 3 == 0 for n in ids]),
            "id": pa.array(ids, pa.int64()),
            "word": pa.array([None if n % 7 == 0 else f"word {first} {n % 40}" for n in ids]),
            "list": pa.array([[n, None, first] if n % 5 else None for n in ids], pa.list_(pa.int64())),
            "struct": pa.array([{"id": n, "tags": [str(n)] * (n % 3)} for n in ids]),
            "real": pa.array([n / 7 for n in ids], pa.float64()),
        }
    )


def grafted(
    source: io.BytesIO, patches: dict[int, io.BytesIO], sorting_columns: bytes | None = None, **options: Any
) -> bytes:
    """A copy of the source in which patched row groups take columns from their patch."""
    footer, sink = read_footer(source), io.BytesIO()
    with RowGroupAppender(sink, **options) as out:
        for number in range(len(footer.row_groups)):
            if (patch := patches.get(number)) is None:
                out.append(source, footer, [number])
            else:
                out.replace_columns(source, footer, number, patch, read_footer(patch), sorting_columns)
        assert out.finish() == len(sink.getvalue())
    return sink.getvalue()


def patch_of(new: pa.Table, names: list[str], number: int, **options: Any) -> io.BytesIO:
    """The columns of the rows of one row group."""
    rows = new.select(names).slice(number * PER_GROUP, PER_GROUP)
    return in_memory(rows, store_schema=False, write_page_index=True, **options)


def with_columns(old: pa.Table, new: pa.Table, names: list[str], numbers: list[int]) -> pa.Table:
    """The expected table: the new columns in the rows of some row groups."""
    parts = []
    for number in range(GROUPS):
        part, other = (each.slice(number * PER_GROUP, PER_GROUP) for each in (old, new))
        for name in names if number in numbers else ():
            part = part.set_column(old.schema.get_field_index(name), old.schema.field(name), other.column(name))
        parts.append(part)
    return pa.concat_tables(parts)


def check_sound(data: bytes) -> None:
    """Pages are where the footer says, sizes match the chunks, each row group starts with its first column."""
    check_chunks(data)
    check_pages(data)
    footer = read_footer(io.BytesIO(data))
    for group in footer.row_groups:
        assert group.fields[GroupKeys.TOTAL_COMPRESSED_SIZE] == sum(column.size for column in group.columns)
        assert group.total_byte_size == group.total_uncompressed_size
        start = group.columns[0].start
        assert group.fields[GroupKeys.FILE_OFFSET] == start == min(column.start for column in group.columns)
        # Spark and other readers that split files assign a row group by its midpoint.
        middle = start + group.fields[GroupKeys.TOTAL_COMPRESSED_SIZE] // 2
        assert middle < max(column.start + column.size for column in group.columns)
    ranges = sorted((c.start, c.start + c.size) for group in footer.row_groups for c in group.columns)
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(ranges))


def chunk(data: bytes, group: int, column: int) -> bytes:
    found = read_footer(io.BytesIO(data)).row_groups[group].columns[column]
    return data[found.start : found.start + found.size]


@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", CODECS)
def test_columns_are_replaced_for_every_codec_and_page_version(
    tmp_path: Any, codec: str, page_version: str
) -> None:
    """The patch uses another page version, and mostly another codec, than the source."""
    old, new, names = table(), table(10_000), ["id", "list"]
    source = in_memory(
        old,
        row_group_size=PER_GROUP,
        compression=codec,
        data_page_version=page_version,
        data_page_size=400,
        write_page_index=True,
    )
    other = {"data_page_version": "2.0" if page_version == "1.0" else "1.0", "compression": "zstd"}
    data = grafted(source, {number: patch_of(new, names, number, **other) for number in (0, 2)})
    check_sound(data)
    expected = with_columns(old, new, names, [0, 2])
    assert pq.read_table(io.BytesIO(data)).equals(expected)
    path, plain = tmp_path / "out.parquet", tmp_path / "plain.parquet"
    path.write_bytes(data)
    pq.write_table(expected, plain)
    assert read_by_duckdb([str(path)]) == read_by_duckdb([str(plain)])
    assert read_by_polars([str(path)]).equals(read_by_polars([str(plain)]))
    for number in range(GROUPS):
        for column, leaf in enumerate(read_footer(source).leaves):
            same = chunk(data, number, column) == chunk(source.getvalue(), number, column)
            assert same == (number == 1 or leaf.path[0].decode() not in names)


@pytest.mark.parametrize("names", [["flag"], ["real"], ["flag", "real"], ["struct"], ["list", "struct"], ["word"]])
def test_columns_are_replaced_at_every_position(names: list[str]) -> None:
    """Above all the first column: readers that split files locate a row group by its offset."""
    old, new = table(), table(10_000)
    source = in_memory(old, row_group_size=PER_GROUP, write_page_index=True)
    data = grafted(source, {number: patch_of(new, names, number) for number in range(GROUPS)})
    check_sound(data)
    assert pq.read_table(io.BytesIO(data)).equals(with_columns(old, new, names, [0, 1, 2]))
    again = io.BytesIO(data)
    twice = grafted(again, {1: patch_of(old, names, 1)})
    check_sound(twice)
    assert pq.read_table(io.BytesIO(twice)).equals(with_columns(old, new, names, [0, 2]))


@pytest.mark.parametrize("name", exotic(0).schema.names)
def test_columns_of_every_type_are_replaced(name: str) -> None:
    """Each column, one of every type, gets the values of other rows."""
    old, new = exotic(1), exotic(2)
    source = in_memory(old, store_schema=True, write_page_index=True)
    patch = in_memory(new.select([name]), store_schema=True, write_page_index=True)
    data = grafted(source, {0: patch})
    check_sound(data)
    before, after = pq.ParquetFile(source).read(), pq.ParquetFile(io.BytesIO(data)).read()
    at = old.schema.get_field_index(name)
    values = pq.ParquetFile(patch).read().column(0)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.equals(before.set_column(at, before.schema.field(at), values))


def test_bounds_are_those_of_the_new_values(tmp_path: Any) -> None:
    """For row groups and pages: filters find the new values, and none of the old ones."""
    old, new = table(), table(10_000)
    source = in_memory(
        old,
        row_group_size=PER_GROUP,
        write_page_index=True,
        data_page_size=300,
        bloom_filter_options={"id": {"ndv": PER_GROUP}, "word": {"ndv": 50}},
    )
    data = grafted(source, {1: patch_of(new, ["id"], 1, data_page_size=300)})
    check_sound(data)
    path = tmp_path / "out.parquet"
    path.write_bytes(data)
    footer = pq.read_metadata(path)
    bounds = [footer.row_group(n).column(1).statistics for n in range(GROUPS)]
    assert [(each.min, each.max) for each in bounds] == [(0, 399), (10_400, 10_799), (800, 1199)]
    groups = read_footer(io.BytesIO(data)).row_groups
    assert [group.columns[1].bloom_filter is None for group in groups] == [False, True, False]
    assert all(group.columns[2].bloom_filter for group in groups)
    for value, count in ((10_500, 1), (500, 0), (900, 1), (10_900, 0)):
        assert pq.read_table(path, filters=[("id", "=", value)]).num_rows == count
        assert len(read_by_duckdb([str(path)], f"id = {value}")) == count
        assert read_by_polars([str(path)], pl.col("id") == value).height == count
    for word, count in (("word 0 39", 9), ("word 10000 39", 0)):
        found = [row for row in old.slice(PER_GROUP, PER_GROUP).column("word").to_pylist() if row == word]
        assert bool(found) == bool(count)
        with duckdb.connect() as connection:
            where = f"SELECT count(*) FROM '{path}' WHERE word = '{word}'"
            assert connection.sql(where).fetchall() == [(old.column("word").to_pylist().count(word),)]


def test_no_page_index_is_written_if_the_source_has_none() -> None:
    """Some readers give up at a column without one, others look at the first column only."""
    source = in_memory(table(), row_group_size=PER_GROUP)
    data = grafted(source, {1: patch_of(table(10_000), ["id"], 1)})
    for group in read_footer(io.BytesIO(data)).row_groups:
        assert all(column.offset_index is None and column.column_index is None for column in group.columns)


def test_missing_column_orders_are_not_taken_from_the_patch() -> None:
    """Readers must not start to trust the bounds of a file that declares no column orders."""
    content = in_memory(table(), row_group_size=PER_GROUP, write_page_index=True).getvalue()
    source = io.BytesIO(with_footer(content, lambda fields: fields.pop(FileKeys.COLUMN_ORDERS)))
    data = grafted(source, {1: patch_of(table(10_000), ["id"], 1)})
    assert read_footer(io.BytesIO(data)).column_orders is None
    assert pq.read_table(io.BytesIO(data)).num_rows == ROWS


def test_sorting_columns_of_a_patched_row_group_can_be_changed() -> None:
    options: dict[str, Any] = {"row_group_size": PER_GROUP, "sorting_columns": [pq.SortingColumn(1)]}
    source = in_memory(table(), **options)
    raw = read_footer(source).row_groups[0].sorting_columns
    for declared, expected in ((None, raw), (b"", b""), (raw, raw)):
        data = grafted(source, {1: patch_of(table(10_000), ["word"], 1)}, declared)
        assert [group.sorting_columns for group in read_footer(io.BytesIO(data)).row_groups] == [
            raw,
            expected,
            raw,
        ]


def test_footer_declares_the_newer_format_version() -> None:
    """So that readers of the older version know that encodings may be unknown to them."""
    columns = table().select(["flag", "id", "real"])
    source = in_memory(columns, row_group_size=PER_GROUP, version="1.0")
    patch = patch_of(columns, ["id"], 1, version="2.6")
    data = grafted(source, {1: patch}, same_arrow_schema=any_arrow)
    assert read_footer(io.BytesIO(data)).fields[FileKeys.VERSION] == read_footer(patch).fields[FileKeys.VERSION]


def with_footer(content: bytes, change: Callable[[dict[int, Any]], object]) -> bytes:
    """The same file with a changed footer."""
    footer = read_footer(io.BytesIO(content))
    fields = dict(footer.fields)
    change(fields)
    new = encode(fields)
    return content[: footer.data_end] + new + len(new).to_bytes(4, "little") + b"PAR1"


def retyped(name: str, kind: pa.DataType | None = None, *, nullable: bool = True) -> io.BytesIO:
    """A column of the second row group with another type or nullability."""
    column = table().column(name).slice(PER_GROUP, PER_GROUP)
    return in_memory(
        pa.table([column.cast(kind or column.type)], pa.schema([pa.field(name, kind or column.type, nullable)]))
    )


def of_another_writer() -> io.BytesIO:
    content = patch_of(table(), ["id"], 1).getvalue()
    return io.BytesIO(with_footer(content, lambda fields: fields.update({FileKeys.CREATED_BY: b"somebody"})))


def without_column_orders() -> io.BytesIO:
    content = patch_of(table(), ["id"], 1).getvalue()
    return io.BytesIO(with_footer(content, lambda fields: fields.pop(FileKeys.COLUMN_ORDERS)))


def two_row_groups() -> io.BytesIO:
    return in_memory(table().select(["id"]).slice(0, PER_GROUP), row_group_size=PER_GROUP // 2)


REFUSED: dict[str, tuple[Callable[[], io.BytesIO], str]] = {
    "unknown columns": (lambda: in_memory(pa.table({"other": range(PER_GROUP)})), "columns of the file"),
    "one column more": (
        lambda: in_memory(table().select(["id"]).slice(0, PER_GROUP).append_column("x", [[1] * PER_GROUP])),
        "columns of the file",
    ),
    "another order": (lambda: patch_of(table(), ["word", "id"], 1), "columns of the file"),
    "another type": (lambda: retyped("id", pa.int32()), "columns of the file"),
    "another meaning": (lambda: retyped("id", pa.timestamp("us")), "columns of the file"),
    "another precision": (lambda: retyped("id", pa.uint64()), "schemas differ in 'id'"),
    "never null": (lambda: retyped("id", nullable=False), "schemas differ in 'id'"),
    "a part of a struct": (
        lambda: in_memory(pa.table({"struct": pa.array([{"id": 1}] * PER_GROUP)})),
        "fields",
    ),
    "all columns": (lambda: patch_of(table(), table().schema.names, 1), "all columns of the row group"),
    "fewer rows": (lambda: in_memory(table().select(["id"]).slice(0, PER_GROUP - 1)), "399 rows do not fit"),
    "more rows": (lambda: in_memory(table().select(["id"]).slice(0, PER_GROUP + 1)), "401 rows do not fit"),
    "no rows": (lambda: in_memory(table().select(["id"]).slice(0, 0)), "one row group|0 rows do not fit"),
    "several row groups": (two_row_groups, "one row group"),
    "a writer without a version": (of_another_writer, "does not declare its version"),
    "bounds in no order": (without_column_orders, "column orders are missing"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_patch_writes_nothing(why: str) -> None:
    """The row group can still be copied, or patched with other columns."""
    make, message = REFUSED[why]
    source, sink = in_memory(table(), row_group_size=PER_GROUP), io.BytesIO()
    footer, patch = read_footer(source), make()
    with RowGroupAppender(sink) as out:
        out.append(source, footer, [0])
        before = sink.getvalue(), out.size_bytes, out.num_rows, out.num_row_groups
        with pytest.raises(FooterError, match=message):
            out.replace_columns(source, footer, 1, patch, read_footer(patch))
        assert (sink.getvalue(), out.size_bytes, out.num_rows, out.num_row_groups) == before
        assert out.is_open
        out.append(source, footer, [1, 2])
    assert pq.read_table(io.BytesIO(sink.getvalue())).equals(table())


@pytest.mark.parametrize("changed", ["source", "patch"])
def test_files_that_have_changed_are_refused(changed: str) -> None:
    source, sink = in_memory(table(), row_group_size=PER_GROUP), io.BytesIO()
    footer, patch = read_footer(source), patch_of(table(), ["id"], 1)
    patch_footer = read_footer(patch)
    {"source": source, "patch": patch}[changed].write(b"more")
    with RowGroupAppender(sink) as out:
        with pytest.raises(FooterError, match="has changed"):
            out.replace_columns(source, footer, 1, patch, patch_footer)
        assert not sink.getvalue()
        assert out.is_open
        out.append(again := in_memory(table()), read_footer(again))


def test_row_group_number_out_of_range_is_refused() -> None:
    source, patch = in_memory(table(), row_group_size=PER_GROUP), patch_of(table(), ["id"], 1)
    out = RowGroupAppender(io.BytesIO())
    for number in (-1, GROUPS):
        with pytest.raises(InvalidArgument, match="3 row groups"):
            out.replace_columns(source, read_footer(source), number, patch, read_footer(patch))


def test_patch_with_page_offsets_beyond_its_end_is_refused() -> None:
    """Source and patch are validated before the first byte is written."""
    source, sink = in_memory(table(), row_group_size=PER_GROUP), io.BytesIO()
    patch = patch_of(table(), ["id"], 1)
    broken = read_footer(patch)
    broken.row_groups[0].columns[0].meta[MetaKeys.DATA_PAGE_OFFSET] += 10**6
    out = RowGroupAppender(sink)
    with pytest.raises(FooterError):
        out.replace_columns(source, read_footer(source), 1, patch, broken)
    assert not sink.getvalue()
    assert out.is_open


def test_duplicate_column_names_are_refused() -> None:
    rows = pa.table([range(5), range(5), range(5)], names=["a", "b", "b"])
    source, patch = in_memory(rows), in_memory(pa.table({"b": range(5)}))
    with pytest.raises(FooterError, match="columns of the file"):
        grafted(source, {0: patch}, same_arrow_schema=any_arrow)


def test_column_name_with_a_dot_is_not_confused_with_a_struct_field() -> None:
    """Both have the same dotted path."""
    rows = pa.table({"a": [{"b": 1}, {"b": 2}], "a.b": [3, 4], "c": [5, 6]})
    source = in_memory(rows)
    for name, values in (("a.b", [7, 8]), ("a", [{"b": 7}, {"b": 8}])):
        data = grafted(source, {0: in_memory(pa.table({name: values}))}, same_arrow_schema=any_arrow)
        expected = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))
        assert pq.ParquetFile(io.BytesIO(data)).read().equals(expected)


NOT_HERE: dict[str, tuple[int, Any]] = {
    "in other files": (ChunkKeys.FILE_PATH, b"other.parquet"),
    "encrypted": (ChunkKeys.CRYPTO, {}),
}


def with_unreadable_column(footer: Footer, why: str) -> Footer:
    """A footer that declares the pages of its first column external or encrypted."""
    place, value = NOT_HERE[why]
    footer.row_groups[0].columns[0].fields[place] = value
    return footer


@pytest.mark.parametrize("why", NOT_HERE)
def test_external_and_encrypted_pages_are_refused_in_source_and_patch(why: str) -> None:
    source, patch = in_memory(table(), row_group_size=PER_GROUP), patch_of(table(), ["id"], 1)
    sink = io.BytesIO()
    out = RowGroupAppender(sink)
    with pytest.raises(FooterError, match=why):
        out.replace_columns(source, with_unreadable_column(read_footer(source), why), 1, patch, read_footer(patch))
    with pytest.raises(FooterError, match=why):
        out.replace_columns(source, read_footer(source), 1, patch, with_unreadable_column(read_footer(patch), why))
    assert not sink.getvalue()
    assert out.is_open


def test_first_column_is_moved_to_the_start_of_the_row_group() -> None:
    """Columns may be stored in any order; readers that split files expect the first one first."""
    plain: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
    rows = pa.table({"small": pa.array([1] * 100, pa.int32()), "large": pa.array(range(100), pa.int64())})
    before = in_memory(rows, **plain).getvalue()
    small, large = (chunk(before, 0, column) for column in range(2))

    def swapped(fields: dict[int, Any]) -> None:
        columns = read_footer(io.BytesIO(before)).row_groups[0].columns
        columns[0].meta[MetaKeys.DATA_PAGE_OFFSET] = 4 + len(large)
        columns[1].meta[MetaKeys.DATA_PAGE_OFFSET] = 4
        fields[FileKeys.ROW_GROUPS][0][GroupKeys.COLUMNS] = [column.fields for column in columns]

    end = read_footer(io.BytesIO(before)).data_end
    source = with_footer(before, swapped)
    source = source[:4] + large + small + source[4 + len(large) + len(small) : end] + source[end:]
    assert pq.read_table(io.BytesIO(source)).equals(rows)
    data = grafted(io.BytesIO(source), {})
    check_sound(data)
    assert pq.read_table(io.BytesIO(data)).equals(rows)
