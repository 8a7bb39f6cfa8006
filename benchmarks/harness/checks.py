"""Looking at results, always with the same reader: are the rows right, and how fast are they read?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import duckdb


class Digest(NamedTuple):
    """What is equal for equal rows in whatever order, and else as good as never."""

    rows: int
    total: int
    xor: int


class Reader:
    """Reads results with the names and types of the input, whatever the writer made of them."""

    def __init__(self, files: Sequence[str]) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        described = self._connection.execute(f"DESCRIBE SELECT * FROM {_scan(files)}").fetchall()
        self.types: dict[str, str] = {name: kind for name, kind, *_ in described}
        self._view(files)

    def digest(self, files: Sequence[str], query: str = "SELECT * FROM data") -> Digest:
        """Of the rows that a query over these files gives."""
        self._view(files)
        listed = ", ".join(_plain(name, kind) for name, kind in self.types.items())
        [row] = self._connection.execute(
            f"SELECT count(*), coalesce(sum(h::HUGEINT), 0), coalesce(bit_xor(h), 0) "
            f"FROM (SELECT hash({listed}) AS h FROM ({query}))"
        ).fetchall()
        return Digest(*map(int, row))

    def scan_seconds(self, files: Sequence[str]) -> float:
        """How long it takes to look at every value of every column."""
        self._view(files)
        looks = ", ".join(_look(name, kind) for name, kind in self.types.items())
        start = time.perf_counter()
        self._connection.execute(f"SELECT count(*), {looks} FROM data").fetchall()
        return time.perf_counter() - start

    def _view(self, files: Sequence[str]) -> None:
        columns = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in self.types.items())
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW data AS SELECT {columns} FROM {_scan(files)}")


def _scan(files: Sequence[str]) -> str:
    listed = ", ".join("'" + path.replace("'", "''") + "'" for path in files)
    return f"read_parquet([{listed}], hive_partitioning = true)"


def _plain(name: str, kind: str) -> str:
    return f'epoch_us("{name}")' if kind.startswith("TIMESTAMP") else f'"{name}"'


def _look(name: str, kind: str) -> str:
    if kind == "VARCHAR":
        return f'sum(strlen("{name}"))'
    if kind == "BOOLEAN":
        return f'count_if("{name}")'
    return f"max({_plain(name, kind)})" if kind.startswith("TIMESTAMP") else f'sum("{name}")'
