"""What is asked of a contestant, as plain data that can travel to its own process.

Nothing is imported here: a contestant's process has what it needs itself, and nothing of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

TARGET_MB = 128

Condition = tuple[str, str, int]


@dataclass(frozen=True)
class Request:
    """One thing to do with one dataset.

    Attributes:
        operation: compact, cluster, append, upsert, delete, update, repartition, plan or import.
        root: The dataset, to be changed in place.
        parts: About how many files the whole dataset makes at the target size, for those who must be told.
        partition_columns: The folders that the dataset has, to be kept.
        columns: What to cluster or to repartition by.
        condition: The rows to delete or to update.
        assign: The new value of a column, as SQL, for an update: (column, factor) multiplies it.
        source: A Parquet file with the rows to append, or to merge by `id`.
        target_rows: A limit of rows for each file, in the place of the target size.
        options: Whatever else a contestant understands.
    """

    operation: str
    root: str
    rows: int = 0
    parts: int = 1
    partition_columns: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    condition: tuple[Condition, ...] = ()
    assign: tuple[str, float] | None = None
    source: str | None = None
    target_mb: int = TARGET_MB
    target_rows: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def where(self) -> str:
        """The condition as SQL."""
        return " AND ".join(f"{column} {operator} {value}" for column, operator, value in self.condition)

    def query(self, rows: str = "data") -> str:
        """What must come out, as SQL."""
        if self.operation == "delete":
            return f"SELECT * FROM {rows} WHERE NOT ({self.where()})"
        if self.operation == "update":
            assert self.assign is not None
            column, factor = self.assign
            new = f"CASE WHEN {self.where()} THEN {column} * {factor} ELSE {column} END"
            return f"SELECT * REPLACE ({new} AS {column}) FROM {rows}"
        if self.operation == "upsert":
            new = f"read_parquet('{self.source}')"
            kept = f"SELECT * FROM {rows} AS t WHERE NOT EXISTS (SELECT 1 FROM {new} AS s WHERE s.id = t.id)"
            return f"{kept} UNION ALL BY NAME SELECT * FROM {new}"
        if self.operation == "append":
            return f"SELECT * FROM {rows} UNION ALL BY NAME SELECT * FROM read_parquet('{self.source}')"
        return f"SELECT * FROM {rows}"

    def on(self, root: str) -> Request:
        """The same request for another dataset."""
        return replace(self, root=root)

    def on_partition(self) -> Request:
        """The same request for the one partition that its condition names, as a dataset of its own.

        >>> condition = (("day", "=", 5), ("id", "=", 7))
        >>> request = Request("delete", "/d", partition_columns=("day",), condition=condition)
        >>> alone = request.on_partition()
        >>> alone.root, alone.where()
        ('/d/day=5', 'id = 7')
        """
        folders = [f"{name}={value}" for name, _, value in self.condition if name in self.partition_columns]
        rest = tuple(part for part in self.condition if part[0] not in self.partition_columns)
        return replace(self, root="/".join((self.root, *folders)), condition=rest, partition_columns=())

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Request:
        """The request that `plain` was made of."""
        given = dict(plain)
        for name in ("partition_columns", "columns"):
            given[name] = tuple(given[name])
        given["condition"] = tuple((column, operator, value) for column, operator, value in given["condition"])
        given["assign"] = tuple(given["assign"]) if given["assign"] else None
        return cls(**given)
