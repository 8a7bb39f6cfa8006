"""Undo, restore, vacuum and purge killed at every step: all or nothing, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from conftest import WAYS_TO_PUBLISH, Place, place_of
from helpers.crash import DEATHS, mortal, sampled
from helpers.kept import sound_manifests
from parketto import Dataset


@pytest.fixture(params=WAYS_TO_PUBLISH)
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request)


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "day": [number % 2 for number in ids]})


def make(place: Place) -> None:
    parent = place.root.rpartition("/")[0]
    if place.fs.exists(parent):
        place.fs.rm(parent, recursive=True)
    dataset = place.dataset()
    dataset.write(table(1, 2, 3, 4), partition_by="day", basename_template="f_{}.parquet")
    dataset.delete("id < 3")
    dataset.write(table(5, 6), basename_template="f_{}.parquet")  # names of retired files come back
    dataset.compact()


def killed(dataset: Dataset, operation: Callable[[Dataset], object], at: int, when: str) -> bool:
    mortal(dataset, at, when)
    try:
        operation(dataset)
    except DEATHS:
        return True
    return False


def recovered(place: Place, when: str) -> int:
    """Recover; recovery itself is killed at each of its steps. Returns the number of kills."""
    for step in range(1, 200):
        if not killed(place.dataset(), lambda dataset: dataset.recover(), step, when):
            return step
    raise AssertionError("recovery never ends")


def kills(place: Place, operation: Callable[[Dataset], object], share: int) -> list[tuple[int, str]]:
    make(place)
    dataset = place.dataset()
    calls = mortal(dataset)
    operation(dataset)
    points = [(at, when) for when in ("before", "after", "half") for at in range(1, calls() + 1)]
    return sampled(points, share)


@pytest.mark.parametrize(
    "operation",
    [lambda dataset: dataset.undo(2), lambda dataset: dataset.restore(to=1)],
    ids=["undo", "restore"],
)
def test_undo_killed_at_every_call(
    place: Place, operation: Callable[[Dataset], object], share: int, count_crash_points: Any
) -> None:
    points = kills(place, operation, share)
    after, files = place.rows(), len(place.files())
    seen, counted = set(), 0
    for at, when in points:
        make(place)
        before = place.state()
        assert killed(place.dataset(), operation, at, when)
        counted += recovered(place, when)
        state = place.state()
        happened = len(place.dataset().history()) == 5
        seen.add(happened)
        if happened:
            assert (place.rows(), len(place.files())) == (after, files)
        else:
            assert state == before
        assert [manifest.number for manifest in sound_manifests(place)] == [5, 4, 2][not happened :]
        assert place.left_behind() == []
        # What was killed can be done, and undone.
        if not happened:
            operation(place.dataset())
        place.dataset().undo(5)
        assert place.dataset().count() == 4
    assert seen == {True, False}
    count_crash_points(counted)


def test_vacuum_killed_at_every_call(place: Place, share: int, count_crash_points: Any) -> None:
    """What is kept is whole or gone, the dataset is untouched, and a second vacuum removes the rest."""

    def work(dataset: Dataset) -> object:
        return dataset.vacuum(older_than=0, dry_run=False)

    points = kills(place, work, share)
    assert sound_manifests(place) == []
    for at, when in points:
        make(place)
        before = place.state()
        assert killed(place.dataset(), work, at, when)
        for commit in place.dataset().history():
            if commit["can_undo"]:
                place.dataset().undo(commit["number"], dry_run=True)
        work(place.dataset())
        assert place.state() == before
        assert not [
            path for path in place.fs.find(place.root.rpartition("/")[0]) if path.endswith("manifest.json")
        ]
    count_crash_points(len(points))


def test_vacuum_never_takes_what_an_interrupted_commit_needs(place: Place) -> None:
    make(place)
    dataset = place.dataset()
    mortal(dataset, lambda name, path: name == "create" and path.endswith(".done.json"))
    with pytest.raises(DEATHS):
        dataset.delete("id = 3")
    place.dataset().vacuum(older_than=0, dry_run=False)
    assert place.dataset().history(1)[0]["operation"] == "delete"
    assert sorted(place.dataset().read().column("id").to_pylist()) == [4, 5, 6]
    assert place.dataset().check()["healthy"]


def test_purge_killed_at_every_call(place: Place, share: int, count_crash_points: Any) -> None:
    """A repeated purge finishes it: no file has a trace of the rows."""

    def work(dataset: Dataset) -> object:
        return dataset.delete("id <= 3", purge=True)

    points = kills(place, work, share)
    for at, when in points:
        make(place)
        assert killed(place.dataset(), work, at, when)
        work(place.dataset())
        assert sorted(place.dataset().read().column("id").to_pylist()) == [4, 5, 6]
        assert sound_manifests(place) == []
        assert place.left_behind() == []
    count_crash_points(len(points))
