"""Deleting rows by a table of keys, the same on every engine."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import CommitConflict, IncompatibleTypes, InvalidArgument
from parketto.engines.base import Engine
from parketto.engines.pyarrow.engine import PyArrowEngine

KEYS = pa.table({"id": [1]})


def rows(numbers: range) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "side": pa.array(["ask" if n % 2 else "bid" for n in numbers]).dictionary_encode(),
            "n": [float(n) for n in numbers],
        }
    )


def ids(place: Place) -> list[Any]:
    paths = oracle.data_files(place.root, place.fs)
    return sorted(n for path in paths for n in oracle.read_file(path, place.fs).column("id").to_pylist())


@pytest.fixture
def market(place: Place) -> Place:
    place.write_files({f"f{n}.parquet": rows(range(n * 100, n * 100 + 100)) for n in range(4)}, row_group_size=25)
    return place


def test_rows_with_a_key_of_the_table_are_deleted(market: Place, engine: Engine) -> None:
    before = market.state()
    keys = pa.table({"note": ["x"] * 4, "id": pa.array([7, 7, 399, 1000], pa.int64())})
    stats = market.dataset(engine=engine).delete(keys=keys, key_columns="id")
    assert ids(market) == [n for n in range(400) if n not in (7, 399)]
    assert (stats["rows_matched"], stats["rows_before"], stats["rows_after"]) == (2, 400, 398)
    assert (stats["files_rewritten"], stats["files_before"]) == (2, 4)
    assert market.state()["/f1.parquet"] == before["/f1.parquet"]
    assert not market.left_behind()


def test_several_key_columns_and_whole_files(market: Place, engine: Engine) -> None:
    keys = rows(range(100, 200)).select(["side", "id"])
    dataset = market.dataset(engine=engine)
    planned = dataset.delete(keys=keys, key_columns=["id", "side"], dry_run=True)
    assert ids(market) == list(range(400))
    done = dataset.delete(keys=keys, key_columns=["id", "side"])
    assert planned == {**done, "dry_run": True, "added_files": []}
    assert (done["rows_matched"], done["files_removed"], done["files_rewritten"]) == (100, 1, 0)
    # Only one file can have these keys.
    assert done["files_scanned"] == 1


def test_all_rows_leave_an_empty_dataset(market: Place, engine: Engine) -> None:
    dataset = market.dataset(engine=engine)
    stats = dataset.delete(keys=rows(range(400)), key_columns=["id"])
    assert (stats["rows_after"], stats["files_removed"]) == (0, 4)
    assert dataset.read().schema.names == ["id", "side", "n"]


def test_keys_from_a_path(local: Place, engine: Engine, tmp_path: Any) -> None:
    local.write_files({"a.parquet": rows(range(10))})
    oracle.write_files(str(tmp_path / "keys"), {"k.parquet": rows(range(5, 20)).select(["id"])})
    assert local.dataset(engine=engine).delete(keys=tmp_path / "keys", key_columns=["id"])["rows_matched"] == 5
    assert ids(local) == list(range(5))


def test_keys_from_a_spark_frame(local: Place, spark: Any) -> None:
    local.write_files({"a.parquet": rows(range(10))})
    assert local.dataset(engine="spark").delete(keys=spark.range(5, 20), key_columns=["id"])["rows_matched"] == 5
    assert ids(local) == list(range(5))
    assert not local.left_behind()


def test_keys_in_the_path(place: Place, engine: Engine) -> None:
    place.write_files({f"day={n}/a.parquet": rows(range(10)) for n in range(3)})
    keys = pa.table({"day": [1, 2, 2], "id": [3, 3, 4]})
    stats = place.dataset(engine=engine).delete(keys=keys, key_columns=["day", "id"])
    assert (stats["rows_matched"], stats["partitions_affected"]) == (3, 2)
    only = place.dataset(engine=engine).delete(
        keys=pa.table({"id": [0]}), key_columns=["id"], partition_filter={"day": 1}
    )
    assert (only["rows_matched"], only["files_before"]) == (1, 1)


def test_null_keys(place: Place, engine: Engine) -> None:
    place.write_files({"a.parquet": pa.table({"id": [1, None, 2], "n": [1, 2, 3]})})
    dataset = place.dataset(engine=engine)
    with pytest.raises(ValueError, match="NULL values in key column 'id' of the source"):
        dataset.delete(keys=pa.table({"id": [1, None]}), key_columns=["id"])
    # NULLs of the dataset match no key.
    assert dataset.delete(keys=pa.table({"id": [0, 1]}), key_columns=["id"])["rows_matched"] == 1


NOON = dt.datetime(2026, 11, 4, 12, 30, 15, 5, dt.UTC)
# Stored values and their type, keys and their type, and the values that stay.
OTHER_TYPES: dict[str, tuple[list[Any], pa.DataType, list[Any], pa.DataType, list[Any]]] = {
    "wide integers": ([1, 2, 2**31 - 1], pa.int32(), [2, 2**31 - 1, 2**31, 2**32 + 1, -(2**40)], pa.int64(), [1]),
    "narrow integers": ([1, 300], pa.int64(), [1, 44], pa.int8(), [300]),
    "signed, unsigned": ([0, 2**64 - 1], pa.uint64(), [0, -1], pa.int64(), [2**64 - 1]),
    "unsigned, signed": ([1, -1], pa.int64(), [1, 2**64 - 1], pa.uint64(), [-1]),
    "floats for integers": ([1, 2, 3], pa.int16(), [2.0, 3.5, 1e30, float("nan")], pa.float64(), [1, 3]),
    "integers for floats": ([1.0, 2.5], pa.float32(), [1, 2, 2**53 + 1], pa.int64(), [2.5]),
    "double for float": (
        [0.5, 0.1],
        pa.float32(),
        [0.5, 0.25],
        pa.float64(),
        pa.array([0.1], pa.float32()).to_pylist(),
    ),
    "text": (["a", "b"], pa.string(), ["b", "x"], pa.large_string(), ["a"]),
    "categories": (["a", "b"], pa.string(), ["b", "x"], pa.dictionary(pa.int8(), pa.large_string()), ["a"]),
    "units": ([NOON], pa.timestamp("ms", "UTC"), [NOON], pa.timestamp("us", "UTC"), [NOON.replace(microsecond=0)]),
    "far timestamps": (
        [NOON],
        pa.timestamp("ns", "UTC"),
        [NOON, NOON.replace(year=3000)],
        pa.timestamp("us", "UTC"),
        [],
    ),
    "decimals": (
        [Decimal("1.50"), Decimal("2.00")],
        pa.decimal128(5, 2),
        [Decimal("1.500"), Decimal("0.001"), Decimal("99999")],
        pa.decimal128(12, 3),
        [Decimal("2.00")],
    ),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_keys_are_cast_and_those_that_the_column_cannot_hold_match_nothing(
    local: Place, engine: Engine, name: str
) -> None:
    stored, kind, keys, other, left = OTHER_TYPES[name]
    column = (
        pa.array(stored, pa.timestamp("us", "UTC")).cast(kind, safe=False)
        if name == "units"
        else pa.array(stored, kind)
    )
    local.write_files({"a.parquet": pa.table({"id": column, "n": range(len(stored))})})
    table = pa.table({"id": pa.array(keys, other)})
    stats = local.dataset(engine=engine).delete(keys=table, key_columns="id")
    assert ids(local) == left
    assert stats["rows_matched"] == len(stored) - len(left)


def test_no_keys_delete_nothing(market: Place, engine: Engine) -> None:
    before = market.state()
    assert market.dataset(engine=engine).delete(keys=rows(range(0)), key_columns="id")["rows_matched"] == 0
    assert market.state() == before


def test_backup_and_commit_id(local: Place, engine: Engine) -> None:
    local.write_files({"a.parquet": rows(range(10))})
    dataset = local.dataset(engine=engine)
    keys = pa.table({"id": [1, 2]})
    stats = dataset.delete(keys=keys, key_columns=["id"], backup=f"{local.root}-old", commit_id="erase:1")
    assert stats["backup_path"] is not None
    dataset.restore(stats["backup_path"])
    assert dataset.delete(keys=keys, key_columns=["id"], commit_id="erase:1") == {**stats, "repeated_commit": 1}
    assert ids(local) == list(range(10))
    assert dataset.history()[1]["arguments"]["key_columns"] == ["id"]


@pytest.mark.parametrize(("added", "conflicts"), [(3, True), (50, False)])
def test_added_rows_with_a_key_are_a_conflict(
    local: Place, monkeypatch: pytest.MonkeyPatch, added: int, conflicts: bool
) -> None:
    local.write_files({"a.parquet": rows(range(10))})
    run = PyArrowEngine.run
    done: list[object] = []

    def append_once(self: PyArrowEngine, tasks: Any, context: Any) -> Any:
        if not done:
            done.append(local.dataset(engine="duckdb").write(rows(range(added, added + 1))))
        return run(self, tasks, context)

    monkeypatch.setattr(PyArrowEngine, "run", append_once)
    keys = pa.table({"id": [3, 90]})
    if conflicts:
        with pytest.raises(CommitConflict, match="has rows with these keys"):
            local.dataset(engine="pyarrow").delete(keys=keys, key_columns=["id"])
        assert len(ids(local)) == 11
    else:
        assert local.dataset(engine="pyarrow").delete(keys=keys, key_columns=["id"])["rows_matched"] == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "delete needs either a condition"),
        (
            {"where": "id = 1", "keys": pa.table({"id": [1]}), "key_columns": ["id"]},
            ValueError,
            "delete needs either",
        ),
        ({"keys": KEYS}, ValueError, "keys needs key_columns"),
        ({"where": "id = 1", "key_columns": ["id"]}, ValueError, "key_columns needs keys"),
        ({"keys": KEYS, "key_columns": ["nope"]}, ValueError, "nope"),
        ({"keys": pa.table({"nope": [1]}), "key_columns": ["nope"]}, ValueError, "nope"),
        (
            {"keys": pa.table({"id": ["1"]}), "key_columns": ["id"]},
            IncompatibleTypes,
            "'id' is string in the keys",
        ),
    ],
)
def test_wrong_arguments_are_refused(local: Place, arguments: Any, error: type[Exception], message: str) -> None:
    local.write_files({"a.parquet": rows(range(10))})
    with pytest.raises(error, match=message):
        local.dataset().delete(**arguments)
    assert len(ids(local)) == 10


def test_a_missing_dataset_is_an_error(local: Place) -> None:
    with pytest.raises(FileNotFoundError):
        local.dataset().delete(keys=pa.table({"id": [1]}), key_columns=["id"])


@pytest.mark.parametrize("key", [[1], {"a": 1}], ids=["list", "struct"])
def test_keys_without_an_order_are_refused(place: Place, key: object) -> None:
    place.write_files({"a.parquet": pa.table({"id": [key, key]})})
    before = place.state()
    with pytest.raises(InvalidArgument, match="rows cannot be ordered by 'id'"):
        place.dataset().delete(keys=pa.table({"id": [key]}), key_columns="id")
    assert place.state() == before
