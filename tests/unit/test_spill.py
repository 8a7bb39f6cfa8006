"""Spilled rows come back as they were, compressed only if that pays off."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from parketto.sorting.spill import SpillFiles, spill
from parketto.sorting.spill_runs import SpillRuns


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


def test_spilled_runs_are_read_by_number_in_the_order_of_writing(tmp_path: Path) -> None:
    chance = np.random.default_rng(2)
    for words in (["the same word"], [f"{word:x}" for word in chance.integers(0, 2**60, 997)]):
        schema = pa.schema({"at": pa.int64(), "word": pa.string(), "list": pa.list_(pa.int8())})
        expected: dict[int, list[int]] = {}
        with SpillRuns(str(tmp_path), schema) as runs:
            for run in range(5):
                pieces = []
                for number in chance.permutation(40)[:30].tolist():
                    rows = list(range(run * 1000, run * 1000 + int(chance.integers(1, 60))))
                    expected.setdefault(number, []).extend(rows)
                    lists = [[row % 100] * (row % 3) if row % 5 else None for row in rows]
                    columns = [rows, [words[row % len(words)] for row in rows], lists]
                    pieces.append((number, pa.table(columns, schema=schema)))
                runs.write(pieces)
            found = {number: pa.Table.from_batches(rows) for number, rows in runs.read_all().items()}
            assert {number: table["at"].to_pylist() for number, table in found.items()} == expected
            for table in found.values():
                table.validate(full=True)
                assert table["word"].to_pylist() == [words[row % len(words)] for row in table["at"].to_pylist()]
        assert os.listdir(tmp_path) == []


def test_nothing_is_spilled_without_rows(tmp_path: Path) -> None:
    with SpillRuns(str(tmp_path), pa.schema({"n": pa.int8()})) as runs:
        runs.write([])
        assert runs.read_all() == {}
        assert os.listdir(tmp_path) == []
