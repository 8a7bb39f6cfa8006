"""Row groups appended as bytes: every reader sees the rows, page indexes and Bloom filters of the inputs."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import random
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.appending import append_files
from helpers.parquet_files import (
    any_arrow,
    assert_same_rows,
    check_chunks,
    check_pages,
    content,
    footer_of,
    in_memory,
    join_paths,
    joined,
    page_places,
    read_by_duckdb,
    read_by_polars,
    read_by_pyarrow,
)
from parketto.errors import FooterError, InvalidArgument
from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.footer import FOOTER_SHAPE, ChunkKeys, FileKeys, GroupKeys, MetaKeys, read_footer
from parketto.parquet.thrift import BINARY, I64, LIST, STRUCT, decode, encode, key

ROWS = 1500
EPOCH = dt.datetime(2024, 1, 1)  # noqa: DTZ001


def everything(seed: int, rows: int = ROWS) -> pa.Table:
    """Types of all kinds, with nulls, lists in lists, and two leaves of the same name."""
    chance = random.Random(seed)

    def some(make: Any) -> list[Any]:
        return [None if chance.random() < 0.1 else make() for _ in range(rows)]

    def number() -> int:
        return chance.randrange(-1000, 1000)

    nested = pa.list_(pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))
    return pa.table(
        {
            "id": pa.array(range(seed * rows, (seed + 1) * rows), pa.int64()),
            "small": pa.array(some(lambda: number() % 100), pa.int8()),
            "unsigned": pa.array(some(lambda: abs(number())), pa.uint32()),
            "real": pa.array(some(chance.random), pa.float64()),
            "flag": pa.array(some(lambda: chance.random() < 0.5), pa.bool_()),
            "word": pa.array(some(lambda: f"word {number() % 50}"), pa.string()),
            "text": pa.array(some(lambda: f"{chance.random()}" * 3), pa.string()),
            "blob": pa.array(some(lambda: chance.randbytes(5)), pa.binary()),
            "day": pa.array(some(lambda: dt.date(2020, 1, 1) + dt.timedelta(number())), pa.date32()),
            "at": pa.array(some(lambda: EPOCH + dt.timedelta(seconds=number())), pa.timestamp("us")),
            "price": pa.array(some(lambda: decimal.Decimal(number()) / 100), pa.decimal128(10, 2)),
            "struct": pa.array(some(lambda: {"id": number(), "name": str(number())})),
            "list": pa.array(some(lambda: [number()] * (number() % 4)), pa.list_(pa.int32())),
            "deep": pa.array(some(lambda: [{"id": 1, "tags": ["a", None]}] * (number() % 3)), nested),
            "map": pa.array(some(lambda: [("k", number())]), pa.map_(pa.string(), pa.int64())),
        }
    )


@pytest.fixture
def several(tmp_path):
    def write(tables: list[pa.Table], **options: Any) -> list[str]:
        paths = []
        for number, table in enumerate(tables):
            paths.append(str(tmp_path / f"{len(list(tmp_path.iterdir()))}-{number}.parquet"))
            pq.write_table(table, paths[-1], **options)
        return paths

    return write


@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_copies_keep_rows_for_every_codec_and_page_version(several, tmp_path, codec, page_version) -> None:
    options = {"compression": codec, "data_page_version": page_version, "row_group_size": 700}
    paths = several([everything(number) for number in range(3)], **options, write_page_index=True)
    out = join_paths(paths, tmp_path / "out")
    assert_same_rows(out, paths)
    assert (footer_of(out).created_by or b"").startswith(b"parketto version ")  # pages of several files
    data = (tmp_path / "out").read_bytes()
    check_chunks(data)
    assert check_pages(data) >= 3 * 3 * 15


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": False},
        {"use_dictionary": ["word"], "data_page_size": 500, "write_batch_size": 50},
        {"use_deprecated_int96_timestamps": True},
        {"store_decimal_as_integer": True},
        {"write_statistics": False},
        {"write_page_checksum": True},
        {"version": "1.0"},
        {"use_dictionary": False, "column_encoding": {"id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"}},
        {"sorting_columns": [pq.SortingColumn(0)]},
        {"store_schema": False},
        {"flavor": "spark"},
    ],
    ids=str,
)
def test_rows_statistics_and_metadata_survive_every_writer_option(several, tmp_path, options) -> None:
    if options.get("flavor") == "spark":
        tables = [everything(number).drop_columns(["map", "deep"]) for number in range(2)]
    else:
        tables = [everything(number) for number in range(2)]
    paths = several(tables, **options, row_group_size=600)
    out = join_paths(paths, tmp_path / "out")
    assert_same_rows(out, paths)
    one, many = pq.read_metadata(out), [pq.read_metadata(path) for path in paths]
    groups = [footer.row_group(number) for footer in many for number in range(footer.num_row_groups)]
    for number, group in enumerate(groups):
        new = one.row_group(number)
        assert new.sorting_columns == group.sorting_columns
        assert new.total_byte_size == group.total_byte_size
        for column in range(group.num_columns):
            assert new.column(column).statistics == group.column(column).statistics
    assert one.schema.equals(many[0].schema)
    assert one.metadata == many[0].metadata


def test_page_indexes_of_copied_row_groups_find_pages(several, tmp_path) -> None:
    paths = several(
        [everything(number) for number in range(3)],
        row_group_size=900,
        data_page_size=300,
        write_batch_size=30,
        write_page_index=True,
    )
    out = join_paths(paths, tmp_path / "out")
    data = (tmp_path / "out").read_bytes()
    assert check_pages(data) > 500
    assert check_pages(data) == sum(check_pages(content(path)) for path in paths)
    for low in range(0, 3 * ROWS, 613):
        where = f"id >= {low} and id < {low + 20} and word is not null"
        assert read_by_duckdb([out], where) == read_by_duckdb(paths, where)
        chosen = pl.col("id").is_between(low, low + 19) & pl.col("word").is_not_null()
        assert read_by_polars([out], chosen).equals(read_by_polars(paths, chosen))
        filters = [("id", ">=", low), ("id", "<", low + 20)]
        assert read_by_pyarrow([out], filters).equals(read_by_pyarrow(paths, filters))
    # All page indexes are stored together before the footer, so readers fetch them in one request.
    footer = read_footer(io.BytesIO(data))
    indexes = [
        place for group in footer.row_groups for column in group.columns for place in (column.column_index,)
    ]
    assert all(place is not None for place in indexes)
    assert min(place[0] for place in indexes) == max(
        column.start + column.size for group in footer.row_groups for column in group.columns
    )


def test_page_indexes_are_dropped_if_some_inputs_have_none(several, tmp_path) -> None:
    paths = several([everything(0)], write_page_index=True) + several([everything(1)], write_page_index=False)
    out = join_paths(paths, tmp_path / "out")
    assert_same_rows(out, paths)
    # Some readers check one column only to see whether there are page indexes.
    assert not list(page_places((tmp_path / "out").read_bytes()))
    for group in footer_of(out).row_groups:
        assert all(column.column_index is column.offset_index is None for column in group.columns)


def test_offset_index_with_wrong_positions_is_refused() -> None:
    source = simple(rows=1000, max_rows_per_page=100, write_page_index=True).getvalue()
    start, size = read_footer(io.BytesIO(source)).row_groups[0].columns[0].offset_index
    pages = decode(source[start : start + size], {key(1, LIST): {}})
    offset, row = key(1, I64), key(3, I64)
    for number, place, by in ((0, offset, -3), (9, offset, 2), (0, row, 1), (4, row, -150), (9, row, 127)):
        changed = {key(1, LIST): [dict(page) for page in pages[key(1, LIST)]]}
        changed[key(1, LIST)][number][place] += by
        index = encode(changed)
        assert len(index) == size
        with pytest.raises(FooterError, match="an offset index"):
            joined([io.BytesIO(source[:start] + index + source[start + size :])])


def test_bloom_filters_of_pyarrow_are_kept(several, tmp_path) -> None:
    table = pa.table({"word": [f"w{number}" for number in range(2000)]})
    blooms = {"bloom_filter_options": {"word": {"ndv": 2000, "fpp": 0.01}}, "row_group_size": 500}
    paths = several([table.slice(0, 1000), table.slice(1000)], **blooms)
    out = join_paths(paths, tmp_path / "out")
    assert_same_rows(out, paths)
    check_blooms(out, "word", {f"w{number}": number // 500 for number in range(0, 2000, 77)})


def check_blooms(path: str, column: str, where: dict[Any, int]) -> None:
    """Every value is in the Bloom filter of its row group, and in few of the others."""
    excluded = 0
    for value, group in where.items():
        probed = duckdb.execute(
            "SELECT row_group_id, bloom_filter_excludes FROM parquet_bloom_probe($1, $2, $3)",
            [
                path,
                column,
                value,
            ],
        ).fetchall()
        assert (group, False) in probed
        excluded += sum(excludes for _, excludes in probed)
    groups = pq.read_metadata(path).num_row_groups
    assert excluded > 0.8 * len(where) * (groups - 1)


@pytest.mark.parametrize("with_length", [True, False])
def test_bloom_filters_of_duckdb_are_kept(tmp_path, with_length) -> None:
    paths = []
    for number in range(2):
        paths.append(str(tmp_path / f"{number}.parquet"))
        duckdb.execute(
            "COPY (SELECT i // 10 AS k, (i // 10)::VARCHAR AS s "
            f"FROM range({number * 8000}, {number * 8000 + 8000}) t(i)) TO '{paths[-1]}' (ROW_GROUP_SIZE 4096)"
        )
        if not with_length:
            change_footer(
                paths[-1], lambda footer: [column.pop(MetaKeys.BLOOM_LENGTH) for column in metas(footer)]
            )
    out = join_paths(paths, tmp_path / "out")
    assert_same_rows(out, paths)
    starts = [0]
    for group in footer_of(out).row_groups:
        starts.append(starts[-1] + group.num_rows)
        assert all(column.bloom_filter and column.bloom_filter[1] for column in group.columns)
    keys = {first // 10 + 5: group for group, first in enumerate(starts[:-1])}
    check_blooms(out, "k", keys)
    check_blooms(out, "s", {str(value): group for value, group in keys.items()})


def metas(footer: dict[int, Any]) -> list[dict[int, Any]]:
    return [
        chunk[ChunkKeys.META_DATA] for group in footer[FileKeys.ROW_GROUPS] for chunk in group[GroupKeys.COLUMNS]
    ]


def changed_footer(data: bytes, change: Any) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    footer = decode(data[-8 - size : -8], FOOTER_SHAPE)
    change(footer)
    new = encode(footer)
    return data[: -8 - size] + new + len(new).to_bytes(4, "little") + b"PAR1"


def change_footer(path: str, change: Any) -> None:
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(changed_footer(data, change))


def simple(start: int = 0, rows: int = 100, **options: Any) -> io.BytesIO:
    return in_memory(
        pa.table({"id": range(start, start + rows), "s": [str(n % 7) for n in range(rows)]}), **options
    )


def test_selected_row_groups_are_appended_in_the_given_order() -> None:
    source = simple(rows=100, row_group_size=10)
    sink = io.BytesIO()
    with RowGroupAppender(sink) as out:
        out.append(source, read_footer(source), [7, 2])
        assert (out.num_rows, out.num_row_groups) == (20, 2)
        fresh = simple(1000, 5)
        out.append(fresh, read_footer(fresh))
        out.append(source, read_footer(source), [])
        out.append(source, read_footer(source), [9])
    ids = pq.read_table(sink)["id"].to_pylist()
    assert ids == [*range(70, 80), *range(20, 30), *range(1000, 1005), *range(90, 100)]
    for wrong in ([10], [-1], [1, 1]):
        with pytest.raises(InvalidArgument, match="10 row groups"):
            RowGroupAppender(io.BytesIO()).append(source, read_footer(source), wrong)


def test_files_without_rows_can_be_appended() -> None:
    table = pa.table({"id": pa.array([], pa.int64()), "s": pa.array([], pa.string())})
    empty = io.BytesIO()
    with pq.ParquetWriter(empty, table.schema):
        pass
    no_rows = in_memory(table)
    assert read_footer(empty).row_groups == []
    for sources in ([empty], [no_rows], [empty, no_rows, simple(), no_rows, empty, simple(100)]):
        data = joined(sources)
        assert pq.read_table(io.BytesIO(data)).equals(pa.concat_tables(map(pq.read_table, sources)))
        assert pl.read_parquet(io.BytesIO(data)).height == sum(pq.read_metadata(file).num_rows for file in sources)


def test_finish_without_appended_files_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="nothing was appended"):
        RowGroupAppender(io.BytesIO()).finish()


def test_sink_with_earlier_bytes_is_refused() -> None:
    sink = io.BytesIO()
    sink.write(b"something")
    with pytest.raises(InvalidArgument, match="first byte"):
        RowGroupAppender(sink)


def test_finished_appender_refuses_more_calls() -> None:
    sink = io.BytesIO()
    source = simple()
    with RowGroupAppender(sink) as out:
        out.append(source, read_footer(source))
        out.finish()
        with pytest.raises(InvalidArgument, match="finished"):
            out.finish()
        with pytest.raises(InvalidArgument, match="finished"):
            out.append(source, read_footer(source))
    assert pq.read_table(sink).num_rows == 100


def test_refused_file_leaves_the_appender_usable() -> None:
    sink = io.BytesIO()
    one, other = simple(), in_memory(pa.table({"x": [1]}))
    with RowGroupAppender(sink) as out:
        out.append(one, read_footer(one))
        with pytest.raises(FooterError, match="fields"):
            out.append(other, read_footer(other))
        out.append(one, read_footer(one))
    assert pq.read_table(sink).num_rows == 200


def append_and_fail(out: RowGroupAppender, source: io.BytesIO) -> None:
    out.append(source, read_footer(source))
    raise FooterError("of the caller")


def test_exception_in_the_with_block_writes_no_footer() -> None:
    sink = io.BytesIO()
    source = simple()
    with pytest.raises(FooterError), RowGroupAppender(sink) as out:
        append_and_fail(out, source)
    with pytest.raises(FooterError):
        read_footer(sink)


def test_key_value_metadata_comes_from_the_first_file_or_the_argument() -> None:
    tables = [pa.table({"id": [number]}).replace_schema_metadata({"who": str(number)}) for number in range(2)]
    sources = [in_memory(table) for table in tables]
    with pytest.raises(FooterError, match="Arrow"):
        joined(sources)
    assert pq.read_metadata(io.BytesIO(joined(sources, same_arrow_schema=any_arrow))).metadata[b"who"] == b"0"
    sink = io.BytesIO()
    with RowGroupAppender(sink) as out:
        out.append(sources[0], read_footer(sources[0]))
        out.finish({b"a": b"b", b"": b"\xff"})
    assert pq.read_metadata(sink).metadata == {b"a": b"b", b"": b"\xff"}


def test_field_ids_are_kept_and_compared() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "7"})])
    other = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "8"})])
    one, same, different = (
        in_memory(pa.table({"id": [1]}, schema=one), store_schema=False) for one in (schema, schema, other)
    )
    merged = pq.ParquetFile(io.BytesIO(joined([one, same])))
    assert merged.schema_arrow.field("id").metadata == {b"PARQUET:field_id": b"7"}
    with pytest.raises(FooterError, match="'id'"):
        joined([one, different])


def test_unknown_thrift_fields_survive_in_row_groups_and_columns_only() -> None:
    unknown = {key(60, BINARY): b"new", key(61, STRUCT): b"\x15\x02\x00", key(900, LIST): b"\x25\x02\x04"}

    def extend(footer: dict[int, Any]) -> None:
        footer.update(unknown)
        for group in footer[FileKeys.ROW_GROUPS]:
            group.update(unknown)
            for chunk in group[GroupKeys.COLUMNS]:
                chunk.update(unknown)
                chunk[ChunkKeys.META_DATA].update(unknown)

    sources = [io.BytesIO(changed_footer(simple(number).getvalue(), extend)) for number in range(2)]
    data = joined(sources)
    assert pq.read_table(io.BytesIO(data)).num_rows == 200
    footer = read_footer(io.BytesIO(data))
    assert unknown.keys().isdisjoint(footer.fields), "unknown file-level fields describe the old file"
    for group in footer.row_groups:
        for fields in (group.fields, group.columns[0].fields, group.columns[1].meta):
            assert unknown.items() <= fields.items()
    assert pq.read_table(io.BytesIO(joined([sources[0], simple()]))).num_rows == 200


def test_footer_extensions_are_dropped() -> None:
    extension = key(32767, BINARY)

    def extend(footer: dict[int, Any]) -> None:
        footer[extension] = b"offsets"
        metas(footer)[0][extension] = b"offsets"

    footer = read_footer(io.BytesIO(joined([io.BytesIO(changed_footer(simple().getvalue(), extend)), simple()])))
    assert extension not in footer.fields
    assert extension not in footer.row_groups[0].columns[0].meta


@pytest.mark.parametrize("bogus", [0, 10**9, -5])
def test_bogus_dictionary_page_offset_is_ignored(bogus) -> None:
    def change(footer: dict[int, Any]) -> None:
        for meta in metas(footer):
            assert MetaKeys.DICTIONARY_PAGE_OFFSET not in meta
            meta[MetaKeys.DICTIONARY_PAGE_OFFSET] = bogus

    source = io.BytesIO(changed_footer(simple(use_dictionary=False).getvalue(), change))
    data = joined([simple(), source])
    assert pq.read_table(io.BytesIO(data)).equals(
        pa.concat_tables([pq.read_table(simple()), pq.read_table(source)])
    )
    metadata = pq.read_metadata(io.BytesIO(data)).row_group(1).column(0)
    assert not metadata.has_dictionary_page


def test_stale_file_offsets_are_corrected() -> None:
    starts: list[int] = []

    def change(footer: dict[int, Any]) -> None:
        group = footer[FileKeys.ROW_GROUPS][0]
        group[GroupKeys.FILE_OFFSET] = 99999  # as one release of a writer did
        first, second = group[GroupKeys.COLUMNS]
        first[ChunkKeys.FILE_OFFSET] = first[ChunkKeys.META_DATA][MetaKeys.DICTIONARY_PAGE_OFFSET]
        second[ChunkKeys.FILE_OFFSET] = 123456  # a copy of the column metadata, after the chunk
        starts.append(first[ChunkKeys.FILE_OFFSET])

    source = io.BytesIO(changed_footer(simple().getvalue(), change))
    before, group = read_footer(io.BytesIO(joined([simple(), source]))).row_groups
    assert group.fields[GroupKeys.FILE_OFFSET] == group.columns[0].start > before.columns[1].start
    assert group.columns[0].fields[ChunkKeys.FILE_OFFSET] == group.columns[0].start != starts[0]
    assert group.columns[1].fields[ChunkKeys.FILE_OFFSET] == 0


def test_row_group_ordinals_are_renumbered() -> None:
    def number(footer: dict[int, Any]) -> None:
        for at, group in enumerate(footer[FileKeys.ROW_GROUPS]):
            group[GroupKeys.ORDINAL] = at

    source = io.BytesIO(changed_footer(simple(row_group_size=50).getvalue(), number))
    footer = read_footer(io.BytesIO(joined([source, source])))
    assert [group.ordinal for group in footer.row_groups] == [0, 1, 2, 3]


def test_ordinals_are_omitted_above_the_maximum(monkeypatch) -> None:
    def number(footer: dict[int, Any]) -> None:
        for at, group in enumerate(footer[FileKeys.ROW_GROUPS]):
            group[GroupKeys.ORDINAL] = at

    monkeypatch.setattr("parketto.parquet.appender._MAX_ORDINAL", 2)
    source = io.BytesIO(changed_footer(simple(row_group_size=50).getvalue(), number))
    ordinals = [group.ordinal for group in read_footer(io.BytesIO(joined([source, source]))).row_groups]
    assert ordinals == [None] * 4


def test_overlapping_byte_ranges_are_refused() -> None:
    """Otherwise a small file could cause a copy of any size."""

    def same_chunk(footer: dict[int, Any]) -> None:
        footer[FileKeys.ROW_GROUPS] *= 2
        footer[FileKeys.NUM_ROWS] *= 2

    def same_index(footer: dict[int, Any]) -> None:
        chunks = footer[FileKeys.ROW_GROUPS][0][GroupKeys.COLUMNS]
        for place in (ChunkKeys.COLUMN_INDEX_OFFSET, ChunkKeys.COLUMN_INDEX_LENGTH):
            chunks[0][place] = chunks[1][place]

    def same_bloom(footer: dict[int, Any]) -> None:
        first, second = metas(footer)
        for place in (MetaKeys.BLOOM_OFFSET, MetaKeys.BLOOM_LENGTH):
            first[place] = second[place]

    def bloom_in_chunk(footer: dict[int, Any]) -> None:
        meta = metas(footer)[0]
        meta[MetaKeys.BLOOM_OFFSET], meta[MetaKeys.BLOOM_LENGTH] = meta[MetaKeys.DATA_PAGE_OFFSET], 10

    data = simple(write_page_index=True, bloom_filter_options={"s": {"ndv": 10, "fpp": 0.1}}).getvalue()
    joined([io.BytesIO(data)])
    for change in (same_chunk, same_index, same_bloom, bloom_in_chunk):
        with pytest.raises(FooterError, match="overlap"):
            joined([io.BytesIO(changed_footer(data, change))])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (MetaKeys.DATA_PAGE_OFFSET, 10**9),
        (MetaKeys.DATA_PAGE_OFFSET, 1),
        (MetaKeys.TOTAL_COMPRESSED_SIZE, 10**9),
        (MetaKeys.TOTAL_COMPRESSED_SIZE, -1),
        (MetaKeys.NUM_VALUES, 99),
        (MetaKeys.TYPE, 1),
        (MetaKeys.PATH, b"\x18\x01z"),
        (MetaKeys.BLOOM_OFFSET, 10**9),
        (MetaKeys.BLOOM_OFFSET, -5),
    ],
)
def test_impossible_column_metadata_is_refused(place, value) -> None:
    def change(footer: dict[int, Any]) -> None:
        metas(footer)[0][place] = value

    with pytest.raises(FooterError):
        joined([io.BytesIO(changed_footer(simple(use_dictionary=False).getvalue(), change))])


def test_column_chunks_with_gaps_or_in_another_order_are_copied() -> None:
    """Column chunks need not be adjacent: some writers put a copy of the column metadata after each."""
    source = simple().getvalue()
    footer = read_footer(io.BytesIO(source))
    moved = b"PAR1" + b"gap"
    places = {}
    for position in (1, 0):
        column = footer.row_groups[0].columns[position]
        places[position] = len(moved) - column.start
        moved += source[column.start : column.start + column.size] + b"a gap"

    def change(fields: dict[int, Any]) -> None:
        for position, meta in enumerate(metas(fields)):
            for place in (MetaKeys.DATA_PAGE_OFFSET, MetaKeys.DICTIONARY_PAGE_OFFSET):
                meta[place] += places[position]

    size = int.from_bytes(source[-8:-4], "little")
    source = changed_footer(moved + source[-8 - size :], change)
    assert pq.read_table(io.BytesIO(source)).equals(pq.read_table(simple()))
    data = joined([io.BytesIO(source), simple()])
    check_chunks(data)
    assert pq.read_table(io.BytesIO(data)).num_rows == 200
    assert b"gap" not in data


def test_bounds_without_a_declared_order_do_not_become_trusted() -> None:
    def forget(footer: dict[int, Any]) -> None:
        del footer[FileKeys.COLUMN_ORDERS]

    plain = simple(write_page_index=True)
    without = io.BytesIO(changed_footer(plain.getvalue(), forget))
    for sources in ([plain, without], [without, plain]):
        trusted = sources.index(plain)
        footer = read_footer(io.BytesIO(joined(sources)))
        assert footer.column_orders is not None
        bounds = [decode(group.columns[1].meta[MetaKeys.STATISTICS]) for group in footer.row_groups]
        assert key(5, BINARY) in bounds[trusted]
        assert key(5, BINARY) not in bounds[1 - trusted]
        assert key(3, I64) in bounds[1 - trusted]
        indexes = [group.columns[1].column_index for group in footer.row_groups]
        assert indexes[trusted] is not None
        assert indexes[1 - trusted] is None
        assert check_pages(joined(sources)) == 4
    both = read_footer(io.BytesIO(joined([without, without])))
    assert both.column_orders is None
    assert key(5, BINARY) in decode(both.row_groups[1].columns[1].meta[MetaKeys.STATISTICS])


def test_files_of_several_writers_are_combined(tmp_path) -> None:
    rows_ = pa.table(
        {
            "id": pa.array(range(500), pa.int64()),
            "real": pa.array([n / 7 if n % 5 else None for n in range(500)]),
            "s": pa.array([f"s{n % 9}" if n % 4 else None for n in range(500)]),
            "flag": pa.array([n % 3 == 0 for n in range(500)]),
            "small": pa.array([n % 3 for n in range(500)], pa.int16()),
            "list": pa.array([[n, n + 1] if n % 6 else None for n in range(500)], pa.list_(pa.int64())),
        }
    )
    paths = [str(tmp_path / name) for name in ("pyarrow", "polars", "duckdb")]
    pq.write_table(rows_, paths[0], write_page_index=True)
    pl.from_arrow(rows_).write_parquet(paths[1])
    duckdb.sql(f"COPY (FROM rows_) TO '{paths[2]}' (FORMAT parquet)")
    for order in (paths, paths[::-1], [paths[1], paths[0], paths[1]]):
        out = join_paths(order, tmp_path / "out", same_arrow_schema=any_arrow)
        rows = read_by_duckdb([out])
        assert rows == [row for path in order for row in read_by_duckdb([path])]
        frame = pl.concat([pl.read_parquet(path) for path in order], how="vertical_relaxed")
        assert pl.read_parquet(out).rows() == frame.rows()
        arrow = [row for path in order for row in pq.read_table(path).to_pylist()]
        assert pq.read_table(out).to_pylist() == arrow
        check_chunks((tmp_path / "out").read_bytes())
        created_by = pq.read_metadata(out).created_by
        assert created_by.startswith("parketto version ")
        assert created_by.endswith(" (build row-group-copy)")


def test_sources_and_sinks_of_every_file_type(tmp_path) -> None:
    import fsspec

    data = simple(write_page_index=True).getvalue()
    (tmp_path / "a").write_bytes(data)
    fsspec.filesystem("memory").pipe("/rowgroups/a", data)
    expected = joined([io.BytesIO(data)])
    sources = [
        pa.OSFile(str(tmp_path / "a")),
        pa.BufferReader(data),
        fsspec.open("memory://rowgroups/a", "rb").open(),
        fsspec.open(f"file://{tmp_path}/a", "rb").open(),
        io.FileIO(tmp_path / "a"),
    ]
    for source in sources:
        with open(tmp_path / "out", "wb") as sink:
            append_files([source], sink)
        assert (tmp_path / "out").read_bytes() == expected
        with open(tmp_path / "out", "wb", buffering=0) as sink:
            append_files([source], sink)
        assert (tmp_path / "out").read_bytes() == expected
        out = pa.BufferOutputStream()
        append_files([source], out)
        assert out.getvalue().to_pybytes() == expected
        with fsspec.open("memory://rowgroups/out", "wb") as sink:
            append_files([source], sink)
        assert fsspec.filesystem("memory").cat("/rowgroups/out") == expected
        source.close()
    fsspec.filesystem("memory").rm("/rowgroups", recursive=True)
