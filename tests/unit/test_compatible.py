"""Which files' row groups may be combined in one file, and why others may not."""

from __future__ import annotations

import io
import re
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.appending import append_files
from helpers.encrypted import FORMS, encrypted
from helpers.parquet_files import any_arrow, in_memory, joined
from parketto.errors import FooterError
from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.compatible import why_not_combinable
from parketto.parquet.footer import FOOTER_SHAPE, ChunkKeys, FileKeys, Footer, GroupKeys, read_footer
from parketto.parquet.thrift import BINARY, I32, STRUCT, decode, decode_first, encode, encode_structs, key

PLAIN = pa.schema([("id", pa.int64()), ("s", pa.string())])
SCHEMA_SHAPE = {**FOOTER_SHAPE, FileKeys.SCHEMA: {}}
CONVERTED, LOGICAL, NAME, REPETITION = key(6, I32), key(10, STRUCT), key(4, BINARY), key(3, I32)


def footer(schema: pa.Schema = PLAIN, **options: Any) -> Footer:
    return read_footer(in_memory(schema.empty_table(), store_schema=False, **options))


def noted(schema: pa.Schema = PLAIN, created_by: bytes | None = b"", **notes: str) -> Footer:
    """A footer with key-value metadata and, if given, another writer."""
    found = footer(schema)
    entries = {name.replace("__", ".").encode(): value.encode() for name, value in notes.items()}
    fields = dict(found.fields)
    fields[FileKeys.KEY_VALUES] = encode_structs(
        [encode({key(1, BINARY): name, key(2, BINARY): value}) for name, value in entries.items()]
    )
    if created_by is None:
        del fields[FileKeys.CREATED_BY]
    elif created_by:
        fields[FileKeys.CREATED_BY] = created_by
    return Footer(fields, found.file_size, found.data_end)


def with_schema(found: Footer, change: Any) -> Footer:
    fields = decode(encode(found.fields), SCHEMA_SHAPE)
    change(fields[FileKeys.SCHEMA])
    return Footer(decode(encode(fields), FOOTER_SHAPE), found.file_size, found.data_end)


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([("id", pa.int64())]),
        pa.schema([("s", pa.string()), ("id", pa.int64())]),
        pa.schema([("id", pa.int32()), ("s", pa.string())]),
        pa.schema([("id", pa.int64()), ("s", pa.binary())]),
        pa.schema([("id", pa.int64()), ("S", pa.string())]),
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())]),
        pa.schema([("id", pa.timestamp("us")), ("s", pa.string())]),
        pa.schema([("id", pa.uint64()), ("s", pa.string())]),
        pa.schema([("id", pa.list_(pa.int64())), ("s", pa.string())]),
        pa.schema([("id", pa.struct([("id", pa.int64())])), ("s", pa.string())]),
    ],
    ids=str,
)
def test_different_schemas_are_refused(other) -> None:
    assert "schemas" in why_not_combinable(footer(), footer(other))
    assert "schemas" in why_not_combinable(footer(other), footer())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.decimal128(10, 2), pa.decimal128(11, 2)),
        (pa.binary(3), pa.binary(4)),
        (pa.time32("ms"), pa.int32()),
        (pa.date32(), pa.int32()),
        (pa.int8(), pa.int16()),
        (pa.float16(), pa.binary(2)),
        (pa.list_(pa.int8()), pa.list_(pa.field("element", pa.int8(), nullable=False))),
        (pa.map_(pa.string(), pa.int8()), pa.list_(pa.struct([("key", pa.string()), ("value", pa.int8())]))),
    ],
    ids=str,
)
def test_different_types_are_refused(one, other) -> None:
    assert "schemas" in why_not_combinable(footer(pa.schema([("c", one)])), footer(pa.schema([("c", other)])))


def test_decimals_stored_as_integers_and_as_bytes_are_not_combined() -> None:
    schema = pa.schema([("c", pa.decimal128(9, 2))])
    assert why_not_combinable(footer(schema), footer(schema, store_decimal_as_integer=True)) is not None


def test_int96_and_int64_timestamps_are_not_combined() -> None:
    schema = pa.schema([("c", pa.timestamp("ns"))])
    assert why_not_combinable(footer(schema), footer(schema, use_deprecated_int96_timestamps=True)) is not None


def test_name_of_the_schema_root_is_ignored() -> None:
    def change(elements: list[Any]) -> None:
        elements[0][NAME] = b"spark_schema"
        elements[0].pop(REPETITION)

    assert why_not_combinable(footer(), with_schema(footer(), change)) is None


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.int8(),
        pa.uint16(),
        pa.int64(),
        pa.date32(),
        pa.decimal128(9, 2),
        pa.list_(pa.string()),
        pa.map_(pa.string(), pa.int32()),
    ],
    ids=str,
)
def test_converted_and_logical_types_are_equivalent(kind) -> None:
    def older(elements: list[Any]) -> None:
        for element in elements:
            element.pop(LOGICAL, None)

    def newer(elements: list[Any]) -> None:
        for element in elements:
            element.pop(CONVERTED, None)

    both = footer(pa.schema([("c", kind)]))
    for one in (both, with_schema(both, older), with_schema(both, newer)):
        for other in (both, with_schema(both, older), with_schema(both, newer)):
            assert why_not_combinable(one, other) is None


def test_timestamps_without_a_logical_type_are_not_combined_with_others() -> None:
    def older(elements: list[Any]) -> None:
        elements[1].pop(LOGICAL)

    both = footer(pa.schema([("c", pa.timestamp("us", "UTC"))]))
    old = with_schema(both, older)
    assert "'c'" in why_not_combinable(both, old)
    assert why_not_combinable(old, old) is None


def test_contradicting_converted_and_logical_types_are_refused() -> None:
    def change(elements: list[Any]) -> None:
        elements[2][CONVERTED] = 4

    assert "'s'" in why_not_combinable(footer(), with_schema(footer(), change))


DATES = pa.schema([("day", pa.date32())])
SPARK = {"org__apache__spark__version": "4.0.1"}


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (SPARK, SPARK, True),
        (SPARK, {"org__apache__spark__version": "3.5.0"}, True),
        (SPARK, {"org__apache__spark__version": "2.4.8"}, False),
        (SPARK, {"org__apache__spark__version": "3.0.3"}, False),
        (SPARK, {}, True),
        (SPARK, SPARK | {"org__apache__spark__legacyDateTime": ""}, False),
        (SPARK, SPARK | {"org__apache__spark__legacyINT96": ""}, False),
        (
            SPARK | {"org__apache__spark__timeZone": "UTC"},
            SPARK | {"org__apache__spark__timeZone": "Asia/Tokyo"},
            False,
        ),
        ({"writer__time__zone": "UTC"}, {"writer__time__zone": "Asia/Tokyo"}, False),
        ({"writer__date__proleptic": "true"}, {}, False),
        ({"author": "one"}, {"author": "two"}, True),
    ],
)
def test_files_with_different_calendars_or_time_zones_are_not_combined(one, other, together) -> None:
    for first, second in ((one, other), (other, one)):
        reason = why_not_combinable(noted(DATES, **first), noted(DATES, **second))
        assert (reason is None) == together
        # Without dates it does not matter.
        assert why_not_combinable(noted(**first), noted(**second)) is None


def test_geo_metadata_must_be_equal_except_for_bounding_boxes() -> None:
    assert "geo" in why_not_combinable(noted(geo="here"), noted(geo="there"))
    assert why_not_combinable(noted(geo="here"), noted(geo="here")) is None
    assert "geo" in why_not_combinable(noted(geo="{}"), noted())
    one, two = (noted(geo=f'{{"columns": {{"g": {{"bbox": [{n}, 0, 9, 1]}}}}}}') for n in range(2))
    assert why_not_combinable(one, two) is None, "bounding boxes may differ"


def test_damaged_key_value_metadata_is_refused_before_copying() -> None:
    source = in_memory(pa.table({"x": [1]}))
    found = read_footer(source)
    damaged = Footer({**found.fields, FileKeys.KEY_VALUES: b"\x5c\x18"}, found.file_size, found.data_end)
    sink = io.BytesIO()
    out = RowGroupAppender(sink)
    with pytest.raises(FooterError):
        out.append(source, damaged)
    assert out.is_open
    assert not sink.getvalue()


def test_temporal_columns_are_recognised_in_every_physical_type() -> None:
    for kind, options in (
        (pa.timestamp("us"), {}),
        (pa.timestamp("ns"), {"use_deprecated_int96_timestamps": True}),
        (pa.list_(pa.date32()), {}),
    ):
        assert footer(pa.schema([("c", kind)]), **options).leaves[0].temporal
    assert not footer(pa.schema([("c", pa.time32("ms"))])).leaves[0].temporal


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (b"parquet-mr version 1.13.1 (build abc)", b"parquet-cpp-arrow version 26.0.1", True),
        (b"parquet-mr version 1.10.0", b"Polars", False),
        (b"parquet-mr version 1.9.0 (build abc)", b"parquet-mr version 1.13.1", False),
        (b"parquet-mr version 1.9.0", b"parquet-mr version 1.9.0", True),
        (b"parquet-mr version 1.2.8", b"parquet-mr version 1.2.8", False),
        (b"parquet-cpp version 1.5.1-SNAPSHOT", b"parquet-cpp-arrow version 5.0.0", False),
        (b"parquet-cpp version 1.5.1-SNAPSHOT", b"parquet-cpp version 1.5.1-SNAPSHOT", True),
        (b"parquet-mr", b"parquet-mr version 1.13.1", False),
        (b"parquet-mr", b"parquet-mr", True),
        (None, b"parquet-mr version 1.13.1", False),
        (None, None, True),
        (b"DuckDB version v1.3.0 (build 71c5c07cdd)", b"parquet-rs version 53.1.0", True),
        (b"x version 99999999999999999999.1.1", b"parquet-rs version 53.1.0", False),
    ],
)
def test_files_of_writers_that_readers_treat_differently_are_not_combined(one, other, together) -> None:
    for first, second in ((one, other), (other, one)):
        reason = why_not_combinable(noted(created_by=first), noted(created_by=second))
        assert (reason is None) == together, reason


def test_int96_files_of_java_and_other_writers_are_not_combined() -> None:
    found = read_footer(
        in_memory(pa.table({"c": pa.array([1], pa.timestamp("ns"))}), use_deprecated_int96_timestamps=True)
    )

    def by(text: bytes) -> Footer:
        return Footer({**found.fields, FileKeys.CREATED_BY: text}, found.file_size, found.data_end)

    java, newer = by(b"parquet-mr version 1.13.1"), by(b"parquet-mr version 1.15.0")
    assert "INT96" in why_not_combinable(java, found)
    assert "INT96" in why_not_combinable(found, java)
    assert why_not_combinable(java, newer) is None


def test_created_by_stays_that_of_java_for_int96_and_is_valid_for_java_otherwise() -> None:
    sources = []
    for text in (b"parquet-mr version 1.13.1 (build a)", b"parquet-mr version 1.15.0 (build b)"):
        pair = []
        for kind in (pa.timestamp("ns"), pa.int64()):
            data = in_memory(pa.table({"c": pa.array([1], kind)}), use_deprecated_int96_timestamps=True).getvalue()
            size = int.from_bytes(data[-8:-4], "little")
            fields = decode(data[-8 - size : -8]) | {FileKeys.CREATED_BY: text}
            new = encode(fields)
            pair.append(io.BytesIO(data[: -8 - size] + new + len(new).to_bytes(4, "little") + b"PAR1"))
        sources.append(pair)
    int96 = pq.read_metadata(io.BytesIO(joined([sources[0][0], sources[1][0]]))).created_by
    plain = pq.read_metadata(io.BytesIO(joined([sources[0][1], sources[1][1]]))).created_by
    assert int96 == "parquet-mr version 1.13.1 (build a)"
    # The pattern that parquet-mr parses it with.
    parsed = re.fullmatch(r"(.*?)\s+version\s*(?:([^(]*?)\s*(?:\(\s*build\s*([^)]*?)\s*\))?)?", plain)
    assert parsed is not None
    assert parsed.group(1) == "parketto"
    assert re.match(r"\d+\.\d+\.\d+", parsed.group(2))


def test_different_arrow_schemas_are_refused_unless_declared_equal() -> None:
    small, large = (in_memory(pa.table({"s": pa.array(["a"], kind)})) for kind in (pa.string(), pa.large_string()))
    one, other = read_footer(small), read_footer(large)
    assert "Arrow" in why_not_combinable(one, other)
    assert "Arrow" in why_not_combinable(one, read_footer(in_memory(pa.table({"s": ["a"]}), store_schema=False)))
    assert why_not_combinable(one, other, same_arrow_schema=any_arrow) is None
    assert why_not_combinable(one, one) is None


def test_files_of_writers_with_different_physical_types_are_refused(tmp_path) -> None:
    rows_ = pa.table(
        {"price": pa.array([1], pa.decimal128(20, 2)), "at": pa.array([1], pa.timestamp("us", "UTC"))}
    )
    duckdb.sql(f"COPY (FROM rows_) TO '{tmp_path}/duckdb' (FORMAT parquet)")
    pl.from_arrow(rows_).write_parquet(tmp_path / "polars")
    pq.write_table(rows_, tmp_path / "pyarrow")
    found = {}
    for name in ("duckdb", "polars", "pyarrow"):
        with open(tmp_path / name, "rb") as file:
            found[name] = read_footer(file)
    assert "'price'" in why_not_combinable(found["pyarrow"], found["duckdb"], same_arrow_schema=any_arrow)


def test_columns_stored_in_other_files_are_refused() -> None:
    source = in_memory(pa.table({"c": [1]}))
    found = read_footer(source)
    found.fields[FileKeys.ROW_GROUPS][0][GroupKeys.COLUMNS][0][ChunkKeys.FILE_PATH] = b"other.parquet"
    assert "other files" in why_not_combinable(found, found)


def test_different_column_orders_are_refused() -> None:
    one = footer()
    other = Footer(
        {**one.fields, FileKeys.COLUMN_ORDERS: encode_structs([encode({key(2, STRUCT): {}})] * 2)},
        one.file_size,
        one.data_end,
    )
    assert "orders" in why_not_combinable(one, other)


TWO_COLUMNS = pa.table({"x": [1], "y": [2]})


@pytest.mark.parametrize("form", FORMS)
def test_encrypted_files_are_refused(form) -> None:
    """Pages are encrypted for their position in their file: copied elsewhere, no key decrypts them."""
    found = io.BytesIO(encrypted(TWO_COLUMNS, form))
    with pytest.raises(FooterError, match="encrypted"):
        read_footer(found)
    with pytest.raises(FooterError, match="encrypted"):
        append_files([in_memory(TWO_COLUMNS), found], io.BytesIO())


@pytest.mark.parametrize("form", [form for form, options in FORMS.items() if options.get("plaintext_footer")])
@pytest.mark.parametrize("first", [True, False])
def test_encrypted_columns_are_refused_even_if_the_footer_declares_no_encryption(form, first) -> None:
    """The footer has neither algorithm nor signing key; only the columns have encryption metadata."""
    data = encrypted(TWO_COLUMNS, form)
    size = int.from_bytes(data[-8:-4], "little")
    fields, _ = decode_first(data[-8 - size : -8], FOOTER_SHAPE)
    del fields[FileKeys.ENCRYPTION], fields[FileKeys.SIGNING_KEY]
    footer = Footer(fields, len(data), len(data) - 8 - size)
    sink, plain = io.BytesIO(), in_memory(TWO_COLUMNS)
    out = RowGroupAppender(sink)
    if not first:
        out.append(plain, read_footer(plain))
    before = sink.getvalue()
    with pytest.raises(FooterError, match="encrypted"):
        out.append(io.BytesIO(data), footer)
    assert sink.getvalue() == before
    assert out.is_open
