"""Commands that write and read rows: write, read, head, sql."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

import parketto
from parketto.cli import options, render
from parketto.cli.command import Command, CommandContext
from parketto.cli.exits import UsageProblem
from parketto.cli.output import Result
from parketto.cli.sources import STDIN, spooled
from parketto.health.text import counted

RowFormatOption = Annotated[
    Literal["table", "csv", "json", "parquet"] | None,
    typer.Option("--format", help="The output; json is one object per line.  [default: table, or by suffix]"),
]
OutputFile = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file or URL, not to stdout.")
]
Columns = Annotated[
    list[str] | None, typer.Option("--columns", metavar="COLUMNS", help="Only these columns: user,day")
]
RowWhere = Annotated[str | None, typer.Option("--where", metavar="CONDITION", help="Only these rows: SQL.")]
AsOf = Annotated[
    str | None, typer.Option("--as-of", metavar="N|TIME", help="As it was after a commit, or at a time.")
]


def write(
    context: CommandContext,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The dataset; it is created if needed.")],
    files: Annotated[
        list[str], typer.Argument(metavar="FILES...", help="Files, folders or glob patterns; - is stdin.")
    ],
    mode: Annotated[
        Literal["append", "overwrite", "overwrite_partitions"],
        typer.Option(help="overwrite replaces all rows, overwrite_partitions those of the same partitions."),
    ] = "append",
    input_format: options.Format = None,
    partition_by: options.PartitionBy = None,
    partition_columns: Annotated[
        Literal["files", "path"] | None,
        typer.Option(help="Whether files contain the partition columns, or only their paths do."),
    ] = None,
    replace_where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="With overwrite: replace only these rows.")
    ] = None,
    schema: Annotated[
        Literal["cast", "evolve", "strict"], typer.Option(help="How far rows may differ from the dataset.")
    ] = "cast",
    sort_by: Annotated[
        list[str] | None, typer.Option("--sort-by", metavar="COLUMNS", help="Sort the rows of each file.")
    ] = None,
    target_mb: Annotated[
        float | None,
        typer.Option("--target-mb-per-file", "--target-mb", help="The approximate maximum file size."),
    ] = None,
    target_rows: options.TargetRows = None,
    compression: options.Compression = None,
    expect: options.Expect = None,
    on_violation: options.OnViolation = "fail",
    quarantine: options.Quarantine = None,
    commit_id: options.CommitId = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
) -> Result:
    """Write the rows of files, in one commit: CSV, JSON lines, Parquet or Arrow."""
    if STDIN in files and len(files) > 1:
        raise UsageProblem("stdin (-) cannot be combined with files; nothing was changed")
    paths, given = files, input_format
    if STDIN in files:
        path, given = spooled(STDIN, input_format)
        paths = [path]
    dataset = context.dataset(target)
    arguments: dict[str, Any] = {
        "format": given,
        "partition_by": options.names(partition_by),
        "partition_columns": partition_columns,
        "replace_where": replace_where,
        "schema": schema,
        "sort_by": options.names(sort_by),
        "target_mb_per_file": target_mb,
        "target_rows_per_file": target_rows,
        "compression": compression or "snappy",
        "expect": options.conditions(expect),
        "on_violation": on_violation,
        "quarantine": quarantine,
        "commit_id": commit_id,
    }
    if mode != "append" and not (dry_run or yes):
        plan = dataset.write_from(paths, mode, dry_run=True, **arguments)
        if plan["files_replaced"] and "repeated_commit" not in plan:
            rows, replaced = plan["rows_written"] or 0, counted(plan["files_replaced"], "file")
            context.confirm(f"replace the rows of {replaced} by {counted(rows, 'row')}", yes=yes)
    stats = dataset.write_from(paths, mode, dry_run=dry_run, progress=context.progress, **arguments)
    if STDIN in files:
        stats["source_files"] = [STDIN]
    return Result(stats, lambda: render.written("write", dataset.path, stats))


def read(
    context: CommandContext,
    path: options.DatasetPath,
    columns: Columns = None,
    where: RowWhere = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="At most this many rows.")] = None,
    partition: options.Partitions = None,
    as_of: AsOf = None,
    row_format: RowFormatOption = None,
    output: OutputFile = None,
) -> None:
    """Read rows: as a table, CSV, JSON lines or Parquet."""
    _read(context, path, columns, where, limit, partition, as_of, row_format, output)


def head(
    context: CommandContext,
    path: options.DatasetPath,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many rows.")] = 10,
    columns: Columns = None,
    where: RowWhere = None,
    as_of: AsOf = None,
    row_format: RowFormatOption = None,
) -> None:
    """Show the first rows."""
    _read(context, path, columns, where, limit, None, as_of, row_format, None)


def _read(
    context: CommandContext,
    path: str,
    columns: list[str] | None,
    where: str | None,
    limit: int | None,
    partition: list[str] | None,
    as_of: str | None,
    row_format: Any,
    output: str | None,
) -> None:
    dataset = context.dataset(path)
    rows = dataset.scan(
        options.names(columns),
        where=where,
        limit=limit,
        partition_filter=partition,
        as_of=options.state(as_of),
    )
    context.write_rows(rows, row_format, output)


def sql(
    context: CommandContext,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL of DuckDB, or of Spark with --engine spark.")],
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=PATH]...", help="Datasets, or files, which are read into memory, by table name."
        ),
    ] = None,
    row_format: RowFormatOption = None,
    output: OutputFile = None,
) -> None:
    """Query datasets and files with SQL. Each is a table: "SELECT count(*) FROM events" events=data/events."""
    from parketto.cli.queries import queried

    paths = options.pairs("a table", tables, "events=data/events")
    with queried(context, query, paths) as rows:
        context.write_rows(rows, row_format, output)


COMMANDS = (
    Command("write", write, lambda: parketto.WriteStats | parketto.WritePlan),
    Command("read", read, lambda: dict[str, Any], engine="pyarrow", changes=False),
    Command("head", head, lambda: dict[str, Any], engine="pyarrow", changes=False),
    Command("sql", sql, lambda: dict[str, Any], engine="sql", changes=False),
)
