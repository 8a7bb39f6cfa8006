"""The choice of how a record is applied to a store."""

from __future__ import annotations

from collections.abc import Iterable

from parketto.commit.apply import MovingApplier
from parketto.commit.copying import CopyingApplier
from parketto.commit.record import Record
from parketto.commit.workspace import Workspace

Applier = MovingApplier | CopyingApplier


def applier_of(
    workspace: Workspace,
    number: int,
    record: Record,
    *,
    first: bool = False,
    staged: Iterable[str] | None = None,
) -> Applier:
    """The applier for a record.

    Args:
        workspace: The workspace that contains the record.
        number: The number of the record.
        record: The record to apply.
        first: No process has started to apply it; otherwise some steps may already be done.
        staged: The paths of all files that its owner has staged, if known.
    """
    if workspace.store.atomic_move:
        return MovingApplier(workspace, record, first=first)
    return CopyingApplier(workspace, number, record, first=first, staged=staged)
