"""Executes plans with PyArrow alone: tasks run in threads, within one memory limit."""

from __future__ import annotations

from parketto.engines.threads import ThreadEngine

DEFAULT_MEMORY_MB = 256


class PyArrowEngine(ThreadEngine):
    """Streams every task through bounded memory.

    Args:
        memory_mb: Approximate memory limit for the data of all workers together.
        threads: Number of tasks that run at once; by default one per core, as far as memory allows.
    """

    name = "pyarrow"

    def __init__(self, memory_mb: int = DEFAULT_MEMORY_MB, threads: int | None = None) -> None:
        super().__init__(memory_mb, threads)
