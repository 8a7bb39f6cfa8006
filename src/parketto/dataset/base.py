"""What all operations of a dataset stand on: where it is, and who carries them out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from fsspec import AbstractFileSystem

from parketto.commit.recovery import Recovery, recover
from parketto.commit.workspace import Workspace
from parketto.engines.base import Engine
from parketto.engines.registry import get_engine
from parketto.errors import InvalidArgument, quoted
from parketto.kernels.rows import RowSource
from parketto.operations.place import Backups, Place
from parketto.operations.sources import given_rows
from parketto.plan.zones import zone_info
from parketto.storage.footers import FileInfo
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store, shown_path
from parketto.storage.options import GivenOptions
from parketto.storage.snapshot import while_files_vanish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLISH_MODES = ("auto", "rename")


class BaseDataset:
    """A place, an engine, and what can be seen of the files."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        engine: str | Engine | None = None,
        filesystem: AbstractFileSystem | None = None,
        storage_options: GivenOptions = None,
        *,
        journal: str | os.PathLike[str] | None = None,
        publish: Literal["auto", "rename"] = "auto",
        spark: SparkSession | None = None,
        memory_mb: int | None = None,
        threads: int | None = None,
        timezone: str | None = None,
    ) -> None:
        if timezone is not None:
            zone_info(timezone)  # or an error that names it
        self._store, root = open_store(path, filesystem, storage_options)
        #: The dataset as people know it: a URL if it is not on the local disk.
        self.path = shown_path(self._store, root, path)
        if publish not in PUBLISH_MODES:
            raise InvalidArgument(f"unknown publish {publish!r}; valid choices: {quoted(PUBLISH_MODES)}")
        self._storage_options = storage_options
        options = {"spark": spark, "memory_mb": memory_mb, "threads": threads}
        self.engine = get_engine(engine, **{name: value for name, value in options.items() if value is not None})
        workspace = Workspace(self._store, root, None if journal is None else os.fspath(journal))
        self._place = Place(self._store, root, workspace, self.engine, publish == "auto", timezone)

    def __repr__(self) -> str:
        return f"Dataset({self.path!r}, engine={self.engine.name!r})"

    def files(self, partition_filter: PartitionFilter = None) -> list[FileInfo]:
        """The data files, with what their footers say, in the order of their paths."""
        return list(self._place.snapshot(partition_filter, stats_columns=None).files)

    def read(self, columns: Sequence[str] | None = None, partition_filter: PartitionFilter = None) -> pa.Table:
        """The rows as one PyArrow table, files in the order of their paths.

        Args:
            columns: Which columns to read; by default all that are in the files.
            partition_filter: Which partitions to read.
        """
        from parketto.kernels.reader import read_table

        return while_files_vanish(
            self.path, lambda: read_table(self._store, self._place.snapshot(partition_filter).files, columns)
        )

    def recover(self) -> Recovery:
        """Finish or undo an interrupted operation and remove what it staged; say what was done.

        Every operation does this first. Calling it again does nothing.

        Example:
            >>> from parketto import Dataset
            >>> str(Dataset("memory://events-example", engine="pyarrow").recover())
            'nothing to recover'
        """
        return recover(self._place.workspace)

    def _rows(self, rows: Any) -> RowSource:
        return given_rows(rows, self.engine, self._store.fs, self._storage_options)

    def _backups(self, directory: str | os.PathLike[str] | None) -> Backups | None:
        """Where to keep what is retired: a folder on the dataset's filesystem, or a URL of any other."""
        if directory is None:
            return None
        store, location = open_store(directory, self._store.fs, self._storage_options)
        backups = Backups(store, location, as_url="://" in os.fspath(directory))
        backups.check_outside(self._store, self._place.root)
        return backups
