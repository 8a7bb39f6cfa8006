"""ParquetCompactor on every engine: partitions with many small files get fewer files, and no row is duplicated."""

from __future__ import annotations

import datetime as dt
import logging
import os
import sys
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from parketto import Dataset, IncompatibleTypes, ParquetCompactor, Progress
from parketto.engines.base import Engine

KEYS = {
    "partitions_scanned",
    "partitions_compacted",
    "files_before",
    "files_after",
    "bytes_before",
    "bytes_after",
    "start_time",
    "end_time",
    "planned_groups",
    "kept_path",
}


def numbers(rows: int, seed: int) -> pa.Table:
    """Rows that do not compress: about 16 bytes each."""
    rng = np.random.default_rng(seed)
    return pa.table({"id": rng.integers(0, 2**62, rows), "value": rng.random(rows)})


def make(place: Place) -> None:
    """Six small files on one day, three on the next, a large and two small ones on the third."""
    place.write_files({f"day=1/f{n}.parquet": numbers(500, n) for n in range(6)})
    place.write_files({f"day=2/f{n}.parquet": numbers(500, 10 + n) for n in range(3)})
    place.write_files({"day=3/large.parquet": numbers(40_000, 20)})
    place.write_files({f"day=3/f{n}.parquet": numbers(500, 30 + n) for n in range(2)})


def compactor(place: Place, engine: Engine | str, size: float = 100, **options: Any) -> ParquetCompactor:
    return ParquetCompactor(place.root, size, engine=engine, filesystem=place.fs, **options)


def total_bytes(place: Place) -> int:
    return sum(place.fs.size(path) for path in oracle.data_files(place.root, place.fs))


def count_files(place: Place) -> dict[str, int]:
    """Files per partition, as a monitor would count them."""
    counts: dict[str, int] = {}
    for name in place.files():
        counts[os.path.dirname(name)] = counts.get(os.path.dirname(name), 0) + 1
    return counts


def test_only_partitions_with_enough_files_are_compacted(place: Place, engine: Engine) -> None:
    make(place)
    before_rows, before_state, before_bytes = place.rows(), place.state(), total_bytes(place)
    stats = compactor(place, engine).compact(min_file_count=5)
    assert place.rows() == before_rows
    assert count_files(place) == {"day=1": 1, "day=2": 3, "day=3": 3}
    untouched = {path: content for path, content in before_state.items() if "day=1" not in path}
    assert untouched.items() <= place.state().items()
    assert set(stats) == KEYS
    assert (stats["partitions_scanned"], stats["partitions_compacted"]) == (3, 1)
    assert (stats["files_before"], stats["files_after"]) == (12, 7)
    assert (stats["bytes_before"], stats["bytes_after"]) == (before_bytes, total_bytes(place))
    assert [len(group) for group in stats["planned_groups"]] == [6]
    assert stats["kept_path"] is None
    assert dt.datetime.fromisoformat(stats["start_time"]).tzinfo is dt.UTC
    assert stats["start_time"] <= stats["end_time"]
    assert place.left_behind() == []


def test_only_files_that_are_small_enough_are_compacted(place: Place, engine: Engine) -> None:
    make(place)
    large = place.state()["/day=3/large.parquet"]
    before = place.rows()
    stats = compactor(place, engine).compact(min_file_count=2, max_file_size_mb=0.1)
    assert place.rows() == before
    assert count_files(place) == {"day=1": 1, "day=2": 1, "day=3": 2}
    assert place.state()["/day=3/large.parquet"] == large
    assert stats["partitions_compacted"] == 3


def test_large_files_do_not_count_towards_the_minimum(place: Place, engine: Engine) -> None:
    """Day 3 has three files but only two small ones, fewer than the minimum of three."""
    make(place)
    stats = compactor(place, engine).compact(min_file_count=3, max_file_size_mb=0.1)
    assert count_files(place) == {"day=1": 1, "day=2": 1, "day=3": 3}
    assert stats["partitions_compacted"] == 2


def test_files_have_about_the_target_size(place: Place, engine: Engine) -> None:
    place.write_files({f"f{n:02d}.parquet": numbers(2000, n) for n in range(20)})
    before, target = place.rows(), 0.2
    stats = compactor(place, engine, target).compact()
    assert place.rows() == before
    sizes = [place.fs.size(path) / 2**20 for path in oracle.data_files(place.root, place.fs)]
    assert stats["files_after"] == len(sizes) < 20
    assert all(size <= 1.8 * target for size in sizes), sizes


def test_defaults_and_codec(place: Place, engine: Engine) -> None:
    make(place)
    stats = ParquetCompactor(place.root, engine=engine, filesystem=place.fs).compact()
    assert count_files(place) == {"day=1": 1, "day=2": 1, "day=3": 1}
    assert stats["files_after"] == 3
    assert {file.codec for file in place.dataset().files()} == {"zstd"}


def test_dry_run_returns_statistics_and_plan(place: Place, engine: Engine) -> None:
    make(place)
    before = place.state()
    mine = compactor(place, engine)
    planned = mine.compact(min_file_count=3, delete_source_files=False, dry_run=True)
    assert place.state() == before
    assert place.left_behind() == []
    assert planned["kept_path"] is None
    done = mine.compact(min_file_count=3)
    for key in ("partitions_scanned", "partitions_compacted", "files_before", "files_after", "bytes_before"):
        assert planned[key] == done[key], key  # type: ignore[literal-required]
    assert planned["planned_groups"] == done["planned_groups"]
    assert sorted(len(group) for group in planned["planned_groups"]) == [3, 3, 6]


@pytest.mark.parametrize("limits", [{}, {"min_file_count": 3}, {"min_file_count": 2, "max_file_size_mb": 0.1}])
def test_second_call_does_nothing(place: Place, engine: Engine, limits: dict[str, Any]) -> None:
    make(place)
    mine = compactor(place, engine, 0.02)
    mine.compact(**limits)
    before = place.state()
    stats = mine.compact(**limits)
    assert place.state() == before
    assert stats["planned_groups"] == []
    assert stats["partitions_compacted"] == 0
    assert stats["files_before"] == stats["files_after"]


def test_originals_are_kept_outside_of_the_dataset(place: Place, engine: Engine) -> None:
    make(place)
    rows, state, size = place.rows(), place.state(), total_bytes(place)
    mine = compactor(place, engine)
    stats = mine.compact(min_file_count=3, max_file_size_mb=0.1, delete_source_files=False)
    assert place.rows() == rows, "no row is duplicated"
    assert total_bytes(place) < 1.1 * size
    kept = stats["kept_path"]
    parent, name = os.path.split(place.root)
    assert kept is not None
    assert kept.startswith(f"{parent}/.{name}.originals/")
    assert place.left_behind() == [f"{parent}/.{name}.originals"]
    again = mine.compact(min_file_count=3, max_file_size_mb=0.1, delete_source_files=False)
    assert again["kept_path"] is None
    assert [os.path.basename(path) for path in place.fs.ls(f"{parent}/.{name}.originals", detail=False)] == [
        os.path.basename(kept)
    ], "nothing accumulates"
    place.dataset(engine=engine).restore(kept)
    assert place.state() == state


def test_originals_are_kept_in_a_given_folder(place: Place) -> None:
    make(place)
    elsewhere = f"{os.path.dirname(place.root)}/elsewhere"
    mine = compactor(place, "pyarrow", originals_dir=elsewhere)
    kept = mine.compact(delete_source_files=False)["kept_path"]
    assert kept is not None
    assert kept.startswith(f"{elsewhere}/")
    with pytest.raises(ValueError, match="inside the dataset"):
        compactor(place, "pyarrow", originals_dir=f"{place.root}/kept").compact(delete_source_files=False)


def test_compaction_after_incremental_writes(place: Place, engine: Engine) -> None:
    """Fragmented partitions are found and compacted, and are not rewritten again until new files arrive."""
    dataset = place.dataset(engine="pyarrow")
    for segment in range(12):
        rows = pa.table({"product": ["BTC"] * 5 + ["ETH"] * (segment < 4), "n": range(5 + (segment < 4))})
        dataset.write(rows, partition_by="product")
    fragmented = {name for name, count in count_files(place).items() if count > 10}
    assert fragmented == {"product=BTC"}
    before = place.rows()
    stats = compactor(place, engine).compact(min_file_count=10)
    assert {name for name, count in count_files(place).items() if count > 10} == set()
    assert (stats["files_before"], stats["files_after"]) == (16, 5)
    assert place.rows() == before


def test_partition_larger_than_memory(place: Place) -> None:
    """Partitions are streamed: the memory limit is a fraction of the partition's size."""
    from parketto.engines.pyarrow.engine import PyArrowEngine

    place.write_files({f"f{n}.parquet": numbers(50_000, n) for n in range(6)})
    before = place.rows()
    compactor(place, PyArrowEngine(memory_mb=1, threads=1)).compact()
    assert len(place.files()) == 1
    assert place.rows() == before


def test_readable_by_a_plain_glob(local: Place, engine: Engine) -> None:
    make(local)
    pattern = f"{local.root}/**/*.parquet"
    before = pl.scan_parquet(pattern).select(pl.len()).collect().item()
    compactor(local, engine).compact(delete_source_files=False)
    assert pl.scan_parquet(pattern).select(pl.len()).collect().item() == before == 45_500


def test_different_schemas_are_merged_if_they_have_common_types(place: Place) -> None:
    place.write_files({f"a{n}.parquet": pa.table({"x": [n]}) for n in range(3)})
    place.write_files({f"b{n}.parquet": pa.table({"x": [float(n)], "y": [n]}) for n in range(3)})
    with pytest.raises(IncompatibleTypes, match="column 'x' is int64"):
        compactor(place, "pyarrow").compact(min_file_count=4)
    place.write_files({f"b{n}.parquet": pa.table({"x": pa.array([n], pa.int8()), "y": [n]}) for n in range(3)})
    assert compactor(place, "pyarrow").compact(min_file_count=4)["files_after"] == 1


def test_progress_and_logging(place: Place, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    make(place)
    seen: list[Progress] = []
    with caplog.at_level(logging.INFO, logger="parketto"):
        compactor(place, engine, progress=seen.append).compact()
    assert [each.done for each in seen] == [1, 2, 3]
    assert "partitions_scanned=3, partitions_compacted=3, files_before=12, files_after=3" in caplog.text


class TestBar:
    def test_on_a_terminal(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        from io import StringIO

        class Terminal(StringIO):
            def isatty(self) -> bool:
                return True

        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        make(place)
        compactor(place, "pyarrow").compact()
        assert "compact events" in screen.getvalue()

    def test_without_a_terminal(self, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
        make(place)
        compactor(place, "pyarrow").compact()
        assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("constructing", "calling", "message"),
    [
        ({"target_file_size_mb": 0}, {}, "greater than 0"),
        ({"compression": "lzo"}, {}, "valid codecs"),
        ({}, {"min_file_count": 0}, "min_file_count"),
        ({}, {"min_file_count": None}, "min_file_count"),
        ({}, {"min_file_count": 2.5}, "whole number"),
        ({}, {"max_file_size_mb": -1}, "max_file_size_mb"),
    ],
)
def test_invalid_arguments_are_refused(
    place: Place, constructing: dict[str, Any], calling: dict[str, Any], message: str
) -> None:
    make(place)
    before = place.state()
    with pytest.raises(ValueError, match=message):
        ParquetCompactor(place.root, engine="pyarrow", filesystem=place.fs, **constructing).compact(**calling)
    assert place.state() == before


def test_missing_dataset_is_an_error(place: Place) -> None:
    with pytest.raises(FileNotFoundError, match="no dataset"):
        compactor(place, "pyarrow").compact()


def test_dataset_compact_accepts_the_same_limits(place: Place) -> None:
    make(place)
    stats = Dataset(place.root, "pyarrow", filesystem=place.fs).compact(
        100, min_file_count=5, max_file_size_mb=0.1
    )
    assert (stats["before_file_count"], stats["after_file_count"]) == (12, 7)


def test_copied_row_groups_keep_their_codec(local: Place, engine: Engine) -> None:
    """`compression` applies only to rows that are encoded for other reasons."""
    large = pa.table({"id": range(40_000)})
    local.write_files({"a.parquet": large, "b.parquet": large}, compression="snappy")
    local.write_files({"c.parquet": large.slice(0, 100), "d.parquet": large.slice(0, 100)}, compression="snappy")
    ParquetCompactor(local.root, engine=engine, compression="zstd").compact()
    (path,) = oracle.data_files(local.root, local.fs)
    footer = pq.read_metadata(path)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    assert [(group.num_rows, group.column(0).compression) for group in groups] == [
        (40_000, "SNAPPY"),
        (40_000, "SNAPPY"),
        (200, "ZSTD"),
    ]
