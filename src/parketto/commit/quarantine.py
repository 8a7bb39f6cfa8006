"""Announcements of rows that are about to be quarantined, so that they stay only if their commit happens.

An operation commits to two datasets: rows that break a rule to the quarantine, then all others to its own dataset.
Before the first commit it leaves an announcement in its own workspace, and removes it after the second. If it dies
in between, the announcement names the rows to remove (docs/internals/writing.md).
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import time
from dataclasses import dataclass

from parketto.commit.identity import identity_of
from parketto.commit.record import sealed, unsealed
from parketto.commit.workspace import QUARANTINE, TRANSACTION_PREFIX, Workspace
from parketto.errors import CommitStateUnknown

_NAME = re.compile(r"(?P<identity>[0-9A-Za-z-]+)\.json")
_CERTAIN_SECONDS = 25 * 24 * 60 * 60.0  # less than the 30 days for which the log keeps commits


@dataclass(frozen=True)
class Announcement:
    """Rows with this id are only valid if the operation with this id is in the log."""

    identity: str
    #: The path of the quarantine.
    root: str
    at: float

    @property
    def is_certain(self) -> bool:
        """Whether the log still tells if the operation was committed."""
        return time.time() - self.at < _CERTAIN_SECONDS


def announce(workspace: Workspace, identity: str, root: str) -> Announcement:
    """Leave an announcement, durably."""
    found = Announcement(identity, root, time.time())
    folder, path = f"{workspace.path}/{QUARANTINE}", _path(workspace, identity)
    workspace.store.make_dirs(folder)
    content = {"root": posixpath.relpath(root, workspace.path), "at": found.at}
    workspace.store.write(path, sealed(content))
    workspace.store.sync([path, folder, workspace.path])
    return found


def forget(workspace: Workspace, identity: str) -> None:
    """Remove an announcement."""
    workspace.store.remove(_path(workspace, identity))
    workspace.store.remove_empty_dir(f"{workspace.path}/{QUARANTINE}")


def announcements(workspace: Workspace) -> list[Announcement]:
    """The announcements of operations that are running, or were interrupted."""
    found = []
    for match in filter(None, map(_NAME.fullmatch, workspace.store.list_names(f"{workspace.path}/{QUARANTINE}"))):
        path = _path(workspace, match["identity"])
        with contextlib.suppress(FileNotFoundError):
            try:
                content = unsealed(workspace.store.read(path), path)
            except CommitStateUnknown:
                forget(workspace, match["identity"])  # partly written: nothing was committed yet
                continue
            root = posixpath.normpath(posixpath.join(workspace.path, content["root"]))
            found.append(Announcement(match["identity"], root, content["at"]))
    return found


def interrupted(workspace: Workspace, announced: list[Announcement]) -> list[Announcement]:
    """Those whose operation has ended. They were listed before: an operation announces after it has begun."""
    running = workspace.read_state().staging
    return [each for each in announced if f"{TRANSACTION_PREFIX}{each.identity}" not in running]


def is_committed(workspace: Workspace, identity: str) -> bool:
    """Whether the log has the commit of an operation."""
    known = identity_of(workspace.store, workspace.root)
    return workspace.read_log(
        lambda view: any(entry["id"] == identity for entry in workspace.log.history(view, known))
    )


def _path(workspace: Workspace, identity: str) -> str:
    return f"{workspace.path}/{QUARANTINE}/{identity}.json"
