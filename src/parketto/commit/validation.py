"""What must still be true when an operation commits, and who made it untrue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parketto.commit.record import paths_of
from parketto.commit.workspace import Workspace
from parketto.errors import CommitConflict, CommitStateUnknown
from parketto.storage.snapshot import relative
from parketto.storage.store import FileEntry, Store


def check_unchanged(
    store: Store,
    inputs: Sequence[FileEntry],
    there: Mapping[str, FileEntry] | None = None,
    workspace: Workspace | None = None,
    seen: int = 0,
) -> None:
    """Raise CommitConflict if any input is not the file it was when it was listed.

    Args:
        store: Where they are.
        inputs: The files as they were listed.
        there: The files as they are now, if the caller has listed them again.
        workspace: Whose log may tell who was in the way.
        seen: The last commit that the operation knows of.
    """
    found = store.stat_many([entry.path for entry in inputs]) if there is None else there
    for entry in inputs:
        current = found.get(entry.path)
        if current is None or current.fingerprint != entry.fingerprint:
            who = "" if workspace is None else who_changed(workspace, entry.path, seen)
            raise CommitConflict.over(entry.path, gone=current is None, who=who)


def who_changed(workspace: Workspace, path: str, seen: int) -> str:
    """The commit after a number that has added or retired a file, in words; nothing if the log does not know."""
    name = relative(path, workspace.root)
    try:
        for number, record in workspace.log.records(workspace.look().log, seen):
            if name in paths_of(record.publish) | paths_of(record.retire):
                article = "an" if record.operation[0] in "aeiou" else "a"
                return f"commit {number}, {article} {record.operation} by {record.author} at {record.at[:19]}Z"
    except (OSError, CommitStateUnknown):
        return ""  # it is only for the message
    return ""
