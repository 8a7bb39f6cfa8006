"""Tasks for tests: Spark's workers import them by name."""

from __future__ import annotations

from dataclasses import dataclass

from parketto.runtime.task import Worker


@dataclass(frozen=True)
class TellThreads:
    """A task that returns the number of threads it may use."""

    size_bytes: int = 1

    def run(self, worker: Worker) -> int:
        return worker.threads
