"""Which rows a write replaces, the same on every engine: whole partitions, or rows that match a condition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import CommitConflict
from parketto.engines.base import Engine

Row = dict[str, Any]


def table(days: Iterable[Any], start: int = 0, kind: pa.DataType | None = None) -> pa.Table:
    days = list(days)
    numbers = pa.array(range(start, start + len(days)), pa.int64())
    return pa.table({"day": pa.array(days, kind or pa.int64()), "n": numbers})


def rows(place: Place) -> list[Row]:
    """Every row that plain readers find, in a stable order."""
    found = [
        row
        for path in oracle.data_files(place.root, place.fs)
        for row in oracle.read_file(path, place.fs).to_pylist()
    ]
    return sorted(found, key=repr)


def ordered(*tables: pa.Table) -> list[Row]:
    return sorted((row for each in tables for row in each.to_pylist()), key=repr)


def untouched(place: Place, folders: Iterable[str]) -> dict[str, tuple[str, Any]]:
    """Name, content and time of every file below some folders."""
    kept = tuple(f"/{folder}/" for folder in folders)
    return {
        path: (content, place.fs.modified(f"{place.root}{path}"))
        for path, content in place.state().items()
        if path.startswith(kept)
    }


class TestOverwritePartitions:
    def test_only_partitions_of_the_rows_are_replaced(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 1, 2, 3]), partition_by="day")
        dataset.write(table([2, 3], 10))
        kept = untouched(place, ["day=1", "day=3"])
        new = table([2, 4, 2], 20)
        stats = dataset.write(new, mode="overwrite_partitions")
        old = ordered(table([1, 1, 2, 3]), table([2, 3], 10))
        assert rows(place) == ordered(pa.Table.from_pylist([row for row in old if row["day"] in (1, 3)]), new)
        assert untouched(place, ["day=1", "day=3"]) == kept
        assert (stats["rows_written"], stats["files_written"], stats["files_replaced"]) == (3, 2, 2)
        assert place.left_behind() == []

    def test_several_columns(self, place: Place, engine: Engine) -> None:
        old = pa.table({"day": [1, 1, 2], "side": ["a", "b", "a"], "n": [1, 2, 3]})
        new = pa.table({"n": [4], "side": ["b"], "day": [1]})
        dataset = place.dataset(engine=engine)
        dataset.write(old, partition_by=["day", "side"])
        dataset.write(new, mode="overwrite_partitions", partition_by=["day", "side"])
        expected = [
            {"day": 1, "side": "a", "n": 1},
            {"day": 1, "side": "b", "n": 4},
            {"day": 2, "side": "a", "n": 3},
        ]
        assert rows(place) == sorted(expected, key=repr)

    def test_folders_with_other_names_for_the_same_value(self, place: Place, engine: Engine) -> None:
        place.write_files({f"day={name}/a.parquet": table([int(name)]) for name in ("1", "01", "02")})
        dataset = place.dataset(engine=engine)
        assert dataset.write(table([1], 7), mode="overwrite_partitions")["files_replaced"] == 2
        assert rows(place) == ordered(table([2]), table([1], 7))

    def test_null_and_hostile_values(self, place: Place, engine: Engine) -> None:
        keys = ["x/y", "a=b", "..", None, "ünï", "%2F", "a b"]
        dataset = place.dataset(engine=engine)
        dataset.write(table(keys, kind=pa.string()), partition_by="day")
        new = table([None, "x/y", "%2F"], 100, pa.string())
        dataset.write(new, mode="overwrite_partitions")
        old = [row for row in table(keys, kind=pa.string()).to_pylist() if row["day"] not in (None, "x/y", "%2F")]
        assert rows(place) == sorted([*old, *new.to_pylist()], key=repr)

    def test_columns_that_only_paths_contain(self, place: Place, engine: Engine) -> None:
        files = {f"day={day}/a.parquet": pa.table({"n": [day]}) for day in (1, 2)}
        place.write_files(files)
        kept = untouched(place, ["day=1"])
        place.dataset(engine=engine).write(table([2], 20), mode="overwrite_partitions")
        assert untouched(place, ["day=1"]) == kept
        assert rows(place) == [{"n": 1}, {"n": 20}]

    def test_a_new_dataset(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        with pytest.raises(ValueError, match="partition_by"):
            dataset.write(table([1]), mode="overwrite_partitions")
        assert not place.fs.exists(place.root)
        dataset.write(table([1, 2]), mode="overwrite_partitions", partition_by="day")
        assert rows(place) == ordered(table([1, 2]))
        assert {name.rpartition("/")[0] for name in place.files()} == {"day=1", "day=2"}

    def test_a_dataset_without_partitions(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1]))
        before = place.state()
        with pytest.raises(ValueError, match=r"not partitioned.*mode='overwrite'"):
            dataset.write(table([1]), mode="overwrite_partitions")
        with pytest.raises(ValueError, match="no partitions"):
            dataset.write(table([1]), mode="overwrite_partitions", partition_by="day")
        assert place.state() == before

    def test_no_rows_replace_nothing(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 2]), partition_by="day")
        before = untouched(place, ["day=1", "day=2"])
        stats = dataset.write(table([]), mode="overwrite_partitions", commit_id="empty:1")
        assert untouched(place, ["day=1", "day=2"]) == before
        assert list(stats.values()) == [0, 0, 0, 0]
        assert dataset.write(table([1]), mode="overwrite_partitions", commit_id="empty:1") == stats, "known"
        assert len(place.files()) == 2

    def test_a_file_beside_the_partitions(self, place: Place) -> None:
        """It may contain rows of any partition, unless it is empty."""
        dataset = place.dataset()
        dataset.write(table([]), partition_by="day")  # one file with the schema
        dataset.write(table([1]), mode="overwrite_partitions", partition_by="day")
        assert rows(place) == ordered(table([1]))
        place.write_files({"stray.parquet": table([1])})
        before = place.state()
        with pytest.raises(ValueError, match=r"stray\.parquet.*'day'"):
            dataset.write(table([1]), mode="overwrite_partitions")
        assert place.state() == before

    def test_other_columns_and_types_are_refused(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 2]), partition_by="day")
        before = place.state()
        for wrong in (pa.table({"day": [1]}), pa.table({"n": [1]}), pa.table({"day": [1], "n": ["x"]})):
            with pytest.raises((ValueError, TypeError)):
                dataset.write(wrong, mode="overwrite_partitions")
        assert place.state() == before

    def test_a_reader_and_a_path(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 2]), partition_by="day")
        new = table([2, 3], 5)
        dataset.write(new.to_reader(), mode="overwrite_partitions")
        assert rows(place) == ordered(table([1]), new)
        other = Place(f"{place.root}-other", place.fs)
        other.write_files({"a.parquet": table([3], 9)})
        dataset.write(other.root, mode="overwrite_partitions")
        assert rows(place) == ordered(table([1]), table([2], 5), table([3], 9))

    def test_conflict_over_a_replaced_file(self, local: Place) -> None:
        dataset = local.dataset()
        dataset.write(table([1, 2]), partition_by="day")

        def batches() -> Iterable[pa.RecordBatch]:
            yield table([1], 7).to_batches()[0]
            local.dataset().delete("day = 1")

        reader = pa.RecordBatchReader.from_batches(table([1]).schema, batches())
        with pytest.raises(CommitConflict):
            dataset.write(reader, mode="overwrite_partitions")
        assert rows(local) == ordered(table([2], 1))

    def test_rows_that_others_append_stay(self, local: Place) -> None:
        dataset = local.dataset()
        dataset.write(table([1, 2]), partition_by="day")

        def batches() -> Iterable[pa.RecordBatch]:
            yield table([1], 7).to_batches()[0]
            local.dataset().write(table([1], 50))

        dataset.write(pa.RecordBatchReader.from_batches(table([1]).schema, batches()), mode="overwrite_partitions")
        assert rows(local) == ordered(table([2], 1), table([1], 7), table([1], 50))
