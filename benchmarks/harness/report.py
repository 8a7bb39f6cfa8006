"""Turns measurements into medians, ratios and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.contestants import Contestant
from harness.work import ALL_JOBS

MEASURED = (
    "seconds",
    "peak_mb",
    "python_mb",
    "jvm_mb",
    "workers_mb",
    "written",
    "size",
    "files",
    "scan_seconds",
    "jobs",
    "tasks",
    "returned",
    "cpu_seconds",
)
BAD = ("WRONG", "FAILED")


def summarise(runs: Sequence[Mapping[str, Any]], known: Mapping[str, Contestant]) -> list[dict[str, Any]]:
    """One row for each job, scale and contestant: medians over the rounds, and the ratio to Parketto.

    The ratio is the contestant's seconds divided by those of the Parketto engine that it is compared with: above
    1, Parketto is faster. If that engine did not take part, the first Parketto engine that did is used.
    """
    grouped: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        grouped.setdefault((run["job"], run["scale"], run["contestant"]), []).append(run)
    rows: list[dict[str, Any]] = []
    for (job, scale, name), group in grouped.items():
        row: dict[str, Any] = {"job": job, "scale": scale, "contestant": name, "rounds": len(group)}
        bad = next((run for run in group if run["outcome"] in BAD), None)
        row["outcome"], row["error"] = (bad["outcome"], bad["error"]) if bad else ("ok", "")
        good = [run for run in group if run["outcome"] != "FAILED"]
        for key in MEASURED:
            row[key] = (
                statistics.median(run.get(key, 0) for run in good) if good else None
            )  # older results lack some
        rows.append(row)
    for row in rows:
        row["against"], row["ratio"] = _ratio(row, rows, known)
    return rows


def _ratio(
    row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], known: Mapping[str, Contestant]
) -> tuple[str | None, float | None]:
    same = {
        other["contestant"]: other
        for other in rows
        if (other["job"], other["scale"]) == (row["job"], row["scale"]) and other["outcome"] == "ok"
    }
    ours = [name for name in same if name in known and known[name].is_parketto]
    wanted = known[row["contestant"]].against
    against = wanted if wanted in same else ours[0] if ours else None
    if against is None or row["seconds"] is None or not same[against]["seconds"]:
        return None, None
    return against, row["seconds"] / same[against]["seconds"]


HEADINGS = (
    "work",
    "contestant",
    "seconds",
    "ratio",
    "compared with",
    "peak MB",
    "JVM MB",
    "written MB",
    "result MB",
    "files",
    "scan s",
)


def lines(rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """The cells of the table; a job's name is only in its first row."""
    found: list[list[str]] = []
    seen: tuple[str, int] | None = None
    for row in rows:
        job = (row["job"], row["scale"])
        title = (
            "" if job == seen else ALL_JOBS[row["job"]].title + (f", {row['scale']}x" if row["scale"] > 1 else "")
        )
        seen = job
        if row["outcome"] in BAD and row["seconds"] is None:
            found.append([title, row["contestant"], row["outcome"], *[""] * 8])
            continue
        found.append(
            [
                title,
                row["contestant"],
                f"{row['seconds']:.2f}" + (" WRONG" if row["outcome"] == "WRONG" else ""),
                "" if row["ratio"] is None else f"{row['ratio']:.2f}x",
                "" if row["against"] in (None, row["contestant"]) else row["against"],
                f"{row['peak_mb']:,.0f}",
                f"{row['jvm_mb']:,.0f}" if row["jvm_mb"] else "",
                f"{row['written'] / 2**20:,.1f}",
                f"{row['size'] / 2**20:,.1f}",
                f"{row['files']:,.0f}",
                f"{row['scan_seconds']:.2f}" if row["scan_seconds"] else "",
            ]
        )
    return found


def problems(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Wrong results and failures, one line each."""
    return [
        f"{row['outcome']}: {row['contestant']}, {ALL_JOBS[row['job']].title}: {row['error']}"
        for row in rows
        if row["outcome"] in BAD
    ]


def _scales(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """The scales at which each job was measured."""
    found: dict[str, set[int]] = {}
    for row in rows:
        found.setdefault(row["job"], set()).add(row["scale"])
    return {job: tuple(sorted(scales)) for job, scales in found.items()}


def at_one_scale(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of jobs that were measured at one scale only."""
    scales = _scales(rows)
    return [row for row in rows if len(scales[row["job"]]) == 1]


def growth(rows: Sequence[Mapping[str, Any]]) -> list[tuple[list[str], list[list[str]]]]:
    """Seconds and memory by scale: one table for the jobs of the same scales, none for jobs of one scale."""
    by_scales: dict[tuple[int, ...], list[str]] = {}
    for job, scales in _scales(rows).items():
        if len(scales) > 1:
            by_scales.setdefault(scales, []).append(job)
    return [_growth([row for row in rows if row["job"] in jobs], scales) for scales, jobs in by_scales.items()]


def _growth(rows: Sequence[Mapping[str, Any]], scales: Sequence[int]) -> tuple[list[str], list[list[str]]]:
    found: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        if row["seconds"] is not None:
            found.setdefault((row["job"], row["contestant"]), {})[row["scale"]] = row
    headings = ["work", "contestant", *(f"{scale}x s" for scale in scales), *(f"{scale}x MB" for scale in scales)]
    cells = []
    for (job, name), by_scale in found.items():
        seconds = [f"{by_scale[s]['seconds']:.2f}" if s in by_scale else "" for s in scales]
        memory = [f"{by_scale[s]['peak_mb']:,.0f}" if s in by_scale else "" for s in scales]
        cells.append([ALL_JOBS[job].title, name, *seconds, *memory])
    return headings, cells


def markdown(headings: Sequence[str], cells: Iterable[Sequence[str]], left: int = 2) -> str:
    """A table in Markdown; the first columns are text.

    >>> print(markdown(["what", "s"], [["sort", "1.5"]], left=1))
    | what | s |
    |---|---:|
    | sort | 1.5 |
    """
    rules = ["---" if number < left else "---:" for number in range(len(headings))]
    rows = ["| " + " | ".join(headings) + " |", "|" + "|".join(rules) + "|"]
    return "\n".join([*rows, *("| " + " | ".join(row) + " |" for row in cells)])


def print_table(title: str, headings: Sequence[str], cells: Iterable[Sequence[str]], left: int = 2) -> None:
    """Print a table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right", no_wrap=number < left)
    for row in cells:
        marked = [f"[bold red]{cell}[/]" if any(bad in cell for bad in BAD) else cell for cell in row]
        table.add_row(*marked)
    console.print(table)


def replace_section(text: str, name: str, content: str) -> str:
    r"""A document in which the text between the two comments of a name is replaced, or added at the end.

    >>> replace_section("a <!-- begin x -->old<!-- end x --> z", "x", "new")
    'a <!-- begin x -->\n\nnew\n\n<!-- end x --> z'
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n\n{content}\n\n{end}"
    if begin not in text:
        return f"{text.rstrip()}\n\n{section}\n"
    head, rest = text.split(begin, 1)
    return head + section + rest.split(end, 1)[1]
