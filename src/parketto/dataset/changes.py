"""The operations of `Dataset` on whole keys: deduplicate and apply_changes."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from parketto.arguments import DEFAULT_CODEC, check_codec
from parketto.dataset.undoing import UndoableDataset
from parketto.errors import InvalidArgument
from parketto.operations.context import Isolation
from parketto.operations.running import running
from parketto.progress import ProgressOption
from parketto.results import ChangeStats, EditStats
from parketto.storage.hive import PartitionFilter

if TYPE_CHECKING:
    from parketto.operations.expectations import Condition, OnViolation

Given = TypeVar("Given")


class ChangeableDataset(UndoableDataset):
    """The operations that find rows by their keys."""

    def deduplicate(
        self,
        key_columns: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
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
        """Keep one row of each key, and delete the others. Files without duplicates are not rewritten.

        Idempotent. Memory is bounded: keys that do not fit are compared in hash buckets on disk, on Spark by its
        tasks. NULLs are equal, as in `SELECT DISTINCT`.

        Args:
            key_columns: The columns that identify a row; by default all, for exact duplicates of whole rows.
            order_by: The row with the highest values of these columns is kept, the first column decides first.
                NULLs are lowest. Of equal rows, and without `order_by`, the last one in path order is kept.
            partition_filter: The partitions to deduplicate; the others are not read, so duplicates are only found
                among the rows of these.
            compression: The codec of rewritten rows; by default each file keeps its codec. Unchanged row groups
                keep theirs.
            pack: Whether neighbouring small files that must be rewritten become one file of up to 128 MB. Rows
                keep their order. False: one new file for each old one.
            dry_run: Only count: nothing of the dataset is written or removed.
            backup: A directory for the replaced files, from which `restore` brings them back: a path on the same
                filesystem, or a URL.
            commit_id: An idempotency key such as `"nightly:17"` (an application, a colon, a number). If the log
                contains it, nothing is done, and the first result is returned with `repeated_commit`, the number
                of that commit. Another request with this id is an error.
            isolation: With `"serializable"` (the default), rows that are added meanwhile are a conflict; with
                `"snapshot"` they stay, duplicates or not.
            retries: How often this operation is planned again after a conflict; by default the dataset's setting.
            retention: How long the replaced files of this operation are kept, in seconds or as a `timedelta`; by
                default the dataset's setting.
            progress: True to show it, or a callback that gets a `Progress` as work completes.

        Returns:
            The statistics of a delete: `rows_matched` is the number of deleted rows.

        Raises:
            ValueError: A column is unknown, or rows cannot be ordered by it; nothing was changed.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Another writer changed the files; nothing was published.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> users = Dataset("memory://deduplicate-example", engine="pyarrow")
            >>> _ = users.write(pa.table({"id": [1, 2, 1], "version": [7, 1, 3]}))
            >>> _ = users.write(pa.table({"id": [2, 3], "version": [1, 1]}))
            >>> users.deduplicate()["rows_matched"]
            1
            >>> users.deduplicate("id", order_by="version")["rows_matched"]
            1
            >>> sorted(users.read().to_pydict()["version"])
            [1, 1, 7]
        """
        from parketto.operations.deduplicate import DuplicateRequest, deduplicate

        context, codec = self._context_for(isolation, retries, retention), check_codec(compression)
        request = DuplicateRequest.of(key_columns, order_by, codec, partition_filter, commit_id, pack=pack)
        backups = self._backups(backup)
        with running(context, "deduplicate", progress, dry_run=dry_run) as run:
            return run.done(deduplicate(context, request, dry_run=dry_run, progress=run.progress, backups=backups))

    def apply_changes(
        self,
        changes: Any,
        key_columns: str | Sequence[str] | None = None,
        *,
        sequence_by: str,
        delete_when: Any = None,
        columns: str | Sequence[str] | None = None,
        except_columns: str | Sequence[str] | None = None,
        scd: Literal[1, 2] = 1,
        tombstone_days: float = 7,
        compression: str = DEFAULT_CODEC,
        pack: bool = True,
        partition_by: str | Sequence[str] | None = None,
        expect: Mapping[str, Condition] | None = None,
        on_violation: OnViolation = "fail",
        quarantine: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        backup: str | os.PathLike[str] | None = None,
        commit_id: str | None = None,
        isolation: Isolation | None = None,
        retries: int | None = None,
        retention: float | dt.timedelta | None = None,
        progress: ProgressOption = None,
        keys: str | Sequence[str] | None = None,
        apply_as_deletes: Any = None,
        column_list: str | Sequence[str] | None = None,
        except_column_list: str | Sequence[str] | None = None,
        stored_as_scd_type: int | str | None = None,
    ) -> ChangeStats:
        """Apply change records (CDC), in one atomic commit. Order and repetition of the records do not matter.

        Records of a key are ordered by `sequence_by`, not by their arrival. So a late, old or repeated record has
        no effect, also if its key was deleted meanwhile: deletes are remembered for `tombstone_days`.

        With `scd=1` the dataset has the latest row of each key. With `scd=2` it has all versions, in the further
        columns `valid_from`, `valid_to` and `is_current`: a version is valid from its own sequence up to, but not
        including, that of the next record of its key. A delete ends a version and begins none. `valid_to` of the
        current version is NULL. A record that arrives late is inserted into the history.

        Of records with the same key and sequence, a delete wins. Of several others the last one in `changes` wins,
        unless one was applied by an earlier call.

        It is a merge of the records that win: only files in which a row changes are rewritten. With `scd=1` about
        two records per key are held in memory, with `scd=2` all records of a call and the versions of their keys.

        Args:
            changes: A PyArrow table or reader, a pandas or Polars DataFrame, a path, or a Spark DataFrame.
            key_columns: The columns that identify a row (`keys` in Spark).
            sequence_by: The column that orders the records of a key: a number, a time, a text. With `scd=1` it
                must be a column of the dataset.
            delete_when: The condition of records that delete: SQL such as `"op = 'delete'"`, or an expression of
                PyArrow, Polars or Spark (`apply_as_deletes`). By default no record deletes.
            columns: The columns that are written (`column_list`); by default all.
            except_columns: The columns that are not written (`except_column_list`).
            scd: 1: the latest row of each key; 2: all versions (`stored_as_scd_type`).
            tombstone_days: How long deletes are remembered. A record that is older than a delete and arrives later
                than that is applied as if the delete had not happened.
            compression: The codec of written rows. Unchanged row groups keep theirs.
            pack: Whether neighbouring small files that must be rewritten become one file of up to 128 MB. Rows
                keep their order. False: one new file for each old one.
            partition_by: The partition columns, if the dataset does not exist yet.
            expect: Rules by name that the records should meet, as for `write`. They come first. Records that
                delete are checked, too: `"op = 'd' OR price > 0"`.
            on_violation: `"fail"`, `"drop"` or `"quarantine"`, as for `write`.
            quarantine: As for `write`.
            dry_run: Only count: nothing of the dataset is written or removed.
            backup: A directory for the replaced files, from which `restore` brings them back: a path on the same
                filesystem, or a URL.
            commit_id: An idempotency key such as `"orders:17"` (an application, a colon, a number). If the log
                contains it, nothing is done, and the first result is returned with `repeated_commit`, the number
                of that commit. Another request with this id is an error.
            isolation: `"serializable"` or `"snapshot"`, for this operation; by default the dataset's.
            retries: How often this operation is planned again after a conflict; by default the dataset's setting.
            retention: How long the replaced files of this operation are kept, in seconds or as a `timedelta`; by
                default the dataset's setting.
            progress: True to show it, or a callback that gets a `Progress` as work completes.
            keys: The same as `key_columns`.
            apply_as_deletes: The same as `delete_when`.
            column_list: The same as `columns`.
            except_column_list: The same as `except_columns`.
            stored_as_scd_type: The same as `scd`.

        Raises:
            ValueError: An invalid argument, missing or additional columns, NULL keys or sequences; nothing was
                changed.
            TypeError: A column has another type than in the dataset; nothing was changed.
            ExpectationFailed: Records break rules of `expect`; nothing was changed.
            CommitConflict: Another writer changed these keys; nothing was published.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> users = Dataset("memory://changes-example", engine="pyarrow")
            >>> def change(*records):
            ...     rows = [dict(zip(["id", "name", "at", "op"], record)) for record in records]
            ...     return users.apply_changes(
            ...         pa.Table.from_pylist(rows),
            ...         ["id"],
            ...         sequence_by="at",
            ...         delete_when="op = 'd'",
            ...         except_columns=["op"],
            ...     )
            >>> change((1, "Ada", 10, "u"), (2, "Bob", 11, "u"), (1, "Ann", 9, "u"))
            {'inserted': 2, 'updated': 0, 'deleted': 0, 'ignored': 1, 'total': 2}
            >>> change((2, None, 20, "d"))
            {'inserted': 0, 'updated': 0, 'deleted': 1, 'ignored': 0, 'total': 1}
            >>> change((2, "Ben", 15, "u"))  # older than the delete
            {'inserted': 0, 'updated': 0, 'deleted': 0, 'ignored': 1, 'total': 1}
        """
        from parketto.merge.change_rules import ChangeRules
        from parketto.operations.apply_changes import apply_changes
        from parketto.planning.rewrite import check_partition_columns

        rules = ChangeRules.of(
            _one_of("key_columns", key_columns, "keys", keys),
            sequence_by,
            _one_of("delete_when", delete_when, "apply_as_deletes", apply_as_deletes),
            _one_of("columns", columns, "column_list", column_list),
            _one_of("except_columns", except_columns, "except_column_list", except_column_list),
            scd if stored_as_scd_type is None else stored_as_scd_type,
            tombstone_days,
        )
        context, codec = (
            self._context_for(isolation, retries, retention),
            check_codec(compression) or DEFAULT_CODEC,
        )
        with running(context, "apply_changes", progress, dry_run=dry_run) as run:
            rows = self._rows(changes)
            stats = apply_changes(
                context,
                rows,
                rules,
                codec,
                check_partition_columns(partition_by, rows.schema),
                dry_run=dry_run,
                progress=run.progress,
                backups=self._backups(backup),
                commit_id=commit_id,
                pack=pack,
                expect=self._expect(expect, on_violation, quarantine),
            )
            return run.done(stats)


def _one_of(name: str, value: Given | None, alias: str, other: Given | None) -> Given | None:
    """The value of an argument that has two names."""
    if value is not None and other is not None:
        raise InvalidArgument(f"{name} and {alias} are the same argument; pass one of them")
    return other if value is None else value
