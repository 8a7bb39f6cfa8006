"""Worker processes on a dataset in S3 that are killed or stopped at a chosen moment."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa

from helpers.s3 import S3Place, options
from parketto import Dataset, ParkettoError
from parketto.commit.transaction import Transaction
from parketto.commit.workspace import Workspace, WorkspaceState

# A fork server has all modules loaded and no threads, so workers start in milliseconds.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["numpy", "pyarrow.parquet", "s3fs", "parketto", "parketto.storage.s3"])
_RECORD = re.compile(r"/log/[0-9]{20}\.json")


def _is_data(path: Any) -> bool:
    return not isinstance(path, str) and "/tx-" not in next(iter(path))


#: Mutating calls: the method of the store, and a predicate on its first argument.
CALLS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "stage": ("open_output", lambda path: "/tx-" in path),
    "record": ("create", lambda path: _RECORD.search(path) is not None),
    "copy": ("copy", lambda path: "/tx-" in path),
    "retire": ("remove_many", _is_data),
    "clear": ("remove_many", lambda paths: not _is_data(paths)),
    "done": ("create", lambda path: path.endswith(".done.json")),
}
#: Where a process dies: when all files are staged, and before and after every step of its commit.
_STEPS = ("record", "copy", "retire", "clear", "done")
DEATHS = ("staged", *(f"{side} {step}" for step in _STEPS for side in ("before", "after")), "half retire")


def batch(number: int, rows: int = 50) -> pa.Table:
    return pa.table({"id": np.arange(rows) + number * rows, "batch": np.full(rows, number)})


def append(dataset: Dataset, first: int, times: int = 1, files: int = 1) -> None:
    for number in range(first, first + times):
        dataset.write(batch(number), max_rows_per_file=-(-50 // files))


def merge(dataset: Dataset, number: int, value: int) -> None:
    dataset.merge(batch(number).set_column(1, "batch", pa.array(np.full(50, value))), "id")


def read(dataset: Dataset) -> list[int]:
    return sorted(dataset.read()["id"].to_pylist())


OPERATIONS: dict[str, Callable[..., Any]] = {
    "append": append,
    "compact": lambda dataset: dataset.compact(),
    "delete": lambda dataset, where: dataset.delete(where)["rows_matched"],
    "update": lambda dataset, where, value: dataset.update(where, {"batch": value})["rows_matched"],
    "merge": merge,
    "read": read,
}


def interrupt(dataset: Dataset, number: signal.Signals, moment: str, nth: int = 1) -> None:
    """Make this process send itself a signal at a moment such as "before record" or "staged"."""
    left = [nth]

    def reached() -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), number)

    if moment == "staged":
        commit = Transaction.commit

        def committing(self: Transaction, *args: Any, **more: Any) -> None:
            reached()
            commit(self, *args, **more)

        Transaction.commit = committing  # type: ignore[method-assign]
        return
    if moment == "look":
        read_state = Workspace.read_state

        def looking(self: Workspace) -> WorkspaceState:
            reached()
            return read_state(self)

        Workspace.read_state = looking  # type: ignore[method-assign]
        return
    side, _, call = moment.partition(" ")
    name, matches = CALLS[call]
    kind = type(dataset._store)
    original = getattr(kind, name)

    def watched(self: Any, path: str | Iterable[str], *rest: Any, **more: Any) -> Any:
        path = path if isinstance(path, str) else list(path)
        if not path or not matches(path):
            return original(self, path, *rest, **more)
        if side == "before":
            reached()
        if side == "half":
            original(self, path[::2])
            reached()
        result = original(self, path, *rest, **more)
        if side == "after":
            reached()
        return result

    setattr(kind, name, watched)


class Worker:
    """A handle of the test for a worker process.

    Args:
        place: The dataset.
        moment: The signal and when it comes, such as "kill after record" or "stop staged"; "" for none.
        what: The name of an operation, and its arguments.
    """

    def __init__(self, place: S3Place, moment: str, *what: Any) -> None:
        self._answers, answers = _PROCESSES.Pipe(duplex=False)
        arguments = (answers, place.server.endpoint, f"s3://{place.root}", moment, what)
        self._process = _PROCESSES.Process(target=main, args=arguments, daemon=True)
        self._process.start()
        answers.close()

    def stopped(self) -> Worker:
        """Wait until the process has stopped itself."""
        deadline = time.monotonic() + 120
        command = ["ps", "-o", "stat=", "-p", str(self._process.pid)]
        while not subprocess.run(command, capture_output=True, check=False).stdout.startswith(b"T"):
            assert self._process.is_alive(), "the worker has ended"
            assert time.monotonic() < deadline, "the worker does not stop"
            time.sleep(0.02)
        return self

    def is_over(self) -> bool:
        """Whether the process has ended or sent its result."""
        return self._answers.poll(0.0) or not self._process.is_alive()

    def killed(self) -> None:
        """Wait until the process is dead."""
        self._process.join(timeout=120)
        assert self._process.exitcode == -signal.SIGKILL

    def resumed(self) -> Any:
        """Resume the process; returns its result."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)
        return self.result()

    def result(self) -> Any:
        """The result of the process."""
        assert self._answers.poll(120)
        answer = self._answers.recv()
        self._process.join(timeout=120)
        return answer


def main(answers: Connection, endpoint: str, url: str, moment: str, what: tuple[Any, ...]) -> None:
    """Runs in the other process."""
    dataset = Dataset(url, "pyarrow", storage_options=options(endpoint))
    dataset._store.creates_exclusively(dataset._context.root)
    name, *arguments = what
    if moment:
        kind, _, when = moment.partition(" ")
        when, _, nth = when.partition(" #")
        interrupt(dataset, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind], when, int(nth or 1))
    try:
        answers.send(OPERATIONS[name](dataset, *arguments))
    except ParkettoError as error:
        answers.send(f"{type(error).__name__}: {error}")
