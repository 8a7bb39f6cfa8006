"""Recovery: settle an interrupted commit, and remove the staged files of dead processes."""

from __future__ import annotations

import getpass
import logging
import os
import posixpath
import socket
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Self

from parketto.commit.appliers import applier_of
from parketto.commit.identity import is_same
from parketto.commit.log import SWEEP, LogView, now
from parketto.commit.record import KEPT, Author, Record, paths_of
from parketto.commit.retention import KeptFiles
from parketto.commit.workspace import DEAD_SECONDS, Workspace, WorkspaceState
from parketto.display import Result, counted
from parketto.errors import CommitFailed, CommitStateUnknown, ParkettoError
from parketto.storage.locks import held
from parketto.storage.store import FileEntry

logger = logging.getLogger(__name__)


Action = Literal["none", "completed", "rolled back"]
_PLANNED = {"completed": "would complete", "rolled back": "would roll back"}


class Recovery(Result):
    """The result of a recovery: a mapping, serialisable with `json.dumps`. It is true if there was anything to do.

    Keys, which are attributes, too: `action` (`"none"`, `"completed"` or `"rolled back"`), the `operation` that
    was interrupted, `files_published`, `files_retired`, `staging_removed` and `dry_run`.

    >>> print(Recovery("completed", "delete", files_published=1, files_retired=2, dry_run=True))
    would complete an interrupted delete (1 new file, 2 replaced)
    """

    action: Action
    operation: str | None
    files_published: int
    files_retired: int
    staging_removed: int
    dry_run: bool

    def __init__(
        self,
        action: Action = "none",
        operation: str | None = None,
        files_published: int = 0,
        files_retired: int = 0,
        staging_removed: int = 0,
        dry_run: bool = False,
    ) -> None:
        super().__init__(
            action=action,
            operation=operation,
            files_published=files_published,
            files_retired=files_retired,
            staging_removed=staging_removed,
            dry_run=dry_run,
        )

    @classmethod
    def of(cls, record: Record, completed: bool, staging_removed: int, *, dry_run: bool = False) -> Self:
        """The recovery of an interrupted commit."""
        return cls(
            "completed" if completed else "rolled back",
            record.operation,
            len(record.publish),
            len(record.retire),
            staging_removed,
            dry_run,
        )

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]

    def __reduce__(self) -> Any:
        return type(self), tuple(self.values())

    def __bool__(self) -> bool:
        return self.action != "none" or self.staging_removed > 0

    def __str__(self) -> str:
        if not self:
            return "nothing to recover"
        parts = []
        if self.action != "none":
            verb = _PLANNED[self.action] if self.dry_run else self.action
            parts.append(
                f"{verb} an interrupted {self.operation} "
                f"({counted(self.files_published, 'new file')}, {self.files_retired:,} replaced)"
            )
        if self.staging_removed:
            verb = "would remove" if self.dry_run else "removed"
            parts.append(f"{verb} the staged files of {counted(self.staging_removed, 'interrupted operation')}")
        return "; ".join(parts)


def recover(workspace: Workspace, *, expire: bool = False) -> Recovery:
    """Bring the dataset to exactly the state before or after an interrupted operation.

    Safe at any time, and safe to kill: the next call continues. A live process that commits holds the lock, and
    recovery waits for it. If this dataset is part of another one, that one is recovered first.

    Args:
        workspace: The dataset's workspace.
        expire: Whether to remove retired files that need not be kept any longer. Commits do that, too.
    """
    for outer in workspace.outer_workspaces():
        if not outer.read_state().log.done:
            recover_one(outer)
    recovery = recover_one(workspace)
    if not workspace.locks:
        abort_dead_uploads(workspace, workspace.read_state())
    if expire:
        _remove_expired(workspace)
    return recovery


def plan_recovery(workspace: Workspace) -> Recovery:
    """What `recover` would do. Nothing is changed. Where locks show it, work of live processes does not count."""
    state = workspace.read_state()
    if state.log.done and not state.staging:
        return Recovery(dry_run=True)
    if not workspace.locks:
        dead = dead_among(state.staging)
        return workspace.read_log(lambda view: _planned(workspace, view, dead), state.log)
    try:
        if state.log.done:
            return _planned(workspace, state.log, list(workspace.each_dead()))
        lock = workspace.store.try_lock(f"{workspace.path}/lock")
        if lock is not None:
            with held(lock):
                return _planned(workspace, workspace.read_state().log, list(workspace.each_dead()))
    except PermissionError as error:
        logger.debug("cannot lock %s: %s", workspace.path, error)
    return Recovery(dry_run=True)  # a live process is committing, or this one may only read


def _planned(workspace: Workspace, view: LogView, dead: Collection[str]) -> Recovery:
    if view.done:
        return Recovery(staging_removed=len(dead), dry_run=True)
    record = workspace.log.read(view.last)
    if _is_of_another(workspace, record):
        logger.warning(
            "a %s was interrupted on a dataset that is no longer at %s", record.operation, workspace.root
        )
        return Recovery(dry_run=True)
    _refuse_links(workspace, view.last, record)
    completes = not view.undo and applier_of(workspace, view.last, record).can_complete()
    others = set(dead) - {record.staging, *record.sweeps}
    return Recovery.of(record, completes, len(others), dry_run=True)


def _is_of_another(workspace: Workspace, record: Record) -> bool:
    """Whether the record's dataset was moved away, and the one here is another."""
    return record.operation != SWEEP and not is_same(workspace.store, workspace.root, record)


def _remove_expired(workspace: Workspace) -> None:
    """Remove kept files whose time is over. They can wait if another process holds the lock."""
    kept = KeptFiles(workspace.store, workspace.path)
    try:
        if not kept.expired():
            return
        if not workspace.locks:
            kept.remove_expired()
            return
        lock = workspace.store.try_lock(f"{workspace.path}/lock")
        if lock is not None:
            with held(lock):
                # An interrupted commit may still need its retired files.
                if workspace.read_state().log.done:
                    kept.remove_expired()
            workspace.tidy()
    except PermissionError as error:
        logger.debug("cannot remove expired files in %s: %s", workspace.path, error)


def recover_one(workspace: Workspace) -> Recovery:
    """Bring one workspace to the state before or after an interrupted commit; those around it are left alone."""
    state = workspace.read_state()
    if state.log.done and not state.staging:
        return Recovery()
    if not workspace.locks:
        return _recover_without_locks(workspace, state)
    try:
        if not state.log.done:
            with workspace.locked():
                return recover_locked(workspace)
        # Only staged files are left: they can wait if another process holds the lock.
        lock = workspace.store.try_lock(f"{workspace.path}/lock")
        if lock is None:
            return Recovery()
        with held(lock):
            return recover_locked(workspace)
    except (CommitFailed, PermissionError) as error:
        if isinstance(error, ParkettoError) and not isinstance(error, CommitFailed):
            raise
        # A process with read access only uses the record for its listing, and changes nothing.
        return Recovery()


def recover_locked(workspace: Workspace) -> Recovery:
    """Recover, for a caller that holds the workspace's lock."""
    settled = settle(workspace, workspace.read_state().log)
    swept = workspace.sweep()
    # The interrupted operation's own folder is part of recovering it, not a second finding.
    return _result(workspace, settled, max(0, swept - (settled is not None)))


def settle(workspace: Workspace, view: LogView) -> tuple[Record, bool] | None:
    """Finish or undo the last commit, if it is unsettled; returns its record, and whether it was completed.

    Any process may do it; without locks, several may do it at once.
    """
    if view.done:
        return None
    record = workspace.log.read(view.last)
    if _is_of_another(workspace, record):
        _abandon(workspace, view.last, record)
        return None
    _refuse_links(workspace, view.last, record)
    applier = applier_of(workspace, view.last, record)
    undo = view.undo
    if not undo and not applier.can_complete():
        # Another writer changed the files meanwhile, and completing it would undo that work: undo it instead.
        workspace.log.decide_undo(view.last, "another writer changed files after the commit was interrupted")
        undo = True
    if undo:
        applier.roll_back()
    else:
        applier.roll_forward()
    applier.clear()
    workspace.log.settle(view.last, "undone" if undo else "complete")
    return record, not undo


def _refuse_links(workspace: Workspace, number: int, record: Record) -> None:
    """Refuse a record of another user with a path that leads through a symbolic link."""
    store = workspace.store
    if store.is_own(workspace.log.path(number)):
        return
    paths = paths_of(record.publish) | paths_of(record.retire)
    inside = {posixpath.dirname(path) for path in paths} - {""}
    staged = {posixpath.dirname(new.staged) for new in record.publish} | {record.staging}
    staged |= {posixpath.dirname(old.parked) for old in record.retire}
    found = [f"{workspace.root}/{folder}" for folder in sorted(inside) if store.has_links(workspace.root, folder)]
    found += [f"{workspace.path}/{folder}" for folder in sorted(staged) if store.has_links(workspace.path, folder)]
    if found:
        raise CommitStateUnknown(
            f"an interrupted {record.operation} by {record.author} leads through a symbolic link, {found[0]!r}. "
            "Nothing was changed; that user must run recover()"
        )


def _abandon(workspace: Workspace, number: int, record: Record) -> None:
    """Set an unsettled commit aside, and say where."""
    aside = workspace.set_aside(number, record)
    if not workspace.store.atomic_move:
        workspace.log.settle(number, "abandoned")
    logger.warning(
        "a %s was interrupted on a dataset that is no longer at %s; its files are kept in %s. If you have "
        "moved the dataset, move that folder beside it, as .<name>.parketto, and run recover() there",
        record.operation,
        workspace.root,
        aside,
    )


def _recover_without_locks(workspace: Workspace, state: WorkspaceState) -> Recovery:
    settled = None
    while not state.log.done:
        settled = settle(workspace, state.log) or settled
        state = workspace.read_state()
    return _result(workspace, settled, sweep_free(workspace, state))


def sweep_free(workspace: Workspace, state: WorkspaceState) -> int:
    """Remove staged files of dead writers, where no lock shows which writers are alive.

    A stalled writer may resume. So a sweep is a commit: it takes a number, and the writer scans the log again.
    """
    dead = dead_among(state.staging)
    if not dead or not state.log.done:
        return 0
    try:
        sweep(workspace, state.log.last + 1, dead)
    except FileExistsError:
        return 0  # another process is sweeping or committing
    abort_dead_uploads(workspace, state)
    return len(dead)


def abort_dead_uploads(workspace: Workspace, state: WorkspaceState) -> None:
    """Abort unfinished uploads of dead writers. No listing shows them, and the store charges for them.

    A live writer has touched its staging folder since it started.
    """
    dead = set(dead_among(state.staging))
    alive = [f"{workspace.path}/{name}" for name in state.staging if name not in dead]
    if not state.log.done:
        alive.append(f"{workspace.path}/{KEPT}")  # a commit may be copying large files to it
    try:
        workspace.store.abort_uploads(workspace.path, time.time() - DEAD_SECONDS, spare=alive)
    except PermissionError as error:
        logger.warning("cannot look for unfinished uploads in %s: %s", workspace.path, error)


def sweep(workspace: Workspace, number: int, staging: Sequence[str]) -> None:
    """Remove staging folders by a commit of that number; FileExistsError if another writer has it."""
    record = Record(
        id=new_id(),
        operation=SWEEP,
        root=workspace.relative_root,
        dataset=(),
        sweeps=tuple(staging),
        at=now(),
        author=author(),
    )
    try:
        workspace.log.create(number, record)
    except FileExistsError:
        # A request that is repeated because its response was lost finds its own record.
        if not workspace.log.owns(number, record):
            raise
    applier = applier_of(workspace, number, record)
    applier.roll_forward()
    applier.clear()
    workspace.log.settle(number, "complete")


def dead_among(staging: Mapping[str, Sequence[FileEntry]]) -> list[str]:
    """The names of staging folders of dead writers: nothing in them was touched for `DEAD_SECONDS`."""
    long_ago = time.time() - DEAD_SECONDS
    return [
        name
        for name, files in staging.items()
        if all(entry.modified is not None and entry.modified < long_ago for entry in files)
    ]


def _result(workspace: Workspace, settled: tuple[Record, bool] | None, swept: int) -> Recovery:
    if settled is None:
        result = Recovery(staging_removed=swept)
    else:
        record, happened = settled
        result = Recovery.of(record, happened, swept)
    if result:
        logger.warning("%s: %s", workspace.root, result)
    return result


def new_id() -> str:
    """A unique id; ids sort by time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:12]}"


def author() -> Author:
    """The author of commits by this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    from parketto import __version__

    return Author(user, socket.gethostname(), os.getpid(), f"parketto {__version__}")
