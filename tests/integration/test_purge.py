"""A purge leaves nothing of the deleted rows in any file that Parketto knows of."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers.stream import Stream
from parketto import CannotUndo, Dataset, InvalidArgument, StreamStopped


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


def test_arguments_that_contradict_a_purge(place: Place, dataset: Dataset) -> None:
    state = place.state()
    for options in ({"backup": "/b"}, {"retention": 9}):
        with pytest.raises(InvalidArgument, match="purge needs a condition"):
            dataset.delete("id = 1", purge=True, **options)
    with pytest.raises(InvalidArgument, match="purge needs a condition"):
        dataset.delete(keys=people("Ada"), key_columns="name", purge=True)
    assert place.state() == state
