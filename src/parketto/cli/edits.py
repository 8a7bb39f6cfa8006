"""Commands that change rows: delete, update, deduplicate, merge, apply-changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer

import parketto
from parketto.cli import options, render
from parketto.cli.command import Command, CommandContext
from parketto.cli.exits import UsageProblem
from parketto.cli.output import Result
from parketto.cli.sources import source_rows
from parketto.health.text import counted, size_text

Where = Annotated[str | None, typer.Option("--where", metavar="CONDITION", help='SQL, such as "price > 100".')]
Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A file, a folder or a dataset; - is stdin.")]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="The dataset that is changed.")]


def delete(
    context: CommandContext,
    path: options.DatasetPath,
    where: Where = None,
    keys_from: Annotated[
        str | None, typer.Option("--keys-from", metavar="FILE", help="Delete the rows with these keys instead.")
    ] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--keys", metavar="COLUMNS", help="The key columns of --keys-from.")
    ] = None,
    input_format: options.Format = None,
    partition: options.Partitions = None,
    compression: options.Compression = None,
    no_pack: options.NoPack = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Leave nothing of these rows in history and backups: no undo.")
    ] = False,
    backup: options.Backup = None,
    commit_id: options.CommitId = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
) -> Result:
    """Delete the rows that match a condition, or have a key. Only files with such rows are rewritten."""
    if (where is None) == (keys_from is None):
        raise UsageProblem('pass a condition (--where "id = 7"), or --keys-from FILE --keys COLUMNS')
    dataset = context.dataset(path)
    table = None if keys_from is None else source_rows(dataset, keys_from, input_format)
    return _edited(
        context,
        "delete",
        lambda dry, progress: dataset.delete(
            where,
            keys=table,
            key_columns=None if table is None else options.required_names("--keys", keys),
            partition_filter=partition,
            compression=compression,
            pack=not no_pack,
            purge=purge,
            backup=backup,
            commit_id=commit_id,
            dry_run=dry,
            progress=progress,
        ),
        dry_run=dry_run,
        yes=yes,
    )


def update(
    context: CommandContext,
    path: options.DatasetPath,
    where: Annotated[str, typer.Option("--where", metavar="CONDITION", help='SQL, such as "price > 100".')],
    assignments: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="COLUMN=SQL", help='A new value: "price=price * 2", "note=\'x\'". Repeatable.'
        ),
    ],
    partition: options.Partitions = None,
    compression: options.Compression = None,
    no_pack: options.NoPack = False,
    backup: options.Backup = None,
    commit_id: options.CommitId = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
) -> Result:
    """Change the rows that match a condition. All new values are computed from the old row."""
    values = {name: parketto.sql(text) for name, text in options.pairs("--set", assignments, "price=0").items()}
    dataset = context.dataset(path)
    return _edited(
        context,
        "update",
        lambda dry, progress: dataset.update(
            where,
            values,
            partition_filter=partition,
            compression=compression,
            pack=not no_pack,
            backup=backup,
            commit_id=commit_id,
            dry_run=dry,
            progress=progress,
        ),
        dry_run=dry_run,
        yes=yes,
    )


def deduplicate(
    context: CommandContext,
    path: options.DatasetPath,
    keys: Annotated[
        list[str] | None,
        typer.Option("--keys", metavar="COLUMNS", help="The key columns; by default all columns."),
    ] = None,
    order_by: Annotated[
        list[str] | None,
        typer.Option("--order-by", metavar="COLUMNS", help="Keep the row with the highest values."),
    ] = None,
    partition: options.Partitions = None,
    compression: options.Compression = None,
    no_pack: options.NoPack = False,
    backup: options.Backup = None,
    commit_id: options.CommitId = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
) -> Result:
    """Keep one row of each key, and delete the others."""
    dataset = context.dataset(path)
    return _edited(
        context,
        "delete",
        lambda dry, progress: dataset.deduplicate(
            options.names(keys),
            options.names(order_by),
            partition_filter=partition,
            compression=compression,
            pack=not no_pack,
            backup=backup,
            commit_id=commit_id,
            dry_run=dry,
            progress=progress,
        ),
        dry_run=dry_run,
        yes=yes,
    )


def _edited(
    context: CommandContext, verb: str, edit: Callable[[bool, Any], Any], *, dry_run: bool, yes: bool
) -> Result:
    """Run an edit; ask before rows are lost."""
    if not (dry_run or yes):
        plan = edit(True, None)
        changes = _file_changes(plan)
        if changes and "repeated_commit" not in plan:
            rows = counted(plan["rows_matched"], "row")
            rows += "" if plan["rows_before"] is None else f" of {plan['rows_before']:,}"
            context.confirm(f"{verb} {rows}, and {changes}", yes=yes)
    stats = edit(dry_run, context.progress)
    return Result(stats, lambda: render.edit(verb, stats))


def _file_changes(plan: Mapping[str, Any]) -> str:
    rewritten, removed = plan["files_rewritten"], plan["files_removed"]
    parts = [f"rewrite {counted(rewritten, 'file')} ({size_text(plan['rewritten_bytes'])})"] if rewritten else []
    parts += [f"remove {counted(removed, 'file')}"] if removed else []
    copies = sum(each["location"] != "dataset" for each in plan.get("purged_files", ()))
    parts += [f"purge {counted(copies, 'file')} of history and backups"] if copies else []
    return " and ".join(parts)


def merge(
    context: CommandContext,
    source: Source,
    target: Target,
    keys: options.Keys,
    strategy: Annotated[
        Literal["upsert", "insert", "update", "full_merge", "deduplicate"],
        typer.Option(help="full_merge also deletes the rows that the source lacks."),
    ] = "upsert",
    input_format: options.Format = None,
    order_by: Annotated[
        list[str] | None,
        typer.Option("--order-by", metavar="COLUMNS", help="Of deduplicate: the highest of equal keys wins."),
    ] = None,
    update_columns: Annotated[
        list[str] | None, typer.Option("--update-columns", metavar="COLUMNS", help="Update only these.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="The source may lack columns.")] = False,
    update_when: Annotated[
        str | None, typer.Option(metavar="CONDITION", help='Update only then: "source.at > target.at".')
    ] = None,
    delete_when: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Delete matched rows: \"source.op = 'D'\".")
    ] = None,
    insert_when: Annotated[str | None, typer.Option(metavar="CONDITION", help="Insert only then.")] = None,
    within: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Of full_merge: only these rows take part.")
    ] = None,
    null_keys: Annotated[
        Literal["refuse", "match"], typer.Option(help="Whether NULL keys are an error, or equal each other.")
    ] = "refuse",
    schema: Annotated[
        Literal["strict", "cast", "evolve"], typer.Option(help="How far the source may differ in its types.")
    ] = "strict",
    partition_by: options.PartitionBy = None,
    compression: options.Compression = None,
    no_pack: options.NoPack = False,
    expect: options.Expect = None,
    on_violation: options.OnViolation = "fail",
    quarantine: options.Quarantine = None,
    backup: options.Backup = None,
    commit_id: options.CommitId = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
) -> Result:
    """Merge rows into a dataset by key. It asks if rows would be deleted."""
    dataset = context.dataset(target)
    rows = source_rows(dataset, source, input_format, evolve=schema == "evolve")

    def run(dry: bool, progress: Any) -> Any:
        return dataset.merge(
            rows,
            options.required_names("--keys", keys),
            strategy=strategy,
            dedup_order_by=options.names(order_by),
            compression=compression or "snappy",
            pack=not no_pack,
            partition_by=options.names(partition_by),
            update_columns=options.names(update_columns),
            partial=partial,
            update_when=update_when,
            delete_when=delete_when,
            insert_when=insert_when,
            within=within,
            null_keys=null_keys,
            schema=schema,
            expect=options.conditions(expect),
            on_violation=on_violation,
            quarantine=quarantine,
            details=True,
            dry_run=dry,
            backup=backup,
            commit_id=commit_id,
            progress=progress,
        )

    # Updates delete rows, too: those that share their key with the row that is updated.
    deletes = strategy != "insert" or delete_when is not None
    return _merged(context, "merge", run, dry_run=dry_run, yes=yes or not deletes)


def apply_changes(
    context: CommandContext,
    source: Source,
    target: Target,
    keys: options.Keys,
    sequence_by: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column that orders the records of a key.")
    ],
    delete_when: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Which records delete: \"op = 'delete'\".")
    ] = None,
    input_format: options.Format = None,
    columns: Annotated[
        list[str] | None, typer.Option("--columns", metavar="COLUMNS", help="The columns that are written.")
    ] = None,
    except_columns: Annotated[
        list[str] | None, typer.Option("--except-columns", metavar="COLUMNS", help="The columns that are not.")
    ] = None,
    scd: Annotated[int, typer.Option(min=1, max=2, help="1: the latest row of each key. 2: all versions.")] = 1,
    tombstone_days: Annotated[float, typer.Option(help="How long deletes are remembered.")] = 7,
    partition_by: options.PartitionBy = None,
    compression: options.Compression = None,
    no_pack: options.NoPack = False,
    expect: options.Expect = None,
    on_violation: options.OnViolation = "fail",
    quarantine: options.Quarantine = None,
    backup: options.Backup = None,
    commit_id: options.CommitId = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
) -> Result:
    """Apply change records (CDC), in any order. Late ones have no effect. It asks if rows would be deleted."""
    dataset = context.dataset(target)
    rows = source_rows(dataset, source, input_format)
    kind: Literal[1, 2] = 2 if scd == 2 else 1

    def run(dry: bool, progress: Any) -> Any:
        return dataset.apply_changes(
            rows,
            options.required_names("--keys", keys),
            sequence_by=sequence_by,
            delete_when=delete_when,
            columns=options.names(columns),
            except_columns=options.names(except_columns),
            scd=kind,
            tombstone_days=tombstone_days,
            compression=compression or "snappy",
            pack=not no_pack,
            partition_by=options.names(partition_by),
            expect=options.conditions(expect),
            on_violation=on_violation,
            quarantine=quarantine,
            dry_run=dry,
            backup=backup,
            commit_id=commit_id,
            progress=progress,
        )

    return _merged(context, "apply-changes", run, dry_run=dry_run, yes=yes)


def _merged(
    context: CommandContext,
    verb: str,
    merge: Callable[[bool, Any], Mapping[str, Any]],
    *,
    dry_run: bool,
    yes: bool,
) -> Result:
    """Run a merge; ask if it would delete rows, which only a dry run can count."""
    if not (dry_run or yes):
        plan = merge(True, None)
        if plan["deleted"] and "repeated_commit" not in plan:
            changed = f"{plan['inserted']:,} inserted, {plan['updated']:,} updated"
            context.confirm(f"delete {counted(plan['deleted'], 'row')} ({changed})", yes=yes)
    stats = merge(dry_run, context.progress)
    return Result(stats, lambda: render.changes(verb, stats, dry_run=dry_run))


COMMANDS = (
    Command("delete", delete, lambda: parketto.EditStats),
    Command("update", update, lambda: parketto.EditStats),
    Command("deduplicate", deduplicate, lambda: parketto.EditStats),
    Command("merge", merge, lambda: parketto.MergeStats),
    Command("apply-changes", apply_changes, lambda: parketto.ChangeStats),
)
