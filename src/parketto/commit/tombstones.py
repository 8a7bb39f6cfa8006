"""Tombstones: the keys that applied changes have deleted, so that a late record does not bring them back.

They are a file in the workspace, which the record of a commit names. So they change exactly when that commit is
settled, and a file that no commit names has no effect (docs/decisions/2026-11-18-tombstones.md).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from parketto.commit.identity import identity_of
from parketto.commit.log import LogView
from parketto.commit.past import Commits
from parketto.commit.undone import undone_commits
from parketto.commit.workspace import Workspace
from parketto.errors import CannotUndo, CommitConflict

#: The operation whose commits have tombstones, and the name of the file in their statistics.
OPERATION, STATISTIC = "apply_changes", "tombstones"
_FOLDER = "changes"
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{32}\.arrow")
_TIME = "%Y%m%dT%H%M%S"
_ABANDONED = dt.timedelta(days=1)  # a file that no commit names after this time never will be named


@dataclass(frozen=True)
class Tombstones:
    """The tombstones after a commit."""

    #: The id of the last commit that applied changes, or replaced all rows; None if there is none.
    commit: str | None = None
    #: The name of their file; None if there are none.
    name: str | None = None
    rows: pa.Table | None = None


def read_tombstones(workspace: Workspace) -> Tombstones:
    """The current tombstones of a dataset."""
    commit, name = _last(workspace)
    if name is None:
        return Tombstones(commit)
    try:
        content = workspace.store.read(_path(workspace, name))
    except FileNotFoundError:
        if _last(workspace) == (commit, name):
            return Tombstones(commit)  # removed by hand: nothing is known to be deleted
        raise _conflict() from None
    with pa.ipc.open_file(pa.BufferReader(content)) as reader:
        return Tombstones(commit, name, reader.read_all())


def stage_tombstones(workspace: Workspace, rows: pa.Table) -> str:
    """Write tombstones to a new file, and return its name for the statistics of the commit."""
    name = f"{_now().strftime(_TIME)}-{uuid.uuid4().hex}.arrow"
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    workspace.store.make_dirs(f"{workspace.path}/{_FOLDER}")
    workspace.store.write(_path(workspace, name), sink.getvalue().to_pybytes())
    return name


def check_tombstones(workspace: Workspace, seen: Tombstones) -> None:
    """Raise CommitConflict if another writer has applied changes since."""
    if _last(workspace)[0] != seen.commit:
        raise _conflict()


def remove_tombstones(workspace: Workspace, replaced: str | None, current: str | None) -> None:
    """Remove the files that no undo needs, and those of processes that died before their commit."""
    since = (_now() - _ABANDONED).strftime(_TIME)
    with contextlib.suppress(OSError):  # a later commit tries again
        names = filter(_NAME.fullmatch, workspace.store.list_names(f"{workspace.path}/{_FOLDER}"))
        old = {name for name in names if name != current and (name == replaced or name < since)}
        if old:
            old -= _needed_by_undo(workspace)
            workspace.store.remove_many([_path(workspace, name) for name in sorted(old)])


def check_tombstones_without(workspace: Workspace, commits: Commits, undone: Sequence[int]) -> None:
    """Refuse to undo commits if that does not bring the tombstones back that there were before."""
    changing = [number for number in undone if _changed_tombstones(commits, number)]
    if not changing:
        return
    later = [
        number
        for number, record in commits.since(min(changing))
        if record.operation == OPERATION and number not in commits.undone_by and number not in undone
    ]
    if later:
        raise CannotUndo(
            f"{commits.describe(changing[0])} cannot be undone: {commits.describe(later[-1])} relies on the keys "
            f"that were deleted until then. Undo commit {later[-1]} first. Nothing was changed"
        )
    name = _last(workspace, undone)[1]
    if name is not None and workspace.store.stat(_path(workspace, name)) is None:
        raise CannotUndo(
            f"{commits.describe(changing[0])} cannot be undone: the keys that were deleted before it are no "
            "longer kept, so late change records could bring them back. Nothing was changed"
        )


def _changed_tombstones(commits: Commits, number: int) -> bool:
    """Whether a commit has changed the tombstones, itself or by undoing commits that have."""
    record = commits.records[number]
    if record.operation == OPERATION:
        before = [
            each for each in commits.numbers if each < number and commits.records[each].operation == OPERATION
        ]
        known = commits.records[before[-1]].statistics.get(STATISTIC) if before else None
        return bool(record.statistics.get(STATISTIC) != known)
    if record.operation == "overwrite":
        return "replace_where" not in record.arguments
    undone = undone_commits(record.operation, record.statistics)
    return any(_changed_tombstones(commits, each) for each in undone if each in commits.records)


def _last(workspace: Workspace, without: Sequence[int] = ()) -> tuple[str | None, str | None]:
    """The id of the last commit that applied changes or replaced all rows, and the name of its tombstones."""
    identity = identity_of(workspace.store, workspace.root)

    def find(view: LogView) -> tuple[str | None, str | None]:
        for entry in workspace.log.history(view, identity, without):
            if entry["undone_by"] is not None:
                continue
            if entry["operation"] == OPERATION:
                return entry["id"], _name_in(entry)
            if entry["operation"] == "overwrite" and "replace_where" not in entry["arguments"]:
                return entry["id"], None  # all rows were replaced: what was deleted before does not matter
        return None, None

    return workspace.read_log(find)


def _needed_by_undo(workspace: Workspace) -> set[str]:
    """The names of tombstones that come back if a commit is undone whose retired files are still kept."""
    identity, now = identity_of(workspace.store, workspace.root), _now().timestamp()

    def find(view: LogView) -> set[str]:
        found, until = set(), 0.0
        for entry in workspace.log.history(view, identity):
            if entry["number"] <= view.checkpoint:
                break
            if entry["operation"] == OPERATION and until > now and (name := _name_in(entry)) is not None:
                found.add(name)
            until = max(until, entry.get("kept_until") or 0.0)
        return found

    return workspace.read_log(find)


def _name_in(entry: Mapping[str, Any]) -> str | None:
    name = entry["statistics"].get(STATISTIC)
    return name if name and _NAME.fullmatch(name) else None


def _path(workspace: Workspace, name: str) -> str:
    return f"{workspace.path}/{_FOLDER}/{name}"


def _conflict() -> CommitConflict:
    return CommitConflict("another writer has applied changes meanwhile; nothing was published, run it again")


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
