"""Commands about the past: history, undo, restore, diff, vacuum, recover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

import parketto
from parketto.cli import options, render, shapes
from parketto.cli.command import Command, CommandContext
from parketto.cli.exits import UsageProblem
from parketto.cli.output import Result, line_width
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
        columns = {
            "#": [str(each["number"]) for each in commits],
            "at (UTC)": [moment(each["at"]) for each in commits],
            "operation": [each["operation"] for each in commits],
            "engine": [each["engine"] for each in commits],
            "user": [each["user"] for each in commits],
            "files": [f"+{each['files_published']:,} -{each['files_retired']:,}" for each in commits],
            "undo": [_undo_state(each) for each in commits],
            "id": [each["commit_id"] or "" for each in commits],
        }
        shown = {name: texts for name, texts in columns.items() if name != "id" or any(texts)}
        whole, spare = ["#", "at (UTC)"], ["user", "engine"]
        return render.lines_table(shown, line_width(), right=["#"], whole=whole, spare=spare)

    return Result(commits, rendered)


def _undo_state(commit: Mapping[str, Any]) -> str:
    if commit["undone_by"] is not None:
        return f"undone by {commit['undone_by']}"
    return "possible" if commit["can_undo"] else ""


def recover(context: CommandContext, path: options.DatasetPath, dry_run: options.DryRun = False) -> Result:
    """Finish or undo an interrupted operation. Every other operation does this first."""
    found = context.known_dataset(path).recover(dry_run=dry_run)
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
    if not (dry_run or yes):
        context.confirm(_backup_text(dataset.restore(backup, dry_run=True)), yes=yes)
    stats = dataset.restore(backup, dry_run=dry_run)
    plan, rows = _backup_text(stats), counted(stats["rows_restored"], "row")
    text = f"restore would {plan}" if dry_run else f"restored: {_moved_files(stats)}, {rows} back"
    return Result(stats, lambda: render.tree(text, _file_lists(stats)))


def _backup_text(stats: Mapping[str, Any]) -> str:
    """What the restore of a backup would do."""
    files = f"{counted(stats['files_restored'], 'file')} with {counted(stats['rows_restored'], 'row')}"
    return f"bring back {files}, and remove {counted(stats['files_removed'], 'file')}"


def _undone(context: CommandContext, verb: str, undo: Any, *, dry_run: bool, yes: bool) -> Result:
    if not (dry_run or yes):
        plan = undo(True)
        if plan["undone"]:
            context.confirm(_undo_text(plan), yes=yes)
    stats = undo(dry_run)

    def rendered() -> Any:
        if not stats["undone"]:
            return render.tree("nothing to undo: the dataset is in that state")
        same = "rows stay the same: these commits only moved them" if stats["only_moved_rows"] else None
        if dry_run:
            text = f"{'' if verb == 'undo' else f'{verb} '}would {_undo_text(stats)}"
        else:
            start = "" if verb == "undo" else "restored: "
            text = ", ".join([f"{start}{_commits(stats)} undone", *filter(None, [_moved_files(stats)])])
        return render.tree(text, [*_file_lists(stats), same])

    return Result(stats, rendered)


def _file_lists(stats: Mapping[str, Any]) -> list[Any]:
    """The files that a command brings back and removes."""
    lists = (("files that come back", "restored_files"), ("files that are removed", "removed_files"))
    return [(title, render.some(stats[name])) for title, name in lists if stats[name]]


def _moved_files(stats: Mapping[str, Any]) -> str:
    """How many files a command brought back and removed."""
    back, removed = stats["files_restored"], stats["files_removed"]
    parts = [f"{counted(back, 'file')} back"] if back else []
    if removed:
        parts.append(f"{removed:,} removed" if back else f"{counted(removed, 'file')} removed")
    return ", ".join(parts)


def _commits(stats: Mapping[str, Any]) -> str:
    """The commits that are undone.

    >>> _commits({"undone": [3]}), _commits({"undone": [3, 4, 5]})
    ('commit 3', 'commits 3, 4 and 5')
    """
    *others, last = map(str, stats["undone"])
    return f"commits {', '.join(others)} and {last}" if others else f"commit {last}"


def _undo_text(stats: Mapping[str, Any]) -> str:
    """What an undo would do."""
    parts = [f"undo {_commits(stats)}"]
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
        bool | None,
        typer.Option(
            "--dry-run/--no-dry-run", help="Show what would be removed, or remove it.  [default: --dry-run]"
        ),
    ] = None,
    yes: options.Yes = False,
) -> Result:
    """Remove replaced files that are kept for undo. A dry run, unless --no-dry-run or --yes is given."""
    age = options.duration("--older-than", older_than)
    dataset = context.known_dataset(path)
    if dry_run is None:
        dry_run = not yes
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
