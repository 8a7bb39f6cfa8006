"""The part that engines share whose tasks run in threads of this process, all within one bound of memory."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import Any, TypeVar

from parketto.engines.base import Context, TaskEngine, largest_first
from parketto.kernels.crew import Crew
from parketto.kernels.rows import ArrowRows, RowSource
from parketto.kernels.work import Task, Worker, cores, widest_row
from parketto.kernels.write import Output, WriteSlice, Written, row_slices
from parketto.plan.limits import MEGABYTE, check_positive_whole

_MIN_WORKER_MB = 32
# So often a thread holds a row at once: read, decoded, filtered, waiting, in pages, encoded. If rows are so wide
# that this exceeds its share of memory, fewer threads work.
_ROWS_IN_FLIGHT = 8

Result = TypeVar("Result")


class ThreadEngine(TaskEngine):
    """Runs tasks in threads.

    Args:
        memory_mb: About how much memory all workers together may use for data.
        threads: How many tasks are run at once; by default one per core, as far as memory allows.
    """

    def __init__(self, memory_mb: int, threads: int | None = None) -> None:
        check_positive_whole("memory_mb", memory_mb)
        check_positive_whole("threads", threads)
        self._memory = memory_mb * MEGABYTE
        self._workers = threads or min(cores(), max(1, memory_mb // _MIN_WORKER_MB))
        # Libraries with threads of their own have one for each core: who asks for fewer does without them.
        self._any_thread = threads is None or threads >= cores()

    def run(self, tasks: Sequence[Task[Result]], context: Context) -> list[Result]:
        """Run tasks in threads; the largest first, so that the cores end together."""
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

        with Crew(workers, "parketto-task") as crew:
            try:
                futures = {position: crew.submit(work, task) for position, task in largest_first(tasks)}
                finished, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
            except BaseException:
                # The other workers stop at their next batch; leaving the block waits for them.
                context.cancel()
                crew.dismiss()
                raise
        return [futures[position].result() for position in range(len(tasks))]

    def write(self, source: RowSource, output: Output, context: Context) -> Written:
        """Write rows as new files; a table that becomes several files is written by several threads."""
        if (
            isinstance(source, ArrowRows)
            and isinstance(source.batches, list)
            and source.batches
            and output.max_rows is not None
            and not (output.partition_by or output.single)
        ):
            slices = row_slices(source.batches, output.max_rows, self._workers)
            tasks = [WriteSlice(part, output) for part in slices if part.num_rows]
            if len(tasks) > 1:
                return sum(self.run(tasks, context), Written())
        return super().write(source, output, context)

    def worker(self, context: Context) -> Worker:
        """What a single task works with: all of the memory."""
        return self._worker(context, 1, self._workers)

    def _worker(self, context: Context, workers: int, threads: int) -> Worker:
        # Threads inside of tasks are for the cores that other tasks leave free.
        return Worker(
            context.store,
            context.staging,
            self._memory // workers,
            threads=threads // workers,
            any_thread=self._any_thread,
            cancelled=context.cancelled,
        )
