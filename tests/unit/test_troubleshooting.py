"""Every message that docs/troubleshooting.md explains is one that the code can raise."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs/troubleshooting.md").read_text()
MESSAGES = re.findall(r"^### `(.*)`$", PAGE, re.MULTILINE)


def text_of(node: ast.AST) -> str:
    """A text of the code, with `…` for what is filled in."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(text_of, parts))
        case _:
            return "…"


@cache
def texts() -> list[str]:
    """All texts of the code, without docstrings."""
    found: list[str] = []
    for path in sorted((PROJECT / "src/parketto").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        found += [
            text_of(node)
            for node in nodes
            if isinstance(node, ast.JoinedStr | ast.Constant) and node not in docstrings
        ]
    return found


def has(text: str, parts: list[str]) -> bool:
    """Whether a text contains all parts, in this order."""
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def test_the_page_has_messages() -> None:
    assert len(MESSAGES) > 30
    assert len(set(MESSAGES)) == len(MESSAGES)
    assert PAGE.count("\n### ") == len(MESSAGES), "each heading is a message in backquotes"


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_still_exist(message: str) -> None:
    parts = [part for part in message.split("…") if part.strip()]
    assert any(has(text, parts) for text in texts()), message
