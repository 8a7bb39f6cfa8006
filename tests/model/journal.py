"""A protocol with a single journal, which all writers overwrite and remove."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from model.explore import Missing, Step
from model.operations import Operation
from model.storage import (
    Record,
    holds,
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


def read_journal() -> Step:
    return step("read the journal", lambda w: (w, w.journal))


def write_journal(record: Record) -> Step:
    return step("write the journal", lambda w: (replace(w, journal=record), None))


def clear_journal() -> Step:
    return step("remove the journal", lambda w: (replace(w, journal=None), None))


def roll_forward(record: Record, *, first: bool) -> Steps:
    """Publish and retire files. Recovery (`first=False`) tolerates steps that are already done."""
    for name, rows in sorted(record.publish):
        files = dict((yield list_live()))
        if name not in files:
            yield publish(record.owner, name, rows)
    for name in sorted(record.retire):
        files = dict((yield list_live()))
        if name not in files and first:
            raise Missing  # another writer changed it
        yield retire(name)


def recover() -> Steps:
    record = yield read_journal()
    if record is not None:
        yield from roll_forward(record, first=False)
        yield clear_journal()
        yield unstage(record.owner)


def writer(me: str, operation: Operation) -> Generator[Step, Any, str]:
    """One operation, from discovery to its report."""
    files = yield list_live()
    new, old = operation.plan(me, files)
    yield stage(me, new)
    yield lock(me)
    try:
        yield from recover()
        now = yield list_live()
        if not {name for name, _ in now} >= old:
            yield unlock(me)
            yield unstage(me)
            return "conflict"
        if not (yield holds(me)):
            yield unstage(me)
            return "failed"
        record = Record(me, 1, frozenset(new.items()), frozenset(old))
        yield write_journal(record)
        yield from roll_forward(record, first=True)
        yield clear_journal()
    except Missing:
        left = yield read_journal()
        yield unlock(me)
        return "failed" if left is None else "unknown"
    yield unlock(me)
    yield unstage(me)
    return "committed"


def next_user() -> Generator[Step, Any, str]:
    """The next process after all others have ended: it recovers, and reads."""
    yield lock("the next user")
    try:
        yield from recover()
    except Missing:
        return "cannot recover"
    files = yield list_live()
    return repr(rows_of(files))


def reader(me: str) -> Generator[Step, Any, str]:
    yield lock(me)
    try:
        yield from recover()
    except Missing:
        return "fails"
    files = yield list_live()
    yield unlock(me)
    return f"read {rows_of(files)!r}"
