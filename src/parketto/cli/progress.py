"""Progress on a terminal: a bar with rate and time left on stderr. Nothing if stderr is a pipe or a file."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from parketto.cli.output import console

if TYPE_CHECKING:
    from parketto.engines.base import Progress, ProgressCallback


@contextmanager
def shown_progress(*, wanted: bool) -> Iterator[ProgressCallback | None]:
    """A callback that draws a bar; None without a terminal."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
    )
    tasks: dict[str, TaskID] = {}
    lock = threading.Lock()  # tasks report from several threads

    def report(state: Progress) -> None:
        by_bytes = state.total_bytes > 0
        done, total = (state.done_bytes, state.total_bytes) if by_bytes else (state.done, state.total)
        with lock:
            if state.operation not in tasks:
                tasks[state.operation] = bars.add_task(state.operation, total=total, count="", rate="")
            task = tasks[state.operation]
            speed = bars.tasks[bars.task_ids.index(task)].speed
            bars.update(
                task,
                completed=done,
                total=total,
                count=f"{state.done:,}/{state.total:,}",
                rate=_rate(speed, by_bytes=by_bytes),
            )

    with bars:
        yield report


def _rate(speed: float | None, *, by_bytes: bool) -> str:
    """The work per second.

    >>> _rate(3 * 1024**2, by_bytes=True), _rate(2.5, by_bytes=False), _rate(None, by_bytes=True)
    ('3 MB/s', '2.5/s', '')
    """
    if speed is None:
        return ""
    from parketto.health.text import size_text

    return f"{size_text(speed)}/s" if by_bytes else f"{speed:,.1f}/s"
