"""Time zones in SQL: compared with Python's `zoneinfo`, years after 2037 included."""

from __future__ import annotations

import datetime as dt
import pickle
import zoneinfo

import numpy as np
import pyarrow as pa
import pytest

from helpers.files import file_of
from parketto import Dataset, sql
from parketto.errors import InvalidArgument
from parketto.expressions.conditions import assignments, predicate
from parketto.expressions.pruning import may_match
from parketto.expressions.time_zones import Clock, Conversion, Zone, zone_info

UTC = dt.UTC
NEW_YORK, KOLKATA = "America/New_York", "Asia/Kolkata"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
# Havana's clocks go back at 1:00 to 0:00; Samoa left out a day in 2011; Lord Howe's summer is half an hour;
# Toronto went from 23:30 to 0:30 in 1919; Dublin's winter time is the one that is moved.
ZONES = [NEW_YORK, KOLKATA, "America/Havana", "Pacific/Apia", "Australia/Lord_Howe", "America/Toronto",
         "Europe/Dublin", "Africa/Casablanca"]  # fmt: skip


def utc(*parts):
    return dt.datetime(*parts, tzinfo=UTC)


def wall(*parts):
    return dt.datetime(*parts)  # noqa: DTZ001 - a wall-clock time


def matching(where, rows, zone, now=None):
    condition = pickle.loads(pickle.dumps(predicate(where, rows.schema, Clock(zone, now))))
    return [at for at, found in enumerate(condition.matches(rows).to_pylist()) if found]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("year", [1890, 1919, 1942, 2011, 2026, 2045])
def test_offsets_and_instants_agree_with_zoneinfo(zone, year):
    info = zoneinfo.ZoneInfo(zone)
    start = int((utc(year, 1, 1) - EPOCH).total_seconds())
    seconds = np.arange(start, start + 366 * 86_400, 1800, dtype=np.int64)
    times = [EPOCH + dt.timedelta(seconds=second) for second in seconds.tolist()]
    assert Zone(zone).offsets(seconds).tolist() == [
        time.astimezone(info).utcoffset().total_seconds() for time in times
    ]
    # `fold=0` is the earlier of two times, and the offset from before a gap: as in Java.
    expected = [(time.replace(tzinfo=info) - EPOCH).total_seconds() for time in times]
    assert Zone(zone).instants(seconds).tolist() == expected


def test_offsets_of_years_beyond_the_range_of_python():
    """The calendar repeats after 400 years; before the first rules clocks showed local mean time."""
    late, equivalent = (day * 86_400 + 43_200 for day in (3_500_000, 3_500_000 - 20 * 146_097))
    found = Zone(NEW_YORK).offsets(np.array([late, equivalent, -(10**11)]))
    assert found[0] == found[1]
    assert found[2] == -17_762
    far = pa.array([2**63 - 1, -(2**63) + 1], pa.timestamp("us", "UTC"))
    for zone, values in ((KOLKATA, far[:1]), (NEW_YORK, far[1:]), ("+01:00", far[:1])):
        with pytest.raises(pa.ArrowInvalid, match="out of the range"):
            Conversion("wall", Zone(zone)).run(values)


@pytest.mark.parametrize(
    ("name", "hours"),
    [("Z", 0), ("GMT", 0), ("+02:00", 2), ("UTC-8", -8), ("GMT+0530", 5.5), ("+5:30", 5.5), ("Europe/Berlin", 2),
     ("PST", -7), ("IST", 5.5)],
)  # fmt: skip
def test_zone_names_of_spark_are_supported(name, hours):
    assert zone_info(name).utcoffset(wall(2024, 7, 1)) == dt.timedelta(hours=hours)


@pytest.mark.parametrize("name", ["Mars/Phobos", "", "America", "../UTC", "+25:00", "+05:75", 5])
def test_unknown_zones_are_refused_before_any_file_is_created(name, tmp_path):
    with pytest.raises(InvalidArgument, match=f"{name!r}".replace("+", r"\+")):
        Dataset(tmp_path / "nothing", engine="pyarrow", timezone=name)
    assert not any(tmp_path.iterdir())


# Around both changes of clocks in New York, and the ordinary evening in which its day is not UTC's.
INSTANTS = [
    utc(2026, 3, 8, 6, 30),  # 1:30
    utc(2026, 3, 8, 7, 0),  # 3:00
    utc(2026, 3, 8, 7, 30),  # 3:30
    utc(2026, 11, 1, 5, 30),  # 1:30
    utc(2026, 11, 1, 6, 30),  # 1:30 again
    utc(2026, 11, 1, 7, 30),  # 2:30
    utc(2026, 7, 1, 2, 0),  # 22:00 of the day before
    None,
]
ROWS = pa.record_batch(
    {
        "ts": pa.array(INSTANTS, pa.timestamp("us", "UTC")),
        "ns": pa.array(INSTANTS, pa.timestamp("ns", "Asia/Tokyo")),
        "naive": pa.array(
            [time and time.astimezone(zoneinfo.ZoneInfo(NEW_YORK)).replace(tzinfo=None) for time in INSTANTS],
            pa.timestamp("us"),
        ),
        "day": pa.array([time and time.date() for time in INSTANTS]),
        "text": pa.array(["2026-03-08 02:30:00", "2026-03-08T07:00:00Z", "2026-03-08 03:30", "2026-11-01 01:30:00",
                          " 2026-11-01 01:30:00-0500", "2026-11-01 02:30:00", "2026-06-30 22:00:00", None]),
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        # 2:30 does not exist: it means 3:30.
        ("ts = '2026-03-08 02:30:00'", [2]),
        ("ts = TIMESTAMP '2026-03-08 02:30:00'", [2]),
        ("ts = CAST('2026-03-08 02:30:00' AS TIMESTAMP)", [2]),
        ("ts = CAST('2026-03-08 02:30:00' AS TIMESTAMPTZ)", [2]),
        ("ts = TIMESTAMP_LTZ '2026-03-08 02:30:00'", [2]),
        ("ts = TIMESTAMP_NTZ '2026-03-08 02:30:00'", [2]),
        ("ns = '2026-03-08 02:30:00'", [2]),
        ("TIMESTAMP '2026-03-08 03:00:00' = ts", [1]),
        # 1:30 exists twice: it means the first one.
        ("ts = '2026-11-01 01:30:00'", [3]),
        ("ts > '2026-11-01 01:30:00'", [4, 5]),
        ("ts BETWEEN '2026-11-01' AND '2026-11-01 01:45:00'", [3]),
        ("ts IN ('2026-11-01 01:30:00', '2026-06-30 22:00:00')", [3, 6]),
        ("ts IN ('2026-11-01 01:30:00', '2026-06-30 22:00:00'" + ", DATE '2000-01-01'" * 9 + ")", [3, 6]),
        # An explicit zone is used.
        ("ts = '2026-11-01 06:30:00Z'", [4]),
        ("ts = '2026-11-01 01:30:00-05:00'", [4]),
        ("ts = TIMESTAMP '2026-11-01 12:00:00 Asia/Kolkata'", [4]),
        ("ts = '2026-11-01 12:00:00 +5:30'", [4]),
        # Dates start at midnight of the zone.
        ("ts >= DATE '2026-07-01' AND ts < DATE '2026-11-01'", []),
        ("ts >= DATE '2026-06-30' AND ts < '2026-07-01'", [6]),
        ("day < ts", [0, 1, 2, 3, 4, 5]),
        ("day > ts", [6]),
        # Wall-clock times are compared as such with each other, and as instants with instants.
        ("naive = '2026-11-01 01:30:00'", [3, 4]),
        ("naive >= '2026-03-08 03:00:00' AND naive < TIMESTAMP '2026-03-08 03:00:01'", [1]),
        ("naive = ts", [0, 1, 2, 3, 5, 6]),
        ("naive < ts", [4]),
        ("naive = TIMESTAMP '2026-07-01 02:00:00Z'", [6]),
        ("naive = TIMESTAMP '2026-11-01 05:30:00Z'", [3, 4]),
        ("naive >= TIMESTAMP '2026-11-01 06:30:00Z'", [5]),
        ("naive IN (TIMESTAMP '2026-11-01 05:30:00Z', '2026-06-30 22:00:00')", [3, 4, 6]),
        # Casts and parts.
        ("CAST(ts AS DATE) = '2026-06-30'", [6]),
        ("CAST(ts AS TIMESTAMP_NTZ) = TIMESTAMP '2026-11-01 01:30:00'", [3, 4]),
        ("CAST(ts AS TIMESTAMP) = '2026-11-01 01:30:00'", [3]),
        ("CAST(ts AS TIMESTAMP) = ts", [0, 1, 2, 3, 4, 5, 6]),
        ("CAST(naive AS TIMESTAMPTZ) = ts", [0, 1, 2, 3, 5, 6]),
        ("CAST(ts AS VARCHAR) = '2026-11-01 01:30:00'", [3, 4]),
        ("CAST(ns AS VARCHAR) LIKE '2026-06-30 22:00:00'", [6]),
        ("CAST(ts AS TIME) = TIME '22:00:00'", [6]),
        ("CAST(text AS TIMESTAMPTZ) = ts", [1, 2, 3, 4, 5, 6]),
        ("hour(ts) = 1", [0, 3, 4]),
        ("hour(ns) = 22", [6]),
        ("EXTRACT(day FROM ts) = 30 AND month(ts) = 6", [6]),
        ("date_trunc('day', ts) = '2026-06-30'", [6]),
        ("date_trunc('hour', ts) = '2026-11-01 06:00:00Z'", [4]),
        ("date_trunc('month', ts) = TIMESTAMP '2026-06-01'", [6]),
        ("date_trunc('second', ts) = ts AND date_trunc('hour', ts) = ts", [1, 6]),
        ("hour(date_trunc('day', ts)) = 0", [0, 1, 2, 3, 4, 5, 6]),
        ("COALESCE(ts, '2026-07-01 00:00:00') = '2026-07-01 04:00:00Z'", [7]),
        ("CASE WHEN ts IS NULL THEN naive ELSE ts END = ts", [0, 1, 2, 3, 4, 5, 6]),
        ("GREATEST(ts, DATE '2026-11-01') > ts", [0, 1, 2, 6]),
    ],
)  # fmt: skip
def test_conditions_use_the_time_zone(where, rows):
    assert matching(where, ROWS, NEW_YORK) == rows


def test_current_time_is_the_start_of_the_operation():
    now = utc(2026, 7, 1, 2, 0)
    days = [dt.date(2026, 6, 30), dt.date(2026, 7, 1)]
    rows = pa.record_batch({"day": days, "ts": pa.array([now, EPOCH], pa.timestamp("us", "UTC"))})
    for zone, at in ((NEW_YORK, 0), (KOLKATA, 1), (None, 1)):
        assert matching("day = CURRENT_DATE", rows, zone, now) == [at]
        assert matching("day = current_date()", rows, zone, now) == [at]
        for present in ("CURRENT_TIMESTAMP", "now()", "LOCALTIMESTAMP"):
            assert matching(f"ts = {present}", rows, zone, now) == [0]
    clock = Clock()
    assert clock.now is clock.now
    with pytest.raises(InvalidArgument, match="CURRENT_DATE takes no argument"):
        predicate("day = CURRENT_DATE('UTC')", rows.schema)


def test_date_trunc_keeps_the_offset_in_an_overlap():
    """In Havana midnight of the 1st of November comes twice: noon belongs to the second one, as in Spark."""
    rows = pa.record_batch({"ts": pa.array([utc(2026, 11, 1, 17)], pa.timestamp("us", "UTC"))})
    assert matching("date_trunc('day', ts) = '2026-11-01 05:00:00Z'", rows, "America/Havana") == [0]
    assert matching("date_trunc('month', ts) = '2026-11-01 05:00:00Z'", rows, "America/Havana") == [0]
    assert matching("date_trunc('quarter', ts) = '2026-10-01 04:00:00Z'", rows, "America/Havana") == [0]
    # A day that starts in a gap starts after it.
    assert matching("ts > DATE '1919-03-31' ", rows, "America/Toronto") == [0]
    start = Conversion("instant", Zone("America/Toronto")).run(pa.array([dt.date(1919, 3, 31)]))
    assert start[0].as_py() == utc(1919, 3, 31, 4, 30)


@pytest.mark.parametrize(
    ("column", "value", "result"),
    [
        ("ts", "2026-03-08 02:30:00", utc(2026, 3, 8, 7, 30)),
        ("ts", "2026-07-01", utc(2026, 7, 1, 4)),
        ("ts", "2026-07-01 00:00:00Z", utc(2026, 7, 1)),
        ("ts", "2026-07-01 00:00:00 Asia/Kolkata", utc(2026, 6, 30, 18, 30)),
        ("ts", wall(2026, 11, 1, 1, 30), utc(2026, 11, 1, 5, 30)),
        ("ts", utc(2026, 7, 1), utc(2026, 7, 1)),
        ("ts", dt.date(2026, 7, 1), utc(2026, 7, 1, 4)),
        ("ts", sql("'2026-07-01 12:00:00'"), utc(2026, 7, 1, 16)),
        ("ts", sql("TIMESTAMP '2026-07-01 12:00:00'"), utc(2026, 7, 1, 16)),
        ("ts", sql("DATE '2026-07-01'"), utc(2026, 7, 1, 4)),
        ("ts", sql("day"), utc(2026, 3, 8, 5)),
        ("ts", sql("naive"), utc(2026, 3, 8, 6, 30)),
        ("ts", sql("date_trunc('day', ts)"), utc(2026, 3, 8, 5)),
        ("ns", sql("'2026-07-01 12:00:00'"), utc(2026, 7, 1, 16)),
        ("naive", "2026-03-08 02:30:00", wall(2026, 3, 8, 2, 30)),
        ("naive", sql("CAST(ts AS TIMESTAMP_NTZ)"), wall(2026, 3, 8, 1, 30)),
        ("day", sql("CAST(ts AS DATE)"), dt.date(2026, 3, 8)),
        ("day", sql("date_trunc('day', ts)"), dt.date(2026, 3, 8)),
        ("text", sql("CAST(ts AS VARCHAR)"), "2026-03-08 01:30:00"),
    ],
)
def test_new_values_use_the_time_zone(column, value, result):
    first = ROWS.slice(0, 1)
    (change,) = pickle.loads(pickle.dumps(assignments({column: value}, ROWS.schema, Clock(NEW_YORK))))
    found = change.apply(first)
    assert found.type == ROWS.schema.field(column).type
    assert found[0].as_py() == result


def test_instants_lose_their_zone_only_by_an_explicit_cast():
    for value in (utc(2026, 1, 1), sql("ts"), sql("CAST(ts AS TIMESTAMP)")):
        with pytest.raises(InvalidArgument, match=r"has a time zone.*CAST\(\.\.\. AS TIMESTAMP_NTZ\)"):
            assignments({"naive": value}, ROWS.schema, Clock(NEW_YORK))
    with pytest.raises(InvalidArgument, match="column 'day' of type date32"):
        assignments({"day": utc(2026, 7, 1)}, ROWS.schema, Clock(NEW_YORK))


@pytest.mark.parametrize(
    "where", ["ts AT TIME ZONE 'UTC' > naive", "CAST(ts AS BIGINT) = 0", "CAST(1.5 AS TIMESTAMPTZ) = ts"]
)
def test_unsupported_time_zone_conversions_are_refused(where):
    with pytest.raises(InvalidArgument):
        predicate(where, ROWS.schema, Clock(NEW_YORK))


def test_strings_that_are_not_timestamps_are_an_error():
    rows = pa.record_batch({"text": ["2026-01-01", "soon"], "ts": pa.array([0, 0], pa.timestamp("us", "UTC"))})
    with pytest.raises(InvalidArgument, match="soon"):
        matching("CAST(text AS TIMESTAMPTZ) = ts", rows, NEW_YORK)


@pytest.mark.parametrize(
    ("zone", "where", "possible"),
    [
        (None, "ts = '2026-07-01 00:00:00'", [True, False]),
        (NEW_YORK, "ts = '2026-07-01 00:00:00'", [False, True]),
        (NEW_YORK, "ts = DATE '2026-07-01'", [False, True]),
        (NEW_YORK, "ts < TIMESTAMP '2026-07-01'", [True, False]),
        (NEW_YORK, "ts < TIMESTAMP '2026-07-01 00:00:00Z'", [False, False]),
        (KOLKATA, "ts = '2026-07-01 06:30:00'", [True, False]),
        (KOLKATA, "ts >= '2026-07-01 08:00:00'", [True, True]),
        ("+05:30", "ts <= '2026-07-01 05:29:59.999999'", [False, False]),
        # Bounds say nothing about values derived from a column, so these prune nothing.
        (NEW_YORK, "CAST(ts AS DATE) = '2026-07-01'", [True, True]),
        (NEW_YORK, "CAST(ts AS DATE) = '2026-07-01' AND ts < '2026-07-01'", [True, False]),
    ],
)
def test_pruning_uses_the_time_zone(zone, where, possible):
    """One file has the hours from 0 to 3 UTC, the other one those from 4 to 6: New York's day starts there."""
    times = [utc(2026, 7, 1, hour) for hour in range(7)]
    tables = [pa.table({"ts": pa.array(some, pa.timestamp("us", "UTC"))}) for some in (times[:4], times[4:])]
    files = [file_of(table) for table in tables]
    assert may_match(predicate(where, tables[0].schema, Clock(zone)), files) == possible


def test_column_names_do_not_collide_with_internal_step_names():
    rows = pa.record_batch({"step 0": pa.array(INSTANTS, pa.timestamp("us", "UTC")), "step 1": list(range(8))})
    assert matching('hour("step 0") = 22 AND "step 1" = 6', rows, NEW_YORK) == [6]


def test_zone_is_resolved_once_and_only_if_needed():
    asked = []
    clock = Clock(lambda: asked.append(1) or NEW_YORK)
    schema = pa.schema({"id": pa.int64(), "ts": pa.timestamp("us", "UTC")})
    assignments({"id": sql("id + 1")}, schema, clock)
    predicate("id > 1 AND ts = '2026-01-01 00:00:00'", schema, Clock("UTC"))
    predicate("id > 1", schema, clock)
    assert not asked
    for _ in range(2):
        predicate("ts > '2026-01-01'", schema, clock)
        assignments({"ts": "2026-01-01"}, schema, clock)
    assert len(asked) == 1
