"""Threads that are really gone when their block is left, wherever an interrupt comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from parketto.errors import OperationCancelled

Item = TypeVar("Item")
Result = TypeVar("Result")


class Crew:
    """Threads for the work of one block. Whoever leaves it waits for all that was begun.

    Python's executor forgets a thread if Ctrl-C comes while it is being started, and then does not wait for it:
    it would go on to write files that are being cleaned away. So the crew counts who is at work itself.

    Args:
        threads: How many work at once.
        name: What the threads are called.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._changed = threading.Condition()
        self._at_work = 0
        self._dismissed = False

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Have some work done by one of the threads."""
        return self._pool.submit(self._do, work, *arguments)

    def dismiss(self) -> None:
        """Nothing more is begun; what has begun goes on."""
        with self._changed:
            self._dismissed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def until_dismissed(self, items: Iterable[Item]) -> Iterator[Item]:
        """What one of the threads works through, unless the crew is dismissed meanwhile."""
        for item in items:
            if self._dismissed:
                raise OperationCancelled("the operation was cancelled; nothing was changed")
            yield item

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.dismiss()
        self._pool.shutdown()
        with self._changed:
            self._changed.wait_for(lambda: not self._at_work)

    def _do(self, work: Callable[..., Result], *arguments: Any) -> Result:
        with self._changed:
            if self._dismissed:
                raise OperationCancelled("the operation was cancelled; nothing was changed")
            self._at_work += 1
        try:
            return work(*arguments)
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()
