"""The application: all commands by section, and how it starts.

Importing it loads no engine, so that `--help` is quick. Commands import what they need.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import parketto
from parketto.cli import columns, demo, edits, examine, history, json_schemas, layout, pipelines, rows, spark
from parketto.cli.command import Command
from parketto.cli.exits import Exit, UsageProblem, exit_code, sentence
from parketto.cli.output import JsonOutput
from parketto.errors import ParkettoError

#: The commands, as `parketto --help` lists them.
SECTIONS: Mapping[str, Sequence[Command]] = {
    "Look": (*examine.COMMANDS, *columns.LOOKING),
    "Keep it healthy": layout.COMMANDS,
    "Rows": rows.COMMANDS,
    "Change": (*edits.COMMANDS, *columns.CHANGING),
    "History": history.COMMANDS,
    "Start and scripts": (*demo.COMMANDS, *pipelines.COMMANDS, *json_schemas.COMMANDS),
}


class _SectionedGroup(TyperGroup):
    """Lists commands by section."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        listed = {name: [each.name for each in commands] for name, commands in SECTIONS.items()}
        named = {name for names in listed.values() for name in names}
        listed["Spark's own programs"] = [name for name in self.list_commands(ctx) if name not in named]
        wide = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        for section, names in listed.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(section):
                formatter.write_dl([(name, each.get_short_help_str(wide)) for name, each in found if each])


app = typer.Typer(
    name="parketto",
    cls=_SectionedGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _commands in SECTIONS.values():
    for _command in _commands:
        _command.register(app)
spark.register(app)
_USAGE_ERROR: Any = typer.BadParameter.__base__  # of Click, or of the copy of it that Typer has
_PREFIX = "Value error, "  # of Pydantic, in messages of Typer


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"parketto {parketto.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keeps plain Parquet datasets healthy. Commands work on folders and URLs, on Spark by default."""


def main() -> None:
    """Run the command line. An error is one line, and an exit code that scripts can rely on."""
    gc.freeze()  # else each garbage collection, also the last one, visits all modules: a tenth of a short command
    try:
        code = app(standalone_mode=False)
    except _USAGE_ERROR as error:
        code = _refuse(error)
    except typer.Abort as error:
        code = Exit.INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else Exit.FAILED
    except ParkettoError as error:  # of Spark's own programs
        typer.echo(f"error: {sentence(error)}", err=True)
        code = exit_code(error)
    sys.exit(code or Exit.DONE)


def _refuse(error: Any) -> int:
    """Say what is wrong with the command line: as usage, or as the document that `--json` promises."""
    error.message = error.message.replace(_PREFIX, "")
    if "--json" in sys.argv[1:]:
        JsonOutput().fail(UsageProblem(error.format_message()))
    else:
        error.show()
    return Exit.USAGE
