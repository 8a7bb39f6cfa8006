"""SQL over datasets and files: DuckDB streams the result, Spark collects it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from parketto.cli.sources import file_table
from parketto.errors import InvalidArgument, ParkettoError

if TYPE_CHECKING:
    import pyarrow as pa

    from parketto.cli.command import CommandContext


@contextlib.contextmanager
def queried(context: CommandContext, query: str, paths: Mapping[str, str]) -> Iterator[pa.RecordBatchReader]:
    """The result of a query over datasets, by table name."""
    with contextlib.ExitStack() as stack, _explained(paths):
        if _engine(context.engine) == "spark":
            yield _spark(context, query, paths, stack)
        else:
            yield _duckdb(context, query, paths, stack)


def _engine(given: str | None) -> str:
    """The engine that is asked for, by option or variable, if it has SQL; else DuckDB if it is installed."""
    if given is None and (wanted := os.environ.get("PARKETTO_ENGINE")) in ("duckdb", "spark"):
        return wanted
    if given is None and importlib.util.find_spec("duckdb") is None:
        return "spark"
    return given or "duckdb"


def _duckdb(context: CommandContext, query: str, paths: Mapping[str, str], stack: contextlib.ExitStack) -> Any:
    from parketto import DuckDBParquetHandler
    from parketto.engines.duckdb.session import arrow_reader

    context.engine = "duckdb"
    handler = DuckDBParquetHandler(timezone=context.timezone or "UTC", memory_mb=context.memory_mb)
    stack.callback(handler.close)
    for name, path in paths.items():
        table = file_table(context, path)
        handler.connection.register(name, context.dataset(path).to_pyarrow() if table is None else table)
    found = handler.connection.sql(query)
    if found is None:
        raise InvalidArgument("the query has no result; expected a SELECT")
    return arrow_reader(found)


def _spark(context: CommandContext, query: str, paths: Mapping[str, str], stack: contextlib.ExitStack) -> Any:
    from parketto import SparkParquetHandler

    context.engine = "spark"
    handler = SparkParquetHandler()
    stack.callback(handler.close)
    frames: dict[str, Any] = {}
    for name, path in paths.items():
        table = file_table(context, path)
        frames[name] = context.dataset(path).to_spark() if table is None else handler.spark.createDataFrame(table)
    return handler.execute_sql(query, tables=frames).toArrow().to_reader()


@contextlib.contextmanager
def _explained(paths: Mapping[str, str]) -> Iterator[None]:
    """Errors of DuckDB and Spark in a query as one sentence."""
    try:
        yield
    except ParkettoError:
        raise
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if library not in ("duckdb", "_duckdb", "pyspark"):
            raise
        reason = str(error).partition("JVM stacktrace:")[0].strip()
        if library == "pyspark":
            reason = reason.partition("\n")[0]  # the query, or its plan, follows
        reason = reason.rstrip(".!; ")
        unknown = "does not exist" in reason or "TABLE_OR_VIEW_NOT_FOUND" in reason
        hint = ". No table was named: add for example events=data/events" if unknown and not paths else ""
        raise InvalidArgument(f"the query failed: {reason}{hint}") from error
