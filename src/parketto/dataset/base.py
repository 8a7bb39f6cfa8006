"""What all operations of a dataset stand on: where it is, and who carries them out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from fsspec import AbstractFileSystem

from parketto.commit.history import Commit, commits
from parketto.commit.recovery import Recovery, recover
from parketto.commit.workspace import Workspace
from parketto.engines.base import Engine, ProgressCallback
from parketto.engines.registry import get_engine
from parketto.errors import InvalidArgument, quoted
from parketto.kernels.rows import RowSource
from parketto.operations.check import check
from parketto.operations.place import Backups, Isolation, Place, check_isolation, check_retries
from parketto.operations.sources import given_rows
from parketto.plan.zones import zone_info
from parketto.stats import CheckReport
from parketto.storage.footers import FileInfo
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store, shown_path
from parketto.storage.options import GivenOptions
from parketto.storage.snapshot import while_files_vanish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLISH_MODES = ("auto", "rename")
HISTORY_MODES = ("on", "off")


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
        isolation: Isolation = "serializable",
        retries: int = 3,
        history: Literal["on", "off"] = "on",
    ) -> None:
        if timezone is not None:
            zone_info(timezone)  # or an error that names it
        check_isolation(isolation)
        check_retries(retries)
        self._store, root = open_store(path, filesystem, storage_options)
        #: The dataset as people know it: a URL if it is not on the local disk.
        self.path = shown_path(self._store, root, path)
        if publish not in PUBLISH_MODES:
            raise InvalidArgument(f"unknown publish {publish!r}; valid choices: {quoted(PUBLISH_MODES)}")
        if history not in HISTORY_MODES:
            raise InvalidArgument(f"unknown history {history!r}; valid choices: {quoted(HISTORY_MODES)}")
        self._storage_options = storage_options
        options = {"spark": spark, "memory_mb": memory_mb, "threads": threads}
        self.engine = get_engine(engine, **{name: value for name, value in options.items() if value is not None})
        location = None if journal is None else os.fspath(journal)
        workspace = Workspace(self._store, root, location, history=history == "on")
        self._place = Place(
            self._store, root, workspace, self.engine, publish == "auto", timezone, isolation, retries
        )

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

    def check(
        self,
        deep: bool = False,
        partition_filter: PartitionFilter = None,
        *,
        progress: ProgressCallback | None = None,
    ) -> CheckReport:
        """Find every damaged file and column. Nothing is written, and one bad file does not hide the next.

        A shallow check reads every footer. It finds files that are empty, truncated or no Parquet, damaged
        footers, and footers that contradict their file: pages outside of it or on top of each other, numbers of
        rows that do not add up, types and codecs that do not exist.

        A deep check also reads every page of every column. It verifies checksums (CRC-32) where pages have them,
        decodes all values, and compares them with the footer: rows, values and nulls, and the bounds (min and max)
        of columns that are not nested. Texts must be valid UTF-8.

        Damage that only a checksum can find: a flipped bit that turns one valid value into another one. Pages
        without a checksum hide that. Compression helps little: gzip and Brotli mostly notice, Snappy and LZ4
        often, Zstandard hardly ever; uncompressed numbers never, unless a value leaves its bounds. Spark writes
        checksums by default, PyArrow with `write_page_checksum=True`.

        Args:
            deep: Whether to decode all pages, which takes about as long as to read the dataset.
            partition_filter: Which partitions to check.
            progress: Called with a `Progress` whenever a piece of the work is done.

        Returns:
            A `CheckReport`: `healthy`, what was checked (`files_checked`, `rows`, `bytes`, `row_groups`,
            `columns_checked`, `pages_checked`), and `damaged`, a list of `path`, `row_group`, `column` and
            `reason`. Row group and column are None where a whole file is concerned.

        Raises:
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.

        Example:
            >>> import fsspec, pyarrow as pa
            >>> from parketto import Dataset
            >>> trades = Dataset("memory://check-example", engine="pyarrow")
            >>> for price in (1.5, 2.5):
            ...     _ = trades.write(pa.table({"price": [price] * 1000}), basename_template="trades_{}.parquet")
            >>> report = trades.check(deep=True)
            >>> report["healthy"], report["files_checked"], report["rows"]
            (True, 2, 2000)
            >>> memory = fsspec.filesystem("memory")
            >>> path = trades.files()[1].path
            >>> memory.pipe_file(path, memory.cat_file(path)[:-100])  # truncated
            >>> report = trades.check()
            >>> report["healthy"]
            False
            >>> [damage["path"] for damage in report["damaged"]]
            ['/check-example/trades_001.parquet']
            >>> report["damaged"][0]["reason"]
            'it does not end as a Parquet file does: it is truncated, or no Parquet file'
        """
        return check(self._place, partition_filter, progress, deep=deep)

    def recover(self) -> Recovery:
        """Finish or undo an interrupted operation and remove what it staged; say what was done.

        Every operation does this first. Calling it again does nothing.

        Example:
            >>> from parketto import Dataset
            >>> str(Dataset("memory://events-example", engine="pyarrow").recover())
            'nothing to recover'
        """
        return recover(self._place.workspace)

    def history(self, limit: int | None = None) -> list[Commit]:
        """What has changed the dataset, newest first, as far back as the log goes.

        Each commit is a mapping: `number`, `operation`, `at`, `duration_seconds`, `engine`, `user`, `program`,
        `commit_id`, `arguments`, `statistics`, `files_published` and `files_retired`. Changes that other programs
        made are not in it.

        Args:
            limit: How many at most.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> prices = Dataset("memory://history-example", engine="pyarrow")
            >>> _ = prices.write(pa.table({"price": [1.0, 250.0]}), commit_id="import:1")
            >>> _ = prices.delete("price > 100")
            >>> [(commit["number"], commit["operation"], commit["commit_id"]) for commit in prices.history()]
            [(2, 'delete', None), (1, 'append', 'import:1')]
        """
        return commits(self._place.workspace, limit)

    def _placed(self, isolation: Isolation | None, retries: int | None) -> Place:
        """The place, with what one operation asks for."""
        place = self._place
        if isolation is not None:
            place = replace(place, isolation=check_isolation(isolation))
        if retries is not None:
            place = replace(place, retries=check_retries(retries))
        return place

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
