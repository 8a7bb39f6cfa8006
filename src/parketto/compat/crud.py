"""`ParquetCRUD`: deletes, updates and upserts rows of a dataset, with backups."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fsspec import AbstractFileSystem

from parketto.arguments import check_codec, check_names
from parketto.dataset import Dataset
from parketto.display import typed_result
from parketto.engines.base import Engine
from parketto.errors import ColumnNotFound
from parketto.merge.rules import MergeRules
from parketto.operations.edit_run import EditRequest
from parketto.operations.running import running
from parketto.progress import ProgressOption, bar_on_terminal
from parketto.results import EditStats, RestoreStats
from parketto.storage.hive import PartitionFilter
from parketto.storage.options import GivenOptions


class CRUDStats(TypedDict):
    """What an operation did, or, in a dry run, would do. Row counts are exact in both cases."""

    partitions_affected: int
    #: Files that footers and paths could not rule out.
    files_read: int
    files_written: int
    #: Files that were replaced, or have no remaining rows.
    files_deleted: int
    #: None where a condition ruled out partitions, which are not listed then.
    rows_before: int | None
    rows_after: int | None
    rows_deleted: int
    rows_updated: int
    rows_inserted: int
    #: The argument for `restore`; None without a backup.
    backup_path: str | None


class ParquetCRUD:
    """Deletes, updates and upserts rows of a dataset atomically, rewriting only files with matching rows.

    Args:
        dataset_dir: The directory of the dataset, or its URL.
        compression: The codec of encoded rows: snappy, gzip, lz4, zstd, brotli or none. Copied row groups keep
            theirs.
        backup_dir: A directory outside of the dataset for replaced files; by default there are no backups.
        engine: `"spark"` (the default, unless the environment variable PARKETTO_ENGINE is set), `"duckdb"`,
            `"pyarrow"`, or an engine instance.
        filesystem: An fsspec filesystem, if the path does not determine it.
        storage_options: Where the files are, or options for the path's filesystem.
        progress: True to show it, False, or a callback that gets a `Progress`; by default a bar on a terminal,
            if `rich` is installed.
        timezone: The time zone of SQL filters and new values; by default the Spark session's, or UTC on other
            engines. See `Dataset`.

    Example:
        >>> import pyarrow as pa
        >>> crud = ParquetCRUD("memory://crud-quotes", backup_dir="memory://crud-backups", engine="duckdb")
        >>> quotes = pa.table({"id": [1, 2], "side": ["bid", "offer"], "price": [9.5, 10.0]})
        >>> crud.upsert(quotes, key_cols=["id"], partition_cols=["side"])["rows_inserted"]
        2
        >>> stats = crud.update("side = 'offer'", {"side": "ask"})  # the row moves to its new partition
        >>> stats["rows_updated"], stats["partitions_affected"]
        (1, 2)
        >>> crud.restore(stats["backup_path"])["rows_restored"]
        1
    """

    def __init__(
        self,
        dataset_dir: str | os.PathLike[str],
        compression: str = "zstd",
        backup_dir: str | os.PathLike[str] | None = None,
        *,
        engine: str | Engine | None = None,
        filesystem: AbstractFileSystem | None = None,
        storage_options: GivenOptions = None,
        progress: ProgressOption = None,
        timezone: str | None = None,
    ) -> None:
        self._codec = check_codec(compression) or "none"
        self._dataset = Dataset(
            dataset_dir, engine, filesystem=filesystem, storage_options=storage_options, timezone=timezone
        )
        self._backup_dir, self._progress = backup_dir, progress
        self._dataset._backups(backup_dir)  # fail early for an invalid directory

    def delete(
        self,
        filter_expr: Any,
        partition_filter: PartitionFilter = None,
        dry_run: bool = False,
        create_backup: bool = True,
    ) -> CRUDStats:
        """Delete the rows that match a filter. Rows for which it is NULL are kept.

        Args:
            filter_expr: A Polars expression, an SQL condition, a Spark Column or a PyArrow expression.
            partition_filter: The partitions to edit, such as `{"product_id": "BTC-USD"}`. A `filter_expr` on a
                partition column prunes the other partitions as well.
            dry_run: Only count: nothing is written or removed.
            create_backup: Keep replaced files in the `backup_dir`. Without one, it warns.

        Raises:
            ValueError: The filter is invalid, or a column is unknown; nothing was changed.
            FileNotFoundError: The dataset or the partition does not exist.
            CommitConflict: Another writer changed the files; nothing was changed.

        Example:
            >>> import polars as pl
            >>> crud = ParquetCRUD("memory://crud-delete", backup_dir="memory://crud-deleted", engine="pyarrow")
            >>> rows = pl.DataFrame({"day": [1, 1, 2], "spread": [3.0, None, 900.0]})
            >>> _ = crud.upsert(rows.with_row_index("id"), key_cols=["id"], partition_cols=["day"])
            >>> crud.delete(pl.col("spread") > 500, dry_run=True)["rows_deleted"]
            1
            >>> crud.delete(pl.col("spread") > 500)["rows_after"]
            2
        """
        request = EditRequest("delete", filter_expr, None, self._codec, recompress=False)
        stats = self._edit(request, partition_filter, dry_run, self._backup(create_backup, dry_run))
        return _edited(stats, deleted=stats["rows_matched"])

    def update(
        self,
        filter_expr: Any,
        update_expr: Mapping[str, Any],
        partition_filter: PartitionFilter = None,
        dry_run: bool = False,
        create_backup: bool = True,
    ) -> CRUDStats:
        """Update the rows that match a filter. Every expression sees the old row.

        Args:
            filter_expr: A Polars expression, an SQL condition, a Spark Column or a PyArrow expression.
            update_expr: New values by column: plain values, Polars expressions, `parketto.sql("price * 2")`, Spark
                Columns or PyArrow expressions. A row whose partition column changes moves to its new partition.
            partition_filter: The partitions to edit.
            dry_run: Only count: nothing is written or removed.
            create_backup: Keep replaced files in the `backup_dir`. Without one, it warns.

        Raises:
            ValueError: An argument is invalid, a column is unknown, or a value does not fit the column's type.
            FileNotFoundError: The dataset or the partition does not exist.
            CommitConflict: Another writer changed the files; nothing was changed.

        Example:
            >>> import polars as pl
            >>> crud = ParquetCRUD("memory://crud-update", backup_dir="memory://crud-updated", engine="pyarrow")
            >>> rows = pl.DataFrame({"id": [1, 2], "day": [1, 1], "bid": [9.0, 8.0], "spread": [None, 1.0]})
            >>> _ = crud.upsert(rows, key_cols=["id"], partition_cols=["day"])
            >>> crud.update(pl.col("spread").is_null(), {"spread": 10.0 - pl.col("bid")})["rows_updated"]
            1
        """
        request = EditRequest("update", filter_expr, update_expr, self._codec, recompress=False)
        stats = self._edit(request, partition_filter, dry_run, self._backup(create_backup, dry_run))
        return _edited(stats, updated=stats["rows_matched"])

    def upsert(
        self,
        new_data: Any,
        key_cols: str | Sequence[str],
        partition_cols: str | Sequence[str],
        update_cols: str | Sequence[str] | None = None,
        dry_run: bool = False,
        create_backup: bool = True,
    ) -> CRUDStats:
        """Insert rows with new keys, and update rows with existing keys.

        Afterwards every key of the new data occurs exactly once: duplicate rows of such a key are deleted. A row
        whose partition changes moves to its new partition. A missing dataset is created.

        Args:
            new_data: A Polars or pandas DataFrame, a PyArrow table or reader, a path, or a Spark DataFrame. It may
                lack columns: existing keys keep their values, new rows get NULL.
            key_cols: The columns that identify a row; keys must be unique in the new data.
            partition_cols: The partition columns of the dataset; the new data must contain them.
            update_cols: The columns that are updated for existing keys; by default all of the new data.
            dry_run: Only count: nothing is written or removed.
            create_backup: Keep replaced files in the `backup_dir`. Without one, it warns.

        Raises:
            ValueError: Columns are missing, keys are NULL or not unique; nothing was changed.
            TypeError: A column has another type than in the dataset; nothing was changed.
            CommitConflict: Another writer changed the files; nothing was changed.

        Example:
            >>> import polars as pl
            >>> crud = ParquetCRUD("memory://crud-upsert", backup_dir="memory://crud-upserted", engine="pyarrow")
            >>> trades = pl.DataFrame({"trade": [1, 2], "day": ["d1"] * 2, "price": [9, 8], "note": ["a", "b"]})
            >>> _ = crud.upsert(trades, key_cols=["trade"], partition_cols=["day"])
            >>> fix = pl.DataFrame({"trade": [2, 3], "day": ["d1", "d2"], "price": [7, 6]})
            >>> stats = crud.upsert(fix, key_cols=["trade"], partition_cols=["day"], update_cols=["price"])
            >>> stats["rows_updated"], stats["rows_inserted"], stats["rows_after"]
            (1, 1, 3)
        """
        dataset = self._dataset
        source = dataset._rows(new_data)
        given = [partition_cols] if isinstance(partition_cols, str) else partition_cols
        columns = check_names("partition_cols", given) if given else ()
        if missing := [name for name in columns if name not in source.schema.names]:
            raise ColumnNotFound(missing, source.schema.names, "Partition columns", "in data")
        rules = MergeRules.of("upsert", key_cols, update_columns=update_cols, partial=True)
        backup = self._backup(create_backup, dry_run)
        with running(dataset._context, "upsert", bar_on_terminal(self._progress), dry_run=dry_run) as run:
            report = dataset._merge(source, rules, self._codec, columns, run.progress, dry_run, backup)
            stats = CRUDStats(
                partitions_affected=report.partitions_affected,
                files_read=report.files_scanned,
                files_written=report.files_written,
                files_deleted=report.files_rewritten + report.files_removed,
                rows_before=report.rows_before,
                rows_after=report.stats["total"],
                rows_deleted=report.stats["deleted"],
                rows_updated=report.stats["updated"],
                rows_inserted=report.stats["inserted"],
                backup_path=report.backup_path,
            )
            return run.done(stats)

    def restore(self, backup: str | os.PathLike[str]) -> RestoreStats:
        """Restore the files that an operation replaced, atomically. See `Dataset.restore`.

        Args:
            backup: The `backup_path` of the operation's statistics.

        Raises:
            ValueError: There is no backup at that path.
            CommitConflict: Its files have changed since, or it was already restored; nothing was changed.

        Example:
            >>> import pyarrow as pa
            >>> crud = ParquetCRUD("memory://crud-restore", backup_dir="memory://crud-saved", engine="pyarrow")
            >>> _ = crud.upsert(pa.table({"id": [1, 2], "day": [1, 1]}), "id", "day")
            >>> stats = crud.delete("id = 2")
            >>> crud.restore(stats["backup_path"])["rows_restored"]
            2
        """
        return self._dataset.restore(backup)

    def _edit(
        self,
        request: EditRequest,
        partition_filter: PartitionFilter,
        dry_run: bool,
        backup: str | os.PathLike[str] | None,
    ) -> EditStats:
        progress = bar_on_terminal(self._progress)
        return self._dataset._edit(request, partition_filter, progress, dry_run, backup)

    def _backup(self, wanted: bool, dry_run: bool) -> str | os.PathLike[str] | None:
        if wanted and self._backup_dir is None and not dry_run:
            warnings.warn(
                "create_backup=True has no effect: there is no backup_dir. Pass backup_dir='...' to ParquetCRUD, "
                "or create_backup=False; Dataset.undo() needs no backup for 24 hours",
                stacklevel=3,
            )
        return self._backup_dir if wanted else None


def _edited(stats: EditStats, *, deleted: int = 0, updated: int = 0) -> CRUDStats:
    found = CRUDStats(
        partitions_affected=stats["partitions_affected"],
        files_read=stats["files_scanned"],
        files_written=stats["files_written"],
        files_deleted=stats["files_rewritten"] + stats["files_removed"],
        rows_before=stats["rows_before"],
        rows_after=stats["rows_after"],
        rows_deleted=deleted,
        rows_updated=updated,
        rows_inserted=0,
        backup_path=stats["backup_path"],
    )
    return typed_result(found)
