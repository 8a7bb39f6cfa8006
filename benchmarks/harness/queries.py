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


def timed(ask: Callable[[str], object], asked: Asked) -> dict[str, float]:
    """Milliseconds for a query of each kind, once: the mean over its predicates."""
    found = {}
    for kind, chosen in asked.items():
        start = time.perf_counter()
        for predicate in chosen:
            ask(condition(predicate))
        found[kind] = 1000 * (time.perf_counter() - start) / len(chosen)
    return found


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of several rounds, kind by kind.

    >>> medians([{"box": 1.0}, {"box": 9.0}, {"box": 2.0}])
    {'box': 2.0}
    """
    return {kind: statistics.median(seen[kind] for seen in rounds) for kind in rounds[0]}


def with_duckdb(files: Sequence[str], asked: Asked, rounds: int) -> dict[str, float]:
    """Each query finds and opens the files anew, as it would in a report."""
    import duckdb

    connection = duckdb.connect()
    listed = ", ".join(f"'{path}'" for path in files)

    def ask(where: str) -> object:
        query = f"SELECT count(*), sum(amount) FROM read_parquet([{listed}]) WHERE {where}"
        return connection.execute(query).fetchall()

    ask("true")
    return medians([timed(ask, asked) for _ in range(rounds)])


def with_spark(layouts: Mapping[str, Sequence[str]], asked: Asked, rounds: int) -> dict[str, dict[str, float]]:
    """All layouts in one session, in turns. The first turn warms the JVM up and does not count."""
    from parketto import Dataset

    spark = Dataset(".", engine="spark").engine.session
    frames = {name: spark.read.parquet(*files) for name, files in layouts.items()}

    def asking(frame: Any) -> Callable[[str], object]:
        return lambda where: frame.where(where).selectExpr("count(*)", "sum(amount)").collect()

    seen: dict[str, list[dict[str, float]]] = {name: [] for name in layouts}
    for number in range(rounds + 1):
        for name, frame in frames.items():
            found = timed(asking(frame), asked)
            if number:
                seen[name].append(found)
    return {name: medians(found) for name, found in seen.items()}


def main() -> None:
    """In a process of its own: Spark."""
    specification, output = sys.argv[1:]
    with open(specification) as file:
        spec = json.load(file)
    with open(output, "w") as file:
        json.dump(with_spark(spec["layouts"], spec["asked"], spec["rounds"]), file)


if __name__ == "__main__":
    main()
