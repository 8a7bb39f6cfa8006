"""Rows of every type that Parquet and Arrow have."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

from helpers import oracle


def exotic(seed: int) -> pa.Table:
    """Two rows with a column of every type of Parquet and Arrow, with NULLs wherever they are allowed."""
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
