"""Validation before a commit: whether the inputs are unchanged, and which commit changed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parketto.commit.record import paths_of
from parketto.commit.workspace import Workspace
from parketto.errors import CommitConflict, CommitStateUnknown
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry, Store


def check_unchanged(
    store: Store,
    inputs: Sequence[FileEntry],
    there: Mapping[str, FileEntry] | None = None,
    workspace: Workspace | None = None,
    seen: int = 0,
) -> None:
    """Raise CommitConflict if any input has changed since it was listed.

    Args:
        store: Where they are.
        inputs: The files as they were listed.
        there: The current files, if the caller has listed them again.
        workspace: Its log may contain the conflicting commit.
        seen: The last commit that the operation has seen.
    """
    found = store.stat_many([entry.path for entry in inputs]) if there is None else there
    for entry in inputs:
        current = found.get(entry.path)
        if current is None or current.fingerprint != entry.fingerprint:
            who = "" if workspace is None else who_changed(workspace, entry.path, seen)
            raise CommitConflict.over(entry.path, gone=current is None, who=who)


def who_changed(workspace: Workspace, path: str, seen: int) -> str:
    """A description of the commit after a number that added or retired a file; empty if the log has none."""
    name = relative(path, workspace.root)
    try:
        for number, record in workspace.log.records(workspace.read_state().log, seen):
            if name in paths_of(record.publish) | paths_of(record.retire):
                article = "an" if record.operation[0] in "aeiou" else "a"
                return f"commit {number}, {article} {record.operation} by {record.author} at {record.at[:19]}Z"
    except (OSError, CommitStateUnknown):
        return ""  # only the error message needs it
    return ""
