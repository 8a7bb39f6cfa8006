"""A Spark driver to be killed: its tasks stage their files and then take a long time to end."""

from __future__ import annotations

import sys

from worker import version_table

from helpers import slow
from parketto import Dataset
from parketto.engines.spark import tasks
from parketto.engines.spark.engine import SparkEngine

_FOR_LONG = 300.0  # seconds


def main(operation: str, root: str, marks: str) -> None:
    if operation == "compact":
        engine = slow.SlowSpark()
        engine.marks, engine.seconds = marks, _FOR_LONG
        Dataset(root, engine).compact()
    else:
        slow.SlowShipped.marks, slow.SlowShipped.seconds = marks, {"Edit": _FOR_LONG}
        tasks.PickledFunction = slow.SlowShipped  # type: ignore[misc]
        large = SparkEngine(broadcast_mb=1e-6)
        Dataset(root, large).merge(large.session.createDataFrame(version_table(1)), ["id"])


if __name__ == "__main__":
    main(*sys.argv[1:])
