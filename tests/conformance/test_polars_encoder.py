"""Files that Polars encodes: the same rows, schema and bounds as from Arrow, with a fallback to Arrow."""

from __future__ import annotations

import decimal
import io
import math
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from helpers.parquet_files import check_chunks, check_pages, read_by_duckdb, read_by_polars
from parketto import Dataset, UnreadableFile
from parketto.engines.base import Engine
from parketto.parquet.codec import CODEC_VARIABLE
from parketto.parquet.encoders import polars as streaming
from parketto.parquet.footer import read_footer

ROWS = 5000
NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000001234))[0]


@pytest.fixture(autouse=True)
def _codec_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about Polars, so they hold whatever the environment forces for the others."""
    monkeypatch.delenv(CODEC_VARIABLE, raising=False)


def repeated(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array((values * (ROWS // len(values) + 1))[:ROWS], kind)


COLUMNS = {
    "seconds": repeated([0, 10**9, None], pa.int64()).cast(pa.timestamp("s")),
    "zeros": repeated([0.0, -0.0, None], pa.float64()),
    "nans": repeated([1.0, math.nan, NAN, -math.inf], pa.float64()),
    "only_nan": repeated([math.nan], pa.float64()),
    "f32": repeated([0.5, -0.0, math.inf, None], pa.float32()),
    "u8": repeated([0, 255, None], pa.uint8()),
    "u16": repeated([65535, 1], pa.uint16()),
    "u32": repeated([0, 2**32 - 1, 5], pa.uint32()),
    "u64": repeated([0, 2**64 - 1, 7, None], pa.uint64()),
    "i8": repeated([-128, 127], pa.int8()),
    "i16": repeated([-32768, 3], pa.int16()),
    "i32": repeated([-(2**31), 2**31 - 1], pa.int32()),
    "i64": repeated([-(2**63), 2**63 - 1], pa.int64()),
    "flag": repeated([True, None, False], pa.bool_()),
    "text": repeated(["", "ä", "\U0001f600", "x" * 300, None], pa.string()),
    "large_text": repeated(["a", "b"], pa.large_string()),
    "bytes": repeated([b"", b"\xff\x00", None], pa.binary()),
    "large_bytes": repeated([b"\x80", b"\xff" * 100], pa.large_binary()),
    "day": repeated([0, -(10**6), 2**31 - 1], pa.int32()).cast(pa.date32()),
    "ms": repeated([0, -(2**63), 2**63 - 1], pa.int64()).cast(pa.timestamp("ms")),
    "us": repeated([0, -(2**63), None], pa.int64()).cast(pa.timestamp("us", "UTC")),
    "ns": repeated([0, 2**63 - 1], pa.int64()).cast(pa.timestamp("ns")),
    "paris": repeated([0, 1], pa.int64()).cast(pa.timestamp("us", "Europe/Paris")),
    "null_numbers": pa.nulls(ROWS, pa.int64()),
    "null_texts": pa.nulls(ROWS, pa.string()),
    "rising": pa.array(range(ROWS), pa.int64()),
}


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of files in each Polars stream that was completed."""
    found: list[int] = []
    encode_files = streaming.encode_files

    def counted(files: Any, output: Any, worker: Any) -> Any:
        result = encode_files(files, output, worker)
        if result is not None:
            found.append(len(files))
        return result

    monkeypatch.setattr(streaming, "encode_files", counted)
    return found


def bits(column: pa.ChunkedArray) -> Any:
    """The bits of all values: signs of zeros and payloads of NaNs included."""
    whole = column.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    kind = {pa.float64(): pa.int64(), pa.float32(): pa.int32()}.get(whole.type)
    if kind is None:
        return whole
    numbers = pa.concat_arrays([whole]).fill_null(0).view(kind)
    return pa.compute.if_else(whole.is_valid(), numbers, None)


def only_file(place: Place) -> bytes:
    (path,) = oracle.data_files(place.root, place.fs)
    content: bytes = place.fs.cat_file(path)
    return content


def bounds(content: bytes) -> list[Any]:
    """The bounds of each column in the footer, as Arrow reads them."""
    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    assert metadata.num_row_groups == 1
    found = []
    for at in range(metadata.num_columns):
        statistics = metadata.row_group(0).column(at).statistics
        low_high = (statistics.min_raw, statistics.max_raw) if statistics.has_min_max else None
        found.append((metadata.schema.column(at).name, repr(low_high), statistics.null_count))
    return found


@pytest.mark.parametrize("codec", ["snappy", "zstd", "lz4", "none"])
def test_all_types_are_written_as_by_arrow(
    local: Place, codec: str, streamed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every bit of the values, the Arrow and the Parquet schema, metadata, bounds, page indexes."""
    monkeypatch.setenv(CODEC_VARIABLE, "polars")  # else Arrow encodes floats that repeat
    given = pa.table(COLUMNS).replace_schema_metadata({"owner": "us"})
    # Polars truncates long bounds, which is valid; here they must equal those of Arrow.
    given = given.drop_columns(["text", "large_bytes"]) if codec == "snappy" else given
    local.write_files({f"f{n}.parquet": given.slice(n * 1000, 1000) for n in range(5)})
    local.dataset().compact(rewrite="encode", compression=codec)
    by_polars = only_file(local)
    assert streamed == [5]
    found = pq.ParquetFile(io.BytesIO(by_polars))
    kept = given.set_column(0, "seconds", given["seconds"].cast(pa.timestamp("ms")))  # Parquet has no seconds
    for name in given.column_names:
        assert bits(found.read([name])[name]) == bits(kept[name]), name
    assert found.schema_arrow.equals(kept.schema, check_metadata=True)
    assert {found.metadata.row_group(0).column(at).compression for at in range(given.num_columns)} == {
        {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
    }
    assert check_pages(by_polars) >= given.num_columns
    check_chunks(by_polars)

    local.fs.rm(local.root, recursive=True)
    local.write_files({f"f{n}.parquet": given.slice(n * 1000, 1000) for n in range(5)})
    monkeypatch.setenv("PARKETTO_CODEC", "arrow")
    local.dataset().compact(rewrite="encode", compression=codec)
    assert streamed == [5]
    by_arrow = only_file(local)
    expected = pq.ParquetFile(io.BytesIO(by_arrow))
    assert found.schema.equals(expected.schema)
    assert found.metadata.metadata == expected.metadata.metadata
    assert read_footer(io.BytesIO(by_polars)).schema == read_footer(io.BytesIO(by_arrow)).schema
    if codec == "snappy":
        assert bounds(by_polars) == bounds(by_arrow)


def test_readers_agree_and_skip_pages(local: Place, engine: Engine) -> None:
    """Several row groups and many sorted pages, so that filters can skip some."""
    given = pa.table(
        {"id": pa.array(range(300_000), pa.int64()), "word": [f"w{n // 1000:03}" for n in range(300_000)]}
    )
    local.write_files({f"f{n:02}.parquet": given.slice(n * 10_000, 10_000) for n in range(30)})
    dataset = local.dataset(engine=engine)
    dataset.compact(rewrite="encode")
    content = only_file(local)
    footer = read_footer(io.BytesIO(content))
    assert len(footer.row_groups) > 1
    assert all(column.offset_index and column.column_index for g in footer.row_groups for column in g.columns)
    assert check_pages(content) > 2 * sum(len(group.columns) for group in footer.row_groups)
    assert dataset.read().equals(given)
    paths = [str(path) for path in oracle.data_files(local.root, local.fs)]
    filters = [("id", "=", 123456)]
    assert pq.read_table(paths[0], filters=filters).to_pylist() == [{"id": 123456, "word": "w123"}]
    assert read_by_duckdb(paths, "id between 200000 and 200001") == [(200000, "w200"), (200001, "w200")]
    assert read_by_polars(paths, pl.col("word") == "w299").height == 1000


def test_spark_skips_pages_and_finds_all(local: Place, spark: Any) -> None:
    """Spark uses page indexes with and without its vectorized reader."""
    given = pa.table(
        {
            "id": pa.array(range(200_000), pa.int64()),
            "word": [None if n % 7 == 0 else f"w{n // 1000:03}" for n in range(200_000)],
            "real": [float(n % 1000) for n in range(200_000)],
        }
    )
    local.write_files({f"f{n:02}.parquet": given.slice(n * 10_000, 10_000) for n in range(20)})
    local.dataset(engine="pyarrow").compact(rewrite="encode")
    for vectorized in ("true", "false"):
        spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
        frame = spark.read.parquet(local.root)
        try:
            assert frame.where("id between 150000 and 150099").count() == 100
            assert frame.where("word = 'w123'").count() == sum(n % 7 != 0 for n in range(123_000, 124_000))
            assert frame.where("word is null and id < 70000").count() == 10_000
            assert frame.where("real = 0.0").count() == 200
        finally:
            spark.conf.unset("spark.sql.parquet.enableVectorizedReader")


NOT_FOR_POLARS: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    "decimal": (pa.array([decimal.Decimal(1)] * 10), {}),
    "list": (pa.array([[1]] * 10), {}),
    "struct": (pa.array([{"a": 1}] * 10), {}),
    "category": (pa.array(["a"] * 10).dictionary_encode(), {}),
    "time": (pa.array([1] * 10, pa.time64("us")), {}),
    "half": (pa.array([1.0] * 10).cast(pa.float16()), {}),
    "duration": (pa.array([1] * 10, pa.duration("us")), {}),
    "int96": (pa.array([1] * 10, pa.timestamp("ns")), {"use_deprecated_int96_timestamps": True}),
    "checksums": (pa.array([1] * 10), {"write_page_checksum": True}),
    "fixed": (pa.array([b"ab"] * 10, pa.binary(2)), {}),
    "gzip": (pa.array([1] * 10), {"compression": "gzip"}),
    "offset": (pa.array([1] * 10, pa.timestamp("us", "+05:30")), {}),
    "elsewhere": (pa.array([1] * 10, pa.timestamp("us", "Mars/Base")), {}),
    # Small in the file, but more than the memory of a task once decoded.
    "long texts": (pa.array([("x" * 6000)] * 10), {}),
}


@pytest.mark.parametrize("kind", NOT_FOR_POLARS)
def test_arrow_encodes_what_polars_would_change(local: Place, kind: str, streamed: list[int]) -> None:
    column, options = NOT_FOR_POLARS[kind]
    given = pa.table({"x": column, "y": range(10)})
    local.write_files({f"f{n}.parquet": given for n in range(3)}, **options)
    local.dataset().compact(rewrite="encode")
    assert streamed == []
    assert pq.ParquetFile(io.BytesIO(only_file(local))).read().equals(pa.concat_tables([given] * 3))


def test_arrow_encodes_floats_that_repeat(local: Place, streamed: list[int]) -> None:
    """Polars gives them no dictionary, and the file would be several times as large."""
    prices = pa.table({"price": [float(n % 50) for n in range(90_000)]})
    local.write_files({f"f{n}.parquet": prices.slice(n * 30_000, 30_000) for n in range(3)})
    before = sum(local.fs.size(path) for path in oracle.data_files(local.root, local.fs))
    local.dataset().compact(rewrite="encode")
    assert streamed == []
    assert len(only_file(local)) < 1.2 * before
    different = pa.table({"price": [n / 7 for n in range(90_000)]})
    for path in oracle.data_files(local.root, local.fs):
        local.fs.rm(path)
    local.write_files({f"g{n}.parquet": different.slice(n * 30_000, 30_000) for n in range(3)})
    local.dataset().compact(rewrite="encode")
    assert streamed == [3]


def test_required_columns_and_field_ids_are_kept(local: Place, streamed: list[int]) -> None:
    """Polars writes neither."""
    for at, field in enumerate(
        (pa.field("x", pa.int64(), nullable=False), pa.field("x", pa.int64(), metadata={"PARQUET:field_id": "7"}))
    ):
        given = pa.table({"x": range(10)}).cast(pa.schema([field]))
        if at:
            local.fs.rm(local.root, recursive=True)
        local.write_files({f"f{n}.parquet": given for n in range(3)})
        local.dataset().compact(rewrite="encode")
        found = pq.ParquetFile(io.BytesIO(only_file(local))).schema_arrow
        assert found.equals(given.schema, check_metadata=True)
    assert streamed == []


@pytest.mark.parametrize("assembled", [False, True])
def test_damage_is_still_found_by_checksums(local: Place, *, assembled: bool) -> None:
    """Also in a file whose first pages have no checksums because it was assembled from several files."""
    given = pa.table({"x": [f"some text {n}" for n in range(1000)]})
    options: Any = {"use_dictionary": False, "compression": "none"}
    if assembled:
        local.write_files({"f0.parquet": given}, **options)
        local.write_files({"f1.parquet": given}, write_page_checksum=True, **options)
        local.dataset().compact(rewrite="copy")
        assert pq.ParquetFile(io.BytesIO(only_file(local))).num_row_groups == 2
    local.write_files({f"g{n}.parquet": given for n in range(3)}, write_page_checksum=not assembled, **options)
    path = oracle.data_files(local.root, local.fs)[0 if assembled else 1]
    content = bytearray(local.fs.cat_file(path))
    content[content.rindex(b"some text 500")] ^= 1
    local.fs.pipe_file(path, bytes(content))
    before = local.state()
    with pytest.raises(UnreadableFile, match=path.rpartition("/")[2]):
        local.dataset().compact(rewrite="encode")
    assert local.state() == before
    assert local.left_behind() == []


@pytest.mark.parametrize(
    "error", [pl.exceptions.ComputeError("no"), OSError(28, "No space left"), KeyboardInterrupt(), "panic", "half"]
)
def test_arrow_takes_over_where_polars_fails(
    local: Place, error: Any, monkeypatch: pytest.MonkeyPatch, streamed: list[int]
) -> None:
    """All rows are written, and the file that Polars had begun is removed."""
    given = pa.table({"x": range(1000)})
    local.write_files({f"f{n}.parquet": given for n in range(3)})
    stream = streaming._stream

    def failing(rows: pl.LazyFrame, path: str, *how: Any) -> None:
        if error == "half":  # not all rows are there
            return stream(rows.limit(1500), path, *how)
        stream(rows, path, *how)
        raise pl.exceptions.PanicException("lost") if error == "panic" else error

    monkeypatch.setattr(streaming, "_stream", failing)
    local.dataset().compact(rewrite="encode")
    assert streamed == []
    assert pq.ParquetFile(io.BytesIO(only_file(local))).read().equals(pa.concat_tables([given] * 3))
    assert local.left_behind() == []


def test_arrow_encodes_if_polars_cannot_be_imported(
    local: Place, monkeypatch: pytest.MonkeyPatch, streamed: list[int]
) -> None:
    """Polars is installed but fails to import."""
    given = pa.table({"x": range(1000)})
    local.write_files({f"f{n}.parquet": given for n in range(3)})
    monkeypatch.setitem(sys.modules, "polars.exceptions", None)
    local.dataset().compact(rewrite="encode")
    assert streamed == []
    assert oracle.data_files(local.root, local.fs)


def test_forked_process_does_not_wait_for_threads_of_its_parent(local: Place) -> None:
    """Polars was used, by Parketto or the program, before the process was forked."""
    for folder in "ab":
        tables = {f"{folder}/f{n}.parquet": pa.table({"x": range(1000)}) for n in range(3)}
        local.write_files(tables)
    code = (
        "import multiprocessing, sys\n"
        "import polars\n"
        "from parketto import Dataset\n"
        "def compact(path):\n"
        "    Dataset(path, engine='pyarrow').compact(rewrite='encode')\n"
        "if __name__ == '__main__':\n"
        "    compact(sys.argv[1] + '/a')\n"
        "    child = multiprocessing.get_context('fork').Process(target=compact, args=[sys.argv[1] + '/b'])\n"
        "    child.start()\n"
        "    child.join(50)\n"
        "    print(child.exitcode)\n"
        "    child.kill()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, local.root], capture_output=True, text=True, timeout=100)
    assert done.stdout == "0\n", done.stderr
    assert len(oracle.data_files(local.root, local.fs)) == 2


def test_row_groups_are_about_equal(local: Place, streamed: list[int]) -> None:
    """Not a large row group followed by one of a single row."""
    local.write_files({f"f{n}.parquet": pa.table({"x": range(43_691)}) for n in range(3)})
    local.dataset().compact(rewrite="encode")
    assert streamed == [3]
    footer = read_footer(io.BytesIO(only_file(local)))
    assert [group.num_rows for group in footer.row_groups] == [65_537, 65_536]
    assert (footer.created_by or b"").startswith(b"Polars")


def test_damaged_file_is_named(local: Place) -> None:
    """Neither Polars nor Arrow can read it: the error is the one that names it."""
    local.write_files({f"f{n}.parquet": pa.table({"x": [f"{n}" * 500]}) for n in range(3)}, compression="snappy")
    path = oracle.data_files(local.root, local.fs)[1]
    content = bytearray(local.fs.cat_file(path))
    content[4:60] = b"\xff" * 56
    local.fs.pipe_file(path, bytes(content))
    with pytest.raises(UnreadableFile, match=r"f1\.parquet"):
        local.dataset().compact(rewrite="encode")
    assert local.left_behind() == []


def test_invalid_utf8_is_passed_through(local: Place) -> None:
    """Polars refuses such text; Arrow does not validate it."""
    column = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())
    local.write_files({f"f{n}.parquet": pa.table({"x": column}) for n in range(3)})
    local.dataset().compact(rewrite="encode")
    found = pq.ParquetFile(io.BytesIO(only_file(local))).read()["x"].combine_chunks()
    assert found.view(pa.binary()).to_pylist() == [b"\xff\xfe", b"ok"] * 3


def test_thread_limit_is_kept(local: Place, streamed: list[int]) -> None:
    """Polars uses one thread per core, so Arrow encodes if fewer threads are requested."""
    local.write_files({f"f{n}.parquet": pa.table({"x": range(10)}) for n in range(3)})
    local.dataset(engine="pyarrow", threads=1).compact(rewrite="encode")
    assert streamed == ([] if streaming_cores() > 1 else [3])


def streaming_cores() -> int:
    from parketto.runtime.task import cores

    return cores()


@pytest.mark.parametrize("rows_of_a_group", [10, 1000])
def test_only_one_long_stream_at_a_time(
    local: Place, rows_of_a_group: int, monkeypatch: pytest.MonkeyPatch, streamed: list[int]
) -> None:
    """A stream of several row groups needs the memory of a task and all cores; of one row group, it does not."""
    monkeypatch.setattr(streaming, "rows_per_group", lambda *_: rows_of_a_group)
    for day in range(4):
        local.write_files({f"day={day}/f{n}.parquet": pa.table({"x": range(10)}) for n in range(2)})
    stream, at_once, most = streaming._stream, 0, 0
    lock = threading.Lock()

    def watched(*what: Any) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.1)
        stream(*what)
        with lock:
            at_once -= 1

    monkeypatch.setattr(streaming, "_stream", watched)
    local.dataset().compact(rewrite="encode")
    assert streamed == [2, 2, 2, 2]
    assert most == (1 if rows_of_a_group == 10 else min(2, streaming_cores()))


def small_files(place: Place, count: int = 12) -> list[pa.Table]:
    tables = [pa.table({"n": range(at, at + 50), "text": [f"{at} {n}" for n in range(50)]}) for at in range(count)]
    place.write_files({f"{at}.parquet": table for at, table in enumerate(tables)}, row_group_size=10)
    return tables


@pytest.mark.parametrize("on", ["pyarrow", "duckdb"])
def test_small_files_are_encoded_together(local: Place, on: str, streamed: list[int]) -> None:
    tables = small_files(local)
    assert oracle.planned_row_groups(Dataset(local.root, engine=on).compact(dry_run=True)) == [(0, 60)]
    Dataset(local.root, engine=on).compact()
    assert streamed == [12]
    assert pq.read_table(local.root).sort_by("text") == pa.concat_tables(tables).sort_by("text")


def test_small_file_with_damaged_row_group_metadata_is_named(local: Place, streamed: list[int]) -> None:
    """Their metadata is not parsed before the data is read."""
    small_files(local)
    path = f"{local.root}/9.parquet"
    with open(path, "rb") as file:
        sound = file.read()
        row_groups = len(read_footer(file).row_groups)
    assert row_groups == 5
    footer = pq.read_metadata(path).serialized_size + 8
    # A list of column chunks whose declared length is one too high.
    at = sound.index(bytes([0x19, 2 << 4 | 12, 0x26]), len(sound) - footer)
    with open(path, "wb") as file:
        file.write(sound[: at + 1] + bytes([3 << 4 | 12]) + sound[at + 2 :])
    before = local.state()
    with pytest.raises(UnreadableFile, match=r"9\.parquet"):
        Dataset(local.root, engine="pyarrow").compact()
    assert local.state() == before
    assert local.left_behind() == []
    assert streamed == []
