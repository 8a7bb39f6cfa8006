"""Files of Spark, DuckDB, Polars and PyArrow in one dataset: after compaction, all of them read the same rows.

These writers differ in everything that a copy preserves: codecs, versions of data pages, dictionaries, delta
encodings, Bloom filters, page indexes, INT96 timestamps, older forms of lists.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from helpers.parquet_files import check_chunks, check_pages, content, footer_of
from parketto import SparkParquetHandler
from parketto.planning import copy_policy as copying
from parketto.planning.copy_policy import REWRITES

# A file that is large enough to copy, and two small ones that are encoded if they are adjacent.
GOOD, SMALL = 1500, 300
SIZES = (GOOD, SMALL, SMALL)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("word", pa.string()),
        ("text", pa.string()),
        ("x", pa.float64()),
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("day", pa.date32()),
        ("seen", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(12, 3)),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("pair", pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
ARROW = {"store_decimal_as_integer": True, "write_page_index": True}
#: The writer, the codec and the options of the writer, for each kind of file.
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "arrow": ("pyarrow", "none", {"bloom_filter_options": {"text": {"ndv": GOOD, "fpp": 0.01}}}),
    "arrow-plain": (
        "pyarrow",
        "lz4",
        {"use_dictionary": False, "data_page_version": "2.0", "store_schema": False},
    ),
    "arrow-large": ("pyarrow", "gzip", {"max_rows_per_page": 200}),
    "duckdb-v1": ("duckdb", "snappy", {"parquet_version": "v1"}),
    "duckdb-v2": ("duckdb", "zstd", {"parquet_version": "v2"}),
    "polars": ("polars", "zstd", {"data_page_size": 4000}),
    "spark": ("spark", "zstd", {"parquet.page.row.count.limit": 100, "parquet.bloom.filter.enabled#text": "true"}),
    "spark-v2": ("spark", "gzip", {"parquet.page.row.count.limit": 100, "parquet.writer.version": "v2"}),
    "spark-lz4": ("spark", "lz4", {"parquet.enable.dictionary": "false"}),
    "spark-int96": ("spark", "snappy", {}),
    "spark-legacy": ("spark", "uncompressed", {}),
}
#: Files whose text Arrow reads as large_string. Polars has no maps.
LARGE = {"arrow-large", "polars"}
SPARK_SETTINGS = {
    "spark-int96": {"spark.sql.parquet.outputTimestampType": "INT96"},
    "spark-legacy": {"spark.sql.parquet.writeLegacyFormat": "true"},
}
MICROSECONDS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
#: Valid in Spark and DuckDB SQL; they prune by page bounds, Bloom filters and dictionaries.
CONDITIONS = [
    "id between 1450 and 1550",
    "text = 'text 17000' or text = 'text 4711'",
    "word = 'w3' and small > 94 and x is null",
    "day = date '2020-01-05' and flag",
    "seen >= timestamp '2020-09-13 12:30:00' and seen < timestamp '2020-09-13 12:35:00'",
    "price in (12.125, 1500.5) or pair.b.c = 'c16000'",
]


def rows(first: int, count: int, *, maps: bool = True) -> pa.Table:
    """Nullable columns of low and high cardinality, and nested ones with empty and NULL values."""
    start = dt.date(2020, 1, 1)
    columns: list[list[Any]] = [
        [
            n,
            None if n % 11 == 0 else f"w{n % 7}",
            f"text {n}",
            None if n % 5 == 0 else n / 7,
            None if n % 3 == 0 else n % 2 == 0,
            n % 100,
            start + dt.timedelta(n % 100),
            1_600_000_000_000_000 + n * 1_000_003,
            Decimal(n) / 8,
            None if n % 4 == 0 else [] if n % 4 == 1 else [f"t{n % 3}", None],
            None if n % 6 == 0 else {"a": n, "b": None if n % 2 else {"c": f"c{n}"}},
            None if n % 9 == 0 or not maps else [(f"k{n % 2}", n), ("z", None)],
        ]
        for n in range(first, first + count)
    ]
    cells = zip(*columns, strict=True)
    return pa.table([pa.array(list(c), f.type) for c, f in zip(cells, SCHEMA, strict=True)], schema=SCHEMA)


def write(kind: str, table: pa.Table, path: str, spark: Any) -> None:
    writer, codec, options = KINDS[kind]
    if kind in LARGE:
        frame = pl.from_arrow(table.drop_columns("counts"))
        assert isinstance(frame, pl.DataFrame)
        if writer == "polars":
            frame.write_parquet(path, compression=codec, **options)  # type: ignore[arg-type]
            return
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    if writer == "pyarrow":
        pq.write_table(table, path, compression=codec, **ARROW, **options)
    elif writer == "duckdb":
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("given", table)
            copy_options = ", ".join(
                f"{name} '{value}'" for name, value in {"compression": codec, **options}.items()
            )
            connection.execute(f"COPY given TO '{path}' (FORMAT parquet, {copy_options})")
    else:
        write_by_spark(spark, table, path, {"compression": codec, **options}, SPARK_SETTINGS.get(kind, {}))


def write_by_spark(
    spark: Any, table: pa.Table, path: str, options: dict[str, Any], settings: dict[str, str]
) -> None:
    with configured(spark, {**MICROSECONDS, **settings}):
        spark.createDataFrame(table).coalesce(1).write.options(**options).parquet(f"{path}.folder")
    [found] = Path(f"{path}.folder").glob("*.parquet")
    found.rename(path)
    shutil.rmtree(f"{path}.folder")


@contextlib.contextmanager
def configured(spark: Any, settings: dict[str, str]) -> Iterator[None]:
    """A Spark session with temporary settings."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def as_written(table: pa.Table) -> pa.Table:
    """The rows that a reader found, cast to the written types, sorted by id."""
    columns = []
    for field in SCHEMA:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        if pa.types.is_map(field.type) and not pa.types.is_map(column.type):  # to Polars it is a list of pairs
            cells = [cell and [tuple(pair.values()) for pair in cell] for cell in column.to_pylist()]
            columns.append(pa.array(cells, field.type))
        else:
            columns.append(column.cast(field.type))
    return pa.table(columns, schema=SCHEMA).sort_by("id")


@dataclass
class Written:
    """A folder of files of all kinds, the rows in it, and what schema each reader finds."""

    folder: str
    rows: pa.Table
    schemas: dict[str, Any]

    def expected(self, condition: str) -> list[int]:
        """The ids of matching rows, found without reading any file."""
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("given", self.rows)
            return sorted(
                row[0] for row in connection.execute(f"SELECT id FROM given WHERE {condition}").fetchall()
            )


@pytest.fixture(scope="module")
def written(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("mixed") / "events"
    folder.mkdir()
    tables, first = [], 0
    for kind in KINDS:
        for number, count in enumerate(SIZES):
            tables.append(rows(first, count, maps=kind not in LARGE))
            write(kind, tables[-1], f"{folder}/{min(number, 1)}-{kind}-{number}.parquet", spark)
            first += count
    found = Written(str(folder), pa.concat_tables(tables), {})
    found.schemas.update(schemas(found.folder, spark))
    return found


def by_duckdb(folder: str, query: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        source = f"read_parquet('{folder}/*.parquet', union_by_name = true)"
        return connection.sql(query.format(source)).to_arrow_table()


def by_spark(folder: str, spark: Any) -> Any:
    return spark.read.option("mergeSchema", "true").parquet(folder)


def schemas(folder: str, spark: Any) -> dict[str, Any]:
    """The schema that each reader finds."""
    files = oracle.data_files(folder)
    return {
        "pyarrow": {str(pq.read_schema(file).remove_metadata()) for file in files},
        "polars": {str(pl.read_parquet_schema(file)) for file in files},
        "duckdb": by_duckdb(folder, "DESCRIBE FROM {}").to_pylist(),
        "spark": sorted(map(str, by_spark(folder, spark).schema)),
    }


def by_file(folder: str) -> dict[str, pa.Table]:
    """The rows of readers that take one file at a time, or need equal schemas."""
    files = oracle.data_files(folder)
    return {
        "pyarrow": pa.concat_tables([as_written(pq.ParquetFile(file).read()) for file in files]).sort_by("id"),
        "polars": pa.concat_tables([as_written(pl.read_parquet(file).to_arrow()) for file in files]).sort_by("id"),
    }


@pytest.fixture(params=REWRITES)
def compacted(
    request: pytest.FixtureRequest, written: Written, local: Place, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Place]:
    """The `rewrite` mode of a compaction, and its result."""
    monkeypatch.setattr(copying, "_MIN_COPY_ROWS", GOOD)
    shutil.copytree(written.folder, local.root)
    local.dataset(engine="pyarrow").compact(rewrite=request.param, schema="exact")
    # Files with large types, INT96 or legacy lists are not merged with the rest.
    assert len(local.files()) == 4
    return request.param, local


def test_every_reader_reads_the_same_rows_and_columns(
    compacted: tuple[str, Place], written: Written, spark: Any
) -> None:
    _, place = compacted
    assert schemas(place.root, spark) == written.schemas
    found = by_file(place.root) | {"duckdb": as_written(by_duckdb(place.root, "FROM {}"))}
    assert [name for name, table in found.items() if not table.equals(written.rows)] == []


@pytest.fixture(params=[True, False], ids=["vectorized", "row by row"])
def spark_reader(request: pytest.FixtureRequest, spark: Any) -> Iterator[Any]:
    settings = {"spark.sql.parquet.enableVectorizedReader": str(request.param).lower()}
    if not request.param:  # then parquet-mr can skip rows, not only pages
        settings["spark.sql.parquet.recordLevelFilter.enabled"] = "true"
    with configured(spark, settings):
        yield spark


def test_spark_reads_and_filters(compacted: tuple[str, Place], written: Written, spark_reader: Any) -> None:
    """With both of its readers, which prune by bounds, dictionaries and Bloom filters."""
    frame = by_spark(compacted[1].root, spark_reader)
    assert as_written(frame.toArrow()).equals(written.rows)
    for condition in CONDITIONS:
        ids = sorted(row.id for row in frame.where(condition).select("id").collect())
        assert ids == written.expected(condition), condition


def test_spark_filters_by_page_indexes_of_several_writers(
    local: Place, written: Written, spark_reader: Any
) -> None:
    """One input without page indexes is enough for the output to have none, so all inputs have them here."""
    local.fs.makedirs(local.root)
    kinds = ("-arrow-0", "-arrow-plain-0", "-spark-0", "-spark-v2-0")
    for path in oracle.data_files(written.folder):
        if any(kind in path for kind in kinds):
            shutil.copy(path, local.root)
    local.dataset(engine="pyarrow").compact(rewrite="copy")
    (path,) = oracle.data_files(local.root)
    footer = footer_of(path)
    assert all(column.offset_index for group in footer.row_groups for column in group.columns)
    assert len(footer.row_groups) == len(kinds)
    assert check_pages(content(path)) > 2 * GOOD // 100 * len(SCHEMA)
    there = set(pq.read_table(path, columns=["id"]).column("id").to_pylist())
    frame = by_spark(local.root, spark_reader)
    for condition in CONDITIONS:
        ids = sorted(row.id for row in frame.where(condition).select("id", "text", "counts").collect())
        assert ids == [number for number in written.expected(condition) if number in there], condition


def test_duckdb_polars_and_arrow_filter(compacted: tuple[str, Place], written: Written) -> None:
    _, place = compacted
    for condition in CONDITIONS:
        expected = written.expected(condition)
        assert expected, "a condition without matches would prove nothing"
        found = by_duckdb(place.root, f"SELECT id FROM {{}} WHERE {condition} ORDER BY id")
        assert found.column("id").to_pylist() == expected, condition
    for condition, chosen, ruled in (
        (
            "id between 1450 and 1550",
            pl.col("id").is_between(1450, 1550),
            [("id", ">=", 1450), ("id", "<=", 1550)],
        ),
        ("text = 'text 17000'", pl.col("text") == "text 17000", [("text", "=", "text 17000")]),
        (
            "word = 'w3' and small = 98",
            (pl.col("word") == "w3") & (pl.col("small") == 98),
            [("word", "=", "w3"), ("small", "=", 98)],
        ),
    ):
        files = oracle.data_files(place.root)
        frames = [pl.scan_parquet(file).filter(chosen).select("id").collect() for file in files]
        tables = [pq.read_table(file, columns=["id"], filters=ruled) for file in files]
        expected = written.expected(condition)
        assert expected
        assert pl.concat(frames)["id"].sort().to_list() == expected
        assert sorted(pa.concat_tables(tables).column("id").to_pylist()) == expected


def test_copied_row_groups_and_bloom_filters(compacted: tuple[str, Place], written: Written) -> None:
    """With `rewrite="copy"` every row group of every writer is copied, with its Bloom filters."""
    rewrite, place = compacted
    before, after = (
        [footer_of(path) for path in oracle.data_files(folder)] for folder in (written.folder, place.root)
    )
    old, new = (
        Counter(
            (group.num_rows, *(column.size for column in group.columns))
            for footer in found
            for group in footer.row_groups
        )
        for found in (before, after)
    )
    kept = sum((old & new).values())
    # "auto" copies nothing if Arrow cannot encode the same types: INT96 of Spark, legacy lists.
    assert kept == {"auto": len(KINDS) - 2, "copy": len(KINDS) * len(SIZES), "encode": 0}[rewrite]
    blooms = [
        sum(
            column.bloom_filter is not None
            for footer in found
            for group in footer.row_groups
            for column in group.columns
        )
        for found in (before, after)
    ]
    assert blooms[0]
    if rewrite == "copy":
        assert blooms[1] == blooms[0]
    for path in oracle.data_files(place.root):
        check_chunks(content(path))
        check_pages(content(path))


@pytest.mark.spark
@pytest.mark.parametrize("rewrite", REWRITES)
def test_brotli_files_among_other_codecs(local: Place, rewrite: Any) -> None:
    """Spark cannot read brotli; copied brotli row groups may be in the middle of a file."""
    local.fs.makedirs(local.root)
    tables = [rows(SMALL * number, SMALL) for number in range(4)]
    pq.write_table(tables[0], f"{local.root}/0.parquet", compression="zstd", **ARROW)
    pq.write_table(tables[1], f"{local.root}/1.parquet", compression="brotli", **ARROW)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given", tables[2])
        connection.execute(f"COPY given TO '{local.root}/2.parquet' (FORMAT parquet, COMPRESSION brotli)")
    pq.write_table(tables[3], f"{local.root}/3.parquet", compression="snappy", **ARROW)
    local.dataset(engine="pyarrow").compact(rewrite=rewrite)
    assert len(local.files()) == 1
    found = by_file(local.root) | {"duckdb": as_written(by_duckdb(local.root, "FROM {}"))}
    assert all(table.equals(pa.concat_tables(tables)) for table in found.values())
    if rewrite == "copy":
        assert local.dataset().files()[0].codecs == {"zstd", "brotli", "snappy"}


def test_spark_handler_finds_brotli_in_the_middle_of_a_file(local: Place, spark: Any) -> None:
    """Spark's own reader lacks brotli: such a file is read through Arrow, even if it begins with another codec."""
    for name, codec in (("a", "zstd"), ("b", "brotli")):
        local.write_files({f"{name}.parquet": pa.table({"id": [ord(name)]})}, compression=codec)
    local.dataset(engine="pyarrow").compact(rewrite="copy")
    assert len(local.files()) == 1
    frame = SparkParquetHandler(spark=spark).read_parquet(local.root)
    assert sorted(row.id for row in frame.collect()) == [97, 98]


@pytest.mark.parametrize(
    "run",
    [
        lambda dataset: dataset.compact(rewrite="auto"),
        lambda dataset: dataset.compact(rewrite="encode"),
        lambda dataset: dataset.optimize(["small", "x"]),
        lambda dataset: dataset.repartition("small"),
        lambda dataset: dataset.update("small >= 0", {"small": 5}),
    ],
)
def test_hadoop_lz4_of_spark_becomes_lz4_raw(local: Place, written: Written, run: Any) -> None:
    """Arrow reads Hadoop's LZ4 framing but cannot write it."""
    local.fs.makedirs(local.root)
    for path in oracle.data_files(written.folder):
        if "spark-lz4" in path:
            shutil.copy(path, local.root)
    dataset = local.dataset(engine="pyarrow")
    assert {file.codec for file in dataset.files()} == {"lz4_hadoop"}
    before = local.rows()
    run(dataset)
    assert {file.codec for file in dataset.files()} == {"lz4"}
    assert sum(file.num_rows for file in dataset.files()) == sum(before.values())
    assert dataset.read().num_rows == sum(before.values())
