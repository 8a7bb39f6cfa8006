"""INTERVAL: its SQL forms, and dates and timestamps plus an interval, with Spark's calendar.

There are two kinds, as in Spark: years and months, and days and smaller units. Whole days and months move the date
on the wall clock of the zone; the rest is an exact time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.expressions.nodes import Node, Scope, literal
from parketto.expressions.time_zones import UTC, Integers, Zone, is_instant
from parketto.expressions.values import NANOSECONDS

_DAY_SECONDS = 86_400
_DAY = _DAY_SECONDS * 10**6  # microseconds
_MONTHS = {"YEAR": 12, "MONTH": 1}
_MICROSECONDS = {
    "WEEK": 7 * _DAY,
    "DAY": _DAY,
    "HOUR": 3600 * 10**6,
    "MINUTE": 60 * 10**6,
    "SECOND": 10**6,
    "MILLISECOND": 1000,
    "MICROSECOND": 1,
}
_UNITS = (*_MONTHS, *_MICROSECONDS)
_MAX_MONTHS, _MAX_MICROSECONDS = 2**31 - 1, 2**63 - 1  # as in Spark
_SECONDS = r"(\d+)(?:\.(\d{1,6}))?"
# The fields of a value such as '1 02:03:04.5' DAY TO SECOND: each with its largest value, except for the first.
_SPANS = {
    ("YEAR", "MONTH"): (r"(\d+)-(\d+)", (None, 11)),
    ("DAY", "HOUR"): (r"(\d+) +(\d+)", (None, 23)),
    ("DAY", "MINUTE"): (r"(\d+) +(\d+):(\d+)", (None, 23, 59)),
    ("DAY", "SECOND"): (rf"(\d+) +(\d+):(\d+):{_SECONDS}", (None, 23, 59, 59)),
    ("HOUR", "MINUTE"): (r"(\d+):(\d+)", (None, 59)),
    ("HOUR", "SECOND"): (rf"(\d+):(\d+):{_SECONDS}", (None, 59, 59)),
    ("MINUTE", "SECOND"): (rf"(\d+):{_SECONDS}", (None, 59)),
}
_SPAN_FIELDS = ("DAY", "HOUR", "MINUTE", "SECOND")
_AMOUNT = r"[+-]?\d+(?:\.\d+)?"
_PARTS = re.compile(rf"({_AMOUNT})\s*([A-Za-z]+)\s*")
# The parser reads parts of a text and ignores what lies between them, so texts are checked before it does.
_TEXT = re.compile(
    rf"\s*(?:{_AMOUNT}|[+-]?\.\d+|[+-]?\d+-\d+|[+-]?(?:\d+ +)?\d+(?::\d+)*(?:\.\d+)?"
    rf"|(?:interval\s+)?(?:{_AMOUNT}\s*[A-Za-z]+\s*)+)\s*",
    re.I,
)
_FORMS = (
    "available: INTERVAL 7 DAYS, INTERVAL '7' DAY, INTERVAL '1 hour 30 minutes', INTERVAL '1-6' YEAR TO MONTH, "
    f"INTERVAL '1 12:30:00' DAY TO SECOND, with the units {', '.join(_UNITS)}"
)


@dataclass(frozen=True)
class Interval:
    """A literal interval, either of months or of microseconds.

    Attributes:
        months: Years and months, in months.
        microseconds: Weeks, days and smaller units, in microseconds.
        is_calendar: Whether it consists of years and months.
        whole_days: Whether its smallest unit is a day: only then a date plus the interval is a date.
    """

    months: int = 0
    microseconds: int = 0
    is_calendar: bool = False
    whole_days: bool = False

    def times(self, number: int) -> Interval:
        """A multiple of the interval."""
        return _limited(
            Interval(self.months * number, self.microseconds * number, self.is_calendar, self.whole_days)
        )

    def plus(self, other: Interval) -> Interval:
        """The sum of two intervals of the same kind."""
        if self.is_calendar != other.is_calendar:
            raise InvalidArgument(
                "an INTERVAL cannot mix years or months with days or smaller units; add them one after the other: "
                "ts + INTERVAL 1 MONTH + INTERVAL 2 DAYS"
            )
        return _limited(
            Interval(
                self.months + other.months,
                self.microseconds + other.microseconds,
                self.is_calendar,
                self.whole_days and other.whole_days,
            )
        )


def _limited(interval: Interval) -> Interval:
    if abs(interval.months) > _MAX_MONTHS or abs(interval.microseconds) > _MAX_MICROSECONDS:
        raise InvalidArgument("the INTERVAL is too long: the limits are 178,956,970 years and 106,751,991 days")
    return interval


def check_interval_text(text: str) -> None:
    """Raise unless the text after INTERVAL is a number, a list of numbers with units, or fields of a span."""
    if not _TEXT.fullmatch(text):
        raise _refusal(f"INTERVAL {text!r}")


def interval_of(tree: Any) -> Interval | None:
    """The interval of a parsed expression; None if it is something else.

    >>> from parketto.expressions.parsing import parsed
    >>> interval_of(parsed("2 * INTERVAL '1 hour 30 minutes' + INTERVAL 1 DAY"))
    Interval(months=0, microseconds=97200000000, is_calendar=False, whole_days=False)
    """
    match tree.key:
        case "interval":
            return _limited(_read(tree))
        case "paren":
            return interval_of(tree.this)
        case "neg":
            inner = interval_of(tree.this)
            return None if inner is None else inner.times(-1)
        case "mul":
            left, right = tree.this, tree.expression
            number, inner = _whole(left), interval_of(right)
            if inner is None:
                number, inner = _whole(right), interval_of(left)
            return None if inner is None or number is None else inner.times(number)
        case "add" | "sub":
            # The right side first: a chain of sums is nested to the left.
            right_side = interval_of(tree.expression)
            left_side = None if right_side is None else interval_of(tree.this)
            if left_side is None or right_side is None:
                return None
            return left_side.plus(right_side.times(1 if tree.key == "add" else -1))
        case _:
            return None


def _whole(tree: Any) -> int | None:
    if tree.key == "paren":
        return _whole(tree.this)
    if tree.key == "neg":
        inner = _whole(tree.this)
        return None if inner is None else -inner
    is_number = tree.key == "literal" and not tree.is_string and str(tree.this).isdecimal()
    return int(tree.this) if is_number else None


def _read(tree: Any) -> Interval:
    value, unit = tree.this, tree.args.get("unit")
    if value is None or value.key != "literal":
        raise _refusal(tree.sql())
    text = str(value.this).strip()
    if unit is None:
        return _read_parts(text, tree)
    if unit.key == "intervalspan":
        return _read_span(text, unit.this.name.upper(), unit.expression.name.upper(), tree)
    return _part(text, unit.name, tree)


def _read_parts(text: str, tree: Any) -> Interval:
    given = re.sub(r"^interval\s+", "", text, flags=re.I)
    if not re.fullmatch(f"(?:{_PARTS.pattern})+", given):
        raise _refusal(tree.sql())
    first, *others = [_part(amount, unit, tree) for amount, unit in _PARTS.findall(given)]
    for other in others:
        first = first.plus(other)
    return first


def _part(amount: str, unit: str, tree: Any) -> Interval:
    name = unit.upper()
    name = name if name in _UNITS else name.removesuffix("S")
    found = re.fullmatch(r"([+-]?)(\d*)(?:\.(\d{1,6}))?", amount.strip())
    if name not in _UNITS or found is None or not (found[2] or found[3]) or (found[3] and name != "SECOND"):
        raise _refusal(tree.sql())
    sign = -1 if found[1] == "-" else 1
    number = int(found[2] or 0)
    if name in _MONTHS:
        return Interval(months=sign * number * _MONTHS[name], is_calendar=True)
    fraction = int((found[3] or "").ljust(6, "0"))
    microseconds = number * _MICROSECONDS[name] + fraction
    return Interval(microseconds=sign * microseconds, whole_days=name in ("WEEK", "DAY"))


def _read_span(text: str, first: str, last: str, tree: Any) -> Interval:
    pattern, limits = _SPANS.get((first, last), ("", ()))
    found = re.fullmatch(rf"([+-]?){pattern}", text) if pattern else None
    if found is None:
        raise _refusal(tree.sql())
    sign = -1 if found[1] == "-" else 1
    numbers = [int(number) for number in found.groups()[1 : 1 + len(limits)]]
    if any(limit is not None and number > limit for number, limit in zip(numbers, limits, strict=True)):
        raise _refusal(tree.sql())
    if first == "YEAR":
        return Interval(months=sign * (12 * numbers[0] + numbers[1]), is_calendar=True)
    names = _SPAN_FIELDS[_SPAN_FIELDS.index(first) :]
    microseconds = sum(
        number * _MICROSECONDS[name] for number, name in zip(numbers, names[: len(numbers)], strict=True)
    )
    if last == "SECOND":
        microseconds += int((found.groups()[-1] or "").ljust(6, "0"))
    return Interval(microseconds=sign * microseconds)


def _refusal(what: str) -> InvalidArgument:
    return InvalidArgument(f"{what} is not available; {_FORMS}")


def interval_literal(interval: Interval) -> Node:
    """The interval as a duration, for comparisons with durations."""
    if interval.is_calendar:
        raise InvalidArgument(
            "an INTERVAL of years or months has no fixed length; it is only available as date or timestamp + or - "
            "INTERVAL"
        )
    return literal(pa.scalar(interval.microseconds, pa.duration("us")))


def moved(scope: Scope, node: Node, interval: Interval) -> Node:
    """A date or timestamp plus an interval. A date is a timestamp with a zone after a time is added to it."""
    if node.family == "null":
        return node
    if node.family not in ("date", "timestamp"):
        hint = "; write DATE '...' or TIMESTAMP '...'" if node.family == "text" else ""
        raise InvalidArgument(f"an INTERVAL can be added to dates and timestamps, not to {node.type}{hint}")
    if node.is_told:
        node = scope.instant(node)
    if node.family == "date" and not (interval.is_calendar or interval.whole_days):
        node = scope.instant(node)
    if pat.is_date64(node.type):
        node = scope.cast(node, pa.date32())
    # Towards zero, as in Spark: 36 hours are a day and 12 hours, -36 hours the same back.
    days = abs(interval.microseconds) // _DAY * (1 if interval.microseconds >= 0 else -1)
    on_calendar = bool(interval.months or days)
    zone = scope.clock.zone if on_calendar and is_instant(node.type) else UTC
    return scope.converted(node, Shift(interval.months, days, interval.microseconds - days * _DAY, zone))


def difference(scope: Scope, left: Node, right: Node) -> Node:
    """The time between two timestamps on the wall clock of the zone, as in Spark."""
    nodes = [left, right]
    if any(is_instant(node.type) or node.is_told for node in nodes):
        nodes = [scope.instant(node) for node in nodes]
    fine = any(pat.is_timestamp(node.type) and node.type.unit == "ns" for node in nodes)
    kind = pa.timestamp("ns" if fine else "us")
    return scope.call(pc.subtract_checked, *(scope.cast(scope.wall(node), kind) for node in nodes))


@dataclass(frozen=True)
class Shift:
    """An addition to dates or timestamps: months and days on the calendar of a zone, then an exact time.

    The last day of a month replaces days that the month does not have. Gaps and overlaps of the clock are resolved
    as in Java: a time in a gap moves forward, and an ambiguous time keeps the offset of the original time.
    """

    months: int
    days: int
    microseconds: int
    zone: Zone

    def run(self, values: pa.Array) -> pa.Array:
        """The moved values, in their type; in microseconds if their unit is too coarse.

        Raises:
            pa.ArrowInvalid: If a value is out of the range of the type.
        """
        mask = np.asarray(values.is_null(), bool) if values.null_count else None
        if pat.is_date(values.type):
            days = self._date(_counts(values.cast(pa.int32()).cast(pa.int64())))
            return pa.array(days, pa.int64(), mask=mask).cast(pa.int32()).cast(pa.date32())
        if self.microseconds * 1000 % NANOSECONDS[values.type.unit]:
            values = values.cast(pa.timestamp("us", values.type.tz))
        step = NANOSECONDS["s"] // NANOSECONDS[values.type.unit]
        counts = _counts(values.cast(pa.int64()))
        if self.months or self.days:
            seconds = counts // step
            counts = _added(counts, _scaled(self._calendar(seconds) - seconds, step, values.type), values.type)
        exact = np.full_like(counts, self.microseconds * step // 10**6)
        return pa.array(_added(counts, exact, values.type), pa.int64(), mask=mask).cast(values.type)

    def _calendar(self, seconds: Integers) -> Integers:
        offsets = self.zone.offsets(seconds)
        days, rest = np.divmod(seconds + offsets, _DAY_SECONDS)
        clocks = self._date(days) * _DAY_SECONDS + rest
        same = clocks - offsets
        if self.zone.is_utc:
            return same
        return np.where(self.zone.offsets(same) == offsets, same, self.zone.instants(clocks))

    def _date(self, days: Integers) -> Integers:
        if self.months:
            dates = days.astype("datetime64[D]")
            month = dates.astype("datetime64[M]")
            start, end = ((month + later).astype("datetime64[D]") for later in (self.months, self.months + 1))
            last = end - np.timedelta64(1, "D")
            days = np.minimum(start + (dates - month.astype("datetime64[D]")), last).astype(np.int64)
        return days + self.days


def _counts(values: pa.Array) -> Integers:
    return np.asarray(pc.fill_null(values, 0), np.int64)


def _scaled(seconds: Integers, step: int, kind: pa.DataType) -> Integers:
    if len(seconds) and int(np.abs(seconds).max()) > (2**63 - 1) // step:
        raise _out_of_range(kind)
    return seconds * step


def _added(counts: Integers, shifts: Integers, kind: pa.DataType) -> Integers:
    found = counts + shifts
    # After a 64-bit overflow the sum is on the wrong side.
    if np.where(shifts < 0, found > counts, found < counts).any():
        raise _out_of_range(kind)
    return found


def _out_of_range(kind: pa.DataType) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"a time plus an INTERVAL is out of the range of {kind}")
