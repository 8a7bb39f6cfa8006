"""A small story on a dataset of its own, to look at afterwards."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parketto.cli import render
from parketto.cli.command import Command, CommandContext
from parketto.cli.exits import UsageProblem
from parketto.cli.output import print_to
from parketto.health.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from parketto.dataset import Dataset

_BATCHES, _ROWS = 24, 250
_FIRST_DAY = dt.date(2026, 11, 16)


def demo(
    context: CommandContext,
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A new or empty folder; by default a temporary one.")
    ] = None,
) -> None:
    """Try it out: a small dataset is written, judged, compacted, changed, and the change undone."""
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageProblem(f"{folder} is not an empty folder; nothing was created")
    root = str(Path(folder or tempfile.mkdtemp(prefix="parketto-demo-")).absolute() / "orders")
    orders = context.dataset(root)
    say(f"1. A job appends orders every hour: {_BATCHES} small batches to {root}")
    for batch in batches():
        orders.write(batch, partition_by="day")
    step(f"parketto health {root}", [_problems(orders)])
    stats = orders.compact()
    step(
        f"parketto compact {root}",
        [f"{counted(stats['before_file_count'], 'file')} → {stats['after_file_count']}, the same rows"],
    )
    deleted = orders.delete("status = 'cancelled'")
    step(
        f"parketto delete {root} --where \"status = 'cancelled'\"",
        [f"{counted(deleted['rows_matched'], 'row')} of {deleted['rows_before']:,}, in one commit"],
    )
    undone = orders.undo()
    step(
        f"parketto undo {root}",
        [f"{counted(undone['files_restored'], 'file')} back: {orders.count():,} rows again"],
    )
    print_to_stdout(
        render.tree(
            "Look at it:",
            [
                f"parketto head {root}",
                f"parketto history {root}",
                f"parketto optimize {root} --columns customer,price --dry-run",
                f'parketto update {root} --where "status = \'paid\'" --set "price=price * 1.1" --dry-run',
            ],
        )
    )


def batches() -> Iterator[pa.Table]:
    """Orders of three days, as they arrive."""
    import pyarrow as pa

    for batch in range(_BATCHES):
        numbers = [batch * _ROWS + row for row in range(_ROWS)]
        columns: dict[str, Any] = {
            "id": numbers,
            "day": [_FIRST_DAY + dt.timedelta(days=batch * 3 // _BATCHES)] * _ROWS,
            "customer": [number * 7919 % 1009 for number in numbers],
            "price": [number * 104_729 % 10_000 / 100 for number in numbers],
            "status": [("paid", "paid", "shipped", "cancelled")[number % 4] for number in numbers],
        }
        yield pa.table(columns)


def _problems(orders: Dataset) -> str:
    return "; ".join(problem["summary"] for problem in orders.health()["problems"]) or "healthy"


def say(text: str) -> None:
    """Print a line."""
    print_to_stdout(render.tree(text))


def step(command: str, outcome: list[str]) -> None:
    """Print a command of the story, and what it did."""
    print_to_stdout(render.tree(f"$ {command}", outcome))


def print_to_stdout(content: Any) -> None:
    """Print a part of the story as soon as it happened."""
    import sys

    print_to(sys.stdout, content)


COMMANDS = (Command("demo", demo, engine="pyarrow"),)
