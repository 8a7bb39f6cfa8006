"""Applied changes killed at every step: rows and tombstones change together, or not at all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers.crash import DEATHS, mortal, sampled
from parketto import ChangeStats, Dataset

FIRST = [(1, "a", 1, False), (2, "b", 1, False), (3, None, 7, True)]
SECOND = [(1, None, 5, True), (2, "c", 2, False), (4, "d", 1, False)]
LATE = [(1, "late", 4, False), (3, "late", 4, False)]


def apply(dataset: Dataset, records: list[tuple[Any, ...]], **options: Any) -> ChangeStats:
    names = ["id", "name", "at", "deleted"]
    rows = pa.Table.from_pylist([dict(zip(names, record, strict=True)) for record in records])
    return dataset.apply_changes(
        rows, "id", sequence_by="at", delete_when="deleted", except_columns="deleted", **options
    )


def make(place: Place) -> None:
    if place.fs.exists(place.root.rpartition("/")[0]):
        place.fs.rm(place.root.rpartition("/")[0], recursive=True)
    apply(place.dataset(), FIRST)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call(place: Place, when: str, share: int, count_crash_points: Any) -> None:
    make(place)
    before, dataset = place.rows(), place.dataset()
    calls = mortal(dataset)
    apply(dataset, SECOND)
    after, seen = place.rows(), set()
    points = sampled(range(1, calls() + 1), share)
    for at in points:
        make(place)
        dataset = place.dataset()
        mortal(dataset, at, when)
        with pytest.raises(DEATHS):
            apply(dataset, SECOND)
        place.dataset().recover()
        found = place.rows()
        assert found in (before, after)
        seen.add(found == after)
        # The key that only the second call deletes is blocked if that call is committed; the other one always is.
        blocked = 2 if found == after else 1
        assert apply(place.dataset(), LATE, dry_run=True)["ignored"] == blocked, f"killed {when} call {at}"
        apply(place.dataset(), SECOND)
        assert place.rows() == after
        assert apply(place.dataset(), LATE)["ignored"] == 2
        assert apply(place.dataset(), SECOND)["ignored"] == len(SECOND)
    assert seen == {False, True}
    count_crash_points(len(points))
