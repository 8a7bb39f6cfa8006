"""Writes what is made from the code of the command line: its JSON Schemas, and the reference in docs/cli.md.

`make cli-reference` runs it. Tests compare the files with what it would write.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import msgspec

from helpers.cli import environment, parketto
from parketto.cli import shapes
from parketto.cli.app import SECTIONS
from parketto.cli.json_schemas import ERROR

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "src" / "parketto" / "cli" / "schemas"
PAGE = ROOT / "docs" / "cli.md"
BEGIN, END = "<!-- begin: made by make cli-reference -->", "<!-- end -->"


def schemas() -> dict[str, str]:
    """The text of each schema file, by its name."""
    found = {command.name: command.shape() for each in SECTIONS.values() for command in each if command.shape}
    found[ERROR] = shapes.ErrorDocument
    return {f"{name}.json": json.dumps(_schema(name, shape), indent=2) + "\n" for name, shape in found.items()}


def _schema(name: str, shape: Any) -> dict[str, Any]:
    choices = get_args(shape) if isinstance(shape, UnionType) else (shape,)
    found, definitions = msgspec.json.schema_components(choices, ref_template="#/$defs/{name}")
    for kind in _typed_dicts(shape):
        definitions[kind.__name__]["description"] = inspect.getdoc(kind)
        comments = _comments(kind)
        for key, value in definitions[kind.__name__]["properties"].items():
            if key in comments:
                value["description"] = comments[key]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An error" if name == ERROR else f"parketto {name} --json",
        **(found[0] if len(found) == 1 else {"anyOf": list(found)}),
        **({"$defs": definitions} if definitions else {}),
    }


def _typed_dicts(shape: Any) -> Iterator[Any]:
    """The TypedDicts in a type."""
    if hasattr(shape, "__required_keys__"):
        yield shape
        for inner in inspect.get_annotations(shape, eval_str=True).values():
            yield from _typed_dicts(inner)
    for inner in get_args(shape):
        yield from _typed_dicts(inner)


def _comments(kind: Any) -> dict[str, str]:
    """The `#:` comments above the keys of a TypedDict and its bases."""
    found: dict[str, str] = {}
    for base in (*getattr(kind, "__orig_bases__", ()), kind):
        if not hasattr(base, "__required_keys__"):
            continue
        lines = inspect.getsource(base).splitlines()
        for node in ast.parse("\n".join(lines)).body[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                above = node.lineno - 2
                comment: list[str] = []
                while lines[above].strip().startswith("#:"):
                    comment.insert(0, lines[above].strip()[2:].strip())
                    above -= 1
                if comment:
                    found[node.target.id] = " ".join(comment).replace("`", "")
    return found


def reference() -> str:
    """The part of docs/cli.md that lists all commands: what `--help` says."""
    parts = [BEGIN]
    for section, commands in SECTIONS.items():
        parts.append(f"### {section}")
        for command in commands:
            help_text = re.sub(r" +\n", "\n", _help(command.name)).strip()
            parts.append(f"#### {command.name}\n\n```text\n{help_text}\n```")
    return "\n\n".join([*parts, END])


def _help(command: str) -> str:
    wide = environment(COLUMNS="100", TERMINAL_WIDTH="100")
    return str(parketto(command, "--help", env=wide).stdout)


def with_reference(page: str, text: str) -> str:
    """A page with the reference replaced."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{text}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for name, text in schemas().items():
        (SCHEMAS / name).write_text(text)
    for stale in {path.name for path in SCHEMAS.glob("*.json")} - set(schemas()):
        (SCHEMAS / stale).unlink()
    if PAGE.exists():
        PAGE.write_text(with_reference(PAGE.read_text(), reference()))
