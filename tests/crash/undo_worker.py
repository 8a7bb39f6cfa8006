"""A process to be killed: changes a dataset, and undoes the changes in several ways, forever."""

from __future__ import annotations

import sys
from typing import Any

from worker import version_table

from parketto import Dataset


def main(path: str, publish: Any) -> None:
    dataset = Dataset(path, "pyarrow", publish=publish)
    version_table(0)  # PyArrow imports pandas, if that is there, with the first array
    dataset.count("id < 7")
    print("ready", flush=True)
    version = 0
    while True:
        version += 1
        dataset.update("id >= 0", {"version": version})
        dataset.delete("id < 100")
        deleted = dataset.history(1)[0]["number"]
        dataset.compact(target_rows_per_file=90)
        dataset.undo(deleted)  # and the compaction along
        dataset.undo()  # the update
        dataset.undo(dataset.history(1)[0]["number"])  # the undo: the update applies again
        dataset.restore(to=1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
