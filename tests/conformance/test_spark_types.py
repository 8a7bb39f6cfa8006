"""Every type that Spark writes to Parquet is preserved by every operation: values and schema."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parketto import Dataset, IncompatibleTypes, InvalidArgument, SparkParquetHandler
from parketto.engines.spark.engine import SparkEngine
from parketto.parquet.spark_schema import SPARK_SCHEMA_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POINT = "X'010100000000000000000031400000000000001C40'"
INTERVALS = {
    "year_to_month": "interval '1-2' year to month",
    "year": "interval '3' year",
    "month": "interval '-5' month",
    **{
        name.replace(" ", "_"): f"cast(interval '1 02:03:04.567891' day to second as interval {name})"
        for name in (
            *("day", "hour", "minute", "second"),
            *("day to hour", "day to minute", "day to second"),
            *("hour to minute", "hour to second", "minute to second"),
        )
    },
}
OBJECT = (
    "to_variant_object(struct(id, date'2020-01-01' as day, true as yes, array(struct(id as z)) as list, "
    "'é' as text, cast(-1.25 as decimal(10,2)) as price, timestamp'2020-01-01 00:00:00Z' as at, X'00ff' as bytes,"
    " timestamp_ntz'1960-01-01 00:00:00.000001' as clock, cast(1.5 as float) as f, 2.5d as d))"
)
SPECIAL = {
    **INTERVALS,
    "variant": OBJECT,
    "variant_inside": "struct(parse_json(cast(id as string)) as v, array(parse_json('[1,2]')) as l, "
    "map('k', parse_json('null')) as m)",
    "geometry": f"st_geomfromwkb({POINT})",
    "geometry_crs": f"st_setsrid(st_geomfromwkb({POINT}), 3857)",
    "geography": f"st_geogfromwkb({POINT})",
    "geometry_inside": f"struct(array(st_geomfromwkb({POINT}), null) as a, "
    f"map('k', st_geogfromwkb({POINT})) as m)",
    "collated": "cast(id as string) collate UTF8_LCASE",
    "collated_inside": "array('a' collate UNICODE_CI)",
    "nothing": "null",
    "nothing_inside": "struct(null as n, id as one)",
    "time": "time'12:34:56.123456'",
    "time_seconds": "cast(time'12:34:56' as time(0))",
    "time_nanos": "cast(time'12:34:56.123456789' as time(9))",
    "inside": "struct(interval '1' day as `a.b`, array(interval '1-2' year to month, null) as ym, "
    "map(struct(1 as a), interval '1' year) as m, array(time'01:02:03') as t)",
}
PLAIN = {
    "boolean": "id > 3",
    "byte": "cast(id as tinyint)",
    "short": "cast(id as smallint)",
    "int": "cast(id as int)",
    "float": "cast(id as float)",
    "double": "cast(id as double)",
    "text": "cast(id as string)",
    "bytes": "cast(cast(id as string) as binary)",
    "date": "date_add(date'1500-01-01', cast(id as int))",
    "instant": "timestamp_micros(id)",
    "clock": "timestamp_ntz'2020-01-01 00:00:00.000001'",
    **{f"decimal_{p}": f"cast(id as decimal({p},2))" for p in (9, 18, 38)},
    "list": "array(id, null)",
    "map": "map(id, cast(null as string))",
    "struct": "named_struct('x', id, 'y', array(named_struct('z', 1)))",
}
GEO = ("geometry", "geography")


@pytest.fixture(scope="module", autouse=True)
def settings(spark: SparkSession) -> Iterator[None]:
    """Enable TIME, and write timestamps as microseconds instead of INT96."""
    wanted = {
        "spark.sql.timeType.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield
    for name in wanted:
        spark.conf.unset(name)


def rows(spark: SparkSession, first: int, last: int) -> DataFrame:
    """Rows of every type; every fifth row is all NULL."""
    columns = [
        f"{value if value == 'null' else f'if(id % 5 = 3, null, {value})'} as `{name}`"
        for name, value in (SPECIAL | PLAIN).items()
    ]
    return spark.range(first, last).selectExpr("id", "cast(id % 2 as int) as p", "'x' as word", *columns)


def seen(frame: DataFrame) -> tuple[list[str], list[str]]:
    """What Spark reads: columns with types and collations, and the rows as strings."""
    columns = sorted(json.dumps(field, sort_keys=True) for field in json.loads(frame.schema.json())["fields"])
    texts = []
    for field in sorted(frame.schema.fields, key=lambda item: str(item.name)):
        name, kind = field.name, field.dataType.simpleString()
        if kind.startswith(GEO):
            texts.append(f"concat(hex(st_asbinary({name})), st_srid({name})) as {name}")
        elif "geometry" in kind:
            texts.append(f"concat(hex(st_asbinary({name}.a[0])), hex(st_asbinary({name}.m['k']))) as {name}")
        else:
            texts.append(f"cast({name} as string) as {name}")
    return columns, sorted(map(str, frame.selectExpr(*texts).collect()))


@pytest.fixture(scope="module")
def original(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, settings: None) -> Path:
    """Two files as Spark writes them."""
    root = tmp_path_factory.mktemp("types") / "original"
    for first in (0, 10):
        rows(spark, first, first + 10).coalesce(1).write.mode("append").parquet(str(root))
    return root


@pytest.fixture(scope="module")
def expected(spark: SparkSession, original: Path) -> tuple[list[str], list[str]]:
    return seen(spark.read.parquet(str(original)))


def dataset(root: Path, **options: Any) -> Dataset:
    return Dataset(str(root), engine=SparkEngine(**options))


SHUFFLED = {"broadcast_mb": 1e-6, "shuffle_mb": 1e-6}
REWRITES: dict[str, Callable[[Path], Any]] = {
    "compact": lambda root: dataset(root).compact(),
    "encode": lambda root: dataset(root).compact(rewrite="encode"),
    "copy": lambda root: dataset(root).compact(rewrite="copy"),
    "cluster": lambda root: dataset(root).optimize(["id", "p"]),
    "cluster by a shuffle": lambda root: dataset(root, **SHUFFLED).optimize(["id", "p"]),
    "repartition": lambda root: dataset(root).repartition("p"),
    "repartition by a shuffle": lambda root: dataset(root, **SHUFFLED).repartition("p"),
    "update": lambda root: dataset(root).update("id < 5", {"word": "x"}),
    "delete": lambda root: dataset(root).delete("id = 3"),
}
LONG = {"copy", "cluster by a shuffle", "repartition by a shuffle", "delete"}


@pytest.mark.parametrize(
    "operation", [pytest.param(name, marks=pytest.mark.sweep if name in LONG else ()) for name in REWRITES]
)
def test_files_of_spark_keep_their_types(
    spark: SparkSession, tmp_path: Path, original: Path, expected: Any, operation: str
) -> None:
    root = tmp_path / "data"
    shutil.copytree(original, root)
    REWRITES[operation](root)
    columns, texts = expected
    kept = [row for row in texts if operation != "delete" or "id='3'" not in row]
    assert seen(spark.read.parquet(str(root))) == (columns, kept)


@pytest.mark.parametrize("way", ["small", pytest.param("shuffled", marks=pytest.mark.sweep)])
def test_frames_keep_their_types(
    spark: SparkSession, tmp_path: Path, expected: tuple[list[str], list[str]], way: str
) -> None:
    """Written, appended and merged, with and without files of Spark."""
    options = SHUFFLED if way == "shuffled" else {}
    make = functools.partial(rows, spark)
    new, beside, merged = tmp_path / "new", tmp_path / "beside", tmp_path / "merged"
    dataset(new, **options).write(make(0, 20))
    assert seen(spark.read.parquet(str(new))) == expected
    dataset(new, **options).compact()
    assert seen(spark.read.parquet(str(new))) == expected
    for root in (beside, merged):
        make(0, 10).coalesce(1).write.parquet(str(root))
    dataset(beside, **options).write(make(10, 20), mode="append")
    assert seen(spark.read.parquet(str(beside))) == expected
    dataset(beside, **options).repartition("p")
    assert seen(spark.read.parquet(str(beside))) == expected
    dataset(merged, **options).merge(make(5, 20), key_columns=["id"])
    assert seen(spark.read.parquet(str(merged))) == expected


def test_logical_types_are_those_that_spark_writes(spark: SparkSession, tmp_path: Path, original: Path) -> None:
    """Other readers rely on the annotations of variants and geometries."""
    dataset(tmp_path / "new").write(rows(spark, 0, 20).coalesce(1))
    (ours,) = map(pq.read_metadata, (tmp_path / "new").rglob("*.parquet"))
    theirs = pq.read_metadata(next(original.glob("*.parquet")))

    def annotated(found: pq.FileMetaData) -> list[str]:
        lines = [line.strip() for line in str(found.schema).splitlines()]
        return [line for line in lines if "Variant" in line or "Geo" in line]

    assert sorted(annotated(ours)) == sorted(annotated(theirs))
    position = ours.schema.names.index("geometry")
    assert not ours.row_group(0).column(position).statistics, "bounds of bytes that have no order"


def test_columns_that_exist_only_in_paths_are_not_in_the_spark_schema(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "data"
    source = rows(spark, 0, 20).select("id", "p", "year", "variant")
    source.where("id < 10").coalesce(1).write.partitionBy("p").parquet(str(root))
    before = seen(source.drop("p"))[1]
    dataset(root).write(source.where("id >= 10"), mode="append")
    for file in root.rglob("*.parquet"):
        described = json.loads(pq.read_metadata(file).metadata[SPARK_SCHEMA_KEY])
        assert [field["name"] for field in described["fields"]] == ["id", "year", "variant"]
    assert seen(spark.read.parquet(str(root)).drop("p"))[1] == before
    # Repartitioning moves the column into the files, and Spark finds it there.
    dataset(root).repartition(None)
    assert seen(spark.read.parquet(str(root)).select("id", "p", "year", "variant"))[1] == seen(source)[1]
    assert spark.read.parquet(str(root)).schema["year"].dataType.simpleString() == "interval year"


def test_differently_shredded_variants_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    """Spark chooses the shredding for each file by its rows."""
    texts = [
        """'{"a": 1, "b": {"c": [1.5, "x", null]}}'""",
        """'[1, {"z": "y"}]'""",
        """'{"a": "one", "d": 12345678901234567890, "e": true, "f": {}}'""",
        "concat('\"', repeat('long ', 50), '\"')",
    ]
    frames = [
        spark.range(10 * at, 10 * at + 10).selectExpr("id", "cast(id % 2 as int) as p", f"parse_json({text}) as v")
        for at, text in enumerate(texts)
    ]
    root, moved = tmp_path / "data", tmp_path / "moved"
    for frame in frames:
        frame.coalesce(1).write.mode("append").parquet(str(root))
    shutil.copytree(root, moved)
    assert len({str(pq.read_schema(file).field("v").type) for file in root.glob("*.parquet")}) > 1
    before = seen(spark.read.parquet(str(root)).select("id", "p", "v"))
    dataset(root).merge(frames[1].union(frames[2].where("id > 25")), key_columns=["id"])
    assert seen(spark.read.parquet(str(root)).select("id", "p", "v")) == before
    dataset(root).repartition("p")
    assert seen(spark.read.parquet(str(root)).select("id", "p", "v")) == before


def test_reading_returns_the_types_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    source = rows(spark, 0, 20).select("id", *INTERVALS, "variant", "geometry", "collated", "inside")
    dataset(tmp_path / "data").write(source)
    with SparkParquetHandler(spark=spark) as handler:
        found = handler.read_parquet(str(tmp_path / "data"))
        assert seen(found) == seen(spark.read.parquet(str(tmp_path / "data")))


def test_user_defined_types_keep_their_class(spark: SparkSession, tmp_path: Path) -> None:
    linalg = pytest.importorskip("pyspark.ml.linalg")
    vectors = [(1, linalg.Vectors.dense([1.0, 2.0])), (2, linalg.Vectors.sparse(3, [0], [1.0])), (3, None)]
    schema = "id long"
    kind = spark.createDataFrame([], schema).schema.add("v", linalg.VectorUDT())
    source = spark.createDataFrame(vectors, kind).withMetadata("id", {"comment": "a number"})
    dataset(tmp_path / "data").write(source)
    dataset(tmp_path / "data").merge(source.where("id > 1"), key_columns=["id"])
    found = spark.read.parquet(str(tmp_path / "data"))
    assert found.schema.simpleString() == source.schema.simpleString()
    assert found.schema["v"].dataType == linalg.VectorUDT()
    assert found.schema["id"].metadata == {"comment": "a number"}
    assert {row.id: row.v for row in found.collect()} == dict(vectors)


def test_intervals_can_be_keys(spark: SparkSession, tmp_path: Path) -> None:
    def frame(first: int, last: int, word: str) -> DataFrame:
        made = "make_ym_interval(0, cast(id as int)) as m", "make_dt_interval(0, 0, 0, id) as s"
        return spark.range(first, last).selectExpr(*made, f"'{word}' as word")

    root = tmp_path / "data"
    frame(0, 10, "old").coalesce(1).write.parquet(str(root))
    for options in ({}, SHUFFLED):
        stats = dataset(root, **options).merge(frame(5, 15, "new"), key_columns=["m", "s"])
        assert stats["total"] == 15
    assert spark.read.parquet(str(root)).where("word = 'new' and s >= interval '5' second").count() == 10


REFUSED = {
    "struct()": "Parquet has no struct without fields",
    "array(struct())": "Parquet has no struct without fields",
    "make_interval(1, 2, 3)": "calendar intervals",
    f"cast(st_geomfromwkb({POINT}) as geometry(any))": "one coordinate reference system",
    "map()": "keys of a map cannot be void",
}


@pytest.mark.parametrize("value", REFUSED)
def test_types_that_parquet_cannot_store_are_refused(spark: SparkSession, tmp_path: Path, value: str) -> None:
    frame = spark.range(3).selectExpr("id", f"{value} as c")
    for act in (
        lambda: dataset(tmp_path / "new").write(frame),
        lambda: dataset(tmp_path / "new").merge(frame, "id"),
    ):
        with pytest.raises(InvalidArgument, match=rf"column 'c'.*{REFUSED[value]}.*Nothing was changed"):
            act()
    assert not list(tmp_path.iterdir())


def test_numbers_and_intervals_are_not_mixed(spark: SparkSession, tmp_path: Path) -> None:
    """Both are stored as integers: neither is accepted as the other, nor compacted with it."""
    intervals = spark.range(3).selectExpr("id", "make_dt_interval(0, 0, 0, id) as c")
    numbers = spark.range(3, 6).selectExpr("id", "id as c")
    one, other, both = tmp_path / "one", tmp_path / "other", tmp_path / "both"
    dataset(one).write(intervals)
    dataset(other).write(numbers)
    for root, source in ((one, numbers), (other, intervals)):
        with pytest.raises(IncompatibleTypes, match="interval day to second"):
            dataset(root).merge(source, key_columns=["id"])
    # An Arrow table without Spark metadata may hold intervals that were read from here.
    dataset(one).merge(pa.table({"id": [1], "c": [7_000_000]}), key_columns=["id"])
    found = spark.read.parquet(str(one)).where("id = 1").selectExpr("cast(c as string)").first()
    assert found is not None
    assert found[0] == "INTERVAL '0 00:00:07' DAY TO SECOND"
    for frame in (intervals, numbers):
        frame.coalesce(1).write.mode("append").parquet(str(both))
    assert dataset(both).compact(schema="exact")["after_file_count"] == 2
    with pytest.raises(IncompatibleTypes, match=r"column 'c' is .*interval day to second in '.*parquet'"):
        dataset(both).repartition("id")
