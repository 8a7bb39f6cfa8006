"""The operations of `Dataset` on its history: undo, restore, diff, vacuum."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from parketto.commit.retention import check_retention
from parketto.dataset.editing import EditableDataset
from parketto.errors import InvalidArgument
from parketto.operations.running import running
from parketto.results import RestoreStats, UndoStats, VacuumStats
from parketto.storage.opening import open_store

if TYPE_CHECKING:
    from parketto.operations.diff import Diff
    from parketto.operations.past_states import StateLike


class UndoableDataset(EditableDataset):
    """The operations on the history of commits."""

    def undo(self, number: int | None = None, *, dry_run: bool = False) -> UndoStats:
        """Undo a commit by a new one: bring the files back that it replaced, and remove those that it wrote.

        Later commits stay in effect. Those that only moved the same rows to other files (`compact`, `optimize`,
        `repartition`, `unify_schema`) are undone along. If one has changed the same files otherwise, the undo is
        refused. Rows of other writers and programs stay, and no row is decoded or copied on a local disk.

        An undo can be undone, too: that applies the commit again. The `commit_id` of a commit that is undone can
        be used again.

        Args:
            number: The commit, as `history()` numbers them. By default the last one that is in effect, except
                undos. So repeated calls go back step by step.
            dry_run: Only report: nothing is changed.

        Raises:
            CannotUndo: A later commit has changed the same files, the replaced files are no longer kept
                (`Dataset(retention=)`), or there is no such commit. Nothing was changed.
            CommitConflict: Another writer changed the files meanwhile; nothing was changed.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> prices = Dataset("memory://undo-example", engine="pyarrow")
            >>> _ = prices.write(pa.table({"price": [1.0, 250.0]}))
            >>> _ = prices.delete("price > 100")
            >>> prices.undo()["undone"]
            [2]
            >>> prices.read().column("price").to_pylist()
            [1.0, 250.0]
            >>> [(commit["operation"], commit["undone_by"]) for commit in prices.history()]
            [('undo', None), ('delete', 3), ('append', None)]
        """
        from parketto.operations.undo import undo

        with running(self._context, "undo", dry_run=dry_run) as run:
            return run.done(undo(self._context, number, dry_run=dry_run))

    @overload
    def restore(self, backup: str | os.PathLike[str], *, dry_run: bool = ...) -> RestoreStats: ...

    @overload
    def restore(self, *, to: StateLike, dry_run: bool = ...) -> UndoStats: ...

    def restore(
        self, backup: str | os.PathLike[str] | None = None, *, to: StateLike | None = None, dry_run: bool = False
    ) -> RestoreStats | UndoStats:
        """Bring the dataset back to an earlier state, or bring the files of a backup back, in one new commit.

        Args:
            backup: The `backup_path` from the statistics of an operation. That operation is undone: the files that
                it replaced come back, and those that it added are removed.
            to: The number of a commit, a `datetime`, or a time as ISO text (UTC without a zone). All commits after
                it are undone, while the files that they replaced are kept. Files that other programs have added
                stay.
            dry_run: Only report what would come back, and what would be removed.

        Raises:
            ValueError: There is no backup at that path, or its manifest is invalid.
            CannotUndo: The state is no longer kept, or files that would come back have other columns, types or
                partitions than those that stay; nothing was changed.
            CommitConflict: Files of the operation have changed since, or the backup was already restored; nothing
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
            >>> _ = prices.update("price > 100", {"price": 2.0})
            >>> _ = prices.compact()
            >>> prices.restore(to=3)["files_restored"]
            1
            >>> prices.read().column("price").to_pylist()
            [1.0, 250.0]
        """
        from parketto.operations.restore import restore
        from parketto.operations.undo import restore_state

        if (backup is None) == (to is None):
            raise InvalidArgument("restore needs either the path of a backup, or to: a commit or a time")
        with running(self._context, "restore", dry_run=dry_run) as run:
            if to is not None:
                return run.done(restore_state(self._context, to, dry_run=dry_run))
            assert backup is not None, "one of them is given"
            store, path = open_store(backup, self._store.fs, self._storage_options)
            return run.done(restore(self._context, store, path, dry_run=dry_run))

    def diff(
        self,
        start: StateLike,
        end: StateLike | None = None,
        *,
        key_columns: str | Sequence[str] | None = None,
    ) -> Diff:
        """The rows that differ between two states. Files that are in both are not read, and memory is bounded.

        Args:
            start: The earlier state: the number of a commit, a `datetime`, or a time as ISO text.
            end: The later state; by default the current one.
            key_columns: The columns that identify a row. Then a row whose other values differ counts as changed;
                else its old values count as removed, and its new ones as added.

        Returns:
            A `Diff`: counts (`rows_added`, `rows_removed`, `rows_changed`), and the rows as readers `added`,
            `removed` and `changed`. Columns that one state lacks are NULL there.

        Raises:
            StateUnavailable: A state is no longer kept. The message lists those that are.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> prices = Dataset("memory://diff-example", engine="pyarrow")
            >>> _ = prices.write(pa.table({"id": [1, 2, 3], "price": [1.0, 2.0, 3.0]}))
            >>> _ = prices.merge(pa.table({"id": [3, 4], "price": [3.5, 4.0]}), "id")
            >>> _ = prices.delete("id = 1")
            >>> found = prices.diff(1, key_columns="id")
            >>> found["rows_added"], found["rows_removed"], found["rows_changed"]
            (1, 1, 1)
            >>> found.changed.read_all().to_pylist()
            [{'id': 3, 'before': {'price': 3.0}, 'after': {'price': 3.5}}]
        """
        from parketto.operations.diff import diff

        return diff(self._context, start, end, key_columns)

    def vacuum(self, older_than: float | dt.timedelta | None = None, *, dry_run: bool = True) -> VacuumStats:
        """Remove replaced files that are kept for `undo`, `restore` and `as_of`.

        Commits whose files are removed cannot be undone any more, and earlier states not be read. Files that an
        interrupted commit needs are never removed: it is settled first.

        Args:
            older_than: How long ago files must have been replaced, in seconds or as a `timedelta`. By default
                those are removed whose retention is over, as later commits do anyway. 0 removes all of them.
            dry_run: Only report, which is the default: nothing is removed.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> prices = Dataset("memory://vacuum-example", engine="pyarrow")
            >>> _ = prices.write(pa.table({"price": [1.0, 250.0]}))
            >>> _ = prices.delete("price > 100")
            >>> prices.vacuum()["files_removed"], prices.vacuum(older_than=0)["files_removed"]
            (0, 1)
            >>> prices.history(1)[0]["can_undo"]
            True
            >>> _ = prices.vacuum(older_than=0, dry_run=False)
            >>> prices.history(1)[0]["can_undo"]
            False
        """
        from parketto.operations.vacuum import vacuum

        seconds = check_retention(older_than, "older_than")
        with running(self._context, "vacuum", dry_run=dry_run) as run:
            return run.done(vacuum(self._context, seconds, dry_run=dry_run))
