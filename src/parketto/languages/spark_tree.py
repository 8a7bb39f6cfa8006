"""What a Spark Column says, the same for classic Spark and Spark Connect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parketto.plan.parsing import parsed


@dataclass(frozen=True)
class Name:
    """A column, or a field of one."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """A literal. A datetime with a zone is an instant, one without is what a clock shows."""

    value: Any


@dataclass(frozen=True)
class Call:
    """A function or an operator."""

    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Case:
    """Values that depend on conditions."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node


@dataclass(frozen=True)
class Convert:
    """CAST, or TRY_CAST if it is an attempt."""

    child: Node
    type: str
    attempt: bool


@dataclass(frozen=True)
class Text:
    """SQL that was given to Spark as text."""

    sql: str


Node = Name | Value | Call | Case | Convert | Text


def names(node: Node) -> Iterator[Name]:
    """The columns that a tree names."""
    match node:
        case Name():
            yield node
        case Call(_, parts):
            for part in parts:
                yield from names(part)
        case Case(branches, otherwise):
            for part in (*(part for pair in branches for part in pair), otherwise):
                yield from names(part)
        case Convert(child):
            yield from names(child)
        case Text(text):
            yield from (Name((name,)) for name in names_in(text))


def names_in(text: str) -> set[str]:
    """The columns that an SQL text names."""
    from sqlglot import exp

    return {column.parts[0].name for column in parsed(text).find_all(exp.Column)}


def flattened(node: Call, name: str) -> list[Node]:
    """The parts of a chain of ANDs or ORs, which Spark nests to the left."""
    parts: list[Node] = []
    left: Node = node
    while isinstance(left, Call) and left.function.lower() == name:
        left, right = left.arguments
        parts.append(right)
    return [left, *reversed(parts)]
