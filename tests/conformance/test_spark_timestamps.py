"""Spark's timestamps: every engine keeps the physical type that Spark wrote, and the instants.

Files are written by Spark itself, and results are read by Spark. INT96, its default, is an instant;
TIMESTAMP_NTZ columns are 64-bit integers. Files of the legacy calendar are flagged, and only values
that are equal in both calendars are supported.
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
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from conftest import Place
from parketto import Dataset, DuckDBParquetHandler, SparkParquetHandler
from parketto.engines.base import Engine
from parketto.engines.spark import reading
from parketto.errors import IncompatibleTypes, InvalidArgument, UnreadableFile
from parketto.operations.sources import path_rows

pytestmark = pytest.mark.spark

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
#: The columns as plain numbers and strings, independent of the session's time zone.
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
    """Whole milliseconds, which all timestamp types can hold."""
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
    """The Parquet types of the leaf columns of every file."""
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
    """The same rows as Spark writes them, in every timestamp type; each is written once."""
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
    """Rows in the class that users of the engine work with."""
    name = engine if isinstance(engine, str) else engine.name
    return frame(spark, rows) if name == "spark" else rows


@pytest.mark.parametrize(
    ("form", "calendar"),
    [
        pytest.param(form, calendar, marks=[pytest.mark.sweep] if calendar == "LEGACY" and form != "INT96" else [])
        for form, calendar in itertools.product(FORMS, CALENDARS)
    ],
)
def test_datasets_of_spark_keep_their_timestamp_types(
    spark: Any, copied: Any, merge_engine: Engine | str, form: str, calendar: str
) -> None:
    """After appends, merges, edits, compaction and clustering."""
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
    """A condition on instants, in the language of the engine's users."""
    if (engine if isinstance(engine, str) else engine.name) == "spark":
        column, value = F.col("at"), F.lit(dt.datetime.fromtimestamp(micros / 10**6, dt.UTC))
        return column == value if comparison == "=" else column > value
    value = pa.scalar(micros, INSTANT)
    return pc.field("at") == value if comparison == "=" else pc.field("at") > value


@pytest.mark.parametrize("form", FORMS)
def test_handler_reads_what_spark_reads(
    spark: Any, written: Any, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(form)
    wanted = spark.read.parquet(path)
    handler = SparkParquetHandler(spark)
    assert reading._spark_can(*path_rows(path, handler._any_engine))
    for native in (True, False):
        if not native:
            monkeypatch.setattr(reading, "_spark_can", lambda *_: False)
        found = handler.read_parquet(path)
        assert found.dtypes == wanted.dtypes
        assert seen(found) == seen(wanted)


@pytest.mark.parametrize("form", FORMS)
def test_int96_is_read_as_utc_instants(written: Any, form: str, tmp_path: Path) -> None:
    """By all engines that return Arrow tables, also in nested columns."""
    unit = {"INT96": "us", "TIMESTAMP_MICROS": "us", "TIMESTAMP_MILLIS": "ms"}[form]
    instant = pa.timestamp(unit, "UTC")
    for found in (Dataset(written(form)).read(), DuckDBParquetHandler().read_parquet(written(form))):
        assert found.schema.field("at").type == instant
        assert found.schema.field("clock").type == CLOCK
        assert found.schema.field("pair").type.field("at").type == instant
        assert found.schema.field("many").type.value_type == instant
        assert found.schema.field("named").type.item_type == instant
        as_given = sorted(found.select(["id", "at"]).to_pylist(), key=lambda each: each["id"])
        assert [each["at"] for each in as_given] == table([row(n) for n in range(20)])["at"].to_pylist()


def test_partitions_of_spark(spark: Any, local: Place, merge_engine: Engine | str) -> None:
    """Spark leaves partition columns out of files, and writes INT96 into them."""
    rows = {n: {**row(n), "note": f"p{n % 2}"} for n in range(8)}
    with settings(spark, parquet__outputTimestampType="INT96"):
        frame(spark, table(list(rows.values()))).coalesce(1).write.partitionBy("note").parquet(local.root)
    leaves = physical(local.root)[0]
    dataset = Dataset(local.root, merge_engine)
    added = {n: {**row(n), "note": f"p{n % 3}"} for n in range(8, 12)}
    dataset.write(given(spark, merge_engine, table(list(added.values()))))
    changed = {n: {**row(n), "at": START, "note": "p7"} for n in (1, 9)}
    dataset.merge(given(spark, merge_engine, table(list(changed.values()))), "id")
    assert seen(spark.read.parquet(local.root)) == expected(list((rows | added | changed).values()))
    assert all(found == leaves for found in physical(local.root))


def test_required_nested_fields(spark: Any, local: Place, engine: Engine | str) -> None:
    """Spark writes `struct(...)` as not null but reads everything as nullable: such frames can be merged."""
    made = spark.range(6).selectExpr(
        "id", "named_struct('at', timestamp_micros(id), 'n', id) AS pair", "array(timestamp_micros(id)) AS many"
    )
    with settings(spark, parquet__outputTimestampType="INT96"):
        made.coalesce(1).write.parquet(local.root)
    schema, leaves = Dataset(local.root).read().schema, physical(local.root)[0]
    assert not schema.field("pair").type.field("at").nullable
    shutil.copytree(local.root, f"{local.root}-before")
    back = spark.read.parquet(f"{local.root}-before").withColumn("id", F.col("id") + 3)
    source = back if engine == "spark" else back.toArrow()
    assert Dataset(local.root, engine).merge(source, "id")["inserted"] == 3
    Dataset(local.root, engine).write(source)
    assert all(found == leaves for found in physical(local.root))
    found = spark.read.parquet(local.root).selectExpr(
        "id", "unix_micros(pair.at)", "pair.n", "unix_micros(many[0])"
    )
    old = [(n, n, n, n) for n in range(3)]
    new = [(n + 3, n, n, n) for n in range(6)]
    assert sorted(map(tuple, found.collect())) == sorted([*old, *new, *new])
    lacking = back.selectExpr("id", "named_struct('at', cast(null AS timestamp), 'n', id) AS pair", "many")
    for work in (lambda rows: Dataset(local.root, engine).write(rows), merging(local.root, engine)):
        before = local.state()
        with pytest.raises(IncompatibleTypes, match=r"'pair' .* NULLs in a nested field"):
            work(lacking if engine == "spark" else lacking.toArrow())
        assert local.state() == before


def contents(path: str) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}


def merging(path: str, engine: Engine | str) -> Callable[[Any], Any]:
    return lambda rows: Dataset(path, engine).merge(rows, "id")


class TestValuesThatDoNotFit:
    """Values are not truncated silently, and nothing is written."""

    def refused(self, spark: Any, path: str, engine: Engine | str, changes: dict[str, Any], match: str) -> None:
        before = contents(path)
        rows = given(spark, engine, table([{**row(5), **changes}]))
        for work in (lambda rows: Dataset(path, engine).write(rows), merging(path, engine)):
            with pytest.raises(IncompatibleTypes, match=match):
                work(rows)
        assert contents(path) == before

    def test_microseconds_in_a_millisecond_column(
        self, spark: Any, copied: Any, merge_engine: Engine | str
    ) -> None:
        path = copied("TIMESTAMP_MILLIS")
        self.refused(spark, path, merge_engine, {"at": START + 1}, "'at' has values of type .* lose data")

    def test_microseconds_in_a_nested_millisecond_column(
        self, spark: Any, copied: Any, engine: Engine | str
    ) -> None:
        path = copied("TIMESTAMP_MILLIS")
        self.refused(spark, path, engine, {"many": [START + 1]}, "'many' has values of type .* lose data")

    def test_different_types_and_columns(self, spark: Any, copied: Any, engine: Engine | str) -> None:
        path = copied("INT96")
        rows = table([row(5)])
        other = rows.set_column(1, "at", pc.cast(rows["at"], pa.int64()))
        before = physical(path)
        with pytest.raises(
            IncompatibleTypes, match=r"'at' is int64 in the rows and timestamp\[us, tz=UTC\] in the"
        ):
            Dataset(path, engine).write(other)
        with pytest.raises(InvalidArgument, match="only the rows have 'more'; the dataset has 'id', 'at'"):
            Dataset(path, engine).write(rows.drop(["day", "note"]).append_column("more", pa.array([1])))
        assert physical(path) == before


FAR = int(dt.datetime(9999, 12, 31, tzinfo=dt.UTC).timestamp()) * 10**6
MANY_YEARS = ", ".join(f"'{year}-01-01'" for year in range(3000, 3010))
EARLY = int(dt.datetime(1, 1, 1, tzinfo=dt.UTC).timestamp()) * 10**6


class TestFarYears:
    """Spark's INT96 timestamps are microseconds, so they hold 9999-12-31, a common "end of time"."""

    @pytest.fixture
    def rows(self) -> dict[int, dict[str, Any]]:
        far = {8: {**row(8), "at": FAR, "many": [FAR, EARLY]}, 9: {**row(9), "at": EARLY}}
        return {n: row(n) for n in range(4)} | far

    @pytest.fixture
    def path(self, spark: Any, local: Place, rows: dict[int, dict[str, Any]]) -> str:
        """A file of ordinary years, and one of ordinary and far years."""
        write(spark, local.root, table([rows[0], rows[1]]), "INT96", "CORRECTED")
        others = table([each for n, each in rows.items() if n > 1])
        write(spark, f"{local.root}/more", others, "INT96", "CORRECTED")
        return local.root

    @pytest.mark.parametrize(
        "condition",
        [
            "at > '5000-01-01'",
            "at < '5000-01-01'",
            "at = '9999-12-31'",
            "at <> '9999-12-31'",
            "at > '1500-01-01'",
            "at <= '9999-12-31'",
            "at IN ('9999-12-31')",
            f"at IN ('9999-12-31', {MANY_YEARS})",
            "NOT at < '5000-01-01'",
            "at = TIMESTAMP '9999-12-31 00:00:00'",
            "coalesce(at, TIMESTAMP '1970-01-01 00:00:00') > '5000-01-01'",
            "year(at) = 9999",
            "CAST(at AS DATE) = '0001-01-01'",
        ],
    )
    def test_conditions(self, spark: Any, path: str, condition: str) -> None:
        """Every engine finds the rows that Spark finds, by SQL and by Column."""
        frame = spark.read.option("recursiveFileLookup", "true").parquet(path)
        wanted = frame.where(condition).count()
        assert wanted
        for engine in ("pyarrow", "duckdb", "spark"):
            assert Dataset(path, engine).delete(condition, dry_run=True)["rows_matched"] == wanted
        found = Dataset(path, "spark").delete(F.expr(condition), dry_run=True)
        assert found["rows_matched"] == wanted

    def test_edits(
        self, spark: Any, path: str, rows: dict[int, dict[str, Any]], merge_engine: Engine | str
    ) -> None:
        """Appends, merges, edits, compaction and clustering of files with such values."""
        leaves = physical(path)[0]
        dataset = Dataset(path, merge_engine)
        found = lambda: seen(spark.read.option("recursiveFileLookup", "true").parquet(path))  # noqa: E731

        dataset.update("at = '9999-12-31'", {"note": "open"})
        rows[8]["note"] = "open"
        changed = {n: {**row(n, "merged"), "at": FAR} for n in (0, 3, 20)}
        dataset.merge(given(spark, merge_engine, table(list(changed.values()))), "id")
        dataset.write(given(spark, merge_engine, table([{**row(21), "at": FAR}])))
        rows |= changed | {21: {**row(21), "at": FAR}}
        assert found() == expected(list(rows.values()))

        stats = dataset.merge(given(spark, merge_engine, table([{**row(9, "early"), "at": EARLY}])), "at")
        assert (stats["inserted"], stats["updated"]) == (0, 1)
        rows[9] = {**row(9, "early"), "at": EARLY}
        dataset.delete("at > '5000-01-01' AND id = 20")
        del rows[20]
        dataset.optimize(["at", "id"])
        dataset.compact(rewrite="encode")
        assert found() == expected(list(rows.values()))
        assert all(each == leaves for each in physical(path))
        assert Dataset(path).read()["at"].cast(pa.int64()).to_pylist().count(FAR) == 4

    def test_handlers(self, spark: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        wanted = seen(spark.read.option("recursiveFileLookup", "true").parquet(path))
        for native in (True, False):
            if not native:
                monkeypatch.setattr(reading, "_spark_can", lambda *_: False)
            assert seen(SparkParquetHandler(spark).read_parquet(path)) == wanted
        found = DuckDBParquetHandler().read_parquet(path)
        assert found["at"].cast(pa.int64()).to_pylist().count(FAR) == 1


@pytest.mark.parametrize("engine_name", ["pyarrow", "duckdb", "spark"])
@pytest.mark.parametrize("condition", ["at > '5000-01-01'", "at = '9999-12-31'", "NOT at < '5000-01-01'"])
def test_far_years_among_nanoseconds_are_refused(local: Place, engine_name: str, condition: str) -> None:
    """INT96 of other writers may have nanoseconds. Arrow cannot hold both: the file is refused, not skipped."""
    far = pa.table({"id": [1], "at": pa.array([FAR], pa.timestamp("us"))})
    local.write_files({"a.parquet": far}, use_deprecated_int96_timestamps=True, store_schema=False)
    for where in (condition, f"at IN ({MANY_YEARS})"):
        with pytest.raises(UnreadableFile, match="outside of the years 1677 to 2262"):
            Dataset(local.root, engine_name).delete(where)


class TestMixedTimestampTypes:
    """INT96 and 64-bit microseconds are the same instants: files of both are one dataset."""

    @pytest.fixture(
        params=[("INT96", "TIMESTAMP_MICROS"), ("TIMESTAMP_MICROS", "INT96"), (None, "INT96")], ids=str
    )
    def path(self, request: pytest.FixtureRequest, spark: Any, local: Place) -> str:
        """Written with one timestamp type by Spark or Parketto, and appended to by Spark with another one."""
        first, second = request.param
        if first is None:
            Dataset(local.root, "spark").write(frame(spark, table([row(n) for n in range(5)])))
        else:
            write(spark, local.root, table([row(n) for n in range(5)]), first, "CORRECTED")
        with settings(spark, parquet__outputTimestampType=second):
            frame(spark, table([row(n) for n in range(5, 9)])).coalesce(1).write.mode("append").parquet(local.root)
        return local.root

    def test_int96_and_microseconds_are_one_dataset(
        self, spark: Any, path: str, merge_engine: Engine | str
    ) -> None:
        rows = {n: row(n) for n in range(9)}
        leaves = {tuple(each) for each in physical(path)}
        assert len(leaves) == 2
        dataset = Dataset(path, merge_engine)
        assert dataset.read().num_rows == 9
        assert seen(SparkParquetHandler(spark).read_parquet(path)) == expected(list(rows.values()))
        added = {n: row(n, "added") for n in (20, 21)}
        dataset.write(given(spark, merge_engine, table(list(added.values()))))
        changed = {n: {**row(n, "merged"), "at": START} for n in (2, 6, 30)}
        dataset.merge(given(spark, merge_engine, table(list(changed.values()))), "id")
        rows |= added | changed
        dataset.update(instant(merge_engine, "=", START), {"note": "late"})
        for each in rows.values():
            if each["at"] == START:
                each["note"] = "late"
        assert seen(spark.read.parquet(path)) == expected(list(rows.values()))
        dataset.compact(rewrite="encode")
        dataset.optimize(["at"])
        assert seen(spark.read.parquet(path)) == expected(list(rows.values()))
        assert len({tuple(each) for each in physical(path)}) == 1, "compaction puts both together"
        assert not any("INT96" in leaf for each in physical(path) for leaf in each)

    def test_milliseconds_and_microseconds_are_one_dataset(
        self, spark: Any, local: Place, engine: Engine | str
    ) -> None:
        rows = {}
        for number, form in enumerate(("INT96", "TIMESTAMP_MILLIS")):
            rows[number] = {**row(number), "at": START}
            with settings(spark, parquet__outputTimestampType=form):
                frame(spark, table([rows[number]])).coalesce(1).write.mode("append").parquet(local.root)
        dataset = Dataset(local.root, engine)
        assert dataset.schema.field("at").type == pa.timestamp("us", "UTC")
        assert set(dataset.read(["at"]).column("at").cast(pa.int64()).to_pylist()) == {START}
        assert DuckDBParquetHandler().read_parquet(local.root).num_rows == 2
        assert SparkParquetHandler(spark).read_parquet(local.root).count() == 2
        rows |= {1: row(1, "merged"), 2: row(2)}
        dataset.merge(given(spark, engine, table([rows[1], rows[2]])), "id")
        assert dataset.compact()["after_file_count"] == 1
        assert seen(spark.read.parquet(local.root)) == expected(list(rows.values()))


OLD_DAY, OLD_INSTANT = -170_000, -3_000_000_000_000_000
"""1504-07-22, and 1874-12-07."""


@pytest.fixture(scope="module")
def old(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = str(tmp_path_factory.mktemp("old"))
    with settings(spark, session__timeZone="America/Los_Angeles"):
        for form in FORMS:
            for name, changes in {"day": {"day": OLD_DAY}, "at": {"at": OLD_INSTANT}}.items():
                write(spark, f"{base}/{form}-{name}", table([{**row(1), **changes}, row(2)]), form, "LEGACY")
    return {f"{form}-{name}": f"{base}/{form}-{name}" for form in FORMS for name in ("day", "at")}


class TestLegacyCalendar:
    """Values that Spark would rebase as it reads are refused."""

    @pytest.fixture(params=[f"{form}-{name}" for form in FORMS for name in ("day", "at")])
    def path(self, request: pytest.FixtureRequest, old: dict[str, str], local: Place) -> str:
        Path(local.root).parent.mkdir(exist_ok=True)
        shutil.copytree(old[request.param], local.root)
        return local.root

    @pytest.mark.parametrize("engine_name", ["pyarrow", "duckdb"])
    def test_values_that_spark_rebases_are_refused(self, spark: Any, path: str, engine_name: str) -> None:
        dataset = Dataset(path, engine_name)
        before = contents(path)
        shown = seen(spark.read.parquet(path))
        day, instant = pa.scalar(-165_000, pa.date32()), pa.scalar(-2_900_000_000_000_000, INSTANT)
        for work in (
            dataset.read,
            lambda: dataset.delete((pc.field("day") < day) | (pc.field("at") < instant)),
            lambda: dataset.delete("id = 2"),
            lambda: dataset.merge(table([row(1)]), "id"),
            lambda: dataset.merge(table([{**row(4), "day": OLD_DAY, "at": OLD_INSTANT}]), ["day", "at"]),
        ):
            with pytest.raises((UnreadableFile, InvalidArgument), match=r"legacy calendar .*CORRECTED"):
                work()
        assert contents(path) == before
        # Operations that keep the bits and the calendar flag still work.
        dataset.write(table([row(4)]))
        dataset.compact(rewrite="encode")
        assert seen(spark.read.parquet(path)) == [*shown, plain(row(4))]

    @pytest.mark.parametrize("form", FORMS)
    def test_old_dates_are_not_written_into_legacy_files(
        self, spark: Any, copied: Any, engine: Engine | str, form: str
    ) -> None:
        path = copied(form, "LEGACY")
        before = seen(spark.read.parquet(path))
        dataset = Dataset(path, engine)
        for changes in ({"day": OLD_DAY}, {"at": OLD_INSTANT}, {"many": [OLD_INSTANT]}):
            for n in (1, 70):
                with pytest.raises(InvalidArgument, match=r"legacy calendar .* Nothing was changed"):
                    dataset.merge(given(spark, engine, table([{**row(n), **changes}])), "id")
        with pytest.raises(InvalidArgument, match="'day' would get dates before 1582-10-15"):
            dataset.update("id = 1", {"day": dt.date(1504, 7, 22)})
        assert seen(spark.read.parquet(path)) == before
        # New files use the proleptic Gregorian calendar.
        new = {**row(30), "day": OLD_DAY, "at": OLD_INSTANT}
        dataset.write(given(spark, engine, table([new])))
        assert seen(spark.read.parquet(path)) == [*before, plain(new)]
        dataset.update("id = 30", {"note": "mine"})
        assert seen(spark.read.parquet(path))[-1] == plain({**new, "note": "mine"})
