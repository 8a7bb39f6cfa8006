"""A process that merges into a dataset while another one does the same; it retries after conflicts."""

from __future__ import annotations

import sys

import pyarrow as pa

from parketto import CommitConflict, Dataset


def main(root: str, name: str) -> None:
    dataset = Dataset(root)
    for number in range(6):
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
    main(sys.argv[1], sys.argv[2])
