"""The schema is sacred: types, order, nullability and metadata come out exactly as they went in."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from parketto.engines.base import Engine


def exotic(seed: int) -> pa.Table:
    """Two rows of everything that Parquet and Arrow have, with NULLs wherever they may stand."""
    columns: list[tuple[pa.Field, list[Any]]] = [
        (pa.field("u8", pa.uint8()), [255, None]),
        (pa.field("u16", pa.uint16()), [65535, None]),
        (pa.field("u32", pa.uint32()), [2**32 - 1, None]),
        (pa.field("u64", pa.uint64()), [2**64 - 1, None]),
        (pa.field("i8", pa.int8()), [-128, None]),
        (pa.field("f16", pa.float16()), [1.5, None]),
        (pa.field("ts_ns", pa.timestamp("ns")), [2**62 + seed, None]),
        (pa.field("ts_us_tz", pa.timestamp("us", "Europe/Berlin")), [seed, None]),
        (pa.field("ts_ms", pa.timestamp("ms")), [seed, None]),
        (pa.field("date", pa.date32()), [dt.date(1, 1, 1), None]),
        (pa.field("t32", pa.time32("ms")), [dt.time(1, 2, 3), None]),
        (pa.field("t64", pa.time64("ns")), [seed, None]),
        (pa.field("duration", pa.duration("ns")), [seed, None]),
        (pa.field("d38", pa.decimal128(38, 10)), [Decimal("1234567890123456789012345678.0123456789"), None]),
        (pa.field("d256", pa.decimal256(60, 3)), [Decimal("9" * 50 + ".123"), None]),
        (pa.field("fixed", pa.binary(3)), [b"abc", None]),
        (pa.field("large_string", pa.large_string()), ["x" * seed, None]),
        (pa.field("large_binary", pa.large_binary()), [b"\x00\xff", None]),
        (pa.field("view", pa.string_view()), ["a longer text than twelve bytes", None]),
        (pa.field("dictionary", pa.dictionary(pa.int32(), pa.string())), [f"word {seed}", None]),
        (pa.field("small_dictionary", pa.dictionary(pa.int8(), pa.string(), ordered=True)), [f"w{seed}", None]),
        (pa.field("list", pa.list_(pa.field("element", pa.int16()))), [[1, None], None]),
        (
            pa.field("nested", pa.list_(pa.field("element", pa.list_(pa.field("element", pa.string()))))),
            [[["a"], []], None],
        ),
        (pa.field("large_list", pa.large_list(pa.field("element", pa.int8()))), [[seed], None]),
        (pa.field("fixed_list", pa.list_(pa.field("element", pa.float32()), 2)), [[1.0, 2.0], [3.0, 4.0]]),
        (
            pa.field("struct", pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.string())])),
            [{"x": seed, "y": None}, {"x": 1, "y": "z"}],
        ),
        (pa.field("map", pa.map_(pa.string(), pa.int32())), [[("k", seed), ("l", None)], []]),
        (pa.field("nothing", pa.null()), [None, None]),
        (pa.field("bool", pa.bool_()), [True, None]),
        (pa.field("required", pa.int64(), nullable=False), [10 - 2 * seed, 11 - 2 * seed]),
        (pa.field("noted", pa.int64(), metadata={"unit": "metres", "PARQUET:field_id": "77"}), [seed, None]),
        (pa.field("a.b", pa.int64()), [seed, 2]),
        (pa.field("with space; and 'quotes\"", pa.int64()), [seed, 2]),
    ]
    if not oracle.parquet_has_views():
        columns = [(field, cells) for field, cells in columns if field.name != "view"]
    schema = pa.schema([field for field, _ in columns], metadata={"owner": "somebody", "ünï": "cödé"})
    return pa.table([pa.array(values, field.type) for field, values in columns], schema=schema)


def plain(table: pa.Table) -> pa.Table:
    """Dictionaries decoded: equal values may have different dictionaries, types are compared elsewhere."""
    for position, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(position, field.name, table.column(position).cast(field.type.value_type))
    return table


def row_by_row(tables: list[pa.Table]) -> dict[int, pa.Table]:
    """Every row as a table of its own, by its required (and here unique) column: some types cannot be sorted."""
    rows = [plain(table.slice(n, 1)).combine_chunks() for table in tables for n in range(table.num_rows)]
    return {row.column("required")[0].as_py(): row for row in rows}


@pytest.mark.parametrize("operation", ["compact", "optimize", "optimize by two", "split"])
def test_exotic_schemas_survive(place: Place, engine: Engine, operation: str) -> None:
    place.write_files({f"f{n}.parquet": exotic(n) for n in range(4)})
    before = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    dataset = place.dataset(engine=engine)
    if operation == "compact":
        dataset.compact()
    elif operation == "split":
        dataset.compact(target_rows_per_file=1)
    else:
        dataset.optimize(["required"] if operation == "optimize" else ["a.b", "required"])
    after = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    assert all(table.schema.equals(before[0].schema, check_metadata=True) for table in after)
    expected, found = row_by_row(before), row_by_row(after)
    assert expected.keys() == found.keys()
    assert all(found[key].equals(row, check_metadata=True) for key, row in expected.items())
    if operation == "optimize":
        assert list(found) == sorted(found)
    kept = [pq.read_metadata(io.BytesIO(place.fs.cat_file(p))) for p in oracle.data_files(place.root, place.fs)]
    assert all(footer.metadata[b"owner"] == b"somebody" for footer in kept)


def footer_of(place: Place) -> pq.FileMetaData:
    (path,) = oracle.data_files(place.root, place.fs)
    return pq.read_metadata(io.BytesIO(place.fs.cat_file(path)))


def test_parquet_schema_is_the_same_to_the_letter(place: Place, engine: Engine) -> None:
    """Not only what Arrow makes of it: field ids, repetition, logical types, names of list elements."""
    place.write_files({f"f{n}.parquet": exotic(n) for n in range(2)}, use_compliant_nested_type=False)
    path = oracle.data_files(place.root, place.fs)[0]
    before = pq.read_metadata(io.BytesIO(place.fs.cat_file(path)))
    place.dataset(engine=engine).compact()
    after = footer_of(place)
    assert str(after.schema).split("\n")[1:] == str(before.schema).split("\n")[1:]
    assert after.metadata == before.metadata


def test_files_without_an_arrow_schema_do_not_get_one(place: Place, engine: Engine) -> None:
    """What other programs wrote stays as they wrote it."""
    table = pa.table({"id": pa.array([1, 2], pa.int32()), "day": pa.array([1, 2], pa.date32())})
    place.write_files({f"f{n}.parquet": table for n in range(2)}, store_schema=False)
    place.dataset(engine=engine).compact()
    assert b"ARROW:schema" not in (footer_of(place).metadata or {})


def test_int96_timestamps_stay_int96(place: Place, engine: Engine) -> None:
    """Spark's own default, and the only form that some readers take."""
    table = pa.table({"at": pa.array([1_700_000_000_000_000, None], pa.timestamp("us")), "n": [1, 2]})
    place.write_files(
        {f"f{n}.parquet": table for n in range(2)}, use_deprecated_int96_timestamps=True, store_schema=False
    )
    before = place.rows()
    place.dataset(engine=engine).compact()
    assert footer_of(place).schema.column(0).physical_type == "INT96"
    assert place.rows() == before


def test_decimals_stored_as_integers_stay_so(place: Place, engine: Engine) -> None:
    table = pa.table({"price": pa.array([Decimal("1.25"), None], pa.decimal128(9, 2))})
    place.write_files(
        {f"f{n}.parquet": table for n in range(2)}, store_decimal_as_integer=True, store_schema=False
    )
    before = place.rows()
    place.dataset(engine=engine).compact()
    assert footer_of(place).schema.column(0).physical_type == "INT32"
    assert place.rows() == before


def test_differing_metadata_is_no_different_schema(place: Place, engine: Engine) -> None:
    """pandas writes the range of its index into every file: such files still belong together."""
    for n in range(3):
        table = pa.table({"id": [n]}).replace_schema_metadata({"pandas": f'{{"stop": {n}}}', f"only-{n}": "x"})
        place.write_files({f"f{n}.parquet": table})
    stats = place.dataset(engine=engine).compact()
    assert stats["after_file_count"] == 1
    found = footer_of(place).metadata
    assert found[b"pandas"] == b'{"stop": 0}', "where files differ, the first one's entry stands"
    assert {b"only-0", b"only-1", b"only-2"} <= set(found)


def test_dictionaries_that_differ_from_file_to_file(place: Place, engine: Engine) -> None:
    for n in range(4):
        words = pa.array([f"word {n} {i % 3}" for i in range(50)]).dictionary_encode()
        place.write_files({f"f{n}.parquet": pa.table({"word": words, "n": range(50)})})
    before = place.rows()
    dataset = place.dataset(engine=engine)
    dataset.compact()
    assert place.rows() == before
    dataset.optimize(["word", "n"])
    assert place.rows() == before
    assert pa.types.is_dictionary(oracle.schemas(place.root, place.fs)[0].field("word").type)


def test_rewritten_files_carry_statistics_and_page_index(place: Place, engine: Engine) -> None:
    place.write_files({f"f{n}.parquet": pa.table({"id": [n, n + 1]}) for n in range(2)})
    place.dataset(engine=engine).optimize(["id"])
    group = footer_of(place).row_group(0)
    assert (group.column(0).statistics.min, group.column(0).statistics.max) == (0, 2)
    assert group.column(0).has_column_index
    assert group.column(0).has_offset_index
    assert [column.column_index for column in group.sorting_columns] == [0]
