"""GeoParquet notes the area that a file covers, and readers skip files by it: it must hold for all rows, or go."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conftest import Place
from helpers import oracle

ABOUT = {"encoding": "WKB", "geometry_types": ["Point"]}


def write(place: Place, number: int, folder: str = "") -> None:
    geo = {"version": "1.1.0", "primary_column": "g", "columns": {"g": {**ABOUT, "bbox": [number, 0, number, 1]}}}
    rows = pa.table({"id": [2 * number, 2 * number + 1], "g": [b"near", b"here"], "n": [0, 1]})
    place.write_files({f"{folder}{number}.parquet": rows.replace_schema_metadata({"geo": json.dumps(geo)})})


def areas(place: Place) -> dict[tuple[int, ...], Any]:
    """For each file, by the ids of its rows, its area; the other notes are there in any case."""
    found = {}
    for path in oracle.data_files(place.root, place.fs):
        table = oracle.read_file(path, place.fs)
        about = json.loads(table.schema.metadata[b"geo"])["columns"]["g"]
        found[tuple(table.column("id").to_pylist())] = about.pop("bbox", None)
        assert about == ABOUT
    return found


def test_new_values_may_lie_outside(memory: Place) -> None:
    for number in range(2):
        write(memory, number)
    dataset = memory.dataset()
    dataset.update("n = 0", {"n": 5})
    dataset.delete("id = 1")
    assert areas(memory) == {(0,): [0, 0, 0, 1], (2, 3): [1, 0, 1, 1]}, "what has not changed still holds"
    dataset.update("id = 0", {"g": pc.scalar(b"far")})
    assert areas(memory) == {(0,): None, (2, 3): [1, 0, 1, 1]}


def test_a_merge_brings_rows_from_anywhere(memory: Place) -> None:
    for number in range(3):
        write(memory, number)
    memory.dataset().merge(pa.table({"id": [1, 9], "g": [b"far", b"away"], "n": [1, 1]}), "id")
    assert areas(memory) == {(0, 1): None, (2, 3): [1, 0, 1, 1], (4, 5): [2, 0, 2, 1], (9,): None}
    memory.dataset().merge(pa.table({"id": [2], "n": [7]}), "id", "update", update_columns=["n"], partial=True)
    assert areas(memory)[2, 3] == [1, 0, 1, 1]


def test_a_row_that_moves_takes_its_new_place_along(memory: Place) -> None:
    for number in range(2):
        write(memory, number, f"p={number}/")
    memory.dataset().update("id = 0", {"p": 1})
    assert areas(memory) == {(0,): [0, 0, 0, 1], (1,): [0, 0, 0, 1], (2, 3): [1, 0, 1, 1]}
    memory.dataset().update("id = 1", {"p": 1, "g": pc.scalar(b"far")})
    assert areas(memory) == {(0,): [0, 0, 0, 1], (1,): None, (2, 3): [1, 0, 1, 1]}


@pytest.mark.parametrize("files", [1, 2])
def test_a_repartition_mixes_files(memory: Place, files: int) -> None:
    for number in range(files):
        write(memory, number)
    memory.dataset().repartition("n")
    assert set(map(str, areas(memory).values())) == {"[0, 0, 0, 1]" if files == 1 else "None"}
