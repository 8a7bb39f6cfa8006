"""Shows the progress of an operation: a bar on a terminal or in a notebook, or else lines."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from parketto.display import escape, readable_bytes
from parketto.engines.base import Progress, ProgressCallback
from parketto.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

#: What operations take as `progress`: True shows it, a function gets it.
ProgressOption = bool | ProgressCallback | None

_LINE_SECONDS = 5.0  # between two lines
_UPDATE_SECONDS = 0.1  # between two updates in a notebook, which sends each of them to the browser


@contextlib.contextmanager
def shown(progress: ProgressOption, title: str) -> Iterator[ProgressCallback | None]:
    """The callback to pass on: the given function, or one that draws until the block ends; None shows nothing.

    >>> with shown(print, "compact events") as callback:
    ...     callback is print
    True
    """
    if progress is None or progress is False:
        yield None
    elif progress is True:
        with _display()(title) as callback:
            yield callback
    elif callable(progress):
        yield progress
    else:
        raise InvalidArgument(
            f"progress must be True, False or a function that gets a Progress, got {progress!r}; nothing was done"
        )


def bar_on_terminal(progress: ProgressOption) -> ProgressOption:
    """The given option; if there is none, True where a bar can be drawn on a terminal."""
    return (_draws_bars() or None) if progress is None else progress


Display = Callable[[str], contextlib.AbstractContextManager[ProgressCallback]]


def _display() -> Display:
    """How progress is shown here."""
    if _kernel() is not None:
        return _notebook_bar
    return _terminal_bar if _draws_bars() else _lines


def _kernel() -> Any:
    """The kernel of the notebook that runs this code; None outside of notebooks. Imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None)


def _draws_bars() -> bool:
    return (
        sys.stderr is not None
        and sys.stderr.isatty()
        and os.environ.get("TERM") != "dumb"
        and importlib.util.find_spec("rich") is not None
    )


@contextlib.contextmanager
def _terminal_bar(title: str) -> Iterator[ProgressCallback]:
    """A bar with the rate and the time left. It disappears at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.text import Text as PlainText

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            if not task.speed:
                return PlainText("")
            in_bytes = task.fields["in_bytes"]
            return PlainText(f"{readable_bytes(task.speed) if in_bytes else f'{task.speed:,.1f}'}/s")

    # A title is data: brackets in a path are no markup.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}", markup=False),
        Rate(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(title, total=None, count="", in_bytes=False)
        last = Progress("", 0, 0, 0, 0)

        def draw(state: Progress) -> None:
            nonlocal last
            in_bytes = state.total_bytes > 0
            done, total = (state.done_bytes, state.total_bytes) if in_bytes else (state.done, state.total)
            if state.done <= last.done:
                bars.reset(bar)  # the next phase of the operation has a speed of its own
            last = state
            bars.update(bar, completed=done, total=total, count=_count(state), in_bytes=in_bytes)

        yield draw


@contextlib.contextmanager
def _notebook_bar(title: str) -> Iterator[ProgressCallback]:
    """A bar of the browser, which needs no widgets."""
    notebook: Any = importlib.import_module("IPython.display")  # whose functions have no types

    class Bar:
        state, drawn = Progress("", 0, 0, 0, 0), 0.0

        def html(self, end: str = "") -> Any:
            of = f'value="{self.state.done}" max="{self.state.total}"' if self.state.total else ""
            return notebook.HTML(
                f"<progress {of}></progress> <code>{escape(title)}</code> {_count(self.state)}{end}"
            )

    bar, started = Bar(), time.monotonic()
    handle = notebook.display(bar.html(), display_id=True)

    def draw(state: Progress) -> None:
        bar.state, now = state, time.monotonic()
        if now - bar.drawn >= _UPDATE_SECONDS:
            bar.drawn = now
            handle.update(bar.html())

    ended = "stopped"
    try:
        yield draw
        ended = "done"
    finally:
        handle.update(bar.html(f" {ended} after {time.monotonic() - started:.1f} s"))


@contextlib.contextmanager
def _lines(title: str) -> Iterator[ProgressCallback]:
    """Lines on standard error, some seconds apart; none if there is no standard error."""
    started = last = time.monotonic()

    def say(text: str) -> None:
        if sys.stderr is not None:
            print(f"{title}: {text}", file=sys.stderr, flush=True)

    def draw(state: Progress) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= _LINE_SECONDS:
            last = now
            say(_count(state))

    ended = "stopped"
    try:
        yield draw
        ended = "done"
    finally:
        say(f"{ended} after {time.monotonic() - started:.1f} s")


def _count(state: Progress) -> str:
    if not state.total:
        return ""
    count = f"{state.done:,} of {state.total:,}"
    if not state.total_bytes:
        return count
    return f"{count}, {readable_bytes(state.done_bytes)} of {readable_bytes(state.total_bytes)}"
