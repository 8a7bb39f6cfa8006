"""The commit history of a dataset, for callers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Container, Mapping
from itertools import islice
from typing import Any, TypedDict

from parketto.commit.identity import identity_of
from parketto.commit.log import LogView
from parketto.commit.past import Commits, mixes_folders, plan_undo
from parketto.commit.retention import KeptFiles
from parketto.commit.tombstones import check_tombstones_without
from parketto.commit.undone import undone_commits
from parketto.commit.workspace import Workspace
from parketto.display import Results
from parketto.errors import CannotUndo


class Commit(TypedDict):
    """One commit to a dataset."""

    number: int
    operation: str
    #: When its record was created, in UTC.
    at: str
    #: From the start of the operation until then.
    duration_seconds: float
    engine: str
    user: str
    program: str
    #: The caller's idempotency key.
    commit_id: str | None
    arguments: dict[str, Any]
    statistics: dict[str, Any]
    files_published: int
    files_retired: int
    #: Until when the retired files are kept, in UTC; None if they are not.
    kept_until: str | None
    #: Whether `undo(number)` is possible, as far as the log and the kept files show.
    can_undo: bool
    #: The commit that has undone this one; None if it is in effect.
    undone_by: int | None


def commits(workspace: Workspace, limit: int | None = None) -> list[Commit]:
    """The commits of the dataset, newest first."""
    identity = identity_of(workspace.store, workspace.root)

    def read(view: LogView) -> tuple[list[dict[str, Any]], Commits]:
        found = list(islice(workspace.log.history(view, identity), limit))
        first = found[-1]["number"] - 1 if found else view.last
        while True:
            known = Commits(*workspace.log.complete(view, identity, first), view.last)
            if (earlier := _before_undone(known, first)) >= first:
                return found, known
            first = earlier

    found, known = workspace.read_log(read)
    kept = KeptFiles(workspace.store, workspace.path).places() if found else {}
    return Results(
        Commit(
            **{name: entry.get(name) for name in Commit.__annotations__}  # type: ignore[typeddict-item]
            | {"kept_until": _kept_until(entry), "can_undo": _can_undo(workspace, known, entry["number"], kept)}
        )
        for entry in found
    )


def _before_undone(known: Commits, first: int) -> int:
    """The commit before all those that known ones have undone: an undo of an undo applies them again."""
    undone = (undone_commits(each.operation, each.statistics) for each in known.records.values())
    return min((number for numbers in undone for number in numbers), default=first + 1) - 1


def _can_undo(workspace: Workspace, known: Commits, number: int, kept: Container[tuple[str, str]]) -> bool:
    if number not in known.records or not workspace.keeps_history:
        return False
    try:
        plan = plan_undo(known, number)
        check_tombstones_without(workspace, known, plan.undone)
    except CannotUndo:
        return False
    is_kept = all((old.path, old.fingerprint) in kept for _, old in plan.restored)
    return is_kept and not mixes_folders(known, plan)


def _kept_until(entry: Mapping[str, Any]) -> str | None:
    until = entry.get("kept_until")
    return None if until is None else dt.datetime.fromtimestamp(until, dt.UTC).isoformat()
