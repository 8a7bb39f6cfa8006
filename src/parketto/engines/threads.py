"""Base of the engines that run tasks in threads of this process, within one memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import TYPE_CHECKING, Any, TypeVar

from parketto.arguments import MEGABYTE, check_positive_integer
from parketto.engines.base import Context, TaskEngine, largest_first, widest_row
from parketto.runtime.task import Task, Worker, cores
from parketto.runtime.threads import ThreadPool

if TYPE_CHECKING:
    from parketto.parquet.output import Output, Written
    from parketto.parquet.row_source import RowSource

_MIN_WORKER_MB = 32  # with less memory per worker, fewer threads run
# Copies of a row that a thread holds at once: read, decoded, filtered, queued, in pages, encoded. If rows are so
# wide that this exceeds a thread's share of memory, fewer threads run.
_ROWS_IN_FLIGHT = 8

Result = TypeVar("Result")


class ThreadEngine(TaskEngine):
    """Runs tasks in threads.

    Args:
        memory_mb: Approximate memory limit for the data of all workers together.
        threads: Number of tasks that run at once; by default one per core, as far as memory allows.
    """

    def __init__(self, memory_mb: int, threads: int | None = None) -> None:
        check_positive_integer("memory_mb", memory_mb)
        check_positive_integer("threads", threads)
        self._memory = memory_mb * MEGABYTE
        self._workers = threads or min(cores(), max(1, memory_mb // _MIN_WORKER_MB))
        # Libraries with their own thread pools use every core, so a smaller `threads` rules them out.
        self._any_thread = threads is None or threads >= cores()

    def run(self, tasks: Sequence[Task[Result]], context: Context) -> list[Result]:
        """Run tasks in threads, largest first, so that all cores finish at about the same time."""
        widest = max(map(widest_row, tasks), default=1.0)
        threads = min(self._workers, max(1, int(self._memory / (_ROWS_IN_FLIGHT * widest))))
        workers = min(threads, len(tasks)) or 1
        report = context.reporter(tasks)
        shared: dict[object, Any] = {}

        def work(task: Task[Result]) -> Result:
            with self._worker(context, workers, threads) as worker:
                worker.cache = shared
                result = task.run(worker)
            report(task)
            return result

        with ThreadPool(workers, "parketto-task") as pool:
            try:
                futures = {position: pool.submit(work, task) for position, task in largest_first(tasks)}
                finished, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
            except BaseException:
                # The other workers stop at their next batch; leaving the block waits for them.
                context.cancel()
                pool.stop()
                raise
        return [futures[position].result() for position in range(len(tasks))]

    def write(self, source: RowSource, output: Output, context: Context) -> Written:
        """Write rows as new files; several threads write a table that becomes several files."""
        from parketto.parquet.output import Written
        from parketto.parquet.row_source import ArrowRows
        from parketto.tasks.write import WriteSlice, row_slices

        if (
            isinstance(source, ArrowRows)
            and isinstance(source.batches, list)
            and source.batches
            and output.max_rows is not None
            and not (output.partition_by or output.single or output.sort_by)
        ):
            slices = row_slices(source.batches, output.max_rows, self._workers)
            tasks = [WriteSlice(part, output) for part in slices if part.num_rows]
            if len(tasks) > 1:
                return sum(self.run(tasks, context), Written())
        return super().write(source, output, context)

    def worker(self, context: Context) -> Worker:
        """The resources for a single task: all of the memory."""
        return self._worker(context, 1, self._workers)

    def _worker(self, context: Context, workers: int, threads: int) -> Worker:
        # Threads within a task use the cores that other tasks leave free.
        return Worker(
            context.store,
            context.staging,
            self._memory // workers,
            threads=threads // workers,
            any_thread=self._any_thread,
            cancelled=context.cancelled,
        )
