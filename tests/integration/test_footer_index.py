"""The footer index saves the reading of footers, and changes nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from parketto import Dataset
from parketto.commit import index_rows
from parketto.commit.footer_index import FooterIndex
from parketto.parquet.file_info import FooterReader
from parketto.storage.local import LocalStore

FILES = 70


@pytest.fixture(autouse=True)
def _recognise_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_rows, "SETTLED_SECONDS", -60.0)


def numbers(place: Place, files: int = FILES, **more: Any) -> None:
    """Files of ten consecutive ids each."""
    place.write_files(
        {
            f"f{n:04d}.parquet": pa.table(
                {
                    "id": range(n * 10, n * 10 + 10),
                    "name": [f"n{k:05d}" for k in range(n * 10, n * 10 + 10)],
                    **more,
                }
            )
            for n in range(files)
        }
    )


@pytest.fixture
def table(local: Place) -> Place:
    numbers(local)
    return local


def segments(place: Place) -> list[Path]:
    root = Path(place.root)
    return sorted(root.parent.glob(f".{root.name}.parketto/index/*"))


class Footers(list[str]):
    """The files whose footers are read."""


@pytest.fixture
def footers(monkeypatch: pytest.MonkeyPatch) -> Footers:
    found, describe = Footers(), FooterReader.describe

    def described(reader: FooterReader, entry: Any, *arguments: Any) -> Any:
        if entry.path:
            found.append(os.path.basename(entry.path))
        return describe(reader, entry, *arguments)

    monkeypatch.setattr(FooterReader, "describe", described)
    return found


class TestUse:
    """Footers are read of files that may match, of new ones, and of one file of each layout."""

    def test_second_delete_reads_few_footers(self, table: Place, footers: Footers) -> None:
        first = table.dataset().delete("id = 15")
        assert len(footers) > FILES
        del footers[:]
        second = table.dataset().delete("id = 351")
        assert "f0035.parquet" in footers
        assert len(footers) < 8
        assert (first["rows_before"], second["rows_before"], second["rows_after"]) == (700, 699, 698)
        assert (second["files_before"], second["files_scanned"]) == (FILES, 1)

    @pytest.mark.parametrize("where", ["id = 351", "name = 'n00351'", "id BETWEEN 351 AND 351 AND name > 'a'"])
    def test_reads_and_counts(self, table: Place, footers: Footers, where: str) -> None:
        table.dataset().delete("id = 15")
        del footers[:]
        assert table.dataset().count(where) == table.dataset().read(where=where).num_rows == 1
        assert len(footers) <= 4
        del footers[:]
        assert table.dataset().count() == 699
        assert not footers

    def test_order_of_files_does_not_matter(self, local: Place, footers: Footers) -> None:
        local.write_files(
            {f"{n * 37 % FILES:04d}.parquet": pa.table({"id": [n], "z": [n * 31 % FILES]}) for n in range(FILES)}
        )
        local.dataset().delete("id = 3")
        for where in ("id = 20", "z = 20"):
            del footers[:]
            assert local.dataset().count(where) == 1
            assert len(footers) <= 2

    def test_merges_and_compactions(self, table: Place, footers: Footers) -> None:
        """They plan with what the index says of files, and read the footers of those that they rewrite."""
        changes = pa.table({"id": [355, 9000], "name": ["x", "y"]})
        table.dataset().delete("id = 15")
        del footers[:]
        assert table.dataset().merge(changes, ["id"]) == {"inserted": 1, "updated": 1, "deleted": 0, "total": 700}
        assert len(footers) < 12
        del footers[:]
        assert table.dataset().merge(changes, ["id"], dry_run=True)["total"] == 700
        assert len(footers) < 8
        del footers[:]
        assert table.dataset().compact(dry_run=True)["before_file_count"] == FILES + 1
        assert len(footers) < 4
        assert table.dataset().compact()["after_file_count"] == 1
        assert table.dataset().count("name = 'x'") == 1

    def test_merges_teach_it(self, table: Place, footers: Footers) -> None:
        table.dataset().merge(pa.table({"id": [355], "name": ["x"]}), ["id"])
        del footers[:]
        assert table.dataset().count("id = 351") == 1
        assert len(footers) <= 2

    @pytest.mark.parametrize(
        "more",
        [{"note": ["x" * 300] * 10}, {f"c{n}": range(10) for n in range(40)}],
        ids=["long text", "many columns"],
    )
    def test_rows_that_lack_bounds_are_written_once(self, local: Place, more: dict[str, Any]) -> None:
        """Merges read these footers each time, and a second row would not say more."""
        numbers(local, **more)
        local.dataset().merge(pa.table({"id": [355], "name": ["x"]}), ["id"], partial=True)
        local.dataset().merge(pa.table({"id": [455], "name": ["x"]}), ["id"], partial=True)
        index = FooterIndex(LocalStore(), str(segments(local)[0].parent.parent))
        assert index.load().num_rows == FILES + 1

    def test_hashes_of_another_version_are_replaced(
        self, table: Place, footers: Footers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(index_rows, "form_of", lambda file: "0123456789abcdef")
            table.dataset().merge(pa.table({"id": [355], "name": ["x"]}), ["id"])
        table.dataset().merge(pa.table({"id": [455], "name": ["x"]}), ["id"])
        del footers[:]
        assert table.dataset().merge(pa.table({"id": [555], "name": ["x"]}), ["id"], dry_run=True)["updated"] == 1
        assert len(footers) < 12

    def test_files_of_other_programs(self, table: Place, footers: Footers) -> None:
        table.dataset().delete("id = 15")
        table.write_files({"new.parquet": pa.table({"id": [351], "name": ["x"]})})
        table.write_files({"f0003.parquet": pa.table({"id": [351], "name": ["y"]})})
        Path(table.root, "f0002.parquet").unlink()
        assert table.dataset().count("id = 351") == 3
        assert table.dataset().count() == 699 + 1 - 9 - 10

    def test_new_files_keep_the_order_of_names(self, table: Place) -> None:
        table.dataset().delete("id = 15")
        table.dataset().delete("id = 355")
        assert table.dataset().read().column("id").to_pylist() == [n for n in range(700) if n not in (15, 355)]

    def test_layouts_that_differ(self, table: Place) -> None:
        """A file that is ruled out still shows its columns and types."""
        table.dataset().delete("id = 15")
        table.write_files({"g.parquet": pa.table({"id": pa.array([9000], pa.int32()), "extra": [2.5]})})
        table.dataset().delete("id = 25")
        found = table.dataset().read(where="id = 351")
        assert found.schema.names == ["id", "name", "extra"]
        assert table.dataset().count("extra IS NOT NULL") == 1
        assert table.dataset().update("id = 352", {"extra": 1.0})["rows_matched"] == 1
        assert table.dataset().count("extra = 1.0") == 1

    def test_small_datasets_have_none(self, local: Place) -> None:
        numbers(local, 20)
        local.dataset().delete("id = 15")
        assert segments(local) == []

    def test_datasets_without_history_have_none(self, table: Place) -> None:
        table.dataset(history="off").delete("id = 15")
        assert not segments(table)

    def test_segments_are_folded(self, table: Place) -> None:
        for n in range(20):
            table.dataset().delete(f"id = {n * 10}")
            assert len(segments(table)) <= 9
        index = FooterIndex(table.dataset()._store, str(segments(table)[0].parents[1]))
        rows = index.load()
        assert rows.num_rows < FILES + 20  # rows of removed files are dropped

    def test_partitions(self, local: Place, footers: Footers) -> None:
        rows = {f"day={n % 7}/f{n}.parquet": pa.table({"id": [n]}) for n in range(500)}
        local.write_files(rows)
        local.dataset().delete("day = 3 AND id = 3")
        del footers[:]
        assert local.dataset().count("day = 3 AND id = 10") == 1
        assert len(footers) <= 5
        assert local.dataset().read(where="id = 10 OR (day = 2 AND id < 20)").column("id").to_pylist() == [
            16,
            2,
            9,
            10,
        ]


VALUES: dict[str, pa.Array] = {
    "int8": pa.array(range(-35, 35), pa.int8()),
    "uint64": pa.array([2**64 - 1 - n for n in range(70)], pa.uint64()),
    "int64": pa.array([-(2**63) + n for n in range(70)], pa.int64()),
    "float": pa.array([n / 7 for n in range(70)], pa.float32()),
    "nan": pa.array([float("nan"), *map(float, range(69))]),
    "text": pa.array([f"ü{n:03d}" for n in range(70)]),
    "long text": pa.array([f"{n:03d}" * 100 for n in range(70)]),
    "binary": pa.array([bytes([n, 255]) for n in range(70)]),
    "bool": pa.array([n > 60 for n in range(70)]),
    "decimal": pa.array([f"{n}.{n:02d}" for n in range(70)]).cast(pa.decimal128(12, 2)),
    "wide decimal": pa.array([f"{n}.{n:02d}" for n in range(70)]).cast(pa.decimal256(50, 2)),
    "date": pa.array(range(70), pa.int32()).cast(pa.date32()),
    "timestamp": pa.array(range(70), pa.timestamp("ns", "UTC")),
    "time": pa.array(range(70), pa.time64("us")),
    "dictionary": pa.array([f"d{n % 9}" for n in range(70)]).dictionary_encode(),
    "nulls": pa.array([None if n % 3 else n for n in range(70)], pa.int64()),
    "only nulls": pa.nulls(70, pa.int32()),
}


@pytest.mark.parametrize("kind", [*VALUES])
def test_bounds_of_each_type(local: Place, kind: str) -> None:
    """Conditions find the same rows with and without the index."""
    values = VALUES[kind]
    local.write_files({f"{n:03d}.parquet": pa.table({"id": [n], "v": values[n : n + 1]}) for n in range(70)})
    local.dataset().update("id = 3", {"id": 3})
    local.dataset().delete("id = 69")
    assert segments(local)
    one = local.dataset().read().slice(20, 1).column("v").combine_chunks()
    import pyarrow.compute as pc

    one = one.cast(one.type.value_type) if pa.types.is_dictionary(one.type) else one
    wheres: list[Any] = ["v IS NULL", "v IS NOT NULL"]
    if one[0].is_valid:
        field = pc.field("v")
        wheres += [field == one[0], field < one[0], field >= one[0], field.isin(one)]
    found = [_ids(local.dataset(), where) for where in wheres]
    for each in segments(local):
        each.unlink()
    assert [_ids(local.dataset(), where) for where in wheres] == found


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("kind", [*VALUES])
def test_files_are_described_as_by_their_footers(
    local: Place, footers: Footers, kind: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that plans use: row groups, bounds, schema, metadata, and Python types of bounds."""
    values = pa.chunked_array([VALUES[kind], VALUES[kind], pa.nulls(1, VALUES[kind].type)]).combine_chunks()
    for n in range(FILES):
        table = pa.table({"id": [n] * groups, "v": values[n : n + groups], "nested": [[{"a": n}]] * groups})
        table = table.replace_schema_metadata({"note": "x"})
        local.write_files({f"day={n % 3}/{n:03d}.parquet": table}, row_group_size=1)
    local.dataset().delete("id = 69")
    assert segments(local)
    kept = kind not in {"long text", "wide decimal"}
    for columns in ((), ("v",), ("id", "nested"), None):
        del footers[:]
        found = described(local, columns)
        assert len(footers) <= 2 or (not kept and (columns is None or "v" in columns))
        with monkeypatch.context() as patch:
            patch.setattr(FooterIndex, "load", lambda *_, **__: index_rows.NO_ROWS)
            assert described(local, columns) == found


def described(place: Place, columns: Any) -> list[Any]:
    files = place.dataset()._context.snapshot(None, columns, own_schemas=True).files
    return [(file, repr(file.row_groups), str(file.schema), file.schema.metadata) for file in files]


def _ids(dataset: Dataset, where: Any) -> list[int]:
    return dataset.read("id", where=where).column("id").to_pylist()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(bytes(content))


def from_the_future(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"version 1", b"version 2", 1))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "truncated": truncated,
    "flipped": flipped,
    "empty": lambda path: path.write_bytes(b""),
    "from the future": from_the_future,
    "a folder": lambda path: (path.unlink(), path.mkdir(), (path / "x.footers").write_bytes(b"?")),
}


@pytest.mark.parametrize("damage", [*DAMAGE])
def test_damage_changes_no_result(table: Place, damage: str) -> None:
    table.dataset().delete("id = 15")
    for each in segments(table):
        DAMAGE[damage](each)
    assert table.dataset().delete("id = 351")["rows_before"] == 699
    assert table.dataset().count("id = 352") == 1
    assert table.dataset().count() == 698


def test_folder_that_cannot_be_written(
    table: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = LocalStore.create

    def denied(store: LocalStore, path: str, content: bytes) -> None:
        if path.endswith(".footers"):
            raise PermissionError(path)
        create(store, path, content)

    monkeypatch.setattr(LocalStore, "create", denied)
    assert table.dataset().delete("id = 351")["rows_matched"] == 1
    assert "could not update the footer index" in caplog.text


def test_another_dataset_at_the_path(table: Place) -> None:
    table.dataset().delete("id = 15")
    aside = Path(f"{table.root}-old")
    Path(table.root).rename(aside)
    numbers(table, extra=[1.0] * 10)
    assert table.dataset().count("id = 15") == 1
    assert table.dataset().count("extra = 1.0") == 700


def test_undo_restores_files_that_the_index_knows(table: Place) -> None:
    table.dataset().delete("id = 15")
    table.dataset().delete("id = 351")
    table.dataset().undo()
    assert table.dataset().count("id = 351") == 1
    assert table.dataset().delete("id = 351")["rows_before"] == 699


class TestPersonalData:
    """Bounds are values: what must be gone is gone from the index, too."""

    def names_in_index(self, place: Place) -> set[str]:
        index = FooterIndex(place.dataset()._store, f"{Path(place.root).parent}/.events.parketto")
        rows = index.load(None)
        ends = [rows[name].to_pylist() for name in rows.schema.names if name.endswith(":text:name")]
        return {name for each in ends for name in each if name}

    def test_purge(self, table: Place) -> None:
        table.dataset().delete("id = 15")
        assert "n00350" in self.names_in_index(table)
        table.dataset().delete("name = 'n00350'", purge=True)
        assert "n00350" not in self.names_in_index(table)
        table.dataset().delete("id = 16")
        assert self.names_in_index(table)
        assert "n00350" not in self.names_in_index(table)

    def test_repeated_purge(self, table: Place) -> None:
        """A purge that was killed after its commit is repeated, and finds no row."""
        table.dataset().delete("id = 15")
        table.dataset().delete("name = 'n00350'", purge=True, dry_run=True)
        assert "n00350" in self.names_in_index(table)
        table.dataset().delete("name = 'nobody'", purge=True)
        assert not self.names_in_index(table)

    def test_vacuum(self, table: Place) -> None:
        table.dataset().delete("id = 15")
        table.dataset().vacuum(dry_run=False)
        assert not self.names_in_index(table)

    def test_operation_that_was_planned_before_a_purge(
        self, table: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its commit does not write what it has read before."""
        from parketto.operations.edit_run import Editor

        run, done = Editor.run, []

        def late(self: Any, *arguments: Any) -> Any:
            found = run(self, *arguments)
            if not done:
                done.append(1)
                table.dataset().delete("name = 'n00350'", purge=True)
            return found

        monkeypatch.setattr(Editor, "run", late)
        table.dataset().delete("id = 15")
        assert "n00350" not in self.names_in_index(table)


def test_two_writers(table: Place) -> None:
    """Commits of several writers each add segments, fold and remove them; nothing is lost."""
    errors: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for n in range(start, start + 8):
                assert Dataset(table.root, retries=20).delete(f"id = {n * 10}")["rows_matched"] == 1
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 30)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors
    assert table.dataset().count() == 700 - 16
    assert table.dataset().count("id IN (0, 10, 300, 5)") == 1
