"""New pipeline projects, from a template."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from parketto.cli.command import Command, CommandContext
from parketto.errors import InvalidArgument

_SUFFIX = ".template"  # so that tools for Python do not take a template for a module


def init_pipeline(
    context: CommandContext,  # noqa: ARG001 - every command has one
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    name: Annotated[
        str | None, typer.Option(help="The name of the pipeline; by default that of the folder.")
    ] = None,
) -> None:
    """Create a project of a Spark pipeline."""
    made = create(folder, name)
    typer.echo(f"Created {len(made)} files in {folder}:")
    for path in made:
        typer.echo(f"  {path}")
    typer.echo(
        f"\nNext:\n  cd {folder}\n"
        "  parketto spark-pipelines dry-run   # check the pipeline\n"
        "  python run.py                      # run it on the JSON files in landing/"
    )


def create(folder: Path, name: str | None = None) -> list[str]:
    """Write a project, and return the names of its files.

    Raises:
        InvalidArgument: The folder is not empty, or the name has other characters than letters, digits, - and _.
    """
    folder = folder.absolute()
    name = name or folder.name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise InvalidArgument(
            f"the name of the pipeline is {name!r}; expected letters, digits, - and _, a letter first "
            "(--name sets it); nothing was created"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgument(f"{folder} is not an empty folder; nothing was created")
    words = {
        "{{ name }}": name,
        "{{ project }}": folder.as_posix(),
        "{{ project_uri }}": folder.as_uri(),
        "{{ python }}": sys.executable,
    }
    made = sorted(_render(files("parketto.cli") / "templates" / "pipeline", folder, words))
    (folder / "landing").mkdir()
    return [path.relative_to(folder).as_posix() for path in made]


def _render(template: Traversable, target: Path, words: dict[str, str]) -> list[Path]:
    """Write a template, or all in a folder of templates, with the words filled in."""
    if template.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        inside = [_render(each, target / each.name.removesuffix(_SUFFIX), words) for each in template.iterdir()]
        return [path for paths in inside for path in paths]
    text = template.read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(word, value)
    target.write_text(text, encoding="utf-8")
    return [target]


COMMANDS = (Command("init-pipeline", init_pipeline, engine=None, changes=False),)
