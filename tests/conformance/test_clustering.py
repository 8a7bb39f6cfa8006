"""Clustering along a curve, the same on every engine: metadata is correct, and a second run rewrites nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from parketto.engines.base import Engine

RECORD = b"parketto.clustering"
CURVES = ("hilbert", "zorder")


def visits(rows: int, seed: int, *, first: int = 0, low: float = 0.0, high: float = 1.0) -> pa.Table:
    chance = np.random.default_rng(seed)
    users = (low + (high - low) * chance.random(rows)) * 100_000
    words = (low + (high - low) * chance.random(rows)) * 1_000_000
    return pa.table(
        {
            "user": pa.array(users.astype(np.int64), mask=chance.random(rows) < 0.02),
            "word": [f"the same beginning {int(number):06d}" for number in words],
            "n": np.arange(rows) + first,
        }
    )


def parquet(place: Place, name: str) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(bytes(place.fs.cat_file(f"{place.root}/{name}"))))


def record(place: Place, name: str) -> dict[str, Any] | None:
    found = (parquet(place, name).metadata.metadata or {}).get(RECORD)
    return None if found is None else json.loads(found)


def declared(file: pq.ParquetFile, number: int) -> list[str]:
    group = file.metadata.row_group(number)
    return [group.column(each.column_index).path_in_schema for each in group.sorting_columns]


def in_order(table: pa.Table, columns: list[str]) -> bool:
    lists = [table.column(name).to_pylist() for name in columns]
    keys = [
        [
            (value is None, value is not None and value != value, 0 if value is None or value != value else value)
            for value in row
        ]
        for row in zip(*lists, strict=True)
    ]
    return keys == sorted(keys)


def check_declared_order(place: Place) -> int:
    """Check that row groups are sorted as they declare; returns how many declare an order."""
    found = 0
    for name in place.files():
        file = parquet(place, name)
        for number in range(file.num_row_groups):
            columns = declared(file, number)
            found += bool(columns)
            assert in_order(file.read_row_group(number), columns), (name, number)
    return found


def row_groups(place: Place) -> list[tuple[str, pa.Table]]:
    return [
        (name, parquet(place, name).read_row_group(number))
        for name in place.files()
        for number in range(parquet(place, name).num_row_groups)
    ]


def sizes(place: Place) -> dict[str, int]:
    return {name: place.fs.size(f"{place.root}/{name}") for name in place.files()}


@pytest.mark.parametrize("curve", CURVES)
def test_files_record_their_clustering_correctly(local: Place, engine: Engine, curve: str) -> None:
    local.write_files(
        {f"day={day}/f{n}.parquet": visits(4000, day * 10 + n) for day in (1, 2) for n in range(3)},
        compression="zstd",
    )
    before, schemas = local.rows(), oracle.schemas(local.root, local.fs)
    stats = local.dataset(engine=engine).optimize(["user", "word"], target_rows_per_file=3000, curve=curve)
    assert local.rows() == before, "rows keep their partition"
    assert all(schema.equals(schemas[0], check_metadata=True) for schema in oracle.schemas(local.root, local.fs))
    for name in local.files():
        file = parquet(local, name)
        assert file.metadata.num_rows <= 3000
        found = record(local, name)
        assert found is not None
        assert (found["columns"], found["curve"]) == (["user", "word"], curve)
        assert [declared(file, number) for number in range(file.num_row_groups)] == [
            ["user", "word"]
        ] * file.num_row_groups
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert check_declared_order(local) >= 8
    assert (stats["curve"], stats["zorder_columns"]) == (curve, ["user", "word"])
    assert stats["compacted_file_count"] == 6
    assert 8 <= stats["after_file_count"] <= 12
    assert stats["unchanged_because"] is None


@pytest.mark.parametrize("edit", ["delete", "update", "update of the columns", "merge"])
def test_edited_files_still_declare_the_correct_order(local: Place, engine: Engine, edit: str) -> None:
    """In a file of many sorted row groups, no row may end up in another row group."""
    local.write_files({"f.parquet": visits(8_000, 1)})
    dataset = local.dataset(engine=engine)
    dataset.optimize(["user", "word"], target_mb_per_file=0.05)
    groups = len(row_groups(local))
    assert groups > 5
    if edit == "delete":
        dataset.delete("n % 10 = 3")
    elif edit == "update":
        dataset.update("n % 10 = 3", {"n": -1})
    elif edit == "update of the columns":
        dataset.update("n % 10 = 3", {"user": 5})
    else:
        dataset.merge(visits(50, 2), ["n"])
    check_declared_order(local)
    assert len(row_groups(local)) >= groups - 1, "edits keep the boundaries of row groups"
    rows = local.rows()
    dataset.optimize(["user", "word"], target_mb_per_file=0.05)
    assert local.rows() == rows
    check_declared_order(local)
    assert dataset.optimize(["user", "word"], target_mb_per_file=0.05)["compacted_file_count"] == 0


def test_second_run_rewrites_nothing_and_reports_why(local: Place, engine: Engine) -> None:
    local.write_files({f"f{n}.parquet": visits(5000, n) for n in range(4)})
    dataset = local.dataset(engine=engine)
    dry = dataset.optimize(["user", "word"], target_rows_per_file=3000, dry_run=True)
    assert dry["planned_groups"] == [oracle.data_files(local.root, local.fs)]
    done = dataset.optimize(["user", "word"], target_rows_per_file=3000)
    assert done["planned_groups"] == dry["planned_groups"]
    assert abs(done["after_file_count"] - dry["after_file_count"]) <= 1
    for column in ("user", "word"):
        planned, came = dry["expected_reads"][column], done["expected_reads"][column]
        assert planned["before"] == came["before"]
        assert planned["before"]["range"] > 0.9
        assert came["after"]["range"] < 0.7
        assert came["after"]["range"] == pytest.approx(planned["after"]["range"], rel=0.35)
    state = local.state()
    again = dataset.optimize(["user", "word"], target_rows_per_file=3000)
    assert local.state() == state
    assert (again["compacted_file_count"], again["rewritten_bytes"]) == (0, 0)
    assert again["unchanged_because"] == "already laid out by these columns"
    assert again["expected_reads"]["user"]["before"] == again["expected_reads"]["user"]["after"]
    for columns, curve in ((["user", "n"], "hilbert"), (["user", "n"], "linear"), (["user", "word"], "hilbert")):
        assert dataset.optimize(columns, target_rows_per_file=3000, curve=curve)["compacted_file_count"] > 0
    check_declared_order(local)


def test_files_of_the_target_size_are_still_clustered(local: Place, engine: Engine) -> None:
    local.write_files({f"f{n:02d}.parquet": numbers(500, n) for n in range(16)})
    stats = local.dataset(engine=engine).optimize(["a", "b"], target_rows_per_file=500)
    assert stats["compacted_file_count"] == 16
    assert max(reads_of_a_range(local, name) for name in ("a", "b")) < 0.5


def test_another_curve_rewrites_the_files(local: Place) -> None:
    local.write_files({f"f{n}.parquet": numbers(30_000, n) for n in range(2)})
    dataset = local.dataset()
    for curve in ("zorder", "linear", "hilbert"):
        assert dataset.optimize(["a", "b"], target_mb_per_file=0.1, curve=curve)["compacted_file_count"] > 0, curve
        assert {record(local, name)["curve"] for name in local.files()} == {curve}


@pytest.mark.parametrize("curve", CURVES)
def test_clustering_by_one_column_sorts(place: Place, engine: Engine, curve: str) -> None:
    place.write_files({f"f{n}.parquet": visits(500, n) for n in range(3)})
    before = place.rows()
    stats = place.dataset(engine=engine).optimize(["word"], target_rows_per_file=400, curve=curve)
    assert stats["curve"] == "linear"
    assert place.rows() == before
    words = [word for name in place.files() for word in parquet(place, name).read()["word"].to_pylist()]
    assert words == sorted(words)
    assert {record(place, name)["curve"] for name in place.files()} == {"linear"}


def numbers(rows: int, seed: int, low: float = 0.0, high: float = 1.0) -> pa.Table:
    chance = np.random.default_rng(seed)
    return pa.table(
        {
            "a": low + (high - low) * chance.random(rows),
            "b": low + (high - low) * chance.random(rows),
            "n": chance.integers(0, 2**60, rows),
        }
    )


@pytest.mark.parametrize("curve", CURVES)
def test_files_have_about_the_target_size(local: Place, merge_engine: Engine, curve: str) -> None:
    local.write_files({f"f{n}.parquet": numbers(30_000, n) for n in range(4)})
    local.dataset(engine=merge_engine).optimize(["a", "b"], target_mb_per_file=0.5, curve=curve)
    found = [size / 2**19 for size in sizes(local).values()]
    assert max(found) <= 1.35, found
    if isinstance(merge_engine, str):
        assert all(size >= 0.7 for size in found[:-1]), found
    else:  # a shuffle leaves a smaller last file in each of its partitions
        assert np.mean(found) > 0.6, found


def test_samples_do_not_correlate_with_data_of_the_same_random_generator(local: Place) -> None:
    """With the same seed, values would decide which rows are sampled."""
    local.write_files({"f.parquet": numbers(150_000, 0)})
    local.dataset().optimize(["a", "b"], target_mb_per_file=0.5)
    rows = [table.num_rows for _, table in row_groups(local)]
    assert max(rows) < 1.6 * np.mean(rows), rows


def reads_of_a_range(place: Place, column: str, queries: int = 300) -> float:
    """The share of row groups that a range query over 1 % of the rows has to read."""
    values = [np.asarray(table.column(column).drop_null().combine_chunks()) for _, table in row_groups(place)]
    everything = np.sort(np.concatenate(values))
    low = np.array([found.min() for found in values])
    high = np.array([found.max() for found in values])
    rows = len(everything)
    starts = np.linspace(0, rows * 0.99 - 1, queries).astype(int)
    ends = np.minimum(starts + rows // 100, rows - 1)
    return float(
        np.mean(
            [((low <= everything[e]) & (high >= everything[s])).mean() for s, e in zip(starts, ends, strict=True)]
        )
    )


def spread(kind: str, rows: int) -> pa.Table:
    chance = np.random.default_rng(11)
    a = chance.random(rows)
    if kind == "correlated":
        return pa.table({"a": a, "b": a + chance.random(rows) * 0.1})
    if kind == "few are many":
        return pa.table({"a": chance.zipf(1.5, rows).clip(max=10**6), "b": a})
    if kind == "texts":
        return pa.table({"a": [f"https://example.org/{int(v * 10**9):010d}" for v in a], "b": chance.random(rows)})
    return pa.table({"a": a, "b": chance.random(rows)})


@pytest.mark.parametrize("kind", ["evenly spread", "correlated", "few are many", "texts"])
def test_expected_reads_match_measured_reads(local: Place, kind: str) -> None:
    local.write_files({"f.parquet": spread(kind, 40_000)}, row_group_size=2000)
    stats = local.dataset().optimize(["a", "b"], target_mb_per_file=0.1)
    for column in ("a", "b"):
        expected = stats["expected_reads"][column]["after"]["range"]
        assert expected == pytest.approx(reads_of_a_range(local, column), rel=0.2), column


@pytest.mark.parametrize(("dimensions", "engine_name"), [(2, "pyarrow"), (3, "pyarrow")])
def test_pruning_of_uniform_data_is_close_to_optimal(local: Place, dimensions: int, engine_name: str) -> None:
    chance = np.random.default_rng(1)
    columns = [f"c{at}" for at in range(dimensions)]
    local.write_files({"f.parquet": pa.table({name: chance.random(130_000) for name in columns})})
    local.dataset(engine=engine_name).optimize(columns, target_mb_per_file=0.125)
    groups = len(row_groups(local))
    assert groups > 50
    shares = [reads_of_a_range(local, name) for name in columns]
    assert np.mean(shares) <= 1.35 * (groups ** (-1 / dimensions) + 0.01), (groups, shares)


def optimized(place: Place, rows: int = 100_000, curve: str = "hilbert") -> tuple[Any, dict[str, int]]:
    place.write_files({"base.parquet": numbers(rows, 1)})
    dataset = place.dataset()
    dataset.optimize(["a", "b"], target_mb_per_file=0.125, curve=curve)
    return dataset, sizes(place)


@pytest.mark.parametrize("curve", ["hilbert", "zorder", "linear"])
def test_only_files_that_new_rows_overlap_are_rewritten(local: Place, curve: str) -> None:
    dataset, before = optimized(local, curve=curve)
    state = local.state()
    local.write_files({"new.parquet": numbers(20_000, 2, low=0.5, high=0.52)})
    rows, total = local.rows(), sum(sizes(local).values())
    narrow = dataset.optimize(["a", "b"], target_mb_per_file=0.125, curve=curve)
    assert local.rows() == rows
    assert "new.parquet" not in local.files()
    kept = {name: content for name, content in local.state().items() if name in state}
    assert all(state[name] == content for name, content in kept.items())
    assert len(kept) > 0.5 * len(before)
    assert narrow["rewritten_bytes"] < 0.4 * total
    local.write_files({"wide.parquet": numbers(50_000, 3)})
    wide = dataset.optimize(["a", "b"], target_mb_per_file=0.125, curve=curve)
    assert wide["rewritten_bytes"] > 2 * narrow["rewritten_bytes"]
    assert dataset.optimize(["a", "b"], target_mb_per_file=0.125, curve=curve)["compacted_file_count"] == 0
    check_declared_order(local)


@pytest.mark.parametrize("curve", ["hilbert", "linear"])
def test_appended_ranges_without_overlap_rewrite_few_old_files(local: Place, curve: str) -> None:
    dataset, before = optimized(local, curve=curve)
    for step in range(1, 4):
        state, old = local.state(), local.files()
        local.write_files({f"new{step}.parquet": numbers(15_000, step, low=float(step), high=step + 1.0)})
        stats = dataset.optimize(["a", "b"], target_mb_per_file=0.125, curve=curve)
        assert stats["compacted_file_count"] >= 1
        assert sum(name not in local.files() for name in old) <= 2, "at most one neighbour and one small last file"
        assert all(state[f"/{name}"] == local.state()[f"/{name}"] for name in old if name in local.files())
    assert len(local.files()) <= len(before) + 12


def test_a_few_scattered_rows_cause_no_rewrite(local: Place) -> None:
    dataset, _ = optimized(local)
    local.write_files({"new.parquet": numbers(20, 2)})
    state = local.state()
    stats = dataset.optimize(["a", "b"], target_mb_per_file=0.125)
    assert stats["compacted_file_count"] == 0
    assert local.state() == state
    assert stats["unchanged_because"].startswith("already laid out: a range of 1 % reads")


def test_many_small_appends_cause_few_large_rewrites(local: Place) -> None:
    dataset, before = optimized(local, 40_000)
    rewritten, counts = [], []
    for step in range(14):
        local.write_files({f"new{step}.parquet": numbers(100, step + 10)})
        stats = dataset.optimize(["a", "b"], target_mb_per_file=0.125)
        rewritten.append(stats["rewritten_bytes"])
        counts.append(stats["after_file_count"])
    assert max(counts) <= len(before) + 12, counts
    assert 0 < sum(size > 0.2 * sum(before.values()) for size in rewritten) <= 5, "neither always nor never"
    assert sum(local.rows().values()) == 40_000 + 14 * 100


def test_compaction_keeps_the_clustering(local: Place, engine: Engine) -> None:
    local.write_files({"f.parquet": numbers(30_000, 1)})
    dataset = local.dataset(engine=engine)
    dataset.optimize(["a", "b"], target_mb_per_file=0.05)
    before, old = local.rows(), row_groups(local)
    reads = [reads_of_a_range(local, name) for name in ("a", "b")]
    local.write_files({"plain1.parquet": numbers(500, 2), "plain2.parquet": numbers(500, 3)})
    local.write_files({"copy.parquet": parquet(local, local.files()[0]).read()})
    assert record(local, "copy.parquet") is not None, "other programs copy key-value metadata along with rows"
    rows = local.rows()
    dataset.compact(target_mb_per_file=0.2)
    assert local.rows() == rows
    laid_out = [name for name in local.files() if declared(parquet(local, name), 0)]
    assert all(record(local, name)["curve"] == "hilbert" for name in laid_out)
    assert sum(parquet(local, name).num_row_groups for name in laid_out) == len(old), (
        "row groups stay as they were"
    )
    contents = {tuple(table["n"].to_pylist()) for _, table in old}
    assert {tuple(table["n"].to_pylist()) for name, table in row_groups(local) if name in laid_out} == contents
    others = [name for name in local.files() if name not in laid_out]
    assert sum(parquet(local, name).metadata.num_rows for name in others) == sum(rows.values()) - sum(
        before.values()
    )
    for name in others:
        local.fs.rm(f"{local.root}/{name}")
    assert [reads_of_a_range(local, name) for name in ("a", "b")] == reads
    check_declared_order(local)
    assert dataset.optimize(["a", "b"], target_mb_per_file=0.2)["compacted_file_count"] == 0


def test_compaction_merges_neighbours_along_the_curve(local: Place) -> None:
    local.write_files({"f.parquet": numbers(60_000, 1)})
    dataset = local.dataset()
    dataset.optimize(["a", "b"], target_mb_per_file=0.05)
    for number, name in enumerate(local.files()):  # file names are in no relation to the positions of rows
        local.fs.mv(f"{local.root}/{name}", f"{local.root}/{number * 7919 % 1009:04d}.parquet")
    count = len(local.files())
    dataset.compact(target_mb_per_file=0.2)
    assert len(local.files()) <= 0.4 * count
    areas = []
    for name in local.files():
        table = parquet(local, name).read()
        sides = [np.ptp(np.asarray(table.column(column))) for column in ("a", "b")]
        areas.append(sides[0] * sides[1])
    assert sum(areas) < 2.5, areas


def test_clustering_metadata_copied_by_other_writers_is_ignored(place: Place) -> None:
    place.write_files({f"f{n}.parquet": visits(4000, n) for n in range(3)})
    dataset = place.dataset()
    dataset.optimize(["user", "word"], target_rows_per_file=2000)
    mixed = dataset.read().take(pa.array(np.random.default_rng(1).permutation(12_000)))
    dataset.write(mixed, "overwrite")
    assert all(record(place, name) is None for name in place.files())
    assert dataset.optimize(["user", "word"], target_rows_per_file=2000)["compacted_file_count"] > 0
    names = place.files()
    found = parquet(place, names[0]).metadata.metadata[RECORD]
    for name in names:
        place.fs.rm(f"{place.root}/{name}")
    place.write_files({"copied.parquet": mixed.replace_schema_metadata({RECORD: found})})
    assert record(place, "copied.parquet") is not None
    assert dataset.optimize(["user", "word"], target_rows_per_file=2000)["compacted_file_count"] == 1


@pytest.mark.parametrize("words", [b"{}", b"[]", b"\xff", b'{"columns": [], "curve": "hilbert"}', b"[" * 100_000])
def test_invalid_clustering_metadata_is_ignored(place: Place, words: bytes) -> None:
    place.write_files({f"f{n}.parquet": visits(50, n).replace_schema_metadata({RECORD: words}) for n in range(3)})
    before = place.rows()
    place.dataset().compact()
    assert place.rows() == before
    place.dataset().optimize(["user", "word"], target_rows_per_file=50)
    assert place.rows() == before


def test_repartition_drops_the_clustering(local: Place, engine: Engine) -> None:
    local.write_files({"f.parquet": visits(2000, 1).append_column("day", pa.array([n % 2 for n in range(2000)]))})
    dataset = local.dataset(engine=engine)
    dataset.optimize(["user", "word"], target_rows_per_file=500)
    dataset.repartition(["day"])
    assert all(record(local, name) is None for name in local.files())
    assert not any(declared(parquet(local, name), 0) for name in local.files())
    assert dataset.optimize(["user", "word"], target_rows_per_file=500)["compacted_file_count"] == 2
    assert all("day=" in name for name in local.files())


SKEWED = {
    "half are one value": lambda chance, rows: np.where(
        chance.random(rows) < 0.5, 7, chance.integers(0, 10**6, rows)
    ),
    "half are NULL": lambda chance, rows: pa.array(
        chance.integers(0, 10**6, rows), mask=chance.random(rows) < 0.5
    ),
    "all are NULL": lambda chance, rows: pa.nulls(rows, pa.int64()),
}


@pytest.mark.parametrize("skew", SKEWED)
def test_skewed_values_make_files_neither_too_large_nor_too_many(
    local: Place, merge_engine: Engine, skew: str
) -> None:
    chance = np.random.default_rng(4)
    for number in range(3):
        table = pa.table(
            {"a": SKEWED[skew](chance, 4000), "b": SKEWED[skew](chance, 4000), "n": np.arange(4000) + number}
        )
        local.write_files({f"f{number}.parquet": table})
    before = local.rows()
    dataset = local.dataset(engine=merge_engine)
    stats = dataset.optimize(["a", "b"], target_rows_per_file=1300)
    assert local.rows() == before
    assert all(parquet(local, name).metadata.num_rows <= 1300 for name in local.files())
    assert stats["after_file_count"] <= 16
    check_declared_order(local)
    assert dataset.optimize(["a", "b"], target_rows_per_file=1300)["compacted_file_count"] == 0


def test_column_names_that_engines_use_internally(local: Place, merge_engine: Engine) -> None:
    names = ["bucket", "part", "seq", "bucket_", "c0", "0", "run", "A", "a"]
    chance = np.random.default_rng(3)
    local.write_files(
        {f"f{n}.parquet": pa.table({name: chance.integers(0, 50, 400) for name in names}) for n in range(2)}
    )
    before = local.rows()
    local.dataset(engine=merge_engine).optimize(["bucket", "part", "seq", "A", "a"], target_rows_per_file=200)
    assert local.rows() == before
    assert check_declared_order(local) >= 4


def test_mixed_schemas_dictionaries_and_empty_files(local: Place, engine: Engine) -> None:
    """Two schemas in one directory, a different dictionary per file, empty files, one without statistics."""
    chance = np.random.default_rng(3)

    def words(number: int) -> pa.Array:
        return pa.array([f"{number}-{value}" for value in chance.integers(0, 40, 300)]).dictionary_encode()

    for number in range(3):
        table = pa.table({"a": words(number).cast(pa.dictionary(pa.int8(), pa.string())), "b": chance.random(300)})
        local.write_files({f"d{number}.parquet": table}, write_statistics=number > 0)
    local.write_files(
        {"empty.parquet": table.slice(0, 0), "i.parquet": pa.table({"a": range(300), "b": range(300)})}
    )
    before = local.rows()
    schemas = sorted(map(str, oracle.schemas(local.root, local.fs)))
    stats = local.dataset(engine=engine).optimize(["a", "b"], target_rows_per_file=100, schema="exact")
    assert local.rows() == before
    assert set(map(str, oracle.schemas(local.root, local.fs))) == set(schemas)
    for reads in stats["expected_reads"].values():
        assert all(0 <= each[key] <= 1 for each in reads.values() for key in ("point", "range"))
    check_declared_order(local)


EXTREMES = {
    "nothing at all": pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())}),
    "one row": pa.table({"a": [1], "b": ["x"]}),
    "only NULLs": pa.table({"a": pa.nulls(300, pa.int64()), "b": pa.nulls(300, pa.string())}),
    "no type": pa.table({"a": pa.nulls(300), "b": range(300)}),
    "all equal": pa.table({"a": [1] * 300, "b": ["x"] * 300}),
    "the largest numbers": pa.table(
        {"a": [-1.7e308, 1.7e308, 0.0, float("inf"), 5e-324, -0.0] * 50, "b": [float("nan"), None, 1.0] * 100}
    ),
    "decimals of 76 digits": pa.table(
        {"a": pa.array(range(300), pa.int64()).cast(pa.decimal256(70, 3)), "b": range(300, 0, -1)}
    ),
    "half precision": pa.table(
        {"a": np.linspace(-5, 5, 300).astype(np.float16), "b": np.linspace(5, -5, 300).astype(np.float16)}
    ),
}


@pytest.mark.parametrize("curve", ["hilbert", "linear"])
@pytest.mark.parametrize("what", EXTREMES)
def test_extreme_values(local: Place, engine: Engine, what: str, curve: str) -> None:
    table = EXTREMES[what]
    half = -(-table.num_rows // 2)
    local.write_files({"a.parquet": table.slice(0, half), "b.parquet": table.slice(half)})
    before, schemas = local.rows(), oracle.schemas(local.root, local.fs)
    dataset = local.dataset(engine=engine)
    for dry_run in (True, False, False):
        stats = dataset.optimize(["a", "b"], target_rows_per_file=60, curve=curve, dry_run=dry_run)
        for reads in stats["expected_reads"].values():
            assert all(0 <= each[key] <= 1 for each in reads.values() for key in ("point", "range"))
    assert stats["compacted_file_count"] == 0
    assert stats["unchanged_because"]
    assert local.rows() == before
    assert oracle.schemas(local.root, local.fs)[0].equals(schemas[0], check_metadata=True)
    check_declared_order(local)


def test_half_precision_is_sorted_by_value(local: Place) -> None:
    """Its bounds are bytes whose order differs from that of the numbers."""
    values = np.random.default_rng(2).standard_normal(900).astype(np.float16)
    local.write_files({f"f{n}.parquet": pa.table({"a": values[n * 300 : n * 300 + 300]}) for n in range(3)})
    dataset = local.dataset()
    dataset.optimize(["a"], target_rows_per_file=100)
    assert dataset.optimize(["a"], target_rows_per_file=100)["compacted_file_count"] == 0
    assert dataset.files()[0].column_stats("a").min == float(values.min())


def test_more_data_than_memory_with_wide_rows(local: Place, engine: Engine) -> None:
    chance = np.random.default_rng(2)
    for number in range(4):
        keys = {name: chance.integers(0, 10**6, 300) for name in ("a", "b")}
        local.write_files(
            {f"f{number}.parquet": pa.table({**keys, "text": [f"{n:020d}" * 500 for n in range(300)]})}
        )
    before = local.rows()
    dataset = local.dataset(engine=engine, memory_mb=1)
    dataset.optimize(["a", "b"], target_rows_per_file=200)
    assert local.rows() == before
    check_declared_order(local)
    assert local.left_behind() == []


def test_unknown_curve_lists_the_choices(place: Place) -> None:
    with pytest.raises(ValueError, match="unknown curve 'peano'; valid curves: 'hilbert', 'zorder', 'linear'"):
        place.dataset().optimize(["a", "b"], curve="peano")  # type: ignore[arg-type]


def test_too_many_columns_for_a_curve_are_refused(place: Place) -> None:
    names = [f"c{number}" for number in range(64)]
    place.write_files({"f.parquet": pa.table({name: [1, 2] for name in names})})
    with pytest.raises(ValueError, match="64 columns: at most 63"):
        place.dataset().optimize(names)
    place.dataset().optimize(names[:63])
    place.dataset().optimize(names, curve="linear")


@pytest.mark.parametrize("curve", ["hilbert", "linear"])
def test_columns_without_an_order_are_refused(place: Place, curve: str) -> None:
    nested = pa.array([{"x": 1}, {"x": 2}])
    place.write_files({"day=1/f.parquet": pa.table({"a": [1, 2], "tags": [["a"], ["b"]], "s": nested})})
    before = place.state()
    for column, message in (("day", "only in the path"), ("tags", "ordered by 'tags'"), ("s", "ordered by 's'")):
        with pytest.raises(ValueError, match=message):
            place.dataset().optimize(["a", column], curve=curve)
    with pytest.raises(ValueError, match=r"s\.x"):
        place.dataset().optimize(["a", "s.x"], curve=curve)
    assert place.state() == before


def test_rows_are_not_duplicated_if_small_and_clustered_files_are_rewritten_together(
    place: Place, engine: Engine
) -> None:
    """Overlapping files are clustered together with small files that alone would have been left as they are."""
    random = np.random.default_rng(0)
    for number in range(6):
        low, high = (0, 1000) if number % 2 else (number * 150, number * 150 + 100)
        rows = {name: random.integers(low, high, 300 * (number + 1)) for name in ("a", "b")}
        place.write_files({f"{number}.parquet": pa.table(rows)}, row_group_size=50 if number < 3 else 1000)
    before = place.rows()
    place.dataset(engine=engine).optimize(["a", "b"])
    assert place.rows() == before


@pytest.mark.parametrize("values", [[b""], [b""] * 3, [b"", b"a", b"", b"b", None]])
def test_data_that_cannot_be_split_is_clustered_only_once(memory: Place, values: list[bytes | None]) -> None:
    """A single row, equal rows, or less than a row group: no target size splits them into several files."""
    column = pa.array(values, pa.binary())
    memory.write_files({"0.parquet": pa.table({"a": column, "b": column})})
    dataset = memory.dataset(engine="pyarrow")
    dataset.optimize(["a", "b"], target_mb_per_file=0.0001)
    state = memory.state()
    assert dataset.optimize(["a", "b"], target_mb_per_file=0.0001)["compacted_file_count"] == 0
    assert memory.state() == state


def test_empty_files_are_removed_in_the_first_run(memory: Place) -> None:
    """Beside clustered files they are removed; alone they become one file; a second run does nothing."""
    for folder, values in (("part=0", [[], [], []]), ("part=1", [[], [None], [b""], [None]])):
        for number, found in enumerate(values):
            column = pa.array(found, pa.binary())
            memory.write_files({f"{folder}/{number}.parquet": pa.table({"a": column, "b": column})})
    dataset = memory.dataset(engine="pyarrow")
    dataset.optimize(["a", "b"], target_rows_per_file=1)
    assert sorted(file.num_rows for file in dataset.files()) == [0, 1, 1, 1]
    assert dataset.optimize(["a", "b"], target_rows_per_file=1)["compacted_file_count"] == 0


def test_empty_files_are_merged_with_small_ones(place: Place, engine: Engine) -> None:
    """Equal rows cannot be clustered and are only compacted; a second run does nothing."""
    rows = pa.table({"a": [b""], "b": [b""]})
    place.write_files({f"{n}.parquet": rows.slice(0, n // 2) for n in range(4)})
    dataset = place.dataset(engine=engine)
    assert dataset.optimize(["a", "b"])["after_file_count"] == 1
    assert dataset.optimize(["a", "b"])["compacted_file_count"] == 0
    assert dataset.read().num_rows == 2


def test_compaction_with_another_codec_keeps_clustered_row_groups(place: Place) -> None:
    chance = np.random.default_rng(0)
    place.write_files({"0.parquet": pa.table({"a": chance.random(60_000), "b": chance.random(60_000)})})
    dataset = place.dataset()
    dataset.optimize(["a", "b"], curve="hilbert", target_rows_per_file=20_000)
    before = [group for file in dataset.files() for group in file.row_groups]
    assert len(dataset.files()) > 1
    dataset.compact(target_mb_per_file=64, compression="gzip")
    [file] = dataset.files()
    assert file.clustering is not None
    assert [group.num_rows for group in file.row_groups] == [group.num_rows for group in before]
    assert {group.codec for group in file.row_groups} == {"gzip"}
