"""How much memory an operation adds to what its process has: `python -m helpers.memory ROOT OPERATION MB ENGINE`.

The process does the same work on a few rows first: libraries, sessions and workers are there. Then the
kernel forgets the peaks of all processes, and the operation runs. On Spark Python workers are measured, and the
driver's Python process; the JVM manages memory by settings of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MEGABYTE = 2**20
OPERATIONS = ("write", "compact", "cluster", "repartition", "delete", "update", "merge")


def measure(root: str, operation: str, memory_mb: int, engine: str) -> dict[str, int]:
    """The megabytes that the operation added: to the `driver`, and on Spark to the largest `worker`."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "helpers.memory", root, operation, str(memory_mb), engine],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


# All have an odd number of files, so that each of them has odd and even keys, all over the range.


def large_values(root: str, files: int = 5) -> None:
    """Values of 64 MB that cannot be compressed, two in each file and its row group."""

    def rows(number: int) -> pa.Table:
        rng = np.random.default_rng(number)
        values = [rng.bytes(64 * MEGABYTE) for _ in "ab"]
        return pa.table({"n": [number, number + files], "p": [0, 1], "m": [number, 0], "value": values})

    _write(root, files, rows, compression="none")


def highly_compressed(root: str, files: int = 3) -> None:
    """Three files of 2 MB or so, a gigabyte once they are decoded: long texts of which there are few."""
    count = 350_000
    rng = np.random.default_rng(1)
    texts = pa.array([rng.bytes(500).hex() for _ in range(1000)])

    def rows(number: int) -> pa.Table:
        some = [texts.take(pa.array(rng.integers(0, len(texts), 50_000))) for _ in range(count // 50_000)]
        n = rng.permutation(count) * files + number
        return pa.table({"n": n, "p": n % 2, "m": n[::-1] // 7, "value": pa.chunked_array(some)})

    _write(root, files, rows, row_group_size=count)


def hundred_columns(root: str, files: int = 5) -> None:
    """Numbers and short texts, 150 MB in each file once it is decoded, in one row group."""
    count = 200_000
    words = pa.array([f"level-{number}" for number in range(50)])

    def rows(number: int) -> pa.Table:
        rng = np.random.default_rng(number)
        n = rng.permutation(count) * files + number
        columns: dict[str, Any] = {"n": n, "p": n % 2, "m": rng.integers(0, 2**40, count)}
        for at in range(97):
            columns[f"c{at:02d}"] = (
                words.take(pa.array(rng.integers(0, 50, count))) if at % 4 == 0 else rng.integers(0, 10_000, count)
            )
        return pa.table(columns)

    _write(root, files, rows, row_group_size=count)


def _write(root: str, files: int, rows: Callable[[int], pa.Table], **options: Any) -> None:
    """Files, a few rows of the same schema to warm up with, and a source to merge: some old keys, and some new."""
    for folder in (root, f"{root}-few", f"{root}-source", f"{root}-few-source"):
        os.makedirs(folder)
    for number in range(files):
        table = rows(number)
        pq.write_table(table, f"{root}/{number}.parquet", **options)
        if number == 0:
            some = table.slice(0, max(1, table.num_rows // 10))
            both = pa.concat_tables([some, some.set_column(0, "n", pa.array(np.arange(len(some)) + 10**9))])
            pq.write_table(both, f"{root}-source/0.parquet", **options)
            few = table.slice(0, 20)
            if few.nbytes > MEGABYTE:
                few = few.set_column(few.num_columns - 1, "value", pa.array([b"x"] * len(few), pa.binary()))
            for at in range(2):
                pq.write_table(
                    few.set_column(0, "n", pa.array(np.arange(len(few)) + at * 100)), f"{root}-few/{at}.parquet"
                )
            pq.write_table(few, f"{root}-few-source/0.parquet")


def _perform(root: str, operation: str, memory_mb: int, engine: str) -> None:
    from parketto import Dataset, sql

    dataset = Dataset(root, memory_mb=memory_mb, engine=engine, retention=0)
    if operation == "write":
        Dataset(f"{root}-written", memory_mb=memory_mb, engine=engine).write(root)
    elif operation == "compact":
        dataset.compact(target_mb_per_file=1024, rewrite="encode")
    elif operation == "cluster":
        dataset.optimize(["n", "m"], target_mb_per_file=1024)
    elif operation == "repartition":
        dataset.repartition("p")
    elif operation == "delete":
        dataset.delete("n % 2 = 0")
    elif operation == "update":
        dataset.update("n % 2 = 0", {"m": sql("m + 1")})
    else:
        dataset.merge(f"{root}-source", "n")


def _pythons() -> dict[int, str]:
    """This process and the Python processes below it, as `driver` and `worker`."""
    parents, names = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as stat:
            name, rest = stat.read().split("(", 1)[1].rsplit(")", 1)
            parents[int(entry)], names[int(entry)] = int(rest.split()[1]), name
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: "driver" if pid == os.getpid() else "worker" for pid in found if names.get(pid) != "java"}


def _status(pid: int, key: str) -> int:
    with contextlib.suppress(OSError, StopIteration), open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith(key))
    return 0


def main() -> None:
    """Warm up, measure, print."""
    root, operation, given, engine = sys.argv[1:]
    memory_mb = int(given)
    import polars as pl  # noqa: F401 - what Parketto would load later

    _perform(f"{root}-few", operation, memory_mb, engine)
    before = {}
    for pid in _pythons():
        before[pid] = _status(pid, "VmRSS")
        with contextlib.suppress(OSError), open(f"/proc/{pid}/clear_refs", "w") as file:
            file.write("5")
    usual = max([0, *(mb for pid, mb in before.items() if pid != os.getpid())])
    added = {"driver": 0, "worker": 0}

    def look() -> None:
        for pid, kind in _pythons().items():
            added[kind] = max(added[kind], _status(pid, "VmHWM") - before.get(pid, usual))

    def look_often() -> None:  # peaks are the kernel's, but those of workers that end are gone
        while not done.wait(0.2):
            look()

    done = threading.Event()
    watcher = threading.Thread(target=look_often)
    if engine == "spark":
        watcher.start()
    _perform(root, operation, memory_mb, engine)
    done.set()
    if engine == "spark":
        watcher.join()
    look()
    print(json.dumps({**added, "before": before[os.getpid()], "worker_before": usual}))


if __name__ == "__main__":
    main()
