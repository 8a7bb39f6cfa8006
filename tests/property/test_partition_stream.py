"""Repartitions that Polars streams leave the same folders, rows, order and schema as those by Arrow."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Place
from helpers.parquet_files import check_chunks, check_pages
from parketto import Dataset
from parketto.parquet.encoders import partition_stream
from parketto.tasks import write

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "day": (pa.date32(), [dt.date(2025, 1, 1), dt.date(1969, 12, 31), None]),
    "shop": (pa.string(), ["a/b", "ä", "..", "x=y", " ", "A", "a", None]),
    "maybe": (pa.string(), ["", None, "__HIVE_DEFAULT_PARTITION__", "b"]),
    "number": (pa.int8(), [-128, 0, 1, 127]),
    "huge": (pa.uint64(), [0, 2**64 - 1, None]),
    "flag": (pa.bool_(), [True, False, None]),
    "real": (pa.float64(), [0.0, -0.0, 1.5]),
    "many": (pa.int64(), list(range(70))),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[pa.Table], list[str]]:
    """Files, and the columns to partition by."""
    keys = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    files, first = [], 0
    for size in draw(st.lists(st.integers(0, 120), min_size=1, max_size=4)):
        columns: dict[str, Any] = {"id": pa.array(np.arange(first, first + size))}
        for key in keys:
            kind, values = KEYS[key]
            columns[key] = pa.array([values[at] for at in rng.integers(0, len(values), size)], kind)
        columns["note"] = pa.array([None if n % 5 == 0 else f"nöte {n}" for n in range(size)], pa.string())
        files.append(pa.table(columns))
        first += size
    return files, keys


def test_the_same_by_either_codec(local: Place) -> None:
    """At least a quarter of the repartitions are streamed; those by floats are not."""
    attempts: list[bool] = []

    def counted(*args: Any) -> Any:
        written = partition_stream.encode_partitions(*args)
        attempts.append(written is not None)
        return written

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(case=cases())
    def run(case: tuple[list[pa.Table], list[str]]) -> None:
        files, keys = case
        attempts.append(False)
        by_arrow, by_polars = (
            repartitioned(Path(local.root, name), files, keys, name) for name in ("arrow", "polars")
        )
        assert by_arrow.keys() == by_polars.keys()
        for folder, rows in by_arrow.items():
            assert by_polars[folder].equals(rows), folder
            assert by_polars[folder].schema.equals(rows.schema, check_metadata=True)
        if attempts[-1]:
            assert "real" not in keys

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "encode_partitions", counted)
        run()
    assert 4 * sum(attempts) >= len(attempts) // 3


def repartitioned(root: Path, files: list[pa.Table], keys: list[str], codec: str) -> dict[str, pa.Table]:
    """The rows of each folder, in the order of its files."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for at, file in enumerate(files):
        pq.write_table(file, root / f"f{at}.parquet", row_group_size=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARKETTO_CODEC", codec)
        dataset = Dataset(str(root), engine="pyarrow")
        dataset.repartition(keys)
        assert dataset.check(deep=True)["healthy"]
        assert sorted(dataset.read(["id"])["id"].to_pylist()) == list(range(sum(map(len, files))))
    found: dict[str, list[pa.Table]] = {}
    for path in sorted(root.rglob("*.parquet")):
        content = path.read_bytes()
        check_pages(content)
        check_chunks(content)
        found.setdefault(str(path.parent.relative_to(root)), []).append(pq.read_table(pa.BufferReader(content)))
    return {folder: pa.concat_tables(tables).combine_chunks() for folder, tables in found.items()}


def test_large_partitions_are_several_files(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are limited by rows of the average size, and rows keep their order through them."""
    streamed: list[int] = []

    def counted(*args: Any) -> Any:
        written = partition_stream.encode_partitions(*args)
        streamed.append(0 if written is None else len(written.staged))
        return written

    monkeypatch.setattr(write, "encode_partitions", counted)
    monkeypatch.setenv("PARKETTO_CODEC", "polars")
    rng = np.random.default_rng(3)
    rows = 300_000
    table = pa.table({"id": np.arange(rows), "key": np.arange(rows) % 2, "value": rng.integers(0, 2**60, rows)})
    local.write_files({f"f{n}.parquet": table.slice(n * 50_000, 50_000) for n in range(6)})
    local.dataset().repartition(["key"], target_mb_per_file=1)
    assert streamed[0] > 4
    for key in range(2):
        paths = sorted(Path(local.root, f"key={key}").iterdir())
        assert len(paths) > 1
        assert all(path.stat().st_size < 1.1 * 2**20 for path in paths)
        ids = pa.concat_tables(pq.read_table(pa.BufferReader(path.read_bytes()), columns=["id"]) for path in paths)
        assert ids["id"].to_pylist() == list(range(key, rows, 2))


@pytest.mark.parametrize("failing", ["sink", "rows", "parameter"])
def test_arrow_takes_over(local: Place, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what Polars wrote is left behind."""
    monkeypatch.setenv("PARKETTO_CODEC", "polars")
    stream = partition_stream._PartitionStream
    run = stream.run

    def broken(self: Any) -> None:
        if failing == "rows":  # not all rows are there
            self._sources.pop()
        if failing == "parameter":  # another version of Polars
            raise TypeError("unexpected keyword argument")
        run(self)
        if failing == "sink":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(stream, "run", broken)
    table = pa.table({"id": range(1000), "key": [n % 3 for n in range(1000)]})
    local.write_files({f"f{n}.parquet": table.slice(n * 500, 500) for n in range(2)})
    local.dataset().repartition(["key"])
    assert sorted(local.dataset().read()["id"].to_pylist()) == list(range(1000))
    assert len(list(Path(local.root).rglob("*.parquet"))) == 3
    assert local.left_behind() == []
