"""Invalid arguments are refused with a message that names them and the choices, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from parketto import ColumnNotFound, Dataset, InvalidArgument
from parketto.engines.pyarrow.engine import PyArrowEngine
from parketto.engines.registry import get_engine

ROWS = pa.table({"id": [1, 2], "part": ["a", "b"]})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"history": "some"}, "unknown history 'some'; valid choices"),
        ({"publish": "some"}, "unknown publish 'some'; valid choices"),
        ({"retries": -1}, "retries must be a whole number of at least 0, got -1"),
        ({"retries": True}, "retries must be a whole number of at least 0, got True"),
        ({"engine": "fast"}, "unknown engine 'fast'; available engines: 'duckdb', 'pyarrow', 'spark'"),
    ],
)
def test_options_of_a_dataset(local: Place, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        local.dataset(**options)


def test_empty_path() -> None:
    with pytest.raises(InvalidArgument, match="the dataset path is empty"):
        Dataset("")


def test_options_of_an_engine() -> None:
    with pytest.raises(InvalidArgument, match="spark"):
        get_engine("pyarrow", spark=object())
    with pytest.raises(InvalidArgument, match="memory_mb"):
        get_engine(PyArrowEngine(), memory_mb=1)


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        (lambda dataset: dataset.merge(ROWS, "id", isolation="weak"), "unknown isolation 'weak'; valid choices"),
        (lambda dataset: dataset.write(ROWS, "append", commit_id=""), "commit_id must be a non-empty string"),
        (lambda dataset: dataset.write(ROWS, "append", partition_by=["id"]), "partition"),
        (lambda dataset: dataset.delete(7), "where must be an SQL string, .* got 7"),
        (lambda dataset: dataset.update("id = 1", {7: 1}), "a column name must be a string, got 7"),
        (lambda dataset: dataset.compact(compression="best"), "best"),
    ],
)
def test_operations_change_nothing(local: Place, operation: Callable[[Dataset], object], problem: str) -> None:
    dataset = local.dataset()
    dataset.write(ROWS, partition_by=["part"])
    state = local.state()
    with pytest.raises(InvalidArgument, match=problem):
        operation(dataset)
    assert local.state() == state


def test_rows_without_the_partition_columns(local: Place) -> None:
    dataset = local.dataset()
    dataset.write(ROWS, partition_by=["part"])
    with pytest.raises(ColumnNotFound, match="partition columns of the dataset"):
        dataset.write(ROWS.drop_columns("part"), "append")


def test_rows_of_a_dataset_without_partitions_cannot_be_partitioned(local: Place) -> None:
    dataset = local.dataset()
    dataset.write(ROWS)
    with pytest.raises(InvalidArgument, match="partition"):
        dataset.write(ROWS, "append", partition_by=["part"])


def test_files_that_are_partitioned_in_different_ways(local: Place) -> None:
    local.write_files({"part=a/0.parquet": ROWS.select(["id"]), "day=1/0.parquet": ROWS.select(["id"])})
    with pytest.raises(InvalidArgument, match=r"partitioned in different ways: .* by 'day', .* by 'part'"):
        local.dataset().delete("id = 1")


def test_no_compression_has_two_names(local: Place) -> None:
    dataset = local.dataset()
    dataset.write(ROWS, compression="uncompressed")
    assert [group.codec for file in dataset.files() for group in file.row_groups] == ["none"]
