"""Operations mean the same with the footer index as without it, also where folders are left out."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from parketto import CommitFailed, UnreadableFile
from parketto.commit import index_rows, index_update
from parketto.commit.footer_index import FooterIndex
from parketto.commit.workspace import INDEX
from parketto.operations import context, index_pruning
from parketto.parquet.file_info import FooterReader


@pytest.fixture(autouse=True)
def _small_datasets_have_an_index() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "MIN_FILES", 1)
        patch.setattr(index_update, "MIN_FILES", 1)
        patch.setattr(index_rows, "SETTLED_SECONDS", -60.0)
        yield


def indexed(place: Place) -> pa.Table:
    """All rows of the index."""
    root = Path(place.root)
    folder = next(root.parent.glob(f".{root.name}.parketto/{INDEX}"))
    return FooterIndex(place.dataset()._store, str(folder.parent)).load(None)


def test_column_that_only_left_out_folders_have(local: Place) -> None:
    """The first and the last file show it, so the condition can be read."""
    wide = pa.table({"id": [1], "c": [7]})
    local.write_files({f"day=3/f{n}.parquet": pa.table({"id": [n]}) for n in range(4)})
    local.write_files({"day=0/a.parquet": wide, "day=9/a.parquet": wide})
    assert local.dataset().delete("day = 3 AND c IS NULL AND id = 1")["rows_matched"] == 1
    assert local.dataset().count("day = 3 AND c IS NULL") == 3


def test_column_that_one_left_out_folder_has(local: Place) -> None:
    local.write_files({f"day={n}/a.parquet": pa.table({"id": [n]}) for n in range(5)})
    local.write_files({"day=2/a.parquet": pa.table({"id": [2], "c": [7]})})
    assert local.dataset().delete("day = 3 AND c = 7")["rows_matched"] == 0
    assert local.dataset().delete("day = 3 AND c IS NULL")["rows_matched"] == 1


def test_files_without_rows_do_not_change_types_of_paths(local: Place) -> None:
    local.write_files({f"day={n}/a.parquet": pa.table({"id": [n]}) for n in range(5)})
    local.write_files({"day=abc/a.parquet": pa.table({"id": pa.array([], pa.int64())})})
    assert local.dataset().read(where="id = 3").to_pylist() == [{"id": 3, "day": 3}]
    assert local.dataset().delete("day > 2 AND id = 4")["rows_matched"] == 1
    assert local.dataset().count("day > 2") == 1


@pytest.mark.parametrize("stored", [[1, None], [None, None]])
def test_nulls_in_a_listed_folder_are_noticed(local: Place, stored: list[int | None]) -> None:
    """Bounds of the files that the index rules out contradict their folder, too."""
    day = pa.int64()
    local.write_files({f"day={n}/a.parquet": pa.table({"id": [n, n], "day": [n, n]}) for n in range(5)})
    local.write_files({"day=1/b.parquet": pa.table({"id": [8, 8], "day": pa.array(stored, day)})})
    local.write_files({"day=2/b.parquet": pa.table({"id": [9, 9], "day": pa.array([1, None], day)})})
    local.dataset().delete("id = 4")
    assert local.dataset().read(where="day = 1 AND id = 9").column("id").to_pylist() == [9]


def test_bounds_in_the_legacy_calendar_are_not_compared(local: Place) -> None:
    """Files of one schema may differ in their calendar: each is judged by its own."""
    legacy = {b"org.apache.spark.version": b"3.0.1", b"org.apache.spark.legacyDateTime": b""}

    def days(year: int, unit: str = "us", notes: dict[bytes, bytes] | None = None) -> pa.Table:
        when = pa.array([dt.datetime(year, 1, 1, tzinfo=dt.UTC)], pa.timestamp(unit, "UTC"))
        return pa.table({"id": [year], "at": when}).replace_schema_metadata(notes)

    local.write_files({f"b{n}.parquet": days(2000) for n in range(4)})
    local.write_files({"y.parquet": days(2001, "ns"), "z.parquet": days(1800, notes=legacy)})
    local.dataset().write(days(2002))
    local.dataset().update("id = 2002", {"id": 2003})
    with pytest.raises(UnreadableFile, match="before 1582"):
        local.dataset().count("at > TIMESTAMP '1900-06-01'")


def test_purges_and_vacuums_wait_for_commits(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that folds segments would write the bounds of purged rows again."""
    local.write_files({f"f{n}.parquet": pa.table({"id": [n]}) for n in range(3)})
    local.dataset().delete("id = 0")
    assert indexed(local).num_rows
    dataset, held = local.dataset(), []
    clear = FooterIndex.clear

    def clearing(self: FooterIndex) -> None:
        with pytest.raises(CommitFailed):
            dataset._context.workspace.lock(timeout=0)
        held.append(True)
        clear(self)

    monkeypatch.setattr(FooterIndex, "clear", clearing)
    dataset.vacuum(dry_run=False)
    assert held


class TestRowsThatMove:
    """An update that sets a partition column keeps the names of folders, however the column is written."""

    @pytest.mark.parametrize("where", ["id = 10", "day = 1 AND id = 10"])
    def test_name_in_another_case(self, local: Place, where: str) -> None:
        local.write_files({f"day=0{n}/a.parquet": pa.table({"id": [n * 10], "day": [n]}) for n in (1, 2, 3)})
        local.dataset().update(where, {"DAY": 2})
        assert {path.split("/")[0] for path in local.files()} == {"day=02", "day=03"}

    def test_partition_column_beyond_the_indexed_ones(self, local: Place) -> None:
        rows = {f"c{n}": [n] for n in range(40)}
        tables = {f"day=0{n}/a.parquet": pa.table({**rows, "id": [n * 10], "day": [n]}) for n in (1, 2, 3)}
        local.write_files(tables)
        local.dataset().update("id = 10", {"day": 2})
        assert {path.split("/")[0] for path in local.files()} == {"day=02", "day=03"}
        assert "min:int:day" not in indexed(local).schema.names


def test_names_of_files_that_are_not_utf8(local: Place) -> None:
    local.write_files({f"f{n}.parquet": pa.table({"id": [n]}) for n in range(4)})
    try:
        os.rename(f"{local.root}/f1.parquet".encode(), f"{local.root}/".encode() + b"\xff.parquet")
    except OSError:
        pytest.skip("this filesystem refuses such names")
    assert local.dataset().delete("id = 0")["rows_matched"] == 1
    assert local.dataset().count("id = 1") == 1
    assert local.dataset().count() == 3
    assert local.dataset().delete("id = 2")["rows_matched"] == 1
    assert indexed(local).num_rows > 0


def test_files_that_are_young_when_they_are_listed(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be written again within the resolution of their time, however long the reading takes."""
    monkeypatch.setattr(index_rows, "SETTLED_SECONDS", 2.0)
    local.write_files({f"f{n}.parquet": pa.table({"id": [n]}) for n in range(4)})
    for name, age in (("f1", 1.0), ("f2", 60.0)):
        at = time.time() - age
        os.utime(f"{local.root}/{name}.parquet", (at, at))
    describe = FooterReader.describe

    def slow(*arguments: Any) -> Any:
        time.sleep(0.4)
        return describe(*arguments)

    monkeypatch.setattr(FooterReader, "describe", slow)
    local.dataset().delete("id = 3 OR id = 77")
    assert indexed(local)["path"].to_pylist() == ["f2.parquet"]


def test_commits_that_learn_nothing_do_not_list_segments(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    local.write_files({f"f{n}.parquet": pa.table({"id": [n]}) for n in range(4)})
    index = FooterIndex(local.dataset()._store, "unused")
    monkeypatch.setattr(FooterIndex, "_segments", lambda _: pytest.fail("segments were listed"))
    index.add(pa.table({"path": pa.array([], pa.string())}))


def test_tasks_read_footers_from_their_threshold_on(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_pruning, "_BATCH", 2)
    local.write_files({f"f{n}.parquet": pa.table({"id": [n]}) for n in range(12)})
    entries = local.dataset()._context.listed()
    for in_tasks, expected in ((0, [2] * 6), (5, [5, 5, 2]), (13, [2] * 6)):
        sizes = []

        def read(some: Any, columns: Any, sizes: list[int] = sizes) -> Any:
            sizes.append(len(some))
            return context.read_snapshot(local.dataset()._store, local.root, some, columns).files

        index = FooterIndex(local.dataset()._store, "unused")
        search = index_pruning.IndexSearch(index, local.root, read, None, in_tasks=in_tasks)
        assert search.files(entries).counts.tolist() == [1] * 12
        assert sizes == expected
