"""What a merge must do, in plain Python over lists of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def merged(
    target: Sequence[Row],
    source: Sequence[Row],
    keys: Sequence[str],
    strategy: str,
    order_by: Sequence[str] = (),
) -> tuple[list[Row], dict[str, int]]:
    """The rows afterwards, in no particular order, and the statistics."""

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in keys)

    chosen: dict[tuple[Any, ...], Row] = {}
    for row in source:
        before = chosen.get(key(row))
        if before is None or not order_by or _rank(row, order_by) >= _rank(before, order_by):
            chosen[key(row)] = row
    known = {key(row) for row in target}
    inserts = [row for found, row in chosen.items() if found not in known]
    if strategy == "insert":
        return [*target, *inserts], _stats(len(inserts), 0, 0, len(target) + len(inserts))
    if strategy == "update":
        inserts = []
    hits = [row for row in target if key(row) in chosen]
    updates = [row for found, row in chosen.items() if found in known]
    missed = [] if strategy == "full_merge" else [row for row in target if key(row) not in chosen]
    rows = [*missed, *updates, *inserts]
    gone = len(target) - len(hits) - len(missed)
    return rows, _stats(len(inserts), len(updates), len(hits) - len(updates) + gone, len(rows))


def _rank(row: Row, order_by: Sequence[str]) -> tuple[tuple[bool, Any], ...]:
    return tuple((row[name] is not None, row[name] if row[name] is not None else 0) for name in order_by)


def _stats(inserted: int, updated: int, deleted: int, total: int) -> dict[str, int]:
    return {"inserted": inserted, "updated": updated, "deleted": deleted, "total": total}
