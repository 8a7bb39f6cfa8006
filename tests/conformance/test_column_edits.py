"""Edits that change some columns of a row group: the chunks of the others are copied byte for byte."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from helpers.exotic import exotic, row_by_row
from helpers.parquet_files import check_chunks, check_pages
from parketto import Dataset, sql
from parketto.engines.base import Engine
from parketto.merge.known_edits import KnownEdits
from parketto.parquet.footer import read_footer

ROWS, PER_GROUP = 4000, 1000
Row = dict[str, Any]


def rows(count: int = ROWS) -> pa.Table:
    """The last three columns take most of the space: a change of the first ones keeps most bytes."""
    ids = np.arange(count)
    noise = np.random.default_rng(1).random((2, count))
    return pa.table(
        {
            "flag": pa.array(np.zeros(count), pa.int8()),
            "id": ids,
            "word": pa.array([f"w{n % 7}" for n in ids.tolist()], pa.string()),
            "one": noise[0],
            "two": noise[1],
            "list": pa.array([[n, n] for n in ids.tolist()], pa.list_(pa.int64())),
        }
    )


@pytest.fixture
def written(place: Place) -> bytes:
    """A file of four row groups that declare an order, with page indexes and Bloom filters."""
    return write(place)


def write(place: Place, table: pa.Table | None = None, **options: Any) -> bytes:
    place.write_files(
        {"f.parquet": rows() if table is None else table},
        **{
            "row_group_size": PER_GROUP,
            "write_page_index": True,
            "data_page_size": 1000,
            "sorting_columns": [pq.SortingColumn(1), pq.SortingColumn(2)],
            "bloom_filter_options": {"id": {"ndv": PER_GROUP}, "word": {"ndv": 10}},
            "compression": "snappy",
            **options,
        },
    )
    return content(place)


def content(place: Place) -> bytes:
    (path,) = oracle.data_files(place.root, place.fs)
    return bytes(place.fs.cat_file(path))


def chunks(data: bytes) -> list[dict[str, bytes]]:
    """For each row group the bytes of its columns."""
    footer = read_footer(io.BytesIO(data))
    return [
        {".".join(column.path): data[column.start : column.start + column.size] for column in group.columns}
        for group in footer.row_groups
    ]


def changed_chunks(before: bytes, after: bytes) -> list[set[str]]:
    """The columns whose bytes have changed, for each row group."""
    check_chunks(after)
    check_pages(after)
    pairs = zip(chunks(before), chunks(after), strict=True)
    return [{name for name, data in old.items() if new[name] != data} for old, new in pairs]


def table_of(place: Place) -> pa.Table:
    return pq.ParquetFile(io.BytesIO(content(place))).read()


def check_readers(place: Place, expected: list[Row], filtered: tuple[str, Any]) -> None:
    """DuckDB and Polars read the expected rows, also with a filter that uses bounds and Bloom filters."""
    (path,) = oracle.data_files(place.root, place.fs)
    name, value = filtered
    hits = [row for row in expected if row[name] == value]
    assert pq.read_table(path, filters=[(name, "=", value)]).to_pylist() == hits
    with duckdb.connect() as connection:
        assert connection.sql(f"SELECT * FROM '{path}'").to_arrow_table().to_pylist() == expected
        found = connection.sql(f"SELECT * FROM '{path}' WHERE \"{name}\" = ?", params=[value])
        assert found.to_arrow_table().to_pylist() == hits
    assert pl.read_parquet(path).to_dicts() == expected
    assert pl.scan_parquet(path).filter(pl.col(name) == value).collect().to_dicts() == hits


UPDATES: dict[str, tuple[str, dict[str, Any], Callable[[Row], bool], Callable[[Row], Row], list[set[str]]]] = {
    "the first column": (
        "id BETWEEN 1500 AND 2500",
        {"flag": 1},
        lambda row: 1500 <= row["id"] <= 2500,
        lambda _row: {"flag": 1},
        [set(), {"flag"}, {"flag"}, set()],
    ),
    "all rows of a row group": (
        "id < 1000",
        {"word": "new"},
        lambda row: row["id"] < 1000,
        lambda _row: {"word": "new"},
        [{"word"}, set(), set(), set()],
    ),
    "a column of its own condition": (
        "id >= 3999 OR id = 1000",
        {"id": sql("-id")},
        lambda row: row["id"] in (1000, 3999),
        lambda row: {"id": -row["id"]},
        [set(), {"id"}, set(), {"id"}],
    ),
    "columns that depend on each other": (
        "id % 1000 = 7 AND id < 2000",
        {"one": sql("two"), "two": sql("one")},
        lambda row: row["id"] in (7, 1007),
        lambda row: {"one": row["two"], "two": row["one"]},
        [{"one", "two"}, {"one", "two"}, set(), set()],
    ),
    "a list": (
        "id = 2001",
        {"list": None},
        lambda row: row["id"] == 2001,
        lambda _row: {"list": None},
        [set(), set(), {"list.list.element"}, set()],
    ),
}


@pytest.mark.parametrize("update", UPDATES)
def test_update(local: Place, engine: Engine, update: str) -> None:
    condition, values, matches, changes, expected_chunks = UPDATES[update]
    before = write(local)
    expected = [{**row, **changes(row)} if matches(row) else row for row in table_of(local).to_pylist()]
    local.dataset(engine=engine).update(condition, values)
    assert table_of(local).to_pylist() == expected
    assert changed_chunks(before, content(local)) == expected_chunks
    hit = next(row for row in expected if matches(row) or row["id"] < 0)
    check_readers(local, expected, ("id", hit["id"]))


def test_partial_upsert(local: Place, merge_engine: Engine) -> None:
    """Few rows of one row group, all of another one, none of the others; and one new row."""
    before = write(local)
    ids = [*range(1000, 2000), 2005, 2999, 9999]
    new = pa.table({"id": ids, "word": [f"n{n}" for n in ids]})
    expected = [{**row, "word": f"n{row['id']}"} if row["id"] in ids else row for row in rows().to_pylist()]
    stats = local.dataset(engine=merge_engine).merge(new, "id", partial=True)
    assert stats == {"inserted": 1, "updated": 1002, "deleted": 0, "total": ROWS + 1}
    paths = oracle.data_files(local.root)
    (path,) = (path for path in paths if pq.read_metadata(path).num_rows == ROWS)
    (added,) = (path for path in paths if path != path_of(local, ROWS))
    assert pq.ParquetFile(path).read().to_pylist() == expected
    assert [row["id"] for row in pq.ParquetFile(added).read().to_pylist()] == [9999]
    local.fs.rm(added)
    assert changed_chunks(before, content(local)) == [set(), {"word"}, {"word"}, set()]
    check_readers(local, expected, ("word", "n2005"))
    check_readers(local, expected, ("word", "w3"))


def path_of(place: Place, count: int) -> str:
    return next(path for path in oracle.data_files(place.root) if pq.read_metadata(path).num_rows == count)


def test_bounds_bloom_filters_and_sort_order_match_the_new_values(place: Place, written: bytes) -> None:
    dataset = place.dataset()
    dataset.update("id = 1500", {"word": "zz"})
    dataset.update("id = 2500", {"id": -5})
    footer = pq.read_metadata(io.BytesIO(content(place)))
    groups = [footer.row_group(number) for number in range(4)]
    assert [group.column(1).statistics.min for group in groups] == [0, 1000, -5, 3000]
    assert [group.column(2).statistics.max for group in groups] == ["w6", "zz", "w6", "w6"]
    declared = [[column.column_index for column in group.sorting_columns] for group in groups]
    assert declared == [[1, 2], [1], [], [1, 2]], "no order is declared from the first changed column on"
    parsed = read_footer(io.BytesIO(content(place)))
    with_bloom = [[bool(column.bloom_filter) for column in group.columns[1:3]] for group in parsed.row_groups]
    assert with_bloom == [[True, True], [True, False], [False, True], [True, True]]
    assert all(column.column_index for group in parsed.row_groups for column in group.columns)
    # The next edit selects row groups by the new bounds.
    assert dataset.update("id = -5", {"flag": 1})["rows_matched"] == 1
    assert dataset.update("word = 'zz'", {"flag": 1})["rows_matched"] == 1
    assert written != content(place)


def test_repeated_edits_leave_no_dead_bytes(place: Place, written: bytes) -> None:
    """A column that is replaced many times leaves no old bytes in the file."""
    dataset = place.dataset()
    expected = rows().to_pylist()
    for step in range(6):
        name = ("flag", "word", "two")[step % 3]
        value: Any = {"flag": step, "word": f"step {step}", "two": float(step)}[name]
        dataset.update(f"id % 500 = {step}", {name: value})
        for row in expected:
            row.update({name: value} if row["id"] % 500 == step else {})
    assert table_of(place).to_pylist() == expected
    assert len(content(place)) < 1.2 * len(written)


# Spark splits files, and assigns a row group to the split that contains its midpoint.


def test_spark_finds_every_row_group(local: Place, spark: Any) -> None:
    """Also if the replaced first column is far smaller than the rest: in one split, and in many."""
    write(local)
    local.dataset().update("id % 10 = 0", {"flag": 1})
    local.dataset().merge(pa.table({"id": range(ROWS), "word": ["new"] * ROWS}), "id", partial=True)
    size = len(content(local))
    before = {name: spark.conf.get(name) for name in SETTINGS}
    try:
        for split in (size * 2, size // 7):
            for vectorized in ("true", "false"):
                for name, value in zip(SETTINGS, (str(split), "0", vectorized), strict=True):
                    spark.conf.set(name, value)
                frame = spark.read.parquet(local.root)
                found = frame.selectExpr("count(*)", "sum(flag)", "count(list)", "max(word)").collect()[0]
                assert tuple(found) == (ROWS, ROWS // 10, ROWS, "new")
                assert frame.where("flag = 1 AND id >= 3000").count() == 100
                assert frame.where("word = 'w3'").count() == 0
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


SETTINGS = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.parquet.enableVectorizedReader",
)


# Where single columns cannot be replaced, whole rows are written.


def test_keys_that_exist_only_in_paths(local: Place, merge_engine: Engine) -> None:
    """No column of the row groups is read, so the row count must come from the footer."""
    days = {"a": 1.0, "b": 2.0, "c": 3.0}
    local.write_files(
        {
            f"day={day}/f.parquet": pa.table({"price": [price], "note": [day], "n": [1]})
            for day, price in days.items()
        }
    )
    new = pa.table({"day": ["b", "c"], "price": [20.0, 30.0]})
    stats = local.dataset(engine=merge_engine).merge(new, "day", strategy="update", partial=True)
    assert stats == {"inserted": 0, "updated": 2, "deleted": 0, "total": 3}
    found = [pq.ParquetFile(path).read().to_pylist()[0] for path in oracle.data_files(local.root)]
    assert [(row["note"], row["price"], row["n"]) for row in found] == [
        ("a", 1.0, 1),
        ("b", 20.0, 1),
        ("c", 30.0, 1),
    ]


@pytest.mark.parametrize("codec", ["brotli", "gzip", "none"])
def test_replaced_columns_keep_the_codec_of_the_file(local: Place, engine: Engine, codec: str) -> None:
    """Readers that decide by the codec of one column must be able to read all of them."""
    write(local, compression=codec)
    local.dataset(engine=engine).update("id = 5", {"word": "new"})
    new = pa.table({"id": [1500, 1700], "flag": pa.array([1, 1], pa.int8())})
    local.dataset(engine=engine).merge(new, "id", partial=True, compression=codec)
    footer = pq.read_metadata(io.BytesIO(content(local)))
    name = {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
    for number in range(4):
        group = footer.row_group(number)
        assert {group.column(at).compression for at in range(group.num_columns)} == {name}
    assert local.dataset(engine=engine).read().num_rows == ROWS


def test_codec_of_a_merge_applies_to_changed_row_groups(local: Place, merge_engine: Engine) -> None:
    """Changed row groups are encoded with it as a whole; the others are copied."""
    write(local, compression="gzip")
    new = pa.table({"id": [1500, 1700], "flag": pa.array([1, 1], pa.int8())})
    local.dataset(engine=merge_engine).merge(new, "id", partial=True, compression="zstd")
    footer = pq.read_metadata(io.BytesIO(content(local)))
    found = [{footer.row_group(n).column(at).compression for at in range(footer.num_columns)} for n in range(4)]
    assert found == [{"ZSTD"} if n == 1500 // PER_GROUP else {"GZIP"} for n in range(4)]
    assert local.dataset().read().num_rows == ROWS


def test_codec_of_an_update_applies_to_the_whole_file(place: Place, written: bytes) -> None:
    """Whatever columns the update changes."""
    place.dataset().update("id = 5", {"word": "new"}, compression="gzip")
    footer = pq.read_metadata(io.BytesIO(content(place)))
    groups = [footer.row_group(number) for number in range(4)]
    assert {group.column(at).compression for group in groups for at in range(group.num_columns)} == {"GZIP"}
    assert table_of(place).column("word").to_pylist()[4:7] == ["w4", "new", "w6"]
    assert written != content(place)


def test_each_column_keeps_its_own_codec(place: Place) -> None:
    before = write(place, compression={"word": "gzip", "one": "none", "two": "snappy"})
    place.dataset().update("id = 5", {"word": "new"})
    assert changed_chunks(before, content(place))[0] == {"word"}
    footer = pq.read_metadata(io.BytesIO(content(place))).row_group(0)
    assert footer.column(2).compression == "GZIP"
    place.dataset().update("id = 5", {"word": "newer", "one": 1.0})
    assert place.dataset().read().slice(5, 1).to_pylist() == [
        {**rows().slice(5, 1).to_pylist()[0], "word": "newer", "one": 1.0}
    ]


def test_row_groups_are_split_if_categories_exceed_the_index_type(place: Place) -> None:
    """An int8 index has 128 values: a row group that would need more becomes several."""
    words = pa.array([f"w{n % 40}" for n in range(ROWS)]).dictionary_encode()
    table = rows().set_column(2, "word", words.cast(pa.dictionary(pa.int8(), pa.string())))
    before = write(place, table)
    place.dataset().update("id < 80", {"word": sql("'new ' || CAST(id AS VARCHAR)")})
    assert changed_chunks(before, content(place)) == [{"word"}, set(), set(), set()]
    place.dataset().update("id BETWEEN 1000 AND 1099", {"word": sql("'new ' || CAST(id AS VARCHAR)")})
    found = table_of(place)
    assert found.schema.field("word").type == pa.dictionary(pa.int8(), pa.string())
    expected = [f"new {n}" if n < 80 or 1000 <= n < 1100 else f"w{n % 40}" for n in range(ROWS)]
    assert found.column("word").cast(pa.string()).to_pylist() == expected
    assert found.column("id").to_pylist() == list(range(ROWS))


@pytest.mark.parametrize(
    "options",
    [
        {"use_deprecated_int96_timestamps": True, "store_schema": False},
        {"store_decimal_as_integer": True},
        {"version": "1.0"},
        {"data_page_version": "2.0"},
        {"write_statistics": False},
        {"write_page_index": False},
        {"write_page_checksum": True},
        {"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED"}},
    ],
    ids=str,
)
def test_edits_of_files_with_any_writer_options(place: Place, options: dict[str, Any]) -> None:
    """For every column in turn, the result equals the same edit of the table in memory."""
    numbers = list(range(300))
    table = pa.table(
        {
            "n": numbers,
            "at": pa.array(numbers, pa.timestamp("us")),
            "price": pa.array([Decimal(n) / 100 for n in numbers], pa.decimal128(9, 2)),
            "u": pa.array(numbers, pa.uint32()),
            "b": pa.array([bytes([n % 256]) for n in numbers]),
        }
    )
    place.write_files({"f.parquet": table}, row_group_size=100, **options)
    expected = table_of(place)
    for at, name in enumerate(table.schema.names[1:], 1):
        place.dataset().update("n BETWEEN 90 AND 110", {name: None})
        values = [None if 90 <= n <= 110 else value.as_py() for n, value in enumerate(expected.column(name))]
        expected = expected.set_column(
            at, expected.schema.field(at), pa.array(values, expected.schema.field(at).type)
        )
        assert table_of(place).equals(expected)
        assert table_of(place).schema.equals(expected.schema, check_metadata=True)
    data = content(place)
    check_chunks(data)
    check_pages(data)


@pytest.mark.parametrize("name", [name for name in exotic(0).schema.names if name != "required"])
def test_every_type_by_a_partial_upsert(memory: Place, name: str) -> None:
    """One row of four gets the value of another table, in one column; metadata is kept."""
    table = pa.concat_tables([exotic(number) for number in range(2)])
    memory.write_files({"f.parquet": table}, write_page_index=True)
    before, old = content(memory), table_of(memory)
    source = exotic(0).select(["required", name]).slice(0, 1)
    values = exotic(3).column(name).slice(0, 1)
    memory.dataset().merge(source.set_column(1, source.schema.field(1), values), "required", partial=True)
    found = table_of(memory)
    assert found.schema.equals(old.schema, check_metadata=True)
    at = old.schema.get_field_index(name)
    changed = row_by_row([old.slice(0, 1).set_column(at, old.schema.field(at), values)])
    expected = {**row_by_row([old]), **changed}
    assert all(row.equals(expected[key], check_metadata=True) for key, row in row_by_row([found]).items())
    leaves = {leaf for group in changed_chunks(before, content(memory)) for leaf in group}
    assert all(leaf == name or leaf.startswith(f"{name}.") for leaf in leaves)


def test_column_name_with_a_dot_beside_a_struct(place: Place) -> None:
    table = pa.table(
        {"id": range(6), "a": [{"b": n, "c": n} for n in range(6)], "a.b": range(10, 16), "a.c": ["x"] * 6}
    )
    place.write_files({"f.parquet": table}, row_group_size=2)
    place.dataset().update('"a.b" = 12', {"a.b": -1})
    place.dataset().merge(pa.table({"id": [3], "a.c": ["new"]}), "id", partial=True)
    place.dataset().merge(pa.table({"id": [4], "a": [{"b": 7, "c": 8}]}), "id", partial=True)
    expected = table.to_pylist()
    expected[2]["a.b"], expected[3]["a.c"], expected[4]["a"] = -1, "new", {"b": 7, "c": 8}
    assert table_of(place).to_pylist() == expected


def test_partition_columns_in_conditions_and_values(place: Place, engine: Engine) -> None:
    """They are in no row group, but select rows and provide new values."""
    for day in ("2024-01-01", "2024-01-02"):
        place.write_files({f"day={day}/f.parquet": rows(300)}, row_group_size=100)
    place.dataset(engine=engine).update(
        "day = DATE '2024-01-02' AND id BETWEEN 50 AND 120", {"word": sql("CAST(day AS VARCHAR)")}
    )
    first, second = (oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs))
    assert first.equals(rows(300))
    expected = ["2024-01-02" if 50 <= n <= 120 else f"w{n % 7}" for n in range(300)]
    assert second.column("word").to_pylist() == expected


def test_empty_row_groups(place: Place) -> None:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows().schema) as writer:
        for part in (rows(0), rows(10), rows(0), rows(5)):
            writer.write_table(part)
    place.fs.makedirs(place.root)
    place.fs.pipe_file(f"{place.root}/f.parquet", sink.getvalue())
    place.dataset().update("id = 3", {"flag": 1})
    place.dataset().merge(pa.table({"id": [7], "word": ["new"]}), "id", strategy="update", partial=True)
    found = table_of(place)
    assert found.column("id").to_pylist() == [*range(10), *range(5)]
    assert [n for n, flag in enumerate(found.column("flag").to_pylist()) if flag] == [3, 13]
    assert found.column("word").to_pylist()[7] == "new"


# Merges know what happens to the rows of a row group before they choose how to write it.


def random_merges(dataset: Dataset, place: Place, seed: int, count: int) -> None:
    """Sources that match few rows or many, duplicate keys, deleted rows; compared with plain lists."""
    chance = np.random.default_rng(seed)
    for step in range(count):
        target = table_of(place).to_pylist()
        ids = chance.choice(1300, int(chance.choice([1, 4, 300])), replace=False).tolist()
        strategy = ("update", "upsert", "full_merge", "deduplicate")[int(chance.integers(4) if step % 3 else 0)]
        if strategy != "update":  # inserted rows would be in other files, in any order
            ids = [n for n in ids if n in {row["id"] for row in target}]
        names = [name for name in ("flag", "word", "two") if chance.random() < 0.5] or ["two"]
        new = {"flag": step + 1, "word": f"step {step}", "two": step * 0.5}
        source = {
            "id": pa.array(ids, pa.int64()),
            **{name: pa.array([new[name]] * len(ids), rows().schema.field(name).type) for name in names},
        }
        dataset.merge(pa.table(source), "id", strategy=strategy, partial=True)
        expected, seen = [], set()
        for row in target:
            hit = row["id"] in ids
            if (hit and row["id"] in seen) or (not hit and strategy == "full_merge"):
                continue
            expected.append({**row, **{name: new[name] for name in names}} if hit else row)
            seen |= {row["id"]} if hit else set()
        assert table_of(place).to_pylist() == expected, (seed, step, strategy, names)
        if len(expected) < 500:
            return


@pytest.mark.parametrize("name", ["pyarrow", "duckdb"])
@pytest.mark.parametrize("memory_mb", [1, 256])
@pytest.mark.parametrize("seed", range(3))
def test_random_partial_merges(local: Place, name: str, memory_mb: int, seed: int) -> None:
    """With little memory row groups are read in many batches, which differ between keys and values."""
    write(local, pa.concat_tables([rows(1000), rows(1000).slice(990), rows(30)]), row_group_size=350)
    random_merges(local.dataset(engine=name, memory_mb=memory_mb), local, seed, 6)


def test_rows_that_move_to_another_partition(local: Place, merge_engine: Engine) -> None:
    """Their row group is rewritten, and every row exists once."""
    for day in ("a", "b"):
        table = rows(400).set_column(1, "id", pa.array(range(400 * (day == "b"), 400 * (day == "b") + 400)))
        local.write_files({f"day={day}/f.parquet": table}, row_group_size=100)
    ids = [*range(10, 30), 150, 450, 799]
    days = ["b" if n == 15 else "a" if n < 400 else "b" for n in ids]
    new = pa.table({"id": ids, "day": days, "word": ["new"] * len(ids)})
    local.dataset(engine=merge_engine).merge(new, "id", partial=True)
    found = {
        row["id"]: (path.split("day=")[1][0], row["word"], row["list"])
        for path in oracle.data_files(local.root)
        for row in pq.ParquetFile(path).read().to_pylist()
    }
    expected = {
        n: (
            "b" if n >= 400 or n == 15 else "a",
            "new" if n in ids else f"w{n % 400 % 7}",
            [n % 400] * 2,
        )
        for n in range(800)
    }
    assert found == expected
    assert sum(pq.read_metadata(path).num_rows for path in oracle.data_files(local.root)) == 800


@pytest.mark.parametrize("name", ["pyarrow", "duckdb"])
def test_large_new_values_are_not_all_held_in_memory(
    local: Place, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of NULLs takes no space, so its size says nothing about that of the new values."""
    held: list[int] = []
    original = KnownEdits.of

    def watched(self: Any, start: int, batch: pa.RecordBatch) -> Any:
        held.append(self.edits.rows.nbytes)
        return original(self, start, batch)

    monkeypatch.setattr(KnownEdits, "of", watched)
    count = 40_000
    table = pa.table(
        {"id": range(count), "a": [1] * count, "note": pa.nulls(count, pa.string()), "b": [2] * count}
    )
    local.write_files(
        {"f.parquet": table}, use_dictionary=["a", "b"], column_encoding={"id": "DELTA_BINARY_PACKED"}
    )
    notes = [f"{n} " * 20 for n in range(count)]
    local.dataset(engine=name, memory_mb=2).merge(
        pa.table({"id": range(count), "note": notes}), "id", partial=True
    )
    assert table_of(local).to_pylist() == table.set_column(2, "note", [notes]).to_pylist()
    assert held, "checked before it was written"
    assert max(held) < sum(map(len, notes)) / 2
