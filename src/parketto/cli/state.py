"""Commands about the state of a dataset: check, history, recover."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

import parketto
from parketto.cli import options, render, shapes
from parketto.cli.command import Command, CommandContext
from parketto.cli.exits import Exit
from parketto.cli.output import Result
from parketto.cli.text import counted, moment, size


def check(
    context: CommandContext,
    path: options.DatasetPath,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read and decode every page, not only the footers.")
    ] = False,
    partition: options.Partitions = None,
) -> Result:
    """Find damaged, missing and changed files. The exit code is 1 if there are any."""
    dataset = context.dataset(path)
    with context.progress() as progress:
        report = dataset.check(deep, partition_filter=partition, progress=progress)

    def rendered() -> Any:
        files, rows = counted(report["files_checked"], "file"), counted(report["rows"], "row")
        how = "all pages" if deep else "footers"
        verdict = "healthy" if report["healthy"] else "NOT healthy"
        damaged = [f"{each['path']}{_part(each)}: {each['reason']}" for each in report["damaged"]]
        changed = [f"{each['path']}: {each['reason']}" for each in report["changed"]]
        others = [
            f"{counted(len(each['paths']), 'file')}: {each['difference']}" for each in report["other_schemas"]
        ]
        found = {
            "damaged": damaged,
            "missing": report["missing"],
            "changed": changed,
            "added by other programs": report["unknown"],
            "other schemas": others,
        }
        return render.tree(
            f"{verdict}: checked the {how} of {files}, {rows}, {size(report['bytes'])}",
            [*((name, render.some(lines)) for name, lines in found.items() if lines), *report["notes"]],
        )

    return Result(report, rendered, Exit.DONE if report["healthy"] else Exit.FAILED)


def _part(damage: Any) -> str:
    group = "" if damage["row_group"] is None else f", row group {damage['row_group']}"
    column = "" if damage["column"] is None else f", column {damage['column']}"
    return group + column


def history(
    context: CommandContext,
    path: options.DatasetPath,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most this many commits.")] = None,
) -> Result:
    """Show what changed the dataset, newest first."""
    commits = context.dataset(path).history(limit)

    def rendered() -> Any:
        if not commits:
            return render.tree("the log has no commits")
        rows = [
            (
                each["number"],
                moment(each["at"]),
                each["operation"],
                each["engine"],
                each["user"],
                f"+{each['files_published']:,} -{each['files_retired']:,}",
                each["commit_id"] or "",
            )
            for each in commits
        ]
        return render.table(["#", "at (UTC)", "operation", "engine", "user", "files", "id"], rows, right=["#"])

    return Result(commits, rendered)


def recover(context: CommandContext, path: options.DatasetPath) -> Result:
    """Finish or undo an interrupted operation. Every other operation does this first."""
    found = context.dataset(path).recover()
    document = asdict(found)
    return Result(document, lambda: render.tree(str(found)))


LOOKING = (Command("check", check, lambda: parketto.CheckReport, changes=False),)
COMMANDS = (
    Command("history", history, lambda: list[parketto.Commit], engine="pyarrow", changes=False),
    Command("recover", recover, lambda: shapes.RecoveryDocument, engine="pyarrow"),
)
