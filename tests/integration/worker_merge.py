"""A process that merges into a dataset while another one does the same; it retries after conflicts.

It prints a line when its session has started, and waits for a line before it merges.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from parketto import CommitConflict, Dataset
from parketto.engines.spark.engine import SparkEngine


def main(root: str, name: str, merges: int) -> None:
    engine = SparkEngine()
    engine.session.range(1).count()
    print("ready", flush=True)
    sys.stdin.readline()
    dataset = Dataset(root, engine)
    for number in range(merges):
        # The first key exists already; the second is inserted by the faster process, and only once.
        source = pa.table({"id": [number, 100 + number], "by": [name] * 2, "n": [number] * 2})
        while True:
            try:
                stats = dataset.merge(source, ["id"])
                break
            except CommitConflict:
                continue
        assert stats["inserted"] + stats["updated"] == 2
        assert stats["deleted"] == 0


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
