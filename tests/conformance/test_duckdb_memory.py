"""Too little memory for DuckDB: the error says what to do, and nothing is changed."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from conftest import beside
from parketto import Dataset, DuckDBParquetHandler, OutOfMemory


def test_out_of_memory_in_a_merge_says_what_to_do(tmp_path: Path) -> None:
    def rows(*keys: int) -> pa.Table:
        return pa.table({"n": keys, "value": [bytes([key]) * (40 << 20) for key in keys]})

    dataset = Dataset(tmp_path / "events", engine="duckdb", memory_mb=32)
    dataset.write(rows(0, 1, 2, 3))
    before = [(file.path, file.size_bytes) for file in dataset.files()]
    with pytest.raises(
        OutOfMemory, match=r"Nothing was changed; pass a larger memory_mb, .*memory_mb=512"
    ) as found:
        dataset.merge(rows(2, 3, 4, 5), "n")
    assert isinstance(found.value, MemoryError)
    assert pickle.loads(pickle.dumps(found.value)).enough_mb == found.value.enough_mb == 512
    assert [(file.path, file.size_bytes) for file in dataset.files()] == before
    assert beside(tmp_path) == ["events"]


def test_out_of_memory_in_a_query_says_what_to_do() -> None:
    with (
        DuckDBParquetHandler(memory_mb=32) as handler,
        pytest.raises(OutOfMemory, match=r"memory_mb, such as memory_mb=64"),
    ):
        handler.execute_sql("SELECT string_agg(repeat('x', 1000000) || range) FROM range(200)")
