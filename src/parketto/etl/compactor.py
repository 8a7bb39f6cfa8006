"""ParquetCompactor: small files of a dataset, put together partition by partition."""

from __future__ import annotations

import datetime as dt
import logging
import os
import posixpath
from typing import TypedDict

from fsspec import AbstractFileSystem

from parketto.dataset import Dataset
from parketto.engines.base import Engine, ProgressCallback
from parketto.etl.progress import shown
from parketto.plan.copying import Rewrite, check_rewrite
from parketto.plan.limits import CompactionScope, Thresholds, check_codec
from parketto.storage.options import GivenOptions

logger = logging.getLogger(__name__)


class CompactionStats(TypedDict):
    """What a compaction did, or, in a dry run, would do."""

    partitions_scanned: int
    partitions_compacted: int
    files_before: int
    #: In a dry run: how many files the plan aims at.
    files_after: int
    bytes_before: int
    #: In a dry run: the same as before, because only writing tells how well data compresses.
    bytes_after: int
    start_time: dt.datetime
    end_time: dt.datetime
    #: The paths of the files that are put together, one list for each new file.
    planned_groups: list[list[str]]
    #: Where the originals are, for `Dataset.restore`; None if they were not kept.
    kept_path: str | None


class ParquetCompactor:
    """Puts the small files of a dataset together, in place and in one step.

    Rows, types and metadata stay, and files that are large enough are not touched. Memory is bounded: files are
    streamed, however large a partition is.

    Args:
        dataset_dir: The directory of the dataset, local or a URL.
        target_file_size_mb: About how large files should become.
        compression: The codec of the new files.
        engine: What does the work; by default Spark.
        filesystem: An fsspec filesystem, if the path alone does not say which.
        storage_options: Where the files are, or plain options for the filesystem.
        originals_dir: Where originals are kept if they are not to be deleted; by default `.<name>.originals`
            beside the dataset.
        progress: Called with a `Progress` as work gets done; by default a bar, on a terminal with `rich`.

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
        progress: ProgressCallback | None = None,
    ) -> None:
        self._thresholds = Thresholds.of(target_file_size_mb, None)
        self._codec = check_codec(compression)
        self._dataset = Dataset(dataset_dir, engine, filesystem, storage_options)
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
        """Put small files together. Doing it again with the same arguments does nothing.

        Args:
            min_file_count: Only touch partitions that have at least so many files (small enough ones, if there is
                a limit).
            max_file_size_mb: Only put files together that are smaller than this.
            delete_source_files: Whether the files that were put together go for good. If not, they are kept
                outside of the dataset (their rows must not be there twice), at `kept_path`; `Dataset.restore`
                brings them back.
            dry_run: Only plan: nothing is written or removed.
            rewrite: How rows come into the new files: `"auto"`, `"copy"` or `"encode"`. See `Dataset.compact`.
            verify: Whether row groups are decoded before they are copied, to find damage. See `Dataset.compact`.

        Raises:
            ValueError: An argument makes no sense.
            FileNotFoundError: There is no dataset.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.

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
        way = check_rewrite(rewrite)
        keep = None if delete_source_files else self._originals_dir()
        with shown(self._progress, f"compacting {posixpath.basename(self._dataset.path)}") as progress:
            report = self._dataset._compact(
                self._thresholds,
                scope,
                self._codec,
                way,
                None,
                dry_run,
                None if dry_run else keep,
                progress,
                verify=verify,
            )
        found, plan = report.stats, report.plan
        stats = CompactionStats(
            partitions_scanned=len({file.directory for file in plan.files}),
            partitions_compacted=len({group.directory for group in plan.groups}),
            files_before=found["before_file_count"],
            files_after=found["after_file_count"],
            bytes_before=found["before_total_bytes"],
            bytes_after=found["after_total_bytes"],
            start_time=start,
            end_time=dt.datetime.now(dt.UTC),
            planned_groups=[group.paths for group in plan.groups],
            kept_path=report.backup_path,
        )
        logger.info(
            "%s %s: %d of %d partitions, %d files -> %d, %.1f MB -> %.1f MB",
            "would compact" if dry_run else "compacted",
            self._dataset.path,
            stats["partitions_compacted"],
            stats["partitions_scanned"],
            stats["files_before"],
            stats["files_after"],
            stats["bytes_before"] / 2**20,
            stats["bytes_after"] / 2**20,
        )
        return stats

    def _originals_dir(self) -> str | os.PathLike[str]:
        if self._originals is not None:
            return self._originals
        parent, name = posixpath.split(self._dataset._place.root)
        return f"{parent.rstrip('/')}/.{name}.originals"
