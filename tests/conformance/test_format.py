"""Writes, reads and merges through `format("parketto")` give what `Dataset` gives."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from parketto import Dataset

AT = dt.datetime(2026, 3, 1, 22, 30, tzinfo=dt.UTC)
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, None, False]),
    "byte": (pa.int8(), [-128, None, 127]),
    "short": (pa.int16(), [-(2**15), None, 7]),
    "integer": (pa.int32(), [-(2**31), None, 7]),
    "long": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "float": (pa.float32(), [float("-inf"), None, 0.5]),
    "double": (pa.float64(), [float("nan"), None, -0.0]),
    "decimal": (pa.decimal128(38, 6), [Decimal("-1.5"), None, Decimal("123456789.000001")]),
    "string": (pa.string(), ["", None, "größer/=%"]),
    "binary": (pa.binary(), [b"", None, b"\x00\xff"]),
    "date": (pa.date32(), [dt.date(1582, 10, 15), None, dt.date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [AT, None, AT.replace(year=1970)]),
    "array": (pa.list_(pa.field("element", pa.int64())), [[], None, [1, None]]),
    "struct": (
        pa.struct({"x": pa.int64(), "y": pa.list_(pa.field("element", pa.string()))}),
        [{"x": 1, "y": [None]}, None, {"x": None, "y": []}],
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[], None, [("a", 1), ("b", None)]]),
}
ROWS = pa.table(
    {
        "id": pa.array(range(40), pa.int64()),
        "day": pa.array([number % 4 for number in range(40)], pa.int32()),
        "name": [f"n{39 - number}" for number in range(40)],
        "at": pa.array([AT + dt.timedelta(hours=number) for number in range(40)], pa.timestamp("us", "UTC")),
    }
)
MORE = pa.table(
    {"id": pa.array(range(100, 105), pa.int64()), "day": pa.array([1] * 5, pa.int32()), "extra": [1.5] * 5}
)


def save(spark: Any, rows: pa.Table, path: str, mode: str = "append", **options: Any) -> None:
    """`Dataset.write` with the same arguments, through the format."""
    if mode == "overwrite_partitions":
        mode, options = "overwrite", {**options, "overwrite_partitions": True}
    texts = {name: json.dumps(value) if not isinstance(value, str) else value for name, value in options.items()}
    spark.createDataFrame(rows).coalesce(1).write.format("parketto").mode(mode).options(**texts).save(path)


def contents(dataset: Dataset) -> tuple[pa.Schema, list[Any]]:
    rows = dataset.read()
    return rows.schema.remove_metadata(), rows.sort_by("id").to_pylist()


def layout(dataset: Dataset) -> list[Any]:
    """What users see of the files, apart from their names."""
    return [
        (file.partition, file.num_rows, file.codec, file.schema.names if file.schema else None)
        for file in sorted(dataset.files(), key=lambda file: (file.partition, file.path))
    ]


@pytest.fixture
def pair(tmp_path: Path, spark: Any) -> tuple[Dataset, Dataset]:
    """Two datasets: one for the format, and one for `Dataset` itself."""
    (tmp_path / "data").mkdir()
    return Dataset(tmp_path / "data" / "format", "pyarrow"), Dataset(tmp_path / "data" / "dataset", "pyarrow")


@pytest.mark.parametrize("partition_columns", ["files", "path"])
def test_types(spark: Any, pair: tuple[Dataset, Dataset], partition_columns: str) -> None:
    columns = {name: pa.array(values, kind) for name, (kind, values) in TYPES.items()}
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), **columns, "part": ["a", "b", "b"]})
    ours, theirs = pair
    options: dict[str, Any] = {"partition_by": ["part"], "partition_columns": partition_columns}
    save(spark, rows, ours.path, **options)
    theirs.write(rows, **options)
    assert str(contents(ours)) == str(contents(theirs))  # NaN is not equal to itself
    found = spark.read.format("parketto").load(ours.path).orderBy("id").collect()
    expected = spark.createDataFrame(rows).orderBy("id").collect()
    assert str(found) == str(expected)


def test_times_without_a_zone(spark: Any, pair: tuple[Dataset, Dataset]) -> None:
    """A frame that is made from Arrow rows has none."""
    frame = spark.sql("SELECT 1L AS id, TIMESTAMP_NTZ '1969-12-31 23:59:59.999999' AS at")
    frame.write.format("parketto").mode("append").save(pair[0].path)
    assert pair[0].schema.field("at").type == pa.timestamp("us")
    assert spark.read.format("parketto").load(pair[0].path).collect() == frame.collect()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"partition_by": ["day"]}, id="partitions"),
        pytest.param({"partition_by": {"date": "CAST(at AS DATE)", "hour": "hour(at)"}}, id="derived partitions"),
        pytest.param({"partition_by": ["day"], "partition_columns": "path"}, id="partitions in the path"),
        pytest.param({"sort_by": ["name"], "max_rows_per_file": 15}, id="sorted"),
        pytest.param({"target_rows_per_file": 7, "row_group_rows": 3}, id="limits"),
        pytest.param({"compression": "zstd", "basename_template": "rows_{}.parquet"}, id="names"),
        pytest.param({"mode": "overwrite"}, id="overwrite"),
    ],
)
def test_layout(spark: Any, pair: tuple[Dataset, Dataset], options: dict[str, Any]) -> None:
    ours, theirs = pair
    save(spark, ROWS, ours.path, **options)
    theirs.write(ROWS, **options)
    assert contents(ours) == contents(theirs)
    assert layout(ours) == layout(theirs)
    if "sort_by" in options:
        assert [row["name"] for row in ours.read().to_pylist()] == sorted(ROWS.column("name").to_pylist())


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        pytest.param(ROWS.slice(0, 3).select(["name", "day", "at", "id"]), {}, id="another order"),
        pytest.param(MORE, {"schema": "evolve"}, id="a new column"),
        pytest.param(ROWS.slice(3, 9), {"mode": "overwrite_partitions"}, id="partitions"),
        pytest.param(
            ROWS.slice(3, 9), {"mode": "overwrite", "replace_where": "id BETWEEN 3 AND 20"}, id="condition"
        ),
        pytest.param(ROWS.slice(0, 0), {}, id="no rows"),
        pytest.param(ROWS.slice(0, 0), {"mode": "overwrite"}, id="overwritten by no rows"),
    ],
)
def test_onto_existing_rows(
    spark: Any, pair: tuple[Dataset, Dataset], rows: pa.Table, options: dict[str, Any]
) -> None:
    ours, theirs = pair
    for dataset in pair:
        dataset.write(ROWS, partition_by="day")
    save(spark, rows, ours.path, **options)
    theirs.write(rows, **options)
    assert contents(ours) == contents(theirs)
    assert layout(ours) == layout(theirs)


@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge"])
def test_a_merge_of_what_the_format_reads(spark: Any, pair: tuple[Dataset, Dataset], strategy: Any) -> None:
    """A frame of the format is a source like any other."""
    ours, theirs = pair
    source = ROWS.slice(30).set_column(2, "name", pa.array(["new"] * 10))
    landed = Dataset(f"{ours.path}-landed", "pyarrow")
    save(spark, source, landed.path)
    for dataset in pair:
        dataset.write(ROWS.slice(0, 35), partition_by="day")
    frame = spark.read.format("parketto").load(landed.path)
    found = Dataset(ours.path, "spark", spark=spark).merge(frame, ["id"], strategy=strategy)
    assert found == theirs.merge(source, ["id"], strategy=strategy)
    assert contents(ours) == contents(theirs)


def test_a_frame_survives_a_compaction(spark: Any, local: Place) -> None:
    """Spark asks for the files once, and keeps what it was told: they are found where commits keep them."""
    dataset = local.dataset()
    for start in range(0, 40, 10):
        dataset.write(ROWS.slice(start, 10))
    frame = spark.read.format("parketto").load(local.root)
    assert frame.count() == 40
    dataset.compact()
    dataset.delete("id < 20")
    assert sorted(row.id for row in frame.select("id").collect()) == list(range(40))
    assert spark.read.format("parketto").load(local.root).count() == 20
