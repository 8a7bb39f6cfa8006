"""GeoParquet notes the area that a file covers, and readers skip files by it: it must hold for all rows, or go."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from helpers.parquet_files import in_memory, joined
from parketto.engines.base import Engine
from parketto.parquet.footer import read_footer
from parketto.parquet.geo_area import merged_geo, without_any_bbox
from parketto.planning.copy_policy import REWRITES

ABOUT = {"encoding": "WKB", "geometry_types": ["Point"]}


def write(place: Place, number: int, folder: str = "", row_group_size: int | None = None, **about: Any) -> None:
    about = {**ABOUT, "bbox": [number, 0, number, 1], **about}
    geo = {"version": "1.1.0", "primary_column": "g", "columns": {"g": about}}
    rows = pa.table({"id": [2 * number, 2 * number + 1], "g": [b"near", b"here"], "n": [0, 1]})
    noted_rows = rows.replace_schema_metadata({"geo": json.dumps(geo)})
    place.write_files({f"{folder}{number}.parquet": noted_rows}, row_group_size=row_group_size)


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


def test_row_groups_beside_new_values_are_copied(memory: Place) -> None:
    """That the new file has no area keeps nothing from standing in it."""
    write(memory, 0, row_group_size=1)
    (path,) = oracle.data_files(memory.root, memory.fs)
    before = memory.fs.cat_file(path)
    memory.dataset().update("id = 0", {"g": pc.scalar(b"far")})
    assert areas(memory) == {(0, 1): None}
    after = memory.fs.cat_file(*oracle.data_files(memory.root, memory.fs))
    for column in read_footer(io.BytesIO(before)).row_groups[1].columns:
        assert before[column.start : column.start + column.size] in after
    assert pq.read_metadata(io.BytesIO(after)).num_row_groups == 2


def test_a_merge_brings_rows_from_anywhere(memory: Place) -> None:
    for number in range(3):
        write(memory, number)
    memory.dataset().merge(pa.table({"id": [1, 9], "g": [b"far", b"away"], "n": [1, 1]}), "id")
    assert areas(memory) == {(0, 1): None, (2, 3): [1, 0, 1, 1], (4, 5): [2, 0, 2, 1], (9,): None}
    memory.dataset().merge(
        pa.table({"id": [2], "n": [7]}), "id", strategy="update", update_columns=["n"], partial=True
    )
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


@pytest.mark.parametrize("rewrite", REWRITES)
def test_compaction_unites_areas(place: Place, engine: Engine, rewrite: Any) -> None:
    for number in range(3):
        write(place, number)
    dataset = place.dataset(engine=engine)
    dataset.compact(rewrite=rewrite)
    assert areas(place) == {(0, 1, 2, 3, 4, 5): [0, 0, 2, 1]}
    write(place, 3, bbox=[-5.5, 0, 3, 0.5])
    dataset.compact(rewrite=rewrite)
    ((ids, area),) = areas(place).items()
    assert sorted(ids) == list(range(8))
    assert area == [-5.5, 0, 3, 1]
    assert dataset.compact(rewrite=rewrite)["planned_rewrites"] == []


@pytest.mark.parametrize("rewrite", REWRITES)
def test_an_area_that_is_not_certain_is_left_out(memory: Place, rewrite: Any) -> None:
    """From Fiji, say, which lies on both sides of the antimeridian."""
    write(memory, 0)
    write(memory, 1, bbox=[177, -20, -178, -16])
    memory.dataset().compact(rewrite=rewrite)
    assert areas(memory) == {(0, 1, 2, 3): None}


def test_new_layouts_unite_areas(memory: Place) -> None:
    for number in range(3):
        write(memory, number)
    memory.dataset().optimize(["id", "n"])
    assert [*areas(memory).values()] == [[0, 0, 2, 1]]


def test_geometries_that_are_read_differently_stay_apart(memory: Place) -> None:
    write(memory, 0)
    write(memory, 1, encoding="point")
    write(memory, 2)
    memory.dataset().compact()
    found = [
        json.loads(schema.metadata[b"geo"])["columns"]["g"] for schema in oracle.schemas(memory.root, memory.fs)
    ]
    assert sorted((about["encoding"], about["bbox"]) for about in found) == [
        ("WKB", [0, 0, 2, 1]),
        ("point", [1, 0, 1, 1]),
    ]


def noted(**boxes: Any) -> bytes:
    """Notes on columns with these boxes; None: without."""
    columns = {name: {**ABOUT, **({} if box is None else {"bbox": box})} for name, box in boxes.items()}
    return json.dumps({"version": "1.1.0", "columns": columns}).encode()


@pytest.mark.parametrize(
    ("boxes", "expected"),
    [
        ([[0, 1, 2, 3], [-1, 2, 1, 9.5]], [-1, 1, 2, 9.5]),
        ([[0, 1, 2, 3, 4, 5], [1, 0, 9, 2, 5, 10]], [0, 0, 2, 3, 5, 10]),
        ([[0, 0, 1, 1], [0, 0, 1, 1]], [0, 0, 1, 1]),
        ([[170, 0, -170, 1], [170, 0, -170, 1]], [170, 0, -170, 1]),
        ([[0, 0, 1, 1], None], None),
        ([None, [0, 0, 1, 1]], None),
        ([[0, 0, 1, 1], [0, 0, 0, 1, 1, 1]], None),
        ([[0, 0, 1, 1], [170, 0, -170, 1]], None),
        ([[0, 0, 1, 1], [0, 0, 1]], None),
        ([[0, 0, 1, 1], []], None),
        ([[0, 0, 1, 1], "0011"], None),
        ([[0, 0, 1, 1], [0, 0, 9, True]], None),
        ([[0, 0, 1, 1], [0, 0, 1, None]], None),
        ([[0, 0, 1, 1], [float("nan")] * 4], None),
        ([[0, 0, 1, 1], [0, 0, float("inf"), 1]], None),
        pytest.param([[0, 0, 1, 1], [0, 0, 10**400, 1]], [0, 0, 10**400, 1], id="beyond floats"),
    ],
    ids=str,
)
def test_boxes_around_boxes(boxes: list[Any], expected: Any) -> None:
    texts = [noted(g=box, other=[0, 0, 1, 1]) for box in boxes]
    assert len({without_any_bbox(text) for text in texts}) == 1
    assert json.loads(merged_geo(texts)) == json.loads(noted(g=expected, other=[0, 0, 1, 1]))


@pytest.mark.parametrize(
    "words", [b"here", b"[]", b'{"columns": 5}', b'{"columns": {"g": 5}}', b"\xff", b"", b"[" * 99999]
)
def test_words_that_are_no_notes_stay_as_they_are(words: bytes) -> None:
    assert without_any_bbox(words) == words
    assert merged_geo([words, words]) == words


def test_row_groups_that_are_appended_unite_areas() -> None:
    """Without anybody who says what the file is to note."""
    files = [
        in_memory(pa.table({"g": [b"here"]}).replace_schema_metadata({"geo": noted(g=[n, 0, n, 1]), "by": "me"}))
        for n in range(3)
    ]
    found = pq.read_metadata(pa.BufferReader(joined(files, same_arrow_schema=lambda *_: True))).metadata
    assert json.loads(found[b"geo"]) == json.loads(noted(g=[0, 0, 2, 1]))
    assert found[b"by"] == b"me"
