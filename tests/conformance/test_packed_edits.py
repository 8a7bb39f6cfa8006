"""Small neighbours that an edit must rewrite become one file, and nothing else changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from parketto import Dataset, sql
from parketto.engines.base import Engine

FILES, ROWS = 6, 20
KEYS = pa.array([number * ROWS + 3 for number in range(FILES)], pa.int64())


def table(first: int, rows: int = ROWS) -> pa.Table:
    ids = range(first, first + rows)
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"t{n}" for n in ids], "day": ["a"] * rows})


def write(place: Place, numbers: range | list[int] = range(FILES), **options: Any) -> None:
    place.write_files({f"{n:02d}.parquet": table(n * ROWS) for n in numbers}, **options)


def ids(place: Place) -> list[int]:
    """The ids in the order of the paths."""
    return [
        number
        for path in oracle.data_files(place.root, place.fs)
        for number in oracle.read_file(path, place.fs).column("id").to_pylist()
    ]


def names(place: Place) -> list[str]:
    return [os.path.basename(path) for path in oracle.data_files(place.root, place.fs)]


SOURCE = pa.table({"id": KEYS, "text": ["zoe"] * FILES, "day": ["a"] * FILES})
EDITS: dict[str, Callable[[Dataset, bool], Any]] = {
    "delete": lambda dataset, pack: dataset.delete("id % 20 = 3", pack=pack),
    "update": lambda dataset, pack: dataset.update("id % 20 = 3", {"text": sql("text || '!'")}, pack=pack),
    "upsert": lambda dataset, pack: dataset.merge(SOURCE, "id", pack=pack, details=True),
    "upsert of one column": lambda dataset, pack: dataset.merge(
        SOURCE, "id", update_columns=["text"], pack=pack, details=True
    ),
    "delete by keys": lambda dataset, pack: dataset.delete(keys=SOURCE, key_columns="id", pack=pack),
    "changes": lambda dataset, pack: dataset.apply_changes(SOURCE, "id", sequence_by="text", pack=pack),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("pack", [True, False])
def test_small_files_that_change_become_one(place: Place, merge_engine: Engine, edit: str, *, pack: bool) -> None:
    write(place)
    EDITS[edit](place.dataset(engine=merge_engine), pack)
    deleted = KEYS.to_pylist() if edit.startswith("delete") else []
    assert ids(place) == [number for number in range(FILES * ROWS) if number not in deleted]
    assert len(names(place)) == (1 if pack else FILES)
    assert oracle.schemas(place.root, place.fs) == [table(0).schema] * len(names(place))


def test_one_file_for_each_has_the_same_rows(place: Place, engine: Engine) -> None:
    found = []
    for pack in (True, False):
        other = Place(f"{place.root}-{pack}", place.fs)
        write(other)
        stats = other.dataset(engine=engine).update("id % 3 = 0", {"text": None}, pack=pack)
        assert (stats["files_rewritten"], stats["files_written"]) == (FILES, 1 if pack else FILES)
        assert len(stats["added_files"]) == stats["files_written"]
        found.append([oracle.read_file(path, place.fs) for path in oracle.data_files(other.root, place.fs)])
    packed, single = (pa.concat_tables(tables) for tables in found)
    assert packed.equals(single)


def test_a_file_that_stays_separates_its_neighbours(place: Place, merge_engine: Engine) -> None:
    """Its bytes and name stay, and so does the order of all rows."""
    write(place)
    before = {path: place.fs.cat_file(path) for path in oracle.data_files(place.root, place.fs)}
    stays = next(path for path in before if path.endswith("03.parquet"))
    source = SOURCE.filter(pa.array([number != 3 for number in range(FILES)]))
    stats = place.dataset(engine=merge_engine).merge(source, "id", details=True)
    assert place.fs.cat_file(stays) == before[stays]
    assert ids(place) == list(range(FILES * ROWS))
    assert names(place)[1] == "03.parquet"
    assert stats["files_written"] == len(stats["added_files"]) == 2


def test_a_file_in_which_no_value_changes_stays(place: Place, merge_engine: Engine) -> None:
    write(place)
    same = table(2 * ROWS + 3, 1)
    source = pa.concat_tables([SOURCE.slice(0, 2), same, SOURCE.slice(3)])
    place.dataset(engine=merge_engine).merge(source, "id")
    assert names(place)[1] == "02.parquet"
    assert len(names(place)) == 3
    assert ids(place) == list(range(FILES * ROWS))


def test_removed_files_separate_nothing(place: Place, engine: Engine) -> None:
    write(place)
    stats = place.dataset(engine=engine).delete("id % 20 = 3 OR (id >= 40 AND id < 60)")
    assert (stats["files_removed"], stats["files_rewritten"], stats["files_written"]) == (1, 5, 1)
    assert len(names(place)) == 1


def test_the_plan_is_what_happens(place: Place, merge_engine: Engine) -> None:
    write(place)
    dataset = place.dataset(engine=merge_engine)
    state = place.state()
    plans = [
        dataset.delete("id % 20 = 3", dry_run=True),
        dataset.delete(keys=SOURCE, key_columns="id", dry_run=True),
        dataset.merge(SOURCE, "id", details=True, dry_run=True),
    ]
    assert place.state() == state
    assert [plan["files_written"] for plan in plans] == [1, 1, 1]
    assert dataset.merge(SOURCE, "id", details=True)["files_written"] == 1


def test_files_that_differ_are_not_packed_together(local: Place, engine: Engine) -> None:
    """Other codecs, metadata keys or types end a group; an undo brings all files back."""
    write(local, range(2))
    write(local, [2], compression="zstd")
    local.write_files({"03.parquet": table(3 * ROWS).replace_schema_metadata({"owner": "someone"})})
    write(local, [4, 5])
    before = local.state()
    dataset = local.dataset(engine=engine)
    assert dataset.delete("id % 20 = 3")["files_written"] == 4
    codecs = [
        pq.read_metadata(path).row_group(0).column(0).compression
        for path in oracle.data_files(local.root, local.fs)
    ]
    assert codecs == ["SNAPPY", "ZSTD", "SNAPPY", "SNAPPY"]
    metadata = [pq.read_schema(path).metadata or {} for path in oracle.data_files(local.root, local.fs)]
    assert [b"owner" in each for each in metadata] == [False, False, True, False]
    dataset.undo()
    assert local.state() == before


def test_partitions_are_packed_separately(place: Place, engine: Engine) -> None:
    for number in range(FILES):
        rows = table(number * ROWS)
        days = pa.array(["a", "b"] * (ROWS // 2))
        place.dataset(engine="pyarrow").write(rows.set_column(2, "day", days), partition_by="day")
    stats = place.dataset(engine=engine).update("id % 20 < 2", {"text": "x"})
    assert (stats["files_rewritten"], stats["files_written"]) == (2 * FILES, 2)
    assert sorted(ids(place)) == list(range(FILES * ROWS))


def test_rows_of_all_files_move_into_one(place: Place, merge_engine: Engine) -> None:
    """Small files that lose rows to another partition do not write a small file each there."""
    for number in range(FILES):
        place.dataset(engine="pyarrow").write(table(number * ROWS), partition_by="day")
    dataset = place.dataset(engine=merge_engine)
    moved = pa.table({"id": KEYS, "day": ["b"] * FILES})
    dataset.merge(moved, "id", partial=True)
    folders = [os.path.basename(os.path.dirname(path)) for path in oracle.data_files(place.root, place.fs)]
    assert folders == ["day=a", "day=b"]
    stats = dataset.update("day = 'b'", {"day": "c"})
    assert (stats["files_written"], stats["files_removed"]) == (1, 0)
    assert sorted(ids(place)) == list(range(FILES * ROWS))


def test_large_row_groups_are_copied_into_the_new_file(local: Place, engine: Engine) -> None:
    """Large row groups keep the bytes of columns that do not change; small ones are merged."""
    big = table(0, 40_000)
    local.write_files({"0.parquet": big}, row_group_size=40_000)
    local.write_files({"1.parquet": table(40_000, 80_000)}, row_group_size=40_000)
    local.write_files({f"{n}.parquet": table(120_000 + n * ROWS) for n in range(2, 6)})
    local.dataset(engine=engine).update("id = 3 OR id = 40001 OR id >= 120000", {"text": "x"})
    (path,) = oracle.data_files(local.root, local.fs)
    groups = [pq.read_metadata(path).row_group(at).num_rows for at in range(pq.read_metadata(path).num_row_groups)]
    assert groups == [40_000, 40_000, 40_000, 4 * ROWS]
    assert ids(local) == [*range(120_000), *range(120_040, 120_040 + 4 * ROWS)]


@pytest.mark.parametrize("pack", [True, False])
def test_the_clustering_stays_where_it_is_true(local: Place, engine: Engine, *, pack: bool) -> None:
    """Deleted rows leave the others in order. New values of the clustering column end it."""
    dataset = local.dataset(engine=engine)
    dataset.write(table(0, 4000), max_rows_per_file=1000)
    dataset.optimize(["id"], target_rows_per_file=1000)
    dataset.delete("id % 100 = 7", pack=pack)
    files = oracle.data_files(local.root, local.fs)
    assert len(files) == (1 if pack else 4)
    for path in files:
        footer = pq.read_metadata(path)
        assert b"parketto.clustering" in footer.metadata
        assert all(footer.row_group(at).sorting_columns for at in range(footer.num_row_groups))
    assert ids(local) == [number for number in range(4000) if number % 100 != 7]
    dataset.update("id % 100 = 8", {"id": sql("id + 100000")}, pack=pack)
    for path in oracle.data_files(local.root, local.fs):
        footer = pq.read_metadata(path)
        assert not any(footer.row_group(at).sorting_columns for at in range(footer.num_row_groups))


def test_a_full_merge_and_deduplication_pack_what_stays(place: Place, merge_engine: Engine) -> None:
    write(place)
    dataset = place.dataset(engine=merge_engine)
    kept = pa.concat_tables([table(number * ROWS, 5) for number in range(FILES)])
    dataset.merge(kept.set_column(1, "text", pa.array(["f"] * len(kept))), "id", strategy="full_merge")
    assert len(names(place)) == 1
    write(place, [97, 98])
    place.write_files({"99.parquet": table(97 * ROWS, 2 * ROWS)})
    stats = dataset.deduplicate("id")
    assert (stats["rows_matched"], stats["files_removed"], stats["files_written"]) == (2 * ROWS, 2, 0)


def test_replaced_rows_leave_one_file(place: Place, engine: Engine) -> None:
    write(place)
    new = table(1000, 1)
    stats = place.dataset(engine=engine).write(new, "overwrite", replace_where="id % 20 = 3 OR id = 1000")
    assert (stats["rows_deleted"], stats["files_replaced"], stats["files_written"]) == (FILES, FILES, 2)


def test_replaced_rows_leave_the_others_in_their_order(place: Place, merge_engine: Engine) -> None:
    """Only files of new rows get the names that are asked for."""
    write(place)
    before = ids(place)
    place.dataset(engine=merge_engine).write(
        table(1000, 3),
        mode="overwrite",
        replace_where="id IN (3, 43) OR id >= 1000",
        basename_template="zz-{}.parquet",
    )
    assert ids(place) == [*(n for n in before if n not in (3, 43)), 1000, 1001, 1002]


def test_keys_delete_with_a_codec_as_conditions_do(place: Place, merge_engine: Engine) -> None:
    """All row groups of rewritten files get it."""
    write(place, range(2), row_group_size=5)
    keys = pa.table({"id": [3, 23]})
    place.dataset(engine=merge_engine).delete(keys=keys, key_columns="id", compression="zstd", pack=False)
    metadata = [pq.read_metadata(place.fs.open(path)) for path in oracle.data_files(place.root, place.fs)]
    groups = [each.row_group(number) for each in metadata for number in range(each.num_row_groups)]
    assert {group.column(at).compression for group in groups for at in range(3)} == {"ZSTD"}


def test_files_are_counted_not_groups(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group whose rows are larger than estimated becomes several files."""
    from parketto.tasks import file_rewriter

    monkeypatch.setattr(file_rewriter, "_MAX_PACKED_BYTES", 1)
    monkeypatch.setattr(file_rewriter, "ENCODED_ROWS", 10)
    write(local, range(3))
    found = local.dataset().delete(keys=pa.table({"id": [3, 23, 43]}), key_columns="id")
    assert found["files_written"] == len(found["added_files"]) > 1
