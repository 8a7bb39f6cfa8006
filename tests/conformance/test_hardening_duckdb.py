"""Regressions of the PyArrow and DuckDB engines: unusual values, types and signals."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from parketto import CommitFailed, Dataset, InvalidArgument

pytestmark = pytest.mark.parametrize("here", ["pyarrow", "duckdb"])

LONG = "b" * 300


def by_id(dataset: Dataset) -> list[dict[str, Any]]:
    return sorted(dataset.read().to_pylist(), key=lambda row: row["id"])


def test_too_long_partition_value_is_refused_and_leaves_nothing_behind(tmp_path: Path, here: str) -> None:
    dataset = Dataset(tmp_path / "t", engine=here)
    dataset.write(pa.table({"id": [1, 2], "a": ["x", "x"], "b": ["u", "v"]}), partition_by=["a", "b"])
    before = by_id(dataset)
    source = pa.table({"id": [1, 2, 3], "a": ["new", "x", "new"], "b": [LONG, "u", "c"]})
    with pytest.raises(CommitFailed, match="302 bytes"):
        dataset.merge(source, "id")
    with pytest.raises(CommitFailed, match="302 bytes"):
        dataset.write(source)
    assert by_id(dataset) == before
    assert not dataset.recover()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".t.parketto", "t"]
    assert sorted(path.name for path in (tmp_path / ".t.parketto").iterdir()) == ["lock", "log"]


def test_too_long_partition_value_does_not_block_a_new_dataset(tmp_path: Path, here: str) -> None:
    dataset = Dataset(tmp_path / "t", engine=here)
    with pytest.raises(CommitFailed, match="302 bytes"):
        dataset.write(pa.table({"id": [1, 2], "b": ["u", LONG]}), partition_by="b")
    dataset.write(pa.table({"id": [1], "b": ["u"]}), partition_by="b")
    assert by_id(dataset) == [{"id": 1, "b": "u"}]


def test_partition_value_that_is_not_utf8_is_refused(tmp_path: Path, here: str) -> None:
    dataset = Dataset(tmp_path / "t", engine=here)
    with pytest.raises(InvalidArgument, match="cannot be a partition value"):
        dataset.write(pa.table({"id": [1], "b": [b"\xff"]}), partition_by="b")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.struct([pa.field("a", pa.int64(), nullable=False)]), [{"a": 1}, None, {"a": 3}]),
        (pa.struct([pa.field("a", pa.string(), nullable=False)]), [{"a": "x"}, None, {"a": ""}]),
        (pa.list_(pa.struct([pa.field("a", pa.int8(), nullable=False)])), [[{"a": 1}, None], None, []]),
        (pa.list_(pa.null()), [[], [None], []]),
        (pa.struct([("a", pa.null()), ("b", pa.int8())]), [{"a": None, "b": 1}, None, {"a": None, "b": None}]),
    ],
    ids=str,
)
def test_nested_types_that_engines_lack(tmp_path: Path, here: str, kind: pa.DataType, values: list[Any]) -> None:
    dataset = Dataset(tmp_path / "t", engine=here)
    rows = pa.table({"id": [1, 2, 3], "g": ["a", "a", "b"], "p": pa.array(values, kind)})
    dataset.write(rows, partition_by="g")
    schema = dataset.files()[0].schema
    # One row stays in its partition, one moves, one is new.
    source = pa.table({"id": [2, 3, 4], "g": ["a", "a", "c"], "p": pa.array(values, kind)})
    assert dataset.merge(source, "id") == {"inserted": 1, "updated": 2, "deleted": 0, "total": 4}
    dataset.optimize(["id"])
    dataset.repartition("g")
    assert by_id(dataset) == [*rows.slice(0, 1).to_pylist(), *source.to_pylist()]
    assert all(file.schema.field("p").equals(schema.field("p")) for file in dataset.files())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.duration("us"), [dt.timedelta(seconds=n) for n in (1, 2, 3)]),
        (pa.decimal32(7, 2), [Decimal("9.00"), Decimal("10.00"), Decimal("-1.50")]),
        (pa.decimal64(15, 2), [Decimal("9.00"), Decimal("10.00"), Decimal("-1.50")]),
    ],
    ids=str,
)
def test_keys_without_min_and_max_kernels_in_arrow(
    tmp_path: Path, here: str, kind: pa.DataType, values: list[Any]
) -> None:
    dataset = Dataset(tmp_path / "t", engine=here)
    dataset.write(pa.table({"k": pa.array(values[:2], kind), "v": [1, 2]}))
    stats = dataset.merge(pa.table({"k": pa.array(values[1:], kind), "v": [20, 30]}), "k")
    assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}
    assert dict(zip(*dataset.read().to_pydict().values(), strict=True)) == dict(
        zip(values, [1, 20, 30], strict=True)
    )


def test_key_column_with_an_empty_name(tmp_path: Path, here: str) -> None:
    dataset = Dataset(tmp_path / "t", engine=here)
    dataset.write(pa.table({"": [1, 2], "v": ["a", "b"]}))
    stats = dataset.merge(pa.table({"": [2, 3], "v": ["x", "y"]}), [""])
    assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}


INTERRUPTED = """
import sys
import numpy as np
import pyarrow as pa
from parketto import Dataset
rows = 3_000_000
source = pa.table({"id": np.random.permutation(rows), "s": pa.array(np.arange(rows)).cast(pa.string())})
print("begin", flush=True)
try:
    Dataset(sys.argv[1], engine=sys.argv[2]).merge(source, "id")
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
"""


@pytest.mark.parametrize("delay", [0.3, *(pytest.param(later, marks=pytest.mark.sweep) for later in (0.6, 0.9))])
def test_ctrl_c_in_a_query_raises_keyboard_interrupt(tmp_path: Path, here: str, delay: float) -> None:
    dataset = Dataset(tmp_path / "t", engine=here)
    dataset.write(pa.table({"id": list(range(1000)), "s": ["x"] * 1000}))
    before = by_id(dataset)
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, dataset.path, here], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().strip() == "KeyboardInterrupt"
    assert by_id(dataset) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".t.parketto", "t"]
    assert sorted(path.name for path in (tmp_path / ".t.parketto").iterdir()) == ["lock", "log"]
