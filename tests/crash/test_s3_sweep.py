"""Operations on S3, killed at every call, and during recovery: all or nothing.

There are no locks: files staged by a dead process are removed when they are old enough.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from helpers.crash import DEATHS, mortal
from helpers.kept import kept_contents, sound_manifests
from helpers.s3 import S3Place
from parketto import Dataset
from parketto.commit import recovery

pytest.importorskip("s3fs")

OPERATIONS: dict[str, Callable[[Dataset], object]] = {
    "first write": lambda dataset: dataset.write(rows(0, 6), max_rows_per_file=3),
    "append": lambda dataset: dataset.write(rows(100, 4), max_rows_per_file=2),
    "compact": lambda dataset: dataset.compact(),
    "delete": lambda dataset: dataset.delete("id < 7"),
    "merge": lambda dataset: dataset.merge(rows(8, 6), "id"),
}
_SHARE = 0.04  # share of all points in the ordinary run: a server in Python is slow


def rows(first: int, number: int) -> pa.Table:
    return pa.table({"id": range(first, first + number), "day": [first] * number})


@pytest.fixture(autouse=True)
def dead_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "DEAD_SECONDS", -60.0)


def made(server: Any, operation: str) -> S3Place:
    place = S3Place.fresh(server)
    if operation != "first write":
        place.write_files({f"{number}.parquet": rows(number * 5, 5) for number in range(3)})
    return place


def killed(place: S3Place, work: Callable[[Dataset], object], at: int, when: str) -> bool:
    dataset = place.dataset()
    mortal(dataset, at, when)
    try:
        work(dataset)
    except DEATHS:
        return True
    return False


class Outcome:
    """The state of the dataset before an operation, and after one without a kill."""

    def __init__(self, server: Any, operation: str) -> None:
        self.work = OPERATIONS[operation]
        place = made(server, operation)
        self.before, self.state = place.rows(), place.state()
        dataset = place.dataset()
        dataset._store.creates_exclusively(place.root)
        calls = mortal(dataset)
        self.work(dataset)
        self.calls, self.after, self.files_after = calls(), place.rows(), len(place.files())
        assert place.left_behind() == []

    def points(self) -> Iterator[tuple[int, str, int]]:
        """Where to kill the operation, and at which call its recoveries, one after the other."""
        for when in ("before", "after", "half"):
            for at in range(1, self.calls + 1):
                for step in range(4):
                    yield at, when, step

    def check(self, place: S3Place) -> str:
        found = place.rows()
        assert found in (self.before, self.after)
        retired = {path: content for path, content in self.state.items() if path not in place.state()}
        kept = [kept_contents(place, manifest) for manifest in sound_manifests(place)]
        assert kept == ([retired] if retired else [])
        if found == self.after:
            happened = self.before != self.after or len(place.files()) == self.files_after
            return "after" if happened else "before"
        return "before"


def sweep(server: Any, operation: str, share: float) -> int:
    outcome = Outcome(server, operation)
    points = list(outcome.points())
    chosen = random.Random(operation).sample(points, max(1, int(len(points) * share)))
    for at, when, step in chosen:
        place = made(server, operation)
        assert killed(place, outcome.work, at, when), f"{operation} ends before call {at}"
        for number in range(1, step + 1):
            killed(place, lambda dataset: dataset.recover(), number, when)
        place.dataset().recover()
        seen = outcome.check(place)
        assert not place.dataset().recover(), "recovery is idempotent"
        assert place.left_behind() == []
        history = place.dataset().history()
        assert len(history) == (seen == "after"), (at, when)
        # The dataset can be used as any other.
        outcome.work(place.dataset())
        assert place.left_behind() == []
    return len(chosen)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_on_s3(s3_server: Any, operation: str, count_crash_points: Any) -> None:
    count_crash_points(sweep(s3_server, operation, _SHARE))


@pytest.mark.sweep
@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_at_every_call_on_s3(s3_server: Any, operation: str, count_crash_points: Any) -> None:
    count_crash_points(sweep(s3_server, operation, 1.0))
