"""Merges that change only some columns or whose source lacks some, dry runs of merges, and backups."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import ColumnNotFound, CommitConflict, Dataset, InvalidArgument
from parketto.engines.base import Engine

Row = dict[str, Any]
FORMS = ["none", "in the files", "in the path"]
TARGET: list[Row] = [
    {"id": 1, "day": "d1", "price": 1.0, "note": "a"},
    {"id": 2, "day": "d1", "price": None, "note": "b"},
    {"id": 3, "day": "d1", "price": 3.0, "note": None},
    {"id": 4, "day": "d2", "price": 4.0, "note": "d"},
    {"id": 2, "day": "d2", "price": 9.0, "note": "twice"},
    {"id": 5, "day": "d3", "price": 5.0, "note": "e"},
    {"id": 6, "day": "d3", "price": 6.0, "note": "f"},
]
SCHEMA = pa.schema({"id": pa.int64(), "day": pa.string(), "price": pa.float64(), "note": pa.string()})


def lay_out(place: Place, form: str) -> None:
    """Two files in every day, or in one folder."""
    files: dict[str, pa.Table] = {}
    for number, row in enumerate(TARGET):
        schema = SCHEMA.remove(1) if form == "in the path" else SCHEMA
        kept = {name: row[name] for name in schema.names}
        folder = "" if form == "none" else f"day={row['day']}/"
        files[f"{folder}{number}.parquet"] = pa.Table.from_pylist([kept], schema)
    place.write_files(files)


def contents(place: Place) -> list[Row]:
    """All rows in the order of their paths, with the day of their folder."""
    found = []
    for path in oracle.data_files(place.root, place.fs):
        folder = path[len(place.root) + 1 :].rpartition("/")[0]
        for row in oracle.read_file(path, place.fs).to_pylist():
            found.append({**({"day": folder.removeprefix("day=")} if folder else {}), **row})
            assert not folder or row.get("day") in (None, folder.removeprefix("day=")), (
                "a row in its own partition"
            )
    return found


def expected(
    target: list[Row], source: list[Row], updated: set[str], strategy: str, form: str
) -> tuple[list[Row], dict[str, int]]:
    """The expected rows. Kept columns come from the kept row, the first one of its partition."""
    given = set(source[0]) if source else set()
    changes = updated & given
    rows, gone, new = list(target), set(), []
    inserted = changed = 0
    for row in source:
        hits = [at for at, old in enumerate(target) if old["id"] == row["id"]]
        if not hits:
            if strategy != "update":
                new.append({name: row.get(name) for name in SCHEMA.names})
                inserted += 1
            continue
        at_home = [at for at in hits if form == "none" or "day" not in changes or target[at]["day"] == row["day"]]
        stays = (at_home or hits)[0]
        rows[stays] = {**target[stays], **{name: row[name] for name in changes}}
        gone |= set(hits) - {stays}
        changed += 1
    if strategy == "full_merge":
        gone |= {at for at, old in enumerate(target) if old["id"] not in {row["id"] for row in source}}
    kept = [row for at, row in enumerate(rows) if at not in gone]
    total = len(kept) + len(new)
    return [*kept, *new], {"inserted": inserted, "updated": changed, "deleted": len(gone), "total": total}


def as_table(source: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(source, pa.schema([SCHEMA.field(name) for name in source[0]]))


SOURCES: dict[str, list[Row]] = {
    "all columns": [
        {"id": 2, "day": "d1", "price": 20.0, "note": "new"},
        {"id": 4, "day": "d3", "price": None, "note": "moved"},
        {"id": 9, "day": "d9", "price": 90.0, "note": "inserted"},
    ],
    "without note": [
        {"day": "d2", "id": 1, "price": 10.0},
        {"day": "d2", "id": 2, "price": 20.0},
        {"day": "d1", "id": 3, "price": 30.0},
        {"day": "d9", "id": 5, "price": None},
        {"day": "d4", "id": 8, "price": 80.0},
    ],
    "keys and days": [{"id": 6, "day": "d1"}, {"id": 5, "day": "d3"}, {"id": 7, "day": "d3"}],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", SOURCES)
@pytest.mark.parametrize("update_columns", [None, ["price"], ["day"]])
def test_some_columns(
    local: Place, merge_engine: Engine, form: str, given: str, update_columns: list[str] | None
) -> None:
    source = SOURCES[given]
    if given != "without note" and str(getattr(merge_engine, "name", merge_engine)) == "spark":
        pytest.skip("on Spark the one with the most cases is enough")
    if update_columns and set(update_columns) - set(source[0]):
        pytest.skip("the source has no such column")
    lay_out(local, form)
    target = contents(local)
    updated = set(update_columns or SCHEMA.names) - {"id"}
    rows, stats = expected(target, source, updated, "upsert", form)
    before = local.state()
    dataset = local.dataset(engine=merge_engine)
    options: dict[str, Any] = {"update_columns": update_columns, "partial": True}
    assert dataset.merge(as_table(source), "id", dry_run=True, **options) == stats
    assert local.state() == before
    assert local.left_behind() == []
    assert dataset.merge(as_table(source), "id", **options) == stats
    assert Counter(map(repr, map(ordered, contents(local)))) == Counter(map(repr, map(ordered, rows)))
    hit = {f"day={row['day']}" for row in target if row["id"] in {each["id"] for each in source}}
    for path, content in before.items():
        if form != "none" and path.strip("/").partition("/")[0] not in hit:
            assert local.state()[path] == content, "an untouched file"
    schema = SCHEMA.remove(1) if form == "in the path" else SCHEMA
    assert all(found.equals(schema) for found in oracle.schemas(local.root, local.fs))
    assert local.left_behind() == []


def ordered(row: Row) -> Row:
    return {name: row.get(name) for name in SCHEMA.names}


@pytest.mark.parametrize("strategy", ["update", "full_merge", "deduplicate"])
def test_other_strategies(local: Place, merge_engine: Engine, strategy: str) -> None:
    lay_out(local, "in the files")
    source = SOURCES["without note"]
    rows, stats = expected(contents(local), source, {"price"}, strategy, "in the files")
    found = local.dataset(engine=merge_engine).merge(
        as_table(source), "id", strategy=strategy, update_columns=["price"], partial=True
    )
    assert found == stats
    assert Counter(map(repr, map(ordered, contents(local)))) == Counter(map(repr, map(ordered, rows)))


@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge"])
def test_dry_run_returns_the_statistics_of_the_run(local: Place, merge_engine: Engine, strategy: str) -> None:
    lay_out(local, "in the files")
    before = local.state()
    dataset = local.dataset(engine=merge_engine)
    source = as_table(SOURCES["all columns"])
    planned = dataset.merge(source, "id", strategy=strategy, dry_run=True)
    assert local.state() == before
    assert local.left_behind() == []
    assert dataset.merge(source, "id", strategy=strategy) == planned


def test_invalid_columns_are_refused(local: Place, engine: Engine) -> None:
    lay_out(local, "in the files")
    before = local.state()
    dataset = local.dataset(engine=engine)
    source = as_table(SOURCES["without note"])
    with pytest.raises(ValueError, match="only the target has 'note'"):
        dataset.merge(source, "id")
    with pytest.raises(ColumnNotFound, match="update_columns of the source not found: 'note'"):
        dataset.merge(source, "id", update_columns=["note"], partial=True)
    with pytest.raises(InvalidArgument, match="'id' cannot be updated"):
        dataset.merge(source, "id", update_columns=["id"], partial=True)
    with pytest.raises(InvalidArgument, match="updates nothing"):
        dataset.merge(source, "id", strategy="insert", update_columns=["price"], partial=True)
    with pytest.raises(ColumnNotFound, match="partition columns of the dataset in the source not found: 'day'"):
        dataset.merge(source.drop_columns("day"), "id", partial=True)
    with pytest.raises(ValueError, match="only the source has 'extra'"):
        dataset.merge(source.append_column("extra", source["id"]), "id", partial=True)
    assert local.state() == before
    assert local.left_behind() == []


def test_inserted_rows_need_values_for_required_columns(local: Place, merge_engine: Engine) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("must", pa.string(), nullable=False)])
    local.write_files({"a.parquet": pa.Table.from_pylist([{"id": 1, "must": "x"}], schema)})
    dataset = local.dataset(engine=merge_engine)
    known, new = pa.table({"id": [1]}), pa.table({"id": [1, 2]})
    assert dataset.merge(known, "id", partial=True)["updated"] == 1
    before = local.state()
    for dry_run in (True, False):
        with pytest.raises(ValueError, match="new rows without 'must'"):
            dataset.merge(new, "id", partial=True, dry_run=dry_run)
    assert dataset.merge(new, "id", strategy="update", partial=True)["updated"] == 1
    assert list(before) != []
    assert local.rows() == Counter([" {'id': 1, 'must': 'x'}"])


class TestBackups:
    OPERATIONS = {  # noqa: RUF012 - never changed
        "merge": lambda dataset, backup: dataset.merge(as_table(SOURCES["all columns"]), "id", backup=backup),
        "delete": lambda dataset, backup: dataset.delete("price > 3", backup=backup),
        "update": lambda dataset, backup: dataset.update("id < 4", {"day": "d9"}, backup=backup),
    }

    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_restore_brings_the_old_files_back(self, place: Place, engine: Engine, operation: str) -> None:
        lay_out(place, "in the files")
        before, rows = place.state(), place.rows()
        backups = f"{place.root.rpartition('/')[0]}/kept"
        dataset = place.dataset(engine=engine)
        self.OPERATIONS[operation](dataset, backups)
        assert place.rows() != rows
        (name,) = [path.rpartition("/")[2] for path in place.fs.ls(backups, detail=False)]
        kept = [path for path in place.fs.find(f"{backups}/{name}") if path.endswith(".parquet")]
        assert kept, "the retired files, under their own paths"
        assert all(before[path.partition("/files")[2]] for path in kept)
        stats = dataset.restore(f"{backups}/{name}")
        assert place.state() == before
        assert stats["files_restored"] == len(kept)
        with pytest.raises(CommitConflict, match="restored before"):
            dataset.restore(f"{backups}/{name}")
        assert place.state() == before

    def test_restore_refuses_to_undo_later_changes(self, place: Place, engine: Engine) -> None:
        lay_out(place, "in the files")
        dataset = place.dataset(engine=engine)
        backups = f"{place.root.rpartition('/')[0]}/kept"
        first = dataset.update("id = 1", {"note": "x"}, backup=backups)["backup_path"]
        second = dataset.update("id = 1", {"note": "y"}, backup=backups)["backup_path"]
        state = place.state()
        with pytest.raises(CommitConflict, match="restore later backups first"):
            dataset.restore(first)
        assert place.state() == state
        dataset.restore(second)
        dataset.restore(first)
        assert contents(place)[0]["note"] == "a"

    def test_restore_keeps_files_that_were_added_later(self, place: Place, engine: Engine) -> None:
        lay_out(place, "none")
        dataset = place.dataset(engine=engine)
        backups = f"{place.root.rpartition('/')[0]}/kept"
        path = dataset.delete("id = 1", backup=backups)["backup_path"]
        dataset.write(pa.Table.from_pylist([{"id": 77, "day": "d7", "price": 7.0, "note": None}], SCHEMA))
        dataset.restore(path)
        assert sorted(row["id"] for row in contents(place)) == [1, 2, 2, 3, 4, 5, 6, 77]

    def test_no_backup_if_nothing_was_retired(self, place: Place, engine: Engine) -> None:
        lay_out(place, "none")
        backups = f"{place.root.rpartition('/')[0]}/kept"
        assert place.dataset(engine=engine).delete("id = 500", backup=backups)["backup_path"] is None
        assert place.dataset(engine=engine).delete("id = 1", backup=backups, dry_run=True)["backup_path"] is None
        assert not place.fs.exists(backups)

    def test_backup_folder_inside_of_the_dataset_is_refused(self, place: Place, engine: Engine) -> None:
        lay_out(place, "none")
        for inside in (place.root, f"{place.root}/old"):
            with pytest.raises(InvalidArgument, match="inside the dataset"):
                place.dataset(engine=engine).delete("id = 1", backup=inside)

    def test_backup_on_another_filesystem(self, local: Place, memory: Place) -> None:
        lay_out(local, "in the files")
        before = local.state()
        dataset = Dataset(local.root, engine="pyarrow")
        path = dataset.delete("id = 1", backup=f"memory://{memory.root}/kept")["backup_path"]
        assert path is not None
        assert path.startswith("memory://")
        dataset.restore(path)
        assert local.state() == before

    def test_restore_of_something_else_is_refused(self, local: Place, tmp_path: Any) -> None:
        lay_out(local, "none")
        with pytest.raises(InvalidArgument, match="is not a backup"):
            local.dataset().restore(str(tmp_path))
        (tmp_path / "manifest.json").write_text("[]")
        with pytest.raises(ValueError, match="not a valid backup manifest"):
            local.dataset().restore(str(tmp_path))
