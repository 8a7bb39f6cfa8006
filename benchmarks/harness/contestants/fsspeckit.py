"""fsspeckit: its compaction and its merge. It neither deletes nor updates, and at present it does not sort."""

from __future__ import annotations

from typing import Any

import fsspec
import fsspeckit  # noqa: F401 - registers the operations on filesystems
import pyarrow.parquet as pq

from harness.request import Request


def prepare(_request: Request) -> Any:
    """The filesystem that has the operations."""
    return fsspec.filesystem("file")


def compact(request: Request, filesystem: Any) -> None:
    """Its compaction."""
    result = filesystem.compact_parquet_dataset(request.root, target_mb_per_file=request.target_mb)
    if not result.succeeded:
        raise RuntimeError(result.error)


def upsert(request: Request, _filesystem: Any) -> None:
    """Its merge."""
    from fsspeckit.datasets.pyarrow import PyarrowDatasetIO

    PyarrowDatasetIO().merge(pq.read_table(request.source), request.root, "upsert", ["id"])


OPERATIONS = {"compact": compact, "upsert": upsert}
