"""Recovery: finish or undo a commit that was interrupted, and clear away what dead processes staged."""

from __future__ import annotations

import dataclasses
import logging
import posixpath
from dataclasses import dataclass
from typing import Literal

from parketto.commit.apply import Applier
from parketto.commit.workspace import Workspace
from parketto.errors import CommitFailed
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.snapshot import refuse_file, select_data_files
from parketto.storage.store import FileEntry

logger = logging.getLogger(__name__)

_LISTING_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery found and did. It is true if there was anything to do."""

    action: Literal["none", "completed", "rolled back"] = "none"
    operation: str | None = None
    files_published: int = 0
    files_retired: int = 0
    staging_removed: int = 0

    def __bool__(self) -> bool:
        return self.action != "none" or self.staging_removed > 0

    def __str__(self) -> str:
        if not self:
            return "nothing to recover"
        said = []
        if self.action != "none":
            said.append(
                f"{self.action} an interrupted {self.operation} "
                f"({self.files_published} new files, {self.files_retired} replaced)"
            )
        if self.staging_removed:
            said.append(f"removed the staged files of {self.staging_removed} interrupted operation(s)")
        return "; ".join(said)


def recover(workspace: Workspace) -> Recovery:
    """Bring the dataset to exactly the state before or after an interrupted operation.

    Safe to run at any time and to be killed at any point: the next call goes on. A process that is alive and
    committing holds the lock, so it is waited for and never disturbed. What was interrupted on a dataset that
    this one is a part of is recovered first.
    """
    for outer in workspace.above():
        if outer.has_journal():
            _recover_one(outer)
    return _recover_one(workspace)


def list_settled(
    workspace: Workspace, partition_filter: PartitionFilter = None, *, exclusive: bool = False
) -> list[FileEntry]:
    """The data files at a moment when nobody is in the middle of a commit: here, above or below.

    Without `exclusive` nothing is made or locked as long as nobody is at work on the dataset.
    """
    store, root = workspace.store, workspace.root
    directory_matcher(partition_filter)  # a filter that makes no sense is refused before any read
    refuse_file(store, root)
    for attempt in range(_LISTING_ATTEMPTS):
        recover(workspace)
        beside = posixpath.dirname(workspace.path)
        mark = store.change_mark(beside)
        if exclusive or workspace.exists():
            found = _list_locked(workspace)
        else:
            found = list(store.list_files(root))
            begun = workspace.exists() or any(outer.exists() for outer in workspace.above())
            if (begun or store.change_mark(beside) != mark) and attempt < _LISTING_ATTEMPTS - 1:
                continue  # somebody was at work meanwhile: what was listed may be half of that
        inner = workspace.below(found)
        if not inner:
            return select_data_files(store, root, found, partition_filter)
        for each in inner:  # never while holding a lock: its owner may be waiting for ours
            _recover_one(each)
    raise CommitFailed(f"others keep committing below {root!r}; nothing was changed, run the operation again")


def _list_locked(workspace: Workspace) -> list[FileEntry]:
    try:
        with workspace.locked():
            recover_locked(workspace)
            return list(workspace.store.list_files(workspace.root))
    except CommitFailed:
        # Whoever may only read can neither lock nor recover, but can see that there is nothing to wait for.
        if workspace.has_journal():
            raise
        return list(workspace.store.list_files(workspace.root))


def _recover_one(workspace: Workspace) -> Recovery:
    if not workspace.exists():
        return Recovery()
    try:
        with workspace.locked():
            return recover_locked(workspace)
    except CommitFailed:
        if workspace.has_journal():
            raise
        return Recovery()  # staged files of others are nothing to a reader


def recover_locked(workspace: Workspace) -> Recovery:
    """The same, for a caller that holds the workspace's lock."""
    journal = workspace.read_journal()
    if journal is not None:
        if journal.state == "commit" and not Applier(workspace, journal).can_complete():
            # Somebody changed the files meanwhile, so completing it would undo their work: it is undone instead.
            journal = dataclasses.replace(journal, state="rollback")
            workspace.write_journal(journal)
        applier = Applier(workspace, journal)
        if journal.state == "commit":
            applier.roll_forward()
        else:
            applier.roll_back()
        workspace.clear_journal()
    swept = workspace.sweep()
    if journal is None:
        result = Recovery(staging_removed=swept)
    else:
        result = Recovery(
            action="completed" if journal.state == "commit" else "rolled back",
            operation=journal.operation,
            files_published=len(journal.publish),
            files_retired=len(journal.retire),
            # The interrupted operation's own folder is part of recovering it, not a second finding.
            staging_removed=max(0, swept - 1),
        )
    if result:
        logger.warning("%s: %s", workspace.root, result)
    return result
