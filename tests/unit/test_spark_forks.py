"""A process forked from one with a Spark session refuses to use Spark, and leaves its parent's session alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import oracle

pytestmark = pytest.mark.own_spark

# The child neither drops nor stops the session; then the parent continues to use it.
SCRIPT = """
import glob, os, sys, tempfile
tempfile.tempdir = sys.argv[2]
if sys.argv[1] == "the user's":
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
else:
    from parketto.engines.spark.session import get_session
    spark, _ = get_session()
    assert glob.glob(sys.argv[2] + "/parketto-warehouse-*")
child = os.fork()
if child == 0:
    from parketto import Dataset, EngineUnavailable, SparkParquetHandler
    from parketto.engines.spark.session import is_stopped, stop_session

    def refused(use):
        try:
            use()
        except EngineUnavailable as error:
            print(error, flush=True)

    refused(lambda: Dataset(sys.argv[2] + "/events", engine="spark").compact())
    refused(lambda: SparkParquetHandler().spark)
    refused(lambda: SparkParquetHandler(spark).spark)
    refused(lambda: is_stopped(spark))
    assert not stop_session(spark)
    SparkParquetHandler(spark).close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert spark.range(3).count() == 3, "the parent's session"
if sys.argv[1] != "the user's":
    assert glob.glob(sys.argv[2] + "/parketto-warehouse-*"), "the parent's folder"
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("whose", ["ours", pytest.param("the user's", marks=pytest.mark.sweep)])
def test_a_forked_process_leaves_its_parents_session_alone(tmp_path: Path, whose: str) -> None:
    for number in range(2):
        oracle.write_files(str(tmp_path / "events"), {f"{number}.parquet": pa.table({"id": [number]})})
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, whose, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *refused, last = done.stdout.splitlines()
    assert len(refused) == 4, done.stdout
    assert all(line.startswith("this process was forked from one that has a Spark session") for line in refused)
    assert last == "done"
    assert sorted(path.name for path in (tmp_path / "events").iterdir()) == ["0.parquet", "1.parquet"]
