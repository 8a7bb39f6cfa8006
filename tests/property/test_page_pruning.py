"""Random tables in small pages and random conditions: reading single pages returns the rows of a full read."""

from __future__ import annotations

import io
import itertools
import random
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.conditions import COLUMNS, conditions
from parketto import Dataset, InvalidArgument
from parketto.expressions.conditions import predicate
from parketto.parquet import page_reader, reader, row_ranges

FS = fsspec.filesystem("memory")
_numbers = itertools.count()
NESTED = {
    "pairs": pa.list_(pa.struct({"x": pa.int64(), "y": pa.string()})),
    "point": pa.struct({"x": pa.int32(), "inner": pa.struct({"z": pa.string()})}),
    "map": pa.map_(pa.string(), pa.int32()),
    "deep": pa.list_(pa.list_(pa.int16())),
    "word": pa.dictionary(pa.int16(), pa.string()),
    "point.x": pa.int64(),
}


@pytest.fixture(autouse=True)
def pages_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are read like large ones, and an error in a page is not hidden by a full read."""
    monkeypatch.setattr(reader, "_MIN_PAGED_BYTES", 0)
    monkeypatch.setattr(reader, "_PAGE_ERRORS", ())
    monkeypatch.setattr(page_reader.PageReader, "pays", lambda *_: True)
    monkeypatch.setattr(page_reader, "_PAGE_ROWS", 7)
    monkeypatch.setattr(page_reader, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(row_ranges, "_BLOCK_ROWS", 8)


def nested_value(chance: random.Random, name: str) -> Any:
    number = chance.randrange(100)
    texts = ["", "a", "longer text", None]
    match name:
        case "pairs":
            return [{"x": n, "y": chance.choice(texts)} if n % 3 else None for n in range(number % 5)]
        case "point":
            return {"x": number, "inner": chance.choice([None, {"z": chance.choice(texts)}])}
        case "map":
            return [(str(n), chance.choice([n, None])) for n in range(number % 4)]
        case "deep":
            return [[n] * (n % 3) for n in range(number % 4)]
        case "word":
            return f"word {number % 20}"
    return number


def random_table(chance: random.Random) -> pa.Table:
    size, nulls = chance.randint(1, 300), chance.choice([0, 0.1, 0.9])
    stretch = chance.choice([1, 20])  # rows in a row with the same value, so that pages differ
    columns = {}
    for name, (kind, values) in COLUMNS.items():
        found = [None if chance.random() < nulls else chance.choice(values) for _ in range(size)]
        columns[name] = pa.array([found[at // stretch * stretch] for at in range(size)], kind)
    dotted = chance.random() < 0.2  # Arrow reads such a column along with "point"
    for name, kind in NESTED.items():
        if name == "point.x" and not dotted:
            continue
        cells = [None if chance.random() < nulls else nested_value(chance, name) for _ in range(size)]
        columns[name] = pa.array(cells, kind)
    table = pa.table(columns)
    return table.sort_by(chance.choice(["i", "s", "t"])) if chance.random() < 0.7 else table


def drifted(table: pa.Table, chance: random.Random) -> pa.Table:
    """The same rows in other types and another order, without some column."""
    for name, kind in {"i": pa.int8(), "s": pa.dictionary(pa.int32(), pa.string()), "word": pa.string()}.items():
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(kind))
    names = [name for name in table.schema.names if name != chance.choice(["d", "pairs", "f", ""])]
    return table.select(chance.sample(names, len(names)))


def write(path: str, table: pa.Table, chance: random.Random) -> None:
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        row_group_size=chance.choice([50, 1000]),
        write_batch_size=chance.choice([1, 5, 16]),
        data_page_size=chance.choice([1, 40, 200]),
        data_page_version=chance.choice(["1.0", "2.0"]),
        use_dictionary=chance.choice([True, False, ["s", "word", "i"]]),
        dictionary_pagesize_limit=chance.choice([8, 64, 1_000_000]),
        compression=chance.choice(["none", "snappy", "zstd"]),
        write_page_checksum=chance.random() < 0.5,
        write_page_index=chance.random() < 0.9,
    )
    FS.pipe_file(path, sink.getvalue())


def check(seed: int, where: str) -> None:
    chance = random.Random(seed)
    root = f"/pages-{next(_numbers)}/events"
    table = random_table(chance)
    write(f"{root}/a.parquet", table, chance)
    if chance.random() < 0.5:
        write(f"{root}/b.parquet", drifted(random_table(chance), chance), chance)
    dataset = Dataset(root, "pyarrow", filesystem=FS)
    columns = chance.choice([None, ["i"], ["pairs", "s"], ["word", "map", "point"], ["f", "deep"]])
    try:
        whole = dataset.read()
        matching = predicate(where, whole.schema)
        try:
            parts = [batch.filter(matching.matches(batch)) for batch in whole.to_batches()]
        except InvalidArgument:  # a value is out of range in some row, which need not be read
            return
        expected = pa.Table.from_batches(parts, whole.schema)
        found = dataset.read(columns, where=where)
        assert repr(found.to_pylist()) == repr(expected.select(columns or whole.schema.names).to_pylist())
        assert found.schema == (whole.schema if columns is None else whole.select(columns).schema)
        assert dataset.count(where) == expected.num_rows
    finally:
        FS.rm(root.rpartition("/")[0], recursive=True)


SEEDS = st.integers(0, 10**9)


@settings(
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(SEEDS, conditions())
def test_rows_of_single_pages_are_those_of_a_full_read(seed: int, where: str) -> None:
    check(seed, where)


@pytest.mark.sweep
@settings(
    deadline=None,
    max_examples=5000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(SEEDS, conditions())
def test_rows_of_single_pages_sweep(seed: int, where: str) -> None:
    check(seed, where)
