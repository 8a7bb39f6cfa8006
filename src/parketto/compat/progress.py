"""A progress bar for interactive terminals."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator

from parketto.engines.base import Progress, ProgressCallback


@contextlib.contextmanager
def progress_bar(progress: ProgressCallback | None, title: str) -> Iterator[ProgressCallback | None]:
    """The given callback; without one a progress bar if stderr is a terminal and `rich` is installed, else None.

    >>> with progress_bar(print, "compacting") as callback:
    ...     callback is print
    True
    """
    if progress is not None or not _can_draw():
        yield progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(title, total=None)

        def draw(state: Progress) -> None:
            bars.update(bar, completed=state.done, total=state.total)

        yield draw


def _can_draw() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
