"""Real queries on results, the same on every layout: with DuckDB here, with Spark in a process of its own."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Asked = Mapping[str, Sequence[Mapping[str, Sequence[Any]]]]
"""Predicates by their kind."""


def condition(predicate: Mapping[str, Sequence[Any]]) -> str:
    """As SQL.

    >>> condition({"a": (1, 2), "b": ("x", "y")})
    "a BETWEEN 1 AND 2 AND b BETWEEN 'x' AND 'y'"
    """
    return " AND ".join(f"{name} BETWEEN {low!r} AND {high!r}" for name, (low, high) in predicate.items())


def timed(ask: Callable[[str], object], asked: Asked, rounds: int) -> dict[str, float]:
    """Milliseconds for a query of each kind: the mean over its predicates, the median over rounds."""
    found = {}
    for kind, chosen in asked.items():
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            for predicate in chosen:
                ask(condition(predicate))
            seconds.append(time.perf_counter() - start)
        found[kind] = 1000 * statistics.median(seconds) / len(chosen)
    return found


def with_duckdb(files: Sequence[str], asked: Asked, rounds: int) -> dict[str, float]:
    """Each query finds and opens the files anew, as it would in a report."""
    import duckdb

    connection = duckdb.connect()
    listed = ", ".join(f"'{path}'" for path in files)

    def ask(where: str) -> object:
        query = f"SELECT count(*), sum(amount) FROM read_parquet([{listed}]) WHERE {where}"
        return connection.execute(query).fetchall()

    ask("true")
    return timed(ask, asked, rounds)


def with_spark(layouts: Mapping[str, Sequence[str]], asked: Asked, rounds: int) -> dict[str, dict[str, float]]:
    """All layouts in one warm session."""
    from parketto import Dataset

    spark = Dataset(".", engine="spark").engine.session
    found = {}
    for name, files in layouts.items():
        frame = spark.read.parquet(*files)

        def ask(where: str, frame: Any = frame) -> object:
            return frame.where(where).selectExpr("count(*)", "sum(amount)").collect()

        for chosen in asked.values():  # warm
            ask(condition(chosen[0]))
        found[name] = timed(ask, asked, rounds)
    return found


def main() -> None:
    """In a process of its own: Spark."""
    specification, output = sys.argv[1:]
    with open(specification) as file:
        spec = json.load(file)
    with open(output, "w") as file:
        json.dump(with_spark(spec["layouts"], spec["asked"], spec["rounds"]), file)


if __name__ == "__main__":
    main()
