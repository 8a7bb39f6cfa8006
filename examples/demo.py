"""The tour: a dataset of many small files is compacted and put in order, is killed in the middle, and recovers.

Run it with `make demo`. It works in a temporary folder and prints what changed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from parketto import Dataset, FileInfo, Progress

console = Console(width=100)
PRODUCTS = ["BTC-USD", "ETH-USD", "SOL-USD", "ADA-USD"]
DAYS = ["2025-11-24", "2025-11-25", "2025-11-26"]
FILES_PER_PARTITION = 25
ROWS_PER_FILE = 2_000


def make_market_data(root: str) -> None:
    """Ticks as a collector leaves them: a small file every few seconds, for each product and day."""
    rng = np.random.default_rng(42)
    for product_number, product in enumerate(PRODUCTS):
        for day_number, day in enumerate(DAYS):
            folder = Path(root) / f"product_id={product}" / f"date={day}"
            folder.mkdir(parents=True)
            for number in range(FILES_PER_PARTITION):
                start = (day_number * FILES_PER_PARTITION + number) * ROWS_PER_FILE
                bid = 100 * (product_number + 1) + rng.normal(0, 1, ROWS_PER_FILE).cumsum() / 50
                ticks = pa.table(
                    {
                        "time": pa.array(
                            start + rng.permutation(ROWS_PER_FILE).astype("int64"), pa.timestamp("ms", "UTC")
                        ),
                        "trade_id": rng.integers(0, 10**9, ROWS_PER_FILE),
                        "best_bid": bid,
                        "best_ask": bid + rng.gamma(2, 0.01, ROWS_PER_FILE),
                        "size": rng.gamma(2, 1, ROWS_PER_FILE),
                    }
                )
                pq.write_table(ticks, folder / f"ticks-{number:04d}.parquet")


def show(title: str, files: list[FileInfo]) -> None:
    """A dataset at a glance."""
    size = sum(file.size_bytes for file in files)
    table = Table(title=title, title_justify="left")
    for heading in ("partitions", "files", "rows", "MB", "KB per file"):
        table.add_column(heading, justify="right")
    table.add_row(
        str(len({file.directory for file in files})),
        str(len(files)),
        f"{sum(file.num_rows for file in files):,}",
        f"{size / 2**20:.1f}",
        f"{size / len(files) / 2**10:.0f}",
    )
    console.print(table)


def row_groups_read(dataset: Dataset, low: int, high: int) -> str:
    """How many row groups a query for a range of trade ids has to read, as their footers tell."""
    groups = [group.columns["trade_id"] for file in dataset.files() for group in file.row_groups]
    hit = sum(1 for stats in groups if stats.min <= high and stats.max >= low)
    return f"{hit} of {len(groups)} row groups"


def with_progress(title: str) -> tuple[ProgressBar, Callable[[Progress], None]]:
    """A progress bar and the callback that feeds it."""
    bar = ProgressBar(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    task = bar.add_task(title, total=None)
    return bar, lambda progress: bar.update(task, completed=progress.done, total=progress.total)


def kill_a_compaction(root: str) -> None:
    """Start a compaction in another process and kill it, hard, at some moment of its work."""
    code = "import sys; from parketto import Dataset; print('go', flush=True); Dataset(sys.argv[1]).compact()"
    victim = subprocess.Popen([sys.executable, "-c", code, root], stdout=subprocess.PIPE)
    assert victim.stdout is not None, "its output was asked for"
    victim.stdout.readline()
    time.sleep(random.Random().uniform(0.1, 0.4))
    victim.send_signal(signal.SIGKILL)
    victim.wait()


def main() -> None:
    """The tour."""
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "ticks")
        make_market_data(root)
        dataset = Dataset(root)
        before = dataset.files()
        rows = sum(file.num_rows for file in before)
        show("As the collector left it", before)

        console.print("\n[bold]1. Plan[/] – a dry run shows what would be done and touches nothing")
        plan = dataset.compact(target_mb_per_file=64, dry_run=True)
        console.print(f"   {plan['compacted_file_count']} files would become {plan['after_file_count']}")

        console.print("\n[bold]2. Crash[/] – the compaction is killed with SIGKILL in the middle")
        kill_a_compaction(root)
        console.print(f"   recovery: {dataset.recover()}")
        assert sum(file.num_rows for file in dataset.files()) == rows
        console.print(f"   all {rows:,} rows are there, each exactly once")

        console.print("\n[bold]3. Compact[/]")
        bar, callback = with_progress("   compacting partitions")
        with bar:
            dataset.compact(target_mb_per_file=64, progress=callback)
        show("Compacted", dataset.files())
        console.print(f"   a query for 1 % of the trade ids reads {row_groups_read(dataset, 0, 10**7)}")

        console.print("\n[bold]4. Put in order[/] – by trade_id, in smaller files")
        bar, callback = with_progress("   ordering partitions")
        with bar:
            dataset.optimize(["trade_id"], target_rows_per_file=10_000, progress=callback)
        show("In order", dataset.files())
        console.print(f"   a query for 1 % of the trade ids reads {row_groups_read(dataset, 0, 10**7)}")

        again = dataset.optimize(["trade_id"], target_rows_per_file=10_000)
        assert sum(file.num_rows for file in dataset.files()) == rows
        console.print(
            f"\nDone again: {again['compacted_file_count']} files rewritten. All {rows:,} rows are there."
        )
        console.print("What is on disk is a directory of ordinary Parquet files, and nothing else:")
        console.print(f"   {sorted(os.listdir(folder))} / {sorted(os.listdir(root))}")


if __name__ == "__main__":
    main()
