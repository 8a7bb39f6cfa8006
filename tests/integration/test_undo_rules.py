"""What an undo takes along, leaves alone and refuses, also beside other writers and programs."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from conftest import WAYS_TO_PUBLISH, Place, place_of
from helpers.kept import kept_files, sound_manifests
from helpers.stream import Stream
from parketto import CannotUndo, CommitConflict, Dataset, InvalidArgument, StateUnavailable, StreamStopped
from parketto.commit import log
from parketto.commit.transaction import Transaction


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "n": [1] * len(ids)})


def ids(dataset: Dataset, **options: Any) -> list[int]:
    return sorted(dataset.read("id", **options).column("id").to_pylist())


@pytest.fixture(params=WAYS_TO_PUBLISH)
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request)


@pytest.fixture
def dataset(place: Place) -> Dataset:
    found = place.dataset()
    found.write(table(1, 2, 3))
    return found


class TestLaterCommits:
    def test_those_that_moved_the_same_rows_are_undone_along(self, dataset: Dataset) -> None:
        dataset.delete("id = 2")
        dataset.write(table(4))
        dataset.compact()
        dataset.optimize(["id"])
        stats = dataset.undo(2)
        assert stats["undone"] == [2, 4, 5][: len(stats["undone"])]
        assert 4 in stats["undone"]
        assert not stats["only_moved_rows"]
        assert ids(dataset) == [1, 2, 3, 4], "the append stays"
        assert [commit["undone_by"] is None for commit in dataset.history()][-2:] == [False, True]

    def test_independent_ones_stay(self, place: Place, dataset: Dataset) -> None:
        dataset.write(table(10, 11))
        dataset.delete("id = 1")
        dataset.delete("id = 10")
        state = place.state()
        assert dataset.undo(3)["undone"] == [3]
        assert ids(dataset) == [1, 2, 3, 11]
        dataset.undo()
        assert ids(dataset) == [1, 2, 3, 10, 11], "the last one that is in effect"
        dataset.restore(to=4)
        assert place.state() == state

    def test_one_that_changed_the_same_rows_is_named(self, place: Place, dataset: Dataset) -> None:
        dataset.delete("id = 2")
        dataset.compact(target_rows_per_file=1)
        dataset.update("id = 3", {"n": 7})
        state = place.state()
        with pytest.raises(CannotUndo, match=r"commit 2 \(delete by .*: commit 4 \(update by .*first, or restore"):
            dataset.undo(2)
        assert not {c["number"]: c["can_undo"] for c in dataset.history()}[2]
        assert place.state() == state
        dataset.undo(4)
        assert dataset.undo(2)["undone"] == [2, 3], "now nothing is in the way"
        assert ids(dataset) == [1, 2, 3]

    def test_delete_of_a_whole_file_is_a_change_of_the_same_rows(self, dataset: Dataset) -> None:
        dataset.write(table(10, 11))
        dataset.delete("id >= 10")
        with pytest.raises(CannotUndo, match="commit 3"):
            dataset.undo(2)
        dataset.undo(3)
        dataset.undo(2)
        assert ids(dataset) == [1, 2, 3]

    def test_redo(self, place: Place, dataset: Dataset) -> None:
        dataset.delete("id = 2")
        after = place.state()
        dataset.undo(2)
        with pytest.raises(CannotUndo, match="already undone, by commit 3"):
            dataset.undo(2)
        assert dataset.undo(3)["undone"] == [3]
        assert place.state() == after
        assert {c["number"]: c["undone_by"] for c in dataset.history()} == {4: None, 3: 4, 2: None, 1: None}
        dataset.undo(2)
        assert ids(dataset) == [1, 2, 3]

    def test_undo_of_an_earlier_commit_is_named(self, dataset: Dataset) -> None:
        """Commit 4 brings the files of commit 2 back, and commit 5 retires them."""
        dataset.write(table(4))
        dataset.undo(2)
        dataset.undo(3)
        dataset.undo(2)
        assert not {c["number"]: c["can_undo"] for c in dataset.history()}[4]
        with pytest.raises(CannotUndo, match=r"commit 5 \(undo by .*Undo commit 5 first"):
            dataset.undo(4)
        dataset.undo(5)
        dataset.undo(4)
        assert ids(dataset) == [1, 2, 3]

    def test_nothing_to_restore_is_no_commit(self, dataset: Dataset) -> None:
        dataset.delete("id = 2")
        for dry_run in (True, False):
            assert dataset.restore(to=2, dry_run=dry_run)["undone"] == []
        assert len(dataset.history()) == 2


class TestFilesThatNothingCouldReadTogether:
    """An undo brings old files back beside newer ones. It is refused if these could not be read as one dataset."""

    RESHAPED: ClassVar[dict[str, Callable[[Dataset], object]]] = {
        "partitions": lambda dataset: dataset.repartition("n"),
        "overwritten partitions": lambda dataset: dataset.write(table(7, 8), "overwrite", partition_by="n"),
        "types": lambda dataset: dataset.alter(cast={"n": "string"}),
    }

    @pytest.mark.parametrize("what", RESHAPED)
    @pytest.mark.parametrize("as_redo", [False, True])
    def test_they_are_refused(self, place: Place, dataset: Dataset, what: str, as_redo: bool) -> None:
        number = dataset.history()[0]["number"] + 1
        self.RESHAPED[what](dataset)
        if as_redo:
            dataset.undo(number)
            number += 1
        row = {"n": "x"} if what == "types" and not as_redo else {"n": 1}
        dataset.write(pa.table({"id": [9]} | {name: [value] for name, value in row.items()}))
        before = place.state()
        possible = {commit["number"]: commit["can_undo"] for commit in dataset.history()}
        assert possible[number] == (what == "types"), "folders are in the log, types are not"
        for dry_run in (True, False):
            with pytest.raises(CannotUndo, match=rf"nothing could read both.*restore\(to={number - 1}\)"):
                dataset.undo(number, dry_run=dry_run)
        assert place.state() == before
        dataset.restore(to=number - 1)
        assert 9 not in ids(dataset)

    @pytest.mark.parametrize("what", RESHAPED)
    def test_append_during_the_undo(self, place: Place, dataset: Dataset, monkeypatch: Any, what: str) -> None:
        self.RESHAPED[what](dataset)
        other, rows = place.dataset(), table(9)
        if what == "types":
            rows = pa.table({"id": [9], "n": ["x"]})
        TestOtherWriters.before_commit(monkeypatch, "undo", lambda: other.write(rows))
        with pytest.raises(CannotUndo, match="nothing could read both"):
            place.dataset(retries=1).undo()
        assert 9 in ids(dataset)

    def test_partition_columns_in_some_files_and_in_the_paths_of_others(self, dataset: Dataset) -> None:
        dataset.repartition("n")
        dataset.repartition("n", partition_columns="path")
        dataset.write(table(9))
        dataset.undo(3)
        assert sorted(map(repr, dataset.read().to_pylist())) == [repr({"id": n, "n": 1}) for n in (1, 2, 3, 9)]

    def test_files_without_rows_do_not_matter(self, dataset: Dataset) -> None:
        dataset.write(table(), "overwrite")
        dataset.write(table(5, 6), "overwrite", partition_by="n")
        dataset.delete("id = 5")
        dataset.undo()
        assert ids(dataset) == [5, 6]
        dataset.undo()
        assert ids(dataset) == []


class TestOtherPrograms:
    def test_their_files_survive(self, place: Place, dataset: Dataset) -> None:
        place.write_files({"other.parquet": table(77)})
        dataset.delete("id = 2")
        place.write_files({"another.parquet": table(78)})
        dataset.undo()
        assert ids(dataset) == [1, 2, 3, 77, 78]
        dataset.restore(to=0)
        assert ids(dataset) == [77, 78]

    def test_file_with_the_name_of_a_retired_one_stays(self, place: Place, dataset: Dataset) -> None:
        (name,) = place.files()
        dataset.delete("id = 2")
        place.write_files({name: table(77)})
        dataset.undo()
        assert ids(dataset) == [1, 2, 3, 77]
        assert name.replace(".parquet", "-restored-2.parquet") in place.files()
        dataset.delete("id = 3")
        dataset.undo()
        dataset.restore(to=2)
        assert ids(dataset) == [1, 3, 77]

    @pytest.mark.parametrize("how", ["replaced", "removed"])
    def test_changed_file_of_the_commit_is_refused(self, place: Place, dataset: Dataset, how: str) -> None:
        dataset.write(table(4))
        (new,) = set(place.files()) - {os.path.basename(path) for path in dataset_files(dataset, as_of=1)}
        if how == "replaced":
            place.write_files({new: table(5, 6, 7)})
        else:
            place.fs.rm_file(f"{place.root}/{new}")
        with pytest.raises(CannotUndo, match=f"another program has {how} '{new}'"):
            dataset.undo()


def dataset_files(dataset: Dataset, as_of: int) -> list[str]:
    from parketto.operations.past_states import past_state

    return [entry.path for entry in past_state(dataset._context, as_of).files]


class TestOtherWriters:
    def test_append_during_an_undo_survives(self, place: Place, dataset: Dataset, monkeypatch: Any) -> None:
        dataset.delete("id = 2")
        other = place.dataset()
        self.before_commit(monkeypatch, "undo", lambda: other.write(table(9)))
        dataset.undo(2)
        assert ids(dataset) == [1, 2, 3, 9]

    def test_last_commit_is_the_last_one_when_the_undo_began(
        self, place: Place, dataset: Dataset, monkeypatch: Any
    ) -> None:
        dataset.delete("id = 2")
        other = place.dataset()
        self.before_commit(monkeypatch, "undo", lambda: (other.write(table(9)), other.compact()))
        assert place.dataset(retries=2).undo()["undone"] == [2, 4]
        assert ids(dataset) == [1, 2, 3, 9]

    @pytest.mark.parametrize("retries", [0, 2])
    def test_compaction_during_an_undo_is_a_conflict(
        self, place: Place, dataset: Dataset, monkeypatch: Any, retries: int
    ) -> None:
        dataset.write(table(4))
        dataset.delete("id = 2")
        other = place.dataset()
        self.before_commit(monkeypatch, "undo", other.compact)
        if not retries:
            with pytest.raises(CommitConflict):
                dataset.undo(3)
            return
        assert place.dataset(retries=retries).undo(3)["undone"] == [3, 4], "it is planned again"
        assert ids(dataset) == [1, 2, 3, 4]

    def test_two_undos_of_one_commit(self, place: Place, dataset: Dataset, monkeypatch: Any) -> None:
        """Nothing of the dataset is in the way of the second one: the log is."""
        dataset.delete("id > 0 AND id < 4")
        dataset.write(table(8))
        other = place.dataset()
        self.before_commit(monkeypatch, "undo", lambda: other.undo(2))
        with pytest.raises(CannotUndo, match="already undone"):
            place.dataset(retries=2).undo(2)
        assert ids(dataset) == [1, 2, 3, 8]

    def test_restore_is_planned_again_after_an_append(
        self, place: Place, dataset: Dataset, monkeypatch: Any
    ) -> None:
        dataset.delete("id = 2")
        other = place.dataset()
        self.before_commit(monkeypatch, "restore", lambda: other.write(table(9)))
        assert place.dataset(retries=1).restore(to=1)["undone"] == [2, 3]
        assert ids(dataset) == [1, 2, 3]

    def test_undos_and_appends_in_threads(self, place: Place, dataset: Dataset) -> None:
        for number in range(4):
            dataset.write(table(100 + number))

        def append() -> None:
            for number in range(4):
                place.dataset(retries=9).write(table(200 + number))

        writer = threading.Thread(target=append)
        writer.start()
        for number in (5, 4, 3, 2):
            place.dataset(retries=9).undo(number)
        writer.join()
        assert ids(dataset) == [1, 2, 3, 200, 201, 202, 203]

    @staticmethod
    def before_commit(monkeypatch: Any, operation: str, act: Any) -> None:
        """Let another writer act once, when an operation is planned and about to commit."""
        original, done = Transaction.commit, list[bool]()

        def commit(self: Transaction, *args: Any, **options: Any) -> None:
            if self.operation == operation and not done:
                done.append(True)
                act()
            original(self, *args, **options)

        monkeypatch.setattr(Transaction, "commit", commit)


class TestArguments:
    @pytest.mark.parametrize("number", ["2", 2.0, True])
    def test_number(self, dataset: Dataset, number: Any) -> None:
        with pytest.raises(InvalidArgument, match="number must be the number of a commit"):
            dataset.undo(number)

    def test_unknown_commit(self, dataset: Dataset) -> None:
        with pytest.raises(
            CannotUndo, match="commit 9 cannot be undone: the log has the records of commits from 1"
        ):
            dataset.undo(9)

    @pytest.mark.parametrize("state", ["yesterday", 1.5, True, dt.date(2026, 1, 1)])
    def test_state(self, dataset: Dataset, state: Any) -> None:
        with pytest.raises(
            InvalidArgument, match="a state is the number of a commit, a datetime, or a time as ISO"
        ):
            dataset.read(as_of=state)
        with pytest.raises(InvalidArgument):
            dataset.restore(to=state)

    def test_states_that_the_log_does_not_have(self, dataset: Dataset) -> None:
        dataset.delete("id = 2")
        with pytest.raises(
            StateUnavailable, match=r"after commit 7: the log leads from 0 to 2.*after commits 0 to 2"
        ):
            dataset.read(as_of=7)
        with pytest.raises(StateUnavailable, match="the log has no commit up to that time"):
            dataset.count(as_of="2020-01-01")
        with pytest.raises(CannotUndo, match="Nothing was changed"):
            dataset.restore(to=7)

    def test_restore_needs_one_of_backup_and_state(self, dataset: Dataset) -> None:
        with pytest.raises(InvalidArgument, match="either"):
            dataset.restore()  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument, match="is not a backup: it has no manifest"):
            dataset.restore("/nowhere", dry_run=True)

    @pytest.mark.parametrize("older_than", [-1, "1 day", True])
    def test_vacuum(self, dataset: Dataset, older_than: Any) -> None:
        with pytest.raises(InvalidArgument, match="older_than must be None, a timedelta"):
            dataset.vacuum(older_than)

    def test_times(self, dataset: Dataset) -> None:
        between = dt.datetime.now(dt.UTC)
        dataset.delete("id = 2")
        zone = dt.timezone(dt.timedelta(hours=5))
        for state in (between, between.astimezone(zone), between.replace(tzinfo=None), between.isoformat()):
            assert ids(dataset, as_of=state) == [1, 2, 3]
        dataset.restore(to=between)
        assert ids(dataset) == [1, 2, 3]


class TestWithoutHistory:
    def test_history_off(self, place: Place) -> None:
        dataset = place.dataset(history="off")
        dataset.write(table(1))
        for act in (dataset.undo, lambda: dataset.restore(to=0)):
            with pytest.raises(CannotUndo, match="history='off'"):
                act()
        with pytest.raises(StateUnavailable, match="history='off'"):
            dataset.read(as_of=1)
        assert dataset.vacuum(0)["commits"] == []
        assert dataset.history() == []

    def test_nothing_was_kept(self, place: Place, dataset: Dataset) -> None:
        dataset.delete("id = 2", retention=0)
        assert not dataset.history(1)[0]["can_undo"]
        with pytest.raises(CannotUndo, match="was not kept"):
            dataset.undo()
        dataset.write(table(5))
        dataset.undo()
        assert ids(dataset) == [1, 3], "an append needs nothing that is kept"

    def test_folded_records(self, place: Place, dataset: Dataset, monkeypatch: Any) -> None:
        monkeypatch.setattr(log, "_FOLDED_AT_ONCE", 1)
        monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 2)
        for number in range(5, 9):
            dataset.write(table(number))
        assert [commit["can_undo"] for commit in dataset.history()] == [True, True, False, False, False]
        with pytest.raises(CannotUndo, match="the log has the records of commits from 4 to 5"):
            dataset.undo(2)
        with pytest.raises(StateUnavailable, match="after commits 3 to 5"):
            dataset.read(as_of=1)
        assert ids(dataset, as_of=3) == [1, 2, 3, 5, 6]


def test_files_are_linked_not_copied(local: Place) -> None:
    dataset = local.dataset()
    dataset.write(table(1, 2, 3))
    (inode,) = {os.stat(path).st_ino for path in Path(local.root).rglob("*.parquet")}
    dataset.delete("id = 2")
    dataset.undo()
    assert {os.stat(path).st_ino for path in Path(local.root).rglob("*.parquet")} == {inode}
    assert [manifest.number for manifest in sound_manifests(local)] == [3, 2]
    assert dataset.vacuum(older_than=0, dry_run=False)["commits"] == [2, 3]
    assert ids(dataset) == [1, 2, 3], "removing a link leaves the file"


def test_retention_of_one_operation(place: Place, dataset: Dataset) -> None:
    dataset.delete("id = 1", retention=0)
    dataset.update("id = 2", {"n": 5}, retention=60)
    dataset.merge(table(2), "id", retention=dt.timedelta(minutes=2))
    dataset.alter(add={"x": "string"}, retention=180)
    dataset.write(table(9), "overwrite", schema="evolve", retention=240)
    now = dt.datetime.now(dt.UTC).timestamp()
    found = {manifest.operation: round((manifest.kept_until - now) / 60) for manifest in sound_manifests(place)}
    assert found == {"update": 1, "merge": 2, "alter": 3, "overwrite": 4}
    with pytest.raises(InvalidArgument, match="retention must be"):
        dataset.delete("id = 9", retention=-1)


def test_results_are_json(dataset: Dataset) -> None:
    dataset.delete("id = 2")
    found = [
        dataset.undo(dry_run=True),
        dataset.undo(),
        dataset.restore(to=1),
        dataset.vacuum(),
        dataset.history(),
    ]
    assert json.loads(json.dumps(found)) == found


class TestCommitIds:
    def test_undone_commit_can_be_written_again(self, dataset: Dataset) -> None:
        for _ in range(2):
            dataset.write(table(8), commit_id="orders:1")
        assert ids(dataset) == [1, 2, 3, 8], "a replay is not written twice"
        dataset.undo()
        for _ in range(2):
            dataset.write(table(8), commit_id="orders:1")
        assert ids(dataset) == [1, 2, 3, 8]

    def test_later_number_of_a_stream_that_is_undone(self, dataset: Dataset) -> None:
        stream = dataset._in_stream({"stream": "s"})
        stream.write(table(7), commit_id="s:1")
        stream.write(table(8), commit_id="s:2")
        dataset.undo()
        stream.write(table(7), commit_id="s:1")
        stream.write(table(8), commit_id="s:2")
        assert ids(dataset) == [1, 2, 3, 7, 8]

    def test_old_commits_that_are_folded(self, dataset: Dataset, monkeypatch: Any) -> None:
        """The last one of each application is remembered for ever: the last one in effect."""
        dataset.write(table(7), commit_id="orders:1")
        dataset.write(table(8), commit_id="orders:2")
        dataset.undo()
        monkeypatch.setattr(log, "_RETENTION", dt.timedelta(0))
        monkeypatch.setattr(log, "_FOLDED_AT_ONCE", 1)
        monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 1)
        for number in (20, 21, 22):
            dataset.write(table(number))
        for number in (1, 2):
            dataset.write(table(6 + number), commit_id=f"orders:{number}")
        assert ids(dataset) == [1, 2, 3, 7, 8, 20, 21, 22]


class TestAppliedChanges:
    def change(self, dataset: Dataset, *records: tuple[int, int, str]) -> dict[str, int]:
        rows = [{"id": key, "n": sequence, "op": op} for key, sequence, op in records]
        return dataset.apply_changes(
            pa.Table.from_pylist(rows), "id", sequence_by="n", delete_when="op = 'd'", except_columns=["op"]
        )  # type: ignore[return-value]

    def test_replayed_deletes_are_applied_again(self, dataset: Dataset) -> None:
        self.change(dataset, (2, 10, "d"))
        dataset.undo()
        assert ids(dataset) == [1, 2, 3]
        assert self.change(dataset, (2, 10, "d"))["deleted"] == 1
        assert self.change(dataset, (2, 9, "u"))["inserted"] == 0, "it is late"

    def test_earlier_deletes_are_remembered(self, dataset: Dataset) -> None:
        self.change(dataset, (2, 10, "d"))
        self.change(dataset, (3, 20, "d"))
        assert dataset.undo()["undone"] == [3]
        assert self.change(dataset, (2, 9, "u"), (3, 19, "u")) == {
            "inserted": 0,
            "updated": 1,
            "deleted": 0,
            "ignored": 1,
            "total": 2,
        }

    def test_later_changes_rely_on_deleted_keys(self, place: Place, dataset: Dataset) -> None:
        dataset.write(table(50))
        self.change(dataset, (50, 10, "d"))
        self.change(dataset, (1, 20, "d"))
        with pytest.raises(CannotUndo, match="relies on the keys that were deleted"):
            dataset.undo(3)
        assert not dataset.history()[1]["can_undo"]
        dataset.undo()
        dataset.undo()
        assert ids(dataset) == [1, 2, 3, 50]

    def test_redo_brings_the_deleted_keys_back(self, dataset: Dataset) -> None:
        self.change(dataset, (2, 10, "d"))
        dataset.undo()
        dataset.undo(3)
        assert self.change(dataset, (2, 9, "u"))["inserted"] == 0

    def test_overwrite_undone(self, dataset: Dataset) -> None:
        self.change(dataset, (2, 10, "d"))
        dataset.write(table(2, 3), "overwrite")
        dataset.undo()
        assert self.change(dataset, (2, 9, "u"))["inserted"] == 0

    def test_lost_tombstones(self, place: Place, dataset: Dataset) -> None:
        self.change(dataset, (2, 10, "d"))
        self.change(dataset, (3, 20, "d"))
        name = dataset.history()[1]["statistics"]["tombstones"]
        place.fs.rm_file(f"{kept_files(place).workspace}/changes/{name}")
        with pytest.raises(CannotUndo, match="late change records could bring them back"):
            dataset.undo()
        assert not dataset.history(1)[0]["can_undo"]


def delivered(stream: Stream) -> list[int]:
    """The ids of the next micro-batch."""
    rows = stream.next()
    return [] if rows is None else sorted(rows.column("id").to_pylist())


class TestStreams:
    def test_undo_is_a_change(self, place: Place, dataset: Dataset) -> None:
        stream = Stream(place)
        assert delivered(stream) == [1, 2, 3]
        dataset.write(table(4))
        assert delivered(stream) == [4]
        dataset.undo()
        with pytest.raises(StreamStopped, match="undo"):
            delivered(stream)

    def test_undone_delete_of_a_whole_file_delivers_nothing_twice(self, place: Place, dataset: Dataset) -> None:
        dataset.write(table(4))
        dataset.delete("id = 4")
        stream = Stream(place, on_change="skip")
        delivered(stream)
        dataset.undo()
        assert delivered(stream) == []
        assert ids(dataset) == [1, 2, 3, 4]

    def test_undone_compaction_delivers_nothing(self, place: Place, dataset: Dataset) -> None:
        dataset.write(table(4))
        stream = Stream(place)
        assert delivered(stream) == [1, 2, 3, 4]
        dataset.compact()
        assert dataset.undo()["only_moved_rows"]
        dataset.undo(dataset.history(1)[0]["number"])
        assert delivered(stream) == []
