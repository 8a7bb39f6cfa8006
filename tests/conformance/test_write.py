"""Writes, the same on every engine: all files or none, only Parquet files replaced, clear errors."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto.engines.base import Engine

TABLE = pa.table({"id": list(range(10)), "name": [f"n{n}" for n in range(10)]})


def test_write_creates_the_dataset(place: Place, engine: Engine) -> None:
    stats = place.dataset(engine=engine).write(TABLE)
    assert oracle.read_file(oracle.data_files(place.root, place.fs)[0], place.fs).equals(TABLE)
    assert stats["rows_written"] == 10
    assert stats["files_written"] == len(place.files()) == 1
    assert stats["bytes_written"] == place.fs.size(oracle.data_files(place.root, place.fs)[0])
    assert stats["files_replaced"] == 0
    assert place.files()[0].startswith("part-")
    assert place.left_behind() == []


def test_append_adds_and_overwrite_replaces(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    for _ in range(3):
        dataset.write(TABLE)
    assert dataset.read().num_rows == 30
    place.fs.pipe_file(f"{place.root}/notes.txt", b"mine")
    place.fs.pipe_file(f"{place.root}/_metadata", b"mine")
    stats = dataset.write(TABLE.slice(0, 4), mode="overwrite")
    assert stats["files_replaced"] == 3
    assert dataset.read().equals(TABLE.slice(0, 4))
    assert place.fs.cat_file(f"{place.root}/notes.txt") == b"mine"
    assert place.fs.cat_file(f"{place.root}/_metadata") == b"mine"


def test_overwrite_replaces_partitions_too(place: Place, engine: Engine) -> None:
    place.write_files({"day=1/a.parquet": TABLE, "day=2/a.parquet": TABLE})
    place.dataset(engine=engine).write(TABLE, mode="overwrite")
    assert len(place.files()) == 1


def test_overwrite_of_a_damaged_dataset(place: Place, engine: Engine) -> None:
    """An overwrite does not read the replaced files."""
    place.fs.makedirs(place.root)
    place.fs.pipe_file(f"{place.root}/bad.parquet", b"garbage")
    dataset = place.dataset(engine=engine)
    dataset.write(TABLE, mode="overwrite")
    assert dataset.read().equals(TABLE)


def test_max_rows_per_file(place: Place, engine: Engine) -> None:
    place.dataset(engine=engine).write(TABLE, max_rows_per_file=4)
    tables = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    assert [table.num_rows for table in tables] == [4, 4, 2]
    assert pa.concat_tables(tables).equals(TABLE), "names sort in the order of the rows"


def test_reader_is_streamed(place: Place, engine: Engine) -> None:
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, iter(TABLE.to_batches(max_chunksize=3)))
    assert place.dataset(engine=engine).write(reader)["rows_written"] == 10


def test_record_batch(place: Place, engine: Engine) -> None:
    assert place.dataset(engine=engine).write(TABLE.to_batches()[0])["rows_written"] == 10


def test_empty_table_still_writes_its_schema(place: Place, engine: Engine) -> None:
    place.dataset(engine=engine).write(TABLE.slice(0, 0))
    (found,) = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    assert found.num_rows == 0
    assert found.schema.equals(TABLE.schema)


@pytest.mark.parametrize("columns", [None, "id"])
def test_appending_no_rows_adds_no_file(place: Place, engine: Engine, columns: str | None) -> None:
    dataset = place.dataset(engine=engine)
    dataset.write(TABLE, partition_by=columns)
    before, partitions = place.state(), dataset.partitions()
    stats = dataset.write(TABLE.slice(0, 0), mode="append")
    assert (stats["rows_written"], stats["files_written"], stats["bytes_written"]) == (0, 0, 0)
    assert (place.state(), dataset.partitions()) == (before, partitions)
    assert place.left_behind() == []
    assert len(dataset.history()) == 1, "nothing was committed"


def test_appending_no_rows_with_a_commit_id_is_recorded(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    dataset.write(TABLE)
    before = place.state()
    dataset.write(TABLE.slice(0, 0), mode="append", commit_id="batch:2")
    assert dataset.write(TABLE, mode="append", commit_id="batch:2")["rows_written"] == 0
    assert place.state() == before


def test_the_file_of_an_empty_dataset_is_no_partition(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    dataset.write(TABLE.slice(0, 0), partition_by="id")
    assert [each["values"] for each in dataset.partitions()] == [{}]
    dataset.write(TABLE.slice(0, 2), mode="append", partition_by="id")
    assert [each["values"] for each in dataset.partitions()] == [{"id": n} for n in TABLE["id"].to_pylist()[:2]]


@pytest.mark.parametrize("codec", ["snappy", "gzip", "lz4", "zstd", "brotli", "none"])
def test_codecs(place: Place, engine: Engine, codec: str) -> None:
    dataset = place.dataset(engine=engine)
    dataset.write(TABLE, compression=codec)
    assert dataset.files()[0].codec == codec


def test_source_that_fails_in_the_middle_changes_nothing(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    dataset.write(TABLE)
    before = place.state()

    def batches() -> object:
        yield TABLE.to_batches()[0]
        raise RuntimeError("source broke")

    with pytest.raises(RuntimeError, match="source broke"):
        dataset.write(pa.RecordBatchReader.from_batches(TABLE.schema, batches()), "overwrite", max_rows_per_file=3)
    assert place.state() == before
    assert place.left_behind() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "replace"}, "'append', 'overwrite'"),
        ({"max_rows_per_file": 0}, "greater than 0"),
        ({"max_rows_per_file": "3"}, "number"),
        ({"compression": "lzo"}, "'snappy', 'gzip', 'lz4', 'zstd', 'brotli', 'none'"),
        ({"rows": [1, 2]}, "PyArrow"),
        ({"rows": pa.table({})}, "column"),
    ],
)
def test_bad_arguments(place: Place, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place.dataset().write(**{"rows": TABLE, **arguments})  # type: ignore[arg-type]
    assert not place.fs.exists(place.root)


def test_path_of_a_file_is_refused(place: Place) -> None:
    place.fs.makedirs(place.root.rpartition("/")[0], exist_ok=True)
    place.fs.pipe_file(place.root, b"I am a file")
    for operation in (
        lambda: place.dataset().write(TABLE),
        lambda: place.dataset().compact(),
        lambda: place.dataset().read(),
    ):
        with pytest.raises(NotADirectoryError, match="is a file; expected the directory"):
            operation()
    assert place.fs.cat_file(place.root) == b"I am a file"


class TestNames:
    def test_uuid_is_the_default(self, place: Place, engine: Engine) -> None:
        place.dataset(engine=engine).write(TABLE, max_rows_per_file=3)
        assert all(re.fullmatch(r"part-[0-9a-f]{32}\.parquet", name) for name in place.files())
        assert len(place.files()) == 4

    def test_timestamps_sort_chronologically(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        for start in (0, 5):
            dataset.write(TABLE.slice(start, 5), naming="timestamp", max_rows_per_file=2)
        assert all(re.fullmatch(r"part-\d{8}T\d{15}\.parquet", name) for name in place.files())
        assert dataset.read().equals(TABLE)

    def test_numbering_continues_after_the_highest(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(TABLE, basename_template="data_{}.parquet", max_rows_per_file=5)
        assert place.files() == ["data_000.parquet", "data_001.parquet"]
        place.fs.pipe_file(f"{place.root}/data_x.parquet.txt", b"")
        place.write_files({"data_0041.parquet": TABLE})
        dataset.write(TABLE, basename_template="data_{}.parquet", naming="sequential")
        assert "data_042.parquet" in place.files()
        dataset.write(TABLE, "overwrite", basename_template="data_{}.parquet")
        assert place.files() == ["data_043.parquet"]

    def test_a_template_with_another_scheme(self, place: Place, engine: Engine) -> None:
        place.dataset(engine=engine).write(TABLE, basename_template="x-{}.parquet", naming="uuid")
        assert re.fullmatch(r"x-[0-9a-f]{32}\.parquet", place.files()[0])

    def test_concurrent_writers_never_collide(self, place: Place) -> None:
        def append(_: int) -> None:
            place.dataset().write(TABLE, basename_template="data_{}.parquet")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(append, range(12)))
        assert place.files() == [f"data_{number:03d}.parquet" for number in range(12)]

    @pytest.mark.parametrize(
        "arguments",
        [
            {"naming": "random"},
            {"basename_template": "data.parquet"},
            {"basename_template": "data_{}"},
            {"basename_template": "a/{}.parquet"},
            {"basename_template": "_{}.parquet"},
            {"basename_template": ".{}.parquet"},
            {"basename_template": "{}{}.parquet"},
        ],
    )
    def test_invalid_names_are_refused(self, place: Place, arguments: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"naming|basename_template"):
            place.dataset().write(TABLE, **arguments)
        assert not place.fs.exists(place.root)


class TestPartitions:
    HOSTILE: ClassVar = ["x/y", "a=b", "..", ".", "", None, "ünï", "%2F", "a b", "'", "\n", "plain"]

    def test_every_value_lands_in_a_folder_of_its_own(self, place: Place, engine: Engine) -> None:
        table = pa.table({"key": self.HOSTILE * 3, "n": range(3 * len(self.HOSTILE))})
        dataset = place.dataset(engine=engine)
        dataset.write(table, partition_by="key")
        assert sorted(dataset.read().to_pylist(), key=lambda row: row["n"]) == table.to_pylist()
        for file in dataset.files():
            found = set(oracle.read_file(file.path, place.fs).column("key").to_pylist())
            ((column, value),) = file.partition
            assert column == "key"
            assert found == {value} or (value is None and found <= {None, ""})
        assert place.left_behind() == []

    def test_several_columns_and_the_order_of_rows(self, place: Place, engine: Engine) -> None:
        table = pa.table({"day": [2, 1, 2, 1] * 50, "side": ["b", "a", "b", "b"] * 50, "n": range(200)})
        place.dataset(engine=engine).write(table, partition_by=["day", "side"], max_rows_per_file=30)
        assert sorted({name.rpartition("/")[0] for name in place.files()}) == [
            "day=1/side=a",
            "day=1/side=b",
            "day=2/side=b",
        ]
        for path in oracle.data_files(place.root, place.fs):
            numbers = oracle.read_file(path, place.fs).column("n").to_pylist()
            assert len(numbers) <= 30
            assert numbers == sorted(numbers), "rows of a partition keep their order"
            assert oracle.read_file(path, place.fs).schema.equals(table.schema)

    def test_hundreds_of_partitions_in_little_memory(self, place: Place, engine: Engine) -> None:
        table = pa.table({"key": [n % 600 for n in range(30_000)], "n": range(30_000)})
        dataset = place.dataset(engine=engine, memory_mb=1)
        assert dataset.write(table, partition_by="key")["files_written"] == 600
        for file in dataset.files({"key": 7}):
            assert oracle.read_file(file.path, place.fs).column("n").to_pylist() == list(range(7, 30_000, 600))

    def test_partitioned_by_a_dictionary(self, place: Place, engine: Engine) -> None:
        table = pa.table({"key": pa.array(["b", "a", None, "b"]).dictionary_encode(), "n": range(4)})
        dataset = place.dataset(engine=engine)
        dataset.write(table, partition_by="key")
        assert sorted(row["n"] for row in dataset.read().to_pylist()) == [0, 1, 2, 3]
        assert pa.types.is_dictionary(oracle.schemas(place.root, place.fs)[0].field("key").type)

    def test_an_empty_table_still_writes_its_schema(self, place: Place, engine: Engine) -> None:
        place.dataset(engine=engine).write(TABLE.slice(0, 0), partition_by="id")
        assert oracle.schemas(place.root, place.fs)[0].equals(TABLE.schema)

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ("nope", "partition_by columns not found: 'nope'; available columns: 'id', 'name'"),
            ([], "empty"),
            (["id", "id"], "twice"),
            (["id", "name"], "every column"),
            (3, "list of column names"),
        ],
    )
    def test_invalid_columns_are_refused(self, place: Place, columns: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            place.dataset().write(TABLE, partition_by=columns)
        assert not place.fs.exists(place.root)


def test_read_columns(place: Place) -> None:
    dataset = place.dataset()
    dataset.write(TABLE)
    assert dataset.read(columns=["name"]).column_names == ["name"]
    with pytest.raises(ValueError, match="'nope'; available columns: 'id', 'name'"):
        dataset.read(columns=["nope"])
