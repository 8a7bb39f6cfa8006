"""Strangers add, remove, replace and rename files at every moment of a commit, also of one that is then killed.

Whatever happens, every row that somebody wrote and nobody removed is there afterwards, exactly once.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from helpers.crash import Crash
from parketto import CommitError, Dataset
from parketto.storage.store import MUTATIONS

WATCHED = (*MUTATIONS, "stat", "tree", "identity", "sync", "is_dir")


class Strangers:
    """Do something to the dataset's folders, and remember which rows there should be."""

    def __init__(self, root: str, chance: random.Random) -> None:
        self.root, self.chance, self.next = root, chance, 1000
        self.rows = Counter(range(6))
        self.log: list[object] = []

    def act(self) -> None:
        folder = f"{self.root}/p={self.chance.choice('12')}"
        # What Parketto has just published is known to nobody yet.
        names = [name for name in os.listdir(folder) if name.startswith(("f", "s", "tmp"))]
        action = self.chance.choice(["add", "add under another name", "remove", "replace", "rename"])
        if action.startswith("add") or not names:
            self.next += 1
            hidden = action == "add under another name"
            self._write(f"{folder}/{'tmp' if hidden else 's'}{self.next}{'' if hidden else '.parquet'}")
            self.rows[self.next] += 0 if hidden else 1
        else:
            path = f"{folder}/{self.chance.choice(names)}"
            ids = pq.ParquetFile(path).read().column("id").to_pylist()
            self.next += 1
            if path.endswith(".parquet") and action != "rename":
                self.rows.subtract(ids)
            if action == "remove":
                os.unlink(path)
            elif action == "replace":
                self._write(f"{self.root}/../new-{self.next}")
                os.rename(f"{self.root}/../new-{self.next}", path)
                self.rows[self.next] += 1 if path.endswith(".parquet") else 0
            else:
                os.rename(path, f"{folder}/s{self.next}.parquet")
                if not path.endswith(".parquet"):
                    self.rows.update(ids)
        self.log.append(action)

    def _write(self, path: str) -> None:
        pq.write_table(pa.table({"id": [self.next]}), path)


def interfere(dataset: Dataset, act: Callable[[], None], chance: random.Random, kill_at: int | None) -> None:
    """Let strangers act at random calls of the store while a commit is under way, and perhaps kill it."""
    base = type(dataset._store)
    state = {"calls": 0, "dead": False}
    likelihood = chance.choice([0.02, 0.05, 0.1])

    def guarded(name: str) -> Callable[..., Any]:
        original = getattr(base, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if state["dead"]:
                raise Crash(name)
            state["calls"] += 1
            if state["calls"] == kill_at:
                state["dead"] = True
                raise Crash(name)
            if chance.random() < likelihood:
                act()
            result = original(self, *args, **kwargs)
            if chance.random() < likelihood:
                act()
            return result

        return call

    dataset._store.__class__ = type("Busy", (base,), {name: guarded(name) for name in WATCHED})


def run(place: Place, seed: int, publish: str, kill: bool) -> None:
    chance = random.Random(seed)
    parent = place.root.rpartition("/")[0]
    if place.fs.exists(parent):
        place.fs.rm(parent, recursive=True)
    place.write_files({f"p={1 + n // 3}/f{n}.parquet": pa.table({"id": [n]}) for n in range(6)})
    strangers = Strangers(place.root, chance)
    dataset = Dataset(place.root, publish=publish, threads=1)  # type: ignore[arg-type]
    commit = dataset._place.workspace.write_journal
    begun = False

    def journal(record: Any) -> None:
        nonlocal begun
        if not begun:
            begun = True
            interfere(dataset, strangers.act, chance, chance.randrange(1, 120) if kill else None)
        commit(record)

    dataset._place.workspace.write_journal = journal  # type: ignore[method-assign]
    outcome = "done"
    try:
        dataset.compact()
    except (CommitError, OSError) as error:
        outcome = type(error).__name__
    except Crash:
        outcome = "killed"
        for _ in range(chance.randrange(3)):
            strangers.act()
    place.dataset().recover()
    found = Counter(
        value
        for path in oracle.data_files(place.root)
        for value in oracle.read_file(path).column("id").to_pylist()
    )
    assert found == +strangers.rows, f"seed {seed}, {outcome}: {strangers.log}"


@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("publish", ["auto", "rename"])
def test_strangers_lose_nothing_and_are_not_undone(local: Place, publish: str, kill: bool) -> None:
    for seed in range(40):
        run(local, seed, publish, kill)


@pytest.mark.sweep
@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("publish", ["auto", "rename"])
def test_strangers_lose_nothing_at_length(local: Place, publish: str, kill: bool) -> None:
    for seed in range(1000, 2500):
        run(local, seed, publish, kill)
