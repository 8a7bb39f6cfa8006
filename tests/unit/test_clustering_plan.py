"""Clustering plans from footers alone: the share that queries read, overlapping files, planning time."""

from __future__ import annotations

import math
import time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.files import file_of
from parketto.arguments import Thresholds
from parketto.parquet.clustering_metadata import RECORD, Clustering
from parketto.parquet.file_info import FileInfo, PhysicalTraits
from parketto.parquet.row_group_info import ColumnStats, RowGroupInfo
from parketto.planning.boxes import Boxes, along_curve
from parketto.planning.clustering import check_clustering, plan_clustering
from parketto.planning.rewrite import plan_compaction
from parketto.planning.skipping import column_reads, spans

SCHEMA = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.float64()})
TRAITS = PhysicalTraits(leaves=("None INT64 1/0", "String BYTE_ARRAY 1/0", "None DOUBLE 1/0"))


def group(low: Any, high: Any, nulls: int | None = 0, rows: int = 10) -> RowGroupInfo:
    return RowGroupInfo(rows, rows * 100, columns={"k": ColumnStats(low, high, nulls)})


NAN, INF = math.nan, math.inf
BOUNDS: dict[str, list[RowGroupInfo]] = {
    "NaN": [group(NAN, NAN), group(0.0, 1.0)],
    "unknown": [group(None, None, None), group(0, 1)],
    "only one bound": [group(None, 5), group(5, None), group(0, 1)],
    "infinity": [group(-INF, INF), group(0.0, 1.0)],
    "the largest numbers": [group(-1.7e308, 1.7e308), group(0.0, 1.0), group(1e308, 1.7e308)],
    "the smallest numbers": [group(5e-324, 1e-323), group(0.0, 5e-324)],
    "only NULLs": [group(None, None, 10), group(None, None, 10)],
    "no rows": [group(None, None, 0, rows=0), group(1, 5, rows=0), RowGroupInfo(0, 0)],
    "texts and numbers": [group(1, 5), group(3, 9), group("a", "b")],
    "texts and bytes": [group(b"a", b"c"), group("a", "b")],
    "booleans": [group(False, True), group(True, True)],
    "decimals and numbers": [group(Decimal(1), Decimal(2) ** 200), group(1.5, 3)],
    "a text that begins another": [group("abc", "abcz"), group("abcd", "abcx"), group("", "abc")],
    "the other way round": [group(5, 1), group(0, 1)],
    "all the same": [group(5, 5)] * 4,
    "unsigned": [group(0, 2**64 - 1), group(2**64 - 1, 2**64 - 1), group(-1, 2)],
    "no statistics": [RowGroupInfo(10, 100)] * 3,
    "nothing": [],
}


@pytest.mark.parametrize("name", BOUNDS)
def test_estimated_reads_stay_in_range_for_any_bounds(name: str) -> None:
    found = column_reads(BOUNDS[name], "k")
    assert 0 <= found["point"] <= 1
    assert 0 <= found["range"] <= 1
    assert 0 <= found["depth"] <= len(BOUNDS[name])


def test_row_groups_without_bounds_are_always_read_and_empty_ones_never() -> None:
    found = spans([group(None, None, None), group(None, None, 10), group(0, 9), RowGroupInfo(0, 0)], "k")
    assert found.point.tolist() == [1, 0, 1, 0]
    assert found.range[[0, 1, 3]].tolist() == [1, 0, 0]


@pytest.mark.parametrize("kind", ["numbers", "texts", "decimals"])
def test_estimates_do_not_depend_on_the_column_type(kind: str) -> None:
    chance = np.random.default_rng(3)
    lows = chance.integers(0, 900, 60)
    highs = lows + chance.integers(1, 100, 60)
    plain = spans([group(int(low), int(high)) for low, high in zip(lows, highs, strict=True)], "k")
    make = {"numbers": float, "texts": lambda n: f"n{n:06d}", "decimals": Decimal}[kind]
    other = spans([group(make(int(low)), make(int(high))) for low, high in zip(lows, highs, strict=True)], "k")
    assert other.depth == plain.depth
    assert np.allclose(other.point, plain.point, atol=0.06)


def boxes(count: int, seed: int, columns: int, width: float) -> list[FileInfo]:
    chance = np.random.default_rng(seed)
    files = []
    for number in range(count):
        low = chance.random((2, columns))
        groups = tuple(
            RowGroupInfo(10, 1000, columns={f"c{at}": ColumnStats(x, x + width, 0) for at, x in enumerate(corner)})
            for corner in low.tolist()
        )
        files.append(FileInfo(f"r/{number:04d}.parquet", 2000, 20, row_groups=groups))
    return files


@pytest.mark.parametrize("columns", [1, 2, 3, 8, 20])
def test_every_file_that_overlaps_new_files_is_found(columns: int) -> None:
    """Compared with all pairs of row groups: the grid may find a few more files, never fewer."""
    files, names = boxes(60, columns, columns, 0.1), [f"c{at}" for at in range(columns)]
    paths = {file.path for file in files[:2]}

    def meet(one: RowGroupInfo, other: RowGroupInfo) -> bool:
        return all(
            one.columns[name].min <= other.columns[name].max and other.columns[name].min <= one.columns[name].max
            for name in names
        )

    expected = {
        file.path
        for file in files[2:]
        if any(meet(mine, new) for mine in file.row_groups for each in files[:2] for new in each.row_groups)
    }
    new, met = Boxes(files, names).meeting(paths)
    assert [file.path for file in new] == sorted(paths)
    assert expected <= {file.path for file in met}
    if columns in (2, 3):
        assert len(met) <= len(expected) + 25


def laid_out(
    count: int, groups: int, columns: tuple[str, ...] = ("a", "b"), curve: str = "hilbert"
) -> list[FileInfo]:
    """Files that are clustered by columns: small boxes spread over the whole space."""
    chance = np.random.default_rng(1)
    metadata = {RECORD: Clustering(columns, curve).record()}
    return [
        synthetic(f"r/{number:06d}.parquet", chance.random((groups, 2)), 0.03, columns, metadata)
        for number in range(count)
    ]


def appended(count: int, groups: int, width: float, low: float = 0.4) -> list[FileInfo]:
    return [
        synthetic(f"r/new{number:05d}.parquet", np.full((groups, 2), low), width, (), {})
        for number in range(count)
    ]


def synthetic(
    path: str, corners: np.ndarray, width: float, columns: tuple[str, ...], metadata: dict[bytes, bytes]
) -> FileInfo:
    groups = tuple(
        RowGroupInfo(
            1000,
            100_000,
            columns,
            {
                "a": ColumnStats(int(x * 1e9), int((x + width) * 1e9), 0),
                "b": ColumnStats(f"{int(y * 1e9):012d}", f"{int((y + width) * 1e9):012d}", 0),
                "c": ColumnStats(x, x + width, 0),
            },
        )
        for x, y in corners.tolist()
    )
    size = len(groups)
    return FileInfo(
        path, 100_000 * size, 1000 * size, schema=SCHEMA, traits=TRAITS, metadata=metadata, row_groups=groups
    )


def seconds(files: list[FileInfo], columns: list[str], curve: str) -> float:
    started = time.process_time()
    plan_clustering(files, check_clustering(columns, curve), Thresholds.of(1, None))
    return time.process_time() - started


CURVES = pytest.mark.parametrize(
    ("columns", "curve"), [(["a", "b"], "hilbert"), (["a", "b"], "linear"), (["c"], "linear")]
)


@CURVES
def test_planning_time_is_not_quadratic(columns: list[str], curve: str) -> None:
    few, many = laid_out(300, 10), laid_out(2400, 10)
    new = appended(50, 10, 0.05)
    short = seconds([*few, *new], columns, curve)
    assert seconds([*many, *new], columns, curve) < 30 * short, "eight times the files"


@pytest.mark.sweep
@CURVES
def test_a_hundred_thousand_row_groups_are_planned_in_seconds(columns: list[str], curve: str) -> None:
    files = [*laid_out(10_000, 10), *appended(50, 10, 0.05)]
    assert seconds(files, columns, curve) < 5


def test_many_runs_of_files_out_of_order_are_planned_in_seconds() -> None:
    files = []
    for number in range(10_000):
        corner = np.array([[number / 10_000 - (0.00015 if number % 4 == 1 else 0), 0.5]])
        files.append(synthetic(f"r/{number:06d}.parquet", corner, 0.00009, ("a",), {}))
    started = time.process_time()
    plan = plan_clustering(files, check_clustering(["a"]), Thresholds.of(0.1, None))
    assert len(plan.groups) > 1000
    assert time.process_time() - started < 5


def test_many_columns_are_planned_in_seconds() -> None:
    files, names = boxes(700, 4, 40, 0.3), [f"c{at}" for at in range(40)]
    started = time.process_time()
    plan_clustering(files, check_clustering(names), Thresholds.of(1, None))
    assert time.process_time() - started < 5


def test_plan_for_new_rows_includes_the_distribution_of_untouched_rows() -> None:
    old, new = laid_out(300, 4), appended(10, 4, 0.02)
    plan = plan_clustering([*old, *new], check_clustering(["a", "b"]), Thresholds.of(1, None))
    (chosen,) = plan.groups
    assert {file.path for file in new} <= set(chosen.paths)
    assert len(chosen.files) < 100
    rows = sum(file.num_rows for file in plan.untouched)
    for around, kind in zip(chosen.surroundings, (pa.int64(), pa.string()), strict=True):
        assert around is not None
        assert around.values.type == kind
        assert around.weights.sum() == pytest.approx(rows)


@pytest.mark.parametrize(
    "kind",
    [
        pa.float16(), pa.uint64(), pa.bool_(), pa.large_string(), pa.string_view(), pa.binary(3), pa.date32(),
        pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("s"), pa.timestamp("ms", "UTC"),
        pa.timestamp("ns", "Europe/Rome"), pa.duration("us"), pa.decimal32(5, 2), pa.decimal256(76, 2),
        pa.dictionary(pa.int8(), pa.string()), pa.null(),
    ],
    ids=str,
)  # fmt: skip
def test_bounds_of_untouched_files_are_usable_for_every_type(kind: pa.DataType) -> None:
    """Bounds of untouched files have the type in which rows are read."""
    from parketto.parquet.decoded_types import decoded_schema
    from parketto.planning.clustering import _surroundings
    from parketto.sorting.buckets import cut_buckets

    texts = pa.array([f"{value:03d}" for value in range(80)])
    if pa.types.is_dictionary(kind):
        column = texts.dictionary_encode().cast(kind)
    elif pa.types.is_null(kind):
        column = pa.nulls(80)
    elif pa.types.is_fixed_size_binary(kind):
        column = texts.cast(pa.binary()).cast(kind)
    elif pa.types.is_decimal(kind):
        column = pa.array([Decimal(value) for value in range(80)], kind)
    elif pa.types.is_date64(kind):
        column = pa.array(range(80), pa.int32()).cast(pa.date32()).cast(kind)
    elif pa.types.is_temporal(kind):
        column = pa.array(range(80), kind)
    else:
        column = texts.cast(kind) if "string" in str(kind) else pa.array(range(80)).cast(kind)
    file = file_of(pa.table({"k": column}), row_group_size=20)
    (around,) = _surroundings([file], ["k"])
    assert (around is None) == pa.types.is_null(kind)
    assert file.schema is not None
    read = (
        pa.table({"k": column})
        .cast(file.schema.remove_metadata())
        .cast(decoded_schema(file.schema).remove_metadata())
    )
    found = cut_buckets(read, ["k"], "hilbert", 4, None, [around], 1.0)
    numbers = found.of([read["k"].combine_chunks()])
    assert len(set(numbers.tolist())) >= 3
    if kind not in (pa.null(), pa.bool_()):  # rows with equal keys are distributed round-robin
        assert (np.diff(numbers) >= 0).all()


def test_along_curve_reorders_only_files_with_a_clustering_record() -> None:
    plain = appended(5, 1, 0.1)
    assert along_curve(plain) == plain
    files = laid_out(40, 1)
    ordered = along_curve(files)
    assert sorted(file.path for file in ordered) == [file.path for file in files]
    assert ordered != files


def test_clustering_record_is_ignored_without_sorted_row_groups() -> None:
    file = laid_out(1, 4)[0]
    assert file.clustering == Clustering(("a", "b"), "hilbert")
    copied = [RowGroupInfo(each.num_rows, each.total_byte_size, (), each.columns) for each in file.row_groups]
    assert FileInfo("x", 1, 1, metadata=file.metadata, row_groups=tuple(copied)).clustering is None
    half = FileInfo("x", 1, 1, metadata=file.metadata, row_groups=(*copied[:2], *file.row_groups[2:]))
    assert half.clustering is not None


def test_files_with_a_stale_clustering_record_are_packed_separately() -> None:
    files = laid_out(2, 1)
    copies = [
        FileInfo(
            f"r/copy{number}.parquet",
            file.size_bytes,
            file.num_rows,
            schema=SCHEMA,
            traits=TRAITS,
            metadata=file.metadata,
            row_groups=(RowGroupInfo(1000, 100_000, (), file.row_groups[0].columns),),
        )
        for number, file in enumerate(files)
    ]
    plan = plan_compaction([*files, *copies], Thresholds.of(1, None))
    assert sorted(sorted(group.paths) for group in plan.groups) == [
        ["r/000000.parquet", "r/000001.parquet"],
        ["r/copy0.parquet", "r/copy1.parquet"],
    ]
    assert all((RECORD in group.metadata) == ("copy" not in group.paths[0]) for group in plan.groups)


@pytest.mark.parametrize("seed", range(50))
def test_no_file_is_in_two_groups(seed: int) -> None:
    """Some files are worth clustering, and overlap small ones that alone are not."""
    random = np.random.default_rng(seed)
    files = []
    for number in range(int(random.integers(2, 9))):
        rows, groups = int(random.choice([10, 1000, 100_000])), []
        for _ in range(int(random.integers(1, 5))):
            low = random.integers(0, 90, 2).tolist()
            high = [end + 10 for end in low] if random.random() < 0.5 else [99, 99]
            stats = {name: ColumnStats(*ends, 0) for name, *ends in zip("ab", low, high, strict=True)}
            groups.append(RowGroupInfo(rows, rows * 16, columns=stats))
        files.append(
            FileInfo(
                f"d/{number}.parquet",
                rows * 16 * len(groups),
                rows * len(groups),
                schema=pa.schema({"a": pa.int64(), "b": pa.int64()}),
                traits=PhysicalTraits(leaves=("None INT64 1/0",) * 2),
                row_groups=tuple(groups),
            )
        )
    plan = plan_clustering(files, Clustering(("a", "b"), "hilbert"), Thresholds(128 * 1024 * 1024, None))
    paths = [path for each in plan.groups for path in each.paths]
    assert len(paths) == len(set(paths))
    assert sorted([*paths, *(file.path for file in plan.untouched)]) == sorted(file.path for file in files)
