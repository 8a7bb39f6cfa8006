"""Which rows a write replaces, the same on every engine: whole partitions, or rows that match a condition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
        assert dataset.write(table([1]), mode="overwrite_partitions", commit_id="empty:1") == {
            **stats,
            "repeated_commit": 2,
        }, "known"
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


class TestReplaceWhere:
    @pytest.mark.parametrize(
        ("where", "matches"),
        [
            ("day >= 3", lambda row: row["day"] is not None and row["day"] >= 3),
            ("n BETWEEN 2 AND 7", lambda row: 2 <= row["n"] <= 7),
            ("day = 3 OR n = 6", lambda row: row["day"] == 3 or row["n"] == 6),
            ("day IS NULL", lambda row: row["day"] is None),
            ("TRUE", lambda row: True),
            ("n > 100", lambda row: row["n"] > 100),
        ],
    )
    @pytest.mark.parametrize("partitioned", [True, False])
    def test_matching_rows_are_replaced(
        self, place: Place, engine: Engine, where: str, matches: Callable[[Row], bool], partitioned: bool
    ) -> None:
        old = table([1, 2, 3, 3, None, 4, 1, 3])
        candidates = table([3, 4, None, 5, 2, 3], 4).to_pylist() + table([9, None], 200).to_pylist()
        new = pa.Table.from_pylist([row for row in candidates if matches(row)], old.schema)
        dataset = place.dataset(engine=engine)
        dataset.write(old, partition_by="day" if partitioned else None, max_rows_per_file=2)
        stats = dataset.write(new, mode="overwrite", replace_where=where)
        kept = [row for row in old.to_pylist() if not matches(row)]
        assert rows(place) == sorted([*kept, *new.to_pylist()], key=repr)
        assert stats["rows_written"] == new.num_rows
        assert stats["rows_deleted"] == old.num_rows - len(kept)
        assert place.left_behind() == []

    def test_files_without_matches_stay(self, place: Place, engine: Engine) -> None:
        place.write_files(
            {f"{name}.parquet": table([number] * 3, 10 * number) for number, name in enumerate("abc")}
        )
        state, times = place.state(), {name: place.fs.modified(f"{place.root}/{name}") for name in place.files()}
        dataset = place.dataset(engine=engine)
        stats = dataset.write(table([1], 11), mode="overwrite", replace_where="day = 1 AND n = 11")
        assert stats["files_replaced"] == 1
        after = place.state()
        for name in ("a.parquet", "c.parquet"):
            assert after[f"/{name}"] == state[f"/{name}"]
            assert place.fs.modified(f"{place.root}/{name}") == times[name]
        assert "/b.parquet" not in after
        assert rows(place) == ordered(
            table([0] * 3), table([1], 10), table([1], 11), table([1], 12), table([2] * 3, 20)
        )

    def test_row_groups_without_matches_are_copied(self, local: Place, engine: Engine) -> None:
        """Their bytes are the same, in the file that replaces theirs."""
        big = pa.table({"n": range(4000), "text": [f"{n * 7919 % 10_007}" for n in range(4000)]})
        local.write_files({"a.parquet": big}, row_group_size=1000)
        before = [digest for _, digest in oracle.row_groups(local.fs.cat_file(f"{local.root}/a.parquet"))]
        local.dataset(engine=engine).write(
            big.slice(1500, 10), mode="overwrite", replace_where="n BETWEEN 1500 AND 1509"
        )
        groups = [
            digest
            for path in oracle.data_files(local.root)
            for _, digest in oracle.row_groups(local.fs.cat_file(path))
        ]
        assert len(groups) == 5
        assert len(set(before) & set(groups)) == 3
        assert rows(local) == ordered(big)

    @pytest.mark.parametrize("language", ["pyarrow", "polars"])
    def test_other_languages(self, place: Place, engine: Engine, language: str) -> None:
        where: Any = pc.field("day") == 2
        if language == "polars":
            where = pytest.importorskip("polars").col("day") == 2
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 2]))
        dataset.write(table([2, 2], 7), mode="overwrite", replace_where=where)
        assert rows(place) == ordered(table([1]), table([2, 2], 7))

    @pytest.mark.parametrize("wrong", [5, None])
    @pytest.mark.parametrize("exists", [True, False])
    def test_rows_that_do_not_match_are_refused(
        self, place: Place, engine: Engine, wrong: int | None, exists: bool
    ) -> None:
        dataset = place.dataset(engine=engine)
        if exists:
            dataset.write(table([1, 2, 3]), partition_by="day")
        before = place.state() if exists else {}
        new = pa.concat_tables([table([2] * 10, 10), table([wrong] * 3, 77)])
        with pytest.raises(ValueError, match=r"3 of 13 rows do not match.*'day = 2'") as error:
            dataset.write(new, mode="overwrite", replace_where="day = 2", max_rows_per_file=12)
        assert repr({"day": wrong, "n": 77}) in str(error.value)
        assert "othing was changed" in str(error.value)
        assert (place.state() if exists else {}) == before
        assert place.fs.exists(place.root) == exists
        assert place.left_behind() == []

    def test_a_new_dataset(self, place: Place, engine: Engine) -> None:
        stats = place.dataset(engine=engine).write(
            table([1, 2]), mode="overwrite", replace_where="day < 3", partition_by="day"
        )
        assert (stats["rows_written"], stats["rows_deleted"], stats["files_replaced"]) == (2, 0, 0)
        assert rows(place) == ordered(table([1, 2]))

    def test_no_rows_only_delete(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 2]), partition_by="day")
        assert dataset.write(table([]), mode="overwrite", replace_where="day = 1")["rows_deleted"] == 1
        assert rows(place) == ordered(table([2], 1))
        dataset.write(table([]), mode="overwrite", replace_where="day = 2")
        assert rows(place) == []
        assert len(place.files()) == 1, "the schema stays"
        dataset.write(table([7]), mode="overwrite", replace_where="day = 7")
        assert rows(place) == ordered(table([7]))

    def test_columns_that_only_paths_contain(self, place: Place, engine: Engine) -> None:
        place.write_files({f"day={day}/a.parquet": pa.table({"n": [day]}) for day in (1, 2)})
        dataset = place.dataset(engine=engine)
        before = place.state()
        with pytest.raises(ValueError, match="1 of 2 rows"):
            dataset.write(table([2, 3], 20), mode="overwrite", replace_where="day = 2")
        assert place.state() == before
        dataset.write(table([2, 2], 20), mode="overwrite", replace_where="day = 2")
        assert [name.rpartition("/")[0] for name in place.files()].count("day=2") == 1
        assert rows(place) == [{"n": 1}, {"n": 20}, {"n": 21}]

    def test_commit_id(self, place: Place) -> None:
        dataset = place.dataset()
        dataset.write(table([1, 2]))
        first = dataset.write(table([2], 7), mode="overwrite", replace_where="day = 2", commit_id="day:2")
        assert dataset.write(table([2], 8), mode="overwrite", replace_where="day = 2", commit_id="day:2") == {
            **first,
            "repeated_commit": 2,
        }
        assert rows(place) == ordered(table([1]), table([2], 7))
        assert dataset.history()[0]["arguments"]["replace_where"] == "day = 2"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"mode": "append"}, "mode='overwrite'"),
            ({"mode": "overwrite_partitions"}, "mode='overwrite'"),
            ({"replace_where": "nope = 1"}, "nope"),
            ({"replace_where": "day +"}, "day +"),
            ({"replace_where": "day + 1"}, "not a condition"),
            ({"replace_where": 7}, "SQL string"),
        ],
    )
    def test_bad_arguments(self, place: Place, arguments: Row, message: str) -> None:
        dataset = place.dataset()
        dataset.write(table([1]))
        before = place.state()
        with pytest.raises(ValueError, match=re.escape(message)):
            dataset.write(table([1]), **{"mode": "overwrite", "replace_where": "day = 1", **arguments})
        assert place.state() == before

    @pytest.mark.parametrize(("added", "conflicts"), [(2, True), (3, False)])
    def test_rows_that_others_append(self, local: Place, added: int, conflicts: bool) -> None:
        """They are a conflict if they may match."""
        dataset = local.dataset()
        dataset.write(table([1, 2]), partition_by="day")

        def batches() -> Iterable[pa.RecordBatch]:
            yield table([2], 7).to_batches()[0]
            local.dataset().write(table([added], 50))

        reader = pa.RecordBatchReader.from_batches(table([1]).schema, batches())
        if conflicts:
            with pytest.raises(CommitConflict):
                dataset.write(reader, mode="overwrite", replace_where="day = 2")
            assert rows(local) == ordered(table([1, 2]), table([2], 50))
        else:
            dataset.write(reader, mode="overwrite", replace_where="day = 2")
            assert rows(local) == ordered(table([1]), table([2], 7), table([3], 50))


def in_order(found: Iterable[Row]) -> list[Row]:
    """Rows with their columns in order, by the text of their values."""
    by_name = ({name: row[name] for name in sorted(row)} for row in found)
    return sorted(by_name, key=str)


def seen(place: Place) -> list[Row]:
    """Every row with the partition columns of its path, as text."""
    found = []
    for path in oracle.data_files(place.root, place.fs):
        folders = path[len(place.root) + 1 :].split("/")[:-1]
        values = dict(folder.split("=", 1) for folder in folders)
        found += [{**row, **values} for row in oracle.read_file(path, place.fs).to_pylist()]
    return in_order(found)


def columns_in_files(place: Place) -> set[tuple[str, ...]]:
    return {tuple(schema.names) for schema in oracle.schemas(place.root, place.fs)}


class TestPartitionColumns:
    @pytest.mark.parametrize("form", [None, "files", "path"])
    def test_a_new_dataset(self, place: Place, engine: Engine, form: Any) -> None:
        new = pa.table({"day": [1, 2, 1], "side": ["a", "b", None], "n": [1, 2, 3]})
        dataset = place.dataset(engine=engine)
        dataset.write(new, partition_by=["side", "day"], partition_columns=form)
        assert columns_in_files(place) == {("n",) if form == "path" else ("day", "side", "n")}
        null = "__HIVE_DEFAULT_PARTITION__"
        expected = [{**row, "side": row["side"] or null, "day": str(row["day"])} for row in new.to_pylist()]
        assert seen(place) == in_order(expected)

    @pytest.mark.parametrize("form", ["files", "path"])
    def test_appended_rows_have_the_form_of_the_dataset(self, place: Place, engine: Engine, form: Any) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 2]), partition_by="day", partition_columns=form)
        dataset.write(table([2], 7))
        dataset.write(table([3], 8), partition_columns=form, partition_by="day")
        dataset.write(table([1], 9), mode="overwrite_partitions")
        dataset.write(table([2], 10), mode="overwrite", replace_where="day = 2")
        assert columns_in_files(place) == {("n",) if form == "path" else ("day", "n")}
        assert [(row["day"], row["n"]) for row in seen(place)] == [("1", 9), ("2", 10), ("3", 8)]
        before = place.state()
        other = "files" if form == "path" else "path"
        for mode in ("append", "overwrite_partitions"):
            with pytest.raises(ValueError, match=rf"partition_columns='{other}'.*repartition"):
                dataset.write(table([1]), mode=mode, partition_columns=other)
        assert place.state() == before

    def test_other_operations_keep_the_form(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 2, 2]), partition_by="day", partition_columns="path")
        dataset.write(table([2], 5))
        dataset.compact()
        dataset.update("n = 0", {"day": 3})
        dataset.merge(table([2, 4], 5), key_columns=["n"])
        dataset.delete("day = 2 AND n = 1")
        assert columns_in_files(place) == {("n",)}
        assert [(row["day"], row["n"]) for row in seen(place)] == [("2", 2), ("2", 5), ("3", 0), ("4", 6)]

    def test_an_empty_dataset(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([]), partition_by="day", partition_columns="path")
        dataset.write(table([1]), partition_by="day", partition_columns="path")
        assert [(row["day"], row["n"]) for row in seen(place)] == [("1", 0)]

    def test_conversion(self, place: Place, engine: Engine) -> None:
        old = table([1, 2, 2, None])
        dataset = place.dataset(engine=engine)
        dataset.write(old, partition_by="day")
        stats = dataset.repartition("day", partition_columns="path")
        assert stats["rows_written"] == 4
        assert columns_in_files(place) == {("n",)}
        path_form = seen(place)
        assert [row["day"] for row in path_form] == ["1", "2", "2", "__HIVE_DEFAULT_PARTITION__"]
        dataset.repartition("day", partition_columns="path")
        assert seen(place) == path_form
        dataset.repartition("day")
        assert columns_in_files(place) == {("n", "day")}
        assert rows(place) == sorted(({"n": row["n"], "day": row["day"]} for row in old.to_pylist()), key=repr)

    def test_other_partitions_in_the_path(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 2, 2]), partition_by="day", partition_columns="path")
        dataset.repartition("n", partition_columns="path")
        assert columns_in_files(place) == {("day",)}
        assert sorted((row["n"], row["day"]) for row in seen(place)) == [("0", 1), ("1", 2), ("2", 2)]
        dataset.repartition(None)
        assert rows(place) == sorted(({"day": day, "n": n} for n, day in enumerate((1, 2, 2))), key=repr)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"partition_columns": "both", "partition_by": "day"}, "'files', 'path'"),
            ({"partition_columns": "path"}, "partition_by"),
            ({"partition_columns": "path", "partition_by": ["day", "n"]}, "at least one must remain"),
        ],
    )
    def test_bad_arguments(self, place: Place, arguments: Row, message: str) -> None:
        for write in (
            place.dataset().write,
            lambda rows, **more: place.dataset().write(rows, "overwrite", **more),
        ):
            with pytest.raises(ValueError, match=message):
                write(table([1]), **arguments)
        assert not place.fs.exists(place.root)

    @pytest.mark.parametrize(
        "arguments",
        [{}, {"mode": "overwrite_partitions"}, {"mode": "overwrite", "replace_where": "day = 9"}],
        ids=str,
    )
    def test_a_conversion_while_rows_are_added(self, place: Place, arguments: Row) -> None:
        """The rows would be added in the form that the dataset had before."""
        dataset = place.dataset()
        dataset.write(table([1, 2]), partition_by="day")

        def batches() -> Iterable[pa.RecordBatch]:
            yield table([9], 7).to_batches()[0]
            place.dataset().repartition("day", partition_columns="path")

        with pytest.raises(CommitConflict, match="repartition"):
            dataset.write(pa.RecordBatchReader.from_batches(table([1]).schema, batches()), **arguments)
        assert columns_in_files(place) == {("n",)}
        dataset.write(table([9], 7), **arguments)
        assert columns_in_files(place) == {("n",)}

    def test_pandas_reads_both_forms(self, local: Place, engine: Engine) -> None:
        pandas = pytest.importorskip("pandas")
        new = pa.table({"day": [1, 2, 1], "n": [1, 2, 3]})
        dataset = local.dataset(engine=engine)
        dataset.write(new.to_pandas(), partition_by="day", partition_columns="path")
        found = pandas.read_parquet(local.root)
        assert sorted(zip(found["day"].astype(int), found["n"], strict=True)) == [(1, 1), (1, 3), (2, 2)]
        dataset.repartition("day")
        found = pandas.read_parquet(local.root, partitioning=None)
        assert sorted(zip(found["day"], found["n"], strict=True)) == [(1, 1), (1, 3), (2, 2)]


class TestDryRun:
    """Nothing is written, and the report is what a write then does."""

    @pytest.mark.parametrize(
        "arguments",
        [
            {"mode": "append"},
            {"mode": "overwrite"},
            {"mode": "overwrite", "partition_by": []},
            {"mode": "overwrite_partitions"},
            {"mode": "overwrite", "replace_where": "day >= 2"},
        ],
        ids=str,
    )
    def test_the_report_comes_true(self, place: Place, engine: Engine, arguments: Row) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 1, 2, 3]), partition_by="day")
        dataset.write(table([2], 9))
        before, new = place.state(), table([2, 2, 5], 20)
        plan = dataset.write(new, dry_run=True, **arguments)
        assert place.state() == before
        assert len(dataset.history()) == 2
        stats = dataset.write(new, **arguments)
        assert plan["dry_run"]
        assert plan["rows_written"] == stats["rows_written"] == 3
        assert plan["files_replaced"] == stats["files_replaced"]
        assert set(plan["replaced_files"] or ()) == {
            f"{place.root}{path}" for path in set(before) - set(place.state())
        }
        assert plan["rows_deleted"] == stats.get("rows_deleted")
        if "partition_by" in arguments:
            assert plan["partitions"] == {}
        else:
            assert plan["partitions"] == {"day=2": 2, "day=5": 1}

    def test_a_new_dataset(self, place: Place, engine: Engine) -> None:
        for arguments in ({}, {"partition_by": "day"}, {"mode": "overwrite", "replace_where": "n < 9"}):
            plan = place.dataset(engine=engine).write(table([1, 2, 2]), dry_run=True, **arguments)
            assert (plan["rows_written"], plan["files_replaced"]) == (3, 0)
            assert plan["partitions"] == ({"day=1": 1, "day=2": 2} if "partition_by" in arguments else {})
        assert not place.fs.exists(place.root.rpartition("/")[0]) or place.left_behind() == []
        assert not place.fs.exists(place.root)

    def test_a_reader_is_not_consumed(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(table([1, 2]), partition_by="day")
        reader = table([2, 3]).to_reader()
        plan = dataset.write(reader, mode="overwrite_partitions", dry_run=True)
        assert (
            plan["rows_written"] is plan["partitions"] is plan["files_replaced"] is plan["replaced_files"] is None
        )
        assert dataset.write(reader, mode="overwrite_partitions")["rows_written"] == 2
        assert dataset.write(table([9]).to_reader(), "overwrite", dry_run=True)["files_replaced"] == 3

    def test_a_path(self, place: Place, engine: Engine) -> None:
        other = Place(f"{place.root}-other", place.fs)
        other.write_files({"a.parquet": table([3, 4], 9), "b.parquet": table([3], 9)})
        plan = place.dataset(engine=engine).write(other.root, partition_by="day", dry_run=True)
        assert plan["partitions"] == {"day=3": 2, "day=4": 1}
        assert not place.fs.exists(place.root)

    @pytest.mark.parametrize(
        ("new", "arguments", "message"),
        [
            (table([1]), {"mode": "append", "partition_by": "n"}, "partitioned by 'day'"),
            (table([5]), {"mode": "overwrite", "replace_where": "day = 1"}, "1 of 1 rows"),
            (pa.table({"day": [1], "x": [1]}), {}, "'n'"),
            (pa.table({"day": [1], "n": ["x"]}), {}, "'n' is string"),
            (pa.table({"day": [1], "n": pa.array([None], pa.int64())}), {}, "not null"),
        ],
    )
    def test_everything_is_checked(
        self, place: Place, engine: Engine, new: pa.Table, arguments: Row, message: str
    ) -> None:
        dataset = place.dataset(engine=engine)
        required = pa.schema([pa.field("day", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
        dataset.write(table([1, 2]).cast(required), partition_by="day")
        before = place.state()
        with pytest.raises((ValueError, TypeError), match=message):
            dataset.write(new, dry_run=True, **arguments)
        assert place.state() == before

    @pytest.mark.parametrize("columns", [None, "day", ["day", "n"]])
    def test_repartition(self, place: Place, engine: Engine, columns: Any) -> None:
        place.write_files({"a.parquet": table([1, 2, 2]).append_column("x", pa.array([1, 2, 3]))})
        dataset = place.dataset(engine=engine)
        before = place.state()
        plan = dataset.repartition(columns, partition_columns="files", dry_run=True)
        assert place.state() == before
        stats = dataset.repartition(columns)
        assert (plan["rows_written"], plan["files_replaced"]) == (stats["rows_written"], stats["files_replaced"])
        assert plan["replaced_files"] == [f"{place.root}/a.parquet"]
        folders = {name.rpartition("/")[0] for name in place.files()} - {""}
        assert set(plan["partitions"] or ()) == folders
        with pytest.raises(ValueError, match="nope"):
            dataset.repartition("nope", dry_run=True)

    @pytest.mark.spark
    def test_a_spark_frame(self, local: Place, spark: Any) -> None:
        dataset = local.dataset(engine="spark")
        dataset.write(table([1, 2, 3]), partition_by="day")
        frame = spark.createDataFrame(table([2, 2, 5], 20).to_pandas())
        plan = dataset.write(frame, mode="overwrite_partitions", dry_run=True)
        assert (plan["rows_written"], plan["files_replaced"]) == (3, 1)
        assert plan["partitions"] == {"day=2": 2, "day=5": 1}
        with pytest.raises(ValueError, match="1 of 3 rows do not match"):
            dataset.write(frame, "overwrite", replace_where="day = 2", dry_run=True)
        assert dataset.write(frame, mode="overwrite", replace_where="day > 1")["rows_deleted"] == 2
        assert rows(local) == ordered(table([1]), table([2, 2, 5], 20))
