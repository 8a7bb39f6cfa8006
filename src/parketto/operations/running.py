"""What a caller sees of an operation: two lines in the log, its progress, and a result with a short `repr`."""

from __future__ import annotations

import contextlib
import logging
import posixpath
import time
from collections.abc import Iterator
from typing import TypeVar, cast

from parketto.display import Result, typed_result
from parketto.engines.base import ProgressCallback
from parketto.operations.context import DatasetContext
from parketto.progress import ProgressOption, shown

logger = logging.getLogger(__name__)

Stats = TypeVar("Stats")


class Running:
    """An operation that runs. `progress` is what its steps report to."""

    def __init__(self, progress: ProgressCallback | None) -> None:
        self.progress = progress
        self._result: Result | None = None

    def done(self, stats: Stats) -> Stats:
        """The result for the caller, which is also logged. It keeps its type for checkers."""
        result = typed_result(stats)
        self._result = cast("Result", result)
        return result

    def numbers(self) -> str:
        """The counts of the result, for the log."""
        return "" if self._result is None else self._result.numbers()


@contextlib.contextmanager
def running(
    dataset: DatasetContext, operation: str, progress: ProgressOption = None, *, dry_run: bool = False
) -> Iterator[Running]:
    """Log the start and the end of an operation of a dataset, and show its progress in between."""
    path, started = dataset.store.url(dataset.root), time.monotonic()
    name = f"{operation} (dry run)" if dry_run else operation
    with shown(progress, f"{name} {posixpath.basename(dataset.root)}") as callback:
        run = Running(callback)
        logger.info("%s %s on %s: started", name, path, dataset.engine.name)
        try:
            yield run
        except BaseException as error:
            seconds = time.monotonic() - started
            logger.info("%s %s: %s after %.1f s", name, path, type(error).__name__, seconds)
            raise
        numbers = run.numbers()
        logger.info("%s %s: done in %.1f s%s", name, path, time.monotonic() - started, numbers and f": {numbers}")
