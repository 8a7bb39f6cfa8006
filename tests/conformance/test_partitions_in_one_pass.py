"""Rows are written to many partitions in one pass: all of them, in order, whatever fits into memory."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parketto import Dataset
from parketto.engines.pyarrow.engine import PyArrowEngine
from parketto.tasks import write_partitions

ROWS = 60_000


def keys(kind: str) -> np.ndarray:
    chance = np.random.default_rng(3)
    if kind == "few":
        return chance.integers(0, 3, ROWS)
    if kind == "many":
        return chance.integers(0, 700, ROWS)
    if kind == "skewed":
        return np.where(chance.random(ROWS) < 0.9, 0, chance.integers(1, 300, ROWS))
    if kind == "late":  # small partitions become large ones later
        return np.where(np.arange(ROWS) < ROWS // 2, chance.integers(0, 200, ROWS), chance.integers(0, 4, ROWS))
    return np.arange(ROWS) // (ROWS // 30)  # one partition after the other


@pytest.mark.parametrize("kind", ["few", "many", "skewed", "late", "sorted"])
@pytest.mark.parametrize(("memory_mb", "threads"), [(1, 1), (1, 2), (64, 2)])
def test_every_row_is_written_to_its_partition_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, memory_mb: int, threads: int
) -> None:
    monkeypatch.setattr(write_partitions, "_MIN_ROWS", 500)
    monkeypatch.setattr(write_partitions, "_MIN_BYTES", 2**20)
    monkeypatch.setattr(write_partitions, "_MAX_OPEN", 5)
    days = keys(kind)
    table = pa.table({"day": days, "n": np.arange(ROWS), "word": [f"word {n % 1000}" for n in range(ROWS)]})
    root = tmp_path / "data"
    root.mkdir()
    for number in range(6):
        pq.write_table(table.slice(number * ROWS // 6, ROWS // 6), root / f"part-{number}.parquet")

    engine = PyArrowEngine(memory_mb, threads)
    Dataset(str(root), engine=engine).repartition("day")

    expected = defaultdict(list)
    for number, day in enumerate(days.tolist()):
        expected[f"day={day}"].append(number)
    found = {
        folder.name: [n for file in sorted(folder.iterdir()) for n in pq.ParquetFile(file).read()["n"].to_pylist()]
        for folder in root.iterdir()
    }
    assert found == expected
    words = pq.read_table(root, columns=["n", "word"], partitioning=None).to_pydict()
    assert all(word == f"word {n % 1000}" for n, word in zip(words["n"], words["word"], strict=True))


def test_partitions_of_a_large_dataset_are_split_at_the_target_size(tmp_path: Path) -> None:
    chance = np.random.default_rng(4)
    table = pa.table({"day": chance.integers(0, 2, 400_000), "n": np.arange(400_000), "v": chance.random(400_000)})
    Dataset(str(tmp_path / "data"), engine="pyarrow").write(table)
    engine = PyArrowEngine(8, 2)
    Dataset(str(tmp_path / "data"), engine=engine).repartition("day", target_mb_per_file=1)
    for folder in (tmp_path / "data").iterdir():
        files = sorted(folder.iterdir())
        sizes = [file.stat().st_size for file in files]
        assert len(sizes) > 1
        assert max(sizes) < 1.6 * 2**20
        assert min(sizes[:-1]) > 0.5 * 2**20
        rows = [n for file in files for n in pq.ParquetFile(file).read()["n"].to_pylist()]
        assert rows == sorted(rows)


def test_rows_of_null_and_empty_text_keep_their_order_in_the_folder_they_share(tmp_path: Path) -> None:
    keys = ["", None, "", None, "x", ""]
    dataset = Dataset(str(tmp_path / "data"), engine="pyarrow")
    dataset.write(pa.table({"key": keys, "n": range(6)}))
    dataset.repartition("key", partition_columns="files")
    (file,) = (tmp_path / "data" / "key=__HIVE_DEFAULT_PARTITION__").iterdir()
    assert pq.ParquetFile(file).read().to_pydict() == {"key": ["", None, "", None, ""], "n": [0, 1, 2, 3, 5]}
