"""The difference of two states: exactly the rows that differ, reading only the files that do."""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Place
from parketto import ColumnNotFound, Dataset, IncompatibleTypes, InvalidArgument
from parketto.operations import diff as diffing


def rows(*pairs: tuple[int | None, Any]) -> pa.Table:
    return pa.table({"id": pa.array([key for key, _ in pairs], pa.int64()), "v": [value for _, value in pairs]})


@pytest.fixture
def dataset(place: Place) -> Dataset:
    found = place.dataset()
    found.write(rows((1, "a"), (2, "b"), (3, "c")))
    found.write(rows((10, "x"), (11, "y")))
    return found


def test_by_key(dataset: Dataset) -> None:
    dataset.update("id = 2", {"v": "B"})
    dataset.delete("id = 3")
    dataset.write(rows((4, "d")))
    found = dataset.diff(2, key_columns="id")
    assert json.loads(json.dumps(found)) == {
        "start": 2,
        "end": 5,
        "key_columns": ["id"],
        "rows_added": 1,
        "rows_removed": 1,
        "rows_changed": 1,
        "files_compared": 3,
        "bytes_compared": found["bytes_compared"],
    }
    assert found.added.read_all().to_pylist() == [{"id": 4, "v": "d"}]
    assert found.removed.read_all().to_pylist() == [{"id": 3, "v": "c"}]
    changed = [{"id": 2, "before": {"v": "b"}, "after": {"v": "B"}}]
    assert found.changed.read_all().to_pylist() == found.changed.read_all().to_pylist() == changed


def test_without_keys_rows_are_added_and_removed(dataset: Dataset) -> None:
    dataset.update("id = 2", {"v": "B"})
    dataset.write(rows((1, "a")))
    found = dataset.diff(2)
    assert sorted(found.added.read_all().to_pylist(), key=repr) == [{"id": 1, "v": "a"}, {"id": 2, "v": "B"}]
    assert found.removed.read_all().to_pylist() == [{"id": 2, "v": "b"}]
    assert (found["rows_changed"], found.changed.read_all().num_rows) == (0, 0)


def test_moved_rows_do_not_differ(dataset: Dataset) -> None:
    dataset.compact()
    dataset.repartition("v")
    found = dataset.diff(2, 4, key_columns=["id"])
    assert (found["rows_added"], found["rows_removed"], found["rows_changed"]) == (0, 0, 0)
    assert found["files_compared"] == 7
    assert dataset.diff(4)["files_compared"] == 0


def test_schemas_that_differ(dataset: Dataset) -> None:
    dataset.alter(add={"note": "string"})
    assert dataset.diff(2)["rows_added"] == 0, "a new column is NULL, as if it had been there"
    dataset.update("id = 1", {"note": "new"})
    (changed,) = dataset.diff(2, key_columns="id").changed.read_all().to_pylist()
    assert changed == {"id": 1, "before": {"v": "a", "note": None}, "after": {"v": "a", "note": "new"}}
    dataset.alter(drop=["note"], cast={"id": "string"})
    with pytest.raises(IncompatibleTypes, match="the states cannot be compared"):
        dataset.diff(2)


def test_types_that_differ(dataset: Dataset) -> None:
    """They are compared in their common type, as one dataset would have it."""
    values = pa.array(["b", "c"]).dictionary_encode()
    dataset.write(pa.table({"id": pa.array([2, 7], pa.int32()), "v": values}), mode="overwrite")
    last = dataset.history(1)[0]["number"]
    dataset.alter(cast={"v": pa.large_string(), "id": pa.int64()})
    assert [dataset.diff(last)[key] for key in ("rows_added", "rows_removed", "rows_changed")] == [0, 0, 0]


def test_columns_of_paths_have_the_types_of_the_states(local: Place) -> None:
    """Not those that the paths of the files that differ would imply."""
    dataset = local.dataset()
    days = pa.table({"id": [1, 2], "day": ["01", "1"]})
    dataset.write(days, partition_by="day", partition_columns="path")
    dataset.write(pa.table({"id": [3], "day": ["x"]}))
    dataset.update("id = 2", {"id": 20})
    assert dataset.diff(1, 2).added.read_all().to_pylist() == [{"id": 3, "day": "x"}]
    found = dataset.diff(2)
    assert found.removed.read_all().to_pylist() == [{"id": 2, "day": "1"}]
    assert found.added.read_all().to_pylist() == [{"id": 20, "day": "1"}]


def test_states_without_files(dataset: Dataset) -> None:
    assert dataset.diff(0, key_columns="id")["rows_added"] == 5
    assert dataset.diff(2, 0, key_columns="id")["rows_removed"] == 5


def test_arguments(dataset: Dataset) -> None:
    dataset.write(rows((9, "z")))
    with pytest.raises(ColumnNotFound, match="available columns: 'id', 'v'"):
        dataset.diff(2, key_columns="ID")
    with pytest.raises(InvalidArgument, match="a state is the number of a commit"):
        dataset.diff("a while ago")


def test_temporary_files_end_with_the_result(dataset: Dataset) -> None:
    dataset.delete("id = 1")
    found = dataset.diff(2)
    reader, folder = found.removed, found._folder.path
    del found
    gc.collect()
    assert reader.read_all().num_rows == 1, "a reader keeps them"
    del reader
    gc.collect()
    assert not os.path.exists(folder)


Rows = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 6)), st.one_of(st.none(), st.sampled_from("ab"))), max_size=12
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=Rows, new=Rows, keyed=st.booleans(), whole=st.booleans())
def test_any_rows(old: list[Any], new: list[Any], keyed: bool, whole: bool) -> None:
    """With duplicates and NULLs, also as keys; in memory, or in buckets that are divided again and again."""
    place = Place("/diff-of-any-rows/events", fsspec.filesystem("memory"))
    dataset = place.dataset()
    dataset.write(rows(*old))
    dataset.write(rows(*new), "overwrite")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffing, "_WHOLE_BYTES", 10**9 if whole else 0)
        patch.setattr(diffing, "_PART_BYTES", 100)
        found = dataset.diff(1, key_columns=["id"] if keyed else None)
    place.fs.rm("/diff-of-any-rows", recursive=True)
    assert pairs(found.removed) <= Counter(old)
    gone, came = Counter(old) - Counter(new), Counter(new) - Counter(old)
    if not keyed:
        assert (pairs(found.removed), pairs(found.added)) == (gone, came)
        return
    changed = found.changed.read_all().to_pylist()
    before = Counter((row["id"], row["before"]["v"]) for row in changed)
    after = Counter((row["id"], row["after"]["v"]) for row in changed)
    assert (pairs(found.removed) + before, pairs(found.added) + after) == (gone, came)
    assert not {key for key, _ in pairs(found.removed)} & {key for key, _ in pairs(found.added)}


def pairs(reader: pa.RecordBatchReader) -> Counter[tuple[Any, Any]]:
    return Counter((row["id"], row["v"]) for row in reader.read_all().to_pylist())
