"""How rows lie in the files of a write, the same on every engine: their order and the limits of files."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from parketto.engines.base import Engine

CHANCE = random.Random(1)
NUMBERS = [CHANCE.choice([None, *range(50)]) for _ in range(3000)]
TABLE = pa.table({"day": [n % 3 for n in range(3000)], "x": NUMBERS, "text": [f"t{n:05d}" for n in range(3000)]})


def footers(place: Place) -> list[pq.FileMetaData]:
    paths = oracle.data_files(place.root, place.fs)
    return [pq.ParquetFile(pa.BufferReader(bytes(place.fs.cat_file(path)))).metadata for path in paths]


def key(row: dict[str, Any], columns: list[str]) -> list[tuple[bool, Any]]:
    return [(row[name] is None, 0 if row[name] is None else row[name]) for name in columns]


class TestSortBy:
    @pytest.mark.parametrize("columns", ["x", ["x", "text"], ["day", "x"]])
    @pytest.mark.parametrize("more", [{}, {"partition_by": "day"}, {"max_rows_per_file": 700}], ids=str)
    def test_rows_of_each_file_are_sorted(self, place: Place, engine: Engine, columns: Any, more: Any) -> None:
        place.dataset(engine=engine).write(TABLE, sort_by=columns, **more)
        names = [columns] if isinstance(columns, str) else columns
        found = [oracle.read_file(path, place.fs).to_pylist() for path in oracle.data_files(place.root, place.fs)]
        for rows in found:
            assert rows == sorted(rows, key=lambda row: key(row, names))
        everything = [row for rows in found for row in rows]
        assert sorted(everything, key=lambda row: row["text"]) == TABLE.to_pylist()
        for footer in footers(place):
            for number in range(footer.num_row_groups):
                declared = footer.row_group(number).sorting_columns
                assert [footer.schema.column(each.column_index).path for each in declared] == names
                assert not any(each.descending or each.nulls_first for each in declared)

    def test_more_rows_than_memory(self, place: Place, engine: Engine) -> None:
        """They are spilled: the limit is a fraction of what they need."""
        count = 200_000
        big = pa.table({"n": [number * 7919 % count for number in range(count)], "text": ["x" * 50] * count})
        place.dataset(engine=engine, memory_mb=8).write(big, sort_by="n")
        found = [
            oracle.read_file(path, place.fs)["n"].to_pylist() for path in oracle.data_files(place.root, place.fs)
        ]
        assert all(numbers == sorted(numbers) for numbers in found)
        assert sum(map(len, found)) == count
        assert place.left_behind() == []

    def test_partition_columns_in_the_path(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(TABLE, sort_by=["day", "x"], partition_by="day", partition_columns="path")
        dataset.write(TABLE, "overwrite_partitions", sort_by="x")
        for path in oracle.data_files(place.root, place.fs):
            rows = oracle.read_file(path, place.fs).to_pylist()
            assert rows == sorted(rows, key=lambda row: key(row, ["x"]))

    def test_a_reader_and_a_dictionary(self, place: Place, engine: Engine) -> None:
        new = pa.table({"k": pa.array(["b", "a", None, "b", "c"]).dictionary_encode(), "n": range(5)})
        place.dataset(engine=engine).write(new.to_reader(max_chunksize=2), sort_by="k")
        (path,) = oracle.data_files(place.root, place.fs)
        assert oracle.read_file(path, place.fs)["k"].to_pylist() == ["a", "b", "b", "c", None]
        assert pa.types.is_dictionary(oracle.read_file(path, place.fs).schema.field("k").type)

    @pytest.mark.spark
    def test_a_spark_frame(self, local: Place, spark: Any) -> None:
        frame = spark.range(1000).selectExpr("id * 7919 % 1000 AS n", "id % 2 AS part").repartition(2)
        local.dataset(engine="spark").write(frame, sort_by="n", partition_by="part")
        for path in oracle.data_files(local.root):
            numbers = oracle.read_file(path)["n"].to_pylist()
            assert numbers == sorted(numbers)

    @pytest.mark.parametrize(
        ("columns", "message"),
        [("nope", "'nope'"), ([], "empty"), (["x", "x"], "twice"), ("tags", "cannot be ordered")],
    )
    def test_bad_arguments(self, place: Place, columns: Any, message: str) -> None:
        new = pa.table({"x": [1], "tags": [["a"]]})
        with pytest.raises(ValueError, match=message):
            place.dataset().write(new, sort_by=columns)
        assert not place.fs.exists(place.root)


class TestLimits:
    def test_row_groups(self, place: Place, engine: Engine) -> None:
        place.dataset(engine=engine).write(TABLE, row_group_rows=800)
        for footer in footers(place):
            assert max(footer.row_group(number).num_rows for number in range(footer.num_row_groups)) <= 800
        assert sum(footer.num_rows for footer in footers(place)) == 3000

    def test_rows_per_file(self, place: Place, engine: Engine) -> None:
        place.dataset(engine=engine).write(TABLE, target_rows_per_file=1000)
        assert [footer.num_rows for footer in footers(place)] == [1000, 1000, 1000]

    def test_bytes_per_file(self, local: Place, engine: Engine) -> None:
        big = pa.table({"n": [number * 2654435761 % 2**63 for number in range(200_000)]})
        local.dataset(engine=engine).write(big, target_mb_per_file=0.25, row_group_rows=10_000)
        sizes = [local.fs.size(path) for path in oracle.data_files(local.root)]
        assert len(sizes) > 3
        assert max(sizes) < 1.5 * 0.25 * 1024 * 1024

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"max_rows_per_file": 1, "target_rows_per_file": 1}, "pass one of them"),
            ({"row_group_rows": 0}, "row_group_rows"),
            ({"target_mb_per_file": -1}, "target_mb_per_file"),
            ({"target_rows_per_file": 0}, "target_rows_per_file"),
        ],
    )
    def test_bad_arguments(self, place: Place, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            place.dataset().write(TABLE, **arguments)
        assert not place.fs.exists(place.root)
