"""A caller's own SQL, with names for frames that only this query knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parketto.engines.spark.session import is_connect
from parketto.errors import InvalidArgument, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POSITIONS_IN_ORDER = 4
# What reads rows begins so, after comments. All else is a command, which Spark carries out at once.
_READS = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*(?:\(|(?:SELECT|WITH|FROM|VALUES|TABLE|MAP|REDUCE)\b)", re.I | re.S
)


def run_query(
    session: SparkSession,
    text: str,
    parameters: Sequence[Any] | Mapping[str, Any] | None,
    tables: Mapping[str, DataFrame],
) -> DataFrame:
    """The result of an SQL query. Its tables are known to nothing else, and gone when it is read."""
    _check_tables(session, tables)
    if isinstance(parameters, str | bytes):
        raise InvalidArgument("parameters must be a sequence of values, or a mapping of names to values")
    _check_parameters(parameters, session.version)
    bound = (dict(parameters) if isinstance(parameters, Mapping) else list(parameters or ())) or None
    if is_connect(session) and tables and _READS.match(text):
        # A Connect server reads the query anew whenever its result is used: frames travel along with it.
        return session.sql(
            with_tables(text, tables), bound, **{f"table_{at}": frame for at, frame in enumerate(tables.values())}
        )
    made: list[tuple[str, SparkSession]] = []
    try:
        for name, frame in tables.items():
            frame.createTempView(name)
            # Only what was made is dropped again: a view that could not be made may be another's.
            made.append((name, frame.sparkSession))
        return session.sql(text, bound)
    finally:
        for name, owner in made:
            owner.catalog.dropTempView(name)


def with_tables(text: str, names: Iterable[str]) -> str:
    """A query in which names stand for frames that `SparkSession.sql` is given as `table_0`, `table_1`, ….

    The query itself is put in brackets: it may define names of its own, out of these.

    >>> print(with_tables("SELECT '{}' FROM users;", ["users"]))
    WITH `users` AS (TABLE {table_0}) (
    SELECT '{{}}' FROM users
    )
    """
    defined = ", ".join(f"`{name}` AS (TABLE {{table_{at}}})" for at, name in enumerate(names))
    query = text.rstrip().rstrip(";").replace("{", "{{").replace("}", "}}")
    return f"WITH {defined} (\n{query}\n)"


def is_frame(rows: Any) -> bool:
    """Whether something is a DataFrame of Spark, classic or of Connect."""
    kind = type(rows)
    return kind.__module__.startswith("pyspark.sql.") and kind.__name__ == "DataFrame"


def _check_tables(session: SparkSession, tables: Mapping[str, DataFrame]) -> None:
    for name, frame in tables.items():
        if not re.fullmatch(r"\w+", name):
            raise InvalidArgument(f"table name {name!r} must be one of letters, digits and underscores")
        if not is_frame(frame):
            raise InvalidArgument(
                f"table {name!r} must be a path or a Spark DataFrame, not {type(frame).__name__}"
            )
    if not tables:
        return
    known = {table.name.lower() for table in session.catalog.listTables() if table.isTemporary}
    if taken := sorted(name for name in tables if name.lower() in known):
        raise InvalidArgument(f"the session has temporary views of that name already: {quoted(taken)}")


def _check_parameters(parameters: Sequence[Any] | Mapping[str, Any] | None, version: str) -> None:
    """Before 4.3 Spark mixes the values up where a query has more than four of them by position."""
    positional = parameters is not None and not isinstance(parameters, Mapping)
    if positional and len(parameters or ()) > _POSITIONS_IN_ORDER and _numbers(version) < (4, 3):
        raise InvalidArgument(
            f"Spark {version} mixes up more than {_POSITIONS_IN_ORDER} parameters by position. Name them (`:name` "
            "and a mapping), or use Spark 4.3 or newer"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version)[:2])
