"""Time zones in SQL on every engine: compared with Python's `zoneinfo` and with Spark's SQL."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from parketto import Dataset, DuckDBParquetHandler, InvalidArgument, ParquetCRUD, sql
from parketto.engines.base import Engine
from parketto.expressions.conditions import sql_formula
from parketto.expressions.dispatch import predicate
from parketto.expressions.time_zones import Clock

UTC = dt.UTC
NEW_YORK, KOLKATA = "America/New_York", "Asia/Kolkata"
SCHEMA = pa.schema(
    {"id": pa.int64(), "ts": pa.timestamp("us", "UTC"), "naive": pa.timestamp("us"), "day": pa.date32()}
)
HALF_HOUR = dt.timedelta(minutes=30)


def instants(*starts: dt.datetime, count: int = 12) -> list[dt.datetime]:
    """Steps of half an hour from each start."""
    return [start + number * HALF_HOUR for start in starts for number in range(count)]


# Around New York's DST changes, midnight in both zones, and a year beyond Arrow's time zone rules.
TIMES = [
    *instants(dt.datetime(2026, 3, 8, 4, tzinfo=UTC)),
    *instants(dt.datetime(2026, 6, 30, 17, tzinfo=UTC), count=24),
    *instants(dt.datetime(2026, 11, 1, 3, 30, tzinfo=UTC), dt.datetime(2050, 7, 1, 1, tzinfo=UTC)),
]


def clock(time: dt.datetime, zone: str) -> dt.datetime:
    return time.astimezone(zoneinfo.ZoneInfo(zone)).replace(tzinfo=None)


def instant(zone: str, *parts: int) -> dt.datetime:
    """The instant of a local time; Spark uses `fold=0` in gaps and overlaps, too."""
    return dt.datetime(*parts, tzinfo=zoneinfo.ZoneInfo(zone)).astimezone(UTC)  # type: ignore[arg-type, misc]


def midnight(time: dt.datetime) -> dt.datetime:
    return time.replace(hour=0, minute=0)


def table(times: list[dt.datetime], zone: str) -> pa.Table:
    shown = [clock(time, zone) for time in times]
    rows = {"id": [TIMES.index(time) for time in times], "ts": times, "naive": shown}
    return pa.table({**rows, "day": [time.date() for time in shown]}, schema=SCHEMA)


@pytest.fixture
def zoned(engine: Engine | str, local: Place, request: pytest.FixtureRequest) -> Callable[[str], Dataset]:
    """A dataset whose expressions use a zone: on Spark that of the session, else the given one."""

    def make(zone: str) -> Dataset:
        parts = {f"{at}.parquet": table(TIMES[at : at + 12], zone) for at in range(0, len(TIMES), 12)}
        local.write_files(parts, row_group_size=3)
        if engine != "spark":
            return local.dataset(engine=engine, timezone=zone)
        # A new session, so that the settings of the shared one are not changed.
        session = request.getfixturevalue("spark").newSession()
        session.conf.set("spark.sql.session.timeZone", zone)
        return local.dataset(engine="spark", spark=session)

    return make


CONDITIONS: dict[str, Callable[[dt.datetime, str], bool]] = {
    "ts >= '2026-03-08 02:30:00' AND ts < '2026-11-01'": lambda at, zone: (
        instant(zone, 2026, 3, 8, 2, 30) <= at < instant(zone, 2026, 11, 1)
    ),
    "ts IN (TIMESTAMP '2026-11-01 01:30:00', '2026-06-30 23:30:00')": lambda at, zone: (
        at in (instant(zone, 2026, 11, 1, 1, 30), instant(zone, 2026, 6, 30, 23, 30))
    ),
    "ts < DATE '2026-07-01' AND naive > '2026-06-30 23:00:00'": lambda at, zone: (
        at < instant(zone, 2026, 7, 1) and clock(at, zone) > dt.datetime(2026, 6, 30, 23)  # noqa: DTZ001
    ),
    "CAST(ts AS DATE) = '2050-06-30' OR hour(ts) = 1": lambda at, zone: (
        clock(at, zone).date() == dt.date(2050, 6, 30) or clock(at, zone).hour == 1
    ),
    "date_trunc('day', ts) = '2026-03-08' OR ts > CURRENT_TIMESTAMP": lambda at, zone: (
        clock(at, zone).date() == dt.date(2026, 3, 8) or at > dt.datetime.now(UTC)
    ),
    "ts >= TIMESTAMP '2026-03-07 02:30:00' + INTERVAL 1 DAY AND ts < DATE '2026-12-01' - INTERVAL 1 MONTH": (
        lambda at, zone: instant(zone, 2026, 3, 8, 2, 30) <= at < instant(zone, 2026, 11, 1)
    ),
    "naive + INTERVAL '1 hour 30 minutes' > CAST(ts AS DATE) + INTERVAL 1 DAY": lambda at, zone: (
        clock(at, zone) + 3 * HALF_HOUR > midnight(clock(at, zone) + dt.timedelta(1))
    ),
    "ts > CURRENT_TIMESTAMP - INTERVAL '7' DAY": lambda at, zone: at > (dt.datetime.now(UTC) - dt.timedelta(7)),
    "ts < '2026-06-30 18:00:00 UTC' AND ts >= '2026-06-30 23:00:00+05:30'": lambda at, _zone: (
        dt.datetime(2026, 6, 30, 17, 30, tzinfo=UTC) <= at < dt.datetime(2026, 6, 30, 18, tzinfo=UTC)
    ),
}


@pytest.mark.parametrize("zone", [NEW_YORK, KOLKATA])
def test_conditions_and_new_values_use_the_time_zone(zoned: Any, local: Place, zone: str) -> None:
    dataset = zoned(zone)
    for where, holds in CONDITIONS.items():
        expected = sum(holds(time, zone) for time in TIMES)
        assert 0 < expected < len(TIMES), where
        assert dataset.delete(where, dry_run=True)["rows_matched"] == expected, where
    values = {
        "ts": sql("date_trunc('day', ts)"),
        "naive": sql("CAST(ts AS TIMESTAMP_NTZ)"),
        "day": sql("CAST(ts AS DATE)"),
    }
    dataset.update("ts < '2026-03-08 12:00:00'", values)
    dataset.update("ts = '2026-11-01 01:30:00'", {"ts": "2027-07-04 00:00:00"})
    where = "ts >= '2050-01-01'"
    dataset.delete(where)
    expected_rows = {}
    for at, time in enumerate(TIMES):
        if time < instant(zone, 2026, 3, 8, 12):
            time = instant(zone, *clock(time, zone).timetuple()[:3])
        elif time == instant(zone, 2026, 11, 1, 1, 30):
            time = instant(zone, 2027, 7, 4)
        if time < instant(zone, 2050, 1, 1):
            expected_rows[at] = (time, clock(TIMES[at], zone), clock(TIMES[at], zone).date())
    found = {row["id"]: (row["ts"], row["naive"], row["day"]) for row in pq.read_table(local.root).to_pylist()}
    assert found == expected_rows


def test_files_are_pruned_in_the_time_zone(zoned: Any) -> None:
    """In UTC another file would match."""
    stats = zoned(NEW_YORK).delete("ts >= '2026-06-30 13:00:00' AND ts < '2026-06-30 14:00:00'", dry_run=True)
    assert (stats["rows_matched"], stats["files_scanned"]) == (2, 1)


def test_files_before_an_interval_are_not_read(zoned: Any) -> None:
    """The constant side of a comparison is folded, so footers rule files out."""
    dataset = zoned(NEW_YORK)
    stats = dataset.delete("ts > TIMESTAMP '2026-12-01 00:00:00' + INTERVAL '1' YEAR", dry_run=True)
    assert (stats["rows_matched"], stats["files_scanned"]) == (12, 1)
    stats = dataset.delete("ts < CURRENT_TIMESTAMP - INTERVAL 100 YEARS", dry_run=True)
    assert (stats["rows_matched"], stats["files_scanned"]) == (0, 0)


def test_intervals_in_new_values(zoned: Any, local: Place) -> None:
    dataset = zoned(NEW_YORK)
    values = {
        "ts": sql("ts + INTERVAL 1 DAY"),
        "naive": sql("naive - INTERVAL '1 hour 30 minutes'"),
        "day": sql("day + INTERVAL 1 MONTH"),
    }
    dataset.update("ts < '2026-03-08 12:00:00'", values)
    found = {row["id"]: (row["ts"], row["naive"], row["day"]) for row in pq.read_table(local.root).to_pylist()}
    for at, time in enumerate(TIMES[:12]):
        shown = clock(time, NEW_YORK)
        later = instant(NEW_YORK, *(shown + dt.timedelta(1)).timetuple()[:5])
        assert found[at] == (later, shown - 3 * HALF_HOUR, shown.date().replace(month=4)), time


def test_suggest_and_crud_use_the_time_zone(zoned: Any, engine: Engine | str, local: Place) -> None:
    dataset = zoned(NEW_YORK)
    query = "ts = '2026-06-30 13:00:00'"
    assert 0 < dataset.suggest([query])["reads_now"] < 1
    crud = ParquetCRUD(local.root, engine=engine, timezone=NEW_YORK)
    assert crud.delete(query, dry_run=True)["rows_deleted"] == 1
    # An explicit zone overrides that of the session.
    assert (
        ParquetCRUD(local.root, engine=engine, timezone=KOLKATA).delete(query, dry_run=True)["rows_deleted"] == 0
    )


def test_unknown_time_zones_are_refused(local: Place) -> None:
    for make in (Dataset, ParquetCRUD):
        with pytest.raises(InvalidArgument, match="unknown time zone 'Mars/Phobos'"):
            make(local.root, timezone="Mars/Phobos")
    assert local.left_behind() == []


SKIPPED_TIMES = ", ".join(f"TIMESTAMP '2026-03-08 02:{minute}:00'" for minute in range(20, 40))
# Conditions that must mean the same in Spark and Parketto.
SAME_TEXT = [
    *CONDITIONS,
    "ts >= '2026-03-08 02:30:00'",
    "ts = TIMESTAMP '2026-11-01 01:30:00'",
    "ts = CAST('2026-03-08 02:30:00' AS TIMESTAMP)",
    "ts > TIMESTAMP '2026-11-01 01:30:00'",
    "ts <= TIMESTAMP_LTZ '2026-11-01 00:30:00'",
    "ts IN (TIMESTAMP '2026-11-01 01:00:00', TIMESTAMP '2026-06-30 22:00:00')",
    "ts BETWEEN '2026-06-30' AND '2026-06-30 23:59:59'",
    "ts = TIMESTAMP '2026-11-01 01:30:00 America/New_York'",
    "ts = '2026-11-01T06:30:00Z'",
    "naive = ts",
    "naive < ts",
    "naive >= TIMESTAMP '2026-11-01 06:30:00Z'",
    "naive = TIMESTAMP '2026-06-30 22:00:00'",
    "naive < '2026-03-08 02:30:00'",
    "naive > TIMESTAMP_NTZ '2050-06-30 23:00:00'",
    # A string compared with TIMESTAMP_NTZ is a local time, whatever zone it names.
    "naive < '2026-03-08 03:30:00Z'",
    "naive < '2026-03-08 01:00:00 Asia/Kolkata'",
    "naive = '2026-06-30 22:00:00-07:00'",
    "naive IN ('2026-06-30 22:00:00Z', '2026-06-30 23:00:00+05:30')",
    f"naive IN ('2026-06-30 22:00:00Z'{', NULL' * 10})",
    "naive BETWEEN '2026-03-08 00:00:00Z' AND '2026-06-30 22:00:00+05:30'",
    # TIMESTAMP is an instant; its text may be in a DST gap.
    "naive < TIMESTAMP '2026-03-08 02:30:00'",
    "naive < CAST('2026-03-08 02:30:00' AS TIMESTAMP)",
    "naive < TIMESTAMP '2026-03-08 03:10:00'",
    "TIMESTAMP '2026-03-08 02:30:00' > naive",
    "naive = TIMESTAMP '2026-03-08 02:30:00'",
    # In a list, but not alone, Spark also matches local times in a DST gap.
    f"naive >= TIMESTAMP_NTZ '2026-03-08 03:00:00' AND naive IN ({SKIPPED_TIMES})",
    "day < TIMESTAMP '2026-03-08 02:30:00'",
    "CAST(naive AS TIMESTAMP) < '2026-03-08 07:10:00Z'",
    "CAST(CAST(ts AS STRING) AS TIMESTAMP) < TIMESTAMP '2026-03-08 02:30:00'",
    "CAST(CAST(naive AS STRING) AS TIMESTAMP) > naive",
    "day > ts",
    "day = DATE '2026-06-30'",
    "day < CURRENT_DATE",
    "day < TIMESTAMP '2026-06-30 12:00:00'",
    "CAST(ts AS TIMESTAMP_NTZ) = naive",
    "CAST(naive AS TIMESTAMP) = ts",
    "CAST(day AS TIMESTAMP) <= ts",
    "CAST(ts AS TIMESTAMP) = '2026-11-01 01:30:00'",
    "CAST(CAST(ts AS STRING) AS TIMESTAMP) = ts",
    "COALESCE(ts, TIMESTAMP '2026-01-01') < '2026-03-08 03:30:00'",
    "year(ts) = 2050 AND month(ts) = 6 AND day(ts) = 30",
    "EXTRACT(HOUR FROM ts) IN (2, 3) AND minute(ts) = 30",
    *[f"date_trunc('{unit}', ts) < ts" for unit in ("year", "month", "week", "day", "hour", "minute")],
    "ts > CURRENT_TIMESTAMP - INTERVAL 7 DAYS",
    "day >= CURRENT_DATE - INTERVAL 30 DAY",
    "ts - INTERVAL 1 DAY < TIMESTAMP '2026-03-07 02:30:00'",
    "naive >= TIMESTAMP '2026-02-08 02:30:00' + INTERVAL 1 MONTH",
    "day + INTERVAL 12 HOURS < ts",
    "ts - naive > INTERVAL '30' MINUTE",
    "CURRENT_TIMESTAMP - ts > INTERVAL '1 day 2 hours'",
]
INTERVALS = [
    "INTERVAL 1 DAY",
    "INTERVAL '36' HOUR",
    "INTERVAL '-36 hours'",
    "INTERVAL '1 hour 30 minutes'",
    "INTERVAL '1 02:03:04.567891' DAY TO SECOND",
    "INTERVAL 1 MONTH",
    "INTERVAL -13 MONTHS",
    "INTERVAL '1-2' YEAR TO MONTH",
    "INTERVAL 2 WEEKS",
]
VALUES = [
    "CAST(ts AS STRING)",
    "CAST(naive AS STRING)",
    "CAST(CAST(ts AS DATE) AS STRING)",
    "hour(ts)",
    "quarter(ts)",
    *[f"CAST(date_trunc('{unit}', ts) AS STRING)" for unit in ("year", "quarter", "week", "day", "hour")],
    *[f"date_trunc('{unit}', ts) >= TIMESTAMP '2026-11-01 05:00:00Z'" for unit in ("month", "day", "hour")],
    *[
        f"CAST(CAST({column} {operator} {interval} AS TIMESTAMP_NTZ) AS STRING)"
        for interval in INTERVALS
        for column, operator in (("ts", "+"), ("ts", "-"), ("naive", "+"), ("day", "-"))
    ],
    # The second of two equal times on a clock is not the first.
    *[f"ts + {interval} < TIMESTAMP '2026-11-01 06:00:00Z'" for interval in INTERVALS],
    *[
        f"CAST({start} + INTERVAL {number} MONTH AS STRING)"
        for number in (1, 12, -11)
        for start in (
            "DATE '2024-01-31'",
            "DATE '2024-02-29'",
            "TIMESTAMP '2024-03-31 23:59:59.999'",
            "TIMESTAMP_NTZ '1970-01-31 00:00:00'",
        )
    ],
]


@pytest.mark.parametrize(
    ("zone", "start"),
    [
        (NEW_YORK, None),
        (KOLKATA, None),
        ("America/Havana", dt.datetime(2026, 11, 1, 2, tzinfo=UTC)),
        ("Australia/Lord_Howe", dt.datetime(2026, 10, 3, 14, tzinfo=UTC)),
        ("Pacific/Apia", dt.datetime(2011, 12, 30, 6, tzinfo=UTC)),
        ("America/Toronto", dt.datetime(1919, 3, 31, 2, tzinfo=UTC)),
        ("+05:30", None),
    ],
)
def test_sql_has_the_meaning_of_spark_sql(spark: Any, tmp_path: Any, zone: str, start: dt.datetime | None) -> None:
    """Spark's SQL, Parketto's SQL and the same text as a Column agree, in a session with that time zone."""
    from pyspark.sql import functions

    times = TIMES if start is None else [*TIMES, *instants(start, count=30)]
    shown = zone if zone != "+05:30" else KOLKATA
    clocks = [clock(time, shown) for time in times]
    # These local times are in a DST gap of New York, but a file may contain them.
    for minute in (0, 15, 30, 45):
        times, clocks = [*times, times[0]], [*clocks, dt.datetime(2026, 3, 8, 2, minute)]  # noqa: DTZ001
    rows = {"id": range(len(times)), "ts": times, "naive": clocks, "day": [each.date() for each in clocks]}
    written = pa.table({**rows, "id": list(range(len(times)))}, schema=SCHEMA)
    pq.write_table(written, tmp_path / "rows.parquet")
    batch = written.to_batches()[0]
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    frame = session.read.parquet(str(tmp_path))
    wanted = [functions.expr(f"coalesce({text}, false)") for text in SAME_TEXT] + [
        functions.expr(text) for text in VALUES
    ]
    theirs = frame.select("id", *(each.alias(f"c{at}") for at, each in enumerate(wanted))).orderBy("id").collect()
    for at, text in enumerate([*SAME_TEXT, *VALUES]):
        if zone == "America/Toronto" and text == "CAST(day AS TIMESTAMP) <= ts":
            continue  # dates skip a DST gap that begins before midnight, as in 1919; times do not
        expected = [row[at + 1] for row in theirs]
        if at < len(SAME_TEXT):
            assert predicate(text, SCHEMA, Clock(zone)).matches(batch).to_pylist() == expected, text
            assert predicate(functions.expr(text), SCHEMA, Clock(zone)).matches(batch).to_pylist() == expected, (
                text
            )
        else:
            assert sql_formula(text, SCHEMA, Clock(zone)).values(batch, {}).to_pylist() == expected, text


def test_spark_text_and_column_delete_the_same_rows(spark: Any, local: Place) -> None:
    """A delete matches the rows that the session counts, by SQL and by Column."""
    from pyspark.sql import functions

    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", NEW_YORK)
    local.write_files({"a.parquet": table(TIMES, NEW_YORK)})
    dataset = local.dataset(engine="spark", spark=session)
    column = functions.col("ts")
    for text, same in (
        ("ts >= '2026-06-30 14:00:00' AND ts < '2026-06-30 17:30:00'",
         (column >= "2026-06-30 14:00:00") & (column < "2026-06-30 17:30:00")),
        ("hour(ts) = 1", functions.hour("ts") == 1),
        ("CAST(ts AS DATE) <= DATE '2026-03-08'", functions.to_date("ts") <= dt.date(2026, 3, 8)),
    ):  # fmt: skip
        counted = session.read.parquet(local.root).where(text).count()
        assert counted
        assert dataset.delete(text, dry_run=True)["rows_matched"] == counted
        assert dataset.delete(same, dry_run=True)["rows_matched"] == counted
        assert dataset.delete(text)["rows_matched"] == counted
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.parametrize(("zone", "hour"), [(None, 0), (NEW_YORK, 4), ("+05:30", 18.5 - 24)])
def test_duckdb_handler_queries_use_its_time_zone(zone: str | None, hour: float) -> None:
    """Independent of the time zone of the machine."""
    options = {} if zone is None else {"timezone": zone}
    with DuckDBParquetHandler(**options) as handler:
        found = handler.execute_sql("SELECT epoch(TIMESTAMPTZ '2026-07-01 00:00:00') AS at").to_pylist()
    assert found == [{"at": (dt.datetime(2026, 7, 1, tzinfo=UTC) + dt.timedelta(hours=hour)).timestamp()}]
    with pytest.raises(InvalidArgument, match="unknown time zone 'Mars/Phobos'"):
        DuckDBParquetHandler(timezone="Mars/Phobos")
