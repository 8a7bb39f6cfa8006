"""What a merge must do, in plain Python over lists of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]
#: A condition on a source row and a target row; that of an insert gets an empty target row.
Condition = Callable[[Row, Row], bool]


def merged(
    target: Sequence[Row],
    source: Sequence[Row],
    keys: Sequence[str],
    strategy: str,
    order_by: Sequence[str] = (),
    *,
    update_when: Condition | None = None,
    delete_when: Condition | None = None,
    insert_when: Condition | None = None,
) -> tuple[list[Row], dict[str, int]]:
    """The rows afterwards, in no particular order, and the statistics.

    Rows of the source have the columns of the target first, and then those that only conditions use.
    """

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in keys)

    chosen: dict[tuple[Any, ...], Row] = {}
    for row in source:
        before = chosen.get(key(row))
        if before is None or not order_by or _rank(row, order_by) >= _rank(before, order_by):
            chosen[key(row)] = row
    known = {key(row) for row in target}
    inserts = [
        row
        for found, row in chosen.items()
        if strategy != "update" and found not in known and (insert_when is None or insert_when(row, {}))
    ]
    rows, updated, deleted = [], set(), 0
    for row in target:
        new = chosen.get(key(row))
        if new is None:
            stays = strategy != "full_merge"
        elif delete_when is not None and delete_when(new, row):
            stays = False
        elif strategy == "insert" or (update_when is not None and not update_when(new, row)):
            stays = True
        else:
            stays = False
            if key(row) not in updated:
                updated.add(key(row))
                deleted -= 1
        deleted += not stays
        rows += [row] * stays
    written = [*(chosen[found] for found in updated), *inserts]
    names = list(target[0]) if target else None
    rows += [row if names is None else {name: row[name] for name in names} for row in written]
    return rows, {"inserted": len(inserts), "updated": len(updated), "deleted": deleted, "total": len(rows)}


def _rank(row: Row, order_by: Sequence[str]) -> tuple[tuple[bool, Any], ...]:
    return tuple((row[name] is not None, row[name] if row[name] is not None else 0) for name in order_by)
