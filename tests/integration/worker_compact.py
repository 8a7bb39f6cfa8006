"""A process that compacts a dataset repeatedly; prints the result of each attempt."""

from __future__ import annotations

import sys

from parketto import CommitConflict, Dataset

if __name__ == "__main__":
    path, attempts = sys.argv[1], int(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(attempts):
        try:
            stats = Dataset(path).compact(target_rows_per_file=500)
        except CommitConflict:
            print("conflict", flush=True)
        else:
            print("done" if stats["compacted_file_count"] else "nothing", flush=True)
