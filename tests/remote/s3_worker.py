"""Another process on a dataset in S3: one that adds rows, or one that dies in the middle of a compaction."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np
import pyarrow as pa

from helpers.s3 import options
from parketto import Dataset
from parketto.storage.store import Store

#: What a compaction does to files, and how often it has done that when its process dies.
DEATHS = {"staging": ("open_output", 1), "journal": ("write", 1), "retire": ("remove", 2)}


def batch(number: int, rows: int = 50) -> pa.Table:
    return pa.table({"id": np.arange(rows) + number * rows, "batch": np.full(rows, number)})


def append(dataset: Dataset, first: int, times: int) -> None:
    for number in range(first, first + times):
        dataset.write(batch(number))


def die(dataset: Dataset, moment: str) -> None:
    """Compact, and be killed just after a certain call has taken effect."""
    name, after = DEATHS[moment]
    kind = type(dataset._store)
    original, calls = getattr(kind, name), []

    def deadly(self: Store, path: str, *rest: Any, **more: Any) -> Any:
        result = original(self, path, *rest, **more)
        # Leases come and go as in any operation; what is counted is done to journal and data.
        if path.rpartition("/")[2] not in ("lock", "alive"):
            calls.append(path)
            if len(calls) == after:
                os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(kind, name, deadly)
    dataset.compact()


if __name__ == "__main__":
    what, endpoint, url, *rest = sys.argv[1:]
    found = Dataset(url, "pyarrow", storage_options=options(endpoint))
    if what == "append":
        append(found, *map(int, rest))
    else:
        die(found, *rest)
