"""Commands that examine a dataset: health, report, check."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

import parketto
from parketto.cli import options, render, shapes
from parketto.cli.command import Command, CommandContext
from parketto.cli.exits import Exit, UsageProblem
from parketto.cli.output import Result
from parketto.errors import quoted
from parketto.health.text import counted, percent, size_text

Columns = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="COLUMNS", help="The columns that queries filter by: user,day"),
]


def health(
    context: CommandContext,
    path: options.DatasetPath,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="PROBLEMS",
            help="Exit with 5 if there is one: small-files,drift; any: warnings too.",
        ),
    ] = None,
    columns: Columns = None,
    partition: options.Partitions = None,
    target_mb: options.TargetMb = None,
) -> Result:
    """Judge sizes, layout, schemas and history, and say what to do. Only footers and the log are read."""
    failing = _failing(fail_on)
    found = context.dataset(path).health(partition, options.names(columns), **_target(target_mb))
    bad = any(
        each["name"] in failing or (ANY in failing and each["severity"] != "note") for each in found["problems"]
    )
    return Result(found, lambda: _rendered_health(found), Exit.UNHEALTHY if bad else Exit.DONE)


ANY = "any"


def _failing(given: list[str] | None) -> set[str]:
    """The problems that count as failures."""
    names = set(options.names(given) or ())
    if names:
        from parketto.health.results import PROBLEM_NAMES

        if unknown := sorted(names - {*PROBLEM_NAMES, ANY}):
            raise UsageProblem(f"--fail-on has no {quoted(unknown)}; choices: {quoted([ANY, *PROBLEM_NAMES])}")
    return names


def _rendered_health(health: Any) -> Any:
    problems = [
        (
            f"{each['severity']}: {each['name']}: {each['summary']}",
            [f"{remedy['command']}  # {remedy['effect']}" for remedy in each["remedies"]],
        )
        for each in health["problems"]
    ]
    return render.together(render.tree(health["summary"], problems), render.tree("numbers", _numbers(health)))


def _numbers(health: Any) -> Iterator[Any]:
    """What the verdict is based on, one line each."""
    files, groups, parts = health["files"], health["row_groups"], health["partitions"]
    yield f"files: {files['count']:,}, {_median(files['sizes'])}, {files['small']:,} small"
    yield f"row groups: {groups['count']:,}, {_median(groups['sizes'])} before compression"
    if parts["columns"]:
        median = f"median {size_text(parts['median_bytes'])}"
        yield f"partitions by {','.join(parts['columns'])}: {parts['count']:,}, {median}, skew {parts['skew']:.1f}"
    yield f"codecs: {', '.join(each['codec'] for each in health['codecs'])}"
    differing = health["schema"]["differing_files"]
    yield (
        f"schema: {counted(differing, 'file')} with another one" if differing else "schema: the same in all files"
    )
    for each in health["clustering"]:
        if each["columns"]:
            yield f"clustered by {','.join(each['columns'])} ({each['curve']}): {counted(each['files'], 'file')}"
    reads = [f"{each['column']} {percent(each['range'])}" for each in health["columns"]]
    yield f"row groups that a range of 1 % reads: {', '.join(reads)}" if reads else None
    log = health["history"]
    yield f"history: {counted(log['commits'], 'commit')}, {size_text(log['kept_bytes'])} of replaced files"


def _median(sizes: Any) -> str:
    return "no data" if sizes is None else f"median {size_text(sizes['median'])}"


def check(
    context: CommandContext,
    path: options.DatasetPath,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read and decode every page, not only the footers.")
    ] = False,
    partition: options.Partitions = None,
) -> Result:
    """Find damaged, missing and changed files. The exit code is 1 if there are any."""
    if not deep:
        context.engine = context.engine or "pyarrow"  # footers are read in a moment, but Spark takes long to start
    dataset = context.dataset(path)
    report = dataset.check(deep, partition_filter=partition, progress=context.progress)

    def rendered() -> Any:
        files, rows = counted(report["files_checked"], "file"), counted(report["rows"], "row")
        how = "all pages" if deep else "the footers"
        verdict = "healthy" if report["healthy"] else "NOT healthy"
        damaged = [f"{each['path']}{_part(each)}: {each['reason']}" for each in report["damaged"]]
        changed = [f"{each['path']}: {each['reason']}" for each in report["changed"]]
        others = [
            f"{counted(len(each['paths']), 'file')}: {each['difference']}" for each in report["other_schemas"]
        ]
        found = {
            "damaged": damaged,
            "missing": report["missing"],
            "changed": changed,
            "added by other programs": report["unknown"],
            "other schemas": others,
        }
        return render.tree(
            f"{verdict}: checked {how} of {files}, {rows}, {size_text(report['bytes'])}",
            [*((name, render.some(lines)) for name, lines in found.items() if lines), *report["notes"]],
        )

    return Result(report, rendered, Exit.DONE if report["healthy"] else Exit.FAILED)


def _part(damage: Any) -> str:
    group = "" if damage["row_group"] is None else f", row group {damage['row_group']}"
    column = "" if damage["column"] is None else f", column {damage['column']}"
    return group + column


def report(
    context: CommandContext,
    path: options.DatasetPath,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write the page: a file, or a URL.")
    ] = "report.html",
    columns: Columns = None,
    partition: options.Partitions = None,
    target_mb: options.TargetMb = None,
) -> Result:
    """Write the health as one HTML page. It needs no network; open it in a browser."""
    _check_folder(output)
    dataset = context.dataset(path)
    page = dataset.report(output, partition_filter=partition, columns=options.names(columns), **_target(target_mb))
    document = shapes.ReportDocument(path=dataset.path, report=output, bytes=len(page.encode()))
    return Result(document, lambda: render.tree(f"wrote {output}, {size_text(document['bytes'])}"))


def _check_folder(output: str) -> None:
    """Raise if a local file cannot be created because its folder does not exist."""
    folder = os.path.dirname(os.path.abspath(output))
    if "://" not in output and not os.path.isdir(folder):
        raise UsageProblem(f"cannot write {output!r}: the folder {folder!r} does not exist")


def _target(target_mb: float | None) -> dict[str, float]:
    return {} if target_mb is None else {"target_mb_per_file": target_mb}


COMMANDS = (
    Command("health", health, lambda: parketto.Health, engine="pyarrow", changes=False),
    Command("report", report, lambda: shapes.ReportDocument, engine="pyarrow", changes=False),
    Command("check", check, lambda: parketto.CheckReport, engine="footers", changes=False),
)
