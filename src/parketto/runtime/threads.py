"""A thread pool whose threads have ended when its block is left, even after an interrupt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from parketto.errors import OperationCancelled

Item = TypeVar("Item")
Result = TypeVar("Result")


class ThreadPool:
    """A thread pool for one block. Leaving the block waits for all work that has started.

    Python's executor forgets a thread if Ctrl-C comes while it is being started, and then does not wait for it:
    the thread would go on to write files while they are cleaned up. So the pool counts running work itself.

    Args:
        threads: The maximum number of threads.
        name: The prefix of their names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._changed = threading.Condition()
        self._running = 0
        self._stopped = False

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Run `work` in one of the threads."""
        return self._pool.submit(self._do, work, *arguments)

    def stop(self) -> None:
        """Start no more work; running work continues."""
        with self._changed:
            self._stopped = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, for work in one of the threads; raises `OperationCancelled` once the pool is stopped."""
        for item in items:
            if self._stopped:
                raise OperationCancelled("the operation was cancelled; nothing was changed")
            yield item

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop()
        self._pool.shutdown()
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _do(self, work: Callable[..., Result], *arguments: Any) -> Result:
        with self._changed:
            if self._stopped:
                raise OperationCancelled("the operation was cancelled; nothing was changed")
            self._running += 1
        try:
            return work(*arguments)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
