"""A process that merges into a dataset while another one does the same; it repeats what it lost a race for."""

from __future__ import annotations

import sys

import pyarrow as pa

from parketto import CommitConflict, Dataset


def main(root: str, name: str) -> None:
    dataset = Dataset(root)
    own = {"a": 100, "b": 200}[name]
    for number in range(4):
        source = pa.table({"id": [number, own + number], "by": [name] * 2, "n": [number] * 2})
        while True:
            try:
                stats = dataset.merge(source, ["id"])
                break
            except CommitConflict:
                continue
        assert stats["inserted"] == 1
        assert stats["updated"] == 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
