"""Damaged footers and files: either a FooterError, or a copy that reads like the damaged file."""

from __future__ import annotations

import contextlib
import functools
import io
import random
import struct
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.parquet_files import content, in_memory, joined
from parketto.errors import FooterError
from parketto.parquet.footer import FOOTER_SHAPE, read_footer
from parketto.parquet.thrift import BINARY, I16, I32, I64, LIST, STRUCT, decode, decode_first, encode, key

CASES = 250
SWEEP_CASES = 20_000
# Likely boundary values.
EVIL = [0, 1, 3, 4, 127, 128, 2**15 - 1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -1, -4, -(2**31), -(2**63)]


@functools.cache
def base_file(writer: str) -> bytes:
    rows_ = pa.table(
        {
            "id": pa.array(range(300), pa.int64()),
            "s": [f"s{number % 13}" if number % 5 else None for number in range(300)],
            "l": pa.array([[number, None] if number % 3 else None for number in range(300)], pa.list_(pa.int32())),
            "st": [{"a": number, "b": {"c": "x"}} for number in range(300)],
        }
    )
    if writer == "pyarrow":
        blooms = {"bloom_filter_options": {"s": {"ndv": 20, "fpp": 0.1}}}
        options = {"row_group_size": 120, "write_page_index": True, "max_rows_per_page": 50, **blooms}
        return in_memory(rows_, **options, store_schema=False).getvalue()
    if writer == "polars":
        sink = io.BytesIO()
        pl.from_arrow(rows_).write_parquet(sink, row_group_size=120)
        return sink.getvalue()
    with tempfile.TemporaryDirectory() as folder:
        duckdb.sql(f"COPY (FROM rows_) TO '{folder}/fuzz.parquet' (FORMAT parquet)")
        return content(f"{folder}/fuzz.parquet")


WRITERS = ["pyarrow", "polars", "duckdb"]


def framed(data: bytes, footer: bytes) -> bytes:
    """The file with another footer."""
    size = struct.unpack("<I", data[-8:-4])[0]
    return data[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def footer_bytes(data: bytes) -> bytes:
    size = struct.unpack("<I", data[-8:-4])[0]
    return data[-8 - size : -8]


def flip(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(changed))
        changed[at] = chance.choice((chance.randrange(256), changed[at] ^ 1 << chance.randrange(8), 0, 255, 127))
    return bytes(changed)


def cut(chance: random.Random, data: bytes) -> bytes:
    start, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return chance.choice((data[:start], data[start:], data[:start] + data[end:], data[:end] + data[start:]))


def put_in(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.randrange(1, 20)) + data[at:]


def change_number(chance: random.Random, data: bytes) -> bytes:
    """Change numbers of the footer: it stays well formed, but is wrong."""
    fields = decode(data, FOOTER_SHAPE)
    places: list[tuple[dict[int, Any], int]] = []

    def collect(struct_fields: dict[int, Any]) -> None:
        for place, value in struct_fields.items():
            if place & 15 in (I16, I32, I64):
                places.append((struct_fields, place))
            elif isinstance(value, dict):
                collect(value)
            elif isinstance(value, list):
                for element in value:
                    collect(element)

    collect(fields)
    for _ in range(chance.choice((1, 1, 2))):
        holder, place = chance.choice(places)
        near = holder[place] + chance.choice((-1, 1, 4, -100, 1000))
        limit = {I16: 2**15, I32: 2**31, I64: 2**63}[place & 15]
        wanted = chance.choice((near, near, chance.choice(EVIL), chance.choice(places)[0].get(place, 0)))
        holder[place] = max(-limit, min(limit - 1, wanted))
    return encode(fields)


DAMAGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "flip footer": lambda chance, data: framed(data, flip(chance, footer_bytes(data))),
    "cut footer": lambda chance, data: framed(data, cut(chance, footer_bytes(data))),
    "insert into footer": lambda chance, data: framed(data, put_in(chance, footer_bytes(data))),
    "change a number": lambda chance, data: framed(data, change_number(chance, footer_bytes(data))),
    "flip file": flip,
    "cut file": cut,
}


def read_or_none(data: bytes) -> pa.Table | None:
    """The table that PyArrow reads, or None."""
    try:
        table = pq.read_table(io.BytesIO(data), use_threads=False)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return None
    return table


def check(data: bytes) -> str:
    """The outcome for a damaged file."""
    started = time.perf_counter()
    try:
        copy = joined([io.BytesIO(data), io.BytesIO(data)])
    except FooterError:
        return "refused"
    finally:
        assert time.perf_counter() - started < 5
    expected = read_or_none(data)
    if expected is None:
        return "unreadable"
    found = read_or_none(copy)
    assert found is not None
    assert found.equals(pa.concat_tables([expected, expected]))
    return "the same"


def run(writer: str, damage: str, cases: range) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for seed in cases:
        data = DAMAGES[damage](random.Random(seed), base_file(writer))
        outcomes[check(data)] += 1
    return outcomes


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("writer", WRITERS)
def test_damaged_files_are_refused_or_copied_unchanged(writer, damage) -> None:
    outcomes = run(writer, damage, range(CASES))
    assert outcomes["refused"] > 0
    assert sum(outcomes.values()) == CASES


@pytest.mark.sweep
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("writer", WRITERS)
def test_many_damaged_files_are_refused_or_copied_unchanged(writer, damage) -> None:
    print(writer, damage, dict(run(writer, damage, range(CASES, CASES + SWEEP_CASES))))


def test_every_truncation_of_a_footer_is_refused() -> None:
    data = base_file("polars")
    footer = footer_bytes(data)
    for size in range(len(footer)):
        with pytest.raises(FooterError):
            read_footer(io.BytesIO(framed(data, footer[:size])))


def test_damaged_footers_use_bounded_memory() -> None:
    data = base_file("pyarrow")
    tracemalloc.start()
    try:
        for seed in range(150):
            damaged = DAMAGES["flip footer"](random.Random(-seed), data)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with contextlib.suppress(FooterError):
                joined([io.BytesIO(damaged)])
            assert tracemalloc.get_traced_memory()[1] - before < 30 * len(data) + 1_000_000
    finally:
        tracemalloc.stop()


numbers = st.integers(-(2**63), 2**63 - 1)


def structs(depth: int) -> st.SearchStrategy[dict[int, Any]]:
    ids = st.one_of(st.integers(1, 20), st.integers(1, 32767))
    choices = [
        st.tuples(ids.map(lambda number: key(number, I64)), numbers),
        st.tuples(ids.map(lambda number: key(number, I32)), st.integers(-(2**31), 2**31 - 1)),
        st.tuples(ids.map(lambda number: key(number, I16)), st.integers(-(2**15), 2**15 - 1)),
        st.tuples(ids.map(lambda number: key(number, BINARY)), st.binary(max_size=200)),
    ]
    if depth:
        inner = structs(depth - 1)
        choices += [
            st.tuples(ids.map(lambda number: key(number, STRUCT)), inner),
            st.tuples(ids.map(lambda number: key(number, LIST)), st.lists(inner, max_size=20)),
        ]
    return st.lists(st.one_of(choices), max_size=8).map(dict)


@settings(max_examples=30, deadline=None)
@given(structs(2))
def test_random_structs_round_trip(fields) -> None:
    data = encode(fields)
    assert encode(decode(data)) == data


@pytest.mark.sweep
@settings(max_examples=500, deadline=None)
@given(structs(2))
def test_many_random_structs_round_trip(fields) -> None:
    data = encode(fields)
    assert encode(decode(data)) == data


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_decode_or_raise_footer_errors(data) -> None:
    try:
        fields, end = decode_first(data)
    except FooterError:
        return
    assert decode(encode(fields)) == fields
    assert end <= len(data)
