"""`Dataset.health` against what plain PyArrow finds in the same files."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers.oracle import data_files
from parketto import Dataset
from parketto.errors import ColumnNotFound, DatasetNotFound, InvalidArgument, NotADataset
from parketto.health.results import PROBLEM_NAMES, Health

MB = 1024 * 1024


def rows(count: int, seed: int = 0, start: int = 0) -> pa.Table:
    chance = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(start, start + count),
            "user": chance.integers(0, 10_000, count),
            "note": [f"note {n}" for n in chance.integers(0, 50, count)],
        }
    )


def names(health: Health) -> list[str]:
    return [problem["name"] for problem in health["problems"]]


def problem(health: Health, name: str) -> dict[str, Any]:
    return next(dict(each) for each in health["problems"] if each["name"] == name)


def metadata(place: Place) -> dict[str, tuple[int, pq.FileMetaData]]:
    """The size and the footer of each file, without Parketto."""
    found = {}
    for path in data_files(place.root, place.fs):
        with place.fs.open(path) as source:
            found[path] = (place.fs.size(path), pq.read_metadata(source))
    return found


def assert_counts(place: Place, health: Health) -> None:
    """All plain counts are those of PyArrow."""
    footers = metadata(place)
    sizes = [size for size, _ in footers.values()]
    groups = [footer.row_group(at) for _, footer in footers.values() for at in range(footer.num_row_groups)]
    files = health["files"]
    assert (files["count"], files["bytes"]) == (len(sizes), sum(sizes))
    assert files["rows"] == sum(footer.num_rows for _, footer in footers.values())
    assert files["empty"] == sum(not footer.num_rows for _, footer in footers.values())
    target = health["target_mb_per_file"] * MB
    assert files["small"] == sum(size < 0.75 * target for size in sizes)
    assert files["large"] == sum(size > 1.8 * target for size in sizes)
    assert files["sizes"] is not None
    assert files["sizes"]["median"] == median(sizes)
    for each in files["sizes"]["histogram"]:
        inside = [size for size in sizes if each["low"] <= size < each["high"]]
        assert (each["count"], each["total"]) == (len(inside), sum(inside))
    assert sum(each["count"] for each in files["sizes"]["histogram"]) == len(sizes)
    assert health["row_groups"]["count"] == len(groups)
    if groups:
        assert health["row_groups"]["rows"] is not None
        assert health["row_groups"]["rows"]["median"] == median(group.num_rows for group in groups)
        assert health["row_groups"]["sizes"] is not None
        assert health["row_groups"]["sizes"]["largest"] == max(group.total_byte_size for group in groups)
    codecs = Counter(group.column(0).compression.lower() for group in groups)
    assert {each["codec"]: each["row_groups"] for each in health["codecs"]} == {
        {"uncompressed": "none"}.get(codec, codec): count for codec, count in codecs.items()
    }
    folders: Counter[str] = Counter()
    for path, (size, _) in footers.items():
        folders[os.path.dirname(path)[len(place.root) + 1 :]] += size
    assert health["partitions"]["count"] == len(folders)
    assert {each["folder"]: each["bytes"] for each in health["partitions"]["largest"]} == dict(
        folders.most_common(30)
    )
    assert json.loads(json.dumps(health)) == health


def overlap_by_counting(place: Place, column: str, width: float = 0.01) -> float:
    """The share of row groups that ranges of the rows read, by trying ranges on the values themselves."""
    footers = metadata(place)
    with_values = pa.concat_tables(
        [pq.read_table(path, filesystem=place.fs, partitioning=None) for path in footers]
    )
    values = np.sort(with_values.column(column).to_numpy())
    bounds = []
    for _, footer in footers.values():
        at = footer.schema.names.index(column)
        for number in range(footer.num_row_groups):
            stats = footer.row_group(number).column(at).statistics
            bounds.append((stats.min, stats.max))
    chance = np.random.default_rng(1)
    read = []
    for start in chance.random(200) * (1 - width):
        low, high = np.quantile(values, [start, start + width])
        read.append(np.mean([first <= high and last >= low for first, last in bounds]))
    return float(np.mean(read))


def test_a_healthy_dataset_has_no_problems(place: Place) -> None:
    place.write_files({"a.parquet": rows(5000), "b.parquet": rows(5000, start=5000)})
    before = place.state()
    health = place.dataset().health()
    assert (health["verdict"], health["problems"]) == ("healthy", [])
    assert health["summary"].startswith("Healthy: 10,000 rows in 2 files")
    assert_counts(place, health)
    assert (place.state(), place.left_behind()) == (before, [])


def test_small_files_are_counted_as_compaction_would_merge_them(place: Place) -> None:
    tables = {f"day={n % 3}/{n:03}.parquet": rows(200 + n, n, n * 300) for n in range(60)}
    place.write_files({**tables, "day=9/large.parquet": rows(30_000)})
    dataset = place.dataset()
    health = dataset.health(target_mb_per_file=0.05)
    assert names(health) == ["small-files"]
    assert_counts(place, health)
    plan = dataset.compact(target_mb_per_file=0.05, dry_run=True)
    assert health["files"]["after_compaction"] == plan["after_file_count"]
    (remedy,) = problem(health, "small-files")["remedies"]
    assert remedy["command"] == f"parketto compact {dataset.path} --target-mb-per-file 0.05"
    assert remedy["python"] == f"Dataset({dataset.path!r}).compact(target_mb_per_file=0.05)"
    eval(remedy["python"], {"Dataset": lambda path: place.dataset()})
    after = dataset.health(target_mb_per_file=0.05)
    assert "small-files" not in names(after)
    assert after["files"]["count"] == plan["after_file_count"]


def test_few_small_files_are_no_problem(place: Place) -> None:
    place.write_files({f"{n}.parquet": rows(100) for n in range(5)})
    assert place.dataset().health()["problems"] == []


def test_drift_lists_types_and_missing_columns(place: Place) -> None:
    wide = rows(100)
    narrow = wide.set_column(1, "user", wide["user"].cast(pa.int32())).drop_columns(["note"])
    place.write_files({"a.parquet": wide, "b.parquet": narrow, "c.parquet": wide, "d.parquet": wide})
    dataset = place.dataset()
    health = dataset.health()
    assert (health["verdict"], names(health)) == ("attention", ["drift"])
    assert health["schema"]["drift"] == [
        {"column": "user", "types": {"int64": 3, "int32": 1}, "missing": 0, "unified": "int64"},
        {"column": "note", "types": {"string": 3}, "missing": 1, "unified": "string"},
    ]
    assert (health["schema"]["schemas"], health["schema"]["differing_files"]) == (2, 1)
    assert dataset.unify_schema(dry_run=True)["files_rewritten"] == 1
    dataset.unify_schema()
    after = dataset.health()
    assert (names(after), after["schema"]["drift"], after["schema"]["schemas"]) == ([], [], 1)


def test_types_without_a_common_one_are_an_error_with_a_cast(place: Place) -> None:
    place.write_files(
        {
            "a.parquet": pa.table({"k": [1, 2]}),
            "b.parquet": pa.table({"k": ["3"]}),
            "c.parquet": pa.table({"k": [4]}),
        }
    )
    dataset = place.dataset()
    health = dataset.health()
    assert (health["verdict"], names(health)) == ("damaged", ["incompatible-types"])
    (remedy,) = problem(health, "incompatible-types")["remedies"]
    assert remedy["command"].endswith("--cast k=int64")
    eval(remedy["python"], {"Dataset": lambda path: place.dataset()})
    assert dataset.health()["verdict"] == "healthy"
    assert sorted(dataset.read().column("k").to_pylist()) == [1, 2, 3, 4]


def test_column_order_and_metadata_are_no_drift(place: Place) -> None:
    table = rows(50)
    place.write_files({"a.parquet": table, "b.parquet": table.select(["user", "id", "note"])})
    health = place.dataset().health()
    assert (names(health), health["schema"]["schemas"], health["schema"]["differing_files"]) == ([], 2, 0)


def test_skew_names_the_largest_partition(place: Place) -> None:
    tables = {f"day={n}/a.parquet": rows(500, n) for n in range(8)}
    place.write_files({**tables, "day=7/b.parquet": rows(40_000)})
    health = place.dataset().health(target_mb_per_file=0.1)
    assert names(health) == ["skew"]
    assert "'day=7'" in problem(health, "skew")["summary"]
    largest = health["partitions"]["largest"][0]
    assert health["partitions"]["skew"] == largest["bytes"] / health["partitions"]["median_bytes"]
    assert health["partitions"]["columns"] == ["day"]
    assert_counts(place, health)


def test_many_small_partitions_should_be_fewer(local: Place) -> None:
    local.write_files({f"day={n}/hour={n % 7}/a.parquet": rows(10) for n in range(120)})
    dataset = local.dataset()
    health = dataset.health()
    assert names(health) == ["small-partitions"]
    (remedy,) = problem(health, "small-partitions")["remedies"]
    assert remedy["python"] == f"Dataset({dataset.path!r}).repartition(partition_by=['day'])"
    assert remedy["command"] == f"parketto repartition {dataset.path} --partition-by day"
    local.fs.mv(local.root, f"{local.root}2", recursive=True)
    local.write_files({f"day={n}/a.parquet": rows(10) for n in range(120)})
    (remedy,) = problem(local.dataset().health(), "small-partitions")["remedies"]
    assert remedy["command"] == f"parketto repartition {dataset.path} --no-partitions"


def test_codecs_are_counted_and_uncompressed_data_is_noted(place: Place) -> None:
    place.write_files({"a.parquet": rows(3000)}, compression="zstd")
    place.write_files({"b.parquet": rows(3000)}, compression="none")
    health = place.dataset().health()
    assert (health["verdict"], names(health)) == ("healthy", ["uncompressed", "mixed-codecs"])
    assert_counts(place, health)


@pytest.mark.parametrize("by", [None, "day"])
def test_the_remedy_of_mixed_codecs_solves_them(local: Place, by: str | None) -> None:
    dataset = local.dataset(engine="pyarrow")
    for codec in ("zstd", "snappy"):
        dataset.write(rows(3000).append_column("day", pa.array([1] * 3000)), partition_by=by, compression=codec)
    health = dataset.health()
    (remedy,) = problem(health, "mixed-codecs")["remedies"]
    partitions = "--no-partitions" if by is None else "--partition-by day"
    assert remedy["command"] == f"parketto repartition {dataset.path} {partitions}"
    files = dataset.read().num_rows
    eval(remedy["python"], {"Dataset": lambda path: local.dataset(engine="pyarrow")})
    assert "mixed-codecs" not in names(dataset.health())
    assert dataset.read().num_rows == files


def test_the_remedy_of_missing_files_restores_what_is_kept(local: Place) -> None:
    dataset = local.dataset(engine="pyarrow")
    for _ in range(2):
        dataset.write(rows(10))
    dataset.compact()
    dataset.write(rows(5))
    compacted = next(name for name in local.files() if "compact" in name)
    os.remove(f"{local.root}/{compacted}")
    health = dataset.health()
    assert health["files"]["restorable"] == 2
    (remedy,) = problem(health, "missing-files")["remedies"]
    assert remedy["command"] == f"parketto restore {dataset.path} --to 2"
    eval(remedy["python"], {"Dataset": lambda path: dataset})
    assert dataset.read().num_rows == 20
    assert "missing-files" not in names(dataset.health())


def test_missing_files_that_nothing_can_restore_need_a_backup(local: Place) -> None:
    dataset = local.dataset(engine="pyarrow")
    for _ in range(2):
        dataset.write(rows(10))
    os.remove(f"{local.root}/{local.files()[0]}")
    found = problem(dataset.health(), "missing-files")
    assert "copy them back from a backup of your own" in found["summary"] or found["remedies"]


@pytest.mark.parametrize("clustered", [False, True])
def test_overlap_is_what_queries_on_the_values_read(place: Place, clustered: bool) -> None:
    table = rows(60_000, 3)
    if clustered:
        table = table.sort_by("user")
    parts = {f"{n:02}.parquet": table.slice(n * 6000, 6000) for n in range(10)}
    place.write_files(parts, row_group_size=1000)
    health = place.dataset().health(columns=["user"], target_mb_per_file=0.05)
    (column,) = health["columns"]
    assert column["range"] == pytest.approx(overlap_by_counting(place, "user"), abs=0.02)
    assert (column["range"] > 0.95, "overlap" in names(health)) == (not clustered, not clustered)
    assert column["depth"] == (60 if not clustered else pytest.approx(2, abs=1))


def test_the_remedy_for_overlap_brings_the_reads_that_it_promises(local: Place) -> None:
    local.write_files({f"{n:02}.parquet": rows(40_000, n) for n in range(4)})
    dataset = local.dataset()
    health = dataset.health(columns=["user"], target_mb_per_file=0.5)
    remedy = problem(health, "overlap")["remedies"][0]
    assert remedy["command"].endswith("--columns user --target-mb-per-file 0.5")
    eval(remedy["python"], {"Dataset": lambda path: local.dataset()})
    after = dataset.health(target_mb_per_file=0.5)
    assert "overlap" not in names(after)
    assert after["clustering"] == [{"columns": ["user"], "curve": "linear", "files": after["files"]["count"]}]
    found = next(each for each in after["columns"] if each["column"] == "user")
    assert found["clustered"]
    assert found["range"] == pytest.approx(health["columns"][0]["range_if_sorted"], abs=0.05)


def test_files_without_any_order_get_a_note_that_asks_for_queries(place: Place) -> None:
    chance = np.random.default_rng(7)
    tables = {f"{n}.parquet": pa.table({"a": chance.random(40_000), "b": chance.random(40_000)}) for n in range(6)}
    place.write_files(tables)
    health = place.dataset().health()
    assert (health["verdict"], names(health)) == ("healthy", ["overlap"])
    remedy = problem(health, "overlap")["remedies"][0]
    assert remedy["command"].endswith("/events a b")
    assert remedy["python"].endswith(".suggest(queries=['a', 'b'])")


def test_small_row_groups_of_large_files_are_found(place: Place) -> None:
    place.write_files({"a.parquet": rows(30_000)}, row_group_size=500)
    health = place.dataset().health(target_mb_per_file=0.1)
    assert names(health) == ["small-row-groups"]
    assert health["row_groups"]["small"] == 60
    assert_counts(place, health)


def test_partition_columns_that_exist_only_in_paths_are_examined(place: Place) -> None:
    place.write_files({f"day={n}/a.parquet": rows(100, n) for n in range(1, 11)})
    health = place.dataset().health()
    day = next(each for each in health["columns"] if each["column"] == "day")
    assert (day["partition"], day["type"], day["point"]) == (True, "int64", pytest.approx(0.1))


def test_a_dataset_without_rows_is_healthy(place: Place) -> None:
    place.write_files({"a.parquet": rows(0)})
    health = place.dataset().health()
    assert (health["verdict"], health["files"]["empty"], health["files"]["rows"]) == ("healthy", 1, 0)
    assert_counts(place, health)


def test_missing_datasets_files_and_folders_are_refused(local: Place, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound):
        local.dataset().health()
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADataset):
        Dataset(tmp_path / "file").health()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetNotFound):
        Dataset(tmp_path / "empty").health()


def test_invalid_arguments_are_refused(local: Place) -> None:
    local.write_files({"day=1/a.parquet": rows(10).append_column("tags", pa.array([["x"]] * 10))})
    dataset = local.dataset()
    with pytest.raises(ColumnNotFound, match=r"'usr'; available columns: .*'user'"):
        dataset.health(columns=["usr"])
    with pytest.raises(InvalidArgument, match="'tags' has no order"):
        dataset.health(columns=["tags"])
    with pytest.raises(InvalidArgument, match="columns must be a list"):
        dataset.health(columns="user")
    with pytest.raises(InvalidArgument, match="target_mb_per_file"):
        dataset.health(target_mb_per_file=0)
    with pytest.raises(DatasetNotFound, match="excludes all"):
        dataset.health("day=2")


def test_damaged_files_are_reported_and_the_others_examined(place: Place) -> None:
    place.write_files({"a.parquet": rows(100), "b.parquet": rows(100), "c.parquet": rows(100)})
    for name, content in (("a.parquet", b"no parquet"), ("b.parquet", b"")):
        place.fs.pipe_file(f"{place.root}/{name}", content)
    health = place.dataset().health()
    assert (health["verdict"], names(health)) == ("damaged", ["damaged-files"])
    assert health["files"]["damaged_count"] == 2
    assert [each["path"] for each in health["files"]["damaged"]] == ["a.parquet", "b.parquet"]
    assert (health["files"]["count"], health["files"]["rows"]) == (1, 100)
    assert "'a.parquet'" in problem(health, "damaged-files")["summary"]


def test_a_dataset_with_only_damaged_files_is_examined(local: Place) -> None:
    local.write_files({"a.parquet": rows(1)})
    local.fs.pipe_file(f"{local.root}/a.parquet", b"x")
    health = local.dataset().health()
    assert (health["verdict"], health["files"]["count"], health["columns"]) == ("damaged", 0, [])


def test_files_that_others_removed_or_replaced_are_found_by_the_log(local: Place) -> None:
    dataset = local.dataset()
    for number in range(3):
        dataset.write(rows(10), basename_template=f"part{number}_{{}}.parquet")
    one, two, _ = (f"{local.root}/{name}" for name in local.files())
    os.remove(one)
    pq.write_table(rows(20), two)
    pq.write_table(rows(5), f"{local.root}/other.parquet")
    health = dataset.health()
    assert names(health) == ["missing-files", "changed-files"]
    assert health["files"]["missing"] == [os.path.basename(one)]
    assert health["files"]["changed"] == [os.path.basename(two)]
    assert health["files"]["unknown_count"] == 1


def test_disk_space_of_the_history_is_what_the_workspace_holds(local: Place) -> None:
    dataset = local.dataset()
    for start in range(3):
        dataset.write(rows(2000, start=start * 2000))
    dataset.delete("id < 10")
    dataset.compact()
    found = dataset.health()["history"]
    workspace = Path(local.root).parent / ".events.parketto"
    kept = [path for path in (workspace / "kept").rglob("*") if path.is_file()]
    assert found["kept_bytes"] == sum(path.stat().st_size for path in kept)
    assert found["kept_files"] == len(kept)
    assert found["log_bytes"] == sum(path.stat().st_size for path in (workspace / "log").iterdir())
    assert (found["commits"], found["last"] and found["last"]["operation"]) == (5, "compact")
    assert found["expired_bytes"] == 0


def test_retired_files_are_noted_once_they_are_large(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parketto.health.problems._MIN_HISTORY_BYTES", 1000)
    dataset = local.dataset(retention=2)
    dataset.write(rows(5000))
    dataset.delete("id < 10")
    found = problem(dataset.health(), "history")
    assert (found["severity"], found["remedies"]) == ("note", [])
    monkeypatch.setattr("parketto.commit.retention.unix_time", lambda: time.time() + 10)
    health = dataset.health()
    assert health["history"]["expired_bytes"] == health["history"]["kept_bytes"] > 1000
    assert problem(health, "history")["remedies"][0]["command"].endswith("--no-dry-run")


def test_health_uses_no_engine_and_no_engine_library(tmp_path: Path) -> None:
    """On the default engine, Spark: it starts nothing."""
    events = Dataset(tmp_path / "events", engine="pyarrow")
    days = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)] * 50
    table = rows(100).append_column("day", pa.array(days)).append_column("at", pa.array(np.random.random(100)))
    events.write(table, partition_by="day", partition_columns="path")
    narrow = table.select(["id", "user", "at"]).cast(
        pa.schema({"id": pa.int32(), "user": pa.int64(), "at": pa.float32()}), safe=False
    )
    pq.write_table(narrow, tmp_path / "events" / "day=2026-01-02" / "other.parquet")
    code = (
        "import sys; from parketto import Dataset\n"
        f"health = Dataset({str(tmp_path / 'events')!r}, engine='spark').health()\n"
        "assert [each['name'] for each in health['problems']] == ['drift'], health['problems']\n"
        "(day,) = (each for each in health['columns'] if each['partition'])\n"
        "assert abs(day['point'] - 7 / 12) < 1e-6, day\n"
        "loaded = {'pyspark', 'duckdb', 'polars', 'pandas', 'altair'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_partition_filters_limit_the_examination(place: Place) -> None:
    place.write_files({"day=1/a.parquet": rows(10), "day=2/a.parquet": rows(20), "day=2/b.parquet": rows(30)})
    health = place.dataset().health("day=2")
    assert (health["files"]["rows"], health["partitions"]["count"]) == (50, 1)


def test_remedies_concern_the_examined_partitions(place: Place) -> None:
    place.write_files({f"day={day}/{n:02}.parquet": rows(10, n, n * 10) for day in (1, 2) for n in range(30)})
    dataset = place.dataset()
    for chosen in ("day=2", {"day": 2}):
        remedy = problem(dataset.health(chosen), "small-files")["remedies"][0]
        assert remedy["command"] == f"parketto compact {dataset.path} --partition day=2"
        assert remedy["python"].endswith(f".compact(partition_filter={chosen!r})")
    eval(remedy["python"], {"Dataset": lambda path: place.dataset()})
    assert [each["files"] for each in dataset.health()["partitions"]["largest"]] == [30, 1]


def test_commands_quote_paths_and_names(tmp_path: Path) -> None:
    folder = tmp_path / "it's $(here)"
    for number in range(30):
        pq.write_table(rows(10, number), _made(folder / f"{number}.parquet"))
    health = Dataset(folder).health()
    remedy = health["problems"][0]["remedies"][0]
    split = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {remedy['command']}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert split == ["parketto", "compact", str(folder)]
    assert eval(remedy["python"], {"Dataset": Dataset})["after_file_count"] == 1
    shutil.rmtree(folder)


def _made(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    return path


def test_problem_names_are_those_of_the_result_type() -> None:
    assert len(set(PROBLEM_NAMES)) == len(PROBLEM_NAMES)
    assert {"small-files", "drift"} <= set(PROBLEM_NAMES)
