"""`ParquetCompactor`: merges the small files of each partition of a dataset."""

from __future__ import annotations

import datetime as dt
import os
import posixpath
from typing import TypedDict

from fsspec import AbstractFileSystem

from parketto.arguments import CompactionScope, Thresholds, check_codec
from parketto.dataset import Dataset
from parketto.engines.base import Engine
from parketto.operations.running import running
from parketto.planning.copy_policy import Rewrite, check_rewrite
from parketto.progress import ProgressOption, bar_on_terminal
from parketto.storage.options import GivenOptions


class CompactionStats(TypedDict):
    """What a compaction did, or, in a dry run, would do."""

    partitions_scanned: int
    partitions_compacted: int
    files_before: int
    #: In a dry run: the planned number of files.
    files_after: int
    bytes_before: int
    #: In a dry run: the same as before, because the compressed size is only known after writing.
    bytes_after: int
    #: In UTC, as ISO 8601.
    start_time: str
    end_time: str
    #: The paths of the files to merge, one list per group.
    planned_groups: list[list[str]]
    #: The backup of the original files, for `Dataset.restore`; None if they were deleted.
    kept_path: str | None


class ParquetCompactor:
    """Merges the small files of a dataset, in place and atomically.

    Rows, types and metadata are kept, and large files are not rewritten. Memory is bounded: files are streamed, so
    partitions can have any size.

    Args:
        dataset_dir: The directory of the dataset, local or a URL.
        target_file_size_mb: The approximate target file size.
        compression: The codec of encoded rows. Copied row groups keep theirs.
        engine: The engine; by default Spark.
        filesystem: An fsspec filesystem, if the path does not determine it.
        storage_options: Where the files are, or plain options for the filesystem.
        originals_dir: The directory for original files that are not deleted; by default `.<name>.originals` beside
            the dataset.
        progress: True to show it, False, or a callback that gets a `Progress`; by default a bar on a terminal,
            if `rich` is installed.

    Example:
        >>> import pyarrow as pa
        >>> from parketto import Dataset, ParquetCompactor
        >>> for part in range(6):
        ...     _ = Dataset("memory://trades-example", engine="pyarrow").write(pa.table({"trade": [part]}))
        >>> compactor = ParquetCompactor("memory://trades-example", target_file_size_mb=100, engine="pyarrow")
        >>> stats = compactor.compact(min_file_count=5, max_file_size_mb=20)
        >>> stats["files_before"], stats["files_after"], stats["partitions_compacted"]
        (6, 1, 1)
    """

    def __init__(
        self,
        dataset_dir: str | os.PathLike[str],
        target_file_size_mb: float = 100,
        compression: str = "zstd",
        *,
        engine: str | Engine | None = None,
        filesystem: AbstractFileSystem | None = None,
        storage_options: GivenOptions = None,
        originals_dir: str | os.PathLike[str] | None = None,
        progress: ProgressOption = None,
    ) -> None:
        self._thresholds = Thresholds.of(target_file_size_mb, None)
        self._codec = check_codec(compression)
        self._dataset = Dataset(dataset_dir, engine, filesystem=filesystem, storage_options=storage_options)
        self._originals, self._progress = originals_dir, progress

    def compact(
        self,
        min_file_count: int = 2,
        max_file_size_mb: float | None = None,
        delete_source_files: bool = True,
        dry_run: bool = False,
        *,
        rewrite: Rewrite = "auto",
        verify: bool = False,
    ) -> CompactionStats:
        """Merge small files. Idempotent: a second run with the same arguments does nothing.

        Args:
            min_file_count: Skip partitions with fewer files (with `max_file_size_mb`, fewer files below that
                size).
            max_file_size_mb: Only merge files that are smaller than this.
            delete_source_files: Delete the merged files. Otherwise they are moved out of the dataset (so that rows
                are not duplicated) to `kept_path`, from where `Dataset.restore` brings them back.
            dry_run: Only plan: nothing is written or removed.
            rewrite: How row groups are written: `"auto"`, `"copy"` or `"encode"`. See `Dataset.compact`.
            verify: Decode row groups before they are copied, to find damage. See `Dataset.compact`.

        Raises:
            ValueError: An argument is invalid.
            FileNotFoundError: There is no dataset.
            CommitConflict: Another writer changed the files; nothing was published.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset, ParquetCompactor
            >>> ticks = Dataset("memory://originals-example", engine="pyarrow")
            >>> for part in range(3):
            ...     _ = ticks.write(pa.table({"tick": [part]}))
            >>> stats = ParquetCompactor("memory://originals-example", engine="pyarrow").compact(
            ...     delete_source_files=False
            ... )
            >>> len(ticks.files()), ticks.read().num_rows
            (1, 3)
            >>> ticks.restore(stats["kept_path"])["files_restored"]
            3
        """
        start = dt.datetime.now(dt.UTC)
        scope = CompactionScope.of(min_file_count, max_file_size_mb)
        rewrite = check_rewrite(rewrite)
        keep = None if delete_source_files else self._originals_dir()
        dataset, progress = self._dataset, bar_on_terminal(self._progress)
        with running(dataset._context, "compact", progress, dry_run=dry_run) as run:
            report = dataset._compact(
                self._thresholds,
                scope,
                self._codec,
                rewrite,
                None,
                dry_run,
                None if dry_run else keep,
                run.progress,
                verify=verify,
                recompress=False,
            )
            found, plan = report.stats, report.plan
            stats = CompactionStats(
                partitions_scanned=len({file.directory for file in plan.files}),
                partitions_compacted=len({group.directory for group in plan.groups}),
                files_before=found["before_file_count"],
                files_after=found["after_file_count"],
                bytes_before=found["before_total_bytes"],
                bytes_after=found["after_total_bytes"],
                start_time=start.isoformat(),
                end_time=dt.datetime.now(dt.UTC).isoformat(),
                planned_groups=[group.paths for group in plan.groups],
                kept_path=found["backup_path"],
            )
            return run.done(stats)

    def _originals_dir(self) -> str | os.PathLike[str]:
        if self._originals is not None:
            return self._originals
        parent, name = posixpath.split(self._dataset._context.root)
        return f"{parent.rstrip('/')}/.{name}.originals"
