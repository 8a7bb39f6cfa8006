"""Processes that run random operations on one dataset concurrently, and record the results that they get.

Started without arguments, this process only forks workers, which is faster than new interpreters.
It reads a task per line (JSON) and answers with the worker's pid; `wait` answers with their exit states.

A worker records, outside of the dataset: each operation, the ids of its attempts, and the result. It
also copies every file that it commits, so that the check knows the rows after every commit.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb  # noqa: F401 - loaded once, for all workers
import pyarrow as pa
import pyarrow.parquet as pq

from parketto import CannotUndo, CommitConflict, CommitFailed, CommitStateUnknown, Dataset, sql
from parketto.commit.transaction import Transaction
from parketto.storage.local import LocalStore
from parketto.storage.store import MUTATIONS

COLUMNS = ("id", "p", "x", "y", "n")
SCHEMA = pa.schema([(name, pa.int64()) for name in COLUMNS])
SHARED_KEYS = 16
_SECONDS = 240

Task = dict[str, Any]
Operation = dict[str, Any]


def table(rows: list[tuple[int, ...]]) -> pa.Table:
    return pa.table([[row[at] for row in rows] for at in range(len(COLUMNS))], schema=SCHEMA)


class Notes:
    """The record that a worker writes for the check of the history."""

    def __init__(self, task: Task) -> None:
        self._folder, self._root = task["notes"], task["root"]
        path = f"{self._folder}/{task['name']}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, kind: str, **said: Any) -> None:
        os.write(self._file, f"{json.dumps({'kind': kind, **said})}\n".encode())

    def keep(self, transaction: Transaction, publish: Any) -> None:
        """Copy the staged files of a commit, under their names in the log record."""
        identity = os.path.basename(transaction.staging.directory)
        for file in publish:
            inside = file.path[file.path.index(f"{identity}/") :]
            os.makedirs(os.path.dirname(f"{self._folder}/kept/{inside}"), exist_ok=True)
            shutil.copyfile(file.path, f"{self._folder}/kept/{inside}")
        self.note("attempt", id=identity.removeprefix("tx-"))

    def numbers(self) -> tuple[int, int]:
        """The numbers of the last settled and of the last commit."""
        folder, _, name = self._root.rpartition("/")
        try:
            names = os.listdir(f"{folder}/.{name}.parketto/log")
        except FileNotFoundError:  # there is no commit yet
            names = []
        done = [int(found[:20]) for found in names if found.endswith(".done.json")]
        every = [int(found[:20]) for found in names if found.endswith(".json")]
        return max(done, default=0), max(every, default=0)


def random_operations(task: Task) -> Iterator[Operation]:
    """Operations that conflict with each other."""
    chance = random.Random(task["seed"])
    named: list[Operation] = []
    for count in range(task["operations"]):
        kind = chance.choice(task["kinds"])
        operation: Operation = {"kind": kind}
        mine = 1000 * (task["worker"] + 1) + 10 * count
        if kind == "append":
            operation["rows"] = [(mine + n, *values(chance)) for n in range(chance.randint(1, 3))]
        elif kind in ("upsert", "insert"):
            shared = chance.sample(range(SHARED_KEYS), 3)
            ids = shared if chance.random() < 0.6 else [mine, mine + 1, task["worker"]]
            operation["rows"] = [(each, *values(chance)) for each in ids]
        elif kind == "update":
            one, other = chance.choice(("xy", "yx"))
            operation |= {"where": (one, chance.randrange(3)), "set": (other, chance.randrange(3))}
        elif kind == "increment":
            operation["where"] = (chance.choice("pxy"), chance.randrange(3))
        elif kind == "move":
            operation |= {"where": ("x", chance.randrange(3)), "set": ("p", chance.randrange(3))}
        elif kind == "delete":
            operation["where"] = (chance.choice("xy"), chance.randrange(3))
            operation["and"] = ("p", chance.randrange(3))
        elif kind == "repartition":
            operation["by"] = chance.choice((None, ["p"], ["x"]))
        elif kind == "overwrite":
            operation["rows"] = [(each, *values(chance)) for each in range(chance.randint(4, SHARED_KEYS))]
        elif kind in ("undo", "restore"):
            operation["back"] = chance.randrange(4)
        if kind in ("append", "upsert", "update", "delete", "increment") and chance.random() < 0.5:
            operation["commit_id"] = f"{task['name']}:{count}"
            named.append(operation)
        if named and chance.random() < 0.3:
            yield chance.choice(named)  # a replay, as after a restart
        yield operation


def values(chance: random.Random) -> tuple[int, ...]:
    return chance.randrange(3), chance.randrange(3), chance.randrange(3), 0


def carry_out(dataset: Dataset, operation: Operation) -> Any:
    kind, commit_id = operation["kind"], operation.get("commit_id")
    where = " AND ".join("{} = {}".format(*operation[name]) for name in ("where", "and") if name in operation)
    match kind:
        case "append":
            return dataset.write(table(operation["rows"]), commit_id=commit_id)
        case "overwrite":
            return dataset.write(table(operation["rows"]), "overwrite", max_rows_per_file=5)
        case "upsert" | "insert":
            return dataset.merge(table(operation["rows"]), ["id"], strategy=kind, commit_id=commit_id)
        case "update" | "move":
            return dataset.update(where, dict([operation["set"]]), commit_id=commit_id)
        case "increment":
            return dataset.update(where, {"n": sql("n + 1")}, commit_id=commit_id)
        case "delete":
            return dataset.delete(where, commit_id=commit_id)
        case "compact":
            return dataset.compact(target_rows_per_file=6)
        case "optimize":
            return dataset.optimize(["x", "y"], target_rows_per_file=6)
        case "repartition":
            return dataset.repartition(operation["by"])
        case "undo" | "restore":
            numbers = [commit["number"] for commit in dataset.history(limit=4)] or [1]
            number = numbers[min(operation["back"], len(numbers) - 1)]
            return dataset.undo(number) if kind == "undo" else dataset.restore(to=number)
    raise AssertionError(kind)


def write(task: Task) -> None:
    """Run operations, and record the result of each."""
    notes = Notes(task)
    settings = {name: task[name] for name in ("engine", "isolation", "publish", "retries")}
    dataset = Dataset(task["root"], **settings)
    if task["engine"] == "spark":
        dataset.engine.session.range(1).count()  # type: ignore[attr-defined]
        notes.note("ready")
    disturb(task, notes)
    for count, operation in enumerate(random_operations(task)):
        notes.note("begin", count=count, operation=operation, numbers=notes.numbers())
        outcome, result = "committed", None
        try:
            result = carry_out(dataset, operation)
        except CannotUndo as error:
            outcome, result = "refused", str(error)
        except CommitConflict as error:
            outcome, result = "conflict", str(error)
        except CommitFailed as error:
            outcome, result = "failed", str(error)
        except CommitStateUnknown as error:
            outcome, result = "unknown", str(error)
        except KeyboardInterrupt:
            outcome = "interrupted"
        except Exception as error:  # noqa: BLE001 - reported by the check of the history
            outcome, result = "error", f"{type(error).__name__}: {error}"
        notes.note("end", count=count, outcome=outcome, result=result, numbers=notes.numbers())


def disturb(task: Task, notes: Notes) -> None:
    """Make this process send itself signals right before some of its changes to the disk."""
    signals = {int(at): number for at, number in task["signals"].items()}
    chance = random.Random(task["seed"])
    made = 0

    def wrapped(original: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal made
            made += 1
            if chance.random() < task["pauses"]:
                time.sleep(chance.uniform(0.0, 0.03))
            if number := signals.get(made):
                notes.note("signal", signal=number)
                os.kill(os.getpid(), number)
            return original(*arguments, **named)

        return call

    for name in MUTATIONS:
        setattr(LocalStore, name, wrapped(getattr(LocalStore, name)))
    commit = Transaction.commit

    def kept(transaction: Transaction, publish: Any, *arguments: Any, **named: Any) -> None:
        notes.keep(transaction, publish)
        commit(transaction, publish, *arguments, **named)

    Transaction.commit = kept  # type: ignore[method-assign]


def read(task: Task) -> None:
    """Read until the writers have ended."""
    notes = Notes(task)
    dataset = Dataset(task["root"], task["engine"])
    chance = random.Random(task["seed"])
    while not os.path.exists(f"{task['notes']}/over"):
        before = notes.numbers()
        if task["plain"]:
            rows = list(plain_rows(task["root"]))
        else:
            rows = [tuple(row[name] for name in COLUMNS) for row in dataset.read().to_pylist()]
        found = sorted([*row, count] for row, count in Counter(rows).items())
        notes.note("read", plain=task["plain"], rows=found, numbers=(before, notes.numbers()))
        time.sleep(chance.uniform(0.0, 0.05))


def plain_rows(root: str) -> Iterator[tuple[int, ...]]:
    """Rows as a plain reader finds them: it lists one folder, and starts again if that was replaced meanwhile."""
    while True:
        try:
            before = os.stat(root).st_ino
            names = [name for name in os.listdir(root) if name.endswith(".parquet")]
            if os.stat(root).st_ino == before:
                tables = [pq.ParquetFile(f"{root}/{name}").read().to_pylist() for name in names]
                break
        except FileNotFoundError:
            continue
    for rows in tables:
        yield from (tuple(row[name] for name in COLUMNS) for row in rows)


def run(task: Task) -> None:
    signal.alarm(_SECONDS)  # a worker that hangs is killed by the alarm
    read(task) if task["kind"] == "reader" else write(task)


def load_all() -> None:
    """Import what operations import, before workers are forked. They run in a fork: they start threads."""
    reading, writing = os.pipe()
    if not os.fork():
        for engine in ("pyarrow", "duckdb"):
            with tempfile.TemporaryDirectory() as folder:
                dataset = Dataset(f"{folder}/events", engine)
                dataset.write(table([(1, 1, 1, 1, 1)]))
                for operation in (
                    {"kind": "upsert", "rows": [(1, 1, 1, 1, 2), (2, 1, 1, 1, 2)]},
                    {"kind": "increment", "where": ("x", 1)},
                    {"kind": "optimize"},
                    {"kind": "repartition", "by": ["p"]},
                    {"kind": "undo", "back": 0},
                ):
                    carry_out(dataset, operation)
                dataset.read()
        os.write(writing, json.dumps([*sys.modules]).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as names:
        for name in json.load(names):
            if name.startswith(("parketto.", "sqlglot", "pandas", "numpy", "pyarrow")):
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
    os.wait()


def fork_workers() -> None:
    """Fork a worker for each task."""
    load_all()
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer: Any = [os.waitpid(each, 0)[1] for each in asked["wait"]]
        elif not (answer := os.fork()):
            status = 1
            try:
                run(asked)
                status = 0
            finally:
                if status:
                    sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
                os._exit(status)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run(json.loads(sys.argv[1])) if len(sys.argv) > 1 else fork_workers()
