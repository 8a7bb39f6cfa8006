"""Writes in several processes, killed at every step: replayed, they give the same rows as an undisturbed run."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from conftest import Place
from helpers.crash import DEATHS, mortal, sampled
from parketto import Dataset
from parketto.commit import lease as leases
from parketto.commit import workspace as workspaces
from parketto.commit.lease import Lease
from parketto.errors import CommitConflict, CommitFailed, ExpectationFailed, InvalidArgument

OLD = pa.table({"id": range(9), "day": [number % 3 for number in range(9)]})
NEW = pa.table({"id": range(100, 106), "day": [1, 2] * 3})
WRITES: dict[str, dict[str, Any]] = {
    "append": {},
    "overwrite": {"mode": "overwrite"},
    "overwrite_partitions": {"mode": "overwrite_partitions"},
    "replace_where": {"mode": "overwrite", "replace_where": "day > 0"},
}


def make(place: Place) -> None:
    if place.fs.exists(place.root.rpartition("/")[0]):
        place.fs.rm(place.root.rpartition("/")[0], recursive=True)
    place.dataset().write(OLD, partition_by="day")


def write(dataset: Dataset, options: dict[str, Any]) -> None:
    """Two tasks and a failed attempt, as a stream writes a micro-batch."""
    planned = dataset.begin_write(NEW.schema, application="stream", **options)
    parts = [planned.stage(NEW.slice(at, 3).to_batches(), attempt=f"{at}") for at in (0, 3)]
    planned.stage(NEW.to_batches(), attempt="superseded")
    planned.commit(parts, commit_id="stream:1", stream={"batch_id": 1})


@pytest.mark.parametrize("name", WRITES)
def test_killed_at_every_call(place: Place, name: str, share: int, count_crash_points: Any) -> None:
    make(place)
    before, dataset = place.rows(), place.dataset()
    calls = mortal(dataset)
    write(dataset, WRITES[name])
    after, seen = place.rows(), set()
    assert before != after
    points = sampled([(at, when) for when in ("before", "after") for at in range(1, calls() + 1)], share)
    for at, when in points:
        make(place)
        dataset = place.dataset()
        mortal(dataset, at, when)
        with pytest.raises(DEATHS):
            write(dataset, WRITES[name])
        place.dataset().recover()
        found = place.rows()
        assert found in (before, after), f"killed {when} call {at}"
        seen.add(found == after)
        write(place.dataset(), WRITES[name])  # the stream is started again
        assert place.rows() == after, f"killed {when} call {at}"
        assert place.left_behind() == []
    assert seen == {False, True}
    count_crash_points(len(points))


class TestLeases:
    """Staged files survive the process that began the write, and only for some time."""

    def test_other_operations_spare_them(self, place: Place) -> None:
        make(place)
        planned = place.dataset().begin_write(NEW.schema)
        part = planned.stage(NEW.to_batches())
        place.dataset().compact()
        place.dataset().recover()
        assert pickle.loads(pickle.dumps(planned)).commit([part])["rows_written"] == NEW.num_rows
        assert place.dataset().count() == OLD.num_rows + NEW.num_rows

    def test_they_expire(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        make(local)
        planned = local.dataset().begin_write(NEW.schema)
        part = planned.stage(NEW.to_batches())
        monkeypatch.setattr(workspaces, "DEAD_SECONDS", -60.0)
        assert local.dataset().recover().staging_removed == 1
        with pytest.raises(CommitFailed, match="write the rows again"):
            planned.commit([part])
        assert local.dataset().count() == OLD.num_rows
        assert local.left_behind() == []

    def test_staging_renews_them(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        make(local)
        workspace = local.dataset()._context.workspace
        lease = Lease.open(workspace)
        monkeypatch.setattr(leases, "BEAT_SECONDS", 0.0)
        before = workspace.store.stat(f"{lease.directory}/lease")
        time.sleep(0.02)
        with lease.kept_alive(workspace.store):
            after = workspace.store.stat(f"{lease.directory}/lease")
        assert before is not None
        assert after is not None
        assert (before.modified or 0) < (after.modified or 0)

    def test_a_sweep_while_one_is_opened(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """A sweep that has seen a folder before its lease must not remove the folder after that."""
        make(local)
        workspace = local.dataset()._context.workspace
        directory, alive = workspace.begin("being-opened")
        original, seen = workspace._is_leased, []

        def is_leased(folder: str) -> bool:
            seen.append(original(folder))
            if len(seen) == 1:  # the other process finishes meanwhile
                workspace.store.write(f"{directory}/{workspaces.LEASE}", b"\n")
                alive.release()
            return seen[-1]

        monkeypatch.setattr(workspace, "_is_leased", is_leased)
        with workspace.locked():
            assert workspace.sweep() == 0
        assert seen == [False, True]
        assert workspace.store.is_dir(directory)

    def test_many_writers_at_once(self, local: Place) -> None:
        """Each operation sweeps folders of dead writers; one that is just being opened is none of them."""
        make(local)

        def write_once(number: int) -> None:
            planned = local.dataset().begin_write(NEW.schema)
            planned.commit([planned.stage(NEW.to_batches(), attempt=f"{number}")])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write_once, range(24)))
        assert local.dataset().count() == OLD.num_rows + 24 * NEW.num_rows
        assert local.left_behind() == []

    def test_an_application_has_one(self, place: Place) -> None:
        make(place)
        first = place.dataset().begin_write(NEW.schema, application="stream")
        part = first.stage(NEW.to_batches())
        other = place.dataset().begin_write(NEW.schema, application="other")
        place.dataset().begin_write(NEW.schema, application="stream").abort()
        other.abort()
        with pytest.raises(CommitFailed, match="another one"):
            first.commit([part])
        assert place.left_behind() == []


class TestConflicts:
    def test_two_writers_may_be_the_first(self, place: Place) -> None:
        rows = NEW.append_column("tags", pa.array([["a"]] * NEW.num_rows))
        writes = [place.dataset().begin_write(rows.schema, partition_by="day") for _ in range(2)]
        for planned in writes:
            planned.commit([planned.stage(rows.to_batches())])
        assert place.dataset().count() == 2 * NEW.num_rows

    def test_another_schema_is_a_conflict(self, place: Place) -> None:
        planned = place.dataset().begin_write(NEW.schema)
        part = planned.stage(NEW.to_batches())
        place.dataset().write(NEW.set_column(0, "id", NEW.column("id").cast("float64")))
        with pytest.raises(CommitConflict, match="schema"):
            planned.commit([part])
        assert place.dataset().count() == NEW.num_rows

    def test_an_overwrite_keeps_files_that_were_added_since(self, place: Place) -> None:
        make(place)
        planned = place.dataset().begin_write(NEW.schema, "overwrite")
        part = planned.stage(NEW.to_batches())
        place.dataset().write(OLD.slice(0, 1))
        planned.commit([part])
        assert place.dataset().count() == NEW.num_rows + 1

    def test_an_overwrite_conflicts_with_changed_files(self, place: Place) -> None:
        make(place)
        planned = place.dataset().begin_write(NEW.schema, "overwrite")
        part = planned.stage(NEW.to_batches())
        place.dataset().delete("id = 3")
        with pytest.raises(CommitConflict):
            planned.commit([part])
        assert place.dataset().count() == OLD.num_rows - 1
        assert place.left_behind() == []

    def test_overwritten_partitions_conflict_only_with_each_other(self, place: Place) -> None:
        make(place)
        planned = place.dataset().begin_write(NEW.schema, "overwrite_partitions")
        part = planned.stage(NEW.to_batches())
        place.dataset().delete("id = 3")  # in another partition
        planned.commit([part])
        assert sorted(place.dataset().read().column("id").to_pylist()) == [0, 6, *range(100, 106)]

    def test_another_layout_is_a_conflict(self, place: Place) -> None:
        make(place)
        planned = place.dataset().begin_write(NEW.schema)
        part = planned.stage(NEW.to_batches())
        place.dataset().repartition(None)
        with pytest.raises(CommitConflict, match="partitions"):
            planned.commit([part])
        assert place.dataset().count() == OLD.num_rows

    def test_bad_arguments_open_nothing(self, place: Place) -> None:
        make(place)
        dataset = place.dataset()
        with pytest.raises(InvalidArgument, match="commit_id"):
            dataset.begin_write(NEW.schema, commit_id="a:1")
        with pytest.raises(InvalidArgument, match="partitioned by"):
            dataset.begin_write(NEW.schema, partition_by="id")
        with pytest.raises(ValueError, match="nothing"):
            dataset.begin_write(NEW.schema, "overwrite", replace_where="nothing > 1")
        assert place.left_behind() == []


def test_smaller_numbers_of_a_stream_are_committed(place: Place) -> None:
    """The log forgets old commits, but keeps the last one of each application."""
    make(place)
    for number, expected in ((5, 15), (4, 15), (5, 15), (6, 21)):
        planned = place.dataset().begin_write(NEW.schema)
        planned.commit([planned.stage(NEW.to_batches())], commit_id=f"s:{number}", stream={"batch_id": number})
        assert place.dataset().count() == expected


class TestExpectations:
    """Tasks check the rows, and the commit counts and publishes what they have found."""

    RULES: ClassVar = {"early": "id < 103", "day 2": "day = 2"}

    def write(self, place: Place, **options: Any) -> Any:
        planned = place.dataset().begin_write(NEW.schema, expect=self.RULES, **options)
        planned = pickle.loads(pickle.dumps(planned))
        parts = [planned.stage(NEW.slice(at, 3).to_batches(), attempt=f"{at}") for at in (0, 3)]
        planned.stage(NEW.to_batches(), attempt="superseded")
        return planned.commit(parts)

    def test_fail(self, place: Place) -> None:
        make(place)
        with pytest.raises(ExpectationFailed, match="early"):
            self.write(place)
        assert place.dataset().count() == OLD.num_rows
        assert place.left_behind() == []

    def test_drop(self, place: Place) -> None:
        make(place)
        stats = self.write(place, on_violation="drop")
        assert stats["expectations"] == {
            "early": {"passed": 3, "violations": 3},
            "day 2": {"passed": 3, "violations": 3},
        }
        assert place.dataset().count("id >= 100") == stats["rows_written"] == 1

    def test_quarantine(self, place: Place) -> None:
        make(place)
        for _ in range(2):
            stats = self.write(place, on_violation="quarantine")
        assert stats["rows_violating"] == 5
        assert place.dataset().count("id >= 100") == 2
        kept = Dataset(f"{place.root}_quarantine", "pyarrow", filesystem=place.fs).read()
        assert sorted(kept.column("id").to_pylist()) == sorted([100, 102, 103, 104, 105] * 2)
        assert [path for path in place.left_behind() if "/tx-" in path] == []
