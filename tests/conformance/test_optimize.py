"""Optimize, the same on every engine: sorted rows, NULLs last, target sizes, and a second run rewrites nothing."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import collect_dataset_stats, optimize_parquet_dataset_pyarrow, plan_optimize_groups
from parketto.engines.base import Engine


def visits(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    users = pa.array(rng.integers(0, 50, rows), mask=rng.random(rows) < 0.1)
    return pa.table(
        {"user_id": users, "event_date": rng.integers(0, 30, rows), "n": np.arange(rows) + seed * rows}
    )


def in_order(rows: list[tuple[object, ...]]) -> bool:
    keys = [tuple((value is None, value if value is not None else 0) for value in row) for row in rows]
    return keys == sorted(keys)


def tables(place: Place) -> list[pa.Table]:
    return [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]


def keys(table: pa.Table, columns: list[str]) -> list[tuple[object, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def test_rows_are_sorted_in_every_partition(place: Place, engine: Engine) -> None:
    place.write_files({f"day={d}/f{n}.parquet": visits(200, d * 10 + n) for d in (1, 2) for n in range(5)})
    before = place.rows()
    stats = place.dataset(engine=engine).optimize(
        ["user_id", "event_date"], target_rows_per_file=400, curve="linear"
    )
    assert place.rows() == before
    for day in ("day=1", "day=2"):
        found = [oracle.read_file(f"{place.root}/{name}", place.fs) for name in place.files() if day in name]
        assert [table.num_rows for table in found] == [334, 333, 333] or sum(t.num_rows for t in found) == 1000
        assert all(table.num_rows <= 400 for table in found)
        assert in_order([key for table in found for key in keys(table, ["user_id", "event_date"])])
    assert stats["zorder_columns"] == ["user_id", "event_date"]
    assert (stats["before_file_count"], stats["after_file_count"]) == (10, 6)
    assert stats["compacted_file_count"] == 10
    assert stats["dry_run"] is False
    assert all("optimized-" in name for name in place.files())


def test_order_and_size_in_one_rewrite(place: Place, engine: Engine) -> None:
    place.write_files({f"f{n}.parquet": visits(20_000, n) for n in range(8)})
    before = place.rows()
    target = 0.25
    place.dataset(engine=engine).optimize(["user_id"], target_mb_per_file=target)
    assert place.rows() == before
    sizes = [place.fs.size(path) / 2**20 for path in oracle.data_files(place.root, place.fs)]
    assert len(sizes) > 2
    assert all(0.75 * target <= size <= 1.3 * target for size in sizes[:-1]), sizes


def test_dry_run(place: Place, engine: Engine) -> None:
    place.write_files({f"f{n}.parquet": visits(100, n) for n in range(4)})
    before = place.state()
    stats = place.dataset(engine=engine).optimize(["user_id"], dry_run=True)
    assert place.state() == before
    assert stats["planned_groups"] == [oracle.data_files(place.root, place.fs)]
    assert (stats["after_file_count"], stats["dry_run"], stats["zorder_columns"]) == (1, True, ["user_id"])


def test_second_run_rewrites_nothing(place: Place, engine: Engine) -> None:
    place.write_files({f"f{n}.parquet": visits(20_000, n) for n in range(8)})
    before = place.rows()
    dataset = place.dataset(engine=engine)
    dataset.optimize(["user_id", "event_date"], target_mb_per_file=0.25, curve="linear")
    state = place.state()
    stats = dataset.optimize(["user_id", "event_date"], target_mb_per_file=0.25, curve="linear")
    assert stats["compacted_file_count"] == stats["rewritten_bytes"] == 0
    assert place.state() == state
    dataset.write(visits(10, 99))
    stats = dataset.optimize(["user_id", "event_date"], target_mb_per_file=0.25, curve="linear")
    assert stats["compacted_file_count"] > 0, "unsorted new rows cause a rewrite"
    assert sum(place.rows().values()) == sum(before.values()) + 10


def test_another_order_rewrites_the_files(place: Place, engine: Engine) -> None:
    place.write_files({f"f{n}.parquet": visits(100, n) for n in range(2)})
    dataset = place.dataset(engine=engine)
    dataset.optimize(["user_id"])
    assert dataset.optimize(["event_date"])["compacted_file_count"] == 1
    assert in_order(keys(tables(place)[0], ["event_date"]))


def test_single_unsorted_file_is_sorted(place: Place, engine: Engine) -> None:
    place.write_files({"f.parquet": visits(500, 1)})
    assert place.dataset(engine=engine).optimize(["user_id"])["compacted_file_count"] == 1
    assert in_order(keys(tables(place)[0], ["user_id"]))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [3, -1, None, 2]),
        (pa.uint64(), [2**64 - 1, 0, None, 5]),
        (pa.float64(), [2.5, -1.0, None, 0.0]),
        (pa.float16(), [2.5, -1.0, None, 0.0]),
        (pa.bool_(), [True, False, None, True]),
        (pa.string(), ["b", "a", None, "ä"]),
        (pa.large_string(), ["b", "a", None, ""]),
        (pa.string_view(), ["b", "a", None, ""]),
        (pa.binary(), [b"b", b"a", None, b""]),
        (pa.binary(2), [b"bb", b"aa", None, b"\x00\x00"]),
        (pa.date32(), [dt.date(2025, 1, 2), dt.date(1969, 1, 1), None, dt.date(2025, 1, 1)]),
        (pa.timestamp("ns", "UTC"), [5000, 3000, None, -1000]),
        (pa.time64("us"), [5, 3, None, 1]),
        (pa.duration("s"), [5, 3, None, -1]),
        (pa.decimal128(38, 5), [Decimal("5.5"), Decimal("-3"), None, Decimal("0")]),
        (pa.dictionary(pa.int32(), pa.string()), ["b", "a", None, "c"]),
    ],
    ids=str,
)
def test_every_orderable_type(place: Place, engine: Engine, kind: pa.DataType, values: list[object]) -> None:
    if kind == pa.string_view() and not oracle.parquet_has_views():
        pytest.skip("this PyArrow has no string views in Parquet")
    place.write_files(
        {
            "a.parquet": pa.table({"k": pa.array(values[:2], kind)}),
            "b.parquet": pa.table({"k": pa.array(values[2:], kind)}),
        }
    )
    place.dataset(engine=engine).optimize(["k"])
    (table,) = tables(place)
    found = table.column("k").to_pylist()
    assert found[-1] is None
    expected = sorted(pa.array([v for v in values if v is not None], kind).to_pylist())
    assert found[:-1] == expected
    assert table.schema.field("k").type == kind


def test_nan_comes_after_numbers_and_before_null(place: Place, engine: Engine) -> None:
    place.write_files({"a.parquet": pa.table({"k": [math.nan, 1.0, None, math.inf, -0.0, 0.0]})})
    place.dataset(engine=engine).optimize(["k"])
    found = tables(place)[0].column("k").to_pylist()
    assert found[:4] == [0.0, 0.0, 1.0, math.inf]
    assert math.isnan(found[4])
    assert found[5] is None


def test_more_data_than_memory(local: Place, engine: Engine) -> None:
    """Sorted runs are spilled and merged; order, rows, ties and NULLs are correct."""
    chance = random.Random(5)
    words = [
        None if chance.random() < 0.05 else f"word {chance.randrange(3000)} {'x' * 40}" for _ in range(60_000)
    ]
    table = pa.table(
        {
            "word": pa.array(words),
            "tag": pa.array([chance.choice("abc") for _ in words]).dictionary_encode(),
            "n": list(range(len(words))),
        }
    )
    local.write_files({f"f{n}.parquet": table.slice(n * 6000, 6000) for n in range(10)})
    before = local.rows()
    local.dataset(engine=engine, memory_mb=1).optimize(["word", "tag"], curve="linear")
    assert local.rows() == before
    (found,) = tables(local)
    assert in_order(keys(found, ["word", "tag"]))
    assert local.left_behind() == []


@pytest.mark.parametrize("columns", [["missing_col"], ["user_id", "nope"]])
def test_unknown_column(place: Place, engine: Engine, columns: list[str]) -> None:
    place.write_files({"f.parquet": visits(10, 1)})
    before = place.state()
    with pytest.raises(ValueError, match=f"{columns[-1]!r}; available columns: 'user_id', 'event_date', 'n'"):
        place.dataset(engine=engine).optimize(columns)
    assert place.state() == before
    assert place.left_behind() == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [([], "empty"), ("user_id", "list"), ([3], "names"), (["user_id", "user_id"], "twice"), (None, "list")],
)
def test_invalid_columns_are_refused(place: Place, columns: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place.dataset().optimize(columns)  # type: ignore[arg-type]


def test_column_without_an_order_is_refused(place: Place) -> None:
    place.write_files({"f.parquet": pa.table({"tags": [["a"], ["b"]]})})
    with pytest.raises(ValueError, match="ordered by 'tags'"):
        place.dataset().optimize(["tags"])


def test_column_that_exists_only_in_paths_is_refused(place: Place) -> None:
    place.write_files({"day=1/f.parquet": visits(10, 1)})
    with pytest.raises(ValueError, match=r"'day'.*only in the path.*available columns: 'user_id'"):
        place.dataset().optimize(["day"])


def test_helper_and_planner(place: Place) -> None:
    place.write_files({f"f{n}.parquet": visits(100, n) for n in range(4)})
    files = collect_dataset_stats(place.root, place.fs)["files"]
    plan = plan_optimize_groups(files, ["user_id"], files[0].schema, None, 150)
    dry = optimize_parquet_dataset_pyarrow(
        place.root, ["user_id"], target_rows_per_file=150, dry_run=True, filesystem=place.fs
    )
    assert plan["planned_stats"] == dry
    assert dry["after_file_count"] == 3
    done = optimize_parquet_dataset_pyarrow(place.root, ["user_id"], target_rows_per_file=150, filesystem=place.fs)
    assert done["after_file_count"] == 3
    with pytest.raises(ValueError, match="available columns"):
        plan_optimize_groups(files, ["nope"], files[0].schema)
    with pytest.raises(ValueError, match="available columns"):
        optimize_parquet_dataset_pyarrow(place.root, ["nope"], filesystem=place.fs)


def test_small_last_file_of_a_run_is_not_rewritten(memory: Place) -> None:
    """One small file per run is no reason for a rewrite; empty files are removed in the first run."""
    values = [[-74, -46, -14, -59], [76, -74, -88, -93, -74], [-90, 76, 56, -15, 105, -19, -79, -51, -40, -7]]
    values += [[48, -61, -10, 77, 100, 127, 43, -127, -128, -127, 70, -22], [], []]
    for number, found in enumerate(values):
        zeros = [94 if value == 105 else 0 for value in found]
        table = pa.table(
            {"a": found, "b": [0] * len(found), "c": zeros}, schema=pa.schema(dict.fromkeys("abc", pa.int8()))
        )
        memory.write_files({f"{number}.parquet": table})
    dataset = memory.dataset()
    dataset.optimize(["a", "b", "c"], target_rows_per_file=17)
    assert 0 not in [file.num_rows for file in dataset.files()]
    state = memory.state()
    assert dataset.optimize(["a", "b", "c"], target_rows_per_file=17)["compacted_file_count"] == 0
    assert memory.state() == state
