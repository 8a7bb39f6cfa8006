"""Timestamps as Spark means them: in every form that Spark writes, every engine keeps their form and their instants.

Files are written by Spark itself, and what comes of them is read by Spark. INT96, its default, is an instant; zoneless
timestamps stand beside it as 64-bit integers. Files of the older calendar are marked, and only values that are the
same in both calendars can be worked with.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import glob
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from conftest import Place
from parketto import Dataset, SparkParquetHandler
from parketto.engines.base import Engine
from parketto.errors import IncompatibleTypes, InvalidArgument, UnreadableFile

FORMS = ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS")
CALENDARS = ("CORRECTED", "LEGACY")
START = 1_600_000_000_000_000
INSTANT, CLOCK = pa.timestamp("us", "UTC"), pa.timestamp("us")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", INSTANT),
        ("clock", CLOCK),
        ("day", pa.date32()),
        ("pair", pa.struct([("at", INSTANT), ("clock", CLOCK)])),
        ("many", pa.list_(INSTANT)),
        ("named", pa.map_(pa.string(), INSTANT)),
        ("note", pa.string()),
    ]
)
SPARK_SCHEMA = (
    "id long, at timestamp, clock timestamp_ntz, day date, pair struct<at: timestamp, clock: timestamp_ntz>, "
    "many array<timestamp>, named map<string, timestamp>, note string"
)
#: The same in plain numbers and texts, whatever the session's time zone is.
PLAIN = (
    "id",
    "unix_micros(at) AS at",
    "cast(clock AS string) AS clock",
    "cast(day AS string) AS day",
    "CASE WHEN pair IS NULL THEN NULL ELSE array(unix_micros(pair.at)) END AS pair_at",
    "cast(pair.clock AS string) AS pair_clock",
    "transform(many, x -> unix_micros(x)) AS many",
    "transform_values(named, (k, v) -> unix_micros(v)) AS named",
    "note",
)


def row(n: int, note: str = "old") -> dict[str, Any]:
    """Whole milliseconds, which all forms hold."""
    at = START + n * 1_001_000
    return {
        "id": n,
        "at": None if n % 7 == 3 else at,
        "clock": None if n % 5 == 3 else at + 1,
        "day": 18_000 + n,
        "pair": None if n % 4 == 3 else {"at": None if n % 3 == 2 else at + 5000, "clock": at + 2},
        "many": None if n % 6 == 5 else [at, None, at + 1000][: n % 4],
        "named": None if n % 8 == 6 else [("a", at), ("b", None)][: n % 3],
        "note": note,
    }


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table([pa.array([each[item.name] for each in rows], item.type) for item in SCHEMA], schema=SCHEMA)


def clock(micros: int | None) -> str | None:
    if micros is None:
        return None
    text = str(dt.datetime.fromtimestamp(micros // 10**6, dt.UTC).replace(tzinfo=None))
    return f"{text}.{micros % 10**6:06d}".rstrip("0").rstrip(".")


def frame(spark: Any, rows: pa.Table) -> Any:
    return spark.createDataFrame(rows.select(SCHEMA.names), SPARK_SCHEMA).select(*rows.schema.names)


def plain(given: dict[str, Any]) -> dict[str, Any]:
    """What `PLAIN` shows of a row."""
    pair = given["pair"]
    return {
        "id": given["id"],
        "at": given["at"],
        "clock": clock(given["clock"]),
        "day": None if given["day"] is None else str(dt.date(1970, 1, 1) + dt.timedelta(given["day"])),
        "pair_at": None if pair is None else [pair["at"]],
        "pair_clock": None if pair is None else clock(pair["clock"]),
        "many": given["many"],
        "named": None if given["named"] is None else dict(given["named"]),
        "note": given["note"],
    }


def seen(frame: Any) -> list[dict[str, Any]]:
    return sorted((found.asDict() for found in frame.selectExpr(*PLAIN).collect()), key=lambda each: each["id"])


def expected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(map(plain, rows), key=lambda each: each["id"])


def physical(path: str) -> list[list[str]]:
    """The leaf columns of every file in Parquet's own terms."""
    found = []
    for file in sorted(glob.glob(f"{path}/**/*.parquet", recursive=True)):
        schema = pq.read_metadata(file).schema
        leaves = [schema.column(at) for at in range(len(schema))]
        found.append([f"{leaf.path} {leaf.physical_type} {leaf.logical_type}" for leaf in leaves])
    return found


@contextlib.contextmanager
def settings(spark: Any, **values: str) -> Iterator[None]:
    names = {name: f"spark.sql.{name.replace('__', '.')}" for name in values}
    before = {name: spark.conf.get(names[name]) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(names[name], value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(names[name], value)


def write(spark: Any, path: str, rows: pa.Table, form: str, calendar: str, **options: str) -> None:
    with settings(
        spark,
        parquet__outputTimestampType=form,
        parquet__int96RebaseModeInWrite=calendar,
        parquet__datetimeRebaseModeInWrite=calendar,
    ):
        frame(spark, rows).coalesce(1).write.options(**options).parquet(path)


@pytest.fixture(scope="module")
def written(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """The same rows as Spark writes them, in every form; each is made once."""
    base = tmp_path_factory.mktemp("spark")

    def find(form: str, calendar: str = "CORRECTED") -> str:
        path = base / f"{form}-{calendar}"
        if not path.exists():
            write(spark, str(path), table([row(n) for n in range(20)]), form, calendar)
        return str(path)

    return find


@pytest.fixture
def copied(written: Any, local: Place) -> Callable[..., str]:
    def copy(form: str, calendar: str = "CORRECTED") -> str:
        Path(local.root).parent.mkdir(exist_ok=True)
        shutil.copytree(written(form, calendar), local.root)
        return local.root

    return copy


def given(spark: Any, engine: Engine | str, rows: pa.Table) -> Any:
    """Rows as users of an engine have them."""
    name = engine if isinstance(engine, str) else engine.name
    return frame(spark, rows) if name == "spark" else rows


@pytest.mark.parametrize(("form", "calendar"), list(itertools.product(FORMS, CALENDARS)))
def test_datasets_of_spark_keep_their_form(
    spark: Any, copied: Any, merge_engine: Engine | str, form: str, calendar: str
) -> None:
    """Appended to, merged into, edited, put together and clustered: types and instants are those that Spark wrote."""
    path = copied(form, calendar)
    types, leaves = spark.read.parquet(path).dtypes, physical(path)[0]
    notes = pq.read_metadata(glob.glob(f"{path}/*.parquet")[0]).metadata
    assert (b"org.apache.spark.legacyDateTime" in notes) == (calendar == "LEGACY")
    dataset = Dataset(path, merge_engine)
    rows = {n: row(n) for n in range(20)}

    added = {n: row(n, "added") for n in range(20, 25)}
    dataset.write(given(spark, merge_engine, table(list(added.values())).select(list(reversed(SCHEMA.names)))))
    rows |= added
    assert seen(spark.read.parquet(path)) == expected(list(rows.values()))

    changed = {n: {**row(n, "merged"), "at": START - n * 1000} for n in (3, 21, 90)}
    stats = dataset.merge(given(spark, merge_engine, table(list(changed.values()))), "id")
    assert (stats["inserted"], stats["updated"]) == (1, 2)
    rows |= changed
    assert seen(spark.read.parquet(path)) == expected(list(rows.values()))

    limit = START + 10 * 1_001_000
    dataset.update(instant(merge_engine, ">", limit), {"note": "late"})
    for each in rows.values():
        if each["at"] is not None and each["at"] > limit:
            each["note"] = "late"
    dataset.delete(instant(merge_engine, "=", limit))
    rows = {n: each for n, each in rows.items() if each["at"] != limit}
    assert seen(spark.read.parquet(path)) == expected(list(rows.values()))

    dataset.optimize(["at", "id"])
    dataset.compact(rewrite="encode")
    assert seen(spark.read.parquet(path)) == expected(list(rows.values()))
    assert spark.read.parquet(path).dtypes == types
    assert all(found == leaves for found in physical(path))


def instant(engine: Engine | str, comparison: str, micros: int) -> Any:
    """A condition on instants, as users of an engine write it."""
    from pyspark.sql import functions as F  # noqa: N812 - the customary name

    if (engine if isinstance(engine, str) else engine.name) == "spark":
        column, value = F.col("at"), F.lit(dt.datetime.fromtimestamp(micros / 10**6, dt.UTC))
        return column == value if comparison == "=" else column > value
    value = pa.scalar(micros, INSTANT)
    return pc.field("at") == value if comparison == "=" else pc.field("at") > value
