"""Commands that change the layout of files, not their rows: compact, optimize, suggest, repartition, maintain."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal

import typer

import parketto
from parketto.cli import options, render, shapes
from parketto.cli.command import Command, CommandContext
from parketto.cli.exits import Exit, UsageProblem
from parketto.cli.output import Result
from parketto.health.text import counted, percent

SchemaRule = Annotated[
    Literal["unify", "exact"],
    typer.Option("--schema", help="Merge files that differ, in the dataset's schema, or only equal ones."),
]


def compact(
    context: CommandContext,
    path: options.DatasetPath,
    target_mb: options.TargetMb = None,
    target_rows: options.TargetRows = None,
    partition: options.Partitions = None,
    compression: options.Compression = None,
    min_files: Annotated[int, typer.Option(help="Skip partitions with fewer files.")] = 1,
    max_file_mb: Annotated[float | None, typer.Option(help="Skip files of this size or larger.")] = None,
    rewrite: Annotated[
        Literal["auto", "copy", "encode"], typer.Option(help="Copy row groups as bytes, or encode their rows.")
    ] = "auto",
    verify: Annotated[bool, typer.Option("--verify", help="Check bytes before they are copied.")] = False,
    schema: SchemaRule = "unify",
    backup: options.Backup = None,
    dry_run: options.DryRun = False,
) -> Result:
    """Merge small files, and split files with too many rows. A second run does nothing."""
    dataset = context.dataset(path)
    stats = dataset.compact(
        target_mb,
        target_rows,
        partition_filter=partition,
        compression=compression,
        dry_run=dry_run,
        min_file_count=min_files,
        max_file_size_mb=max_file_mb,
        rewrite=rewrite,
        verify=verify,
        schema=schema,
        backup=backup,
        progress=context.progress,
    )
    return Result(stats, lambda: render.maintenance("compact", dataset.path, stats))


def optimize(
    context: CommandContext,
    path: options.DatasetPath,
    columns: Annotated[
        list[str],
        typer.Option("--columns", metavar="COLUMNS", help="The columns that queries filter by: user,day"),
    ],
    curve: Annotated[
        Literal["hilbert", "zorder", "linear"], typer.Option(help="How several columns are ordered.")
    ] = "hilbert",
    target_mb: options.TargetMb = None,
    target_rows: options.TargetRows = None,
    partition: options.Partitions = None,
    compression: options.Compression = None,
    schema: SchemaRule = "unify",
    dry_run: options.DryRun = False,
) -> Result:
    """Cluster rows, so that queries skip most of them. Clustered files are left as they are."""
    wanted = options.required_names("--columns", columns)
    dataset = context.dataset(path)
    stats = dataset.optimize(
        wanted,
        curve=curve,
        target_mb_per_file=target_mb,
        target_rows_per_file=target_rows,
        partition_filter=partition,
        compression=compression,
        schema=schema,
        dry_run=dry_run,
        progress=context.progress,
    )
    return Result(stats, lambda: render.maintenance("optimize", dataset.path, stats))


def suggest(
    context: CommandContext,
    path: options.DatasetPath,
    queries: Annotated[
        list[str], typer.Argument(metavar="QUERY...", help="Conditions, or columns that ranges are read of.")
    ],
    target_mb: options.TargetMb = None,
    partition: options.Partitions = None,
    max_columns: Annotated[int, typer.Option(help="Suggest at most this many columns.")] = 4,
) -> Result:
    """Suggest columns to optimize by. Layouts are tried on a sample; nothing is written."""
    dataset = context.dataset(path)
    advice: Any = dataset.suggest(
        queries,
        target_mb_per_file=target_mb,
        partition_filter=partition,
        max_columns=max_columns,
        progress=context.progress,
    )

    def rendered() -> Any:
        if not advice["suggestions"] or advice["suggestions"][0]["reads"] >= advice["reads_now"]:
            return render.tree(f"no columns would help: the queries read {percent(advice['reads_now'])} now")
        best = advice["suggestions"][0]
        rows = [["now", percent(advice["reads_now"]), *map(percent, advice["reads_now_by_query"].values())]]
        rows += [
            [",".join(each["columns"]), percent(each["reads"]), *map(percent, each["reads_by_query"].values())]
            for each in advice["suggestions"]
        ]
        names = ["optimize by", "average", *advice["reads_now_by_query"]]
        return render.together(
            render.tree("share of the row groups that the queries read"),
            render.table(names, rows, right=names[1:]),
            render.tree(f"parketto optimize {path} --columns {','.join(best['columns'])}"),
        )

    return Result(advice, rendered)


def repartition(
    context: CommandContext,
    path: options.DatasetPath,
    by: Annotated[
        list[str] | None,
        typer.Option("--partition-by", "--by", metavar="COLUMNS", help="The new partition columns: year,month"),
    ] = None,
    no_partitions: Annotated[bool, typer.Option("--no-partitions", help="Remove all partition folders.")] = False,
    partition_columns: Annotated[
        Literal["files", "path"],
        typer.Option(help="Whether files contain the partition columns, or only their paths do."),
    ] = "files",
    target_mb: options.TargetMb = None,
    compression: options.Compression = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
) -> Result:
    """Change the partition columns, in place. All files are rewritten, so it asks first."""
    wanted = options.names(by)
    if (wanted is None) == (not no_partitions):
        raise UsageProblem("pass the new partition columns (--by day), or --no-partitions; nothing was changed")
    dataset = context.dataset(path)
    if not (dry_run or yes):
        plan = dataset.repartition(wanted, partition_columns=partition_columns, dry_run=True)
        rows, files = plan["rows_written"] or 0, plan["files_replaced"] or 0
        context.confirm(f"rewrite {counted(rows, 'row')} and replace {counted(files, 'file')}", yes=yes)
    stats = dataset.repartition(
        wanted,
        partition_columns=partition_columns,
        target_mb_per_file=target_mb,
        compression=compression,
        dry_run=dry_run,
        progress=context.progress,
    )
    return Result(stats, lambda: render.written("repartition", dataset.path, stats))


def maintain(
    context: CommandContext,
    policy: Annotated[str, typer.Argument(metavar="POLICY.yml", help="A policy file: docs/maintenance.md")],
    dry_run: options.DryRun = False,
) -> Result:
    """Do what a policy file finds due, in all of its datasets."""
    from rich.text import Text

    from parketto import maintenance

    policies = maintenance.load(policy)
    try:
        run = maintenance.run(policies, dry_run=dry_run, progress=context.progress)
    except BaseException:
        with contextlib.suppress(Exception):  # the error of the run counts
            context.opened += [each.open() for each in policies.datasets]  # after Ctrl-C, they have new commits
        raise
    reasons = {left["because"] for left in run.left}
    code = Exit.FAILED if "error" in reasons else Exit.CONFLICT if "conflict" in reasons else Exit.DONE
    return Result(dict(run), lambda: Text(str(run)), code)


COMMANDS = (
    Command("compact", compact, lambda: parketto.MaintenanceStats),
    Command("optimize", optimize, lambda: parketto.MaintenanceStats),
    Command("suggest", suggest, lambda: parketto.Advice, changes=False),
    Command("repartition", repartition, lambda: parketto.WriteStats | parketto.WritePlan),
    Command("maintain", maintain, lambda: shapes.MaintenanceDocument, engine=None),
)
