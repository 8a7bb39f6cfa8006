"""Rows spilled by partition: every row once, in input order, for any number of folders."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from parketto.parquet import partitions
from parketto.parquet.partitions import spill_by_partition
from parketto.sorting.spill import SpillFiles, spill


@pytest.mark.parametrize("run_bytes", [1, 4_000, 10**9])
@pytest.mark.parametrize(("values", "most"), [(1, 256), (7, 256), (40, 8)])
def test_every_row_is_spilled_to_its_folder_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_bytes: int, values: int, most: int
) -> None:
    monkeypatch.setattr(partitions, "_MAX_SPILL_FILES", most)
    chance = np.random.default_rng(values)
    days = [None if day == 3 else int(day) for day in chance.integers(0, values, 500)]
    table = pa.table({"day": pa.array(days, pa.int32()), "n": range(500)})
    expected = defaultdict(list)
    for number, day in enumerate(days):
        expected["day=__HIVE_DEFAULT_PARTITION__" if day is None else f"day={day}"].append(number)

    found = defaultdict(list)
    for folder, batches in spill_by_partition(
        table.to_batches(max_chunksize=50), table.schema, ["day"], run_bytes, str(tmp_path)
    ):
        assert folder not in found, "each folder is returned once"
        for batch in batches:
            found[folder] += batch.column("n").to_pylist()

    if values > most:  # the order of rows in folders beyond the limit is not compared
        found = {folder: sorted(numbers) for folder, numbers in found.items()}
    assert found == expected
    assert os.listdir(tmp_path) == []


def test_no_rows_give_no_folders(tmp_path: Path) -> None:
    assert list(spill_by_partition([], pa.schema({"day": pa.int8()}), ["day"], 100, str(tmp_path))) == []


def test_only_rows_that_compress_well_are_spilled_compressed(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    for name, values in {"noise": chance.random(50_000), "same": np.zeros(50_000)}.items():
        table = pa.table({"n": values})
        with SpillFiles[int](str(tmp_path)) as files:
            files.write(0, table)
        run = spill(table.to_batches(max_chunksize=1000), table.schema, str(tmp_path))
        for file in (files[0], run):
            size = os.path.getsize(file.path)
            assert (size < table.nbytes / 10) == (name == "same")
            assert pa.Table.from_batches(file) == table


def test_a_spill_file_without_rows_can_be_read(tmp_path: Path) -> None:
    assert sum(batch.num_rows for batch in spill([], pa.schema({"n": pa.int8()}), str(tmp_path))) == 0
