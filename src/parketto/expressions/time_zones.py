"""Time zones: conversions between instants and wall-clock times.

Arrow has no rules for years after 2037 and overflows silently at the ends of its range, so Python's `zoneinfo` is
used instead, once per distinct day. Gaps and overlaps are resolved as in Spark and Java: a time in a gap moves
forward by the length of the gap, and an ambiguous time means the earlier instant.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.expressions.values import NANOSECONDS, evaluate, parse_text

_DAY = 86_400  # seconds
# Days in 400 years, after which the calendar repeats, weekdays included. Python supports the years 1 to 9999.
_CYCLE = 146_097
_FIRST_DAY, _LAST_DAY = (
    dt.date(year, month, day).toordinal() - 719_163 for year, month, day in ((1, 1, 2), (9998, 12, 31))
)
# Seconds; no zone has ever had a larger offset from UTC.
_MAX_OFFSET = 16 * 3600
_UTC_NAMES = frozenset({"UTC", "GMT", "UT", "Z", "ETC/UTC", "ETC/GMT", "ETC/UCT", "UCT", "ZULU", "ETC/ZULU"})
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2}))?(?::?(\d{2}))?")
# Abbreviations that Java, and so Spark, maps to regions.
_ABBREVIATIONS = {
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
# A time followed by a zone that Arrow cannot parse.
_WITH_ZONE = re.compile(r"(.*?[0-9.])\s*([A-Za-z][A-Za-z0-9_+/:-]*|[+-][0-9]{1,2}(?::[0-9]{1,2}){0,2})")
# Distinguishes instants from wall-clock times in strings with a time of day.
_ENDS_WITH_OFFSET = r":[0-9.]+\s*([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$"
# Units whose start is the first instant of a day.
_CALENDAR = frozenset({"year", "quarter", "month", "week"})

Integers = npt.NDArray[np.int64]


@functools.lru_cache(maxsize=64)
def zone_info(name: str) -> dt.tzinfo:
    """A time zone by its IANA name, or a name that Spark accepts.

    >>> zone_info("Etc/UTC"), zone_info("+02:00"), zone_info("Europe/Berlin")
    (datetime.timezone.utc, datetime.timezone(datetime.timedelta(seconds=7200)), ...(key='Europe/Berlin'))

    Raises:
        InvalidArgument: If the zone is unknown.
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"a time zone name must be a string, got {name!r}")
    known = _ABBREVIATIONS.get(name, name)
    if known.upper() in _UTC_NAMES:
        return dt.UTC
    if offset := _OFFSET.fullmatch(known):
        sign, *parts = offset.groups()
        hours, minutes, seconds = (int(part or 0) for part in parts)
        delta = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds) * (1 if sign == "+" else -1)
        if minutes < 60 and seconds < 60 and abs(delta) <= dt.timedelta(hours=18):
            return dt.timezone(delta) if delta else dt.UTC
    try:
        return zoneinfo.ZoneInfo(known)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidArgument(
            f"unknown time zone {name!r}; expected an IANA name such as 'America/New_York', an offset such as "
            "'+05:30', or 'UTC'. On a machine without a time zone database: pip install tzdata"
        ) from error


@dataclass(frozen=True)
class Zone:
    """A time zone, pickled by name."""

    name: str = "UTC"

    @property
    def info(self) -> dt.tzinfo:
        """The rules of the zone."""
        return zone_info(self.name)

    @property
    def is_utc(self) -> bool:
        """Whether it is UTC."""
        return self.info is dt.UTC

    def offsets(self, seconds: Integers) -> Integers:
        """The offsets from UTC, in seconds, at instants in seconds since 1970."""
        if isinstance(self.info, dt.timezone) or not len(seconds):
            return np.full_like(seconds, _offset(self.name, 0))
        days, inverse = np.unique(seconds // _DAY, return_inverse=True)
        changes = [_day(self.name, int(day)) for day in days]
        before, after, when = (np.array(column, np.int64)[inverse] for column in zip(*changes, strict=True))
        return np.where(seconds % _DAY < when, before, after)

    def instants(self, clocks: Integers, *, starts: bool = False) -> Integers:
        """The instants of wall-clock times, both in seconds since 1970.

        Args:
            clocks: Wall-clock times.
            starts: Whether these are dates whose first instants are wanted: a day may begin in a gap.
        """
        before, after = self.offsets(clocks - _MAX_OFFSET), self.offsets(clocks + _MAX_OFFSET)
        found = clocks - before
        odd = np.flatnonzero(before != after)
        if len(odd):
            first, second = clocks[odd] - before[odd], clocks[odd] - after[odd]
            shown_first, shown_second = self.offsets(first) == before[odd], self.offsets(second) == after[odd]
            found[odd] = np.where(~shown_first & shown_second, second, first)
            for at in odd[~shown_first & ~shown_second] if starts else ():
                found[at] = _change(self.name, int(clocks[at]) - _MAX_OFFSET, int(clocks[at]) + _MAX_OFFSET)
        return found

    def is_quiet(self, seconds: int) -> bool:
        """Whether the offset is constant for three days before and after an instant."""
        around = np.arange(-3, 4, dtype=np.int64) * _DAY + seconds
        return len(set(self.offsets(around).tolist())) == 1


UTC = Zone()


# Most rows share their days with others.
@functools.lru_cache(maxsize=65_536)
def _day(name: str, day: int) -> tuple[int, int, int]:
    """The offsets at the start and the end of a UTC day, and the second of the day when it changes."""
    start = day * _DAY
    before, after = _offset(name, start), _offset(name, start + _DAY - 1)
    return before, after, _DAY if before == after else _change(name, start, start + _DAY - 1) - start


def _change(name: str, low: int, high: int) -> int:
    """The first instant whose offset differs from that at `low`."""
    before = _offset(name, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(name, middle) == before else (low, middle)
    return high


def _offset(name: str, seconds: int) -> int:
    day, second = divmod(seconds, _DAY)
    if day > _LAST_DAY:
        day -= -(-(day - _LAST_DAY) // _CYCLE) * _CYCLE
    instant = _EPOCH + dt.timedelta(days=max(day, _FIRST_DAY), seconds=second)
    offset = instant.astimezone(zone_info(name)).utcoffset()
    assert offset is not None, "aware datetimes have an offset"
    return int(offset.total_seconds())


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def is_instant(kind: pa.DataType) -> bool:
    """Whether the type is an instant: a timestamp with a time zone."""
    return pat.is_timestamp(kind) and kind.tz is not None


def is_clock(kind: pa.DataType) -> bool:
    """Whether the type is a wall-clock time: a date, or a timestamp without a time zone."""
    return pat.is_date(kind) or (pat.is_timestamp(kind) and kind.tz is None)


@dataclass(frozen=True)
class Conversion:
    """A conversion between instants and wall-clock times.

    Attributes:
        how: `"wall"`: instants to wall-clock times. `"instant"`: the reverse; dates become their first instant,
            strings are parsed. Any other value is a unit to which instants are truncated in the zone.
        zone: The time zone.
    """

    how: Literal["wall", "instant", "year", "quarter", "month", "week", "day", "hour", "minute"]
    zone: Zone

    def run(self, values: pa.Array) -> pa.Array:
        """The converted values.

        Raises:
            pa.ArrowInvalid: If a value cannot be parsed, or is out of the range of the type.
        """
        if self.how == "wall":
            return self._wall(values)
        if self.how == "instant":
            return self._read(values) if not pat.is_temporal(values.type) else self._instants(values)
        return self._cut(values)

    def _wall(self, values: pa.Array) -> pa.Array:
        if self.zone.is_utc:
            return values.cast(pa.timestamp(values.type.unit, "UTC")).cast(pa.timestamp(values.type.unit))
        return _shifted(values, None, self.zone.offsets)

    def _instants(self, values: pa.Array) -> pa.Array:
        starts = pat.is_date(values.type)
        clocks = values.cast(pa.timestamp("s")) if starts else values
        if self.zone.is_utc:
            return clocks.cast(pa.timestamp(clocks.type.unit, "UTC"))
        return _shifted(clocks, "UTC", lambda seconds: self.zone.instants(seconds, starts=starts) - seconds)

    def _read(self, texts: pa.Array) -> pa.Array:
        """Strings as instants, with or without an offset."""
        texts = pc.utf8_trim_whitespace(texts)
        offset = pc.match_substring_regex(texts, pattern=_ENDS_WITH_OFFSET)
        null = pa.scalar(None, texts.type)
        instants = pc.if_else(offset, texts, null).cast(pa.timestamp("us", "UTC"))
        clocks = pc.if_else(offset, null, texts).cast(pa.timestamp("us"))
        return pc.coalesce(instants, self._instants(clocks))

    def _cut(self, values: pa.Array) -> pa.Array:
        clocks = self._wall(values)
        cut = pc.floor_temporal(clocks, unit=self.how)
        # As in Spark, an instant after the second of two ambiguous times is truncated to the second.
        near = pc.subtract_checked(values.cast(pa.timestamp(values.type.unit, "UTC")), pc.subtract(clocks, cut))
        start = cut.cast(pa.date32()) if self.how in _CALENDAR else cut
        return pc.if_else(pc.equal(self._wall(near), cut), near, self._instants(start).cast(near.type))


class Derivation(Protocol):
    """A function of one column that Arrow's expressions do not have. It can be pickled and compared."""

    def run(self, values: pa.Array) -> pa.Array:
        """One value per value."""
        ...


@dataclass(frozen=True)
class Step:
    """A derived column, computed before an expression.

    Attributes:
        target: The name and the type of the column.
        source: Its input, which may use the columns of earlier steps.
        conversion: What is computed from the input.
    """

    target: pa.Field
    source: pc.Expression
    conversion: Derivation

    def added(self, table: pa.Table) -> pa.Table:
        """The table with the column appended."""
        return table.append_column(self.target, self.conversion.run(evaluate(self.source, table)))


def _shifted(values: pa.Array, zone: str | None, distance: Callable[[Integers], Integers]) -> pa.Array:
    """Timestamps shifted by whole seconds, in the same unit."""
    unit = values.type.unit
    step = NANOSECONDS["s"] // NANOSECONDS[unit]
    counts = np.asarray(pc.fill_null(values.cast(pa.int64()), 0), np.int64)
    shifts = distance(counts // step) * step
    result = counts + shifts
    # After a 64-bit overflow the sum is on the wrong side.
    if (np.where(shifts < 0, result > counts, result < counts)).any():
        raise pa.ArrowInvalid(f"a time is out of the range of timestamp[{unit}] in another time zone")
    mask = np.asarray(values.is_null(), bool) if values.null_count else None
    return pa.array(result, pa.int64(), mask=mask).cast(pa.timestamp(unit, zone))


def parse_time(text: str, kind: pa.DataType) -> pa.Scalar:
    """A string literal parsed as another type; a timestamp may also end with the name of a zone.

    >>> parse_time("2026-07-01 12:00:00 Europe/Berlin", pa.timestamp("s", "UTC")).cast(pa.timestamp("s", "UTC"))
    <pyarrow.TimestampScalar: '2026-07-01T10:00:00+0000'>
    """
    found = _WITH_ZONE.fullmatch(text.strip()) if pat.is_timestamp(kind) else None
    try:
        return parse_text(text, kind)
    except InvalidArgument:
        if found is None:
            raise
    clock = parse_text(found[1], pa.timestamp("us"))
    return Conversion("instant", Zone(found[2])).run(pa.array([clock]))[0]


def parse_clock(text: str, kind: pa.DataType) -> pa.Scalar:
    """A string literal as a wall-clock time: a zone in it is ignored.

    >>> parse_clock("2026-07-01 12:00:00+02:00", pa.timestamp("us"))
    <pyarrow.TimestampScalar: '2026-07-01T12:00:00.000000'>
    """
    read = parse_time(text, kind)
    found = _WITH_ZONE.fullmatch(text.strip()) if is_instant(read.type) else None
    return read if found is None else parse_text(found[1], kind)


class Clock:
    """The time zone of expressions, and the value of their current timestamp.

    Args:
        zone: The name of the zone, or a function that returns it and is called once, on first use. None is UTC.
        now: The current timestamp; by default the current time.
    """

    def __init__(self, zone: str | Callable[[], str | None] | None = None, now: dt.datetime | None = None) -> None:
        self._given = zone
        self.now = dt.datetime.now(dt.UTC) if now is None else now

    @functools.cached_property
    def stated(self) -> str | None:
        """The requested zone, or None."""
        return self._given() if callable(self._given) else self._given

    @functools.cached_property
    def zone(self) -> Zone:
        """The time zone."""
        zone = Zone(self.stated or "UTC")
        assert zone.info is not None, "raises if unknown"
        return zone
