"""Other programs change files and folders at random moments of a commit, also of one that is killed.

Afterwards every row that was written and not removed exists exactly once.
"""

from __future__ import annotations

import os
import random
import shutil
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


class OtherPrograms:
    """Change files in the dataset's folders, and keep track of the expected rows."""

    actions = ("add", "add under another name", "remove", "replace", "rename")

    def __init__(self, root: str, chance: random.Random) -> None:
        self.root, self.chance, self.next = root, chance, 1000
        self.rows = Counter(row for path in oracle.data_files(root) for row in self._ids(path))
        self.log: list[object] = []
        #: Old names of renamed files: not used again, though the other tree may still show them for an instant.
        self.renamed: set[str] = set()

    def act(self) -> None:
        self.next += 1
        action = self.chance.choice(self.actions)
        self.log.append((action, self.do(action)))

    def close(self) -> None:
        """Release resources."""

    def do(self, action: str) -> object:
        folder = self._folder()
        # Not the files that Parketto has just published.
        names = [
            name
            for name in os.listdir(folder)
            if name.startswith(("f", "s", "tmp")) and f"{folder}/{name}" not in self.renamed
        ]
        if action.startswith("add") or not names:
            hidden = action == "add under another name"
            self.rows[self.next] += 0 if hidden else 1
            return self._write(f"{folder}/{'tmp' if hidden else 's'}{self.next}{'' if hidden else '.parquet'}")
        path = f"{folder}/{self.chance.choice(names)}"
        ids = self._ids(path)
        if path.endswith(".parquet") and action != "rename":
            self.rows.subtract(ids)
        if action == "remove":
            os.unlink(path)
        elif action == "replace":
            os.rename(self._write(f"{self.root}/../new-{self.next}"), path)
            self.rows[self.next] += 1 if path.endswith(".parquet") else 0
        else:
            os.rename(path, f"{self._folder()}/s{self.next}.parquet")
            self.renamed.add(path)
            if not path.endswith(".parquet"):
                self.rows.update(ids)
        return path

    def _folder(self) -> str:
        return f"{self.root}/p={self.chance.choice('12')}"

    def _write(self, path: str) -> str:
        pq.write_table(pa.table({"id": [self.next]}), path)
        return path

    def _ids(self, path: str) -> list[int]:
        return pq.ParquetFile(path).read().column("id").to_pylist()


class OtherProgramsInTree(OtherPrograms):
    """They also change partitions that the commit does not concern, and whole folders."""

    actions = (
        *OtherPrograms.actions,
        "make a folder",
        "make a folder elsewhere and move it in",
        "rename a folder",
        "remove a folder",
        "link",
        "write into a folder that was found before",
    )

    def __init__(self, root: str, chance: random.Random) -> None:
        super().__init__(root, chance)
        self.found = {folder: os.open(folder, os.O_RDONLY) for folder in self._folders()}

    def close(self) -> None:
        for descriptor in self.found.values():
            os.close(descriptor)

    def do(self, action: str) -> object:
        folder = f"{self.root}/{self.chance.choice(['', 'p=3/'])}p={self.next}"
        others = [other for other in self._folders() if not other.endswith(("p=1", "p=2", "p=3"))]
        if action == "make a folder":
            os.makedirs(f"{folder}/q=1", exist_ok=True)
            self._write(f"{folder}/q=1/s{self.next}.parquet")
        elif action == "make a folder elsewhere and move it in":
            beside = f"{self.root}/../made-{self.next}"
            os.makedirs(beside)
            self._write(f"{beside}/s{self.next}.parquet")
            os.rename(beside, folder)
        elif action == "write into a folder that was found before":
            found, descriptor = self.chance.choice([*self.found.items()])
            path = self._write(f"{self.root}/../new-{self.next}")
            try:
                os.rename(path, f"s{self.next}.parquet", dst_dir_fd=descriptor)
            except FileNotFoundError:
                os.unlink(path)  # the folder was removed, and the writer gets an error
                return "in vain"
            folder = found
        elif action == "rename a folder" and others:
            folder = self.chance.choice(others)
            os.rename(folder, f"{self.root}/p={self.next}")
            self.renamed.add(folder)
            return folder
        elif action == "remove a folder" and others:
            folder = self.chance.choice(others)
            self.rows.subtract(row for path in oracle.data_files(folder) for row in self._ids(path))
            shutil.rmtree(folder)
            return folder
        elif action == "link":
            return self._link()
        elif action in OtherPrograms.actions:
            return super().do(action)
        else:
            return "nothing"
        self.rows[self.next] += 1
        return folder

    def _link(self) -> object:
        """Publish a temporary file by a hard link; the temporary name is removed later."""
        hidden = [
            f"{folder}/{name}"
            for folder in self._folders()
            for name in os.listdir(folder)
            if name.startswith("tmp") and f"{folder}/{name}" not in self.renamed
        ]
        if not hidden:
            return super().do("add under another name")
        path = self.chance.choice(hidden)
        self.rows.update(self._ids(path))
        os.link(path, f"{os.path.dirname(path)}/s{self.next}.parquet")
        return path

    def _folder(self) -> str:
        return self.chance.choice(self._folders())

    def _folders(self) -> list[str]:
        found = []
        for folder, folders, _ in os.walk(self.root):
            folders[:] = sorted(name for name in folders if f"{folder}/{name}" not in self.renamed)
            found += [f"{folder}/{name}" for name in folders]
        return found


def interfere(dataset: Dataset, act: Callable[[], None], chance: random.Random, kill_at: int | None) -> None:
    """Run `act` at random calls of the store during a commit, and perhaps kill the commit."""
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


def run(place: Place, seed: int, publish: str, kill: bool, kind: type[OtherPrograms] = OtherPrograms) -> None:
    chance = random.Random(seed)
    parent = place.root.rpartition("/")[0]
    if place.fs.exists(parent):
        place.fs.rm(parent, recursive=True)
    place.write_files({f"p={1 + n // 3}/f{n}.parquet": pa.table({"id": [n]}) for n in range(6)})
    if kind is OtherProgramsInTree:  # partitions that the commit does not change
        place.write_files({"p=3/f6.parquet": pa.table({"id": [6]}), "p=3/p=4/f7.parquet": pa.table({"id": [7]})})
    other_programs = kind(place.root, chance)
    dataset = Dataset(place.root, publish=publish, threads=1, retries=0)  # type: ignore[arg-type]
    create = dataset._context.workspace.log.create
    begun = False

    def begin(number: int, record: Any) -> None:
        nonlocal begun
        if not begun:
            begun = True
            interfere(dataset, other_programs.act, chance, chance.randrange(1, 120) if kill else None)
        create(number, record)

    dataset._context.workspace.log.create = begin  # type: ignore[method-assign]
    outcome = "done"
    try:
        dataset.compact()
    except Crash:
        outcome = "killed"
        for _ in range(chance.randrange(3)):
            other_programs.act()
    except (CommitError, OSError) as error:
        outcome = type(error).__name__
    other_programs.close()
    place.dataset().recover()
    found = Counter(
        value
        for path in oracle.data_files(place.root)
        for value in oracle.read_file(path).column("id").to_pylist()
    )
    assert found == +other_programs.rows, f"seed {seed}, {outcome}: {other_programs.log}"


@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("publish", ["auto", "rename"])
def test_changes_of_other_programs_are_kept(local: Place, publish: str, kill: bool) -> None:
    for seed in range(40):
        run(local, seed, publish, kill)


@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("publish", ["auto", "rename"])
def test_changes_in_a_tree_are_kept(local: Place, publish: str, kill: bool) -> None:
    for seed in range(60):
        run(local, seed, publish, kill, OtherProgramsInTree)


@pytest.mark.sweep
@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("publish", ["auto", "rename"])
def test_many_changes_are_kept(local: Place, publish: str, kill: bool) -> None:
    for seed in range(1000, 2500):
        run(local, seed, publish, kill)
        run(local, seed, publish, kill, OtherProgramsInTree)
