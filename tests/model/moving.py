"""The protocol of the log on a disk: files are moved under a lock, and after an error the commit is undone.

lock → settle → validate → create record n+1 → write the manifest of what is kept → publish all → retire all
→ create "done n+1" → unlock
after an error: → create "undo n+1" → remove the manifest → bring back what was retired → remove what was published
→ "done n+1"
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from model.explore import Fault, Missing, Step
from model.log import Latest, Steps, create, current_dataset, knows, look
from model.operations import Operation
from model.storage import Files, Record, Rows, World, list_live, lock, rows_of, stage, step, unlock


def fallible(title: str, act: Any) -> Step:
    """A step that fails if the disk does."""

    def tried(world: World) -> tuple[World, Any]:
        if world.faults:
            return replace(world, faults=world.faults - 1), Fault()
        made: tuple[World, Any] = act(world)
        return made

    return step(title, tried)


def fail() -> Generator[Step, Any, str]:
    """The next step that can fail does."""
    yield step("the disk fails", lambda w: (replace(w, faults=w.faults + 1), None))
    return "failed"


def move_in(owner: str, name: str, rows: Rows) -> Step:
    """Move a staged file to its final path, unless it is there."""

    def act(world: World) -> tuple[World, Any]:
        if (name, rows) in world.live:
            return world, None
        if (owner, name, rows) not in world.staged:
            return world, Missing()
        return replace(world, live=world.live | {(name, rows)}, staged=world.staged - {(owner, name, rows)}), None

    return fallible(f"publish {name}", act)


def move_aside(owner: str, name: str) -> Step:
    """Park a file, unless it is parked."""

    def act(world: World) -> tuple[World, Any]:
        found = [file for file in world.live if file[0] == name]
        parked = {(owner, *file) for file in found}
        return replace(world, live=world.live - frozenset(found), parked=world.parked | parked), None

    return fallible(f"retire {name}", act)


def bring_back(owner: str, name: str) -> Step:
    def act(world: World) -> tuple[World, Any]:
        found = [each for each in world.parked if each[:2] == (owner, name)]
        live = {(name, rows) for _, _, rows in found}
        return replace(world, live=world.live | live, parked=world.parked - frozenset(found)), None

    return fallible(f"bring {name} back", act)


def remove(name: str) -> Step:
    act = lambda w: (replace(w, live=frozenset(file for file in w.live if file[0] != name)), None)  # noqa: E731
    return fallible(f"remove {name}", act)


def write_manifest(record: Record) -> Step:
    """Describe what is kept, unless that is done."""

    def act(world: World) -> tuple[World, Any]:
        there = world.live | {(name, rows) for owner, name, rows in world.parked if owner == record.owner}
        kept = frozenset(file for file in there if file[0] in record.retire)
        known = not record.retire or record.owner in dict(world.manifests)
        return (world if known else replace(world, manifests=world.manifests | {(record.owner, kept)})), None

    return fallible(f"write the manifest of {record.owner}", act)


def remove_manifest(owner: str) -> Step:
    left = lambda w: frozenset(each for each in w.manifests if each[0] != owner)  # noqa: E731
    return fallible(f"remove the manifest of {owner}", lambda w: (replace(w, manifests=left(w)), None))


def decide_undo(number: int) -> Step:
    return fallible(f"create undo {number}", lambda w: (replace(w, undo=w.undo | {number}), None))


def settle(number: int, *, undone: bool) -> Step:
    def act(world: World) -> tuple[World, Any]:
        gone = {number} if undone else set[int]()
        return replace(world, done=world.done | {number}, undone=world.undone | gone), None

    return fallible(f"create done {number}", act)


def clean_up(owner: str) -> Step:
    """Remove the folder of an operation; what it has retired is kept elsewhere."""

    def act(world: World) -> tuple[World, Any]:
        return replace(world, staged=frozenset(each for each in world.staged if each[0] != owner)), None

    return step(f"remove what {owner} has left", act)


def can_complete(record: Record) -> Step:
    def act(world: World) -> tuple[World, Any]:
        staged = {(name, rows) for owner, name, rows in world.staged if owner == record.owner}
        here = {name for name, _ in world.live} | {
            name for owner, name, _ in world.parked if owner == record.owner
        }
        return world, record.publish <= staged | world.live and record.retire <= here

    return step("can it be completed?", act)


def roll_forward(record: Record) -> Steps:
    yield write_manifest(record)
    for name, rows in sorted(record.publish):
        yield move_in(record.owner, name, rows)
    for name in sorted(record.retire):
        yield move_aside(record.owner, name)


def roll_back(record: Record) -> Steps:
    yield remove_manifest(record.owner)
    for name in sorted(record.retire):
        yield bring_back(record.owner, name)
    for name, _ in sorted(record.publish):
        yield remove(name)


def settled() -> Steps:
    """The end of the log, after unfinished records were settled. The caller holds the lock."""
    latest: Latest = yield look()
    while not latest.done:
        record = latest.record
        assert record is not None
        undo = latest.undo
        if (yield current_dataset()) == record.dataset:
            if not undo and not (yield can_complete(record)):
                yield decide_undo(latest.number)
                undo = True
            yield from (roll_back if undo else roll_forward)(record)
        yield settle(latest.number, undone=undo)
        yield clean_up(record.owner)
        latest = yield look()
    return latest


def listing(me: str) -> Steps:
    """The files after a commit: none was unfinished before the listing, and none happened during it."""
    while True:
        before = yield look()
        if not before.done:
            yield lock(me)
            yield from settled()
            yield unlock(me)
            continue
        files: Files = yield list_live()
        if (yield look()) == before:
            return files


def writer(me: str, operation: Operation, *, retries: int = 1) -> Generator[Step, Any, str]:
    """One operation, from discovery to its report; conflicts are planned again."""
    for attempt in range(retries + 1):
        owner = f"{me}{attempt}"
        try:
            files = yield from listing(me)
        except Missing:
            yield unlock(me)
            return "failed"  # it could not recover the unfinished commit of another process
        new, old = operation.plan(owner, files)
        yield stage(owner, new)
        outcome = yield from commit(me, owner, operation, files, new, old)
        if outcome != "conflict":
            return str(outcome)
    return "conflict"


def commit(me: str, owner: str, operation: Operation, seen: Files, new: dict[str, Rows], old: set[str]) -> Steps:
    record = Record(owner, 1, frozenset(new.items()), frozenset(old), commit_id=operation.commit_id)
    yield lock(me)
    try:
        latest = yield from settled()
    except Missing:
        yield unlock(me)
        return "failed"
    outcome = None
    if operation.commit_id is not None and (yield knows(operation.commit_id)):
        outcome = "committed"
    else:
        now: Files = yield list_live()
        gone = {name for name, _ in seen - now}
        if old & gone or any(operation.concerns(rows) for _, rows in now - seen):
            outcome = "conflict"
        elif (yield current_dataset()) != record.dataset:
            outcome = "failed"
    if outcome is None:
        yield create(latest.number + 1, record)
        outcome = yield from carry_out(latest.number + 1, record)
    yield unlock(me)
    if outcome != "unknown":  # otherwise recovery needs these files
        yield clean_up(owner)
    return outcome


def carry_out(number: int, record: Record) -> Steps:
    """Apply the whole record or, after an error, nothing of it."""
    try:
        yield from roll_forward(record)
    except Missing:
        return (yield from give_up(number, record))
    try:
        yield settle(number, undone=False)
    except Fault:
        return "unknown"  # all is done, so there is nothing to undo
    return "committed"


def give_up(number: int, record: Record) -> Steps:
    try:
        yield decide_undo(number)
        yield from roll_back(record)
        yield settle(number, undone=True)
    except Missing:
        return "unknown"
    return "failed"


def reader(me: str) -> Generator[Step, Any, str]:
    try:
        files = yield from listing(me)
    except Missing:
        yield unlock(me)
        return "cannot recover"
    return f"read {rows_of(files)!r}"


def next_user() -> Generator[Step, Any, str]:
    """The next process after all others have ended: it settles the log, and reads. The disk works again."""
    yield step("the disk is fine", lambda w: (replace(w, faults=0), None))
    try:
        files = yield from listing("the next user")
    except Missing:
        return "cannot recover"
    return repr(rows_of(files))
