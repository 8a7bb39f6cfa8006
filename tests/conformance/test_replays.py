"""Operations with a `commit_id` that the log contains: they do nothing, and say so; another request is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conftest import Place
from parketto import Dataset, sql
from parketto.errors import InvalidArgument

ROWS = pa.table({"id": [1, 2, 3, 4], "n": [0, 0, 0, 0]})
NEW = pa.table({"id": [4, 5], "n": [9, 9]})
RECORDS = pa.table({"id": [4, 5], "n": [9, 9], "seq": [1, 1]})

Work = Callable[..., Any]
#: Operations, each with another request of the same kind, and what the error says about it.
WORK: dict[str, tuple[Work, Work, str]] = {
    "write": (
        lambda dataset, **more: dataset.write(NEW, **more),
        lambda dataset, **more: dataset.write(NEW, "overwrite", **more),
        "operation was 'append' and is now 'overwrite'",
    ),
    "replace": (
        lambda dataset, **more: dataset.write(NEW, "overwrite", replace_where="id > 3", **more),
        lambda dataset, **more: dataset.write(NEW, "overwrite", replace_where="id > 2", **more),
        "replace_where was 'id > 3' and is now 'id > 2'",
    ),
    "delete": (
        lambda dataset, **more: dataset.delete("id = 1", **more),
        lambda dataset, **more: dataset.delete("id = 2", **more),
        "where was 'id = 1' and is now 'id = 2'",
    ),
    "delete keys": (
        lambda dataset, **more: dataset.delete(keys=NEW.select(["id"]), key_columns=["id"], **more),
        lambda dataset, **more: dataset.delete(keys=NEW, key_columns=["id", "n"], **more),
        r"key_columns was \['id'\] and is now \['id', 'n'\]",
    ),
    "update": (
        lambda dataset, **more: dataset.update("id = 1", {"n": sql("n + 1")}, **more),
        lambda dataset, **more: dataset.update("id = 1", {"n": sql("n + 2")}, **more),
        r"values was .*n \+ 1.* and is now .*n \+ 2",
    ),
    "merge": (
        lambda dataset, **more: dataset.merge(NEW, "id", **more),
        lambda dataset, **more: dataset.merge(NEW, "id", strategy="insert", **more),
        "strategy was 'upsert' and is now 'insert'",
    ),
    "apply changes": (
        lambda dataset, **more: dataset.apply_changes(RECORDS, "id", sequence_by="seq", **more),
        lambda dataset, **more: dataset.apply_changes(RECORDS, "id", sequence_by="seq", scd=2, **more),
        "scd was 1 and is now 2",
    ),
    "deduplicate": (
        lambda dataset, **more: dataset.deduplicate("n", **more),
        lambda dataset, **more: dataset.deduplicate("id", **more),
        r"key_columns was \['n'\] and is now \['id'\]",
    ),
}


def started(place: Place, name: str) -> Dataset:
    rows = ROWS.append_column("seq", pa.array([0] * 4)) if name == "apply changes" else ROWS
    place.write_files({"one.parquet": rows})
    return place.dataset()


@pytest.mark.parametrize("name", WORK)
def test_result_of_a_replay_names_the_earlier_commit(local: Place, name: str) -> None:
    dataset, (work, _, _) = started(local, name), WORK[name]
    assert "repeated_commit" not in work(dataset, commit_id="app:1", dry_run=True)
    first = work(dataset, commit_id="app:1")
    assert "repeated_commit" not in first
    before = local.state()
    assert work(dataset, commit_id="app:1") == {**first, "repeated_commit": 1}
    assert work(dataset, commit_id="app:1", dry_run=True)["repeated_commit"] == 1
    assert local.state() == before


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("dry_run", [False, True])
def test_another_request_with_the_same_id_is_refused(local: Place, name: str, dry_run: bool) -> None:
    dataset, (work, other, difference) = started(local, name), WORK[name]
    work(dataset, commit_id="app:1")
    before = local.state()
    message = f"'app:1' belongs to commit 1 of .*: {difference}.*Nothing was changed"
    with pytest.raises(InvalidArgument, match=message):
        other(dataset, commit_id="app:1", dry_run=dry_run)
    assert local.state() == before


def test_other_operations_with_the_same_id_are_refused(local: Place) -> None:
    dataset = started(local, "delete")
    dataset.delete("id = 1", commit_id="app:1")
    with pytest.raises(InvalidArgument, match="operation was 'delete' and is now 'append'"):
        dataset.write(NEW, commit_id="app:1")


def test_replays_may_differ_in_what_does_not_describe_the_request(local: Place) -> None:
    dataset = started(local, "update")
    values = {"n": 7, "at": dt.date(2026, 11, 4)}
    local.write_files({"one.parquet": ROWS.append_column("at", pa.array([None] * 4, pa.date32()))})
    dataset.update("id = 1", values, commit_id="app:1", retention=60)
    again = dataset.update("id = 1", values, commit_id="app:1", pack=False, compression="gzip", retries=0)
    assert again["repeated_commit"] == 1
    duckdb = local.dataset(engine="duckdb")
    assert duckdb.update("id = 1", values, commit_id="app:1", backup=f"{local.root}-old")["repeated_commit"] == 1
    dataset.delete(pc.field("id").isin([1, 2]), commit_id="app:2")
    assert dataset.delete(pc.field("id").isin([1, 2]), commit_id="app:2")["repeated_commit"] == 2


def test_batches_of_streams_are_known_by_their_numbers_alone(local: Place) -> None:
    """A program whose merge rule has changed still finishes the batch that was committed before."""
    dataset = started(local, "merge")._in_stream({"app_id": "app", "batch_id": 1})
    dataset.merge(NEW, "id", commit_id="app:2")
    assert dataset.merge(NEW, "id", strategy="insert", commit_id="app:1")["repeated_commit"] == 1


def test_equal_values_that_do_not_equal_themselves_and_sets_are_the_same_request(local: Place) -> None:
    rows = pa.table({"id": [1, 2], "x": [0.5, 1.5]})
    local.write_files({"day=1/a.parquet": rows, "day=2/a.parquet": rows})
    for days in ({1, 2}, [2, 1]):
        found = local.dataset().update(
            "id = 1", {"x": float("nan")}, partition_filter={"day": days}, commit_id="a:1"
        )
    assert found["repeated_commit"] == 1
