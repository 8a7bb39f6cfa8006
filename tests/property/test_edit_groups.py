"""Random files and edits, packed or one for one: the same rows in the same order, in no more files."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Place
from helpers import oracle
from parketto import Dataset
from parketto.arguments import Thresholds
from parketto.merge import small_files
from parketto.parquet.file_info import FileInfo
from parketto.planning.edit_groups import edit_groups
from parketto.planning.packing import is_small

_numbers = itertools.count()
TARGET = Thresholds.of(None, None)
CAPACITY = TARGET.capacity
COMMON = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


MERGES = ["upsert", "same values", "full merge", "delete when"]
EDITS = ["delete", "update", "delete keys", "move", *MERGES]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "sizes": draw(st.lists(st.sampled_from([0, 1, 2, 5, 40_000]), min_size=1, max_size=7)),
        "folders": draw(st.lists(st.sampled_from(["", "p=1/", "p=2/"]), min_size=7, max_size=7)),
        "partitioned": draw(st.booleans()),
        "edit": draw(st.sampled_from(EDITS)),
        "step": draw(st.integers(1, 7)),
        "repeated": draw(st.booleans()),
        "together": draw(st.sampled_from([1, 4, small_files._ROWS_TOGETHER])),
        "bytes": draw(st.sampled_from([64, 4096, small_files._MAX_BYTES_TOGETHER])),
        "ahead": draw(st.sampled_from([1, 2, small_files._FILES_AHEAD])),
        "threads": draw(st.sampled_from([1, 2])),
    }


def _edit(dataset: Dataset, case: dict[str, Any], rows: int, *, pack: bool) -> None:
    step = case["step"]
    where = f"id % 100 < {step}"
    source = pa.table({"id": pa.array(range(0, rows + 3, step), pa.int64())})
    values = source.append_column("text", pa.array([f"new {n}" for n in range(len(source))]))
    match case["edit"]:
        case "delete":
            dataset.delete(where, pack=pack)
        case "update":
            dataset.update(where, {"text": "x"}, pack=pack)
        case "delete keys":
            dataset.delete(keys=source, key_columns="id", pack=pack)
        case edit if edit in MERGES:
            if case["edit"] == "same values":  # files stay in which no value changes
                texts = [str(n) if n % 3 else "new" for n in source["id"].to_pylist()]
                values = source.append_column("text", pa.array(texts))
            if case["partitioned"]:
                values = values.append_column("p", pa.array([1] * len(values)))
            strategy = "full_merge" if case["edit"] == "full merge" else "update"
            condition = "target.id % 2 = 0" if case["edit"] == "delete when" else None
            dataset.merge(values, "id", strategy=strategy, delete_when=condition, pack=pack)
        case "move":
            dataset.update(where, {"p": 2} if case["partitioned"] else {"text": None}, pack=pack)


def _write(place: Place, case: dict[str, Any]) -> int:
    first = 0
    tables = {}
    for number, (size, folder) in enumerate(zip(case["sizes"], case["folders"], strict=False)):
        # Keys that are in several files: the source updates one row, and removes the others.
        ids = [n // 2 if case["repeated"] else n for n in range(first, first + size)]
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array([str(n) for n in ids], pa.string())})
        tables[f"{folder if case['partitioned'] else ''}{number}.parquet"] = table
        first += size
    if case["partitioned"]:  # every file is in a partition
        tables = {path if "/" in path else f"p=1/{path}": table for path, table in tables.items()}
    place.write_files(tables)
    return first


def _contents(place: Place) -> dict[str, list[Any]]:
    """The rows of each folder, in the order of paths."""
    found: dict[str, list[Any]] = {}
    for path in oracle.data_files(place.root, place.fs):
        rows = oracle.read_file(path, place.fs).select(["id", "text"]).to_pylist()
        found.setdefault(os.path.dirname(path).removeprefix(place.root), []).extend(rows)
    return {folder: rows for folder, rows in found.items() if rows}


@given(case=cases())
@settings(max_examples=100, **COMMON)
def test_packed_edits_have_the_same_rows_in_the_same_order(memory: Place, case: dict[str, Any]) -> None:
    found = []
    for pack in (True, False):
        place = Place(f"{memory.root}-{next(_numbers)}", memory.fs)
        rows = _write(place, case)
        before = len(oracle.data_files(place.root, place.fs))
        folders = {os.path.dirname(path) for path in oracle.data_files(place.root, place.fs)}
        dataset = place.dataset(engine="pyarrow", threads=case["threads"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_files, "_ROWS_TOGETHER", case["together"])
            patch.setattr(small_files, "_MAX_BYTES_TOGETHER", case["bytes"])
            patch.setattr(small_files, "_FILES_AHEAD", case["ahead"])
            _edit(dataset, case, rows, pack=pack)
        after = oracle.data_files(place.root, place.fs)
        found.append((_contents(place), len(after)))
        moves = case["edit"] == "full merge" or (case["partitioned"] and case["edit"] in ("move", *MERGES))
        if pack:
            assert len(after) <= before + moves * (len(folders) + 1)
            state = _contents(place)
            dataset.compact()
            assert dataset.compact()["compacted_file_count"] == 0
            assert sum(map(len, _contents(place).values())) == sum(map(len, state.values()))
    (packed, packed_files), (single, single_files) = found
    assert packed == single
    assert packed_files <= single_files


def test_groups_are_smaller_where_more_processes_run() -> None:
    files = [FileInfo(f"a/{number:03d}.parquet", CAPACITY // 100, 1) for number in range(100)]
    edited = {file.path: 1 for file in files}
    counts = [
        len(edit_groups(files, edited, same_codec=False, pack=True, processes=processes))
        for processes in (1, 2, 4, 64)
    ]
    assert counts == [1, 2, 4, 8], "of at least 16 MB each"


FILES = st.lists(
    st.tuples(
        st.sampled_from(["a", "a/b", "c"]),
        st.integers(0, CAPACITY * 2) | st.integers(0, CAPACITY // 20),
        st.sampled_from(["edited", "edited", "edited", "stays", "removed"]),
        st.sampled_from(["snappy", "zstd"]),
    ),
    max_size=60,
)


@given(FILES, st.booleans(), st.sampled_from([1, 2, 8]))
@settings(max_examples=100, **COMMON)
def test_groups_are_neighbours_within_the_limits(found: list[Any], pack: bool, processes: int) -> None:
    files = [
        FileInfo(f"{folder}/{number:03d}.parquet", size, 100, codec=codec)
        for number, (folder, size, _, codec) in enumerate(found)
    ]
    fates = {file.path: fate for file, (_, _, fate, _) in zip(files, found, strict=True)}
    edited = {path: 100 for path, fate in fates.items() if fate == "edited"}
    removed = [path for path, fate in fates.items() if fate == "removed"]
    groups = edit_groups(files, edited, removed, same_codec=True, pack=pack, processes=processes)
    assert sorted(file.path for group in groups for file in group) == sorted(edited), "each is rewritten once"
    for group in groups:
        assert len({(file.directory, file.codec) for file in group}) == 1
        if len(group) == 1:
            continue
        assert pack
        assert all(is_small(file.size_bytes, TARGET) for file in group)
        assert 10 * sum(file.size_bytes for file in group) <= 18 * CAPACITY
        inside = [file for file in files if file.directory == group[0].directory]
        first, last = inside.index(group[0]), inside.index(group[-1])
        between = [fates[file.path] for file in inside[first : last + 1] if file not in group]
        assert set(between) <= {"removed"}, "no file between them stays"
    if pack:
        assert groups == edit_groups(files[::-1], edited, removed, same_codec=True, pack=True, processes=processes)
