"""Recovery: finish or undo a commit that was interrupted, and clear away what dead processes staged."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from parketto.commit.apply import Applier
from parketto.commit.workspace import Workspace

logger = logging.getLogger(__name__)


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
    committing holds the lock, so it is waited for and never disturbed.
    """
    if not workspace.exists():
        return Recovery()
    with workspace.locked():
        return recover_locked(workspace)


def recover_locked(workspace: Workspace) -> Recovery:
    """The same, for a caller that holds the workspace's lock."""
    journal = workspace.read_journal()
    if journal is not None:
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
