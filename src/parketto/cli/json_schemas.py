"""The published JSON Schemas of what `--json` writes: one file per command, in `schemas/`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Annotated, Any

import typer

from parketto.cli import render
from parketto.cli.command import Command, CommandContext
from parketto.cli.exits import UsageProblem
from parketto.cli.output import Result
from parketto.errors import quoted

ERROR = "error"  # the name of the schema of errors, which all commands share


def json_schema(
    context: CommandContext,  # noqa: ARG001 - every command has one
    command: Annotated[
        str | None, typer.Argument(metavar="COMMAND", help="A command, or error; without one, all are listed.")
    ] = None,
) -> Result:
    """Show the JSON Schema of a command's --json."""
    if command is None:
        names = published()
        return Result(names, lambda: render.tree("JSON Schemas: parketto json-schema COMMAND", names))
    if command not in published():
        raise UsageProblem(f"there is no JSON Schema for {command!r}; choices: {quoted(published())}")
    document = read(command)
    return Result(document, lambda: json.dumps(document, indent=2))


def published() -> list[str]:
    """The commands that have a schema, and `error`."""
    return sorted(each.name.removesuffix(".json") for each in _folder().iterdir() if each.name.endswith(".json"))


def read(name: str) -> Any:
    """A published schema."""
    return json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))


def _folder() -> Any:
    return files("parketto.cli") / "schemas"


COMMANDS = (Command("json-schema", json_schema, engine=None, changes=False),)
