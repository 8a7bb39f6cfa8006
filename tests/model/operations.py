"""Operations of the model: their effect on rows, and their plan on files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from model.storage import Files, Rows

Table = tuple[tuple[int, ...], ...]
Plan = tuple[dict[str, Rows], set[str]]


@dataclass(frozen=True)
class Operation:
    """An operation: on a table, and as new files and the old ones that they replace.

    Attributes:
        on_rows: What it does to a table.
        plan: New files, named after the writer, and the old ones, for the files that were listed.
        concerns: Whether rows of a file that was added concurrently cause a conflict.
        commit_id: The caller's id of this piece of work.
    """

    on_rows: Callable[[Table], Table]
    plan: Callable[[str, Files], Plan]
    concerns: Callable[[Rows], bool] = lambda rows: False
    commit_id: str | None = None


def append(row: tuple[int, ...], commit_id: str | None = None) -> Operation:
    return Operation(
        lambda table: tuple(sorted((*table, row))),
        lambda me, files: ({me: frozenset({row})}, set()),
        commit_id=commit_id,
    )


def update(
    where: Callable[[tuple[int, ...]], bool], to: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> Operation:
    def changed(rows: Rows) -> Rows:
        return frozenset(to(row) if where(row) else row for row in rows)

    def plan(me: str, files: Files) -> Plan:
        old = [(name, rows) for name, rows in sorted(files) if any(map(where, rows))]
        return {f"{me}-{name}": changed(rows) for name, rows in old}, {name for name, _ in old}

    return Operation(
        lambda table: tuple(sorted(to(row) if where(row) else row for row in table)),
        plan,
        lambda rows: any(map(where, rows)),
    )


def compact() -> Operation:
    def plan(me: str, files: Files) -> Plan:
        rows = frozenset[tuple[int, ...]]().union(*(rows for _, rows in files))
        return {me: rows}, {name for name, _ in files}

    return Operation(lambda table: table, plan)
