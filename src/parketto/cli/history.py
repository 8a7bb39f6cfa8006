"""Commands about the past: history, undo, restore, diff, vacuum, recover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

import parketto
from parketto.cli import options, render, shapes
from parketto.cli.command import Command, CommandContext
from parketto.cli.exits import UsageProblem
from parketto.cli.output import Result
from parketto.cli.text import moment
from parketto.health.text import counted, size_text


def history(
    context: CommandContext,
    path: options.DatasetPath,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most this many commits.")] = None,
) -> Result:
    """Show what changed the dataset, newest first."""
    commits = context.known_dataset(path).history(limit)

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
                _undo_state(each),
                each["commit_id"] or "",
            )
            for each in commits
        ]
        names = ["#", "at (UTC)", "operation", "engine", "user", "files", "undo", "id"]
        return render.table(names, rows, right=["#"])

    return Result(commits, rendered)


def _undo_state(commit: Mapping[str, Any]) -> str:
    if commit["undone_by"] is not None:
        return f"undone by {commit['undone_by']}"
    return "possible" if commit["can_undo"] else ""


def recover(context: CommandContext, path: options.DatasetPath) -> Result:
    """Finish or undo an interrupted operation. Every other operation does this first."""
    found = context.known_dataset(path).recover()
    return Result(dict(found), lambda: render.tree(str(found)))


def undo(
    context: CommandContext,
    path: options.DatasetPath,
    number: Annotated[
        int | None, typer.Argument(metavar="[N]", help="A commit of the history; by default the last one.")
    ] = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
) -> Result:
    """Undo a commit, while the files that it replaced are kept. An undo can be undone, too."""
    dataset = context.known_dataset(path)
    return _undone(context, "undo", lambda dry: dataset.undo(number, dry_run=dry), dry_run=dry_run, yes=yes)


def restore(
    context: CommandContext,
    path: options.DatasetPath,
    backup: Annotated[
        str | None, typer.Argument(metavar="[BACKUP]", help="The backup of an operation (--backup).")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="N|TIME", help="A commit, or a time such as 2026-11-18T12:00.")
    ] = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
) -> Result:
    """Bring back an earlier state, or the files of a backup, in a new commit."""
    if (backup is None) == (to is None):
        raise UsageProblem("pass the path of a backup, or --to with a commit or a time; nothing was changed")
    dataset = context.known_dataset(path)
    state = options.state(to)
    if state is not None:
        return _undone(
            context, "restore", lambda dry: dataset.restore(to=state, dry_run=dry), dry_run=dry_run, yes=yes
        )
    assert backup is not None, "one of them is given"
    if dry_run:
        raise UsageProblem("--dry-run needs --to: a backup is restored as a whole")
    context.confirm(f"replace files of {dataset.path} by those of {backup}", yes=yes)
    stats = dataset.restore(backup)
    files = f"{counted(stats['files_restored'], 'file')} with {counted(stats['rows_restored'], 'row')}"
    return Result(stats, lambda: render.tree(f"restored {files}, and removed {stats['files_removed']:,}"))


def _undone(context: CommandContext, verb: str, undo: Any, *, dry_run: bool, yes: bool) -> Result:
    if not (dry_run or yes):
        plan = undo(True)
        if plan["undone"]:
            context.confirm(_undo_text(plan), yes=yes)
    stats = undo(dry_run)

    def rendered() -> Any:
        if not stats["undone"]:
            return render.tree("nothing to undo: the dataset is in that state")
        return render.tree(
            f"{verb}{' would' if dry_run else ':'} {_undo_text(stats)}",
            [
                ("files that come back", render.some(stats["restored_files"]))
                if stats["restored_files"]
                else None,
                ("files that are removed", render.some(stats["removed_files"]))
                if stats["removed_files"]
                else None,
                "rows stay the same: these commits only moved them" if stats["only_moved_rows"] else None,
            ],
        )

    return Result(stats, rendered)


def _undo_text(stats: Mapping[str, Any]) -> str:
    commits = ", ".join(str(number) for number in stats["undone"])
    noun = "commit" if len(stats["undone"]) == 1 else "commits"
    parts = [f"undo {noun} {commits}"]
    for verb, name in (("bring back", "restored"), ("remove", "removed")):
        if stats[f"files_{name}"]:
            files, size = counted(stats[f"files_{name}"], "file"), size_text(stats[f"bytes_{name}"])
            parts.append(f"{verb} {files} ({size})")
    return ", ".join(parts)


def vacuum(
    context: CommandContext,
    path: options.DatasetPath,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Replaced before: 7d, 12h.  [default: the retention]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Show what would be removed, or remove it.")
    ] = True,
    yes: options.Yes = False,
) -> Result:
    """Remove replaced files that are kept for undo. A dry run, unless --no-dry-run or --yes is given."""
    age = options.duration("--older-than", older_than)
    dataset = context.known_dataset(path)
    dry_run = dry_run and not yes
    if not (dry_run or yes):
        plan = dataset.vacuum(age)
        if plan["files_removed"]:
            files = f"{counted(plan['files_removed'], 'file')} ({size_text(plan['bytes_removed'])})"
            commits = counted(len(plan["commits"]), "commit")
            context.confirm(f"remove {files}; {commits} could not be undone any more", yes=yes)
    stats = dataset.vacuum(age, dry_run=dry_run)

    def rendered() -> Any:
        removed = f"{counted(stats['files_removed'], 'file')}, {size_text(stats['bytes_removed'])}"
        kept = f"{counted(stats['files_kept'], 'file')} still kept, {size_text(stats['bytes_kept'])}"
        lost = stats["commits"] and f"commits that cannot be undone then: {', '.join(map(str, stats['commits']))}"
        return render.tree(f"vacuum{' would remove' if dry_run else ' removed'} {removed}", [lost, kept])

    return Result(stats, rendered)


def diff(
    context: CommandContext,
    path: options.DatasetPath,
    start: Annotated[str, typer.Argument(metavar="FROM", help="A commit, or a time.")],
    end: Annotated[str | None, typer.Argument(metavar="[TO]", help="By default the current state.")] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--keys", metavar="COLUMNS", help="The key columns: find changed rows.")
    ] = None,
    rows: Annotated[
        Literal["added", "removed", "changed"] | None,
        typer.Option("--rows", help="Show these rows instead of the counts."),
    ] = None,
    row_format: Annotated[
        Literal["table", "csv", "json", "parquet"] | None, typer.Option("--format", help="The format of --rows.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write --rows to a file or URL.")
    ] = None,
) -> Result | None:
    """Compare two states of a dataset: rows that were added, removed and changed."""
    if rows is None and (row_format or output):
        raise UsageProblem("--format and -o need --rows added, removed or changed")
    if rows == "changed" and not keys:
        raise UsageProblem("--rows changed needs --keys: the columns that identify a row")
    dataset = context.known_dataset(path)
    first = options.state(start)
    assert first is not None, "it is a required argument"
    found = dataset.diff(first, options.state(end), key_columns=options.names(keys))
    if rows is not None:
        context.write_rows(getattr(found, rows), row_format, output)
        return None

    def rendered() -> Any:
        changed = f", {found['rows_changed']:,} changed" if keys else ""
        return render.tree(
            f"commit {found['start']} to {found['end']}: {counted(found['rows_added'], 'row')} added, "
            f"{found['rows_removed']:,} removed{changed}",
            [f"compared {counted(found['files_compared'], 'file')}, {size_text(found['bytes_compared'])}"],
        )

    return Result(dict(found), rendered)


COMMANDS = (
    Command("history", history, lambda: list[parketto.Commit], engine="pyarrow", changes=False),
    Command("undo", undo, lambda: parketto.UndoStats, engine="pyarrow"),
    Command("restore", restore, lambda: parketto.RestoreStats | parketto.UndoStats, engine="pyarrow"),
    Command("diff", diff, lambda: shapes.DiffDocument, engine="pyarrow", changes=False),
    Command("vacuum", vacuum, lambda: parketto.VacuumStats, engine="pyarrow"),
    Command("recover", recover, lambda: shapes.RecoveryDocument, engine="pyarrow"),
)
