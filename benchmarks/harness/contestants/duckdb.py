"""DuckDB by hand: one COPY of what shall come out into a new folder, and a swap."""

from __future__ import annotations

from functools import partial

import duckdb

from harness.contestants.swapping import new_folder
from harness.request import Request


def prepare(_request: Request) -> duckdb.DuckDBPyConnection:
    """A connection that need not keep rows in their order."""
    connection = duckdb.connect()
    connection.execute("SET preserve_insertion_order = false; SET TimeZone = 'UTC'")
    return connection


def copy(request: Request, connection: duckdb.DuckDBPyConnection, order: bool = False) -> None:
    """Everything, once."""
    partitions = request.columns if request.operation == "repartition" else request.partition_columns
    query = request.query(f"read_parquet('{request.root}/**/*.parquet', hive_partitioning = true)")
    settings = ["FORMAT parquet"]
    if order:
        query += f" ORDER BY {', '.join(request.columns)}"
    if request.target_rows:
        settings += [f"ROW_GROUP_SIZE {request.target_rows}", "ROW_GROUPS_PER_FILE 1"]
    elif not partitions:
        settings += [f"FILE_SIZE_BYTES '{request.target_mb}MiB'"]
    if partitions:
        settings += [f"PARTITION_BY ({', '.join(partitions)})"]
    with new_folder(request.root) as out:
        connection.execute(f"COPY ({query}) TO '{out}' ({', '.join(settings)}, OVERWRITE_OR_IGNORE)")


OPERATIONS = {
    "compact": copy,
    "cluster": partial(copy, order=True),
    "upsert": copy,
    "delete": copy,
    "update": copy,
    "repartition": copy,
}
