"""Upserts with DuckDB: seconds, peak memory and bytes written, next to one COPY of the same dataset.

Each contestant works on its own copy of the data, in a process of its own, several rounds interleaved; the table
shows medians, and contents are checked. `--large` shows instead what a merge and an ordering need whose data is
several times the memory that they may use.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parketto import Dataset
from trades import make_data, make_source, megabytes, peak_mb

SOURCE_ROWS = 1_000
LARGE_MEMORY_MB = 256


def parketto(source: str) -> Callable[[str], None]:
    """In place, crash-safe, on the DuckDB engine."""

    def run(root: str) -> None:
        Dataset(root, engine="duckdb").merge(f"{root}-sources/{source}.parquet", "id")

    return run


def copy(root: str) -> None:
    """All rows, once, to somewhere else: the least that a rewrite of the whole dataset can cost."""
    duckdb.sql(f"COPY (FROM '{root}/*.parquet') TO '{root}-out' (FORMAT parquet, PER_THREAD_OUTPUT)")


def by_hand(root: str) -> None:
    """The upsert that one would write by hand: everything, with the new rows in the place of the old."""
    new = f"'{root}-sources/all over.parquet'"
    duckdb.sql(
        f"COPY (SELECT * FROM '{root}/*.parquet' ANTI JOIN {new} USING (id) UNION ALL FROM {new}) "
        f"TO '{root}-out' (FORMAT parquet, PER_THREAD_OUTPUT)"
    )


CONTESTANTS: dict[str, tuple[Callable[[str], None], str | None]] = {
    "parketto, keys in one file": (parketto("one file"), "one file"),
    "parketto, keys all over": (parketto("all over"), "all over"),
    "by hand, keys all over": (by_hand, "all over"),
    "one COPY, nothing changed": (copy, None),
}


def content(root: str) -> tuple[object, ...]:
    """Numbers that do not depend on the order of rows."""
    return duckdb.sql(f"SELECT count(*), sum(hash(t)::HUGEINT) FROM '{root}/*.parquet' AS t").fetchall()[0]


def expected(root: str, source: str | None) -> tuple[object, ...]:
    """What must come out, by the plainest query."""
    rows = f"FROM '{root}/*.parquet'"
    if source is not None:
        new = f"'{root}-sources/{source}.parquet'"
        rows = f"SELECT * FROM '{root}/*.parquet' ANTI JOIN {new} USING (id) UNION ALL FROM {new}"
    return duckdb.sql(f"SELECT count(*), sum(hash(t)::HUGEINT) FROM ({rows}) AS t").fetchall()[0]


def measure(name: str, source: str, folder: str, wanted: tuple[object, ...]) -> dict[str, float]:
    """One contestant, once, in its own process."""
    root = f"{folder}/work"
    shutil.copytree(source, root)
    os.sync()  # what the copy left to be written is not to be paid by whoever syncs next
    os.symlink(f"{source}-sources", f"{root}-sources")
    before = {entry.name: entry.stat().st_ino for entry in os.scandir(root)}
    result: dict[str, float] = _in_process("--contestant", name, "--root", root)
    out = f"{root}-out" if os.path.isdir(f"{root}-out") else root
    written = [e for e in os.scandir(out) if out != root or before.get(e.name) != e.stat().st_ino]
    result["written"] = sum(entry.stat().st_size for entry in written) / 1e6
    assert content(out) == wanted, f"{name} changed the contents"
    shutil.rmtree(root)
    shutil.rmtree(f"{root}-out", ignore_errors=True)
    os.unlink(f"{root}-sources")
    return result


def _in_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, *arguments]
    found: dict[str, float] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return found


def compare(files: int, rows: int, rounds: int) -> None:
    """Run the rounds and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/source"
        make_data(source, files, rows)
        os.makedirs(f"{source}-sources")
        each = rows // files
        narrow = np.arange(each, each + min(SOURCE_ROWS, each // 2))
        pq.write_table(make_source(narrow), f"{source}-sources/one file.parquet")
        scattered = np.linspace(0, rows - 1, SOURCE_ROWS).astype(np.int64)
        pq.write_table(make_source(scattered), f"{source}-sources/all over.parquet")
        print(f"upsert of {SOURCE_ROWS:,} rows; {files} files, {rows:,} rows, {megabytes(source):,.0f} MB")
        wanted = {name: expected(source, given) for name, (_, given) in CONTESTANTS.items()}
        results: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
        for _ in range(rounds):
            for name, measured in results.items():
                measured.append(measure(name, source, folder, wanted[name]))
        baseline = statistics.median(each["seconds"] for each in results["one COPY, nothing changed"])
        print(f"{'':28s}{'seconds':>9s}{'of COPY':>9s}{'peak MB':>9s}{'written MB':>12s}")
        for name, measured in results.items():
            seconds, peak, written = (
                statistics.median(each[what] for each in measured) for what in ("seconds", "peak_mb", "written")
            )
            print(f"{name:28s}{seconds:9.2f}{seconds / baseline:9.2f}{peak:9.0f}{written:12.1f}")


def larger_than_memory(rows: int) -> None:
    """A merge and an ordering of data that is several times the memory that they may use."""
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/data"
        make_data(root, 40, rows)
        decoded = sum(pq.read_table(e.path).nbytes for e in os.scandir(root)) / 1e6
        os.makedirs(f"{root}-sources")
        ids = np.random.default_rng(5).permutation(rows + rows // 20)[: rows // 5]
        pq.write_table(make_source(ids), f"{root}-sources/many.parquet")
        wanted = expected(root, "many")
        print(f"{rows:,} rows, {decoded:,.0f} MB decoded, of which {LARGE_MEMORY_MB} MB may be in memory")
        for operation in ("merge", "optimize"):
            found = _in_process("--large-step", operation, "--root", root)
            assert content(root) == wanted, f"{operation} changed the contents"
            print(
                f"{operation:10s}{found['seconds']:7.1f} s, peak {found['peak_mb']:,.0f} MB "
                f"({found['before_mb']:,.0f} MB of it before the work began)"
            )


def large_step(operation: str, root: str) -> None:
    """One step of the above, in a process of its own."""
    dataset = Dataset(root, engine="duckdb", memory_mb=LARGE_MEMORY_MB)
    pa.table({"a": [1]})
    before, start = peak_mb(), time.perf_counter()
    if operation == "merge":
        dataset.merge(f"{root}-sources/many.parquet", "id")
    else:
        dataset.optimize(["product", "price"])
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak_mb": peak_mb(), "before_mb": before}))


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--contestant")
    parser.add_argument("--large-step")
    parser.add_argument("--root")
    arguments = parser.parse_args()
    if arguments.contestant:
        Dataset(arguments.root, engine="duckdb").files()  # what is imported lazily is there
        start = time.perf_counter()
        CONTESTANTS[arguments.contestant][0](arguments.root)
        print(json.dumps({"seconds": time.perf_counter() - start, "peak_mb": peak_mb()}))
    elif arguments.large_step:
        large_step(arguments.large_step, arguments.root)
    elif arguments.large:
        larger_than_memory(max(arguments.rows, 20_000_000))
    else:
        compare(arguments.files, arguments.rows, arguments.rounds)


if __name__ == "__main__":
    main()
