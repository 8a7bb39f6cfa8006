"""Compaction of 1,000 files: seconds, peak memory and contents, next to plain PyArrow in the same run.

Each contestant works on its own copy of the data, in a process of its own, several rounds interleaved; the
table shows medians. Seconds depend on the machine: compare the ratios.
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

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq


def make_data(root: str, files: int, rows: int) -> None:
    """Market data: times, prices, sizes, a product and an order id, all seeded."""
    os.makedirs(root)
    rng = np.random.default_rng(7)
    products = np.array([f"PRODUCT-{number:04d}" for number in range(500)])
    for number in range(files):
        table = pa.table(
            {
                "time": pa.array(
                    1_700_000_000_000_000 + number * rows + np.arange(rows), pa.timestamp("us", "UTC")
                ),
                "order_id": pa.array(rng.integers(0, 2**62, rows)).cast(pa.string()),
                "product": products[rng.integers(0, len(products), rows)],
                "price": np.round(rng.normal(100, 5, rows), 2),
                "size": rng.random(rows),
                "side": rng.integers(0, 2, rows).astype(bool),
            }
        )
        pq.write_table(table, f"{root}/part-{number:05d}.parquet")


def run_parketto(root: str) -> None:
    """Compact in place, crash-safe."""
    from parketto import Dataset

    Dataset(root, engine="pyarrow").compact(target_mb_per_file=128)


def run_pyarrow_dataset(root: str) -> None:
    """What people write by hand: scan, write next to it, delete, move. No crash safety at all."""
    dataset = ds.dataset(root, format="parquet")
    ds.write_dataset(
        dataset,
        f"{root}-new",
        format="parquet",
        max_rows_per_file=3_000_000,
        max_rows_per_group=1_000_000,
        min_rows_per_group=500_000,
    )
    shutil.rmtree(root)
    os.rename(f"{root}-new", root)


def run_pyarrow_table(root: str) -> None:
    """The shortest script there is: everything through memory."""
    table = pq.read_table(root)
    shutil.rmtree(root)
    os.makedirs(root)
    pq.write_table(table, f"{root}/all.parquet")


CONTESTANTS = {
    "parketto (pyarrow engine)": run_parketto,
    "pyarrow write_dataset": run_pyarrow_dataset,
    "pyarrow read_table": run_pyarrow_table,
}


def content_hash(root: str) -> str:
    """A number that does not depend on the order of rows or files: the sum of a hash of every column."""
    total = 0
    for batch in ds.dataset(root, format="parquet").to_batches():
        ids = np.array([int(value) for value in batch.column("order_id").to_pylist()], dtype=np.uint64)
        times = batch.column("time").cast(pa.int64()).to_numpy().astype(np.uint64)
        prices = batch.column("price").to_numpy().view(np.uint64)
        total = (total + int((ids ^ (times * np.uint64(31)) ^ prices).sum(dtype=np.uint64))) % 2**64
    return f"{total:016x}"


def peak_mb() -> float:
    """The most memory that this program has had; a child's `ru_maxrss` would begin with its parent's."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def measure(name: str, source: str, folder: str) -> dict[str, float | str | int]:
    """One contestant, once, in its own process."""
    root = f"{folder}/work"
    shutil.copytree(source, root)
    os.sync()  # what the copy left to be written is not to be paid by whoever syncs next
    output = subprocess.run(
        [sys.executable, __file__, "--contestant", name, "--root", root],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    result = json.loads(output)
    result["content"] = content_hash(root)
    result["files"] = len(os.listdir(root))
    shutil.rmtree(root)
    return result


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestant")
    parser.add_argument("--root")
    arguments = parser.parse_args()
    if arguments.contestant:
        start = time.perf_counter()
        CONTESTANTS[arguments.contestant](arguments.root)
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "peak_mb": peak_mb()}))
        return
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/source"
        make_data(source, arguments.files, arguments.rows)
        size = sum(entry.stat().st_size for entry in os.scandir(source)) / 2**20
        expected = content_hash(source)
        print(f"{arguments.files} files, {arguments.files * arguments.rows:,} rows, {size:,.0f} MB")
        results: dict[str, list[dict[str, float | str | int]]] = {name: [] for name in CONTESTANTS}
        for _ in range(arguments.rounds):
            for name, measured in results.items():
                measured.append(measure(name, source, folder))
                assert measured[-1]["content"] == expected, f"{name} changed the contents"
        baseline = statistics.median(float(r["seconds"]) for r in results["parketto (pyarrow engine)"])
        print(f"{'':28s}{'seconds':>9s}{'ratio':>8s}{'peak MB':>9s}{'files':>7s}")
        for name, measured in results.items():
            seconds = statistics.median(float(r["seconds"]) for r in measured)
            peak = statistics.median(float(r["peak_mb"]) for r in measured)
            print(f"{name:28s}{seconds:9.2f}{seconds / baseline:8.2f}{peak:9.0f}{measured[-1]['files']:7d}")


if __name__ == "__main__":
    main()
