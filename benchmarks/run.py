"""Measures every operation of Parketto and of its peers: seconds, memory, bytes, and whether rows are right.

Each contestant works on fresh links to the same data, in a process of its own, after the same work on a few rows;
rounds are interleaved, and tables show medians. Seconds depend on the machine: compare the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness import data, machine, peers, report, targets
from harness.checks import Reader
from harness.contestants import PEERS, Contestant, contestants
from harness.measure import Setting
from harness.request import Request
from harness.work import ALL_JOBS, JOBS, Job, request_for

DOCUMENT = os.path.join(peers.PROJECT, "docs", "benchmarks.md")
BASE_ROWS = 10_000_000
QUICK_ROWS = 200_000
QUICK_ALWAYS = ("parketto/duckdb",)
WARM_ROWS, WARM_FILES = 2_000, 4


def main() -> int:
    """Run the rounds and report; the exit code says whether all rows were right."""
    arguments = parse(sys.argv[1:])
    started = time.perf_counter()
    if arguments.earlier:
        known = contestants()
        result = together(arguments.earlier, known)
        tell(result, arguments)
        return int(any(is_bad(row, known) for row in result["summary"]))
    known = available(contestants())
    about = machine.about(PEERS in {contestant.environment for contestant in known.values()})
    runs: list[dict[str, Any]] = []
    options = {"memory_mb": arguments.memory_mb} if arguments.memory_mb else {}
    with contextlib.ExitStack() as stack:
        if arguments.work is None:
            arguments.work = stack.enter_context(tempfile.TemporaryDirectory(prefix="parketto-bench-"))
        os.makedirs(arguments.work, exist_ok=True)
        setting = Setting(arguments.work, timeout=arguments.timeout, profile=arguments.profile, options=options)
        for name in arguments.jobs:
            for scale in arguments.scale or JOBS[name].scales:
                chosen = takes_part(name, known, arguments)
                runs += run_job(name, scale, chosen, setting, arguments)
                save(result_of(runs, known, about, arguments), arguments)  # hours of work may be interrupted
    result = result_of(runs, known, about, arguments)
    tell(result, arguments)
    print(f"{time.perf_counter() - started:.0f} s in all", file=sys.stderr)
    return int(any(is_bad(row, known) for row in result["summary"]))


def result_of(
    runs: list[dict[str, Any]], known: dict[str, Contestant], about: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """What is known so far."""
    rows = report.summarise(runs, known)
    return {
        "machine": about,
        "base_rows": arguments.base_rows,
        "rounds": arguments.rounds,
        "runs": runs,
        "summary": rows,
        "targets": targets.judged(rows),
    }


def save(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Everything, as JSON, if that was asked for."""
    if arguments.json:
        os.makedirs(os.path.dirname(os.path.abspath(arguments.json)), exist_ok=True)
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The arguments; a quick run only changes their defaults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="all kinds of work once, on little data")
    parser.add_argument("--targets", action="store_true", help="only what the targets need, job by job")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--contestants", nargs="+", metavar="NAME", help=", ".join(contestants()))
    parser.add_argument("--base-rows", type=int, help=f"rows at 1x; {BASE_ROWS:,}, in a quick run {QUICK_ROWS:,}")
    parser.add_argument(
        "--scale", type=int, nargs="+", help="multiples of the base, such as 1 4 16; by default those of each job"
    )
    parser.add_argument("--rounds", type=int, help="3, in a quick run 1")
    parser.add_argument("--work", help="a folder for data, which is kept; by default a temporary one")
    parser.add_argument("--memory-mb", type=int, help="how much memory Parketto may use for data")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds after which a run counts as failed")
    parser.add_argument("--profile", metavar="FOLDER", help="write there where Parketto's own process spends time")
    parser.add_argument("--json", metavar="PATH", help="write every measurement there")
    parser.add_argument(
        "--plot", metavar="FOLDER", help="draw ratios and growth there: operations.svg, growth.svg"
    )
    parser.add_argument(
        "--docs", action="store_true", help="put tables into docs/benchmarks.md, plots beside them"
    )
    parser.add_argument(
        "--from",
        dest="earlier",
        nargs="+",
        metavar="PATH",
        help="measure nothing; report, plot and document results that --json wrote there, as one run",
    )
    arguments = parser.parse_args(given)
    if unknown := set(arguments.contestants or ()) - set(contestants()):
        parser.error(f"unknown contestants: {', '.join(sorted(unknown))}; there are: {', '.join(contestants())}")
    arguments.base_rows = arguments.base_rows or (QUICK_ROWS if arguments.quick else BASE_ROWS)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    arguments.jobs = arguments.jobs or [name for name in JOBS if not arguments.targets or targets.needed(name)]
    if arguments.docs:
        arguments.plot = arguments.plot or os.path.join(os.path.dirname(DOCUMENT), "images")
    return arguments


def together(paths: Sequence[str], known: dict[str, Contestant]) -> dict[str, Any]:
    """Measurements of several runs, of different work or contestants, as if they were of one."""
    results = []
    for path in paths:
        with open(path) as file:
            results.append(json.load(file))
    if len({result["base_rows"] for result in results}) > 1:
        raise SystemExit("these runs had different numbers of rows at 1x")
    order = list(ALL_JOBS)
    runs = sorted((run for result in results for run in result["runs"]), key=lambda run: order.index(run["job"]))
    summary = report.summarise(runs, known)
    found = {"runs": runs, "summary": summary, "targets": targets.judged(summary)}
    return {**results[0], **found, "rounds": max(row["rounds"] for row in summary)}


def available(known: dict[str, Contestant]) -> dict[str, Contestant]:
    """Those whose environment can be made."""
    found = {}
    for name, contestant in known.items():
        try:
            peers.python_of(contestant.environment)
        except RuntimeError as problem:
            print(f"without {name}: {problem}", file=sys.stderr)
        else:
            found[name] = contestant
    return found


def takes_part(job: str, known: dict[str, Contestant], arguments: argparse.Namespace) -> list[Contestant]:
    """Who does a job: those who can, and were asked for."""
    asked, needed = JOBS[job], targets.needed(job)
    wanted = arguments.contestants
    if wanted is None and arguments.targets:
        wanted = needed
    elif wanted is None and arguments.quick:
        wanted = {*QUICK_ALWAYS, *asked.in_quick, *needed}
    elif wanted is None:
        wanted = {name for name, contestant in known.items() if not contestant.on_request}
    return [
        contestant
        for name, contestant in known.items()
        if name in wanted
        and asked.operation in contestant.operations
        and (not asked.only or name in asked.only)
        and (not contestant.jobs or job in contestant.jobs)
    ]


def run_job(
    name: str, scale: int, chosen: list[Contestant], setting: Setting, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """All rounds of a job, contestants in turns, every other round backwards."""
    job = ALL_JOBS[name]
    made = data.make(job.kind, setting.work, arguments.base_rows, scale)
    request, warm = request_for(job, made, setting.work), warm_request(job, setting.work)
    files = data.parquet_files(made.root)
    reader = Reader(files)
    expected = reader.digest(files, request.query())
    runs = []
    for number in range(arguments.rounds):
        for contestant in chosen[:: -1 if number % 2 else 1]:
            measured = setting.measure(contestant, request, warm, reader, expected)
            runs.append(
                {
                    "job": name,
                    "scale": scale,
                    "contestant": contestant.name,
                    "round": number,
                    "input_bytes": made.bytes,
                    "input_rows": made.rows,
                    **measured.plain(),
                }
            )
            said = f"{measured.seconds:.2f} s" if measured.outcome == "ok" else measured.outcome
            print(
                f"{name} {scale}x, round {number + 1}: {contestant.name}: {said} {measured.error}", file=sys.stderr
            )
    return runs


def warm_request(job: Job, work: str) -> Request:
    """The same work on a few rows."""
    root = os.path.join(work, f"warm-{job.kind}")
    if not os.path.isdir(root):
        data.write(data.KINDS[job.kind], root, WARM_ROWS, WARM_FILES)
    files = data.parquet_files(root)
    made = data.Made(job.kind, root, WARM_ROWS, len(files), sum(map(os.path.getsize, files)))
    return replace(request_for(job, made, work), parts=1)


def tell(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Tables, and whatever files were asked for."""
    rows = result["summary"]
    title = (
        f"{result['base_rows']:,} rows at 1x, medians of {result['rounds']}; a ratio above 1x: Parketto is faster"
    )
    report.print_table(title, report.HEADINGS, report.lines(rows))
    for problem in report.problems(rows):
        print(problem)
    for headings, cells in report.growth(rows):
        report.print_table("growth", headings, cells)
    report.print_table(f"targets: {judgement(result)}", targets.HEADINGS, targets.lines(result["targets"]))
    save(result, arguments)
    if arguments.plot:
        plot(result, arguments.plot)
    if arguments.docs:
        write_document(result)


def plot(result: dict[str, Any], folder: str) -> None:
    """Draw it, where there is something to draw with."""
    variables = {**os.environ, "PYTHONPATH": peers.HERE}
    command = [peers.python_of(PEERS), "-m", "harness.plots", os.path.abspath(folder)]
    subprocess.run(command, check=True, env=variables, input=json.dumps(result["summary"]), text=True)


def judgement(result: dict[str, Any]) -> str:
    """How many targets were met, and how to read them."""
    verdicts = [row["verdict"] for row in result["targets"]]
    met, missed = verdicts.count("met"), sum(verdict.startswith(targets.MISSED) for verdict in verdicts)
    said = f"{met} met, {missed} missed, {len(verdicts) - met - missed} not measured"
    if result["base_rows"] != BASE_ROWS:
        said += f"; they are for {BASE_ROWS:,} rows at 1x, these were {result['base_rows']:,}"
    return said


def write_document(result: dict[str, Any]) -> None:
    """The tables, where readers of the documentation find them."""
    about = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    said = f"{about['cores']} cores, {about['memory_gb']} GB, Python {about['python']}; {versions}. "
    rounds = sorted({row["rounds"] for row in result["summary"]})
    said += f"{result['base_rows']:,} rows at 1x, medians of {' or '.join(map(str, rounds))} rounds."
    sections = {}
    if once := report.at_one_scale(result["summary"]):
        sections["operations"] = f"{said}\n\n{report.markdown(report.HEADINGS, report.lines(once))}"
    if tables := report.growth(result["summary"]):
        sections["growth"] = "\n\n".join([said, *(report.markdown(*table) for table in tables)])
    judged = report.markdown(targets.HEADINGS, targets.lines(result["targets"]))
    sections["targets"] = f"{judgement(result)[0].upper()}{judgement(result)[1:]}. {said}\n\n{judged}"
    with open(DOCUMENT) as file:
        text = file.read()
    for name, content in sections.items():
        text = report.replace_section(text, name, content)
    with open(DOCUMENT, "w") as file:
        file.write(text)


def is_bad(row: dict[str, Any], known: dict[str, Contestant]) -> bool:
    """Wrong rows, whoever made them; and whatever Parketto could not do."""
    return row["outcome"] == "WRONG" or (row["outcome"] == "FAILED" and known[row["contestant"]].is_parketto)


if __name__ == "__main__":
    sys.exit(main())
