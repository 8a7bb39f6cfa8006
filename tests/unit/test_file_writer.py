"""Row groups whose columns are encoded in parts equal row groups that are encoded at once."""

from __future__ import annotations

import gc
import io
import itertools
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from helpers.exotic import exotic
from helpers.parquet_files import check_chunks, check_pages, in_memory, read_by_duckdb, read_by_polars
from parketto import Dataset
from parketto.engines.pyarrow.engine import PyArrowEngine
from parketto.errors import FooterError
from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.decoded_types import decoded_schema, recast
from parketto.parquet.dictionaries import is_high_cardinality
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_writer import FileWriter
from parketto.parquet.footer import GroupKeys, ascending, read_footer
from parketto.runtime.staging import StagedFile
from parketto.storage.local import LocalStore

ROWS = 900


def table(rows: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "word": pa.array([None if n % 7 == 0 else f"word {n % 40}" for n in range(rows)]),
            "list": pa.array([[n, None] if n % 5 else None for n in range(rows)], pa.list_(pa.int64())),
            "struct": pa.array([{"id": n, "tags": [str(n)] * (n % 3)} for n in range(rows)]),
            "real": pa.array([n / 7 for n in range(rows)], pa.float64()),
        }
    )


def part(rows: pa.Table, names: list[str], **options: object) -> tuple[io.BytesIO, object]:
    source = in_memory(rows.select(names), store_schema=False, write_page_index=True, **options)
    return source, read_footer(source)


def splits(names: list[str]) -> list[list[list[str]]]:
    """All ways to split the columns into contiguous runs."""
    return [
        [names[start:end] for start, end in itertools.pairwise([0, *cuts, len(names)])]
        for count in range(len(names))
        for cuts in itertools.combinations(range(1, len(names)), count)
    ]


@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "zstd", "snappy"])
def test_row_group_does_not_depend_on_the_split_of_its_columns(
    tmp_path: Path, codec: str, page_version: str
) -> None:
    rows = table()
    whole = read_footer(in_memory(rows.slice(0, 0), compression=codec))
    for runs in splits(rows.schema.names):
        sink = io.BytesIO()
        with RowGroupAppender(sink) as out:
            for _ in range(2):
                parts = [part(rows, run, compression=codec, data_page_version=page_version) for run in runs]
                out.assemble(whole, parts, ascending([0]))
        data = sink.getvalue()
        check_chunks(data)
        check_pages(data)
        assert pq.read_table(io.BytesIO(data)).equals(pa.concat_tables([rows, rows]))
        groups = read_footer(io.BytesIO(data)).row_groups
        for group in groups:
            assert group.total_byte_size == group.total_uncompressed_size
            assert group.fields[GroupKeys.TOTAL_COMPRESSED_SIZE] == group.total_compressed_size
            assert group.fields[GroupKeys.FILE_OFFSET] == group.columns[0].start
            assert all(column.offset_index and column.column_index for column in group.columns)
        read = pq.ParquetFile(io.BytesIO(data)).metadata
        assert read.row_group(1).sorting_columns == (pq.SortingColumn(0),)
    path = tmp_path / "one.parquet"
    path.write_bytes(data)
    assert len(read_by_duckdb([str(path)])) == read_by_polars([str(path)]).height == 2 * ROWS


def refused(parts: list[tuple[io.BytesIO, object]]) -> tuple[str, bool]:
    """Why parts are refused, and whether the appender is still usable."""
    whole = read_footer(in_memory(table().slice(0, 0)))
    out = RowGroupAppender(io.BytesIO())
    with pytest.raises(FooterError) as caught:
        out.assemble(whole, parts)
    assert out.num_rows == out.num_row_groups == 0
    return str(caught.value), out.is_open


def test_parts_that_do_not_match_the_schema_are_refused() -> None:
    rows, names = table(), table().schema.names
    first, rest = part(rows, names[:2]), part(rows, names[2:])

    assert "differ from the schema" in refused([rest, first])[0]
    assert "differ from the schema" in refused([first, first])[0]
    assert refused([first])[0] == "the parts have 2 of 6 columns"
    assert "different numbers of rows" in refused([first, part(rows.slice(1), names[2:])])[0]
    other = rows.set_column(4, "real", rows.column("real").cast(pa.float32()))
    assert "differ from the schema" in refused([first, part(other, names[2:])])[0]
    assert "one row group" in refused([part(rows, names[:2], row_group_size=500), rest])[0]
    required = pa.schema([rows.schema.field(0).with_nullable(False), *list(rows.schema)[1:]])
    assert refused([part(rows.cast(required), names[:2]), rest])[1]


def test_appender_stays_usable_unless_part_of_a_row_group_was_written() -> None:
    rows, names = table(), table().schema.names

    assert refused([part(rows, names[1:]), part(rows, names[:1])])[1]
    assert not refused([part(rows, names[:1]), part(rows, names[:1])])[1]


@pytest.mark.parametrize("threads", [0, 2, 5])
def test_rows_round_trip_for_any_number_of_encoding_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """In several parts even without threads, in several row groups, with columns of every type."""
    monkeypatch.setattr("parketto.parquet.column_parts._PART_BYTES", 2**18)
    rows = pa.concat_tables([exotic(seed) for seed in range(100)] * 20)
    rows = rows.append_column("nth", pa.array(range(rows.num_rows)))
    rows = rows.append_column("long", pa.array([f"{n:0300d}" for n in range(rows.num_rows)]))
    schema = rows.schema
    notes = pq.read_metadata(in_memory(rows.slice(0, 0))).metadata
    staged = StagedFile(str(tmp_path / "new.parquet"), "")
    carried = decoded_schema(schema).remove_metadata()
    form = FileFormat(carried, "zstd", notes, order_by=("nth",), readable_as=schema)
    with FileWriter(
        LocalStore(LocalFileSystem()), form, lambda: staged, row_group_bytes=3 * 2**18, threads=threads
    ) as writer:
        for batch in rows.to_batches(max_chunksize=777):
            writer.write(recast(batch, carried))

    found = pq.ParquetFile(staged.path)
    read = found.read()
    assert read.schema.equals(schema)
    different = [
        name
        for name, kind in zip(carried.names, carried.types, strict=True)
        if read.column(name).cast(kind).to_pylist() != rows.column(name).cast(kind).to_pylist()
    ]
    assert not different
    assert found.num_row_groups > 2
    last = found.metadata.row_group(found.num_row_groups - 1)
    assert [schema_column.column_index for schema_column in last.sorting_columns] == [
        found.metadata.num_columns - 2
    ]
    assert all(last.column(at).has_offset_index for at in range(last.num_columns))


def test_field_ids_of_datasets_with_equal_schemas_are_not_mixed_up(tmp_path: Path) -> None:
    """Arrow schemas that differ in field ids only are equal; a cache keyed by schema would write wrong ids."""
    for number in (1, 2, None):
        notes = None if number is None else {b"PARQUET:field_id": str(number).encode()}
        schema = pa.schema([pa.field("n", pa.int64(), metadata=notes)])
        folder = tmp_path / f"ids {number}"
        folder.mkdir()
        for part_number in range(3):
            rows = pa.table({"n": range(10 * part_number, 10 * part_number + 10)}, schema)
            pq.write_table(rows, folder / f"{part_number}.parquet", store_schema=False)

        dataset = Dataset(str(folder), engine="pyarrow")
        dataset.compact(target_mb_per_file=64, rewrite="encode")
        dataset.delete("n = 7")
        [path] = folder.glob("*.parquet")
        found = pq.ParquetFile(path)
        assert found.read().column("n").to_pylist() == [n for n in range(30) if n != 7]
        assert found.schema_arrow.field("n").metadata == notes


def test_prefetch_threads_end_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, not when Python happens to collect the prefetching reader."""
    rows = pa.table({"n": range(50_000), "text": [f"{n:0200d}" for n in range(50_000)]})
    for number in range(8):
        pq.write_table(rows, tmp_path / f"{number}.parquet")
    encoded, calls = FileFormat.encoded, itertools.count()

    def failing(self: FileFormat, *arguments: object) -> pa.Buffer:
        if arguments[0] is not None and next(calls) > 2:
            raise OSError("the disk is full")
        return encoded(self, *arguments)

    monkeypatch.setattr(FileFormat, "encoded", failing)
    before = set(threading.enumerate())
    gc.disable()
    try:
        with pytest.raises(OSError, match="the disk is full"):
            Dataset(str(tmp_path), engine=PyArrowEngine(64, threads=2)).compact(
                target_mb_per_file=512, rewrite="encode"
            )
        left = {thread.name for thread in set(threading.enumerate()) - before}
    finally:
        gc.enable()

    assert not {name for name in left if name.startswith("parketto")}
    assert sorted(os.listdir(tmp_path)) == [f"{number}.parquet" for number in range(8)]


@pytest.mark.parametrize("threads", [0, 2])
def test_duplicate_column_names_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr("parketto.parquet.column_parts._MIN_PART_BYTES", 1)
    rows = pa.Table.from_arrays([pa.array(range(500)), pa.array(["a", "b"] * 250)] * 2, names=["x", "y", "y", "z"])
    staged = StagedFile(str(tmp_path / "new.parquet"), "")
    form = FileFormat(rows.schema, "snappy", {})
    with FileWriter(
        LocalStore(LocalFileSystem()), form, lambda: staged, row_group_bytes=2**20, threads=threads
    ) as writer:
        for batch in rows.to_batches():
            writer.write(batch)

    assert pq.ParquetFile(staged.path).read().equals(rows)


def column(values: pa.Array) -> pa.ChunkedArray:
    return pa.chunked_array([values.slice(0, 700), values.slice(700)])


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float64(), pa.timestamp("us"), pa.string()])
def test_high_cardinality_columns_get_no_dictionary(kind: pa.DataType) -> None:
    """A dictionary makes high-cardinality columns larger, and columns with repeated values smaller."""
    count = 20_000
    scattered = [n * 7919 % count for n in range(count)]
    unique = pa.array(scattered, pa.int64()).cast(kind) if kind != pa.string() else pa.array(map(str, scattered))
    holes = pc.if_else(pa.array([n % 3 == 0 for n in range(count)]), None, unique)
    few = unique.take(pa.array([n * 31 % 2000 for n in range(count)]))
    in_turns = unique.take(pa.array([n % 4000 for n in range(count)]))
    in_runs = unique.take(pa.array([n // 4 for n in range(count)]))

    assert is_high_cardinality(column(unique))
    assert is_high_cardinality(column(holes))
    assert not is_high_cardinality(column(few))
    assert not is_high_cardinality(column(in_turns))
    assert not is_high_cardinality(column(in_runs))
    assert not is_high_cardinality(pa.chunked_array([pa.nulls(count, kind)]))
    plain, with_dictionary = (
        in_memory(pa.table({"c": unique}), use_dictionary=wanted, compression="none").getbuffer().nbytes
        for wanted in (False, True)
    )
    assert plain < with_dictionary


def test_every_row_group_has_dictionaries_for_low_cardinality_columns_only(tmp_path: Path) -> None:
    count = 20_000
    rows = pa.table({"id": pa.array(range(count)), "few": pa.array([n * 31 % 100 for n in range(count)])})
    staged = StagedFile(str(tmp_path / "new.parquet"), "")
    with FileWriter(
        LocalStore(LocalFileSystem()), FileFormat(rows.schema, "snappy"), lambda: staged, row_group_bytes=2**16
    ) as writer:
        for batch in rows.to_batches(max_chunksize=1000):
            writer.write(batch)

    found = pq.ParquetFile(staged.path)
    assert found.read().equals(rows)
    for number in range(found.num_row_groups):
        group = found.metadata.row_group(number)
        assert [group.column(at).has_dictionary_page for at in (0, 1)] == [False, True]
