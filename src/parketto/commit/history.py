"""The commit history of a dataset, for callers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from itertools import islice
from typing import Any, TypedDict

from parketto.commit.identity import identity_of
from parketto.commit.workspace import Workspace


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


def commits(workspace: Workspace, limit: int | None = None) -> list[Commit]:
    """The commits of the dataset, newest first."""
    identity = identity_of(workspace.store, workspace.root)
    found = workspace.read_log(lambda view: list(islice(workspace.log.history(view, identity), limit)))
    return [
        Commit(**{**{name: entry.get(name) for name in Commit.__annotations__}, "kept_until": _kept_until(entry)})  # type: ignore[typeddict-item]
        for entry in found
    ]


def _kept_until(entry: Mapping[str, Any]) -> str | None:
    until = entry.get("kept_until")
    return None if until is None else dt.datetime.fromtimestamp(until, dt.UTC).isoformat()
