"""A repartition into another directory, killed at every step: no row is lost or duplicated.

After a kill at any call, and `recover()` of both datasets, exactly one of these is true:

* before: the source is byte for byte as it was, and the target has no data file;
* both: the source is byte for byte as it was, and the target has exactly the new rows;
* moved (only with delete_source): the source has no data file, and the target has exactly the new rows.

So no row is lost, none is duplicated in one dataset, and running it again with overwrite=True (unless the
rows have moved already) ends where an undisturbed run ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from helpers.crash import DEATHS, mortal, sampled
from parketto import Dataset, DatasetNotFound, Repartitioner


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest) -> Place:
    """Renames on a disk, copies on other filesystems."""
    chosen: Place = request.getfixturevalue(request.param)
    return chosen


def make(place: Place) -> None:
    parent = place.root.rpartition("/")[0]
    if place.fs.exists(parent):
        place.fs.rm(parent, recursive=True)
    place.write_files(
        {
            f"day={day}/{name}.parquet": pa.table(
                {"day": [day] * 4, "side": ["ask", "bid"] * 2, "n": range(at, at + 4)}
            )
            for day in (1, 2)
            for name, at in (("a", day * 100), ("b", day * 100 + 50))
        }
    )
    place.fs.pipe_file(f"{place.root}/day=1/notes.txt", b"mine")


def doubled(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("n") * 2)


def target_of(place: Place) -> str:
    return f"{place.root}_new"


def mover(place: Place, engine: str = "pyarrow", *, overwrite: bool = False) -> Repartitioner:
    return Repartitioner(
        place.root, target_of(place), ["side"], engine=engine, filesystem=place.fs, overwrite=overwrite
    )


def mortal_pair(repartitioner: Repartitioner, at: int | None = None, when: str = "before") -> Any:
    """Kill source and target together, at the n-th call to either: they share a store."""
    store = repartitioner._source._store
    target = repartitioner._target
    target._store = target._context.workspace.store = store
    target._context = replace(target._context, store=store)
    return mortal(repartitioner._source, at, when)


def data(root: str, place: Place) -> dict[str, str]:
    return {path: mark for path, mark in oracle.file_state(root, place.fs).items() if path.endswith(".parquet")}


class Undisturbed:
    """The state before, and after a run without a kill."""

    def __init__(self, place: Place, run: dict[str, Any], engine: str) -> None:
        make(place)
        self.source = oracle.file_state(place.root, place.fs)
        repartitioner = mover(place, engine)
        calls = mortal_pair(repartitioner)
        repartitioner.repartition(**run)
        self.calls: int = calls()
        self.moves = bool(run["delete_source"])
        self.rows = oracle.rows(target_of(place), place.fs)
        self.source_files = {name: mark for name, mark in self.source.items() if name.endswith(".parquet")}
        assert sum(self.rows.values()) == 16
        assert data(place.root, place) == ({} if self.moves else self.source_files)

    def check(self, place: Place) -> str:
        target = oracle.rows(target_of(place), place.fs)
        source = oracle.file_state(place.root, place.fs)
        assert source["/day=1/notes.txt"] == self.source["/day=1/notes.txt"]
        if source != self.source:
            assert self.moves
            assert data(place.root, place) == {}
            assert target == self.rows
            return "moved"
        if not target:
            return "before"
        assert target == self.rows
        return "both"


def killed(place: Place, run: dict[str, Any], engine: str, at: int, when: str) -> None:
    repartitioner = mover(place, engine)
    mortal_pair(repartitioner, at, when)
    with pytest.raises(DEATHS):
        repartitioner.repartition(**run)


def recover(place: Place) -> None:
    for root in (place.root, target_of(place)):
        Dataset(root, "pyarrow", filesystem=place.fs).recover()


def left_behind(place: Place) -> list[str]:
    return [path for path in place.left_behind() if path != target_of(place)]


RUNS = [
    pytest.param(
        {"delete_source": delete, "transform_fn": function},
        id=f"{'moved' if delete else 'copied'}{', transformed' if function else ''}",
    )
    for delete in (False, True)
    for function in (None, doubled)
]


def sweep(place: Place, run: dict[str, Any], engine: str, share: int) -> tuple[int, set[str]]:
    outcome = Undisturbed(place, run, engine)
    points = [(at, when) for at in range(1, outcome.calls + 1) for when in ("before", "after", "half")]
    points = sampled(points, share)
    seen = set()
    for at, when in points:
        make(place)
        killed(place, run, engine, at, when)
        recover(place)
        state = outcome.check(place)
        seen.add(state)
        assert left_behind(place) == []
        if state == "moved":
            with pytest.raises(DatasetNotFound):
                mover(place, overwrite=True).repartition(**run)
        elif at % 3 == 0:
            mover(place, overwrite=True).repartition(**run)
        else:
            continue
        assert oracle.rows(target_of(place), place.fs) == outcome.rows
    return len(points), seen


@pytest.mark.parametrize("run", RUNS)
def test_killed_at_every_call(place: Place, run: dict[str, Any], share: int, count_crash_points: Any) -> None:
    points, seen = sweep(place, run, "pyarrow", share)
    assert seen == ({"before", "both", "moved"} if run["delete_source"] else {"before", "both"})
    count_crash_points(points)


@pytest.mark.parametrize("run", RUNS)
def test_next_run_recovers_by_itself(place: Place, run: dict[str, Any], share: int) -> None:
    """Without recover(): the next operation on either dataset finds a consistent state."""
    outcome = Undisturbed(place, run, "pyarrow")
    for at in sampled(range(1, outcome.calls + 1), share):
        make(place)
        killed(place, run, "pyarrow", at, "after")
        try:
            mover(place, overwrite=True).repartition(**run)
        except DatasetNotFound:
            assert data(place.root, place) == {}
            recover(place)
        assert oracle.rows(target_of(place), place.fs) == outcome.rows
        assert outcome.check(place) == ("moved" if run["delete_source"] else "both")


@pytest.mark.parametrize("run", RUNS)
def test_killed_on_duckdb(place: Place, run: dict[str, Any], share: int, count_crash_points: Any) -> None:
    count_crash_points(sweep(place, run, "duckdb", 2 * share)[0])


@pytest.mark.spark
def test_driver_killed_on_spark(local: Place, share: int, count_crash_points: Any) -> None:
    count_crash_points(sweep(local, {"delete_source": True, "transform_fn": None}, "spark", 3 * share)[0])
