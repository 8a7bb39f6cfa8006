"""Files come back only to a dataset that has the same columns, after an undo and after a restored backup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from conftest import WAYS_TO_PUBLISH, Place, place_of
from parketto import CannotUndo, Dataset
from parketto.commit.transaction import Transaction
from parketto.operations import returning_files


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "x": list(ids)})


def rows(dataset: Dataset) -> list[dict[str, Any]]:
    return sorted(dataset.read().to_pylist(), key=repr)


@pytest.fixture(params=WAYS_TO_PUBLISH)
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request)


@pytest.fixture
def dataset(place: Place) -> Dataset:
    """Two files; commit 3 retires a whole one."""
    found = place.dataset()
    found.write(table(1))
    found.write(table(2))
    return found


WHOLE_FILES: dict[str, Callable[[Dataset], object]] = {
    "delete": lambda dataset: dataset.delete("id = 2"),
    "delete by keys": lambda dataset: dataset.delete(keys=pa.table({"id": [2]}), key_columns="id"),
    "undone append": lambda dataset: dataset.undo(2),
}
CHANGES: dict[str, Callable[[Dataset], object]] = {
    "cast": lambda dataset: dataset.alter(cast={"x": "string"}),
    "unify": lambda dataset: dataset.unify_schema(cast={"x": "string"}),
    "rename": lambda dataset: dataset.alter(rename={"x": "y"}),
    "drop": lambda dataset: dataset.alter(drop="x"),
}


def refused(place: Place, dataset: Dataset, number: int, message: str, *, known: bool = True) -> None:
    """An undo, and its dry run, that change nothing; `known` if the log alone shows it."""
    before, seen = place.state(), rows(dataset)
    possible = {commit["number"]: commit["can_undo"] for commit in dataset.history()}
    assert possible[number] != known
    for dry_run in (True, False):
        with pytest.raises(CannotUndo, match=message):
            dataset.undo(number, dry_run=dry_run)
    assert place.state() == before
    assert rows(dataset) == seen


@pytest.mark.parametrize("whole_file", WHOLE_FILES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_later_change_of_columns_is_undone_first(
    place: Place, dataset: Dataset, whole_file: str, change: str
) -> None:
    WHOLE_FILES[whole_file](dataset)
    CHANGES[change](dataset)
    refused(place, dataset, 3, r"other columns than those that commit 4 .*Undo commit 4 first, or restore\(to=2\)")
    dataset.undo(4)
    dataset.undo(3)
    assert rows(dataset) == table(1, 2).to_pylist()


def test_the_change_is_named_also_among_later_commits(place: Place, dataset: Dataset) -> None:
    dataset.delete("id = 2")
    dataset.alter(rename={"x": "y"})
    dataset.alter(drop="y")
    dataset.write(pa.table({"id": [7]}))
    refused(place, dataset, 3, "Undo commit 5 first")
    dataset.restore(to=2)
    assert rows(dataset) == table(1, 2).to_pylist()


def test_deduplicated_file_and_a_cast(place: Place, dataset: Dataset) -> None:
    dataset.write(table(2))
    dataset.deduplicate("id")
    dataset.alter(cast={"x": "string"})
    refused(place, dataset, 4, "Undo commit 5 first")


@pytest.mark.parametrize("whole_file", WHOLE_FILES)
def test_a_column_that_was_added_is_null_in_files_that_come_back(dataset: Dataset, whole_file: str) -> None:
    WHOLE_FILES[whole_file](dataset)
    dataset.alter(add={"z": "string"})
    dataset.undo(3)
    assert rows(dataset) == [{"id": n, "x": n, "z": None} for n in (1, 2)]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_is_undone_is_not_in_the_way(dataset: Dataset, change: str) -> None:
    dataset.delete("id = 2")
    CHANGES[change](dataset)
    dataset.undo()
    dataset.undo(3)
    assert rows(dataset) == table(1, 2).to_pylist()


def test_a_cast_that_rewrote_the_same_file_is_undone_along(dataset: Dataset) -> None:
    dataset.update("id = 2", {"x": 5})
    dataset.unify_schema(cast={"x": "string"})
    assert dataset.undo(3)["undone"] == [3, 4]
    assert rows(dataset) == table(1, 2).to_pylist()


def test_rows_that_were_written_under_a_new_name_are_undone_first(place: Place, dataset: Dataset) -> None:
    dataset.alter(rename={"x": "y"})
    dataset.write(pa.table({"id": [3], "y": [3]}))
    refused(place, dataset, 3, "Undo commit 4 first")
    dataset.undo(4)
    dataset.undo(3)
    assert rows(dataset) == table(1, 2).to_pylist()
    dataset.write(table(4))
    refused(place, dataset, 6, "Undo commit 7 first")
    assert not dataset.history(2)[1]["can_undo"], "also if older commits are not listed"


def test_a_dropped_column_comes_back_beside_new_rows(dataset: Dataset) -> None:
    dataset.alter(drop="x")
    dataset.write(pa.table({"id": [3]}))
    dataset.undo(3)
    assert rows(dataset) == [{"id": 1, "x": 1}, {"id": 2, "x": 2}, {"id": 3, "x": None}]


def test_file_from_a_time_when_an_undone_rename_was_in_effect(place: Place, dataset: Dataset) -> None:
    dataset.alter(rename={"x": "y"})
    dataset.write(pa.table({"id": [3], "y": [3]}))
    dataset.delete("id = 3")
    dataset.undo(3)
    refused(place, dataset, 5, "Undo commit 6 first")
    dataset.undo(6)
    dataset.undo(5)
    assert rows(dataset) == [{"id": n, "y": n} for n in (1, 2, 3)]


def test_rows_of_another_type_by_an_overwrite(place: Place, dataset: Dataset) -> None:
    dataset.delete("id = 2")
    dataset.write(pa.table({"id": [9], "x": ["z"]}), "overwrite")
    refused(
        place,
        dataset,
        3,
        r"which commit 4 \(overwrite .*other types.*nothing could read both. Undo commit 4",
        known=False,
    )


def test_a_column_that_no_file_has_is_added_again_with_another_type(place: Place, dataset: Dataset) -> None:
    dataset.write(pa.table({"id": [3], "x": [3], "z": [3]}), schema="evolve")
    dataset.delete("id = 3")
    dataset.write(pa.table({"id": [4], "x": [4], "z": ["a"]}), schema="evolve")
    refused(place, dataset, 4, r"which commit 5 \(append .*other types", known=False)


@pytest.mark.parametrize("files", [3, 70])
def test_file_of_another_program_that_lacks_the_column(place: Place, dataset: Dataset, files: int) -> None:
    """Files of every layout are looked at, also where the footer index describes them."""
    dataset.alter(cast={"x": "string"})
    dataset.write(pa.table({"id": [6], "x": ["a"]}))
    place.write_files({f"a{number}.parquet": pa.table({"id": [100 + number]}) for number in range(files)})
    refused(place, dataset, 3, r"which commit 4 \(append .*other types.*Undo commit 4 first", known=False)
    dataset.undo(4)
    dataset.undo(3)
    assert dataset.count("x >= 1") == 2


def test_type_in_a_file_of_another_program(place: Place, dataset: Dataset) -> None:
    dataset.alter(cast={"x": "string"})
    place.write_files({"other.parquet": pa.table({"id": [5], "x": ["five"]})})
    for undo in (lambda: dataset.undo(3), lambda: dataset.restore(to=2)):
        with pytest.raises(CannotUndo, match=r"'other.parquet', which no commit in the log has .*Move 'other"):
            undo()


def test_undone_compaction_reads_no_footers(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset.compact()
    dataset.write(table(3))
    monkeypatch.setattr(returning_files, "read_footers", None)
    dataset.undo(3)
    assert rows(dataset) == table(1, 2, 3).to_pylist()


def test_rename_during_the_undo(place: Place, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset.delete("id = 2")
    original, done, other = Transaction.commit, list[bool](), place.dataset()

    def commit(self: Transaction, *args: Any, **options: Any) -> None:
        if self.operation == "undo" and not done:
            done.append(True)
            other.alter(rename={"x": "y"})
        original(self, *args, **options)

    monkeypatch.setattr(Transaction, "commit", commit)
    with pytest.raises(CannotUndo, match="Undo commit 4 first"):
        place.dataset(retries=2).undo()
    assert rows(dataset) == [{"id": 1, "y": 1}]


class TestBackups:
    @pytest.mark.parametrize("change", CHANGES)
    def test_a_later_change_of_columns_is_undone_first(self, place: Place, dataset: Dataset, change: str) -> None:
        path = dataset.delete("id = 2", backup=f"{place.root}-backups")["backup_path"]
        CHANGES[change](dataset)
        before = place.state()
        with pytest.raises(CannotUndo, match=r"the backup .* cannot be restored: .*Undo commit 4 first\. Nothing"):
            dataset.restore(path)
        assert place.state() == before
        dataset.undo(4)
        dataset.restore(path)
        assert rows(dataset) == table(1, 2).to_pylist()

    @pytest.mark.parametrize("history", ["on", "off"])
    @pytest.mark.parametrize("what", ["partitions", "types"])
    def test_files_that_could_not_be_read_together(self, place: Place, what: str, history: Any) -> None:
        dataset = place.dataset(history=history)
        dataset.write(table(1))
        dataset.write(table(2))
        path = dataset.delete("id = 2", backup=f"{place.root}-backups")["backup_path"]
        if what == "partitions":
            dataset.repartition("x")
        else:
            dataset.write(pa.table({"id": [9], "x": ["z"]}), "overwrite")
        before, seen = place.state(), rows(dataset)
        with pytest.raises(CannotUndo, match=rf"the backup .* have other {what}, so that nothing could read both"):
            dataset.restore(path)
        assert place.state() == before
        assert rows(dataset) == seen

    def test_of_the_change_itself(self, place: Place, dataset: Dataset) -> None:
        dataset.delete("id = 2")
        path = dataset.alter(rename={"x": "y"}, backup=f"{place.root}-backups")["backup_path"]
        dataset.restore(path)
        assert rows(dataset) == table(1).to_pylist()
        dataset.undo(3)
        assert rows(dataset) == table(1, 2).to_pylist(), "the rename is not in the way any more"
