"""Changing the rows of a dataset: merging, deleting, updating, and taking that back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from parketto.dataset.base import BaseDataset
from parketto.engines.base import ProgressCallback
from parketto.kernels.rows import RowSource
from parketto.operations.edit import EditRequest, edit
from parketto.operations.merge import MergeReport, merge
from parketto.operations.place import Isolation, Place
from parketto.operations.restore import restore
from parketto.plan.limits import check_codec
from parketto.plan.merge import MergeRules, MergeStats, Strategy
from parketto.plan.rewrite import check_partition_columns
from parketto.stats import EditStats, RestoreStats
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import Column


class EditableDataset(BaseDataset):
    """The operations that change rows."""

    def merge(
        self,
        source: Any,
        key_columns: str | Sequence[str],
        strategy: Strategy = "upsert",
        *,
        dedup_order_by: str | Sequence[str] | None = None,
        compression: str = "snappy",
        partition_by: str | Sequence[str] | None = None,
        update_columns: str | Sequence[str] | None = None,
        partial: bool = False,
        dry_run: bool = False,
        backup: str | os.PathLike[str] | None = None,
        commit_id: str | None = None,
        isolation: Isolation | None = None,
        retries: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> MergeStats:
        """Bring the rows of a source into the dataset by their keys. Only files with a matching key are rewritten.

        Afterwards every source key that was in the dataset stands exactly once, with the source's values (NULLs
        included); further rows with that key are removed and counted as deleted. A key whose partition changed
        moves there. `total == previous + inserted - deleted`.

        Args:
            source: A PyArrow table or reader, a pandas or Polars frame, a path, or a Spark DataFrame.
            key_columns: The columns that identify a row.
            strategy: `"upsert"` updates and inserts; `"insert"` only adds new keys; `"update"` only changes known
                ones; `"full_merge"` makes the dataset equal to the source (other rows are deleted);
                `"deduplicate"` is an upsert whose source may have a key several times: the last row counts.
            dedup_order_by: For `"deduplicate"`: the row with the highest values of these columns counts instead.
            compression: The codec of rows that are written. Row groups in which nothing changes keep theirs.
            partition_by: For a dataset that does not exist yet: the columns that make its folders.
            update_columns: The columns that change where a key is there already; by default all.
            partial: Whether the source may lack columns: where a key is there they stay, in new rows they are
                NULL.
            dry_run: Only count: nothing is written or removed.
            backup: A folder to keep the retired files in, from which `restore` brings them back; a path on the
                same filesystem, or a URL.
            commit_id: What you call this piece of work, such as `"orders:17"` (an application, a colon, a number).
                If the log knows it, nothing is done and the first one's result is returned: a batch that is
                replayed does no harm. Remembered for 30 days, the last one of each application for ever.
            isolation: `"serializable"` or `"snapshot"`, for this operation; by default the dataset's.
            retries: How often a conflict is planned anew, for this operation; by default as the dataset says.
            progress: Called with a `Progress` whenever a piece of the work is done.

        Raises:
            ValueError: An argument, a missing or additional column, NULL or duplicate keys; nothing was changed.
            TypeError: A column has another type than in the dataset; nothing was changed.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> users = Dataset("memory://users-example", engine="pyarrow")
            >>> _ = users.write(pa.table({"id": [1, 2], "name": ["Ada", "Bob"]}))
            >>> users.merge(pa.table({"id": [2, 3], "name": ["Ben", "Cy"]}), key_columns=["id"])
            {'inserted': 1, 'updated': 1, 'deleted': 0, 'total': 3}
            >>> users.merge(pa.table({"id": [3], "name": ["Cyd"]}), ["id"], strategy="full_merge")
            {'inserted': 0, 'updated': 1, 'deleted': 2, 'total': 1}
        """
        rules = MergeRules.of(strategy, key_columns, dedup_order_by, update_columns, partial=partial)
        place = self._placed(isolation, retries)
        return self._merge(
            self._rows(source), rules, compression, partition_by, progress, dry_run, backup, commit_id, place
        ).stats

    def _merge(
        self,
        rows: RowSource,
        rules: MergeRules,
        compression: str,
        partition_by: str | Sequence[str] | None,
        progress: ProgressCallback | None,
        dry_run: bool,
        backup: str | os.PathLike[str] | None,
        commit_id: str | None = None,
        place: Place | None = None,
    ) -> MergeReport:
        """The same, with all that is known afterwards."""
        codec = check_codec(compression) or "none"
        partitions = check_partition_columns(partition_by, rows.schema)
        return merge(
            place or self._place,
            rows,
            rules,
            codec,
            partitions,
            progress,
            dry_run=dry_run,
            backups=self._backups(backup),
            commit_id=commit_id,
        )

    def delete(
        self,
        where: str | pc.Expression | pl.Expr | Column,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        *,
        backup: str | os.PathLike[str] | None = None,
        commit_id: str | None = None,
        isolation: Isolation | None = None,
        retries: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> EditStats:
        """Remove the rows for which a condition is true. Files without such a row are not touched.

        Args:
            where: A condition: SQL (`"price > 100 AND side = 'ask'"`), a PyArrow expression, a Polars expression
                (`pl.col("price") > 100`) or a Spark Column (`F.col("price") > 100`). A row for which it is NULL
                stays. Times in SQL are read in the Spark session's time zone, or the dataset's `timezone`.
            partition_filter: Which partitions to work on; the others are not looked at.
            compression: The codec of rewritten files; by default each keeps its own.
            dry_run: Only count: nothing is written or removed.
            backup: A folder to keep the retired files in, from which `restore` brings them back; a path on the
                same filesystem, or a URL.
            commit_id: What you call this piece of work, such as `"orders:17"` (an application, a colon, a number).
                If the log knows it, nothing is done and the first one's result is returned: a batch that is
                replayed does no harm. Remembered for 30 days, the last one of each application for ever.
            isolation: `"serializable"` or `"snapshot"`, for this operation; by default the dataset's.
            retries: How often a conflict is planned anew, for this operation; by default as the dataset says.
            progress: Called with a `Progress` whenever a file is done.

        Raises:
            ValueError: The condition makes no sense, or names an unknown column; nothing was touched.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.

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
        """
        request = EditRequest("delete", where, None, check_codec(compression), commit_id)
        return self._edit(request, partition_filter, progress, dry_run, backup, self._placed(isolation, retries))

    def update(
        self,
        where: str | pc.Expression | pl.Expr | Column,
        values: Mapping[str, Any],
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        *,
        backup: str | os.PathLike[str] | None = None,
        commit_id: str | None = None,
        isolation: Isolation | None = None,
        retries: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> EditStats:
        """Change the rows for which a condition is true. Files without such a row are not touched.

        Args:
            where: A condition: SQL, a PyArrow expression, a Polars expression or a Spark Column. A row for which
                it is NULL is not changed. Times in SQL are read in the Spark session's time zone, or the dataset's
                `timezone`; so are new values that do not say their zone.
            values: New values by column: plain values, `parketto.sql("price * 2")`, or expressions of PyArrow,
                Polars or Spark, mixed as you like. All of them see the row as it was. A row whose partition column
                changes moves to its new partition.
            partition_filter: Which partitions to work on; the others are not looked at.
            compression: The codec of rewritten files; by default each keeps its own.
            dry_run: Only count: nothing is written or removed.
            backup: A folder to keep the retired files in, from which `restore` brings them back; a path on the
                same filesystem, or a URL.
            commit_id: What you call this piece of work, such as `"orders:17"` (an application, a colon, a number).
                If the log knows it, nothing is done and the first one's result is returned: a batch that is
                replayed does no harm. Remembered for 30 days, the last one of each application for ever.
            isolation: `"serializable"` or `"snapshot"`, for this operation; by default the dataset's.
            retries: How often a conflict is planned anew, for this operation; by default as the dataset says.
            progress: Called with a `Progress` whenever a file is done.

        Raises:
            ValueError: Something makes no sense, names an unknown column or does not fit its type.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.

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
        request = EditRequest("update", where, values, check_codec(compression), commit_id)
        return self._edit(request, partition_filter, progress, dry_run, backup, self._placed(isolation, retries))

    def _edit(
        self,
        request: EditRequest,
        partition_filter: PartitionFilter,
        progress: ProgressCallback | None,
        dry_run: bool,
        backup: str | os.PathLike[str] | None,
        place: Place | None = None,
    ) -> EditStats:
        return edit(
            place or self._place,
            request,
            partition_filter,
            dry_run=dry_run,
            progress=progress,
            backups=self._backups(backup),
        )

    def restore(self, backup: str | os.PathLike[str]) -> RestoreStats:
        """Bring back what an operation has retired, and take out what it had put in its place, in one step.

        Args:
            backup: The backup, as `backup_path` in the statistics of the operation names it.

        Raises:
            ValueError: There is no backup at that path.
            CommitConflict: Files of the operation have changed since, or the backup is restored already; nothing
                was changed.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> prices = Dataset("memory://restore-example", engine="pyarrow")
            >>> _ = prices.write(pa.table({"price": [1.0, 250.0]}))
            >>> stats = prices.delete("price > 100", backup="memory://restore-backups")
            >>> prices.restore(stats["backup_path"])["rows_restored"]
            2
            >>> prices.read().column("price").to_pylist()
            [1.0, 250.0]
        """
        return restore(self._place, *open_store(backup, self._store.fs, self._storage_options))
