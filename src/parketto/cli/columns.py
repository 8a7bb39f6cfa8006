"""Commands about columns: schema, alter, unify-schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

import parketto
from parketto.cli import options, render, shapes
from parketto.cli.command import Command, CommandContext
from parketto.cli.exits import UsageProblem
from parketto.cli.output import Result
from parketto.health.text import counted, size_text

Casts = Annotated[
    list[str] | None, typer.Option("--cast", metavar="COLUMN=TYPE", help="A new type: price=double. Repeatable.")
]


def schema(context: CommandContext, path: options.DatasetPath) -> Result:
    """Show the columns and their types."""
    dataset = context.dataset(path)
    found = dataset.schema
    partitioned = {name for part in dataset.partitions() for name in part["values"]}
    columns = [
        shapes.ColumnDocument(
            name=item.name, type=str(item.type), nullable=item.nullable, partition=item.name in partitioned
        )
        for item in found
    ]
    document = shapes.SchemaDocument(path=dataset.path, columns=columns)

    def rendered() -> Any:
        rows = [
            (
                each["name"],
                each["type"],
                ", ".join(
                    (["partition"] if each["partition"] else []) + ([] if each["nullable"] else ["not null"])
                ),
            )
            for each in columns
        ]
        return render.table(["column", "type", ""], rows)

    return Result(document, rendered)


def alter(
    context: CommandContext,
    path: options.DatasetPath,
    add: Annotated[
        list[str] | None, typer.Option("--add", metavar="COLUMN=TYPE", help="A new column, all NULL. Repeatable.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="A new name. Repeatable.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option("--drop", metavar="COLUMNS", help="Columns to remove.")] = None,
    cast: Casts = None,
    backup: options.Backup = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
) -> Result:
    """Add, rename, drop and cast columns. It asks before columns are dropped."""
    if not (add or rename or drop or cast):
        raise UsageProblem("pass --add, --rename, --drop or --cast; nothing was changed")
    changes: dict[str, Any] = {
        "add": options.pairs("--add", add, "note=string") or None,
        "rename": options.pairs("--rename", rename, "old=new") or None,
        "drop": options.names(drop),
        "cast": options.pairs("--cast", cast, "price=double") or None,
    }
    dataset = context.dataset(path)
    if drop and not (dry_run or yes):
        plan = dataset.alter(**changes, dry_run=True)
        files = f"{counted(plan['files_rewritten'], 'file')} ({size_text(plan['rewritten_bytes'])})"
        context.confirm(f"drop {', '.join(changes['drop'])}, and rewrite {files}", yes=yes)
    stats = dataset.alter(**changes, backup=backup, dry_run=dry_run, progress=context.progress)
    return Result(stats, lambda: render.altered("alter", stats, _described(changes)))


def _described(changes: Mapping[str, Any]) -> list[str]:
    return [
        *(f"rename {old} to {new}" for old, new in (changes["rename"] or {}).items()),
        *(f"cast {name} to {kind}" for name, kind in (changes["cast"] or {}).items()),
        *(f"drop {name}" for name in changes["drop"] or ()),
        *(f"add {name}: {kind}" for name, kind in (changes["add"] or {}).items()),
    ]


def unify_schema(
    context: CommandContext,
    path: options.DatasetPath,
    cast: Casts = None,
    backup: options.Backup = None,
    dry_run: options.DryRun = False,
) -> Result:
    """Give all files the dataset's schema. Files that have it are left as they are."""
    dataset = context.dataset(path)
    stats = dataset.unify_schema(
        cast=options.pairs("--cast", cast, "price=double") or None,
        backup=backup,
        dry_run=dry_run,
        progress=context.progress,
    )
    return Result(stats, lambda: render.altered("unify-schema", stats))


LOOKING = (Command("schema", schema, lambda: shapes.SchemaDocument, engine="pyarrow", changes=False),)
CHANGING = (
    Command("alter", alter, lambda: parketto.AlterStats),
    Command("unify-schema", unify_schema, lambda: parketto.AlterStats),
)
