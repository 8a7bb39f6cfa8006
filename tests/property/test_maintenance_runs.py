"""Maintenance of random datasets: rows stay, a run follows its dry run, and a second run has nothing to do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from parketto import Dataset


def add_files(place: Place, chance: random.Random, count: int, partitions: int, first: int) -> None:
    """Files of any size, order and row groups; some differ in their columns."""
    numbers = np.random.default_rng(chance.randrange(2**32))
    for n in range(first, first + count):
        rows = chance.choice([0, 1, 100, 2000, 30_000])
        users, times = numbers.integers(0, 1000, rows), numbers.integers(0, 10**6, rows)
        if chance.random() < 0.3:
            times.sort()
        table = {"user": users.astype(chance.choice(["int64", "int64", "int32"])), "at": times}
        if chance.random() < 0.2:
            table["note"] = ["x"] * rows
        folder = f"{place.root}/day={chance.randint(1, partitions)}" if partitions else place.root
        place.fs.makedirs(folder, exist_ok=True)
        size = chance.choice([500, 5000, 100_000])
        pq.write_table(pa.table(table), f"{folder}/f{n}.parquet", filesystem=place.fs, row_group_size=size)


def random_policy(chance: random.Random) -> dict[str, Any]:
    target = {"target_mb_per_file": chance.choice([0.01, 0.05, 0.2, 1, 128])}
    compact = {"small_files": chance.choice([1, 2, 5]), **target}
    cluster = {
        "columns": chance.choice([["user"], ["user", "at"], ["at", "user"]]),
        "curve": chance.choice(["hilbert", "zorder", "linear"]),
        "expected_reads": chance.choice([0.05, 0.3, 0.6]),
        **target,
    }
    rules = {"compact": compact, "cluster": cluster, "unify_schema": True}
    return {name: rules[name] for name in chance.sample(list(rules), chance.randint(1, 3))}


def rows_of(dataset: Dataset) -> pa.Table:
    """All rows in one order and type."""
    wide = pa.schema({"user": pa.int64(), "at": pa.int64()})
    return dataset.read(wide.names).cast(wide).sort_by([("user", "ascending"), ("at", "ascending")])


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.sweep) for n in range(8, 150))])
def test_a_second_run_has_nothing_to_do(memory: Place, seed: int) -> None:
    chance = random.Random(seed)
    policy, partitions = random_policy(chance), chance.randint(0, 3)
    dataset = memory.dataset(engine="pyarrow")
    for first in (0, 100):
        add_files(memory, chance, chance.randint(1, 20), partitions, first)
        before = rows_of(dataset)
        planned, run = dataset.maintain(policy, dry_run=True), dataset.maintain(policy)
        assert run.left == []
        steps = [[(each["operation"], each["partition"]) for each in found.actions] for found in (planned, run)]
        if not policy.get("unify_schema"):  # which changes what the other rules see
            assert steps[0] == steps[1][: len(steps[0])], "a run does first what its dry run says"
        assert str(dataset.maintain(policy)) == "nothing to do in 1 dataset"
        assert rows_of(dataset).equals(before)
