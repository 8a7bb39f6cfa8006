"""INTERVAL in SQL: which forms are read, and what they mean to dates and timestamps, as in Spark."""

from __future__ import annotations

import datetime as dt
import pickle
import zoneinfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.files import file_of
from parketto import sql
from parketto.errors import InvalidArgument
from parketto.expressions.conditions import assignments, predicate, sql_formula
from parketto.expressions.pruning import may_match
from parketto.expressions.time_zones import Clock

UTC = dt.UTC
NEW_YORK = "America/New_York"
NOW = dt.datetime(2026, 11, 2, 6, 30, tzinfo=UTC)  # 01:30 in New York, a day after the clocks went back
SCHEMA = pa.schema(
    {
        "ts": pa.timestamp("us", "UTC"),
        "naive": pa.timestamp("us"),
        "ms": pa.timestamp("ms"),
        "ns": pa.timestamp("ns", "UTC"),
        "day": pa.date32(),
        "old_day": pa.date64(),
        "lasting": pa.duration("us"),
        "number": pa.int64(),
    }
)


def wall(*parts):
    return dt.datetime(*parts)  # noqa: DTZ001 - what a clock shows


def utc(*parts):
    return dt.datetime(*parts, tzinfo=UTC)


def rows(**values):
    return pa.record_batch({name: pa.array([values.get(name)], SCHEMA.field(name).type) for name in SCHEMA.names})


def value(text, zone=None, **values):
    formula = pickle.loads(pickle.dumps(sql_formula(text, SCHEMA, Clock(zone, NOW))))
    (found,) = formula.values(rows(**values), {}).to_pylist()
    return found


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("INTERVAL 7 DAYS", dt.timedelta(7)),
        ("INTERVAL 7 day", dt.timedelta(7)),
        ("INTERVAL '7' DAY", dt.timedelta(7)),
        ("INTERVAL '7 days'", dt.timedelta(7)),
        ("interval 'interval 7 days'", dt.timedelta(7)),
        ("INTERVAL -7 DAYS", dt.timedelta(-7)),
        ("INTERVAL '-7' DAYS", dt.timedelta(-7)),
        ("INTERVAL '+7' DAYS", dt.timedelta(7)),
        ("- INTERVAL 7 DAYS", dt.timedelta(-7)),
        ("(INTERVAL 7 DAYS)", dt.timedelta(7)),
        ("INTERVAL 2 WEEKS", dt.timedelta(14)),
        ("INTERVAL '1 hour 30 minutes'", dt.timedelta(hours=1, minutes=30)),
        ("INTERVAL '1 hour -30 minutes'", dt.timedelta(minutes=30)),
        ("INTERVAL 1 HOUR 30 MINUTES", dt.timedelta(hours=1, minutes=30)),
        ("INTERVAL '1' HOUR '30' MINUTES", dt.timedelta(hours=1, minutes=30)),
        ("INTERVAL 1.5 SECONDS", dt.timedelta(seconds=1.5)),
        ("INTERVAL '-0.000001' SECOND", dt.timedelta(microseconds=-1)),
        ("INTERVAL '1.25 seconds'", dt.timedelta(seconds=1.25)),
        ("INTERVAL 3 MILLISECONDS", dt.timedelta(milliseconds=3)),
        ("INTERVAL 3 MICROSECONDS", dt.timedelta(microseconds=3)),
        ("INTERVAL '1 02:03:04.5' DAY TO SECOND", dt.timedelta(1, 4.5, hours=2, minutes=3)),
        ("INTERVAL '-1 02:03' DAY TO MINUTE", -dt.timedelta(1, hours=2, minutes=3)),
        ("INTERVAL '1 02' DAY TO HOUR", dt.timedelta(1, hours=2)),
        ("INTERVAL '02:03' HOUR TO MINUTE", dt.timedelta(hours=2, minutes=3)),
        ("INTERVAL '100:03:04' HOUR TO SECOND", dt.timedelta(hours=100, minutes=3, seconds=4)),
        ("INTERVAL '03:04.25' MINUTE TO SECOND", dt.timedelta(minutes=3, seconds=4.25)),
        ("3 * INTERVAL 1 DAY", dt.timedelta(3)),
        ("INTERVAL 1 DAY * -3", dt.timedelta(-3)),
        ("(INTERVAL 1 DAY - INTERVAL 1 HOUR)", dt.timedelta(hours=23)),
    ],
)
def test_forms(text, after):
    start = wall(2026, 7, 1, 12)
    assert value(f"naive + {text}", naive=start) == start + after
    assert value(f"naive - {text}", naive=start) == start - after
    if not text.startswith("-"):
        assert value(f"{text} + naive", naive=start) == start + after
    assert value(f"TIMESTAMP_NTZ '2026-07-01 12:00:00' + {text}") == start + after


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("DATE '2024-01-31' + INTERVAL 1 MONTH", dt.date(2024, 2, 29)),
        ("DATE '2023-01-31' + INTERVAL 1 MONTH", dt.date(2023, 2, 28)),
        ("DATE '2024-03-31' - INTERVAL '1' MONTH", dt.date(2024, 2, 29)),
        ("DATE '2024-02-29' + INTERVAL 1 YEAR", dt.date(2025, 2, 28)),
        ("DATE '2024-02-29' - INTERVAL '1-2' YEAR TO MONTH", dt.date(2022, 12, 29)),
        ("DATE '2024-02-29' + INTERVAL 1 YEAR 1 MONTH", dt.date(2025, 3, 29)),
        ("DATE '1969-12-31' + INTERVAL 2 MONTHS", dt.date(1970, 2, 28)),
        ("DATE '0004-02-29' - INTERVAL 1 YEAR", dt.date(3, 2, 28)),
        ("DATE '2024-02-28' + INTERVAL 2 DAYS", dt.date(2024, 3, 1)),
        ("DATE '2024-02-28' + INTERVAL 1 WEEK", dt.date(2024, 3, 6)),
        ("DATE '2024-02-28' + INTERVAL 24 HOURS", utc(2024, 2, 29)),
        ("DATE '2024-02-28' - INTERVAL '1 day 1 hour'", utc(2024, 2, 26, 23)),
        ("TIMESTAMP_NTZ '2024-01-31 23:59:59.5' + INTERVAL 1 MONTH", wall(2024, 2, 29, 23, 59, 59, 500_000)),
        ("TIMESTAMP '2024-01-31 12:00:00' + INTERVAL 1 MONTH", utc(2024, 2, 29, 12)),
        ("TIMESTAMP_NTZ '2024-01-31 12:00:00' + INTERVAL 1 MONTH + INTERVAL 12 HOURS", wall(2024, 3, 1)),
        ("CURRENT_TIMESTAMP - INTERVAL 7 DAYS", utc(2026, 10, 26, 6, 30)),
        ("now() - INTERVAL 1 MICROSECOND", NOW - dt.timedelta(microseconds=1)),
        ("CURRENT_DATE - INTERVAL 30 DAY", dt.date(2026, 10, 3)),
        ("LOCALTIMESTAMP + INTERVAL 1 DAY", wall(2026, 11, 3, 6, 30)),
        ("NULL + INTERVAL 1 DAY", None),
    ],
)
def test_constants(text, result):
    assert value(text) == result


@pytest.mark.parametrize(
    ("text", "result"),
    [
        # The clocks go forward on March 8 at 2:00, and back on November 1 at 2:00.
        ("TIMESTAMP '2026-03-07 12:00:00' + INTERVAL 1 DAY", utc(2026, 3, 8, 16)),
        ("TIMESTAMP '2026-03-07 12:00:00' + INTERVAL 24 HOURS", utc(2026, 3, 8, 16)),
        ("TIMESTAMP '2026-03-07 12:00:00' + INTERVAL 23 HOURS", utc(2026, 3, 8, 16)),
        ("TIMESTAMP '2026-03-07 02:30:00' + INTERVAL 1 DAY", utc(2026, 3, 8, 7, 30)),
        ("TIMESTAMP '2026-02-08 02:30:00' + INTERVAL 1 MONTH", utc(2026, 3, 8, 7, 30)),
        ("TIMESTAMP '2026-10-31 01:30:00' + INTERVAL 1 DAY", utc(2026, 11, 1, 5, 30)),
        ("TIMESTAMP '2026-11-02 01:30:00' - INTERVAL 1 DAY", utc(2026, 11, 1, 6, 30)),
        ("CURRENT_TIMESTAMP - INTERVAL 1 DAY", utc(2026, 11, 1, 6, 30)),
        ("CURRENT_TIMESTAMP - INTERVAL 25 HOURS", utc(2026, 11, 1, 5, 30)),
        ("TIMESTAMP '2026-11-01 00:30:00' + INTERVAL 2 HOURS", utc(2026, 11, 1, 6, 30)),
        ("CURRENT_DATE", dt.date(2026, 11, 2)),
        ("CURRENT_DATE + INTERVAL 1 HOUR", utc(2026, 11, 2, 6)),
        ("TIMESTAMP '2026-03-09 00:00:00' - TIMESTAMP '2026-03-08 00:00:00'", dt.timedelta(1)),
    ],
)
def test_days_are_days_of_the_zone(text, result):
    assert value(text, NEW_YORK) == result
    if "CURRENT" not in text and " - TIMESTAMP" not in text:
        start = text.split("'")[1]
        start = dt.datetime.fromisoformat(start).replace(tzinfo=zoneinfo.ZoneInfo(NEW_YORK))
        rest = text.split("'")[2]
        assert value(f"ts{rest}", NEW_YORK, ts=start) == result
        assert value(f"CAST(naive AS TIMESTAMP){rest}", NEW_YORK, naive=start.replace(tzinfo=None)) == result


def test_columns():
    day, at = dt.date(2024, 1, 31), wall(2024, 1, 31, 12)
    assert value("day + INTERVAL 1 MONTH", day=day) == dt.date(2024, 2, 29)
    assert value("old_day + INTERVAL 1 MONTH", old_day=day) == dt.date(2024, 2, 29)
    assert value("day + INTERVAL 1 HOUR", NEW_YORK, day=day) == utc(2024, 1, 31, 6)
    assert value("ms + INTERVAL 1 MICROSECOND", ms=at) == at + dt.timedelta(microseconds=1)
    assert value("ms + INTERVAL 1 MONTH", ms=at) == wall(2024, 2, 29, 12)
    assert value("ns - INTERVAL 1 MONTH", ns=utc(2024, 3, 31)) == utc(2024, 2, 29)
    for name in ("ts", "naive", "ms", "ns", "day", "old_day"):
        assert value(f"{name} + INTERVAL 1 MONTH") is None
        assert value(f"{name} + INTERVAL 1 SECOND") is None
    assert value("ts + INTERVAL 1 DAY > naive", ts=utc(2024, 1, 30, 13), naive=at) is True
    assert value("ts + INTERVAL 1 DAY > naive", ts=utc(2024, 1, 30, 12), naive=at) is False
    assert value("ts BETWEEN now() - INTERVAL 7 DAYS AND now()", ts=utc(2026, 10, 26, 6, 30)) is True
    assert value("CURRENT_TIMESTAMP - ts > INTERVAL 7 DAYS", ts=utc(2026, 10, 26, 6)) is True
    assert value("CURRENT_TIMESTAMP - ts > INTERVAL 7 DAYS", ts=utc(2026, 10, 26, 7)) is False
    assert value("lasting >= INTERVAL '1 hour'", lasting=dt.timedelta(hours=1)) is True
    (change,) = assignments({"ts": sql("ts + INTERVAL 1 MONTH")}, SCHEMA, Clock(NEW_YORK))
    assert change.apply(rows(ts=utc(2026, 2, 8, 7, 30))).to_pylist() == [utc(2026, 3, 8, 7, 30)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ts + INTERVAL 3 FORTNIGHTS", "FORTNIGHTS.* is not available; available: INTERVAL 7 DAYS"),
        ("ts + INTERVAL '3'", "is not available; available: INTERVAL 7 DAYS"),
        ("ts + INTERVAL number DAY", "is not available; available: INTERVAL 7 DAYS"),
        ("ts + INTERVAL '1.5' DAY", "is not available; available"),
        ("ts + INTERVAL '1 day 2' HOUR", "INTERVAL '1 day 2' is not available"),
        ("ts + INTERVAL 'about 1 day'", "INTERVAL 'about 1 day' is not available"),
        ("ts + INTERVAL '1 -2 days'", "INTERVAL '1 -2 days' is not available"),
        ("ts + INTERVAL '- 1 day'", "INTERVAL '- 1 day' is not available"),
        ("ts + INTERVAL '.5 seconds'", "INTERVAL '.5 seconds' is not available"),
        ("ts + INTERVAL 'P1D'", "INTERVAL 'P1D' is not available"),
        ("ts + INTERVAL '1.0000001' SECOND", "is not available"),
        ("ts + INTERVAL '1 24:00:00' DAY TO SECOND", "is not available"),
        ("ts + INTERVAL '1-12' YEAR TO MONTH", "is not available"),
        ("ts + INTERVAL '1-1' MONTH TO YEAR", "is not available"),
        ("ts + INTERVAL '1 02:03:04'", "is not available"),
        ("ts + INTERVAL 1 MONTH 1 DAY", "cannot mix years or months with days"),
        ("ts + INTERVAL '1 month 1 day'", "cannot mix years or months with days"),
        ("ts > INTERVAL 1 MONTH", "years or months has no fixed length"),
        ("ts > INTERVAL 1 DAY", "cannot compare timestamp"),
        ("number + INTERVAL 1 DAY", "can be added to dates and timestamps, not to int64"),
        ("'2024-01-01' + INTERVAL 1 DAY", "not to string; write DATE '...' or TIMESTAMP '...'"),
        ("INTERVAL 1 DAY - ts", "cannot calculate with"),
        ("ts * INTERVAL 1 DAY", "cannot calculate with"),
        ("ts + INTERVAL 1 DAY * 1.5", "cannot calculate with"),
        ("ts + INTERVAL 9223372036854775807 DAYS", "too long"),
        ("ts + INTERVAL 3000000000 MONTHS", "too long"),
        ("day - day > 3", "cannot calculate with date32"),
    ],
)
def test_refused_with_the_choices(text, said):
    with pytest.raises(InvalidArgument, match=said):
        sql_formula(text, SCHEMA)


def test_out_of_range_is_an_error():
    with pytest.raises(InvalidArgument, match=r"out of the range of timestamp\[ns"):
        value("ns + INTERVAL 300 YEARS", ns=utc(2024, 1, 1))
    with pytest.raises(InvalidArgument, match=r"out of the range of timestamp\[ns"):
        value("ns + INTERVAL 100000 DAYS", ns=utc(2024, 1, 1))
    with pytest.raises(InvalidArgument, match=r"out of the range of timestamp\[ns"):
        value("ns + INTERVAL '23' HOURS", ns=utc(2262, 4, 11, 23))
    with pytest.raises(InvalidArgument, match="Integer value"):
        value("day + INTERVAL 100000000 YEARS", day=dt.date(2024, 1, 1))


def test_constants_prune():
    files = [
        file_of(pa.table({"ts": pa.array([utc(2026, 10, day)], SCHEMA.field("ts").type)})) for day in (1, 26, 27)
    ]
    for where, kept in (
        ("ts > CURRENT_TIMESTAMP - INTERVAL 7 DAY", [False, False, True]),
        ("ts < now() - INTERVAL '1' MONTH", [True, False, False]),
        ("ts >= CURRENT_DATE - INTERVAL 7 DAY", [False, True, True]),
        ("ts IN (CURRENT_DATE - INTERVAL 1 WEEK, DATE '2026-11-01' - INTERVAL 1 MONTH)", [True, True, False]),
        ("ts - INTERVAL 1 DAY > now()", [True, True, True]),
    ):
        assert may_match(predicate(where, SCHEMA, Clock(None, NOW)), files) == kept, where


def test_columns_may_be_called_interval():
    batch = pa.record_batch({"interval": [1, 2]})
    assert predicate("interval > 1", batch.schema).matches(batch).to_pylist() == [False, True]
    assert predicate("interval IN (2)", batch.schema).matches(batch).to_pylist() == [False, True]


@given(
    st.datetimes(wall(1900, 1, 1), wall(2100, 1, 1)),
    st.integers(-2000, 2000),
    st.sampled_from([NEW_YORK, "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata"]),
)
@settings(max_examples=60, deadline=None)
def test_days_agree_with_zoneinfo(at, days, zone):
    """Python's own arithmetic moves the clock as well; `fold` keeps the original offset in overlaps."""
    info = zoneinfo.ZoneInfo(zone)
    start = at.replace(tzinfo=info).astimezone(UTC)
    moved = start.astimezone(info).replace(tzinfo=None) + dt.timedelta(days)
    offset = start.astimezone(info).utcoffset()
    choices = [moved.replace(tzinfo=info, fold=fold) for fold in (0, 1)]
    same = [choice for choice in choices if choice.utcoffset() == offset and _exists(choice, info)]
    expected = (same or choices)[0].astimezone(UTC)
    assert value(f"ts + INTERVAL '{days}' DAY", zone, ts=start) == expected


def _exists(time, info):
    return time.astimezone(UTC).astimezone(info).replace(tzinfo=None) == time.replace(tzinfo=None)
