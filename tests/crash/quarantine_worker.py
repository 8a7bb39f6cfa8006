"""Writes batches with a quarantine until it is killed: each has one row that passes and one that does not."""

from __future__ import annotations

import itertools
import sys

import pyarrow as pa

from parketto import Dataset


def main() -> None:
    dataset = Dataset(sys.argv[1], "pyarrow")
    for number in itertools.count():
        rows = pa.table({"id": [number, number], "price": [1.0, -1.0]})
        dataset.write(
            rows, expect={"positive price": "price > 0"}, on_violation="quarantine", commit_id=f"batch {number}"
        )
        if number == 0:  # all libraries are imported
            print("ready", flush=True)


if __name__ == "__main__":
    main()
