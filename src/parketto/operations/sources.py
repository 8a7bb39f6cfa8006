"""Rows as callers hand them in: frames and tables of all kinds, or the path of Parquet files."""

from __future__ import annotations

import os
import posixpath
from typing import Any

from fsspec import AbstractFileSystem

from parketto.commit.recovery import list_settled
from parketto.commit.workspace import Workspace
from parketto.engines.base import Engine
from parketto.kernels.rows import FileRows, RowSource, arrow_rows, is_path
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store
from parketto.storage.options import GivenOptions
from parketto.storage.snapshot import discover, read_snapshot


def given_rows(
    rows: Any,
    engine: Engine,
    filesystem: AbstractFileSystem | None = None,
    storage_options: GivenOptions = None,
) -> RowSource:
    """Whatever rows a caller has."""
    if (own := engine.adopt(rows)) is not None:
        return own
    if is_path(rows):
        return path_rows(rows, engine, filesystem, storage_options)[0]
    return arrow_rows(rows)


def path_rows(
    path: str | os.PathLike[str],
    engine: Engine,
    filesystem: AbstractFileSystem | None = None,
    storage_options: GivenOptions = None,
    partition_filter: PartitionFilter = None,
) -> tuple[FileRows, str]:
    """The rows of a Parquet file or of a dataset, and the folder that its partitions are below."""
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
