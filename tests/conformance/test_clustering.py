"""Laying rows out along a curve, the same on every engine: what files say of it is true, no work is redone."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from parketto.engines.base import Engine

RECORD = b"parketto.clustering"
CURVES = ("hilbert", "zorder")


def visits(rows: int, seed: int, *, first: int = 0, low: float = 0.0, high: float = 1.0) -> pa.Table:
    chance = np.random.default_rng(seed)
    users = (low + (high - low) * chance.random(rows)) * 100_000
    words = (low + (high - low) * chance.random(rows)) * 1_000_000
    return pa.table(
        {
            "user": pa.array(users.astype(np.int64), mask=chance.random(rows) < 0.02),
            "word": [f"the same beginning {int(number):06d}" for number in words],
            "n": np.arange(rows) + first,
        }
    )


def parquet(place: Place, name: str) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(bytes(place.fs.cat_file(f"{place.root}/{name}"))))


def record(place: Place, name: str) -> dict[str, Any] | None:
    found = (parquet(place, name).metadata.metadata or {}).get(RECORD)
    return None if found is None else json.loads(found)


def declared(file: pq.ParquetFile, number: int) -> list[str]:
    group = file.metadata.row_group(number)
    return [group.column(each.column_index).path_in_schema for each in group.sorting_columns]


def in_order(table: pa.Table, columns: list[str]) -> bool:
    lists = [table.column(name).to_pylist() for name in columns]
    keys = [
        [
            (value is None, value is not None and value != value, 0 if value is None or value != value else value)
            for value in row
        ]
        for row in zip(*lists, strict=True)
    ]
    return keys == sorted(keys)


def check_declared_order(place: Place) -> int:
    """Whatever row groups say about the order of their rows is true; returns how many say something."""
    found = 0
    for name in place.files():
        file = parquet(place, name)
        for number in range(file.num_row_groups):
            columns = declared(file, number)
            found += bool(columns)
            assert in_order(file.read_row_group(number), columns), (name, number)
    return found


def row_groups(place: Place) -> list[tuple[str, pa.Table]]:
    return [
        (name, parquet(place, name).read_row_group(number))
        for name in place.files()
        for number in range(parquet(place, name).num_row_groups)
    ]


def sizes(place: Place) -> dict[str, int]:
    return {name: place.fs.size(f"{place.root}/{name}") for name in place.files()}


@pytest.mark.parametrize("curve", CURVES)
def test_files_tell_the_truth_about_their_layout(place: Place, engine: Engine, curve: str) -> None:
    place.write_files(
        {f"day={day}/f{n}.parquet": visits(4000, day * 10 + n) for day in (1, 2) for n in range(3)},
        compression="zstd",
    )
    before, schemas = place.rows(), oracle.schemas(place.root, place.fs)
    stats = place.dataset(engine=engine).optimize(["user", "word"], target_rows_per_file=3000, curve=curve)
    assert place.rows() == before, "partitions are part of a row"
    assert all(schema.equals(schemas[0], check_metadata=True) for schema in oracle.schemas(place.root, place.fs))
    for name in place.files():
        file = parquet(place, name)
        assert file.metadata.num_rows <= 3000
        found = record(place, name)
        assert found is not None
        assert (found["columns"], found["curve"]) == (["user", "word"], curve)
        assert [declared(file, number) for number in range(file.num_row_groups)] == [
            ["user", "word"]
        ] * file.num_row_groups
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert check_declared_order(place) >= 8
    assert (stats["curve"], stats["zorder_columns"]) == (curve, ["user", "word"])
    assert stats["compacted_file_count"] == 6
    assert 8 <= stats["after_file_count"] <= 12
    assert stats["unchanged_because"] is None


@pytest.mark.parametrize("edit", ["delete", "update", "update of the columns", "merge"])
def test_edited_files_still_tell_the_truth(place: Place, engine: Engine, edit: str) -> None:
    """A file of many row groups, each sorted for itself: none of them may end up in another one."""
    place.write_files({"f.parquet": visits(20_000, 1)})
    dataset = place.dataset(engine=engine)
    dataset.optimize(["user", "word"], target_mb_per_file=0.2)
    groups = len(row_groups(place))
    assert groups > 8
    if edit == "delete":
        dataset.delete("n % 10 = 3")
    elif edit == "update":
        dataset.update("n % 10 = 3", {"n": -1})
    elif edit == "update of the columns":
        dataset.update("n % 10 = 3", {"user": 5})
    else:
        dataset.merge(visits(50, 2), ["n"])
    check_declared_order(place)
    assert len(row_groups(place)) >= groups - 1, "edits leave row groups as they were cut"
    rows = place.rows()
    dataset.optimize(["user", "word"], target_mb_per_file=0.2)
    assert place.rows() == rows
    check_declared_order(place)
    assert dataset.optimize(["user", "word"], target_mb_per_file=0.2)["compacted_file_count"] == 0
