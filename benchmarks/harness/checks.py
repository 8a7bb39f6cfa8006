"""Looking at results, always with the same reader: are the rows right, and how fast are they read?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from typing import NamedTuple

import duckdb

_DIGEST = "count(*), coalesce(sum(h::HUGEINT), 0), coalesce(bit_xor(h), 0)"


class Digest(NamedTuple):
    """What is equal for equal rows in whatever order, and else as good as never."""

    rows: int
    total: int
    xor: int

    def with_rows_of(self, other: Digest) -> Digest:
        """The digest of the rows of both.

        >>> Digest(1, 5, 0b01).with_rows_of(Digest(2, 6, 0b11))
        Digest(rows=3, total=11, xor=2)
        """
        return Digest(self.rows + other.rows, self.total + other.total, self.xor ^ other.xor)


NO_ROWS = Digest(0, 0, 0)


class Reader:
    """Reads results with the names and types of the input, whatever the writer made of them."""

    def __init__(self, files: Sequence[str]) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        described = self._connection.execute(f"DESCRIBE SELECT * FROM {_scan(files)}").fetchall()
        self.types: dict[str, str] = {name: kind for name, kind, *_ in described}
        self._given = list(files)

    @cached_property
    def of_given(self) -> dict[str, Digest]:
        """The digest of each file of the input: what was not touched need not be read again."""
        columns = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in self.types.items())
        found = self._connection.execute(
            f"SELECT filename, {_DIGEST} FROM (SELECT filename, hash({self._values()}) AS h FROM "
            f"(SELECT {columns}, filename FROM {_scan(self._given, 'filename = true')})) GROUP BY filename"
        ).fetchall()
        return dict.fromkeys(self._given, NO_ROWS) | {path: Digest(*map(int, row)) for path, *row in found}

    def digest(self, files: Sequence[str], query: str = "SELECT * FROM data") -> Digest:
        """Of the rows that a query over these files gives."""
        if not files:
            return NO_ROWS
        self._view(files)
        [row] = self._connection.execute(
            f"SELECT {_DIGEST} FROM (SELECT hash({self._values()}) AS h FROM ({query}))"
        ).fetchall()
        return Digest(*map(int, row))

    def digest_of_result(self, changed: Sequence[str], untouched: Iterable[str]) -> Digest:
        """Of files that are new, and of those of the input that are still the same."""
        known = (self.of_given[path] for path in untouched)
        return reduce(Digest.with_rows_of, known, self.digest(changed))

    def scan_seconds(self, files: Sequence[str]) -> float:
        """How long it takes to look at every value of every column."""
        self._view(files)
        looks = ", ".join(_look(name, kind) for name, kind in self.types.items())
        start = time.perf_counter()
        self._connection.execute(f"SELECT count(*), {looks} FROM data").fetchall()
        return time.perf_counter() - start

    def _values(self) -> str:
        return ", ".join(_plain(name, kind) for name, kind in self.types.items())

    def _view(self, files: Sequence[str]) -> None:
        columns = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in self.types.items())
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW data AS SELECT {columns} FROM {_scan(files)}")


def _scan(files: Sequence[str], *options: str) -> str:
    listed = ", ".join("'" + path.replace("'", "''") + "'" for path in files)
    return f"read_parquet([{listed}], {', '.join(('hive_partitioning = true', *options))})"


def _plain(name: str, kind: str) -> str:
    return f'epoch_us("{name}")' if kind.startswith("TIMESTAMP") else f'"{name}"'


def _look(name: str, kind: str) -> str:
    if kind == "VARCHAR":
        return f'sum(strlen("{name}"))'
    if kind == "BOOLEAN":
        return f'count_if("{name}")'
    return f"max({_plain(name, kind)})" if kind.startswith("TIMESTAMP") else f'sum("{name}")'
