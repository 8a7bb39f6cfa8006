"""The output of all commands: results on stdout, as text or as JSON; everything else on stderr."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from parketto.cli.exits import Exit, error_document, sentence

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPE_WIDTH = 10_000  # columns: a pipe has no width, so lines are never cut or wrapped


@dataclass(frozen=True)
class Result:
    """What a command found or did: data for programs, and the same for people."""

    data: Any
    #: Renders the data; called only if people read it.
    render: Callable[[], RenderableType]
    exit_code: Exit = Exit.DONE


class Output(Protocol):
    """Shows results and errors."""

    def show(self, result: Result) -> None:
        """Write a result to stdout."""

    def fail(self, error: BaseException) -> None:
        """Write an error to stderr."""

    def note(self, text: str) -> None:
        """Write a remark to stderr."""


class ConsoleOutput:
    """Text; with colours on a terminal, unless NO_COLOR is set."""

    def show(self, result: Result) -> None:
        """Write a result to stdout."""
        print_to(sys.stdout, result.render())

    def fail(self, error: BaseException) -> None:
        """Write an error to stderr: one line."""
        print(f"error: {sentence(error)}", file=sys.stderr)

    def note(self, text: str) -> None:
        """Write a remark to stderr."""
        print(text, file=sys.stderr)


class JsonOutput:
    """JSON documents, one per result; errors, too."""

    def show(self, result: Result) -> None:
        """Write the data of a result to stdout."""
        print(dumps(result.data, indent=2))

    def fail(self, error: BaseException) -> None:
        """Write an error to stderr: one line."""
        print(dumps(error_document(error)), file=sys.stderr)

    def note(self, text: str) -> None:
        """Write a remark to stderr."""
        print(text, file=sys.stderr)


def console(stream: Any) -> Console:
    """A console that respects NO_COLOR and TERM, and has no width limit unless it is a terminal."""
    from rich.console import Console

    return Console(
        file=stream,
        width=None if stream.isatty() else _PIPE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def line_width() -> int:
    """The characters of a line on stdout."""
    return int(console(sys.stdout).width)


def print_to(stream: Any, content: RenderableType) -> None:
    """Print to a terminal, which may be narrow; or to a pipe, without limits and without padding."""
    screen = console(stream)
    if stream.isatty():
        screen.print(content)
        return
    with screen.capture() as captured:
        screen.print(content, soft_wrap=True)
    stream.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def dumps(data: Any, indent: int | None = None) -> str:
    """JSON that every parser accepts: NaN and infinities are null.

    >>> dumps({"at": dt.date(2026, 1, 2), "share": math.nan, "price": Decimal("1.10")})
    '{"at": "2026-01-02", "share": null, "price": "1.10"}'
    """
    return json.dumps(_plain(data), indent=indent, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """A value in the types of JSON."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case Iterable():
            return [_plain(item) for item in value]
        case _:
            return str(value)
