"""Operations on some partitions list and read only these, and mean what they would mean with all of them."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conftest import Place
from parketto import CommitConflict, DatasetNotFound, NotPlainParquet
from parketto.operations import context as contexts
from parketto.operations import path_pruning
from parketto.operations.folder_types import FolderTypes
from parketto.parquet.file_info import FooterReader
from parketto.storage import local as local_store

DAYS = 12


class Seen(Counter[str]):
    """Which folders are listed, and which footers are read."""

    def folders(self, root: str) -> set[str]:
        """The listed folders, by their paths in the dataset."""
        prefix = f"folder {root}"
        return {name.removeprefix(prefix).lstrip("/") for name in self if name.startswith(prefix)}

    @property
    def footers(self) -> int:
        """How many footers were read."""
        return sum(count for name, count in self.items() if name.startswith("footer"))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    scan, describe = local_store._scan, FooterReader.describe

    def scanned(folder: str) -> Any:
        found[f"folder {folder}"] += 1
        return scan(folder)

    def described(reader: FooterReader, entry: Any, *arguments: Any) -> Any:
        found[f"footer {entry.path}"] += bool(entry.path)
        return describe(reader, entry, *arguments)

    monkeypatch.setattr(local_store, "_scan", scanned)
    monkeypatch.setattr(FooterReader, "describe", described)
    return found


def days(place: Place, *, stored: bool, files: int = 3) -> None:
    """Twelve partitions with three files of ten rows each."""
    tables = {}
    for day, file in itertools.product(range(DAYS), range(files)):
        rows = pa.table({"id": range(file * 10, file * 10 + 10), "v": [0] * 10})
        rows = rows.append_column("day", pa.array([day] * 10)) if stored else rows
        tables[f"day={day}/f{file}.parquet"] = rows
    place.write_files(tables)


@pytest.fixture(params=[False, True], ids=["path only", "stored"])
def table(local: Place, request: pytest.FixtureRequest) -> Place:
    days(local, stored=request.param)
    return local


class TestOnePartition:
    """Only its folder is listed, twice at most by a commit; besides its footers, two others show the schema."""

    def test_delete(self, table: Place, seen: Seen) -> None:
        stats = table.dataset().delete("day = 5 AND id < 15")
        assert seen.folders(table.root) == {"", "day=5"}
        assert seen.footers <= 3 + 2 + 2 * stats["files_rewritten"]
        assert stats["rows_matched"] == 15
        assert (stats["rows_before"], stats["rows_after"], stats["files_before"]) == (None, None, None)
        assert (stats["files_scanned"], stats["files_rewritten"], stats["files_removed"]) == (2, 1, 1)
        assert table.dataset().count() == DAYS * 30 - 15

    def test_update(self, table: Place, seen: Seen) -> None:
        assert table.dataset().update("day = 5", {"v": 1})["rows_matched"] == 30
        assert seen.folders(table.root) == {"", "day=5"}
        assert table.dataset().count("v = 1") == table.dataset().count("day = 5 AND v = 1") == 30

    @pytest.mark.parametrize(
        "where", ["day = 5 AND id > 3", pc.field("day") == 5, "day = 5 OR (day = 5 AND id = 1)"]
    )
    def test_read_and_count(self, table: Place, seen: Seen, where: Any) -> None:
        found = table.dataset().read(where=where)
        assert set(found.column("day").to_pylist()) == {5}
        assert table.dataset().count(where) == found.num_rows > 0
        assert seen.folders(table.root) == {"", "day=5"}

    def test_partition_filter(self, table: Place, seen: Seen) -> None:
        assert table.dataset().compact(partition_filter="day=5", dry_run=True)["before_file_count"] == 3
        table.dataset().delete("id = 1", partition_filter={"day": 5})
        assert seen.folders(table.root) == {"", "day=5"}

    def test_condition_that_no_folder_meets(self, table: Place, seen: Seen) -> None:
        assert table.dataset().delete("day = 99")["rows_matched"] == 0
        assert table.dataset().read(where="day = 99").schema.names == table.dataset().read().schema.names
        assert table.dataset().count("day = 99") == 0

    def test_ranges_and_lists(self, table: Place, seen: Seen) -> None:
        assert table.dataset().count("day BETWEEN 3 AND 4 OR day IN (9, 77)") == 90
        assert seen.folders(table.root) == {"", "day=3", "day=4", "day=9"}

    def test_condition_on_other_columns_lists_everything(self, table: Place, seen: Seen) -> None:
        stats = table.dataset().delete("id = 5 OR day = 3")
        assert stats["rows_before"] == DAYS * 30
        assert len(seen.folders(table.root)) == DAYS + 1


def test_nested_folders(local: Place, seen: Seen) -> None:
    places = itertools.product((2023, 2024), range(1, 4), range(1, 4))
    local.write_files({f"year={y}/month={m}/day={d}/a.parquet": pa.table({"id": [d]}) for y, m, d in places})
    assert local.dataset().read(where="year = 2024 AND day = 2").to_pylist() == [
        {"id": 2, "year": 2024, "month": month, "day": 2} for month in (1, 2, 3)
    ]
    wanted = {f"year=2024/month={month}" for month in (1, 2, 3)}
    assert seen.folders(local.root) == {"", "year=2024"} | wanted | {f"{each}/day=2" for each in wanted}


def test_deleting_all_of_a_partition_keeps_the_others(table: Place) -> None:
    assert table.dataset().delete("day = 5")["files_removed"] == 3
    assert table.dataset().count() == (DAYS - 1) * 30
    assert not any(path.startswith("day=5") for path in table.files())


def test_deleting_the_last_partition_keeps_the_schema(local: Place) -> None:
    days(local, stored=True)
    for day in range(DAYS):
        local.dataset().delete(f"day = {day}")
    assert local.dataset().read().schema.names == ["id", "v", "day"]
    assert len(local.files()) == 1


class TestMeaning:
    """A condition means the same, whichever folders are listed."""

    def test_types_of_paths_are_judged_by_all_folders(self, local: Place) -> None:
        local.write_files({f"month={m}/a.parquet": pa.table({"id": [1]}) for m in ("1", "2", "03")})
        assert local.dataset().count("month = '1'") == 1  # text, because of 03
        assert local.dataset().read(where="month = '2'").column("month").to_pylist() == ["2"]
        assert local.dataset().read(partition_filter="month=2").column("month").to_pylist() == ["2"]

    def test_folders_without_data_do_not_change_types(self, local: Place) -> None:
        local.write_files({f"month={m}/a.parquet": pa.table({"id": [m]}) for m in (1, 2)})
        Path(local.root, "month=unknown").mkdir()
        assert local.dataset().read(where="id = 2").column("month").to_pylist() == [2]
        assert local.dataset().read(partition_filter="month=2").column("month").to_pylist() == [2]

    @pytest.mark.parametrize("stored", [False, True])
    def test_odd_names(self, local: Place, stored: bool) -> None:
        values = ["a b", "x/y", "50%", "k=v", "ü", None, "1", "*", "it's"]
        rows = pa.table({"id": list(range(len(values))), "p": values})
        local.dataset().write(rows, partition_by="p", partition_columns="files" if stored else "path")
        for number, value in enumerate(values):
            where = "p IS NULL" if value is None else "p = '{}'".format(value.replace("'", "''"))
            assert local.dataset().read(where=where).column("id").to_pylist() == [number], value
            assert local.dataset().delete(where)["rows_matched"] == 1, value
        assert local.dataset().count() == 0

    def test_folders_that_are_written_otherwise(self, local: Place) -> None:
        local.write_files(
            {f"day={text}/a.parquet": pa.table({"id": [at], "day": [7]}) for at, text in ((1, "07"), (2, "7"))}
        )
        assert local.dataset().delete("day = 7 AND id = 1")["rows_matched"] == 1
        assert local.dataset().count("day = 7") == 1

    def test_empty_text_in_the_folder_of_null(self, local: Place) -> None:
        local.write_files(
            {
                "p=__HIVE_DEFAULT_PARTITION__/a.parquet": pa.table({"id": [1, 2], "p": ["", None]}),
                "p=x/a.parquet": pa.table({"id": [3], "p": ["x"]}),
            }
        )
        assert local.dataset().read(where="p = ''").column("id").to_pylist() == [1]
        assert local.dataset().read(where="p IS NULL").column("id").to_pylist() == [2]

    def test_timestamps_in_folders_of_days(self, local: Place) -> None:
        at = pa.array([3_600_000_000], pa.timestamp("us"))
        local.write_files(
            {"at=1970-01-01/a.parquet": pa.table({"at": at}), "at=1970-01-02/a.parquet": pa.table({"at": at})}
        )
        assert local.dataset().count("at = TIMESTAMP '1970-01-01 01:00:00'") == 2

    def test_other_values_in_a_file_that_shows_the_schema(self, local: Place) -> None:
        """If files do not contain the value of their folder, folders rule nothing out."""
        local.write_files({f"day={n}/a.parquet": pa.table({"id": [n], "day": [n + 1]}) for n in range(4)})
        assert local.dataset().read(where="day = 2").column("id").to_pylist() == [1]

    def test_other_values_in_a_listed_file(self, local: Place) -> None:
        local.write_files({f"day={n}/a.parquet": pa.table({"id": [n], "day": [n]}) for n in range(5)})
        local.write_files({"day=2/b.parquet": pa.table({"id": [9], "day": [3]})})
        assert local.dataset().read(where="day IN (2, 3)").column("id").to_pylist() == [2, 9, 3]

    def test_column_that_only_other_partitions_have(self, local: Place) -> None:
        """A column that the listed files lack is looked for in all files."""
        tables = {f"day={n}/a.parquet": pa.table({"id": [n]}) for n in range(5)}
        local.write_files(tables | {"day=2/a.parquet": pa.table({"id": [2], "c": [7]})})
        assert local.dataset().delete("day = 3 AND c = 7")["rows_matched"] == 0
        assert local.dataset().delete("day = 3 AND c IS NULL")["rows_matched"] == 1
        assert local.dataset().update("day = 1", {"c": 5})["rows_matched"] == 1

    def test_columns_of_the_first_and_the_last_file_are_shown(self, local: Place) -> None:
        tables = {f"day={n}/a.parquet": pa.table({"id": [n]}) for n in range(5)}
        local.write_files(tables | {"day=4/a.parquet": pa.table({"id": [4], "c": [7]})})
        assert local.dataset().read(where="day = 1").to_pylist() == [{"id": 1, "c": None, "day": 1}]

    def test_types_that_differ_between_partitions(self, local: Place) -> None:
        tables = {f"day={n}/a.parquet": pa.table({"id": [n], "day": pa.array([n], pa.int32())}) for n in range(5)}
        local.write_files(tables | {"day=2/a.parquet": pa.table({"id": [2], "day": pa.array([2], pa.int64())})})
        assert local.dataset().count("day = 2") == local.dataset().count("day = 3") == 1

    def test_rows_that_move_to_a_folder_with_an_odd_name(self, local: Place) -> None:
        local.write_files({f"day=0{n}/a.parquet": pa.table({"id": [n], "day": [n]}) for n in range(5)})
        local.dataset().update("day = 1", {"day": 3})
        assert {path.split("/")[0] for path in local.files()} == {"day=00", "day=02", "day=03", "day=04"}

    def test_purge_finds_rows_in_folders_of_other_values(self, local: Place) -> None:
        local.write_files({f"day={n}/a.parquet": pa.table({"id": [n], "day": [n]}) for n in range(5)})
        local.write_files({"day=2/b.parquet": pa.table({"id": [9], "day": [3]})})
        assert local.dataset().delete("day = 3", purge=True)["rows_matched"] == 2

    def test_readers_trust_folders(self, local: Place) -> None:
        """The value in the path wins in DuckDB and Polars, too: rows elsewhere are not found by it."""
        import duckdb

        local.write_files({f"day={n}/a.parquet": pa.table({"id": [n], "day": [n]}) for n in range(3)})
        local.write_files({"day=1/b.parquet": pa.table({"id": [9], "day": [2]})})
        files = f"read_parquet('{local.root}/*/*.parquet', hive_partitioning=true)"
        assert duckdb.sql(f"SELECT id FROM {files} WHERE day = 1 ORDER BY id").fetchall() == [(1,), (9,)]
        polars = pl.scan_parquet(f"{local.root}/**/*.parquet", hive_partitioning=True).filter(pl.col("day") == 1)
        assert sorted(polars.collect().get_column("id")) == [1, 9]


class TestStoredNulls:
    """NULL in a folder of a value, and values in the folder of NULL, contradict their folders."""

    def test_nulls_in_folders_of_values(self, local: Place) -> None:
        stored = {n: pa.array([n, None], pa.int64()) for n in (1, 2, 3)}
        local.write_files({f"day={n}/a.parquet": pa.table({"id": [n, n + 10], "day": stored[n]}) for n in stored})
        assert local.dataset().read(where="day IS NULL").num_rows == 3
        assert local.dataset().delete("day IS NULL")["rows_matched"] == 3
        assert local.dataset().count("day IS NULL") == 0

    def test_values_in_the_folder_of_null(self, local: Place) -> None:
        folders = {"1": 1, "2": 2, "3": 3, "__HIVE_DEFAULT_PARTITION__": 2}
        local.write_files({f"day={at}/a.parquet": pa.table({"id": [9], "day": [n]}) for at, n in folders.items()})
        assert local.dataset().read(where="day = 2").num_rows == 2

    def test_empty_texts_in_the_folder_of_null_contradict_nothing(self, local: Place, seen: Seen) -> None:
        folders = {"x": "x", "y": "y", "z": "z", "__HIVE_DEFAULT_PARTITION__": ""}
        local.write_files({f"p={at}/a.parquet": pa.table({"id": [9], "p": [n]}) for at, n in folders.items()})
        assert local.dataset().read(where="p = 'y'").num_rows == 1
        assert "p=x" not in seen.folders(local.root)

    def test_delete_in_no_folder_plans_no_file(self, local: Place) -> None:
        """Files that only show the schema are no part of the plan, and so of no conflict."""
        local.write_files({f"day={n}/a.parquet": pa.table({"id": [n], "day": [n]}) for n in range(4)})
        stats = local.dataset().delete("day = 99 OR day IS NULL")
        assert (stats["rows_matched"], stats["files_scanned"]) == (0, 0)


class TestTypesOfPaths:
    """They are those that a full listing implies."""

    def test_columns_of_deeper_folders_if_nothing_is_listed(self, local: Place) -> None:
        places = itertools.product("ab", (1, 2))
        local.write_files({f"region={r}/day={d}/a.parquet": pa.table({"id": [d]}) for r, d in places})
        found = local.dataset().read(where="region = 'zzz'")
        assert found.schema == local.dataset().read().schema
        assert local.dataset().count("region = 'zzz' AND day > 1") == 0

    def test_folders_of_one_value_in_several_places(self, local: Place) -> None:
        local.write_files({f"x/day={d}/a.parquet": pa.table({"id": [1]}) for d in ("1", "2", "abc")})
        Path(local.root, "y", "day=abc").mkdir(parents=True)
        found = local.dataset().read(partition_filter={"day": 1})
        assert found.column("day").to_pylist() == ["1"]

    def test_count_judges_types_by_all_files(self, local: Place) -> None:
        """Also where only the files of October to December are read."""
        local.write_files({f"month={n:02d}/a.parquet": pa.table({"id": [n]}) for n in range(1, 13)})
        assert local.dataset().count("month LIKE '0%' OR id = 500") == 9
        assert local.dataset().count("month LIKE '0%' OR id = 11") == 10

    def test_texts_need_no_further_folders(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        places = itertools.product("abcd", "xyz")
        local.write_files({f"p={p}/q={q}/a.parquet": pa.table({"id": [1]}) for p, q in places})
        listed, list_dirs = [], local_store.LocalStore.list_dirs
        monkeypatch.setattr(
            local_store.LocalStore, "list_dirs", lambda store, path: listed.append(path) or list_dirs(store, path)
        )
        assert local.dataset().count("p = 'b'") == 3
        assert not any(path.endswith("p=c") for path in listed)

    def test_stores_that_list_everything_are_not_asked_again(
        self, memory: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        places = itertools.product(range(4), range(1, 4), ("1", "2", "x"))
        memory.write_files({f"y={y}/m={m}/d={d}/a.parquet": pa.table({"id": [1]}) for y, m, d in places})
        monkeypatch.setattr(
            FolderTypes, "_folders_at", lambda _, folders, depth: pytest.fail(f"{folders} were listed to {depth}")
        )
        found = memory.dataset().read(where="y = 2 AND d = '2'")
        assert found.schema == memory.dataset().read().schema
        assert found.num_rows == 3


def test_folders_without_a_name(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Object stores list one where keys contain two slashes in a row; its path is that of its parent."""
    days(local, stored=False)
    list_dirs = local_store.LocalStore.list_dirs
    monkeypatch.setattr(local_store.LocalStore, "list_dirs", lambda store, path: ["", *list_dirs(store, path)])
    assert local.dataset().count("day = 5") == 30


class TestErrors:
    """Errors describe the whole dataset."""

    def test_filter_without_match(self, table: Place) -> None:
        with pytest.raises(DatasetNotFound, match=r"excludes all 36 files; .*: 'day'"):
            table.dataset().delete("id = 1", partition_filter="day=99")

    def test_filter_and_condition_that_contradict(self, table: Place) -> None:
        assert table.dataset().delete("day = 4", partition_filter="day=5")["rows_matched"] == 0
        assert table.dataset().count("day = 4", partition_filter={"day": [3, 5]}) == 0

    def test_table_formats(self, table: Place) -> None:
        Path(table.root, "_delta_log").mkdir()
        Path(table.root, "_delta_log", "0.json").write_text("{}")
        for work in (
            lambda: table.dataset().delete("day = 5"),
            lambda: table.dataset().read(partition_filter="day=5"),
        ):
            with pytest.raises(NotPlainParquet, match="Delta Lake"):
                work()


class TestConflicts:
    """A commit notices what others have changed in the partitions that it has listed, and only there."""

    def meanwhile(self, monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
        """Run an action once, after the operation has planned."""
        read, done = contexts.DatasetContext.snapshot_in, []

        def late(self: Any, *arguments: Any, **options: Any) -> Any:
            found = read(self, *arguments, **options)
            if not done:
                done.append(1)
                action()
            return found

        monkeypatch.setattr(contexts.DatasetContext, "snapshot_in", late)

    def test_in_the_same_partition(self, table: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = pa.table({"id": [3], "v": [1], "day": [5]})
        self.meanwhile(monkeypatch, lambda: table.dataset().write(rows))
        with pytest.raises(CommitConflict, match="append"):
            table.dataset(retries=0).delete("day = 5 AND id = 3")

    def test_in_other_partitions(self, table: Place, monkeypatch: pytest.MonkeyPatch, seen: Seen) -> None:
        def others() -> None:
            table.dataset().write(pa.table({"id": [3], "v": [1], "day": [6]}))
            table.dataset().delete("day = 7")

        self.meanwhile(monkeypatch, others)
        assert table.dataset(retries=0).delete("day = 5 AND id = 3")["rows_matched"] == 1
        assert table.dataset().count() == DAYS * 30 + 1 - 30 - 1

    def test_new_layout(self, table: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.meanwhile(monkeypatch, lambda: table.dataset().repartition("v"))
        with pytest.raises(CommitConflict):
            table.dataset(retries=0).delete("day = 5 AND id = 3")


def test_files_of_the_sample_that_vanish(table: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    read, done = path_pruning.read_snapshot, []

    def vanishing(*arguments: Any, **options: Any) -> Any:
        if not done:
            done.append(1)
            table.dataset().delete("day = 0")
        return read(*arguments, **options)

    monkeypatch.setattr(path_pruning, "read_snapshot", vanishing)
    assert table.dataset().count("day = 5") == 30


@pytest.mark.sweep
def test_one_partition_of_100_000_files(local: Place, seen: Seen) -> None:
    """A delete in one of 1,000 partitions lists and reads what a dataset of that partition alone would need."""
    local.write_files({f"day=0/{n:03d}.parquet": pa.table({"id": range(n, n + 10)}) for n in range(100)})
    for day in range(1, 1000):
        folder = Path(local.root, f"day={day}")
        folder.mkdir()
        for n in range(100):
            (folder / f"{n:03d}.parquet").hardlink_to(f"{local.root}/day=0/{n:03d}.parquet")
    assert local.dataset().delete("day = 500 AND id = 6")["rows_matched"] == 7
    assert seen.folders(local.root) == {"", "day=500"}
    assert seen.footers < 150
    assert local.dataset().count() == 1000 * 1000 - 7
