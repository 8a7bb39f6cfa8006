"""Read in the order of their paths, files have their rows in the old order, whatever was done to them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conftest import Place
from helpers import oracle
from parketto import Dataset, sql
from parketto.engines.base import Engine

Numbers = dict[str, list[int]]


def numbered(first: int, rows: int, day: int | None = None) -> pa.Table:
    table = pa.table({"n": range(first, first + rows), "value": [0] * rows})
    return table if day is None else table.append_column("day", pa.array([day] * rows))


def in_path_order(place: Place, column: str = "n") -> Numbers:
    """The numbers in each directory, in the order of the paths of its files."""
    found: Numbers = {}
    for path in oracle.data_files(place.root, place.fs):
        rows = oracle.read_file(path, place.fs).column(column).to_pylist()
        found.setdefault(os.path.dirname(path), []).extend(rows)
    return found


def append(dataset: Dataset, sizes: list[int], days: list[int | None], first: int = 0) -> int:
    """Append a file per size to every day; returns the next number."""
    for size in sizes:
        for day in days:
            dataset.write(numbered(first, size, day), partition_by=None if day is None else "day")
            first += size
    return first


# Around a target of 100 rows: many small files in a row, files that are full, one that is too large.
SIZES = [30, 30, 30, 30, 30, 95, 40, 45, 40, 10, 100, 20, 20, 20, 20, 250, 35, 35, 35]


@pytest.mark.parametrize("days", [[None], [1, 2]], ids=["one folder", "two partitions"])
def test_compaction_keeps_the_order(local: Place, engine: Engine, days: list[int | None]) -> None:
    dataset = local.dataset(engine=engine)
    first = append(local.dataset(), SIZES, days)
    for _ in range(3):
        before, files = in_path_order(local), set(local.files())
        assert all(numbers == sorted(numbers) for numbers in before.values())
        dataset.compact(target_rows_per_file=100)
        after = set(local.files())
        assert len(after - files) > len(days), "several groups"
        assert files & after, "some files stay"
        assert in_path_order(local) == before
        first = append(local.dataset(), [30] * 9, days, first)


@pytest.mark.parametrize("names", ["a", "part", "row", "z z"])
def test_the_names_may_be_any(local: Place, engine: Engine, names: str) -> None:
    sizes = [*SIZES, *SIZES]
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    local.write_files({f"{names}{at:03d}.parquet": numbered(starts[at], size) for at, size in enumerate(sizes)})
    dataset, before = local.dataset(engine=engine), in_path_order(local)
    dataset.compact(target_rows_per_file=100)
    assert in_path_order(local) == before
    dataset.compact(target_rows_per_file=200)
    assert in_path_order(local) == before


def test_small_files_of_any_size(local: Place) -> None:
    """Files that are small compared with the target are packed with their neighbours only."""
    chance = random.Random(5)
    sizes = [chance.randint(1, 20) for _ in range(60)]
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    local.write_files({f"{at:03d}.parquet": numbered(starts[at], size) for at, size in enumerate(sizes)})
    before = in_path_order(local)
    local.dataset().compact(target_rows_per_file=100)
    assert in_path_order(local) == before
    assert len(local.files()) <= 8


EDITS: dict[str, Callable[[Dataset], object]] = {
    "delete": lambda dataset: dataset.delete("n % 7 = 0 AND n < 300"),
    "update": lambda dataset: dataset.update("n % 50 = 3", {"value": sql("value + 1")}),
    "merge": lambda dataset: dataset.merge(
        pa.table({"n": [5, 150, 151, 302], "value": [9, 9, 9, 9]}), ["n"], strategy="update"
    ),
    "upsert": lambda dataset: dataset.merge(pa.table({"n": [5, 302, 10_000], "value": [9, 9, 9]}), ["n"]),
    "compact": lambda dataset: dataset.compact(target_rows_per_file=100),
}


@pytest.mark.parametrize("edit", ["delete", "update", "merge", "upsert"])
def test_edits_keep_the_order(local: Place, engine: Engine, edit: str) -> None:
    """Also repeatedly, and mixed with compactions and appends."""
    dataset = local.dataset(engine=engine)
    append(local.dataset(), SIZES, [None])
    for operation in (edit, "compact", edit, "update", "compact", edit):
        EDITS[operation](dataset)
        numbers = in_path_order(local)[local.root]
        assert numbers == sorted(numbers), operation
    longest = max(map(len, local.files()))
    local.dataset().write(numbered(20_000, 5))
    for operation in (edit, "compact", edit, "delete"):
        EDITS[operation](dataset)
    numbers = in_path_order(local)[local.root]
    assert numbers == sorted(numbers), "what is appended later sorts after the rest"
    assert max(map(len, local.files())) <= max(longest, 140)


def test_rows_of_a_merge_stay_where_they_are(local: Place, merge_engine: Engine) -> None:
    append(local.dataset(), [10] * 6, [1, 2])
    before = in_path_order(local)
    first = next(iter(before.values()))[0]
    source = pa.table({"n": [first, 47, 15, 10_001], "value": [1, 2, 3, 4], "day": [1, 1, 2, 2]})
    there = {n: os.path.basename(folder) for folder, numbers in before.items() for n in numbers}
    source = source.set_column(
        2, "day", pa.array([int(there.get(n, "day=2").removeprefix("day=")) for n in source["n"].to_pylist()])
    )
    local.dataset(engine=merge_engine).merge(source, ["n"])
    after = in_path_order(local)
    assert {folder: [n for n in numbers if n != 10_001] for folder, numbers in after.items()} == before
    assert after[f"{local.root}/day=2"][-1] == 10_001, "new rows come last"


def test_rows_that_move_come_last(local: Place, engine: Engine) -> None:
    append(local.dataset(), [10] * 3, [1, 2])
    before = in_path_order(local)
    moving = before[f"{local.root}/day=1"][::7]
    local.dataset(engine=engine).update(pc.field("n").isin(moving), {"day": 2})
    assert in_path_order(local) == {
        f"{local.root}/day=1": [n for n in before[f"{local.root}/day=1"] if n not in moving],
        f"{local.root}/day=2": [*before[f"{local.root}/day=2"], *moving],
    }


def test_repartitioning_keeps_the_order_inside_a_partition(local: Place, engine: Engine) -> None:
    append(local.dataset(), [40] * 4, [1, 2])
    dataset = local.dataset(engine=engine)
    dataset.repartition("value", target_mb_per_file=0.001)
    numbers = in_path_order(local)[f"{local.root}/value=0"]
    before = [*range(40), *range(80, 120), *range(160, 200), *range(240, 280)]
    assert numbers == [*before, *(n + 40 for n in before)]


@pytest.mark.parametrize("curve", ["linear", "hilbert"])
def test_names_of_clustered_files_sort_along_the_curve(local: Place, engine: Engine, curve: str) -> None:
    chance = random.Random(3)
    numbers = list(range(3_000))
    chance.shuffle(numbers)
    local.write_files({f"{at}.parquet": pa.table({"n": numbers[at::3], "m": numbers[at::3]}) for at in range(3)})
    local.dataset(engine=engine).optimize(["n", "m"], target_rows_per_file=500, curve=curve)
    assert len(local.files()) > 3
    firsts = [
        min(oracle.read_file(path, local.fs)["n"].to_pylist()) for path in oracle.data_files(local.root, local.fs)
    ]
    assert firsts == sorted(firsts), "equal columns: the curve is a diagonal"


def test_appended_files_sort_after_older_ones(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    append(dataset, [3] * 10, [None])
    assert in_path_order(place)[place.root] == list(range(30))
