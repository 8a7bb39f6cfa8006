"""Change records (CDC), the same on every engine: late, repeated and deleting ones, with and without history."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import ChangeStats, CommitConflict, CommitFailed, Dataset, IncompatibleTypes
from parketto.commit import tombstones
from parketto.commit.log import Log
from parketto.engines.base import Engine
from parketto.engines.pyarrow.engine import PyArrowEngine
from parketto.operations import apply_changes as operation

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "at": pa.int64(), "op": pa.string()})
Record = tuple[int, str | None, int, str]


def table(*records: Record) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in records], SCHEMA)


def apply(dataset: Dataset, *records: Record, **options: Any) -> ChangeStats:
    given = {"sequence_by": "at", "delete_when": "op = 'd'", "except_columns": ["op"], **options}
    return dataset.apply_changes(table(*records), ["id"], **given)


def rows(place: Place, *names: str) -> list[tuple[Any, ...]]:
    paths = oracle.data_files(place.root, place.fs)
    found = [row for path in paths for row in oracle.read_file(path, place.fs).to_pylist()]
    return sorted(tuple(row[name] for name in names or ("id", "name", "at")) for row in found)


def counts(stats: ChangeStats) -> tuple[int, ...]:
    return stats["inserted"], stats["updated"], stats["deleted"], stats["ignored"], stats["total"]


def test_the_latest_record_of_each_key_wins(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    first = apply(dataset, (1, "a1", 1, "u"), (2, "b1", 1, "u"), (1, "a3", 3, "u"), (1, "a2", 2, "u"))
    assert counts(first) == (2, 0, 0, 2, 2)
    assert rows(place) == [(1, "a3", 3), (2, "b1", 1)]
    second = apply(dataset, (2, "b2", 2, "u"), (1, "a2", 2, "u"), (3, "c1", 1, "u"))
    assert counts(second) == (1, 1, 0, 1, 3)
    assert rows(place) == [(1, "a3", 3), (2, "b2", 2), (3, "c1", 1)]


def test_a_stale_upsert_does_not_bring_a_deleted_key_back(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    apply(dataset, (1, "a", 1, "u"), (2, "b", 1, "u"))
    assert counts(apply(dataset, (1, None, 5, "d"))) == (0, 0, 1, 0, 1)
    assert counts(apply(dataset, (1, "late", 4, "u"))) == (0, 0, 0, 1, 1)
    assert counts(apply(dataset, (1, "same", 5, "u"))) == (0, 0, 0, 1, 1)
    assert rows(place) == [(2, "b", 1)]
    assert counts(apply(dataset, (1, "new", 6, "u"))) == (1, 0, 0, 0, 2)
    assert rows(place) == [(1, "new", 6), (2, "b", 1)]


def test_a_delete_before_its_insert(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    assert counts(apply(dataset, (1, None, 5, "d"))) == (0, 0, 0, 1, 0)
    assert counts(apply(dataset, (1, "a", 1, "u"), (2, "b", 1, "u"))) == (1, 0, 0, 1, 1)
    assert rows(place) == [(2, "b", 1)]


def test_ties(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    apply(dataset, (1, "first", 1, "u"), (1, "second", 1, "u"))
    assert rows(place) == [(1, "second", 1)]
    assert counts(apply(dataset, (1, "third", 1, "u"))) == (0, 0, 0, 1, 1)
    assert rows(place) == [(1, "second", 1)]
    assert counts(apply(dataset, (1, None, 1, "d"), (1, "fourth", 1, "u"))) == (0, 0, 1, 1, 0)
    assert rows(place) == []
    assert dataset.read().schema.names == ["id", "name", "at"]


def test_a_stale_delete_has_no_effect(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    apply(dataset, (1, "a", 5, "u"))
    assert counts(apply(dataset, (1, None, 4, "d"))) == (0, 0, 0, 1, 1)
    assert rows(place) == [(1, "a", 5)]


def test_repeated_records_change_no_file(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    records: list[Record] = [(1, "a", 1, "u"), (2, "b", 1, "u"), (2, None, 2, "d")]
    apply(dataset, *records)
    before, commits = place.state(), len(dataset.history())
    assert counts(apply(dataset, *records)) == (0, 0, 0, 3, 1)
    assert place.state() == before
    assert len(dataset.history()) == commits


def test_other_files_are_not_rewritten(place: Place, engine: Engine) -> None:
    given = {f"f{n}.parquet": table(*((n * 10 + i, "x", 1, "u") for i in range(10))) for n in range(3)}
    place.write_files({path: rows.drop_columns(["op"]) for path, rows in given.items()})
    before = place.state()
    stats = apply(place.dataset(engine=engine), (15, "y", 2, "u"), (19, None, 2, "d"), (100, "new", 1, "u"))
    assert counts(stats) == (1, 1, 1, 0, 30)
    after = place.state()
    assert {path for path in before if after.get(path) != before[path]} == {"/f1.parquet"}


def test_partitions_and_path_columns(place: Place, engine: Engine) -> None:
    schema = pa.schema({"id": pa.int64(), "name": pa.string(), "at": pa.int64()})
    place.write_files(
        {
            "day=1/a.parquet": pa.table({"id": [1, 2], "name": ["a", "b"], "at": [1, 1]}, schema),
            "day=2/a.parquet": pa.table({"id": [3], "name": ["c"], "at": [1]}, schema),
        }
    )
    dataset = place.dataset(engine=engine)
    changes = pa.table({"id": [1, 3, 4], "name": ["moved", "late", "new"], "at": [2, 0, 1], "day": [2, 2, 3]})
    assert counts(dataset.apply_changes(changes, ["id"], sequence_by="at")) == (1, 1, 0, 1, 4)
    found = dataset.read()
    assert sorted(zip(found["id"].to_pylist(), found["day"].to_pylist(), strict=True)) == [
        (1, 2),
        (2, 1),
        (3, 2),
        (4, 3),
    ]


def test_partitions_of_a_dataset_that_began_with_deletes(place: Place, engine: Engine) -> None:
    """The file that keeps the schema then is in no partition."""
    dataset = place.dataset(engine=engine)
    for record in ((1, "ann", 1, "d"), (2, "bob", 2, "u"), (3, "eve", 3, "d")):
        apply(dataset, record, partition_by=["name"])
    assert rows(place) == [(2, "bob", 2)]
    assert [each["values"] for each in dataset.partitions() if each["rows"]] == [{"name": "bob"}]


def test_tombstones_expire(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = local.dataset()
    apply(dataset, (1, "a", 1, "u"), (1, None, 5, "d"), (2, "b", 1, "u"))
    later = operation.time.time_ns() + 8 * 24 * 3600 * 10**9
    monkeypatch.setattr(operation.time, "time_ns", lambda: later)
    assert apply(dataset, (1, "late", 4, "u"), tombstone_days=30)["inserted"] == 0
    assert apply(dataset, (1, "late", 4, "u"))["inserted"] == 1


@pytest.mark.parametrize("history", ["on", "off"])
def test_tombstones_survive_other_commits(place: Place, history: Any) -> None:
    dataset = place.dataset(history=history)
    apply(dataset, (1, "a", 1, "u"), (2, "b", 1, "u"))
    apply(dataset, (1, None, 5, "d"))
    for number in range(5):
        dataset.write(table((10 + number, "x", 1, "u")).drop_columns(["op"]))
    dataset.compact()
    assert apply(dataset, (1, "late", 4, "u"))["inserted"] == 0
    # One file has all tombstones; the one before is there for an undo.
    apply(dataset, (2, None, 5, "d"))
    assert len([path for path in place.left_behind() if path.endswith(".arrow")]) == (2 if history == "on" else 1)
    assert apply(dataset, (1, "late", 4, "u"), (2, "late", 4, "u"))["inserted"] == 0


def test_an_overwrite_ends_tombstones(local: Place) -> None:
    dataset = local.dataset(engine="pyarrow")
    apply(dataset, (1, "a", 1, "u"), (2, "b", 1, "u"))
    apply(dataset, (1, None, 5, "d"))
    dataset.write(dataset.read(), mode="overwrite", replace_where="id = 2")
    assert counts(apply(dataset, (1, "late", 4, "u"))) == (0, 0, 0, 1, 1)
    dataset.write(dataset.read(), mode="overwrite")
    assert counts(apply(dataset, (1, "again", 4, "u"))) == (1, 0, 0, 0, 2)


def test_a_failed_commit_leaves_no_tombstones(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = local.dataset()
    apply(dataset, (1, "a", 1, "u"))

    def fail(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "create", fail)
        with pytest.raises(CommitFailed):
            apply(dataset, (1, None, 5, "d"))
    assert rows(local) == [(1, "a", 1)]
    assert apply(dataset, (1, "b", 4, "u"))["updated"] == 1
    # The file that no commit names is removed later.
    monkeypatch.setattr(tombstones, "_ABANDONED", dt.timedelta(seconds=-5))
    apply(dataset, (2, "b", 4, "u"))
    assert not [path for path in local.left_behind() if path.endswith(".arrow")]


def test_concurrent_changes_are_a_conflict(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the other call only deletes a key that does not exist."""
    apply(local.dataset(), (2, "b", 1, "u"))
    run = PyArrowEngine.run
    done: list[object] = []

    def delete_once(self: PyArrowEngine, tasks: Any, context: Any) -> Any:
        if not done:
            done.append(apply(local.dataset(engine="duckdb"), (1, None, 5, "d")))
        return run(self, tasks, context)

    monkeypatch.setattr(PyArrowEngine, "run", delete_once)
    with pytest.raises(CommitConflict, match="another writer has applied changes"):
        apply(local.dataset(engine="pyarrow"), (1, "stale", 4, "u"))
    done.clear()
    assert apply(local.dataset(engine="pyarrow", retries=1), (1, "stale", 4, "u"))["inserted"] == 0
    assert rows(local) == [(2, "b", 1)]


def test_added_rows_with_the_same_key_are_a_conflict(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(local.dataset(), (2, "b", 1, "u"))
    run = PyArrowEngine.run
    done: list[object] = []

    def append_once(self: PyArrowEngine, tasks: Any, context: Any) -> Any:
        if not done:
            done.append(local.dataset(engine="duckdb").write(table((1, "x", 9, "u")).drop_columns(["op"])))
        return run(self, tasks, context)

    monkeypatch.setattr(PyArrowEngine, "run", append_once)
    with pytest.raises(CommitConflict, match="may have the same keys"):
        apply(local.dataset(engine="pyarrow"), (1, "stale", 4, "u"))
    assert rows(local) == [(1, "x", 9), (2, "b", 1)]


def test_exactly_once_backup_and_dry_run(local: Place, engine: Engine) -> None:
    dataset = local.dataset(engine=engine)
    first = apply(dataset, (1, "a", 1, "u"), commit_id="stream:1")
    assert apply(dataset, (1, "b", 2, "u"), commit_id="stream:1") == {**first, "repeated_commit": 1}
    planned = apply(dataset, (1, None, 2, "d"), (2, "b", 1, "u"), dry_run=True)
    assert rows(local) == [(1, "a", 1)]
    done = apply(dataset, (1, None, 2, "d"), (2, "b", 1, "u"), backup=f"{local.root}-old")
    assert planned == {name: value for name, value in done.items() if name != "backup_path"}
    backup = done["backup_path"]
    assert backup is not None
    dataset.restore(backup)
    assert rows(local) == [(1, "a", 1)]
    # The same delete applies to the restored row.
    assert apply(dataset, (1, None, 2, "d"))["deleted"] == 1
    assert [each["operation"] for each in dataset.history()].count("apply_changes") == 3
    assert dataset.check()["healthy"]


def test_words_of_spark_and_other_sources(local: Place) -> None:
    frame = pl.DataFrame({"id": [1, 2], "name": ["a", "b"], "at": [1, 1], "op": ["u", "d"]})
    stats = local.dataset().apply_changes(
        frame,
        keys=["id"],
        sequence_by="at",
        apply_as_deletes=pl.col("op") == "d",
        except_column_list=["op"],
        stored_as_scd_type="1",
    )
    assert stats["inserted"] == 1
    oracle.write_files(f"{local.root}-changes", {"a.parquet": table((1, "b", 2, "u"))}, local.fs)
    again = local.dataset().apply_changes(
        f"{local.root}-changes", "id", sequence_by="at", column_list=["id", "at", "name"]
    )
    assert again["updated"] == 1
    stream = pa.RecordBatchReader.from_batches(SCHEMA, table((1, "c", 3, "u")).to_batches())
    # A column that only marks deletes is not written to a dataset that lacks it.
    assert local.dataset().apply_changes(stream, "id", sequence_by="at", delete_when="op = 'd'")["updated"] == 1
    assert rows(local) == [(1, "c", 3)]


def test_a_spark_frame(local: Place, spark: Any) -> None:
    from pyspark.sql.functions import expr

    dataset = local.dataset(engine="spark")
    apply(dataset, (1, "a", 1, "u"), (2, "b", 1, "u"))
    frame = spark.createDataFrame(
        [(1, None, 5, "d"), (3, "c", 1, "u")], "id long, name string, at long, op string"
    )
    stats = dataset.apply_changes(
        frame, keys=["id"], sequence_by="at", apply_as_deletes=expr("op = 'd'"), except_column_list=["op"]
    )
    assert counts(stats) == (1, 0, 1, 0, 2)
    assert rows(local) == [(2, "b", 1), (3, "c", 1)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scd": 3}, ValueError, "unknown scd 3"),
        ({"key_columns": None}, ValueError, "needs key_columns"),
        ({"keys": ["id"]}, ValueError, "key_columns and keys are the same argument"),
        ({"sequence_by": "nope"}, ValueError, "nope"),
        ({"except_columns": ["op", "at"]}, ValueError, "'at' must be written"),
        ({"columns": ["id"]}, ValueError, "pass columns or except_columns"),
        ({"columns": ["name", "at"], "except_columns": None}, ValueError, "'id' must be written"),
        ({"delete_when": "nope = 1"}, ValueError, "nope"),
        ({"tombstone_days": -1}, ValueError, "tombstone_days"),
        ({"except_columns": ["op", "name"]}, ValueError, "only the target has 'name'"),
        ({"except_columns": None, "delete_when": None}, ValueError, "only the source has 'op'"),
        ({"scd": 2}, ValueError, "valid_from"),
        ({"changes": table((1, "a", 1, "u")).set_column(0, "id", pa.array(["1"]))}, IncompatibleTypes, "'id'"),
        ({"changes": table((1, "a", None, "u"))}, ValueError, "NULL values in sequence_by 'at'"),  # type: ignore[arg-type]
        ({"changes": table((None, "a", 1, "u"))}, ValueError, "NULL values in key column 'id'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused(
    local: Place, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    apply(local.dataset(), (1, "a", 1, "u"))
    before = local.state()
    given = {
        "changes": table((1, "b", 2, "u")),
        "key_columns": ["id"],
        "sequence_by": "at",
        "delete_when": "op = 'd'",
        "except_columns": ["op"],
        **options,
    }
    with pytest.raises(error, match=message):
        local.dataset().apply_changes(**given)
    assert local.state() == before


VERSION = ("id", "name", "valid_from", "valid_to", "is_current")


def test_history(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    assert counts(apply(dataset, (1, "a1", 1, "u"), (2, "b1", 1, "u"), (1, "a5", 5, "u"), scd=2)) == (
        3,
        0,
        0,
        0,
        3,
    )
    assert rows(place, *VERSION) == [(1, "a1", 1, 5, False), (1, "a5", 5, None, True), (2, "b1", 1, None, True)]
    # In the middle of the history; a delete; a repeated record.
    stats = apply(dataset, (1, "a3", 3, "u"), (2, None, 4, "d"), (1, "a5", 5, "u"), scd=2)
    assert counts(stats) == (1, 2, 0, 1, 4)
    assert rows(place, *VERSION) == [
        (1, "a1", 1, 3, False),
        (1, "a3", 3, 5, False),
        (1, "a5", 5, None, True),
        (2, "b1", 1, 4, False),
    ]
    # Between a version and its delete, and after it.
    apply(dataset, (2, "b2", 2, "u"), (2, "b6", 6, "u"), scd=2)
    # A delete of the same sequence replaces a version.
    assert apply(dataset, (1, None, 3, "d"), scd=2)["deleted"] == 1
    assert rows(place, *VERSION) == [
        (1, "a1", 1, 3, False),
        (1, "a5", 5, None, True),
        (2, "b1", 1, 2, False),
        (2, "b2", 2, 4, False),
        (2, "b6", 6, None, True),
    ]
    before = place.state()
    assert apply(dataset, (1, None, 3, "d"), (1, "a3", 3, "u"), (2, None, 4, "d"), scd=2)["ignored"] == 3
    assert place.state() == before


def test_history_of_a_delete_before_its_insert(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    apply(dataset, (1, None, 5, "d"), (1, None, 7, "d"), scd=2)
    apply(dataset, (1, "a1", 1, "u"), (1, "a6", 6, "u"), scd=2)
    assert rows(place, *VERSION) == [(1, "a1", 1, 5, False), (1, "a6", 6, 7, False)]


def test_history_without_the_sequence_column(local: Place, engine: Engine) -> None:
    first, second = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    dataset = local.dataset(engine=engine)
    for at, name in ((second, "b"), (first, "a")):
        changes = pa.table({"id": [1], "name": [name], "at": pa.array([at], pa.timestamp("us", "UTC"))})
        dataset.apply_changes(changes, "id", sequence_by="at", except_columns="at", scd=2, partition_by="name")
    found = dataset.read()
    assert set(found.column_names) == set(VERSION)
    assert sorted(zip(*(found[name].to_pylist() for name in VERSION[1:]), strict=True)) == [
        ("a", first, second, False),
        ("b", second, None, True),
    ]
