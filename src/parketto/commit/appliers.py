"""How records are carried out on a store."""

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
    """What carries a record out.

    Args:
        workspace: Where the record is.
        number: The number of the record.
        record: What to do.
        first: Nobody has begun with it yet; otherwise steps may already be taken.
        staged: All that its owner has in the workspace, if that is known.
    """
    if workspace.store.atomic_move:
        return MovingApplier(workspace, record, first=first)
    return CopyingApplier(workspace, number, record, first=first, staged=staged)
