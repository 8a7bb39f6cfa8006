"""Thrift compact protocol of footers: decoded fields encode to the same bytes, and malformed bytes are refused."""

from __future__ import annotations

import io
import struct
import time
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.parquet_files import content, in_memory
from parketto.errors import FooterError
from parketto.parquet.footer import FOOTER_SHAPE, parse_footer, read_footer
from parketto.parquet.thrift import (
    BINARY,
    DOUBLE,
    I8,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    decode,
    decode_first,
    decode_list,
    encode,
    encode_strings,
    encode_structs,
    key,
)

NESTED = {key(2, LIST): {key(1, STRUCT): {}}, key(3, STRUCT): {}}


def test_fields_of_all_types_round_trip() -> None:
    fields = {
        key(1, TRUE): b"",
        key(2, I8): b"\xff",
        key(3, I16): -(2**15),
        key(4, I32): 2**31 - 1,
        key(5, I64): -(2**63),
        key(6, DOUBLE): struct.pack("<d", 1.5),
        key(7, BINARY): b"x" * 300,
        key(8, LIST): encode_strings([b"", b"a" * 200]),
        key(9, SET): b"\x35\x02\x04\x06",
        key(10, MAP): b"\x02\x85\x01a\x02\x01b\x04",
        key(11, STRUCT): encode({key(5, I64): 1}),
        key(12, MAP): b"\x00",
        key(13, LIST): b"\x21\x01\x02",
        key(14, LIST): b"\x27" + bytes(16),
        key(300, I64): 5,
        key(32767, BINARY): b"",
    }
    assert decode(encode(fields)) == fields


def test_shapes_decode_nested_fields() -> None:
    inner = {key(1, STRUCT): {key(7, I64): 9}}
    fields = {key(2, LIST): [inner] * 20, key(3, STRUCT): {key(1, BINARY): b"z"}}
    data = encode(fields)
    assert decode(data, NESTED) == fields
    assert encode(decode(data)) == data
    assert decode_list(decode(data)[key(2, LIST)], STRUCT) == [encode(inner)] * 20
    assert encode_structs([encode(inner)] * 20) == decode(data)[key(2, LIST)]


def test_smallest_and_largest_integers_round_trip() -> None:
    for number in (0, 1, -1, 63, 64, -64, -65, 2**62, 2**63 - 1, -(2**63)):
        assert decode(encode({key(1, I64): number})) == {key(1, I64): number}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x15",
        b"\x15\x80",
        b"\x16" + b"\xff" * 9 + b"\x7f\x00",  # more than 64 bits
        b"\x16" + b"\x80" * 20 + b"\x00",  # a number without an end
        b"\x15" + b"\xff" * 6 + b"\x01\x00",  # more than 32 bits
        b"\x14\xff\xff\xff\x01\x00",  # more than 16
        b"\x18\x05abc",  # a string longer than the remaining bytes
        b"\x18\xff\xff\xff\xff\x0f",
        b"\x19\xf5\xff\xff\xff\xff\x0f",  # a list of billions
        b"\x19\xfc\xff\xff\xff\xff\x0f" + bytes(100),
        b"\x1b\xff\xff\xff\xff\x0f\x55",  # a map of billions
        b"\x1b\xff",
        b"\x17abc",  # half a float
        b"\x1d\x00",  # types that do not exist
        b"\x1e\x00",
        b"\x1f\x00",
        b"\x10\x00",
        b"\x19\x1d\x00\x00",
        b"\x05\x01\x00",  # field -1
        b"\x05\x00\x00",  # field 0
        b"\x05\xfe\xff\x07\x00",  # field 65535
        b"\xf5\x00" * 3000,  # field ids beyond the maximum
        b"\x1c" * 100000,  # deeply nested structs
        b"\x19\x19" * 100000,
        b"\x19" + b"\x19" * 100000,
        b"\x1b\x01\xbb" + b"\x01\xbb" * 50000,
        b"\x19" + b"\x1c" * 100000,
    ],
    ids=lambda data: data[:12].hex(),
)
def test_hostile_bytes_are_refused_quickly(data) -> None:
    started = time.perf_counter()
    for shape in ({}, NESTED, FOOTER_SHAPE, {key(1, LIST): {}, key(1, STRUCT): {}}):
        with pytest.raises(FooterError):
            decode(data, shape)
    assert time.perf_counter() - started < 1


def test_lists_of_unexpected_element_types_are_refused() -> None:
    with pytest.raises(FooterError, match="elements of type 5, expected 12"):
        decode(b"\x29\x25\x02\x02\x00", NESTED)
    with pytest.raises(FooterError, match="elements of type 5, expected 12"):
        decode_list(b"\x25\x02\x02", STRUCT)
    with pytest.raises(FooterError, match="middle of a list"):
        decode_list(b"\x2c\x00", STRUCT)


def test_long_lists_of_empty_structs_are_refused() -> None:
    empty_structs = b"\x29\xfc\xc0\x84\x3d" + bytes(1_000_001)
    with pytest.raises(FooterError):
        decode(empty_structs, NESTED)
    assert len(decode(empty_structs)[key(2, LIST)]) > 1_000_000


def test_trailing_bytes_are_detected() -> None:
    assert decode_first(b"\x15\x02\x00rest") == ({key(1, I32): 1}, 3)
    with pytest.raises(FooterError, match="4 unexpected bytes follow"):
        decode(b"\x15\x02\x00rest")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("writers")
    rows_ = pa.table(
        {
            "id": pa.array(range(5000), pa.int64()),
            "s": [str(number % 100) for number in range(5000)],
            "l": [[number, None] if number % 3 else None for number in range(5000)],
            "st": [{"a": number, "b": {"c": "x"}} for number in range(5000)],
            "at": pa.array(range(5000), pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(rows_, folder / "pyarrow", row_group_size=999, write_page_index=True)
    pq.write_table(rows_, folder / "old", row_group_size=999, version="1.0", use_deprecated_int96_timestamps=True)
    pl.from_arrow(rows_).write_parquet(folder / "polars", row_group_size=999)
    duckdb.sql(f"COPY (FROM rows_) TO '{folder}/duckdb' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
    return {path.name: str(path) for path in folder.iterdir()}


@pytest.mark.parametrize("writer", ["pyarrow", "old", "polars", "duckdb"])
def test_footers_round_trip_byte_by_byte(files, writer) -> None:
    data = content(files[writer])
    size = struct.unpack("<I", data[-8:-4])[0]
    raw = data[-8 - size : -8]
    assert encode(decode(raw)) == raw
    again = encode(decode(raw, FOOTER_SHAPE))
    assert again == raw
    new = data[: -8 - size] + again + struct.pack("<I", len(again)) + b"PAR1"
    assert pq.read_metadata(io.BytesIO(new)).to_dict() == pq.read_metadata(files[writer]).to_dict()


@pytest.mark.parametrize("writer", ["pyarrow", "old", "polars", "duckdb"])
def test_footers_agree_with_pyarrow(files, writer) -> None:
    with open(files[writer], "rb") as file:
        footer = read_footer(file)
    expected = pq.read_metadata(files[writer])
    assert footer.num_rows == expected.num_rows
    assert (footer.created_by or b"").decode() == expected.created_by
    assert dict(footer.key_value_metadata) == (expected.metadata or {})
    assert [".".join(part.decode() for part in leaf.path) for leaf in footer.leaves] == [
        expected.schema.column(number).path for number in range(len(expected.schema))
    ]
    assert [leaf.repeated for leaf in footer.leaves] == [
        expected.schema.column(number).max_repetition_level > 0 for number in range(len(expected.schema))
    ]
    for number, group in enumerate(footer.row_groups):
        theirs = expected.row_group(number)
        assert (group.num_rows, group.total_byte_size) == (theirs.num_rows, theirs.total_byte_size)
        for position, column in enumerate(group.columns):
            other = theirs.column(position)
            assert ".".join(column.path) == other.path_in_schema
            assert column.num_values == other.num_values
            assert column.size == other.total_compressed_size
            first = other.dictionary_page_offset if other.has_dictionary_page else other.data_page_offset
            assert column.start == first
            assert (column.offset_index is not None) == other.has_offset_index
            assert (column.column_index is not None) == other.has_column_index


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        b"PAR1PAR1",
        b"PAR1" + bytes(4) + b"PAR1",
        b"PAR1" + b"\xff\xff\xff\xff" + b"PAR1",
        b"PAR1" + bytes(100) + b"\x10\x00\x00\x00" + b"PARE",
        b"nope" + bytes(100) + b"\x10\x00\x00\x00" + b"PAR1",
        b"PAR1" + bytes(100) + b"\x10\x00\x00\x00" + b"nope",
        b"PAR1" + bytes(100) + b"\x10\x00\x00\x00" + b"PAR1",
    ],
)
def test_files_that_are_not_parquet_are_refused(data) -> None:
    with pytest.raises(FooterError):
        read_footer(io.BytesIO(data))


def test_footer_longer_than_the_first_read_is_parsed() -> None:
    table = pa.table({f"column {number}": [number] for number in range(2000)})
    source = in_memory(table)
    footer = read_footer(source)
    assert footer.file_size - footer.data_end > 64 * 1024
    assert len(footer.leaves) == 2000


def test_wide_footers_are_parsed_quickly() -> None:
    """A hundred thousand column chunks take about a second; the limit here is generous."""
    table = pa.table({f"c{number}": [number] * 4 for number in range(1000)})
    data = in_memory(table, row_group_size=1).getvalue()
    size = struct.unpack("<I", data[-8:-4])[0]
    started = time.perf_counter()
    footer: Any = parse_footer(data[-8 - size : -8], len(data))
    assert sum(len(group.columns) for group in footer.row_groups) == 4000
    assert time.perf_counter() - started < 2
