"""The expression tree of a Spark Column, common to classic Spark and Spark Connect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Name:
    """A column, or a field of one."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """A literal. A datetime with a zone is an instant, one without is a wall-clock time."""

    value: Any


@dataclass(frozen=True)
class Call:
    """A call of a function or an operator."""

    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Case:
    """CASE WHEN."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node


@dataclass(frozen=True)
class Convert:
    """CAST, or TRY_CAST if `attempt` is set."""

    child: Node
    type: str
    attempt: bool


@dataclass(frozen=True)
class Text:
    """SQL from `expr`."""

    sql: str


Node = Name | Value | Call | Case | Convert | Text


def flattened(node: Call, name: str) -> list[Node]:
    """The parts of a chain of ANDs or ORs, which Spark nests to the left."""
    parts: list[Node] = []
    left: Node = node
    while isinstance(left, Call) and left.function.lower() == name:
        left, right = left.arguments
        parts.append(right)
    return [left, *reversed(parts)]
