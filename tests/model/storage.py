"""The world of the model: what a commit sees of a disk or an object store, and the steps it can take there.

Every function returns one step. A step is atomic; between two steps any other program may act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from model.explore import Missing, Step

Rows = frozenset[tuple[int, ...]]
Files = frozenset[tuple[str, Rows]]


@dataclass(frozen=True)
class Record:
    """What a commit is about to do. A sweep publishes and retires nothing; it names whose staging it removes."""

    owner: str
    dataset: int
    publish: Files = frozenset()
    retire: frozenset[str] = frozenset()
    sweeps: str | None = None
    commit_id: str | None = None


@dataclass(frozen=True)
class World:
    """A dataset and its workspace."""

    live: Files
    #: Which dataset is at the path: another one, after it was moved away and created again.
    dataset: int = 1
    staged: frozenset[tuple[str, str, Rows]] = frozenset()
    journal: Record | None = None
    #: Records by their numbers, in order.
    log: tuple[tuple[int, Record], ...] = ()
    done: frozenset[int] = frozenset()
    #: Commits that are to be undone, and those that have been.
    undo: frozenset[int] = frozenset()
    undone: frozenset[int] = frozenset()
    #: Records up to this one may be removed; `remembered` is what is kept of them.
    checkpoint: int = 0
    remembered: frozenset[str] = frozenset()
    #: Retired files that are kept: moved aside where that is possible, else copied.
    parked: frozenset[tuple[str, str, Rows]] = frozenset()
    #: For each commit that keeps files, by its owner, what it keeps.
    manifests: frozenset[tuple[str, Files]] = frozenset()
    #: How many of the next fallible steps will fail.
    faults: int = 0
    holder: str | None = None
    #: How many leases may still expire while their holder stalls; none on a disk, whose kernel frees locks.
    lapses: int = 0
    dead: frozenset[str] = frozenset()


def step(title: str, act: Callable[[World], tuple[World, Any] | None]) -> Step:
    """A step with a name for reports."""
    act.title = title  # type: ignore[attr-defined]
    return act


def rows_of(files: Files) -> tuple[tuple[int, ...], ...]:
    """All rows, duplicates included."""
    return tuple(sorted(row for _, rows in files for row in rows))


def lock(me: str) -> Step:
    """Wait for the lock; a lease may also be taken from a holder that stalls for too long, or has died."""

    def act(world: World) -> tuple[World, Any] | None:
        if world.holder is None or world.holder in world.dead:
            return replace(world, holder=me), True
        if world.lapses:
            return replace(world, holder=me, lapses=world.lapses - 1), True
        return None

    return step("lock", act)


def unlock(me: str) -> Step:
    return step("unlock", lambda w: (replace(w, holder=None) if w.holder == me else w, None))


def holds(me: str) -> Step:
    return step("still holds the lock?", lambda w: (w, w.holder == me))


def list_live() -> Step:
    return step("list", lambda w: (w, w.live))


def stage(owner: str, files: Mapping[str, Rows]) -> Step:
    new = frozenset((owner, name, rows) for name, rows in files.items())
    return step("stage", lambda w: (replace(w, staged=w.staged | new), None))


def is_staged(owner: str, names: Iterable[str]) -> Step:
    wanted = set(names)
    return step("still staged?", lambda w: (w, wanted <= {name for own, name, _ in w.staged if own == owner}))


def unstage(owner: str) -> Step:
    """Remove all staged files of an owner."""
    return step(
        f"remove what {owner} staged",
        lambda w: (replace(w, staged=frozenset(each for each in w.staged if each[0] != owner)), None),
    )


def publish(owner: str, name: str, rows: Rows) -> Step:
    """Copy a staged file to its final path."""

    def act(world: World) -> tuple[World, Any]:
        if (owner, name, rows) not in world.staged:
            return world, Missing()
        return replace(world, live=world.live | {(name, rows)}), None

    return step(f"publish {name}", act)


def retire(name: str) -> Step:
    return step(f"retire {name}", lambda w: (replace(w, live=frozenset(f for f in w.live if f[0] != name)), None))


def move_away(after: str) -> Step:
    """Another user moves the dataset away and creates a new one at its path, once a writer has died."""

    def act(world: World) -> tuple[World, Any]:
        if after not in world.dead:
            return world, None  # too early
        return replace(world, dataset=2, live=frozenset({("foreign", frozenset({(99,)}))})), None

    return step("mv, and a new dataset", act)
