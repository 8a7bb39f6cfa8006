"""Register the data files that other programs have added, so that all readers of streams agree on them.

A stream's offset is the number of a commit. A file that another program writes into the dataset belongs to no
commit, so a reader that finds one registers it by a commit of its own, which changes no file.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from parketto.commit.committing import data_files
from parketto.commit.explained_files import BASELINE, FOUND, ExplainedFiles
from parketto.commit.identity import identity_of
from parketto.commit.log import LogView
from parketto.commit.record import FoundFile
from parketto.commit.settled import Listing, list_settled
from parketto.commit.transaction import Transaction
from parketto.commit.workspace import DEAD_SECONDS
from parketto.errors import CommitConflict, DatasetNotFound, LockTimeout
from parketto.operations.context import DatasetContext
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry

logger = logging.getLogger(__name__)

# Writers without a lock that commit all the time leave short pauses only: to list files between two commits,
# and to register them before the next one.
_ATTEMPTS = 10
_RETRIES = 8
_DELAY_SECONDS = 0.01  # before the second attempt; it doubles with each
# Files that were only removed are registered together, to keep the set of explained files small.
_MANY_GONE = 1000
_TAILS = (b"PAR1", b"PARE")


class FileRegistry:
    """The explained files of a dataset, up to date at each call.

    Args:
        dataset: The dataset.
    """

    def __init__(self, dataset: DatasetContext) -> None:
        # Nothing is published, so there is nothing to swap.
        self._dataset = replace(dataset, swap=False, retries=_RETRIES)
        self._workspace = dataset.workspace
        #: The explained files at the time of the last listing.
        self.known = ExplainedFiles()

    def registered(self, *, may_begin: bool) -> ExplainedFiles:
        """The explained files after the last commit, once those of other programs are registered.

        Args:
            may_begin: Whether to register a baseline if there is none. Without one, the files are not tracked.
        """
        listing = self.listing()
        known = self.explained(listing)
        if known.tracked and not self._changes(listing, known):
            return known
        if not known.tracked and not (may_begin and listing.files):
            return known
        request = self._dataset.request(FOUND if known.tracked else BASELINE)
        try:
            self._dataset.run(request, self._register)
        except LockTimeout:
            raise
        except CommitConflict as conflict:
            if not known.tracked:
                raise
            logger.info("files of other programs in %s are left for later: %s", self._dataset.root, conflict)
        return self.explained(self.listing())

    def listing(self, list_files: Callable[[], Listing] | None = None) -> Listing:
        """The files between two commits, and the number of the commit before."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(random.uniform(0.5, 1.0) * _DELAY_SECONDS * 2**attempt)  # noqa: S311 - no secret
            view = self._workspace.read_state().log
            listing = Listing([], view.last, [])
            with contextlib.suppress(DatasetNotFound):
                listing = list_files() if list_files else list_settled(self._workspace, to_change=True)
            # Else the listing may have been made during that commit.
            if view.done and view.last == listing.number:
                return listing
        raise CommitConflict(f"other writers keep committing to {self._dataset.root!r}; run it again")

    def _register(self, transaction: Transaction) -> None:
        listing = self.listing(transaction.listing)
        known = self.explained(listing)
        if known.tracked != (transaction.operation == FOUND):
            raise CommitConflict("another reader has just registered all files; run it again")
        changes = self._changes(listing, known)
        if known.tracked and not changes:
            return  # by another reader

        def check_last() -> None:
            if self._workspace.read_state().log.last != listing.number:
                raise CommitConflict("another writer has committed since the files were listed; run it again")

        counts = Counter(file.change for file in changes)
        statistics = {f"files_{change}": counts[change] for change in ("added", "replaced", "moved", "gone")}
        transaction.commit([], [], found=changes, validate=check_last, statistics=statistics)

    def explained(self, listing: Listing) -> ExplainedFiles:
        """The explained files at the time of a listing. Later calls change the result."""
        assert listing.number is not None, "the listing was made between two commits"
        last, log = listing.number, self._workspace.log

        def read(view: LogView) -> ExplainedFiles:
            if view.checkpoint <= self.known.number <= last:
                return log.explained_after(self.known, view, last)
            return log.explained(view, last)

        self.known = self._workspace.read_log(read)
        identity = identity_of(self._dataset.store, self._dataset.root, listing.everything)
        if listing.files and self.known.dataset and self.known.dataset.isdisjoint(identity):
            return ExplainedFiles(last, since=last + 1)  # the log is that of an earlier dataset
        return self.known

    def _changes(self, listing: Listing, known: ExplainedFiles) -> list[FoundFile]:
        """What other programs have done since the last commit."""
        root = self._dataset.root
        here = {relative(entry.path, root): entry for entry in data_files(listing.everything, root)}
        if not known.tracked:
            known = ExplainedFiles()  # register all files
        gone = {path: file for path, file in known.files.items() if path not in here}
        # Where files can be moved, a fingerprint identifies the file, whatever its name.
        left = {file.fingerprint for file in gone.values()} if self._dataset.store.atomic_move else set()
        changes = [
            FoundFile(path, entry.fingerprint, entry.size_bytes, _change(path, entry, known, left))  # type: ignore[arg-type]
            for path, entry in self._unexplained(here, known).items()
        ]
        if changes or len(gone) >= _MANY_GONE:
            changes += [
                FoundFile(path, file.fingerprint or "", file.size_bytes, "gone") for path, file in gone.items()
            ]
        return changes

    def _unexplained(self, here: Mapping[str, FileEntry], known: ExplainedFiles) -> dict[str, FileEntry]:
        explained = known.files
        return {
            path: entry
            for path, entry in here.items()
            if not (path in explained and explained[path].is_same(entry)) and self._is_complete(entry)
        }

    def _is_complete(self, entry: FileEntry) -> bool:
        """Whether a file is not being written any more, as far as its end shows.

        A file that stays incomplete is registered after some time, so that it is an error when it is read.
        """
        store = self._dataset.store
        if not store.has_folders or (entry.modified is not None and entry.modified < time.time() - DEAD_SECONDS):
            return True
        try:
            end = store.read_range(entry.path, max(0, entry.size_bytes - 4), entry.size_bytes, entry.fingerprint)
        except FileNotFoundError:
            return False
        return end in _TAILS


def _change(path: str, entry: FileEntry, known: ExplainedFiles, left: set[str | None]) -> str:
    if path in known.files:
        return "replaced"
    return "moved" if entry.fingerprint in left else "added"
