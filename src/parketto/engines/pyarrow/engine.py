"""Carries out plans with PyArrow alone: tasks in threads over the cores, all within one bound of memory."""

from __future__ import annotations

from parketto.engines.threads import ThreadEngine

DEFAULT_MEMORY_MB = 256


class PyArrowEngine(ThreadEngine):
    """Streams every task through bounded memory.

    Args:
        memory_mb: About how much memory all workers together may use for data.
        threads: How many tasks are run at once; by default one per core, as far as memory allows.
    """

    name = "pyarrow"

    def __init__(self, memory_mb: int = DEFAULT_MEMORY_MB, threads: int | None = None) -> None:
        super().__init__(memory_mb, threads)
