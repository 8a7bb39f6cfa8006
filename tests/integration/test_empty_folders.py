"""A partition's folder goes away with its last file, and only then: nothing of others goes with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from parketto import CommitFailed, Dataset
from parketto.storage.store import Store


@pytest.fixture(params=["auto", "rename"])
def place(request: pytest.FixtureRequest, local: Place) -> Place:
    """Two countries with three days of two files each, published by a swap or by single renames."""
    local.options = {"publish": request.param}
    local.write_files(
        {
            f"country={country}/day={day}/{name}.parquet": pa.table(
                {"id": [100 * (country == "nl") + 10 * day + at]}
            )
            for country in ("de", "nl")
            for day in (1, 2, 3)
            for at, name in enumerate("ab")
        }
    )
    return local


def folders(place: Place) -> list[str]:
    return sorted(os.path.relpath(folder, place.root) for folder, _, _ in os.walk(place.root))


def below(country: str, *days: int) -> list[str]:
    return [f"country={country}", *(f"country={country}/day={day}" for day in days)]


def patched(dataset: Dataset, **methods: Callable[..., Any]) -> type[Store]:
    """Replace methods of a dataset's store; returns its original class."""
    base = type(dataset._store)
    dataset._store.__class__ = type("Patched", (base,), methods)
    return base


CHANGES: dict[str, tuple[Callable[[Dataset], object], list[str]]] = {
    "delete of one file's rows": (lambda ds: ds.delete("id = 10"), [*below("de", 1, 2, 3), *below("nl", 1, 2, 3)]),
    "delete of a partition": (lambda ds: ds.delete("id IN (10, 11)"), [*below("de", 2, 3), *below("nl", 1, 2, 3)]),
    "delete of a country": (lambda ds: ds.delete("country = 'de'"), below("nl", 1, 2, 3)),
    "delete of all rows": (lambda ds: ds.delete("TRUE"), below("de", 1)),
    "update that moves": (
        lambda ds: ds.update("country = 'de' AND day < 3", {"day": 3}),
        [*below("de", 3), *below("nl", 1, 2, 3)],
    ),
    "merge that moves": (
        lambda ds: ds.merge(pa.table({"id": [10, 11], "country": ["de"] * 2, "day": [4] * 2}), ["id"]),
        [*below("de", 2, 3, 4), *below("nl", 1, 2, 3)],
    ),
    "full merge": (
        lambda ds: ds.merge(
            pa.table({"id": [10, 11], "country": ["de"] * 2, "day": [1] * 2}), ["id"], strategy="full_merge"
        ),
        below("de", 1),
    ),
    "repartition": (lambda ds: ds.repartition("country"), ["country=de", "country=nl"]),
    "overwrite": (
        lambda ds: ds.write(pa.table({"id": [1], "year": [2025]}), "overwrite", partition_by="year"),
        ["year=2025"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_emptied_folders_go(place: Place, change: str) -> None:
    run, expected = CHANGES[change]
    run(place.dataset())
    assert folders(place) == [".", *expected]


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "_SUCCESS", "deeper/notes.txt"])
def test_folders_of_others_stay(place: Place, name: str) -> None:
    mine = Path(place.root, "country=de/day=1", name)
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    Path(place.root, "country=de/empty").mkdir()
    place.dataset().delete("country = 'de'")
    assert mine.read_text() == "mine"
    expected = {".", "country=de/empty", *below("de", 1), *below("nl", 1, 2, 3)}
    assert set(folders(place)) == expected | {os.path.relpath(mine.parent, place.root)}


@pytest.mark.parametrize("condition", ["id IN (10, 11)", "country = 'de'"])
def test_a_file_that_appears_at_the_last_moment(place: Place, condition: str) -> None:
    """Another program writes into the folder after its last file is gone."""
    dataset, late = place.dataset(), Path(place.root, "country=de/day=1/late.parquet")

    def write_first(self: Any, paths: Any) -> None:
        paths = list(paths)
        if f"{place.root}/country=de/day=1" in paths:
            late.parent.mkdir(exist_ok=True)
            late.write_bytes(b"mine")
        base.remove_empty_dirs(self, paths)

    base = patched(dataset, remove_empty_dirs=write_first)
    dataset.delete(condition)
    assert late.read_bytes() == b"mine"


def test_a_folder_that_goes_while_a_file_is_published(local: Place) -> None:
    """Another writer may remove the folder between its creation and the move of the first file."""
    local.write_files({"day=1/a.parquet": pa.table({"id": [1]})})
    dataset, gone = local.dataset(publish="rename"), []

    def move(self: Any, source: str, destination: str) -> None:
        if os.path.dirname(destination).endswith("day=2") and len(gone) < 3:
            gone.append(destination)
            os.rmdir(os.path.dirname(destination))
        base.move(self, source, destination)

    base = patched(dataset, move=move)
    dataset.write(pa.table({"id": [2, 3], "day": [2, 2]}))
    assert len(gone) == 3
    assert local.dataset().read().num_rows == 3


def test_an_undone_commit_leaves_no_folders(place: Place) -> None:
    dataset, before = place.dataset(publish="rename"), place.state()

    def fail(self: Any, source: str, destination: str) -> None:
        if source.startswith(f"{place.root}/country=nl"):
            raise OSError("no more moves")
        base.move(self, source, destination)

    base = patched(dataset, move=fail)
    with pytest.raises(CommitFailed):
        dataset.update("id IN (10, 11, 110)", {"day": 9})
    assert place.state() == before
    assert folders(place) == [".", *below("de", 1, 2, 3), *below("nl", 1, 2, 3)]


def test_the_dataset_itself_stays(local: Place) -> None:
    """Also as a partition of another dataset, whose last file goes."""
    local.write_files({"day=1/a.parquet": pa.table({"id": [1]}), "day=2/a.parquet": pa.table({"id": [2]})})
    inner = Place(f"{local.root}/day=1", local.fs)
    inner.dataset().delete("TRUE")
    assert inner.dataset().read().num_rows == 0
    local.dataset().delete("id = 2")
    assert os.path.isdir(local.root)
    assert local.dataset().read().num_rows == 0
