"""Carries out plans with PyArrow: tasks in threads over the cores, all within one bound of memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from parketto.engines.base import Context, TaskEngine, largest_first
from parketto.kernels.work import Task, Worker
from parketto.plan.limits import MEGABYTE, check_positive_whole

DEFAULT_MEMORY_MB = 256
_MIN_WORKER_MB = 32

Result = TypeVar("Result")


class PyArrowEngine(TaskEngine):
    """Streams every task through bounded memory.

    Args:
        memory_mb: About how much memory all workers together may use for data.
        threads: How many tasks are run at once; by default one per core, as far as memory allows.
    """

    name = "pyarrow"

    def __init__(self, memory_mb: int = DEFAULT_MEMORY_MB, threads: int | None = None) -> None:
        check_positive_whole("memory_mb", memory_mb)
        check_positive_whole("threads", threads)
        self._memory = memory_mb * MEGABYTE
        self._workers = threads or min(os.cpu_count() or 1, max(1, memory_mb // _MIN_WORKER_MB))

    def run(self, tasks: Sequence[Task[Result]], context: Context) -> list[Result]:
        """Run tasks in threads; the largest first, so that the cores end together."""
        workers = min(self._workers, len(tasks)) or 1
        report = context.reporter(tasks)
        shared: dict[object, Any] = {}

        def work(task: Task[Result]) -> Result:
            with self._worker(context, workers) as worker:
                worker.cache = shared
                result = task.run(worker)
            report(task)
            return result

        with ThreadPoolExecutor(workers, thread_name_prefix="parketto-task") as pool:
            futures = {position: pool.submit(work, task) for position, task in largest_first(tasks)}
            try:
                finished, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
            except BaseException:
                # The other workers stop at their next batch; leaving the block waits for them.
                context.cancelled.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [futures[position].result() for position in range(len(tasks))]

    def worker(self, context: Context) -> Worker:
        """What a single task works with: all of the memory."""
        return self._worker(context, 1)

    def _worker(self, context: Context, workers: int) -> Worker:
        # Where tasks keep the cores busy, threads inside of each would only get in each other's way.
        return Worker(
            context.store,
            context.staging,
            self._memory // workers,
            use_threads=workers == 1,
            cancelled=context.cancelled,
        )
