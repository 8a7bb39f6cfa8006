"""The figures of a report: each a sentence, a chart and the table behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parketto.arguments import MEGABYTE
from parketto.health.examine import Examination
from parketto.health.results import Health, Sizes
from parketto.health.text import counted, percent, size_text
from parketto.report import charts
from parketto.report.history import before_and_after, timeline
from parketto.report.rectangles import rectangles

_MAX_ROWS = 30  # of a chart with one bar per column


@dataclass(frozen=True)
class Table:
    """The table behind a chart. Numbers are right-aligned."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | int]]
    #: What the table leaves out.
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A part of the report."""

    id: str
    title: str
    #: What the chart shows, in words.
    lead: str
    table: Table
    #: A Vega-Lite specification; None if words suffice.
    chart: dict[str, Any] | None = field(default=None, repr=False)


def figures(found: Examination) -> list[Figure]:
    """All figures, in the order of the page: those of words alone come last."""
    health = found.health
    shown = [
        _files(health),
        _partitions(health),
        _row_groups(health),
        _reads(health),
        _clustering(found),
        _schema(health),
        _history(found),
        _operations(found),
    ]
    return sorted(shown, key=lambda figure: figure.chart is None)


def _files(health: Health) -> Figure:
    files, target = health["files"], health["target_mb_per_file"] * MEGABYTE
    sizes = files["sizes"]
    lead = "There are no readable files."
    if sizes is not None:
        lead = (
            f"{files['small']:,} of {counted(files['count'], 'file')} are below {size_text(0.75 * target)}, "
            f"{files['large']:,} above {size_text(1.8 * target)}. The median is {size_text(sizes['median'])}; "
            f"the band shows sizes that compaction leaves alone, for a target of {size_text(target)}."
        )
    return Figure(
        "files",
        "File sizes",
        lead,
        _size_table(sizes, "Files", size_text),
        None if sizes is None else charts.file_sizes(sizes["histogram"], target),
    )


def _size_table(sizes: Sizes | None, noun: str, text: Any) -> Table:
    bins = [each for each in (sizes["histogram"] if sizes else []) if each["count"]]
    return Table(
        ["From", "To", noun, "Together"],
        [[text(each["low"]), text(each["high"]), each["count"], text(each["total"])] for each in bins],
    )


def _partitions(health: Health) -> Figure:
    found = health["partitions"]
    shown, left = found["largest"], found["count"] - len(found["largest"])
    if not found["columns"]:
        lead = "The dataset is not partitioned."
    else:
        lead = (
            f"{counted(found['count'], 'partition')} by {', '.join(found['columns'])}, with a median of "
            f"{size_text(found['median_bytes'])}. The largest is {found['skew']:,.1f} times as large."
        )
    table = Table(
        ["Partition", "Files", "Small files", "Rows", "Size"],
        [
            [
                each["folder"] or "(root)",
                each["files"],
                each["small_files"],
                each["rows"],
                size_text(each["bytes"]),
            ]
            for each in shown
        ],
        f"{counted(left, 'smaller partition')} not shown." if left > 0 else "",
    )
    chart = charts.partitions(shown, found["median_bytes"]) if found["count"] > 1 else None
    return Figure("partitions", "Partitions", lead, table, chart)


def _row_groups(health: Health) -> Figure:
    found = health["row_groups"]
    rows, sizes = found["rows"], found["sizes"]
    lead = "There are no row groups."
    if rows is not None and sizes is not None:
        lead = (
            f"{counted(found['count'], 'row group')} with a median of {rows['median']:,.0f} rows and "
            f"{size_text(sizes['median'])} before compression. {found['small']:,} are small and beside each "
            f"other, {found['large']:,} larger than 1 GB. "
            f"Codecs: {', '.join(each['codec'] for each in health['codecs'])}."
        )
    table = _size_table(rows, "Row groups", lambda count: f"{count:,}")
    return Figure(
        "row-groups", "Row groups", lead, table, None if rows is None else charts.row_groups(rows["histogram"])
    )


def _reads(health: Health) -> Figure:
    columns = health["columns"]
    lead = "There are no columns with an order."
    if columns:
        best = min(columns, key=lambda each: each["range"])
        lead = (
            "The share of row groups that a query reads if it selects 1 % of the rows by one column: "
            f"{percent(best['range'])} for {best['column']}, {percent(max(each['range'] for each in columns))} at "
            "worst. The mark shows what it would read if each partition were sorted by that column alone."
        )
    table = Table(
        ["Column", "Type", "One value", "Range of 1 %", "If sorted", "Overlapping", "With bounds"],
        [
            [
                each["column"],
                each["type"]
                + (" · partition" if each["partition"] else " · clustered" if each["clustered"] else ""),
                percent(each["point"]),
                percent(each["range"]),
                percent(each["range_if_sorted"]),
                each["depth"],
                percent(each["bounded"]),
            ]
            for each in columns
        ],
        "" if health["sampled"] == 1 else f"Estimated from {percent(health['sampled'])} of the files.",
    )
    return Figure("reads", "What a 1 % query reads", lead, table, charts.reads(columns) if columns else None)


def _clustering(found: Examination) -> Figure:
    known = found.health["clustering"]
    clustered = "; ".join(
        f"{each['files']:,} files by {', '.join(each['columns'])} ({each['curve']})" for each in known
    )
    start = f"Clustered: {clustered}. " if known else "No file is clustered. "
    boxes = rectangles(found)
    if boxes is None:
        return Figure(
            "clustering", "Clustering", f"{start}A picture needs two columns with bounds.", Table([], [])
        )
    x, y = boxes.columns
    table = Table(
        ["Rows", f"{x} from", f"{x} to", f"{y} from", f"{y} to"],
        [[each.rows, *each.x_text, *each.y_text] for each in boxes.table_rows],
        f"{len(boxes.table_rows):,} of {counted(boxes.total, 'row group')} shown."
        if boxes.total > len(boxes.table_rows)
        else "",
    )
    lead = (
        f"{start}Each rectangle is a row group, and covers the values of {x} and {y} between its bounds. A query "
        "reads the rectangles that it touches: small ones are good, large ones on top of each other are not."
    )
    return Figure("clustering", f"Clustering: {x} and {y}", lead, table, charts.clustering(boxes))


def _schema(health: Health) -> Figure:
    schema = health["schema"]
    drift = schema["drift"]
    if not drift:
        return Figure(
            "schema", "Schema drift", f"All files have the same {schema['columns']:,} columns.", Table([], [])
        )
    table = Table(
        ["Column", "Types", "Files without it", "In the dataset"],
        [
            [
                each["column"],
                ", ".join(f"{kind} ({files:,})" for kind, files in each["types"].items()),
                each["missing"],
                each["unified"] or "no common type",
            ]
            for each in drift
        ],
    )
    lead = (
        f"{counted(len(drift), 'column')} of {schema['columns']:,} {'is' if len(drift) == 1 else 'are'} not the "
        f"same in all files; {counted(schema['differing_files'], 'file')} would be rewritten to agree. "
        "Where a bar ends early, the other files lack the column."
    )
    return Figure("schema", "Schema drift", lead, table, charts.drift(drift[:_MAX_ROWS], health["files"]["count"]))


def _history(found: Examination) -> Figure:
    history = found.health["history"]
    shown = timeline(found.commits)
    if not shown:
        return Figure("history", "History", "There is no log: no commit of Parketto yet.", Table([], []))
    left = history["commits"] - len(shown)
    lead = (
        f"{counted(history['commits'], 'commit')}. Retired files that are kept take "
        f"{size_text(history['kept_bytes'])} beside {size_text(found.health['files']['bytes'])} of data, "
        f"the log {size_text(history['log_bytes'])}."
    )
    table = Table(
        ["Commit", "Time (UTC)", "Operation", "Engine", "User", "New files", "Retired files"],
        [
            [each.number, each.time_text, each.operation, each.engine, each.user, each.published, each.retired]
            for each in shown
        ],
        f"{counted(left, 'older commit')} not shown." if left > 0 else "",
    )
    return Figure("history", "History", lead, table, charts.history(shown))


def _operations(found: Examination) -> Figure:
    shown = before_and_after(found.commits)
    if not shown:
        return Figure("operations", "Before and after", "No commit in the log has rewritten files.", Table([], []))
    last = shown[0]
    lead = (
        f"The last operation that rewrote files, {last.operation}, turned {counted(last.before, 'file')} into "
        f"{last.after:,}."
    )
    table = Table(
        [
            "Commit",
            "Operation",
            "Files before",
            "Files after",
            "Size before",
            "Size after",
            "A range of 1 % reads",
        ],
        [
            [each.number, each.operation, each.before, each.after, *each.size_texts, each.reads_text]
            for each in shown
        ],
    )
    return Figure("operations", "Before and after", lead, table, charts.operations(shown))
