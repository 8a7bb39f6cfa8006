"""Polars and Arrow encode the same rows as equal files: values, schema, metadata, bounds and page indexes."""

from __future__ import annotations

import io
import math
import struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.parquet_files import check_chunks, check_pages
from parketto import Dataset, InvalidArgument
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.encoders import row_groups as encode
from parketto.parquet.file_format import FileFormat
from parketto.parquet.footer import read_footer

ODD_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000001234))[0]


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.one_of(st.sampled_from([low, high, 0]), st.integers(low, high))


TIMES = integers(63)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i8": (pa.int8(), integers(8)),
    "i16": (pa.int16(), integers(16)),
    "i32": (pa.int32(), integers(32)),
    "i64": (pa.int64(), integers(64)),
    "u8": (pa.uint8(), integers(8, signed=False)),
    "u16": (pa.uint16(), integers(16, signed=False)),
    "u32": (pa.uint32(), integers(32, signed=False)),
    "u64": (pa.uint64(), integers(64, signed=False)),
    "f32": (pa.float32(), st.floats(width=32)),
    "f64": (pa.float64(), st.one_of(st.floats(), st.sampled_from([ODD_NAN, 0.0, -0.0, math.inf]))),
    "flag": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=20)),
    "large_text": (pa.large_string(), st.text(st.sampled_from("aä\U0001f600"), max_size=15)),
    "bytes": (pa.binary(), st.binary(max_size=20)),
    "large_bytes": (pa.large_binary(), st.binary(max_size=20)),
    "day": (pa.date32(), integers(32)),
    "ms": (pa.timestamp("ms"), TIMES),
    "us": (pa.timestamp("us", "UTC"), TIMES),
    "ns": (pa.timestamp("ns"), TIMES),
    "paris": (pa.timestamp("us", "Europe/Paris"), TIMES),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=6, unique=True))
    rows = draw(st.integers(1, 200))
    columns = []
    for name in names:
        kind, values = COLUMNS[name]
        some = draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=12))
        found = (some * (rows // len(some) + 1))[:rows]
        numbers = pa.date32() == kind or pa.types.is_timestamp(kind)
        column = pa.array(found, {32: pa.int32(), 64: pa.int64()}[kind.bit_width] if numbers else kind)
        columns.append(column.cast(kind))
    return pa.table(columns, names)


@pytest.fixture(autouse=True)
def by_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARKETTO_CODEC", "polars")


def bits(column: pa.ChunkedArray) -> Any:
    """The bits of all values: signs of zeros and payloads of NaNs included."""
    whole = column.combine_chunks()
    kind = {pa.float64(): pa.int64(), pa.float32(): pa.int32()}.get(whole.type)
    if kind is None:
        return whole
    return pc.if_else(whole.is_valid(), whole.fill_null(0).view(kind), None)


def statistics(content: pa.Buffer) -> list[Any]:
    metadata = pq.read_metadata(pa.BufferReader(content))
    found = []
    for at in range(metadata.num_columns):
        seen = metadata.row_group(0).column(at).statistics
        bounds = (seen.min_raw, seen.max_raw) if seen.has_min_max else None
        found.append((metadata.schema.column(at).name, repr(bounds), seen.null_count, seen.num_values))
    return found


def by_arrow(file_format: FileFormat, rows: pa.Table) -> pa.Buffer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARKETTO_CODEC", "arrow")
        return file_format.encoded(rows)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=tables(), codec=st.sampled_from(["snappy", "zstd", "lz4", "none"]), noted=st.booleans())
def test_a_row_group_is_the_same_by_either_codec(rows: pa.Table, codec: str, *, noted: bool) -> None:
    """Down to the last bit of values and bounds. Only pages and dictionaries may differ."""
    schema = decoded_schema(rows.schema)
    file_format = FileFormat(schema, codec, {b"owner": b"us"} if noted else None)
    polars, arrow = encode.encode_rows(file_format, rows), by_arrow(file_format, rows)
    assert polars is not None
    found, expected = (pq.ParquetFile(pa.BufferReader(content)) for content in (polars, arrow))
    read, wanted = found.read(), expected.read()
    assert read.schema.equals(wanted.schema, check_metadata=True)
    for name in rows.column_names:
        assert bits(read[name]).equals(bits(wanted[name])), name
    assert found.schema.equals(expected.schema)
    assert found.metadata.metadata == expected.metadata.metadata
    mine, theirs = (read_footer(io.BytesIO(content)) for content in (polars, arrow))
    assert (mine.schema, mine.column_orders) == (theirs.schema, theirs.column_orders)
    assert statistics(polars) == statistics(arrow)
    assert check_pages(polars.to_pybytes()) >= rows.num_columns
    check_chunks(polars.to_pybytes())
    ours, others = mine.row_groups[0].columns, theirs.row_groups[0].columns
    assert all(column.offset_index for column in ours)
    assert [bool(column.column_index) for column in ours] == [bool(column.column_index) for column in others]


@pytest.mark.parametrize(
    "name", ["decimal", "list", "category", "required", "half", "offset", "invalid", "zone", "long"]
)
def test_arrow_encodes_what_polars_would_change(name: str) -> None:
    columns: dict[str, tuple[pa.Array, dict[str, Any]]] = {
        "decimal": (pa.array([1], pa.int64()).cast(pa.decimal128(20, 0)), {}),
        "list": (pa.array([[1]]), {}),
        "category": (pa.array(["a"]), {"readable_as": pa.schema({"x": pa.dictionary(pa.int32(), pa.string())})}),
        "required": (pa.array([1]), {"schema": pa.schema([pa.field("x", pa.int64(), nullable=False)])}),
        "half": (pa.array([1.0]).cast(pa.float16()), {}),
        "offset": (pa.array([1], pa.timestamp("us", "+05:30")), {}),
        "zone": (pa.array([1], pa.timestamp("us", "Mars/Base")), {}),
        # Polars would truncate its bounds.
        "long": (pa.array(["x" * 61]), {}),
        "invalid": (pa.array([b"\xff\xfe"]).view(pa.string()), {}),
    }
    column, options = columns[name]
    schema = options.pop("schema", pa.schema({"x": column.type}))
    rows = pa.table([column], schema=schema)
    file_format = FileFormat(schema, "snappy", {}, **options)
    assert encode.encode_rows(file_format, rows) is None
    found = pq.read_table(pa.BufferReader(file_format.encoded(rows)))["x"].combine_chunks()
    assert found.equals(column.cast(found.type)) or name == "invalid"


def test_without_force_polars_encodes_what_is_faster_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long columns of integers, times and flags. Floats would lose their dictionary, strings need a conversion."""
    monkeypatch.delenv("PARKETTO_CODEC")
    rows = pa.table({"n": range(70_000), "x": [0.5] * 70_000, "word": ["a"] * 70_000, "flag": [True] * 70_000})
    file_format = FileFormat(rows.schema, "snappy", {})
    assert encode.polars_columns(file_format, rows) == [True, False, False, True]
    assert encode.polars_columns(file_format, rows.slice(0, 1000)) == [False] * 4
    monkeypatch.setenv("PARKETTO_CODEC", "polars")
    assert encode.polars_columns(file_format, rows.slice(0, 1000)) == [True] * 4
    monkeypatch.setenv("PARKETTO_CODEC", "arrow")
    assert encode.polars_columns(file_format, rows) == [False] * 4


def test_an_unknown_codec_is_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARKETTO_CODEC", "Polar")
    with pytest.raises(InvalidArgument, match=r"PARKETTO_CODEC is 'Polar'; set it to 'arrow' or 'polars'"):
        Dataset("nowhere", engine="pyarrow")
