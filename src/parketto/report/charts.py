"""Vega-Lite charts, built with Altair. Colours come from the page, so that one chart serves light and dark."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parketto.errors import EngineUnavailable
from parketto.health.results import ColumnDrift, ColumnHealth, PartitionSize, SizeBin
from parketto.health.text import size_text
from parketto.report.history import Change, Event
from parketto.report.rectangles import Rectangles

NEEDED = 'a health report needs the packages altair, jinja2 and vl-convert. Run: pip install "parketto[report]"'
try:
    import altair as alt
except ImportError as error:
    raise EngineUnavailable(NEEDED) from error

_HEIGHT = 220
_GAP = 0.03  # on either side of a bar of a histogram, in powers of two
_BAR = 22  # height of a horizontal bar with its gap


def file_sizes(bins: Sequence[SizeBin], target: float) -> dict[str, Any]:
    """A histogram on a scale of powers of two, with the band of sizes that compaction leaves alone."""
    band = {"low": math.log2(0.75 * target), "high": math.log2(1.8 * target)}
    zone = _chart([band]).mark_rect(style="band").encode(x=alt.X("low:Q"), x2="high:Q")
    line = _chart([{"at": math.log2(target)}]).mark_rule(style="target").encode(x=alt.X("at:Q"))
    bars = _histogram(bins, "Files", size_text, extent=(band["low"], band["high"]))
    return _finished(alt.layer(zone, bars, line), _HEIGHT)


def row_groups(bins: Sequence[SizeBin]) -> dict[str, Any]:
    """A histogram of the rows per row group."""
    return _finished(_histogram(bins, "Row groups", _short_count), _HEIGHT)


def _short_count(count: float) -> str:
    """A number for an axis.

    >>> _short_count(512), _short_count(65536), _short_count(2**20)
    ('512', '66k', '1.0M')
    """
    for limit, unit in ((10**6, "M"), (10**3, "k")):
        if count >= limit:
            value = count / limit
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return f"{count:.0f}"


def _histogram(
    bins: Sequence[SizeBin],
    noun: str,
    text: Callable[[float], str],
    extent: tuple[float, float] | None = None,
) -> alt.Chart:
    """Bars between powers of two: positions are logarithms, labels are sizes."""
    edges = [(_edge(each["low"]), _edge(each["high"])) for each in bins]
    values = [
        {
            "low": low + _GAP,
            "high": high - _GAP,
            "count": each["count"],
            "Size": f"{text(each['low'])} to {text(each['high'])}",
            noun: f"{each['count']:,}",
            "Together": text(each["total"]),
        }
        for each, (low, high) in zip(bins, edges, strict=True)
    ]
    low = math.floor(min([edges[0][0], *(extent or ())]))
    high = math.ceil(max([edges[-1][1], *(extent or ())]))
    step = max(1, -(-(high - low) // 8))
    ticks = list(range(low, high + 1, step))
    labels = {str(tick): text(2.0**tick) for tick in ticks}
    axis = alt.Axis(
        values=ticks, labelExpr=f"{json.dumps(labels)}[datum.value]", grid=False, labelFlush=False, title=None
    )
    x = alt.X("low:Q", scale=alt.Scale(domain=[low, high], nice=False, zero=False), axis=axis)
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("Size", noun, "Together")]
    y = alt.Y("count:Q", title=noun, scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(tickMinStep=1))
    # Rectangles, not bars: bars of given bins need an expression that the interpreter in the page cannot evaluate.
    bars: alt.Chart = (
        _chart(values).mark_rect(style="bars").encode(x=x, x2="high:Q", y=y, y2=alt.Y2Datum(0), tooltip=tooltip)
    )
    return bars


def _edge(size: int) -> float:
    return math.log2(size) if size else -1.0


def partitions(found: Sequence[PartitionSize], median: float) -> dict[str, Any]:
    """The largest partitions as bars, with the median of all as a line."""
    unit, divisor = _unit(max(each["bytes"] for each in found))
    values = [
        {
            "folder": each["folder"] or "(root)",
            "size": each["bytes"] / divisor,
            "Size": size_text(each["bytes"]),
            "Files": f"{each['files']:,}",
            "Small files": f"{each['small_files']:,}",
            "Rows": f"{each['rows']:,}",
        }
        for each in found
    ]
    bars = (
        _chart(values)
        .mark_bar(style="bars")
        .encode(
            x=alt.X("size:Q", title=unit),
            y=_rows_of("folder"),
            tooltip=[alt.Tooltip("folder:N", title="Partition"), *_plain("Size", "Files", "Small files", "Rows")],
        )
    )
    line = _chart([{"at": median / divisor, "Median": size_text(median)}])
    rule = line.mark_rule(style="target").encode(x="at:Q", tooltip=_plain("Median"))
    return _finished(alt.layer(bars, rule), _BAR * len(found) + 10)


def _unit(size: float) -> tuple[str, int]:
    """A unit in which the largest size is a small number."""
    names = ["bytes", "KB", "MB", "GB", "TB", "PB"]
    at = min(len(names) - 1, int(math.log(max(1.0, size), 1024)))
    return names[at], 1024**at


def reads(columns: Sequence[ColumnHealth]) -> dict[str, Any]:
    """What a range of 1 % reads, per column, and what it would read after a sort."""
    values = [
        {
            "column": each["column"],
            "now": each["range"],
            "sorted": each["range_if_sorted"],
            "Type": each["type"],
            "Now": f"{each['range']:.1%}",
            "If sorted": f"{each['range_if_sorted']:.1%}",
            "Overlapping row groups": f"{each['depth']:,}",
        }
        for each in columns
    ]
    tooltip = [
        alt.Tooltip("column:N", title="Column"),
        *_plain("Type", "Now", "If sorted", "Overlapping row groups"),
    ]
    scale = alt.Scale(domain=[0, 1])
    axis = alt.Axis(format="%", tickCount=5)
    base = _chart(values)
    bars = base.mark_bar(style="bars").encode(
        x=alt.X("now:Q", title="Row groups read", scale=scale, axis=axis), y=_rows_of("column"), tooltip=tooltip
    )
    marks = base.mark_tick(style="goal").encode(x=alt.X("sorted:Q"), y=_rows_of("column"), tooltip=tooltip)
    return _finished(alt.layer(bars, marks), _BAR * len(columns) + 10)


def clustering(boxes: Rectangles) -> dict[str, Any]:
    """Row groups as rectangles over two columns."""
    values = [
        {
            "x": each.x[0],
            "x2": each.x[1],
            "y": each.y[0],
            "y2": each.y[1],
            "Rows": f"{each.rows:,}",
            "across": " to ".join(each.x_text),
            "up": " to ".join(each.y_text),
        }
        for each in boxes.shown
    ]
    scale = alt.Scale(domain=[0, 1])
    axis = alt.Axis(format="%", tickCount=5)
    across, up = boxes.columns
    return _finished(
        _chart(values)
        .mark_rect(style="boxes")
        .encode(
            x=alt.X("x:Q", scale=scale, axis=axis, title=f"rows in the order of {across}"),
            x2="x2:Q",
            y=alt.Y("y:Q", scale=scale, axis=axis, title=f"rows in the order of {up}"),
            y2="y2:Q",
            tooltip=[alt.Tooltip("across:N", title=across), alt.Tooltip("up:N", title=up), *_plain("Rows")],
        ),
        340,
    )


def drift(columns: Sequence[ColumnDrift], files: int) -> dict[str, Any]:
    """The files of each type, per column that differs. What remains to the right has no such column."""
    values = [
        {"column": each["column"], "kind": kind, "files": count, "Files": f"{count:,}"}
        for each in columns
        for kind, count in each["types"].items()
    ]
    kinds = list(dict.fromkeys(kind for each in columns for kind in each["types"]))
    return _finished(
        _chart(values)
        .mark_bar(style="stack")
        .encode(
            x=alt.X("files:Q", title="Files", scale=alt.Scale(domain=[0, files]), axis=alt.Axis(tickMinStep=1)),
            y=_rows_of("column"),
            color=alt.Color("kind:N", title=None, scale=alt.Scale(domain=kinds, range="category")),
            tooltip=[
                alt.Tooltip("column:N", title="Column"),
                alt.Tooltip("kind:N", title="Type"),
                *_plain("Files"),
            ],
        ),
        _BAR * len(columns) + 10,
    )


def history(events: Sequence[Event]) -> dict[str, Any]:
    """Commits as points on a timeline, a row per operation."""
    values = [
        {
            "at": each.at,
            "operation": each.operation,
            "files": each.published + each.retired,
            "Commit": str(each.number),
            "Time": f"{each.time_text} UTC",
            "User": each.user,
            "New files": f"{each.published:,}",
            "Retired files": f"{each.retired:,}",
        }
        for each in events
    ]
    operations = dict.fromkeys(each.operation for each in events)
    axis = alt.Axis(labelOverlap=True, tickCount=5, format=_time_format(events))
    return _finished(
        _chart(values)
        .mark_point(style="events", filled=True)
        .encode(
            x=alt.X("at:T", scale=alt.Scale(type="utc"), title=None, axis=axis),
            y=alt.Y("operation:N", title=None, sort=list(operations)),
            size=alt.Size("files:Q", legend=None, scale=alt.Scale(range=[40, 500])),
            tooltip=[
                alt.Tooltip("operation:N", title="Operation"),
                *_plain("Commit", "Time", "User", "New files", "Retired files"),
            ],
        ),
        38 * len(operations) + 20,
    )


def _time_format(events: Sequence[Event]) -> str:
    """How much of a time the axis shows: the shorter the history, the finer."""
    times = [dt.datetime.fromisoformat(each.at) for each in events]
    span = max(times) - min(times)
    if span < dt.timedelta(minutes=10):
        return "%H:%M:%S"
    if span < dt.timedelta(days=2):
        return "%H:%M"
    return "%d %b" if span < dt.timedelta(days=300) else "%b %Y"


def operations(changes: Sequence[Change]) -> dict[str, Any]:
    """The number of files before and after operations, as two points on a line each."""
    values = [
        {
            "name": f"#{each.number} {each.operation}",
            "before": each.before,
            "after": each.after,
            "Before": f"{each.before:,} files",
            "After": f"{each.after:,} files",
        }
        for each in changes
    ]
    ends = [{**each, "files": each[moment], "when": moment} for each in values for moment in ("before", "after")]
    tooltip = [alt.Tooltip("name:N", title="Operation"), *_plain("Before", "After")]
    title = "Files"
    lines = (
        _chart(values)
        .mark_rule(style="change")
        .encode(x=alt.X("before:Q", title=title), x2="after:Q", y=_rows_of("name"), tooltip=tooltip)
    )
    points = (
        _chart(ends)
        .mark_point(style="ends", filled=True)
        .encode(
            x=alt.X("files:Q", title=title, axis=alt.Axis(tickMinStep=1)),
            y=_rows_of("name"),
            color=alt.Color("when:N", title=None, scale=alt.Scale(domain=["after", "before"], range="category")),
            tooltip=tooltip,
        )
    )
    return _finished(alt.layer(lines, points), 30 * len(changes) + 10)


def _chart(values: Sequence[Mapping[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=[dict(each) for each in values]))


def _rows_of(name: str) -> alt.Y:
    """One row per value, in the order of the data."""
    return alt.Y(f"{name}:N", title=None, sort=None)


def _plain(*names: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{name}:N") for name in names]


def _finished(chart: Any, height: int) -> dict[str, Any]:
    found: dict[str, Any] = chart.properties(
        width="container", height=height, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")
    ).to_dict()
    # The page sets all of it: Altair's own defaults would fix one theme.
    found.pop("config", None)
    return found
