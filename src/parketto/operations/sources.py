"""Row sources for what callers pass: data frames and tables of all kinds, or a path of Parquet files."""

from __future__ import annotations

import os
import posixpath
from typing import Any

from fsspec import AbstractFileSystem

from parketto.commit.settled import list_settled
from parketto.commit.workspace import Workspace
from parketto.engines.base import Engine
from parketto.parquet.row_source import ArrowRows, FileRows, FrameRows, RowSource, arrow_rows, is_path
from parketto.parquet.snapshot import discover, read_snapshot
from parketto.parquet.streams import streamed_rows
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store
from parketto.storage.options import GivenOptions


def row_source_of(
    rows: Any,
    engine: Engine,
    filesystem: AbstractFileSystem | None = None,
    storage_options: GivenOptions = None,
) -> RowSource:
    """The row source for a data frame, a table, a stream or a path."""
    if isinstance(rows, ArrowRows | FileRows | FrameRows):
        return rows
    if (own := engine.adopt(rows)) is not None:
        return own
    if is_path(rows):
        return path_rows(rows, engine, filesystem, storage_options)[0]
    if (stream := streamed_rows(rows)) is not None:
        return stream
    return arrow_rows(rows)


def path_rows(
    path: str | os.PathLike[str],
    engine: Engine,
    filesystem: AbstractFileSystem | None = None,
    storage_options: GivenOptions = None,
    partition_filter: PartitionFilter = None,
) -> tuple[FileRows, str]:
    """The rows of a Parquet file or a dataset, and the root folder of its partitions."""
    store, location = open_store(path, filesystem, storage_options)
    engine.check_store(store)
    if (entry := store.stat(location)) is not None:
        root = posixpath.dirname(location)
        return FileRows.of(store, read_snapshot(store, root, [entry], None).files), root
    listed = discover(
        store,
        location,
        lambda: list_settled(Workspace(store, location), partition_filter).files,
        stats_columns=None,
    )
    return FileRows.of(store, listed.files), location
