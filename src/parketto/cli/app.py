"""The application: all groups of commands, and how errors are shown.

Importing it loads no engine, so that `--help` is quick. Commands import what they need.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import parketto
from parketto.cli import pipelines, spark
from parketto.errors import ParkettoError

app = typer.Typer(
    name="parketto",
    help="Keeps plain Parquet datasets healthy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for group in (pipelines, spark):
    group.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"parketto {parketto.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Keeps plain Parquet datasets healthy."""


def main() -> None:
    """Run the command line. An error of Parketto is one line and the exit code 1."""
    try:
        app()
    except ParkettoError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
