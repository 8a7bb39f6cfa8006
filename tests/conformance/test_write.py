"""Writing, the same on every engine: all files or none, only Parquet replaced, clear errors."""

from __future__ import annotations

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle

TABLE = pa.table({"id": list(range(10)), "name": [f"n{n}" for n in range(10)]})


def test_write_makes_the_dataset(place: Place, engine: str) -> None:
    stats = place.dataset(engine=engine).write(TABLE)
    assert oracle.read_file(oracle.data_files(place.root, place.fs)[0], place.fs).equals(TABLE)
    assert stats["rows_written"] == 10
    assert stats["files_written"] == len(place.files()) == 1
    assert stats["bytes_written"] == place.fs.size(oracle.data_files(place.root, place.fs)[0])
    assert stats["files_replaced"] == 0
    assert place.files()[0].startswith("part-")
    assert place.left_behind() == []


def test_append_adds_and_overwrite_replaces(place: Place, engine: str) -> None:
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


def test_overwrite_replaces_partitions_too(place: Place, engine: str) -> None:
    place.write_files({"day=1/a.parquet": TABLE, "day=2/a.parquet": TABLE})
    place.dataset(engine=engine).write(TABLE, mode="overwrite")
    assert len(place.files()) == 1


def test_overwrite_of_a_damaged_dataset(place: Place, engine: str) -> None:
    """Replacing needs no look into what is replaced."""
    place.fs.makedirs(place.root)
    place.fs.pipe_file(f"{place.root}/bad.parquet", b"garbage")
    dataset = place.dataset(engine=engine)
    dataset.write(TABLE, mode="overwrite")
    assert dataset.read().equals(TABLE)


def test_max_rows_per_file(place: Place, engine: str) -> None:
    place.dataset(engine=engine).write(TABLE, max_rows_per_file=4)
    tables = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    assert [table.num_rows for table in tables] == [4, 4, 2]
    assert pa.concat_tables(tables).equals(TABLE), "names sort in the order of the rows"


def test_reader_is_streamed(place: Place, engine: str) -> None:
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, iter(TABLE.to_batches(max_chunksize=3)))
    assert place.dataset(engine=engine).write(reader)["rows_written"] == 10


def test_record_batch(place: Place, engine: str) -> None:
    assert place.dataset(engine=engine).write(TABLE.to_batches()[0])["rows_written"] == 10


def test_empty_table_still_writes_its_schema(place: Place, engine: str) -> None:
    place.dataset(engine=engine).write(TABLE.slice(0, 0))
    (found,) = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    assert found.num_rows == 0
    assert found.schema.equals(TABLE.schema)


@pytest.mark.parametrize("codec", ["snappy", "gzip", "lz4", "zstd", "brotli", "none"])
def test_codecs(place: Place, engine: str, codec: str) -> None:
    dataset = place.dataset(engine=engine)
    dataset.write(TABLE, compression=codec)
    assert dataset.files()[0].codec == codec


def test_source_that_fails_in_the_middle_changes_nothing(place: Place, engine: str) -> None:
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


def test_path_that_is_a_file(place: Place) -> None:
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


def test_read_columns(place: Place) -> None:
    dataset = place.dataset()
    dataset.write(TABLE)
    assert dataset.read(columns=["name"]).column_names == ["name"]
    with pytest.raises(ValueError, match="'nope'; available columns: 'id', 'name'"):
        dataset.read(columns=["nope"])
