"""The base of `Dataset`: its location and engine, and the operations that change no rows."""

from __future__ import annotations

import copy
import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from fsspec import AbstractFileSystem

from parketto.commit.history import Commit, commits
from parketto.commit.retention import check_retention
from parketto.commit.workspace import Workspace
from parketto.display import table
from parketto.engines.registry import get_engine
from parketto.errors import InvalidArgument, quoted
from parketto.operations.context import Backups, DatasetContext, Isolation, check_isolation, check_retries
from parketto.operations.running import running
from parketto.parquet.codec import forced as forced_codec
from parketto.progress import ProgressOption
from parketto.results import CheckReport
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import display_path, open_store, path_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from parketto.commit.recovery import Recovery
    from parketto.engines.base import Engine
    from parketto.operations.expectations import Expect
    from parketto.parquet.file_info import FileInfo
    from parketto.parquet.row_source import RowSource
    from parketto.storage.options import GivenOptions

PUBLISH_MODES = ("auto", "rename")
HISTORY_MODES = ("on", "off")


class BaseDataset:
    """A location and an engine, with the operations that change no rows."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        engine: str | Engine | None = None,
        *,
        filesystem: AbstractFileSystem | None = None,
        storage_options: GivenOptions = None,
        workspace: str | os.PathLike[str] | None = None,
        publish: Literal["auto", "rename"] = "auto",
        spark: SparkSession | None = None,
        memory_mb: int | None = None,
        threads: int | None = None,
        timezone: str | None = None,
        isolation: Isolation = "serializable",
        retries: int = 3,
        history: Literal["on", "off"] = "on",
        retention: float | dt.timedelta | None = None,
    ) -> None:
        from parketto.expressions.time_zones import zone_info

        if timezone is not None:
            zone_info(timezone)  # raises if unknown
        check_isolation(isolation)
        check_retries(retries)
        forced_codec()  # raises if the environment names an unknown one
        self._store, root = open_store(path, filesystem, storage_options)
        if not root.strip("/"):
            raise InvalidArgument(
                f"{path!r} is the root of a filesystem, not a dataset: name a directory below it"
            )
        #: The path to display: a URL unless the dataset is on the local disk.
        self.path = display_path(self._store, root, path)
        if publish not in PUBLISH_MODES:
            raise InvalidArgument(f"unknown publish {publish!r}; valid choices: {quoted(PUBLISH_MODES)}")
        if history not in HISTORY_MODES:
            raise InvalidArgument(f"unknown history {history!r}; valid choices: {quoted(HISTORY_MODES)}")
        self._storage_options = storage_options
        options = {"spark": spark, "memory_mb": memory_mb, "threads": threads}
        self.engine = get_engine(engine, **{name: value for name, value in options.items() if value is not None})
        location = None if workspace is None else path_text(workspace)
        opened = Workspace(self._store, root, location, history=history == "on")
        self._context = DatasetContext(
            self._store,
            root,
            opened,
            self.engine,
            publish == "auto",
            timezone,
            isolation,
            retries,
            check_retention(retention),
        )

    def __repr__(self) -> str:
        return f"Dataset({self.path!r}, engine={self.engine.name!r})"

    def _repr_html_(self) -> str:
        # Nothing is listed or read: a dataset may have 100,000 files on a store that is far away.
        return table("Dataset", [("path", self.path), ("engine", self.engine.name)])

    def files(self, partition_filter: PartitionFilter = None) -> list[FileInfo]:
        """The data files with their footer metadata, ordered by path; each with its own schema."""
        return list(self._context.snapshot(partition_filter, stats_columns=None, own_schemas=True).files)

    def check(
        self,
        deep: bool = False,
        *,
        partition_filter: PartitionFilter = None,
        progress: ProgressOption = None,
    ) -> CheckReport:
        """Find every damaged file and column. Nothing is written, and damaged files do not stop the check.

        A shallow check reads every footer. It finds files that are empty, truncated or not Parquet, damaged
        footers, and footers that contradict their file: pages that overlap or lie outside of it, inconsistent row
        counts, unknown types and codecs.

        A deep check also reads every page of every column. It verifies page checksums (CRC-32) where they exist,
        decodes all values, and compares them with the footer: counts of rows, values and nulls, and the bounds
        (min and max) of columns that are not nested. Strings must be valid UTF-8.

        A flipped bit that turns one valid value into another is only found by a checksum. Without one, the codec
        decides: gzip and Brotli mostly detect it, Snappy and LZ4 often, Zstandard hardly ever; in uncompressed
        numbers it is never detected, unless a value leaves its bounds. Spark writes checksums by default, PyArrow
        with `write_page_checksum=True`.

        Args:
            deep: Decode all pages, which takes about as long as reading the dataset.
            partition_filter: The partitions to check.
            progress: True to show it, or a callback that gets a `Progress` as work completes.

        Returns:
            A `CheckReport`: `healthy`, what was checked (`files_checked`, `rows`, `bytes`, `row_groups`,
            `columns_checked`, `pages_checked`), and `damaged`, a list of `path`, `row_group`, `column` and
            `reason`. Row group and column are None if a whole file is affected.

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
            'it does not end with PAR1: it is truncated, or not a Parquet file'
        """
        from parketto.operations.check import check

        with running(self._context, "check", progress) as run:
            return run.done(check(self._context, partition_filter, run.progress, deep=deep))

    def recover(self, *, dry_run: bool = False) -> Recovery:
        """Finish or undo an interrupted operation, remove its staged files, and report what was done.

        Every operation does this first. Idempotent. It also removes retired files whose retention is over, and
        rows of a quarantine (`write(expect=...)`) whose operation was interrupted before it was committed.

        Args:
            dry_run: Only report what would be done about interrupted operations: nothing is changed. Operations
                that are still running are left out, except on object stores, where no lock shows that they are
                committing.

        Example:
            >>> from parketto import Dataset
            >>> str(Dataset("memory://events-example", engine="pyarrow").recover())
            'nothing to recover'
        """
        from parketto.commit.recovery import plan_recovery, recover
        from parketto.operations.expectations import settle_quarantines

        if dry_run:
            return plan_recovery(self._context.workspace)
        found = recover(self._context.workspace, expire=True)
        settle_quarantines(self._context)
        return found

    def history(self, limit: int | None = None) -> list[Commit]:
        """The commits in the log, newest first.

        Each commit is a mapping: `number`, `operation`, `at`, `duration_seconds`, `engine`, `user`, `program`,
        `commit_id`, `arguments`, `statistics`, `files_published`, `files_retired`, `kept_until`, `can_undo` and
        `undone_by`. Changes by other programs are not recorded.

        Args:
            limit: The maximum number of commits.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> prices = Dataset("memory://history-example", engine="pyarrow")
            >>> _ = prices.write(pa.table({"price": [1.0, 250.0]}), commit_id="import:1")
            >>> _ = prices.delete("price > 100")
            >>> [(commit["number"], commit["operation"], commit["commit_id"]) for commit in prices.history()]
            [(2, 'delete', None), (1, 'append', 'import:1')]
        """
        return commits(self._context.workspace, limit)

    def _context_for(
        self,
        isolation: Isolation | None = None,
        retries: int | None = None,
        retention: float | dt.timedelta | None = None,
    ) -> DatasetContext:
        """The dataset context with the settings of one operation."""
        context = self._context
        if retention is not None:
            context = replace(context, retention=check_retention(retention))
        if isolation is not None:
            context = replace(context, isolation=check_isolation(isolation))
        if retries is not None:
            context = replace(context, retries=check_retries(retries))
        return context

    def _in_stream(self, stream: Mapping[str, Any]) -> Self:
        """The same dataset, for one micro-batch of a stream."""
        found = copy.copy(self)
        found._context = replace(self._context, stream=stream)
        return found

    def _rows(self, rows: Any) -> RowSource:
        from parketto.operations.sources import row_source_of

        return row_source_of(rows, self.engine, self._store.fs, self._storage_options)

    def _expect(
        self,
        rules: Mapping[str, Any] | None,
        on_violation: str,
        quarantine: str | os.PathLike[str] | None,
    ) -> Expect | None:
        """The expectations of an operation, with a quarantine on the dataset's filesystem."""
        from parketto.operations.expectations import Expect

        path = None
        if quarantine is not None:
            store, path = open_store(quarantine, self._store.fs, self._storage_options)
            if not store.same_files(self._store):
                raise InvalidArgument(f"the quarantine {quarantine!r} must be on the filesystem of the dataset")
        return Expect.of(self._context, rules, on_violation, path)

    def _backups(self, directory: str | os.PathLike[str] | None) -> Backups | None:
        """The backup location: a directory on the dataset's filesystem, or a URL on any other."""
        if directory is None:
            return None
        store, location = open_store(directory, self._store.fs, self._storage_options)
        backups = Backups(store, location, as_url="://" in path_text(directory))
        backups.check_outside(self._store, self._context.root)
        return backups
