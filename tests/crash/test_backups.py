"""Operations with a backup, killed at any step: all or nothing, and a completed one can be restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers.crash import DEATHS, mortal, sampled
from parketto import Dataset, InvalidArgument, sql

SOURCE = pa.table({"id": [2, 21, 55, 500], "day": [1, 2, 9, 2]})
EDITS: dict[str, Callable[[Dataset, str], object]] = {
    "delete": lambda dataset, backups: dataset.delete("id < 5 OR day = 2", backup=backups),
    "update": lambda dataset, backups: dataset.update("id < 9", {"day": sql("day + id % 3")}, backup=backups),
    "upsert": lambda dataset, backups: dataset.merge(
        SOURCE, ["id"], partial=True, update_columns=["day"], backup=backups
    ),
}


def make(place: Place) -> str:
    """Two partitions; returns where backups go."""
    parent = place.root.rpartition("/")[0]
    if place.fs.exists(parent):
        place.fs.rm(parent, recursive=True)
    place.write_files(
        {
            f"day={day}/{name}.parquet": pa.table({"id": ids, "note": [f"{day}{name}"] * len(ids)})
            for day in (1, 2)
            for name, ids in (("a", range(9)), ("b", range(20, 29)), ("c", range(50, 59)))
        }
    )
    return f"{parent}/kept"


def killed(dataset: Dataset, run: Callable[[Dataset], object], at: int, when: str) -> bool:
    mortal(dataset, at, when)
    try:
        run(dataset)
    except DEATHS:
        return True
    return False


def backups_in(place: Place, folder: str) -> list[str]:
    """The complete backups."""
    if not place.fs.exists(folder):
        return []
    found = [path.rpartition("/")[0] for path in place.fs.find(folder) if path.endswith("manifest.json")]
    return sorted(found)


@pytest.mark.parametrize("name", ["pyarrow", "duckdb"])
@pytest.mark.parametrize("operation", EDITS)
def test_operation_with_a_backup_killed_at_any_step(
    place: Place, operation: str, name: str, share: int, count_crash_points: Any
) -> None:
    folder = make(place)
    before, rows_before = place.state(), place.rows()
    dataset = place.dataset(engine=name)
    calls = mortal(dataset)
    EDITS[operation](dataset, folder)
    rows_after, total = place.rows(), calls()
    points = [(at, when) for at in range(1, total + 1) for when in ("before", "after")]
    seen = set()
    chosen = sampled(points, share)
    for at, when in chosen:
        make(place)
        run = lambda dataset: EDITS[operation](dataset, folder)  # noqa: E731 - the same for all points
        assert killed(place.dataset(engine=name), run, at, when), f"{operation} ends before call {at}"
        place.dataset().recover()
        assert place.rows() in (rows_before, rows_after)
        if place.rows() == rows_after:
            (backup,) = backups_in(place, folder)
            place.dataset().restore(backup)
            seen.add("undone")
        else:
            seen.add("before")
        assert place.state() == before
    assert seen == {"before", "undone"}
    count_crash_points(len(chosen))


@pytest.mark.parametrize("operation", EDITS)
def test_restore_killed_at_any_step(place: Place, operation: str, share: int, count_crash_points: Any) -> None:
    folder = make(place)
    before = place.state()
    EDITS[operation](place.dataset(), folder)
    rows_after = place.rows()
    (backup,) = backups_in(place, folder)
    dataset = place.dataset()
    calls = mortal(dataset)
    dataset.restore(backup)
    points = sampled([(at, when) for when in ("before", "after") for at in range(1, calls() + 1)], share)
    for at, when in points:
        make(place)
        EDITS[operation](place.dataset(), folder)
        (backup,) = backups_in(place, folder)
        assert killed(place.dataset(), lambda dataset: dataset.restore(backup), at, when)  # noqa: B023
        place.dataset().recover()
        if place.rows() == rows_after:
            place.dataset().restore(backup)
        assert place.state() == before
    count_crash_points(len(points))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "it is not a JSON object"),
        ("{}", "its format is None, not 'parketto backup, version 1'"),
        ('{"format": "parketto backup, version 9"}', "its format is 'parketto backup, version 9'"),
        ('{"format": "parketto backup, version 1"}', "it has no 'retired'"),
        ('{"format": "parketto backup, version 1", "retired": [{}], "published": []}', "KnownFile"),
    ],
)
def test_a_bad_manifest_is_named(local: Place, content: str, reason: str) -> None:
    folder = make(local)
    before = local.state()
    local.fs.makedirs(folder, exist_ok=True)
    local.fs.pipe_file(f"{folder}/manifest.json", content.encode())
    with pytest.raises(InvalidArgument) as caught:
        local.dataset().restore(folder)
    message = str(caught.value)
    assert message.startswith(f"'{folder}/manifest.json' is not a valid backup manifest: {reason}")
    assert message.endswith("Nothing was changed")
    assert "Parquet" not in message
    assert local.state() == before
