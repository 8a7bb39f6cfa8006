"""Compaction, the same on every engine and filesystem: fewer files, the same rows, nothing else changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import (
    Dataset,
    MaintenanceStats,
    Progress,
    collect_dataset_stats,
    compact_parquet_dataset_pyarrow,
    plan_compaction_groups,
)
from parketto.engines.base import Engine
from parketto.parquet import file_info as footers
from parketto.parquet.encoders import polars as streaming
from parketto.parquet.file_info import FileInfo
from parketto.parquet.reader import BatchReader
from parketto.storage.store import FileEntry

KEYS = {
    "before_file_count",
    "after_file_count",
    "before_total_bytes",
    "after_total_bytes",
    "compacted_file_count",
    "rewritten_bytes",
    "compression_codec",
    "dry_run",
    "zorder_columns",
    "planned_groups",
    "planned_rewrites",
    "curve",
    "expected_reads",
    "unchanged_because",
    "reconciled_columns",
    "backup_path",
}


def numbers(count: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({"id": np.arange(count) + seed * count, "value": rng.random(count)})


def partitioned(place: Place, days: int = 3, files: int = 6, rows: int = 500) -> None:
    place.write_files(
        {
            f"date=2025-11-{4 + day:02d}/f{n}.parquet": numbers(rows, day * 100 + n)
            for day in range(days)
            for n in range(files)
        }
    )


def test_by_target_size(place: Place, engine: Engine) -> None:
    """Files become about as large as asked for, fewer, with every row."""
    place.write_files({f"f{n:02d}.parquet": numbers(4000, n) for n in range(24)})
    before = place.rows()
    size = sum(place.fs.size(path) for path in oracle.data_files(place.root, place.fs))
    target = size / 4 / 2**20
    stats = place.dataset(engine=engine).compact(target_mb_per_file=target)
    assert place.rows() == before
    assert stats["after_file_count"] == len(place.files()) < stats["before_file_count"] == 24
    sizes = sorted(place.fs.size(path) / 2**20 for path in oracle.data_files(place.root, place.fs))
    # High-cardinality columns lose their dictionaries: files get smaller than planned; the last has the rest.
    assert all(0.5 * target <= found <= 1.8 * target for found in sizes[1:]), (target, sizes)
    assert sizes[0] <= target
    assert sum(sizes) <= size / 2**20


def test_by_target_rows(place: Place, engine: Engine) -> None:
    partitioned(place)
    before, schemas = place.rows(), oracle.schemas(place.root, place.fs)
    place.dataset(engine=engine).compact(target_rows_per_file=1300)
    assert place.rows() == before
    tables = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    assert all(table.num_rows <= 1300 for table in tables)
    assert all(table.schema.equals(schemas[0], check_metadata=True) for table in tables)


def test_file_with_too_many_rows_is_split(place: Place, engine: Engine) -> None:
    place.write_files({"big.parquet": numbers(1000, 1)})
    before = place.rows()
    stats = place.dataset(engine=engine).compact(target_rows_per_file=300)
    assert place.rows() == before
    assert (
        sorted(oracle.read_file(path, place.fs).num_rows for path in oracle.data_files(place.root, place.fs))
        == [250] * 4
    )
    assert (stats["before_file_count"], stats["after_file_count"]) == (1, 4)


def test_row_order_is_kept_inside_a_group(place: Place, engine: Engine) -> None:
    place.write_files({f"f{n}.parquet": numbers(100, n) for n in range(5)})
    place.dataset(engine=engine).compact()
    assert place.dataset().read().column("id").to_pylist() == list(range(500))


def test_dry_run_plans_and_touches_nothing(place: Place, engine: Engine) -> None:
    partitioned(place)
    before = place.state()
    stats = place.dataset(engine=engine).compact(target_mb_per_file=256, dry_run=True)
    assert place.state() == before
    assert place.left_behind() == []
    assert set(stats) == KEYS
    assert stats["dry_run"] is True
    assert stats["after_file_count"] == 3
    assert stats["compacted_file_count"] == 18
    assert stats["planned_groups"] is not None
    assert sorted(path for group in stats["planned_groups"] for path in group) == oracle.data_files(
        place.root, place.fs
    )


def test_run_does_what_the_dry_run_planned(place: Place, engine: Engine) -> None:
    partitioned(place)
    planned = place.dataset(engine=engine).compact(target_rows_per_file=1300, dry_run=True)
    done = place.dataset(engine=engine).compact(target_rows_per_file=1300)
    for key in (
        "before_file_count",
        "after_file_count",
        "before_total_bytes",
        "compacted_file_count",
        "rewritten_bytes",
    ):
        assert planned[key] == done[key], key  # type: ignore[literal-required]
    assert planned["planned_groups"] == done["planned_groups"]
    assert set(done) == KEYS
    assert done["dry_run"] is False
    assert done["zorder_columns"] is None


def test_statistics_match_the_files(place: Place, engine: Engine) -> None:
    partitioned(place)
    paths = oracle.data_files(place.root, place.fs)
    sizes = {path: place.fs.size(path) for path in paths}
    stats = place.dataset(engine=engine).compact(target_rows_per_file=1300)
    after = oracle.data_files(place.root, place.fs)
    assert stats["before_file_count"] == len(paths)
    assert stats["before_total_bytes"] == sum(sizes.values())
    assert stats["after_file_count"] == len(after)
    assert stats["after_total_bytes"] == sum(place.fs.size(path) for path in after)
    gone = set(paths) - set(after)
    assert stats["compacted_file_count"] == len(gone)
    assert stats["rewritten_bytes"] == sum(sizes[path] for path in gone)


@pytest.mark.parametrize("codec", ["snappy", "gzip", "lz4", "zstd", "brotli", "none", "ZSTD"])
def test_recompression(place: Place, engine: Engine, codec: str) -> None:
    partitioned(place, days=1)
    before = place.rows()
    stats = place.dataset(engine=engine).compact(compression=codec)
    assert place.rows() == before
    assert stats["compression_codec"] == codec.lower()
    assert [file.codec for file in place.dataset().files()] == [codec.lower()]


@pytest.mark.parametrize("codec", ["snappy", "gzip", "lz4", "zstd", "brotli", "none"])
def test_codec_is_kept_by_default(place: Place, engine: Engine, codec: str) -> None:
    place.write_files({f"f{n}.parquet": numbers(50, n) for n in range(3)}, compression=codec)
    stats = place.dataset(engine=engine).compact()
    assert stats["compression_codec"] == codec
    assert [file.codec for file in place.dataset().files()] == [codec]


def test_partitions_keep_their_own_codecs(place: Place, engine: Engine) -> None:
    place.write_files({f"k=1/f{n}.parquet": numbers(50, n) for n in range(3)}, compression="zstd")
    place.write_files({f"k=2/f{n}.parquet": numbers(50, n) for n in range(3)}, compression="gzip")
    stats = place.dataset(engine=engine).compact()
    assert stats["compression_codec"] == "mixed"
    assert [file.codec for file in place.dataset().files()] == ["zstd", "gzip"]


@pytest.mark.parametrize(
    "wanted",
    ["date=2025-11-04", ["date=2025-11-04"], {"date": "2025-11-04"}, ["date=2025-11-04", "date=nope"]],
)
def test_partition_filter_limits_the_work(place: Place, engine: Engine, wanted: object) -> None:
    """Only the named partition is considered; every byte of the others stays."""
    partitioned(place)
    before_rows, before = place.rows(), place.state()
    stats = place.dataset(engine=engine).compact(partition_filter=wanted)  # type: ignore[arg-type]
    assert (stats["before_file_count"], stats["after_file_count"]) == (6, 1)
    assert place.rows() == before_rows
    others = {path: content for path, content in before.items() if "2025-11-04" not in path}
    assert {path: content for path, content in place.state().items() if "2025-11-04" not in path} == others


def test_filter_on_an_inner_partition_column(place: Place, engine: Engine) -> None:
    place.write_files(
        {f"product=P{p}/day={d}/f{n}.parquet": numbers(9, n) for p in (1, 2) for d in (1, 10) for n in (0, 1)}
    )
    stats = place.dataset(engine=engine).compact(partition_filter="day=1")
    assert stats["before_file_count"] == 4
    assert sorted({os.path.dirname(name) for name in place.files() if "compact-" in name}) == [
        "product=P1/day=1",
        "product=P2/day=1",
    ]


def test_already_compact_dataset_is_not_rewritten(place: Place, engine: Engine) -> None:
    partitioned(place)
    dataset = place.dataset(engine=engine)
    dataset.compact(target_rows_per_file=1300)
    before = place.state()
    stats = dataset.compact(target_rows_per_file=1300)
    assert place.state() == before
    assert stats["compacted_file_count"] == stats["rewritten_bytes"] == 0
    assert stats["planned_groups"] == []
    assert stats["before_file_count"] == stats["after_file_count"]


def test_untouched_files_keep_name_bytes_and_mtime(local: Place, engine: Engine) -> None:
    local.write_files({"good.parquet": numbers(900, 0), "a.parquet": numbers(10, 1), "b.parquet": numbers(10, 2)})
    before = os.stat(f"{local.root}/good.parquet")
    local.dataset(engine=engine).compact(target_rows_per_file=1000)
    after = os.stat(f"{local.root}/good.parquet")
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert len(local.files()) == 2


def test_files_that_are_not_data_are_never_changed(place: Place, engine: Engine) -> None:
    partitioned(place)
    unrelated = {
        "_SUCCESS": b"",
        "_metadata": b"x",
        "readme.txt": b"hi",
        "date=2025-11-04/.part.crc": b"c",
        "_temporary/0/f.parquet": b"not parquet",
        ".hidden/f.parquet": b"not parquet",
        "date=2025-11-04/x.parquet.tmp": b"half",
    }
    for name, content in unrelated.items():
        place.fs.makedirs(os.path.dirname(f"{place.root}/{name}"), exist_ok=True)
        place.fs.pipe_file(f"{place.root}/{name}", content)
    place.dataset(engine=engine).compact()
    for name, content in unrelated.items():
        assert place.fs.cat_file(f"{place.root}/{name}") == content, name
    assert len(place.files()) == 3


def test_compact_append_compact_keeps_every_row(place: Place, engine: Engine) -> None:
    """Output names are unique: files of the first run are never overwritten by the second."""
    dataset = place.dataset(engine=engine)
    expected: list[int] = []
    for round_number in range(4):
        for n in range(3):
            table = numbers(10, round_number * 10 + n)
            expected += table.column("id").to_pylist()
            dataset.write(table)
        dataset.compact()
        assert sorted(dataset.read().column("id").to_pylist()) == sorted(expected)
    assert len(place.files()) == 1


def test_different_schemas_are_merged_only_if_wanted(place: Place, engine: Engine) -> None:
    place.write_files({f"int{n}.parquet": pa.table({"v": pa.array([n], pa.int32())}) for n in range(3)})
    place.write_files({f"long{n}.parquet": pa.table({"v": pa.array([n], pa.int64())}) for n in range(3)})
    place.write_files({f"two{n}.parquet": pa.table({"v": [n], "w": ["x"]}) for n in range(3)})
    place.write_files(
        {
            f"required{n}.parquet": pa.table(
                {"v": [n]}, schema=pa.schema([pa.field("v", pa.int64(), nullable=False)])
            )
            for n in range(2)
        }
    )
    before = place.rows()
    stats = place.dataset(engine=engine).compact(schema="exact")
    assert stats["after_file_count"] == 4
    assert place.rows() == before
    stats = place.dataset(engine=engine).compact()
    assert (stats["after_file_count"], stats["reconciled_columns"]) == (1, ["v", "w"])
    assert sorted(place.dataset(engine=engine).read().column("v").to_pylist()) == sorted([0, 1, 2] * 3 + [0, 1])


def test_empty_files_are_merged(place: Place, engine: Engine) -> None:
    empty = numbers(10, 0).slice(0, 0)
    place.write_files(
        {"a.parquet": empty, "b.parquet": empty, "day=1/a.parquet": empty, "day=1/b.parquet": numbers(5, 1)}
    )
    before = place.rows()
    place.dataset(engine=engine).compact()
    assert place.rows() == before
    assert len(place.files()) == 2
    assert all(schema.equals(empty.schema) for schema in oracle.schemas(place.root, place.fs))


def test_every_file_is_read_only_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files of file groups are opened for their data, and none of them twice.

    The tasks are the same on every engine; here they run in this process, so that opens can be counted.
    """
    engine = "pyarrow"
    partitioned(place, days=2, files=4)
    place.write_files({"date=2025-11-04/good.parquet": numbers(1800, 999)})
    dataset = place.dataset(engine=engine)
    opened: list[str] = []
    original = BatchReader.open

    def counting(self: BatchReader, file: FileInfo, **how: bool) -> object:
        opened.append(file.path)
        return original(self, file, **how)

    stats = dataset.compact(target_rows_per_file=2000, dry_run=True)
    # Footers are read separately; only opens for data count here.
    monkeypatch.setattr(BatchReader, "open", counting)
    scanned = streaming.scanned

    def counting_scan(sources: list[str]) -> Any:
        opened.extend(sources)
        return scanned(sources)

    monkeypatch.setattr(streaming, "scanned", counting_scan)
    dataset.compact(target_rows_per_file=2000)
    assert stats["planned_groups"] is not None
    grouped = sorted(path for group in stats["planned_groups"] for path in group)
    assert sorted(opened) == grouped


def test_one_listing_and_one_footer_read_per_file(
    place: Place, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitioned(place, days=2, files=4)
    listings: list[str] = []
    read: list[str] = []
    dataset = place.dataset(engine=engine)
    list_files, read_tail = type(dataset._store).list_files, footers.read_tail

    def listing(self: object, root: str) -> object:
        listings.append(root)
        return list_files(self, root)  # type: ignore[arg-type]

    def footer(store: object, entry: FileEntry, **more: bool) -> object:
        read.append(entry.path)
        return read_tail(store, entry, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(type(dataset._store), "list_files", listing)
    monkeypatch.setattr(footers, "read_tail", footer)
    before = oracle.data_files(place.root, place.fs)
    dataset.compact()
    # Without atomic moves, the commit lists files again before it deletes; on a disk it checks each file.
    once_more = 0 if dataset._store.atomic_move else 2
    assert [root for root in listings if not root.endswith(".parketto")] == [place.root] * (1 + once_more)
    assert sorted(path for path in read if path.endswith(".parquet")) == before


def test_progress_callback_is_called(place: Place, engine: Engine) -> None:
    partitioned(place)
    seen: list[Progress] = []
    place.dataset(engine=engine).compact(progress=seen.append)
    assert [each.done for each in seen] == [1, 2, 3]
    assert seen[-1].done_bytes == seen[-1].total_bytes > 0


def test_helper_function(place: Place) -> None:
    partitioned(place)
    before = place.rows()
    planned: MaintenanceStats = compact_parquet_dataset_pyarrow(
        place.root, target_mb_per_file=64, dry_run=True, filesystem=place.fs
    )
    done = compact_parquet_dataset_pyarrow(place.root, 64, None, None, "zstd", False, place.fs)
    assert planned["after_file_count"] == done["after_file_count"] == 3
    assert done["compression_codec"] == "zstd"
    assert place.rows() == before


def test_planner_functions_agree_with_the_dataset(place: Place) -> None:
    """The planner can be used without a `Dataset`."""
    partitioned(place)
    stats = collect_dataset_stats(place.root, place.fs, partition_filter=["date=2025-11-04", "date=2025-11-05"])
    assert len(stats["files"]) == 12
    assert stats["total_rows"] == 6000
    assert stats["total_bytes"] == sum(file.size_bytes for file in stats["files"])
    assert [file.path for file in stats["files"]] == oracle.data_files(place.root, place.fs)[:12]
    plan = plan_compaction_groups(stats["files"], target_mb_per_file=None, target_rows_per_file=1300)
    dry = place.dataset().compact(
        target_rows_per_file=1300, partition_filter=["date=2025-11-04", "date=2025-11-05"], dry_run=True
    )
    assert plan["planned_stats"] == dry
    assert [[file.path for file in group] for group in plan["groups"]] == dry["planned_groups"]
    assert plan["untouched"] == []


def test_relative_paths_and_symlinks_name_the_same_dataset(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    partitioned(local)
    parent = os.path.dirname(local.root)
    os.symlink(local.root, f"{parent}/link")
    monkeypatch.chdir(parent)
    assert Dataset("link/").path == Dataset("events").path == Dataset(f"file://{local.root}").path == local.root
    Dataset("link").compact()
    assert len(local.files()) == 3
    assert sorted(os.listdir(parent)) == [".events.parketto", "events", "link"]


def test_a_backup_of_the_replaced_files(local: Place, engine: Engine, tmp_path: Path) -> None:
    partitioned(local)
    dataset, before = local.dataset(engine=engine), local.state()
    stats = dataset.compact(backup=tmp_path / "kept")
    assert stats["backup_path"] is not None
    assert dataset.restore(stats["backup_path"])["files_restored"] == stats["compacted_file_count"]
    assert local.state().keys() == before.keys()
    assert dataset.compact(dry_run=True, backup=tmp_path / "kept")["backup_path"] is None


def test_compaction_reports_why_nothing_was_rewritten(place: Place, engine: Engine) -> None:
    partitioned(place)
    dataset = place.dataset(engine=engine)
    assert dataset.compact()["unchanged_because"] is None
    for stats in (dataset.compact(), dataset.compact(dry_run=True)):
        assert stats["unchanged_because"] == "no file to split, and no two small files to merge"
        assert stats["backup_path"] is None


def test_statistics_are_json_serializable(local: Place, engine: Engine) -> None:
    """Of every operation."""
    local.write_files({f"{number}.parquet": numbers(500, number) for number in range(4)})
    dataset = local.dataset(engine=engine)
    results = [
        dataset.compact(dry_run=True),
        dataset.compact(),
        dataset.optimize(["id", "value"]),
        dataset.delete("id = 1"),
        dataset.update("id = 2", {"value": 0.5}),
        dataset.merge(dataset.read().slice(0, 3), "id"),
        dataset.suggest(["id = 3"]),
        dataset.check(),
        dataset.repartition(None),
        *dataset.history(),
    ]
    for result in results:
        assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize("rewrite", ["auto", "encode", "copy"])
def test_files_that_become_smaller_than_planned_are_packed_again(local: Place, rewrite: Any) -> None:
    tables = [pa.table({"id": np.arange(n * 20_000, (n + 1) * 20_000)}) for n in range(6)]
    local.write_files(
        {f"{n}.parquet": table for n, table in enumerate(tables)}, compression="none", use_dictionary=False
    )
    stats = local.dataset().compact(target_mb_per_file=0.4, compression="zstd", rewrite=rewrite)
    assert (stats["before_file_count"], stats["after_file_count"]) == (6, 1)
    [path] = oracle.data_files(local.root)
    assert oracle.read_file(path).equals(pa.concat_tables(tables))
    assert local.left_behind() == []
