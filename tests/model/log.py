"""The protocol of the log: one immutable, numbered record per commit, created by one writer only.

    look → validate → create record n+1 → copy what is kept → publish all → create the manifest of what is kept
    → retire all → remove what was staged → create "done n+1"

A record is created only when the previous one is done, by its owner or by a helping process. "Done" is created
only when no staged files are left: a late step of a writer then finds nothing to publish.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from model.explore import Missing, Step
from model.operations import Operation
from model.storage import (
    Files,
    Record,
    World,
    is_staged,
    list_live,
    lock,
    publish,
    retire,
    rows_of,
    stage,
    step,
    unlock,
    unstage,
)

Steps = Generator[Step, Any, Any]


@dataclass(frozen=True)
class Latest:
    """The end of the log."""

    number: int
    record: Record | None
    done: bool
    undo: bool = False


def latest_of(world: World) -> Latest:
    number = max([world.checkpoint, *(number for number, _ in world.log)])
    record = dict(world.log).get(number)
    return Latest(number, record, record is None or number in world.done, number in world.undo)


def look() -> Step:
    """List the log."""
    return step("look at the log", lambda w: (w, latest_of(w)))


def create(number: int, record: Record) -> Step:
    """Create the record with that number, unless it exists."""

    def act(world: World) -> tuple[World, Any]:
        if number in dict(world.log):
            return world, False
        return replace(world, log=tuple(sorted((*world.log, (number, record)), key=lambda each: each[0]))), True

    return step(f"create record {number}", act)


def is_void(number: int, record: Record) -> Step:
    """Whether an earlier record with that number was folded away: then this one is not a commit."""

    def act(world: World) -> tuple[World, Any]:
        return world, number <= world.checkpoint and record.owner not in world.remembered

    return step(f"is record {number} void?", act)


def remove_record(number: int) -> Step:
    return step(
        f"remove record {number}",
        lambda w: (replace(w, log=tuple(each for each in w.log if each[0] != number)), None),
    )


def create_done(number: int) -> Step:
    return step(f"create done {number}", lambda w: (replace(w, done=w.done | {number}), None))


def is_done(number: int) -> Step:
    return step(f"is {number} done?", lambda w: (w, number in w.done))


def knows(commit_id: str) -> Step:
    """Whether the settled log has a commit with that id."""

    def act(world: World) -> tuple[World, Any]:
        names = {record.commit_id for number, record in world.log if number not in world.undone}
        return world, commit_id in names | world.remembered

    return step(f"is {commit_id} known?", act)


def busy_writer(me: str, operation: Operation, *, local: bool = False) -> Generator[Step, Any, str]:
    """A writer that makes another commit afterwards, and then folds the log."""
    outcome = yield from writer(me, operation, local=local)
    latest = yield from settled()
    record = Record(f"{me} again", 1)
    if (yield create(latest.number + 1, record)):
        yield from carry_out(latest.number + 1, record)
    yield from fold_log()
    return outcome


def fold_log() -> Generator[Step, Any, str]:
    """Write a checkpoint of all settled commits except the last one, and remove their records."""
    latest: Latest = yield look()
    line = last_to_fold(latest)
    if line < 1:
        return "nothing to fold"
    yield create_checkpoint(line)
    yield step("remove records", lambda w: (replace(w, log=tuple(e for e in w.log if e[0] > line)), None))
    yield step("remove dones", lambda w: (replace(w, done=frozenset(n for n in w.done if n > line)), None))
    return "folded"


def last_to_fold(latest: Latest) -> int:
    return latest.number - 1


def create_checkpoint(line: int) -> Step:
    def act(world: World) -> tuple[World, Any]:
        if line <= world.checkpoint:
            return world, None
        kept = remembered(
            [record for number, record in world.log if number <= line and number not in world.undone]
        )
        return replace(world, checkpoint=line, remembered=world.remembered | kept), None

    return step(f"create checkpoint {line}", act)


def remembered(records: list[Record]) -> frozenset[str]:
    """What a checkpoint keeps of commits: their owners and commit ids."""
    return frozenset(name for record in records for name in (record.owner, record.commit_id) if name)


def current_dataset() -> Step:
    """Which dataset is at the path."""
    return step("which dataset is it?", lambda w: (w, w.dataset))


def keep(record: Record) -> Steps:
    """Copy the files to retire, unless another process has; returns those that were there."""
    if not record.retire or (yield has_manifest(record.owner)):
        return frozenset()
    return (yield copy_retired(record))


def has_manifest(owner: str) -> Step:
    return step(f"is there a manifest of {owner}?", lambda w: (w, owner in dict(w.manifests)))


def copy_retired(record: Record) -> Step:
    def act(world: World) -> tuple[World, Any]:
        found = frozenset(file for file in world.live if file[0] in record.retire)
        copies = {(record.owner, *file) for file in found}
        return replace(world, parked=world.parked | copies), found

    return step("copy what is kept", act)


def create_manifest(owner: str, files: Files) -> Step:
    """Create a manifest, unless it exists."""

    def act(world: World) -> tuple[World, Any]:
        known = owner in dict(world.manifests)
        return (world if known else replace(world, manifests=world.manifests | {(owner, files)})), None

    return step(f"create the manifest of {owner}", act)


def carry_out(number: int, record: Record) -> Steps:
    """Apply a record. Any process may do it, concurrently and repeatedly."""
    if (yield current_dataset()) == record.dataset:
        try:
            copied = yield from keep(record)
            for name, rows in sorted(record.publish):
                yield publish(record.owner, name, rows)
            if copied:
                yield create_manifest(record.owner, copied & (yield list_live()))
            for name in sorted(record.retire):
                yield retire(name)
        except Missing:
            pass  # another process removed the staged files, so all is published and retired
    yield unstage(record.sweeps or record.owner)
    yield create_done(number)


def settled() -> Steps:
    """The end of the log, after unfinished records were applied."""
    latest = yield look()
    while not latest.done:
        yield from carry_out(latest.number, latest.record)
        latest = yield look()
    return latest


def writer(me: str, operation: Operation, *, local: bool, retries: int = 1) -> Generator[Step, Any, str]:
    """One operation, from discovery to its report; conflicts are planned again."""
    for attempt in range(retries + 1):
        owner = f"{me}{attempt}"
        if local:
            yield lock(me)
        yield from settled()
        files: Files = yield list_live()
        if local:
            yield unlock(me)
        new, old = operation.plan(owner, files)
        yield stage(owner, new)
        outcome = yield from commit(me, owner, operation, files, new, old, local=local)
        if outcome != "conflict":
            return str(outcome)
    return "conflict"


def commit(
    me: str, owner: str, operation: Operation, seen: Files, new: dict[str, Any], old: set[str], *, local: bool
) -> Steps:
    record = Record(owner, 1, frozenset(new.items()), frozenset(old), commit_id=operation.commit_id)
    if local:
        yield lock(me)
    while True:
        latest = yield from settled()
        if operation.commit_id is not None and (yield knows(operation.commit_id)):
            yield unstage(owner)
            if local:
                yield unlock(me)
            return "committed"
        now: Files = yield list_live()
        gone = {name for name, _ in seen - now}
        if old & gone or any(operation.concerns(rows) for _, rows in now - seen):
            yield unstage(owner)
            if local:
                yield unlock(me)
            return "conflict"
        if not (yield is_staged(owner, new)) or (yield current_dataset()) != record.dataset:
            if local:
                yield unlock(me)
            return "failed"
        if not (yield create(latest.number + 1, record)):
            continue
        if local or not (yield is_void(latest.number + 1, record)):
            break
        yield remove_record(latest.number + 1)
    yield from carry_out(latest.number + 1, record)
    if local:
        yield unlock(me)
    return "committed"


def sweeper(me: str, whose: str) -> Generator[Step, Any, str]:
    """Treats a writer as dead that may only be stalled, and removes its staged files."""
    while True:
        latest = yield from settled()
        if not (yield has_staged(whose)):
            return "nothing to sweep"
        record = Record(me, 1, sweeps=whose)
        if (yield create(latest.number + 1, record)):
            yield from carry_out(latest.number + 1, record)
            return "swept"


def has_staged(owner: str) -> Step:
    return step(f"has {owner} staged?", lambda w: (w, any(own == owner for own, _, _ in w.staged)))


def reader(me: str) -> Generator[Step, Any, str]:
    """Reads without writing: the record of an unfinished commit tells old files from new ones."""
    del me
    before = yield look()
    files: Files = yield list_live()
    after = yield look()
    if before != after:
        return "reads again"
    record = before.record
    if not before.done and record is not None and record.dataset == (yield current_dataset()):
        if record.publish <= files:
            files = frozenset(file for file in files if file[0] not in record.retire)
        else:
            files = files - record.publish
    return f"read {rows_of(files)!r}"


def next_user() -> Generator[Step, Any, str]:
    """The next process after all others have ended: it settles the log, and reads."""
    yield from settled()
    files = yield list_live()
    return repr(rows_of(files))
