"""The operations of `Dataset` that change rows or columns: delete, update and alter."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parketto.arguments import check_codec
from parketto.dataset.merging import MergeableDataset
from parketto.errors import InvalidArgument
from parketto.operations.context import DatasetContext, Isolation
from parketto.operations.running import running
from parketto.progress import ProgressOption
from parketto.results import AlterStats, EditStats
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store

if TYPE_CHECKING:
    import polars as pl
    import pyarrow.compute as pc
    from pyspark.sql import Column

    from parketto.operations.alter import TypeLike
    from parketto.operations.edit_run import EditRequest


class EditableDataset(MergeableDataset):
    """The operations that change rows or columns."""

    def delete(
        self,
        where: str | pc.Expression | pl.Expr | Column | None = None,
        *,
        keys: Any = None,
        key_columns: str | Sequence[str] | None = None,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        pack: bool = True,
        purge: bool = False,
        dry_run: bool = False,
        backup: str | os.PathLike[str] | None = None,
        commit_id: str | None = None,
        isolation: Isolation | None = None,
        retries: int | None = None,
        retention: float | dt.timedelta | None = None,
        progress: ProgressOption = None,
    ) -> EditStats:
        """Delete the rows that match a condition, or whose key is in a table.

        Files without such rows are not rewritten.

        Args:
            where: A condition: SQL (`"price > 100 AND side = 'ask'"`), a PyArrow expression, a Polars expression
                (`pl.col("price") > 100`) or a Spark Column (`F.col("price") > 100`). Rows for which it is NULL are
                kept. Timestamps in SQL use the Spark session's time zone, or the dataset's `timezone`.
            keys: Instead of a condition, a table of keys: a PyArrow table or reader, a pandas or Polars DataFrame,
                a path, or a Spark DataFrame. Duplicates are fine, and columns that are no keys are ignored. The
                keys are held in memory.
            key_columns: The columns of `keys` that identify a row. A NULL in them is an error. NULLs of the
                dataset match no key, and keys that the dataset's types cannot hold match no row.
            partition_filter: The partitions to edit; the others are not read.
            compression: The codec of rewritten files; by default each file keeps its codec.
            pack: Whether neighbouring small files that must be rewritten become one file of up to 128 MB. Rows
                keep their order. False: one new file for each old one.
            purge: For data protection: nothing of the deleted rows stays in files that are kept of this and
                earlier commits, or in backups that the log names. These commits cannot be undone any more. The
                result lists every file that contained the rows (`purged_files`). If it is interrupted, run it
                again. Copies elsewhere are not found: see docs/history.md.
            dry_run: Only count: nothing is written or removed.
            backup: A directory for the replaced files, from which `restore` brings them back: a path on the same
                filesystem, or a URL.
            commit_id: An idempotency key such as `"orders:17"` (an application, a colon, a number). If the log
                contains it, nothing is done, and the first result is returned with `repeated_commit`, the number
                of that commit: a batch can be replayed. Another request with this id is an error. Kept for
                30 days; the last one of each application is kept for ever.
            isolation: `"serializable"` or `"snapshot"`, for this operation; by default the dataset's.
            retries: How often this operation is planned again after a conflict; by default the dataset's setting.
            retention: How long the replaced files of this operation are kept, in seconds or as a `timedelta`; by
                default the dataset's setting.
            progress: True to show it, or a callback that gets a `Progress` as work completes.

        Raises:
            ValueError: The condition is invalid, or a column is unknown; nothing was changed.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Another writer changed the files; nothing was published.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> prices = Dataset("memory://delete-example", engine="pyarrow")
            >>> _ = prices.write(pa.table({"price": [1.0, 250.0, None]}))
            >>> prices.delete("price > 100")["rows_matched"]
            1
            >>> prices.read().column("price").to_pylist()
            [1.0, None]
            >>> import polars as pl
            >>> prices.delete(pl.col("price").is_null())["rows_matched"]
            1
            >>> prices.delete(keys=pa.table({"price": [1.0, 7.0]}), key_columns=["price"])["rows_matched"]
            1
        """
        from parketto.operations.delete_keys import KeyRequest, delete_keys
        from parketto.operations.edit_run import EditRequest
        from parketto.operations.purge import purge as purge_rows

        if (where is None) == (keys is None):
            raise InvalidArgument("delete needs either a condition (where) or a table of keys (keys, key_columns)")
        if (keys is None) != (key_columns is None):
            raise InvalidArgument("keys needs key_columns" if key_columns is None else "key_columns needs keys")
        if purge and (backup is not None or retention is not None):
            raise InvalidArgument("purge excludes backup and retention: it keeps nothing of the deleted rows")
        context, codec = self._context_for(isolation, retries, retention), check_codec(compression)
        matching = EditRequest("delete", where, None, codec, commit_id, pack=pack)
        keyed = None
        if key_columns is not None:
            keyed = KeyRequest.of(self._rows(keys), key_columns, codec, partition_filter, commit_id, pack=pack)
        if purge:
            with running(context, "purge", progress, dry_run=dry_run) as run:
                stats = purge_rows(
                    context,
                    keyed or matching,
                    partition_filter,
                    lambda path: open_store(path, self._store.fs, self._storage_options),
                    dry_run=dry_run,
                    progress=run.progress,
                )
                return run.done(stats)
        if keyed is None:
            return self._edit(matching, partition_filter, progress, dry_run, backup, context)
        with running(context, "delete", progress, dry_run=dry_run) as run:
            backups = self._backups(backup)
            return run.done(delete_keys(context, keyed, dry_run=dry_run, progress=run.progress, backups=backups))

    def update(
        self,
        where: str | pc.Expression | pl.Expr | Column,
        values: Mapping[str, Any],
        *,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        pack: bool = True,
        dry_run: bool = False,
        backup: str | os.PathLike[str] | None = None,
        commit_id: str | None = None,
        isolation: Isolation | None = None,
        retries: int | None = None,
        retention: float | dt.timedelta | None = None,
        progress: ProgressOption = None,
    ) -> EditStats:
        """Update the rows that match a condition. Files without matching rows are not rewritten.

        Args:
            where: A condition: SQL, a PyArrow expression, a Polars expression or a Spark Column. Rows for which it
                is NULL are not changed. Timestamps in SQL use the Spark session's time zone, or the dataset's
                `timezone`; so do new values without a time zone.
            values: New values by column: plain values, `parketto.sql("price * 2")`, or expressions of PyArrow,
                Polars or Spark, in any combination. All of them see the old row. A row whose partition column
                changes moves to its new partition. If a partition column is set, matching rows come last there.
            partition_filter: The partitions to edit; the others are not read.
            compression: The codec of rewritten files; by default each file keeps its codec.
            pack: Whether neighbouring small files that must be rewritten become one file of up to 128 MB. Rows
                keep their order. False: one new file for each old one.
            dry_run: Only count: nothing is written or removed.
            backup: A directory for the replaced files, from which `restore` brings them back: a path on the same
                filesystem, or a URL.
            commit_id: An idempotency key such as `"orders:17"` (an application, a colon, a number). If the log
                contains it, nothing is done, and the first result is returned with `repeated_commit`, the number
                of that commit: a batch can be replayed. Another request with this id is an error. Kept for
                30 days; the last one of each application is kept for ever.
            isolation: `"serializable"` or `"snapshot"`, for this operation; by default the dataset's.
            retries: How often this operation is planned again after a conflict; by default the dataset's setting.
            retention: How long the replaced files of this operation are kept, in seconds or as a `timedelta`; by
                default the dataset's setting.
            progress: True to show it, or a callback that gets a `Progress` as work completes.

        Raises:
            ValueError: An argument is invalid, a column is unknown, or a value does not fit the column's type.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Another writer changed the files; nothing was published.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset, sql
            >>> quotes = Dataset("memory://update-example", engine="pyarrow")
            >>> _ = quotes.write(pa.table({"bid": [1.0, 3.0], "ask": [2.0, 2.5]}))
            >>> quotes.update("bid > ask", {"bid": sql("ask"), "ask": sql("bid")})["rows_matched"]
            1
            >>> quotes.read().to_pylist()
            [{'bid': 1.0, 'ask': 2.0}, {'bid': 2.5, 'ask': 3.0}]
        """
        from parketto.operations.edit_run import EditRequest

        request = EditRequest("update", where, values, check_codec(compression), commit_id, pack=pack)
        return self._edit(
            request, partition_filter, progress, dry_run, backup, self._context_for(isolation, retries, retention)
        )

    def _edit(
        self,
        request: EditRequest,
        partition_filter: PartitionFilter,
        progress: ProgressOption,
        dry_run: bool,
        backup: str | os.PathLike[str] | None,
        context: DatasetContext | None = None,
    ) -> EditStats:
        from parketto.operations.edit import edit

        context = context or self._context
        with running(context, request.operation, progress, dry_run=dry_run) as run:
            backups = self._backups(backup)
            return run.done(
                edit(context, request, partition_filter, dry_run=dry_run, progress=run.progress, backups=backups)
            )

    def alter(
        self,
        *,
        add: Mapping[str, TypeLike] | None = None,
        rename: Mapping[str, str] | None = None,
        drop: str | Sequence[str] | None = None,
        cast: Mapping[str, TypeLike] | None = None,
        dry_run: bool = False,
        backup: str | os.PathLike[str] | None = None,
        retention: float | dt.timedelta | None = None,
        progress: ProgressOption = None,
    ) -> AlterStats:
        """Add, rename, drop and cast columns of all files, in one atomic commit.

        Columns that are kept or renamed are copied as bytes, not decoded. Files that differ get the same schema on
        the way. All names refer to the columns before the change.

        Args:
            add: New columns with their types; all of their values are NULL.
            rename: New names by old names.
            drop: Columns to remove.
            cast: New types of columns. A value that does not fit is an error, and nothing is changed.
            dry_run: Only validate and count: nothing is written.
            backup: A directory for the replaced files, from which `restore` brings them back.
            retention: How long the replaced files of this operation are kept, in seconds or as a `timedelta`; by
                default the dataset's setting.
            progress: True to show it, or a callback that gets a `Progress` after each file.

        Raises:
            ValueError: A column is unknown, a partition column, or would exist twice.
            TypeError: A value cannot be cast; nothing was changed.
            CommitConflict: Another writer changed the files; nothing was published.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> items = Dataset("memory://alter-example", engine="pyarrow")
            >>> _ = items.write(pa.table({"id": [1], "n": pa.array([2], pa.int32()), "old": ["x"]}))
            >>> _ = items.alter(add={"note": "string"}, rename={"id": "key"}, drop=["old"], cast={"n": "double"})
            >>> items.read().to_pylist()
            [{'key': 1, 'n': 2.0, 'note': None}]
        """
        from parketto.operations.alter import Changes, alter

        changes = Changes.of(add, rename, drop, cast)
        context, backups = self._context_for(retention=retention), self._backups(backup)
        with running(context, "alter", progress, dry_run=dry_run) as run:
            return run.done(alter(context, changes, dry_run=dry_run, progress=run.progress, backups=backups))

    def unify_schema(
        self,
        *,
        cast: Mapping[str, TypeLike] | None = None,
        dry_run: bool = False,
        backup: str | os.PathLike[str] | None = None,
        progress: ProgressOption = None,
    ) -> AlterStats:
        """Rewrite the files that do not have the dataset's schema; the others stay as they are.

        Idempotent. Columns that are the same in Parquet's own types are copied as bytes.

        Args:
            cast: The types of columns that have no common type (text beside numbers), or that should change.
            dry_run: Only count: nothing is written.
            backup: A directory for the replaced files, from which `restore` brings them back.
            progress: True to show it, or a callback that gets a `Progress` after each file.

        Raises:
            TypeError: A column has types without a common one, or a value cannot be cast; nothing was changed.
            CommitConflict: Another writer changed the files; nothing was published.

        Example:
            >>> import fsspec, pyarrow as pa, pyarrow.parquet as pq
            >>> from parketto import Dataset
            >>> memory = fsspec.filesystem("memory")
            >>> pq.write_table(pa.table({"id": [1]}), "/unify-example/a.parquet", filesystem=memory)
            >>> pq.write_table(pa.table({"id": ["2"]}), "/unify-example/b.parquet", filesystem=memory)
            >>> mixed = Dataset("memory://unify-example", engine="pyarrow")
            >>> mixed.unify_schema(cast={"id": "bigint"})["files_rewritten"]
            1
            >>> sorted(mixed.read().column("id").to_pylist())
            [1, 2]
        """
        from parketto.operations.alter import unify_schema

        backups = self._backups(backup)
        with running(self._context, "unify_schema", progress, dry_run=dry_run) as run:
            return run.done(
                unify_schema(self._context, cast, dry_run=dry_run, progress=run.progress, backups=backups)
            )
