"""The shortest script there is: everything through memory."""

from __future__ import annotations

import os

import pyarrow.parquet as pq

from harness.contestants.swapping import new_folder
from harness.request import Request


def prepare(_request: Request) -> None:
    """Importing it was all."""


def compact(request: Request, _: None) -> None:
    """One table, one file for each partition."""
    if request.partition_columns:
        with new_folder(request.root) as out:
            for entry in os.scandir(request.root):
                os.makedirs(os.path.join(out, entry.name))
                table = pq.read_table(entry.path, partitioning=None)
                pq.write_table(table, os.path.join(out, entry.name, "all.parquet"))
        return
    table = pq.read_table(request.root)
    with new_folder(request.root) as out:
        pq.write_table(table, os.path.join(out, "all.parquet"))


OPERATIONS = {"compact": compact}
