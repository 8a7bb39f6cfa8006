"""The merge of `Dataset`."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parketto.arguments import check_codec
from parketto.dataset.reading import ReadableDataset
from parketto.operations.context import DatasetContext, Isolation
from parketto.operations.running import running
from parketto.progress import ProgressOption

if TYPE_CHECKING:
    import polars as pl
    import pyarrow.compute as pc
    from pyspark.sql import Column

    from parketto.engines.base import ProgressCallback
    from parketto.merge.append_schema import SchemaMode
    from parketto.merge.rules import MergeRules, MergeStats, NullKeys, Strategy
    from parketto.operations.expectations import Condition, Expect, OnViolation
    from parketto.operations.merge import MergeReport
    from parketto.parquet.row_source import RowSource


class MergeableDataset(ReadableDataset):
    """The operation that merges the rows of a source."""

    def merge(
        self,
        source: Any,
        key_columns: str | Sequence[str],
        *,
        strategy: Strategy = "upsert",
        dedup_order_by: str | Sequence[str] | None = None,
        compression: str = "snappy",
        pack: bool = True,
        partition_by: str | Sequence[str] | None = None,
        update_columns: str | Sequence[str] | None = None,
        partial: bool = False,
        update_when: str | None = None,
        delete_when: str | None = None,
        insert_when: str | None = None,
        within: str | pc.Expression | pl.Expr | Column | None = None,
        null_keys: NullKeys = "refuse",
        schema: SchemaMode = "strict",
        expect: Mapping[str, Condition] | None = None,
        on_violation: OnViolation = "fail",
        quarantine: str | os.PathLike[str] | None = None,
        details: bool = False,
        dry_run: bool = False,
        backup: str | os.PathLike[str] | None = None,
        commit_id: str | None = None,
        isolation: Isolation | None = None,
        retries: int | None = None,
        retention: float | dt.timedelta | None = None,
        progress: ProgressOption = None,
    ) -> MergeStats:
        """Merge the rows of a source into the dataset by key. Only files in which a row changes are rewritten.

        Afterwards every source key that was in the dataset occurs exactly once, with the source's values (NULLs
        included); duplicate rows of that key are removed and counted as deleted. A row whose partition changes
        moves to its new partition. `total == previous + inserted - deleted`. Rows that have the source's values
        already count as updated; if nothing changes, nothing is written or committed.

        With conditions, each pair of a source row and a target row with its key is judged by itself: if
        `delete_when` is true, the target row is deleted; else, if `update_when` is missing or true, it is updated;
        else it stays. Conditions are SQL over `source.<column>` and `target.<column>`; NULL is false.

        Args:
            source: A PyArrow table or reader, a pandas or Polars DataFrame, a path, or a Spark DataFrame.
            key_columns: The columns that identify a row.
            strategy: `"upsert"` updates and inserts; `"insert"` only inserts new keys; `"update"` only updates
                existing keys; `"full_merge"` makes the dataset equal to the source (other rows are deleted);
                `"deduplicate"` is an upsert whose source may contain duplicate keys: the last row wins.
            dedup_order_by: For `"deduplicate"`: the row with the highest values of these columns wins instead.
            compression: The codec of written rows. Unchanged row groups keep theirs.
            pack: Whether neighbouring small files that must be rewritten become one file of up to 128 MB. Rows
                keep their order. False: one new file for each old one.
            partition_by: The partition columns, if the dataset does not exist yet.
            update_columns: The columns that are updated for existing keys; by default all.
            partial: Whether the source may lack columns: existing keys keep their values, new rows get NULL.
            update_when: Which matched rows are updated, such as `"source.at > target.at"`; by default all.
            delete_when: Which matched rows are deleted, such as `"source.op = 'D'"`; by default none. Columns of
                the source that the dataset lacks, and that conditions mention, are not written.
            insert_when: Which source rows without a match are inserted (`"source.op <> 'D'"`); by default all.
                Rows for which `delete_when` is true are never inserted, if it only uses source columns.
            within: For `"full_merge"`: a condition on rows of the dataset, as for `delete`, such as
                `"day = DATE '2026-11-04'"`. Only rows for which it is true take part: others are neither matched
                nor deleted, and files that cannot contain such rows are not read. All source rows must match it.
            null_keys: `"refuse"` raises an error for NULLs in key columns; with `"match"` they equal each other.
            schema: `"strict"`: the source has the types of the dataset. Encodings of the same values (strings of
                any width, dictionaries, timestamps of any unit) are one type. `"cast"`: other numbers, decimals
                and times are cast, where no value changes. `"evolve"`: further columns are added, and types become
                wider where the source needs it; only files that are written get the new schema.
            expect: Rules by name that the rows of the source should meet, as for `write`. They are checked first,
                so rows that break one may also have NULL or duplicate keys. With `"full_merge"`, a row that is
                left out is missing in the source: the target row of its key is deleted.
            on_violation: `"fail"`, `"drop"` or `"quarantine"`, as for `write`.
            quarantine: As for `write`.
            details: Whether the statistics also name the files: `rewritten_files` (rewritten or removed) and
                `added_files`, as sorted paths relative to the dataset, and the number of `files_written`, also in
                a dry run.
            dry_run: Only count: nothing is written or removed. Values are not compared, so the files are an upper
                limit: those whose matched rows all have the source's values already are left alone.
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
            ValueError: An invalid argument, missing or additional columns, NULL or duplicate keys; nothing was
                changed.
            TypeError: A column has another type than in the dataset; nothing was changed.
            ExpectationFailed: Rows of the source break rules of `expect`; nothing was changed.
            CommitConflict: Another writer changed the files; nothing was published.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> users = Dataset("memory://users-example", engine="pyarrow")
            >>> _ = users.write(pa.table({"id": [1, 2], "name": ["Ada", "Bob"]}))
            >>> users.merge(pa.table({"id": [2, 3], "name": ["Ben", "Cy"]}), key_columns=["id"])
            {'inserted': 1, 'updated': 1, 'deleted': 0, 'total': 3}
            >>> users.merge(pa.table({"id": [3], "name": ["Cyd"]}), ["id"], strategy="full_merge")
            {'inserted': 0, 'updated': 1, 'deleted': 2, 'total': 1}
            >>> changes = pa.table({"id": [3, 4], "name": [None, "Dot"], "op": ["D", "U"]})
            >>> users.merge(changes, "id", delete_when="source.op = 'D'")
            {'inserted': 1, 'updated': 0, 'deleted': 1, 'total': 1}
            >>> late = pa.table({"id": [5, None], "name": ["Eve", "Fay"]})
            >>> stats = users.merge(late, "id", expect={"has id": "id IS NOT NULL"}, on_violation="drop")
            >>> stats["inserted"], stats["expectations"]
            (1, {'has id': {'passed': 1, 'violations': 1}})
        """
        from parketto.merge.append_schema import check_schema_mode
        from parketto.merge.rules import MergeRules

        rules = MergeRules.of(
            strategy,
            key_columns,
            dedup_order_by,
            update_columns,
            partial=partial,
            update_when=update_when,
            delete_when=delete_when,
            insert_when=insert_when,
            null_keys=null_keys,
            schema=check_schema_mode(schema),
            within=within,
        )
        context = self._context_for(isolation, retries, retention)
        rules_of_rows = self._expect(expect, on_violation, quarantine)
        with running(context, "merge", progress, dry_run=dry_run) as run:
            report = self._merge(
                self._rows(source),
                rules,
                compression,
                partition_by,
                run.progress,
                dry_run,
                backup,
                commit_id,
                context,
                rules_of_rows,
                pack=pack,
            )
            stats = report.stats.copy()
            if backup is not None:
                stats["backup_path"] = report.backup_path
            if details:
                stats["rewritten_files"] = list(report.rewritten_files)
                stats["added_files"] = list(report.added_files)
                stats["files_written"] = report.files_written
            return run.done(stats)

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
        context: DatasetContext | None = None,
        expect: Expect | None = None,
        *,
        pack: bool = True,
    ) -> MergeReport:
        """Like `merge`, but returns the full report."""
        from parketto.operations.merge import merge
        from parketto.planning.rewrite import check_partition_columns

        codec = check_codec(compression) or "none"
        partitions = check_partition_columns(partition_by, rows.schema)
        return merge(
            context or self._context,
            rows,
            rules,
            codec,
            partitions,
            progress,
            dry_run=dry_run,
            backups=self._backups(backup),
            commit_id=commit_id,
            expect=expect,
            pack=pack,
        )
