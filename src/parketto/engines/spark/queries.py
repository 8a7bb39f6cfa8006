"""User SQL on Spark, over DataFrames whose names only the query sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parketto.engines.spark.session import is_connect
from parketto.errors import InvalidArgument, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_POSITIONAL = 4  # Spark before 4.3 mixes up more positional parameters
# How statements that return rows begin, after comments. Spark runs any other statement, a command, immediately.
_READS = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*(?:\(|(?:SELECT|WITH|FROM|VALUES|TABLE|MAP|REDUCE)\b)", re.I | re.S
)


def run_query(
    session: SparkSession,
    text: str,
    parameters: Sequence[Any] | Mapping[str, Any] | None,
    tables: Mapping[str, DataFrame],
) -> DataFrame:
    """The result of an SQL query. No other query sees its tables, which are dropped once Spark has parsed it."""
    _check_tables(session, tables)
    if isinstance(parameters, str | bytes):
        raise InvalidArgument("parameters must be a sequence of values, or a mapping of names to values")
    _check_parameters(parameters, session.version)
    bound = (dict(parameters) if isinstance(parameters, Mapping) else list(parameters or ())) or None
    if is_connect(session) and tables and _READS.match(text):
        # A Connect server parses the query again whenever its result is used, so the frames are part of it.
        return session.sql(
            with_tables(text, tables), bound, **{f"table_{at}": frame for at, frame in enumerate(tables.values())}
        )
    made: list[tuple[str, SparkSession]] = []
    try:
        for name, frame in tables.items():
            frame.createTempView(name)
            # Drop only views created here: one that could not be created may be the user's.
            made.append((name, frame.sparkSession))
        return session.sql(text, bound)
    finally:
        for name, owner in made:
            owner.catalog.dropTempView(name)


def with_tables(text: str, names: Iterable[str]) -> str:
    """A query with common table expressions for frames that `SparkSession.sql` gets as `table_0`, `table_1`, ….

    The query itself is parenthesized: it may define its own expressions, based on these.

    >>> print(with_tables("SELECT '{}' FROM users;", ["users"]))
    WITH `users` AS (TABLE {table_0}) (
    SELECT '{{}}' FROM users
    )
    """
    defined = ", ".join(f"`{name}` AS (TABLE {{table_{at}}})" for at, name in enumerate(names))
    query = text.rstrip().rstrip(";").replace("{", "{{").replace("}", "}}")
    return f"WITH {defined} (\n{query}\n)"


def is_frame(rows: Any) -> bool:
    """Whether an object is a Spark DataFrame, classic or Connect."""
    kind = type(rows)
    return kind.__module__.startswith("pyspark.sql.") and kind.__name__ == "DataFrame"


def _check_tables(session: SparkSession, tables: Mapping[str, DataFrame]) -> None:
    for name, frame in tables.items():
        if not re.fullmatch(r"\w+", name):
            raise InvalidArgument(f"table name {name!r} must consist of letters, digits and underscores")
        if not is_frame(frame):
            raise InvalidArgument(
                f"table {name!r} must be a path or a Spark DataFrame, not {type(frame).__name__}"
            )
    if not tables:
        return
    known = {table.name.lower() for table in session.catalog.listTables() if table.isTemporary}
    if taken := sorted(name for name in tables if name.lower() in known):
        raise InvalidArgument(f"the session already has temporary views named {quoted(taken)}; use other names")


def _check_parameters(parameters: Sequence[Any] | Mapping[str, Any] | None, version: str) -> None:
    """Refuse more than four positional parameters before Spark 4.3, which mixes up their values."""
    positional = parameters is not None and not isinstance(parameters, Mapping)
    if positional and len(parameters or ()) > _MAX_POSITIONAL and _numbers(version) < (4, 3):
        raise InvalidArgument(
            f"Spark {version} mixes up more than {_MAX_POSITIONAL} positional parameters. Use named ones "
            "(`:name` and a mapping), or Spark 4.3 or newer"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version)[:2])
