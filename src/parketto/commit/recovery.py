"""Recovery: settle a commit that was interrupted, and clear away what dead processes staged."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import posixpath
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from parketto.commit.appliers import applier_of
from parketto.commit.identity import is_same
from parketto.commit.log import SWEEP, View, now
from parketto.commit.record import Author, Record, paths_of
from parketto.commit.workspace import Sight, Workspace
from parketto.errors import CommitFailed, CommitStateUnknown, ParkettoError
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.locks import held
from parketto.storage.snapshot import refuse_file, relative, select_data_files
from parketto.storage.store import FileEntry

logger = logging.getLogger(__name__)

_LISTING_ATTEMPTS = 10
_FRESH_LISTINGS = 2  # after so many that others were quicker than, their records tell what has changed meanwhile
# Without locks a writer is taken for dead when nothing of it was touched for so long. It touches its staging
# folder much more often (see `heartbeat.py`); the rest allows for clocks that differ.
DEAD_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery found and did. It is true if there was anything to do."""

    action: Literal["none", "completed", "rolled back"] = "none"
    operation: str | None = None
    files_published: int = 0
    files_retired: int = 0
    staging_removed: int = 0

    def __bool__(self) -> bool:
        return self.action != "none" or self.staging_removed > 0

    def __str__(self) -> str:
        if not self:
            return "nothing to recover"
        said = []
        if self.action != "none":
            said.append(
                f"{self.action} an interrupted {self.operation} "
                f"({self.files_published} new files, {self.files_retired} replaced)"
            )
        if self.staging_removed:
            said.append(f"removed the staged files of {self.staging_removed} interrupted operation(s)")
        return "; ".join(said)


@dataclass(frozen=True, slots=True)
class Listing:
    """All data files at a moment when no commit was half done, and the last commit before it.

    Whoever only adds files also lists while others commit, and does not know the number of the last one then.
    """

    files: list[FileEntry]
    number: int | None
    #: All that is below the dataset's folder then, data or not.
    everything: list[FileEntry]


def recover(workspace: Workspace) -> Recovery:
    """Bring the dataset to exactly the state before or after an interrupted operation.

    Safe to run at any time and to be killed at any point: the next call goes on. A process that is alive and
    committing holds the lock, so it is waited for and never disturbed. What was interrupted on a dataset that
    this one is a part of is recovered first.
    """
    for outer in workspace.above():
        if not outer.look().log.done:
            _recover_one(outer)
    recovery = _recover_one(workspace)
    if not workspace.locks:
        abort_dead_uploads(workspace, workspace.look())
    return recovery


def list_settled(
    workspace: Workspace,
    partition_filter: PartitionFilter = None,
    *,
    to_change: bool = False,
    locked: bool = False,
) -> Listing:
    """The data files at a moment when nobody is in the middle of a commit: here, above or below.

    Nothing is locked or written, unless a commit was interrupted, or others commit all the time.

    Args:
        workspace: The dataset's workspace.
        partition_filter: Which partitions to list.
        to_change: The caller is about to commit. Then a commit that is under way is settled first: a plan for the
            state before it would only be in conflict with it.
        locked: The caller holds the workspace's lock, and has recovered.
    """
    store, root = workspace.store, workspace.root
    directory_matcher(partition_filter)  # a filter that makes no sense is refused before any read
    refuse_file(store, root)
    for attempt in range(_LISTING_ATTEMPTS):
        for outer in workspace.above():
            if not outer.look().log.done:
                _recover_one(outer)
        last = attempt == _LISTING_ATTEMPTS - 1
        before = workspace.look().log
        if not before.done and (to_change or workspace.locks):
            _recover_one(workspace)
            before = workspace.look().log
            if not before.done and workspace.locks and not last:
                continue  # the next one has begun, and may still be undone
        with _kept_out(workspace) if last and not locked else contextlib.nullcontext():
            found = list(store.list_files(root))
            after = workspace.look().log
        if last and workspace.locks:
            before = after
        if before != after and not locked and (store.keeps_birth or attempt < _FRESH_LISTINGS):
            continue  # somebody has committed meanwhile: what was listed may be half of that
        inner = workspace.below(found)
        if not inner:
            shown = _as_settled(workspace, before, after, found, last=last)
            if shown is None:
                continue
            return Listing(select_data_files(store, root, shown, partition_filter), after.last, shown)
        for each in inner:  # never while holding a lock: its owner may be waiting for ours
            _recover_one(each)
    raise CommitFailed(f"others keep committing below {root!r}; nothing was changed, run the operation again")


@contextlib.contextmanager
def _kept_out(workspace: Workspace) -> Iterator[None]:
    """Keep others from committing for a moment, if this process may."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(CommitFailed, PermissionError):
            stack.enter_context(workspace.locked())
        yield


def _as_settled(
    workspace: Workspace, before: View, view: View, found: list[FileEntry], *, last: bool
) -> list[FileEntry] | None:
    """What was listed between two looks at the log, as it is between two commits; None if that cannot be told.

    Records tell old files from new ones. So a reader need not wait for others, nor write, nor begin again.
    """
    here = {relative(entry.path, workspace.root): entry for entry in found}
    try:
        # A listing of many files takes a while, and a commit can be half in it that was settled meanwhile.
        for number in range(before.last + before.done, view.last + view.done):
            if before != view and not _follow(workspace, number, view, here):
                return None
        if not view.done:
            record = workspace.log.read(view.last)
            if is_same(workspace.store, workspace.root, record):
                new, old = paths_of(record.publish), paths_of(record.retire)
                # Old files go when all new ones are there. Else it is a listing that took so long that it has
                # missed both; or, if that happens again and again, a stranger has removed an old one.
                if not (new <= here.keys() or old <= here.keys() or last):
                    return None
                for path in old if new <= here.keys() and not view.undo else new:
                    here.pop(path, None)
    except FileNotFoundError:
        return None  # a record was folded since
    return list(here.values())


def _follow(workspace: Workspace, number: int, view: View, here: dict[str, FileEntry]) -> bool:
    """Bring what was listed, by relative paths, to the state after a commit; False if a file is gone since."""
    record = workspace.log.read(number)
    if record.operation == SWEEP or workspace.log.outcome(number, view) != "complete":
        return True
    for old in record.retire:
        here.pop(old.path, None)
    missing = [f"{workspace.root}/{new.path}" for new in record.publish if new.path not in here]
    entries = workspace.store.stat_many(missing)
    here.update({relative(path, workspace.root): entry for path, entry in entries.items()})
    return len(entries) == len(missing)


def _recover_one(workspace: Workspace) -> Recovery:
    sight = workspace.look()
    if sight.log.done and not sight.staging:
        return Recovery()
    if not workspace.locks:
        return _recover_free(workspace, sight)
    try:
        if not sight.log.done:
            with workspace.locked():
                return recover_locked(workspace)
        # Only staged files are left: if somebody is at work, they can wait.
        lock = workspace.store.try_lock(f"{workspace.path}/lock")
        if lock is None:
            return Recovery()
        with held(lock):
            return recover_locked(workspace)
    except (CommitFailed, PermissionError) as error:
        if isinstance(error, ParkettoError) and not isinstance(error, CommitFailed):
            raise
        # Whoever may only read sees what the record says, and leaves the rest alone.
        return Recovery()


def recover_locked(workspace: Workspace) -> Recovery:
    """The same, for a caller that holds the workspace's lock."""
    settled = settle(workspace, workspace.look().log)
    swept = workspace.sweep()
    # The interrupted operation's own folder is part of recovering it, not a second finding.
    return _result(workspace, settled, max(0, swept - (settled is not None)))


def settle(workspace: Workspace, view: View) -> tuple[Record, bool] | None:
    """Finish or undo the last commit, if that is left to do: the record, and whether it happened.

    Everybody may do it; where nobody holds a lock also several at once.
    """
    if view.done:
        return None
    record = workspace.log.read(view.last)
    if record.operation != SWEEP and not is_same(workspace.store, workspace.root, record):
        _abandon(workspace, view.last, record)
        return None
    _refuse_links(workspace, view.last, record)
    applier = applier_of(workspace, view.last, record)
    undo = view.undo
    if not undo and not applier.can_complete():
        # Somebody changed the files meanwhile, so completing it would undo their work: it is undone instead.
        workspace.log.decide_undo(
            view.last, "files were changed by somebody else after the commit was interrupted"
        )
        undo = True
    if undo:
        applier.roll_back()
    else:
        applier.roll_forward()
    applier.clear()
    workspace.log.settle(view.last, "undone" if undo else "complete")
    return record, not undo


def _refuse_links(workspace: Workspace, number: int, record: Record) -> None:
    """Carry out nothing that another user has written and that leads out of the folders through a link."""
    store = workspace.store
    if store.is_own(workspace.log.path(number)):
        return
    paths = paths_of(record.publish) | paths_of(record.retire)
    inside = {posixpath.dirname(path) for path in paths} - {""}
    staged = {posixpath.dirname(new.staged) for new in record.publish} | {record.staging}
    found = [f"{workspace.root}/{folder}" for folder in sorted(inside) if store.has_links(workspace.root, folder)]
    found += [f"{workspace.path}/{folder}" for folder in sorted(staged) if store.has_links(workspace.path, folder)]
    if found:
        raise CommitStateUnknown(
            f"an interrupted {record.operation} by {record.author} leads through a symbolic link, {found[0]!r}. "
            "Nothing was changed; let the same user run recover()"
        )


def _abandon(workspace: Workspace, number: int, record: Record) -> None:
    """The dataset of an unsettled commit was moved away, and what stands here is another one."""
    aside = workspace.set_aside(number, record)
    if not workspace.store.atomic_move:
        workspace.log.settle(number, "abandoned")
    logger.warning(
        "a %s was interrupted on a dataset that is no longer at %s; what it needs is kept in %s. If you have "
        "moved the dataset, move that folder along, as .<name>.parketto beside it, and run recover() there",
        record.operation,
        workspace.root,
        aside,
    )


def _recover_free(workspace: Workspace, sight: Sight) -> Recovery:
    settled = None
    while not sight.log.done:
        settled = settle(workspace, sight.log) or settled
        sight = workspace.look()
    return _result(workspace, settled, sweep_free(workspace, sight))


def sweep_free(workspace: Workspace, sight: Sight) -> int:
    """Remove what dead writers have staged, where no lock tells who is alive.

    A writer that only stalls may come back. So a sweep is a commit: it takes a number, and the writer looks anew.
    """
    dead = dead_among(sight.staging)
    if not dead or not sight.log.done:
        return 0
    try:
        sweep(workspace, sight.log.last + 1, dead)
    except FileExistsError:
        return 0  # somebody else is at work; another time
    abort_dead_uploads(workspace, sight)
    return len(dead)


def abort_dead_uploads(workspace: Workspace, sight: Sight) -> None:
    """Discard what dead writers have begun to upload, and no listing shows: it costs money for ever.

    A writer that is alive has touched its folder since it began.
    """
    dead = set(dead_among(sight.staging))
    alive = [f"{workspace.path}/{name}" for name in sight.staging if name not in dead]
    try:
        workspace.store.abort_uploads(workspace.path, time.time() - DEAD_SECONDS, spare=alive)
    except PermissionError as error:
        logger.warning("cannot look for unfinished uploads in %s: %s", workspace.path, error)


def sweep(workspace: Workspace, number: int, staging: Sequence[str]) -> None:
    """Remove staging folders by a commit of that number. FileExistsError: somebody else has it."""
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
        # A request whose answer was lost is repeated, and then finds what it has made itself.
        if not workspace.log.owns(number, record):
            raise
    applier = applier_of(workspace, number, record)
    applier.roll_forward()
    applier.clear()
    workspace.log.settle(number, "complete")


def dead_among(staging: Mapping[str, Sequence[FileEntry]]) -> list[str]:
    """The names of staging folders in which nothing was touched for so long that their writers must be dead."""
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
        result = Recovery(
            action="completed" if happened else "rolled back",
            operation=record.operation,
            files_published=len(record.publish),
            files_retired=len(record.retire),
            staging_removed=swept,
        )
    if result:
        logger.warning("%s: %s", workspace.root, result)
    return result


def new_id() -> str:
    """A name that nobody else has; names sort by time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:12]}"


def author() -> Author:
    """Who this is."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    from parketto import __version__

    return Author(user, socket.gethostname(), os.getpid(), f"parketto {__version__}")
