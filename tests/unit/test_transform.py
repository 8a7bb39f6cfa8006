"""Functions of callers: which kind of data frame they take, and how they are pickled."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyspark.sql
import pytest
from pyspark.sql import DataFrame as SparkFrame

from parketto import InvalidArgument
from parketto.compat.transform import wants_spark_frame
from parketto.engines.spark.shipping import dumps, loads
from parketto.runtime.batches import runs

pytestmark = pytest.mark.spark


class Doubling:
    def __call__(self, frame: SparkFrame) -> Any:
        return frame


def takes_spark(frame: SparkFrame, times: int = 1) -> Any:
    return frame


def returns_spark(frame) -> pyspark.sql.DataFrame:  # type: ignore[no-untyped-def]
    return frame


def may_take_spark(frame: SparkFrame | None) -> Any:
    return frame


def only_for_type_checkers(frame: "pyspark.sql.connect.DataFrame") -> "Unknown":  # type: ignore[name-defined] # noqa: F821, UP037
    return frame


def takes_polars(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def only_for_type_checkers_polars(frame: Unknown.DataFrame) -> DataFrame:  # type: ignore[name-defined] # noqa: F821
    return frame


@pytest.mark.parametrize(
    ("function", "spark"),
    [
        (takes_spark, True),
        (returns_spark, True),
        (may_take_spark, True),
        (only_for_type_checkers, True),
        (Doubling(), True),
        (functools.partial(takes_spark, times=2), True),
        (takes_polars, False),
        (only_for_type_checkers_polars, False),
        (lambda frame: frame, False),
        (pl.DataFrame.head, False),
        (len, False),
    ],
)
def test_annotations_decide_the_frame_type(function: Callable[..., Any], spark: bool) -> None:
    assert wants_spark_frame(function) is spark


def test_functions_are_pickled_by_value() -> None:
    factor = 3
    there = loads(dumps(lambda number: number * factor))
    assert there(2) == 6


def test_importable_functions_are_pickled_by_name() -> None:
    assert loads(dumps(textwrap.dedent)) is textwrap.dedent
    assert len(dumps(textwrap.dedent)) < 100


def test_pickled_schemas_keep_the_names_of_list_elements() -> None:
    schema = pa.schema({"tags": pa.list_(pa.field("word", pa.string(), nullable=False))})
    assert loads(dumps({"schema": schema}))["schema"].field("tags").type.value_field.name == "word"


def test_functions_that_cannot_be_pickled_are_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(InvalidArgument, match="cannot be pickled"):
        dumps(lambda: lock.acquire())


def test_functions_of_the_main_script_are_pickled_by_value(tmp_path: Path) -> None:
    """Plain pickle would refer to `__main__.double`, which does not exist in another process."""
    script = tmp_path / "job.py"
    script.write_text(
        "import sys\n"
        "from parketto.engines.spark.shipping import dumps\n"
        "def double(number):\n"
        "    return number * 2\n"
        "sys.stdout.buffer.write(dumps(double))\n"
    )
    content = subprocess.run([sys.executable, script], capture_output=True, check=True).stdout
    assert loads(content)(21) == 42


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_runs_respect_the_row_limit(limit: int) -> None:
    table = pa.table({"n": range(20)})
    found = list(runs(table.to_batches(max_chunksize=6), 2**30, limit))
    assert [run.num_rows for run in found] == [limit] * (20 // limit) + ([20 % limit] if 20 % limit else [])
    assert pa.concat_tables(found).equals(table)
