"""Undo, time travel, vacuum and purge on S3: server-side copies, no locks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from helpers.crash import DEATHS, mortal, sampled
from helpers.kept import sound_manifests
from helpers.s3 import S3Place, recorded
from parketto import CannotUndo, CommitConflict, Dataset
from parketto.commit.transaction import Transaction

pytest.importorskip("s3fs")


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)})


def ids(dataset: Dataset, **options: Any) -> list[int]:
    return sorted(dataset.read(**options).column("id").to_pylist())


@pytest.fixture
def dataset(s3: S3Place) -> Dataset:
    found = s3.dataset()
    found.write(table(1, 2, 3))
    found.write(table(4, 5))
    found.delete("id = 2")
    return found


def test_undo_copies_on_the_server(s3: S3Place, dataset: Dataset) -> None:
    dataset.compact()
    with recorded(dataset._store.fs) as requests:
        stats = dataset.undo(3)
    assert stats["undone"] == [3, 4]
    assert ids(dataset) == [1, 2, 3, 4, 5]
    read = [request.path for request in requests if request.kind == "GET"]
    assert not [path for path in read if "/log/" not in path and not path.endswith("manifest.json")]
    dataset.undo(5)
    assert ids(dataset) == [1, 3, 4, 5]
    assert s3.left_behind() == []


def test_as_of(dataset: Dataset) -> None:
    dataset.compact()
    assert [ids(dataset, as_of=number) for number in (1, 2, 3, 4)] == [
        [1, 2, 3],
        [1, 2, 3, 4, 5],
        [1, 3, 4, 5],
        [1, 3, 4, 5],
    ]
    assert dataset.count("id > 2", as_of=1) == 1
    assert dataset.diff(2, key_columns="id")["rows_removed"] == 1


def test_vacuum(s3: S3Place, dataset: Dataset) -> None:
    assert dataset.vacuum(0)["commits"] == [3]
    assert dataset.vacuum(0, dry_run=False)["bytes_removed"] > 0
    assert sound_manifests(s3) == []
    with pytest.raises(CannotUndo, match="no longer kept"):
        dataset.undo()


def test_purge(s3: S3Place, dataset: Dataset) -> None:
    stats = dataset.delete("id = 2 OR id = 3", purge=True)
    assert [file["location"] for file in stats["purged_files"]] == ["dataset", "history"]
    assert sound_manifests(s3) == []
    assert ids(dataset) == [1, 4, 5]


def test_append_during_an_undo_survives(s3: S3Place, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    original, done = Transaction.commit, list[bool]()

    def commit(self: Transaction, *args: Any, **options: Any) -> None:
        if self.operation == "undo" and not done:
            done.append(True)
            s3.dataset().write(table(9))
            s3.dataset().compact()
        original(self, *args, **options)

    monkeypatch.setattr(Transaction, "commit", commit)
    with pytest.raises(CommitConflict):
        dataset.undo(3)
    s3.dataset(retries=3).undo(3)
    assert ids(dataset) == [1, 2, 3, 4, 5, 9]


def test_undo_killed_at_some_calls(s3: S3Place, dataset: Dataset, share: int, count_crash_points: Any) -> None:
    """Other processes finish the commit of a dead one, or it never happened."""
    mortal_dataset = s3.dataset()
    calls = mortal(mortal_dataset)
    mortal_dataset.undo(3)
    points = sampled([(at, when) for when in ("before", "after") for at in range(1, calls() + 1)], 2 * share)
    for at, when in points:
        s3.dataset().restore(to=3)
        dying = s3.dataset()
        mortal(dying, at, when)
        with pytest.raises(DEATHS):
            dying.undo(3)
        s3.dataset().recover()
        found = ids(s3.dataset())
        assert found in ([1, 3, 4, 5], [1, 2, 3, 4, 5])
        assert (found == [1, 2, 3, 4, 5]) == (s3.dataset().history(1)[0]["operation"] == "undo")
    count_crash_points(len(points))
