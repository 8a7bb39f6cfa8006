"""GeoParquet bounding boxes: readers skip files by them, so they must cover all rows or be removed."""

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
    """The bounding box of each file, by the ids of its rows; other GeoParquet metadata must be unchanged."""
    found = {}
    for path in oracle.data_files(place.root, place.fs):
        table = oracle.read_file(path, place.fs)
        about = json.loads(table.schema.metadata[b"geo"])["columns"]["g"]
        found[tuple(table.column("id").to_pylist())] = about.pop("bbox", None)
        assert about == ABOUT
    return found


def test_updated_geometries_drop_the_bbox(memory: Place) -> None:
    for number in range(2):
        write(memory, number)
    dataset = memory.dataset()
    dataset.update("n = 0", {"n": 5}, pack=False)
    dataset.delete("id = 1")
    assert areas(memory) == {(0,): [0, 0, 0, 1], (2, 3): [1, 0, 1, 1]}, (
        "the bbox is kept where no geometry has changed"
    )
    dataset.update("id = 0", {"g": pc.scalar(b"far")})
    assert areas(memory) == {(0,): None, (2, 3): [1, 0, 1, 1]}


def test_the_bbox_of_packed_files_covers_all_of_them(memory: Place) -> None:
    for number in range(2):
        write(memory, number)
    dataset = memory.dataset()
    dataset.update("n = 0", {"n": 5})
    assert areas(memory) == {(0, 1, 2, 3): [0, 0, 1, 1]}
    dataset.update("id = 0", {"g": pc.scalar(b"far")})
    assert areas(memory) == {(0, 1, 2, 3): None}


def test_row_groups_without_updated_geometries_are_copied(memory: Place) -> None:
    """A file without a bbox may contain row groups that are copied from a file with one."""
    write(memory, 0, row_group_size=1)
    (path,) = oracle.data_files(memory.root, memory.fs)
    before = memory.fs.cat_file(path)
    memory.dataset().update("id = 0", {"g": pc.scalar(b"far")})
    assert areas(memory) == {(0, 1): None}
    after = memory.fs.cat_file(*oracle.data_files(memory.root, memory.fs))
    for column in read_footer(io.BytesIO(before)).row_groups[1].columns:
        assert before[column.start : column.start + column.size] in after
    assert pq.read_metadata(io.BytesIO(after)).num_row_groups == 2


def test_merged_geometries_drop_the_bbox(memory: Place) -> None:
    for number in range(3):
        write(memory, number)
    memory.dataset().merge(pa.table({"id": [1, 9], "g": [b"far", b"away"], "n": [1, 1]}), "id")
    assert areas(memory) == {(0, 1): None, (2, 3): [1, 0, 1, 1], (4, 5): [2, 0, 2, 1], (9,): None}
    memory.dataset().merge(
        pa.table({"id": [2], "n": [7]}), "id", strategy="update", update_columns=["n"], partial=True
    )
    assert areas(memory)[2, 3] == [1, 0, 1, 1]


def test_rows_that_change_partition_keep_the_bbox_unless_geometries_change(memory: Place) -> None:
    for number in range(2):
        write(memory, number, f"p={number}/")
    memory.dataset().update("id = 0", {"p": 1})
    assert areas(memory) == {(0,): [0, 0, 0, 1], (1,): [0, 0, 0, 1], (2, 3): [1, 0, 1, 1]}
    memory.dataset().update("id = 1", {"p": 1, "g": pc.scalar(b"far")})
    assert areas(memory) == {(0,): [0, 0, 0, 1], (1,): None, (2, 3): [1, 0, 1, 1]}


def test_the_bbox_of_rows_that_change_partition_covers_all_of_their_files(memory: Place) -> None:
    for number in range(2):
        write(memory, number, "p=1/")
    memory.dataset().update("id IN (1, 2)", {"p": 2})
    assert areas(memory) == {(0, 3): [0, 0, 1, 1], (1, 2): [0, 0, 1, 1]}


@pytest.mark.parametrize("files", [1, 2])
def test_repartition_drops_the_bbox_if_files_are_mixed(memory: Place, files: int) -> None:
    for number in range(files):
        write(memory, number)
    memory.dataset().repartition("n")
    assert set(map(str, areas(memory).values())) == {"[0, 0, 0, 1]" if files == 1 else "None"}


@pytest.mark.parametrize("rewrite", REWRITES)
def test_compaction_merges_bboxes(place: Place, engine: Engine, rewrite: Any) -> None:
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
def test_a_bbox_across_the_antimeridian_is_dropped(memory: Place, rewrite: Any) -> None:
    """Fiji, for example: its west bound is greater than its east bound."""
    write(memory, 0)
    write(memory, 1, bbox=[177, -20, -178, -16])
    memory.dataset().compact(rewrite=rewrite)
    assert areas(memory) == {(0, 1, 2, 3): None}


def test_clustering_merges_bboxes(memory: Place) -> None:
    for number in range(3):
        write(memory, number)
    memory.dataset().optimize(["id", "n"])
    assert [*areas(memory).values()] == [[0, 0, 2, 1]]


def test_files_with_different_geometry_encodings_are_not_merged(memory: Place) -> None:
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
    """GeoParquet metadata of columns with these bounding boxes; None: without one."""
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
def test_merged_bboxes(boxes: list[Any], expected: Any) -> None:
    texts = [noted(g=box, other=[0, 0, 1, 1]) for box in boxes]
    assert len({without_any_bbox(text) for text in texts}) == 1
    assert json.loads(merged_geo(texts)) == json.loads(noted(g=expected, other=[0, 0, 1, 1]))


@pytest.mark.parametrize(
    "words", [b"here", b"[]", b'{"columns": 5}', b'{"columns": {"g": 5}}', b"\xff", b"", b"[" * 99999]
)
def test_invalid_geo_metadata_is_left_unchanged(words: bytes) -> None:
    assert without_any_bbox(words) == words
    assert merged_geo([words, words]) == words


def test_concatenated_row_groups_merge_bboxes() -> None:
    """Without metadata given by the caller."""
    files = [
        in_memory(pa.table({"g": [b"here"]}).replace_schema_metadata({"geo": noted(g=[n, 0, n, 1]), "by": "me"}))
        for n in range(3)
    ]
    found = pq.read_metadata(pa.BufferReader(joined(files, same_arrow_schema=lambda *_: True))).metadata
    assert json.loads(found[b"geo"]) == json.loads(noted(g=[0, 0, 2, 1]))
    assert found[b"by"] == b"me"
