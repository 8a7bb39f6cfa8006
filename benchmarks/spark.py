"""Parketto on Spark beside the Spark jobs that one writes by hand, in a warm session: seconds, memory, jobs.

With `--driver` instead: what the driver needs to compact 100,000 files, and to repartition into 10,000 folders.

Sources are DataFrames. Each of the two works in a process of its own, with the same settings, after the same work
on a few rows. A ratio above 1x: Parketto is faster. The exit code says whether all rows were right.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import run
from harness import machine, report
from harness.contestants import contestants
from harness.measure import Setting
from harness.work import ALL_JOBS, DRIVER_JOBS, ON_SPARK, SPARK_JOBS

ROWS, QUICK_ROWS = 4_000_000, 100_000
HEADINGS = (
    "work",
    "by hand s",
    "Parketto s",
    "ratio",
    "target",
    "CPU ratio",
    "driver MB",
    "JVM MB",
    "workers MB",
    "by hand MB",
    "Spark jobs",
    "files",
)


DRIVER_ROWS, QUICK_DRIVER_ROWS = 1_000_000, 100_000
DRIVER_HEADINGS = (
    "work",
    "rows",
    "input MB",
    "files after",
    "seconds",
    "driver MB",
    "JVM MB",
    "workers MB",
    "Spark jobs",
    "tasks",
    "returned MB",
    "returned bytes a row",
)


def main() -> int:
    """Measure, and print one table."""
    arguments = parse(sys.argv[1:])
    known = {name: contestants()[name] for name in (ON_SPARK[:1] if arguments.driver else ON_SPARK)}
    runs: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        work = arguments.work or stack.enter_context(tempfile.TemporaryDirectory(prefix="parketto-bench-"))
        os.makedirs(work, exist_ok=True)
        setting = Setting(work, timeout=arguments.timeout)
        for name in arguments.jobs:
            for scale in ALL_JOBS[name].scales:
                runs += run.run_job(name, scale, list(known.values()), setting, arguments)
    rows = report.summarise(runs, known)
    if arguments.driver:
        title = f"what the driver needs, medians of {arguments.rounds}"
        headings, cells = DRIVER_HEADINGS, driver_lines(rows, runs)
    else:
        title = (
            f"{arguments.base_rows:,} rows, medians of {arguments.rounds}; a ratio above 1x: Parketto is faster"
        )
        headings, cells = HEADINGS, lines(rows)
    report.print_table(title, headings, cells, left=1)
    for problem in report.problems(rows):
        print(problem)
    if arguments.json:
        os.makedirs(os.path.dirname(os.path.abspath(arguments.json)), exist_ok=True)
        with open(arguments.json, "w") as file:
            json.dump({"machine": machine.about(False), "runs": runs, "summary": rows}, file, indent=1)
    if arguments.docs:
        write_document("driver" if arguments.driver else "spark", title, headings, cells)
    return int(any(run.is_bad(row, known) for row in rows))


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="all kinds of work once, on little data")
    parser.add_argument(
        "--jobs",
        nargs="+",
        choices=(*SPARK_JOBS, *DRIVER_JOBS),
        metavar="JOB",
        help=", ".join(SPARK_JOBS),
    )
    parser.add_argument("--driver", action="store_true", help="what the driver needs: " + ", ".join(DRIVER_JOBS))
    parser.add_argument("--base-rows", type=int, help=f"{ROWS:,}, in a quick run {QUICK_ROWS:,}")
    parser.add_argument("--rounds", type=int, help="3, in a quick run 1")
    parser.add_argument("--work", help="a folder for data, which is kept; by default a temporary one")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds after which a run counts as failed")
    parser.add_argument("--json", metavar="PATH", help="write every measurement there")
    parser.add_argument("--docs", action="store_true", help="put the table into docs/benchmarks.md")
    arguments = parser.parse_args(given)
    usual, quick = (DRIVER_ROWS, QUICK_DRIVER_ROWS) if arguments.driver else (ROWS, QUICK_ROWS)
    arguments.base_rows = arguments.base_rows or (quick if arguments.quick else usual)
    arguments.rounds = arguments.rounds or (1 if arguments.quick or arguments.driver else 3)
    arguments.jobs = arguments.jobs or list(DRIVER_JOBS if arguments.driver else SPARK_JOBS)
    return arguments


def lines(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each kind of work."""
    found = {(row["job"], row["contestant"]): row for row in rows}
    cells = []
    for name, job in SPARK_JOBS.items():
        pair = [found.get((name, contestant)) for contestant in ON_SPARK]
        if None in pair:
            continue
        ours, hand = pair
        if any(row["seconds"] is None for row in (ours, hand)):
            cells.append([job.title, *(row["outcome"] for row in (hand, ours)), *[""] * 9])
            continue
        cells.append(
            [
                job.title,
                f"{hand['seconds']:.2f}",
                f"{ours['seconds']:.2f}" + (" WRONG" if ours["outcome"] == "WRONG" else ""),
                f"{hand['seconds'] / ours['seconds']:.2f}x",
                "" if job.target is None else f"{job.target}x",
                f"{hand['cpu_seconds'] / ours['cpu_seconds']:.2f}x",
                f"{ours['python_mb']:,.0f}",
                f"{ours['jvm_mb']:,.0f}",
                f"{ours['workers_mb']:,.0f}",
                f"{hand['peak_mb']:,.0f}",
                f"{ours['jobs']:.0f}",
                f"{ours['files']:,.0f}",
            ]
        )
    return cells


def driver_lines(rows: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each kind of work, and its size."""
    inputs = {(one["job"], one["scale"]): (one["input_rows"], one["input_bytes"]) for one in runs}
    cells = []
    for row in rows:
        given, size = inputs[row["job"], row["scale"]]
        title = f"{ALL_JOBS[row['job']].title}, {row['scale']}x"
        if row["seconds"] is None:
            cells.append([title, row["outcome"], *[""] * (len(DRIVER_HEADINGS) - 2)])
            continue
        cells.append(
            [
                title,
                f"{given:,}",
                f"{size / 2**20:,.0f}",
                f"{row['files']:,.0f}",
                f"{row['seconds']:.1f}" + (" WRONG" if row["outcome"] == "WRONG" else ""),
                *(f"{row[key]:,.0f}" for key in ("python_mb", "jvm_mb", "workers_mb", "jobs", "tasks")),
                f"{row['returned'] / 2**20:,.1f}",
                f"{row['returned'] / given:,.1f}",
            ]
        )
    return cells


def write_document(section: str, title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """The table, where readers of the documentation find it."""
    with open(run.DOCUMENT) as file:
        text = file.read()
    table = report.markdown(headings, cells, left=1)
    with open(run.DOCUMENT, "w") as file:
        file.write(report.replace_section(text, section, f"{title}.\n\n{table}"))


if __name__ == "__main__":
    sys.exit(main())
