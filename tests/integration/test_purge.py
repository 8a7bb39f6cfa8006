"""A purge leaves nothing of the deleted rows in any file that Parketto knows of."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers.stream import Stream
from parketto import CannotUndo, ColumnNotFound, Dataset, InvalidArgument, StreamStopped
from parketto.engines.base import Engine


def people(*names: str) -> pa.Table:
    return pa.table({"id": [len(name) for name in names], "name": list(names)})


@pytest.fixture
def dataset(place: Place) -> Dataset:
    found = place.dataset()
    found.write(people("Ada", "Bobby", "Christine"))
    return found


def traces(place: Place, text: str, log: bool = False) -> list[str]:
    """All files beside and below the dataset with a text in a value, or anywhere if they are not Parquet.

    The log has the conditions of earlier operations, so it is left out by default.
    """
    found = []
    for path in place.fs.find(place.root.rpartition("/")[0]):
        if "/log/" in path and not log:
            continue
        content = place.fs.cat_file(path)
        if content[-4:] == b"PAR1":
            content = repr(pq.read_table(pa.BufferReader(content)).to_pydict()).encode()
        if text.encode() in content:
            found.append(path)
    return found


def test_kept_files_of_this_and_earlier_commits_are_removed(place: Place, dataset: Dataset) -> None:
    dataset.update("name = 'Ada'", {"id": 33})
    dataset.write(people("Dan"))
    dataset.compact()
    dataset.delete("name = 'Dan'")
    assert len(traces(place, "Bobby")) > 3
    dry = dataset.delete("name = 'Bobby'", purge=True, dry_run=True)
    assert len(traces(place, "Bobby")) > 3
    stats = dataset.delete("name = 'Bobby'", purge=True)
    assert traces(place, "Bobby", log=True) == [], "the log does not have the condition of a purge"
    assert stats["rows_matched"] == 1
    assert [(file["location"], file["commit"]) for file in stats["purged_files"]] == [
        ("dataset", None),
        ("history", 5),
        ("history", 4),
        ("history", 4),
        ("history", 2),
    ]
    assert dry["purged_files"] == stats["purged_files"]
    assert json.loads(json.dumps(stats)) == stats
    assert sorted(dataset.read().column("name").to_pylist()) == ["Ada", "Christine"]
    assert not any(commit["can_undo"] for commit in dataset.history())
    with pytest.raises(CannotUndo, match="was not kept"):
        dataset.undo()


def test_rows_that_were_deleted_before_are_purged(place: Place, dataset: Dataset) -> None:
    dataset.delete("name = 'Bobby'")
    stats = dataset.delete("name = 'Bobby'", purge=True)
    assert (stats["rows_matched"], [file["location"] for file in stats["purged_files"]]) == (0, ["history"])
    assert traces(place, "Bobby") == []


def test_older_versions_of_the_rows_are_purged(place: Place, dataset: Dataset) -> None:
    """They do not match the condition, but their file became one with a deleted row."""
    dataset.update("name = 'Bobby'", {"name": "Robert"})
    dataset.compact(target_rows_per_file=1)
    dataset.delete("name = 'Robert'", purge=True)
    assert traces(place, "Bobby") == traces(place, "Robert") == []


@pytest.mark.parametrize("by_keys", [False, True])
@pytest.mark.parametrize("kept", [True, False])
def test_older_versions_are_purged_after_a_delete_that_left_the_rows_in_the_history(
    place: Place, dataset: Dataset, kept: bool, by_keys: bool
) -> None:
    """Here only a kept file, or a backup, matches; it was made from the file with the older version."""
    dataset.write(people("Dan"))
    dataset.update("name = 'Bobby'", {"name": "Robert"})
    dataset.update("name = 'Dan'", {"id": 44})
    dataset.compact(target_rows_per_file=1)
    backup: dict[str, Any] = {} if kept else {"backup": f"{place.root}-backups", "retention": 0}
    dataset.delete("name = 'Robert'", **backup)
    rows: dict[str, Any] = {"where": "name = 'Robert'"}
    if by_keys:
        rows = {"keys": pa.table({"name": ["Robert"]}), "key_columns": "name"}
    dry = dataset.delete(**rows, purge=True, dry_run=True)
    stats = dataset.delete(**rows, purge=True)
    assert stats["rows_matched"] == 0
    assert dry["purged_files"] == stats["purged_files"]
    assert traces(place, "Bobby") == traces(place, "Robert") == []
    assert dataset.undo(4)["undone"][0] == 4, "the file of other rows is kept"
    assert sorted(dataset.read("name")["name"].to_pylist()) == ["Ada", "Christine", "Dan"]


def test_files_in_which_the_condition_cannot_be_evaluated_are_purged(place: Place, dataset: Dataset) -> None:
    dataset.alter(rename={"name": "who"})
    dataset.vacuum(0, dry_run=False)
    dataset.alter(rename={"who": "person"})
    dataset.delete("person = 'Nobody'", purge=True)
    assert len(dataset.history()) == 3, "nothing matches"
    assert traces(place, "Bobby") == [f"{place.root}/{place.files()[0]}"]


def test_unrelated_history_stays(place: Place) -> None:
    dataset = place.dataset()
    dataset.write(pa.table({"day": [1, 2], "name": ["Ada", "Bobby"]}), partition_by="day")
    dataset.update("day = 1", {"name": "Eve"})
    dataset.update("day = 2", {"name": "Rob"})
    dataset.delete("name = 'Rob'", purge=True)
    assert traces(place, "Bobby") == traces(place, "Rob") == []
    assert dataset.undo(2)["undone"] == [2]
    assert dataset.read().column("name").to_pylist() == ["Ada"]


@pytest.mark.parametrize("operation", ["delete", "compact", "alter", "merge"])
def test_backups_that_the_log_names_are_removed(place: Place, dataset: Dataset, operation: str) -> None:
    dataset.write(people("Dan"))
    backup = f"{place.root}-backups"
    run: dict[str, Any] = {
        "delete": lambda: dataset.delete("name = 'Ada'", backup=backup),
        "compact": lambda: dataset.compact(backup=backup),
        "alter": lambda: dataset.alter(add={"x": "string"}, backup=backup),
        "merge": lambda: dataset.merge(people("Ivo"), "id", backup=backup),
    }
    path = run[operation]()["backup_path"]
    assert [found for found in traces(place, "Bobby") if found.startswith(backup)]
    stats = dataset.delete("name = 'Bobby'", purge=True)
    assert traces(place, "Bobby") == []
    assert {file["backup"] for file in stats["purged_files"] if file["location"] == "backup"} == {path}


def test_streams_that_need_the_files_stop(place: Place, dataset: Dataset) -> None:
    stream = Stream(place, starting="latest", on_change="skip")
    dataset.write(people("Bobby"))
    dataset.delete("name = 'Bobby'", purge=True)
    with pytest.raises(StreamStopped, match="is no longer kept"):
        stream.next()


def bobby() -> pa.Table:
    """A table of keys; one has the type of no column."""
    return pa.table({"name": pa.array(["Bobby", "Nobody", "Bobby"], pa.large_string()), "note": [1, 2, 3]})


def test_rows_with_keys_are_purged(engine: Engine | str, place: Place) -> None:
    dataset = place.dataset(engine=engine)
    dataset.write(people("Ada", "Bobby", "Christine"))
    dataset.update("name = 'Ada'", {"id": 33})
    dataset.write(people("Dan"))
    dataset.delete("name = 'Dan'")
    dry = dataset.delete(keys=bobby(), key_columns="name", purge=True, dry_run=True)
    assert len(traces(place, "Bobby")) == 2
    stats = dataset.delete(keys=bobby(), key_columns="name", purge=True)
    assert traces(place, "Bobby", log=True) == [], "the log does not have the keys"
    assert [(file["location"], file["commit"]) for file in stats["purged_files"]] == [
        ("dataset", None),
        ("history", 2),
    ]
    assert (dry["purged_files"], stats["rows_matched"]) == (stats["purged_files"], 1)
    assert sorted(dataset.read("name")["name"].to_pylist()) == ["Ada", "Christine"]
    assert dataset.history()[0]["arguments"] == {"key_columns": ["name"], "purge": True}
    assert dataset.undo(4)["undone"] == [4], "the file of another commit did not have the rows"


@pytest.mark.parametrize("form", ["a stream", "a path", "polars"])
def test_keys_of_any_form_are_looked_up_in_all_kept_files(place: Place, dataset: Dataset, form: str) -> None:
    dataset.update("name = 'Bobby'", {"id": 7})
    dataset.delete("name = 'Bobby'", backup=f"{place.root}-backups")
    keys: Any = bobby()
    if form == "a stream":  # it can be read only once
        keys = pa.RecordBatchReader.from_batches(keys.schema, keys.to_batches(max_chunksize=1))
    elif form == "a path":
        keys = f"{place.root}-requests.parquet"
        with place.fs.open(keys, "wb") as file:
            pq.write_table(bobby(), file)
    else:
        keys = pl.from_arrow(keys)
    stats = dataset.delete(keys=keys, key_columns=["name"], purge=True)
    assert stats["rows_matched"] == 0
    assert {file["location"] for file in stats["purged_files"]} == {"history", "backup"}
    place.fs.rm(f"{place.root}-requests.parquet") if form == "a path" else None
    assert traces(place, "Bobby") == []


def test_keys_are_looked_up_by_partition_and_by_the_types_of_each_file(place: Place) -> None:
    """Keys may be in the path. A kept file in which a key has another type, or is missing, is removed."""
    dataset = place.dataset()
    rows = pa.table({"day": ["1", "1", "2"], "id": pa.array([1, 2, 1], pa.int32())})
    dataset.write(rows, partition_by="day", partition_columns="path")
    dataset.update("id = 2", {"id": 3})  # rewrites day 1
    dataset.update("day = 2", {"id": 5})
    dataset.alter(cast={"id": "int64"})
    keys = pa.table({"day": [1, 9], "id": pa.array([2**40, 3], pa.int64())})
    keys = pa.concat_tables([keys, pa.table({"day": [1], "id": [2]})])
    stats = dataset.delete(keys=keys, key_columns=["day", "id"], purge=True)
    assert (stats["rows_matched"], [file["commit"] for file in stats["purged_files"]]) == (0, [2])
    assert dataset.undo(4)["undone"] == [4]


def test_a_purge_by_keys_is_limited_to_partitions(place: Place) -> None:
    dataset = place.dataset()
    dataset.write(pa.table({"day": [1, 2], "name": ["Bobby", "Bobby"]}), partition_by="day")
    dataset.update("true", {"name": "Rob"})
    stats = dataset.delete(keys=bobby(), key_columns="name", partition_filter="day=2", purge=True)
    assert [file["path"].partition("/")[0] for file in stats["purged_files"]] == ["day=2"]


def test_a_repeated_purge_by_keys_finds_the_rest(place: Place, dataset: Dataset) -> None:
    dataset.delete(keys=bobby(), key_columns="name")
    first = dataset.delete(keys=bobby(), key_columns="name", purge=True)
    again = dataset.delete(keys=bobby(), key_columns="name", purge=True)
    assert (len(first["purged_files"]), again["purged_files"]) == (1, [])


def test_arguments_that_contradict_a_purge(place: Place, dataset: Dataset) -> None:
    state = place.state()
    for options in ({"backup": "/b"}, {"retention": 9}):
        with pytest.raises(InvalidArgument, match="purge excludes backup and retention"):
            dataset.delete("id = 1", purge=True, **options)
    with pytest.raises(ColumnNotFound, match="key_columns of the keys not found: 'nmae'"):
        dataset.delete(keys=bobby(), key_columns="nmae", purge=True)
    with pytest.raises(InvalidArgument, match="NULL"):
        dataset.delete(keys=pa.table({"name": pa.array([None], pa.string())}), key_columns="name", purge=True)
    assert place.state() == state
