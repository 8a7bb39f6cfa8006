"""The files that commits have added to a dataset since a commit: what a stream delivers.

| commits | delivered |
|---|---|
| that only publish files; files of other programs | all rows of the new files |
| that only move rows, such as compactions; sweeps; commits that were undone | nothing |
| all others, also an undo of such a commit | as `on_change` says |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar, cast

from parketto.commit.explained_files import BASELINE, FOUND, ExplainedFile, ExplainedFiles
from parketto.commit.log import KEPT_RECORDS, LogView
from parketto.commit.record import FoundFile, Record, Retirement
from parketto.commit.retention import KeptFiles
from parketto.commit.settled import Listing
from parketto.commit.undone import RESTORE, UNDO, only_moves_rows
from parketto.errors import InvalidArgument, StreamStopped, quoted
from parketto.operations.context import DatasetContext
from parketto.operations.found_files import FileRegistry
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry

logger = logging.getLogger(__name__)

_Kind = Literal["nothing", "added", "changed"]
OnChange = Literal["fail", "skip", "redeliver"]
ON_CHANGE = ("fail", "skip", "redeliver")
#: The offset before everything: the next one delivers all rows that exist.
EARLIEST = -1
# A stream without new rows moves on after this many commits, before their records are folded.
_MAX_LAG = KEPT_RECORDS // 2

Result = TypeVar("Result")


def check_on_change(on_change: str) -> OnChange:
    """Validate what to do with commits that change rows."""
    if on_change not in ON_CHANGE:
        raise InvalidArgument(f"unknown on_change {on_change!r}; valid choices: {quoted(ON_CHANGE)}")
    return cast("OnChange", on_change)


@dataclass(frozen=True)
class Offset:
    """A position in the log: after a commit. The id shows whether it is still the same log."""

    commit: int = EARLIEST
    id: str = ""


@dataclass(frozen=True)
class _AddedFile:
    """A file to deliver, and the commit after which it is looked for."""

    path: str
    file: ExplainedFile
    number: int


class AddedFiles:
    """Finds the files that were added to a dataset since a commit.

    Args:
        dataset: The dataset.
        on_change: What to deliver of commits that change or remove rows: an error, nothing, or all rows of the
            files that they have published.
    """

    def __init__(self, dataset: DatasetContext, on_change: OnChange = "fail") -> None:
        if not dataset.workspace.keeps_history:
            raise InvalidArgument(
                f"a stream of {dataset.root!r} needs its log, but history='off' and partitions that are opened as "
                "datasets keep none; use history='on' and the path of the whole dataset"
            )
        self._dataset, self._on_change = dataset, on_change
        self._log, self._root = dataset.workspace.log, dataset.root
        self._registry = FileRegistry(dataset)
        self._records: dict[int, Record | None] = {}  # complete ones, by number

    def first(self, starting: str | int) -> Offset:
        """The offset of a new stream: `earliest`, `latest`, or the number of the first commit to deliver."""
        if starting == "earliest":
            return Offset()
        known = self._registry.registered(may_begin=True)
        if not known.tracked:
            return Offset()  # there is no dataset yet, so all rows will be new
        if starting == "latest":
            return self._offset(known.number)
        number = int(starting)
        if not known.since <= number <= known.number + 1:
            raise InvalidArgument(
                f"starting_commit is {number}, but the log of {self._root!r} has the commits {known.since} to "
                f"{known.number}; choose one of them, 'earliest' or 'latest'"
            )
        return self._offset(number - 1)

    def latest(self, start: Offset) -> Offset:
        """The offset after everything that exists, once files of other programs are registered.

        Args:
            start: The offset of the stream. If its commit is no longer known, the stream cannot continue.
        """
        known = self._registry.registered(may_begin=start.commit == EARLIEST)
        if start.commit == EARLIEST:
            return self._offset(known.number) if known.tracked else start
        self._check(start, known)
        return self._offset(known.number)

    def next(self, start: Offset, latest: Offset, max_commits: int | None = None) -> Offset:
        """The end of the next micro-batch; the start if there is nothing to deliver.

        Args:
            start: The end of the one before.
            latest: The last commit to deliver.
            max_commits: The largest number of commits with rows to deliver. The first micro-batch is not limited.
        """
        if start.commit == EARLIEST:
            return latest
        end = counted = 0
        for number, record in self._complete(start.commit, latest.commit):
            if self._on_change == "fail" and self._kind(number, record) == "changed":
                if not end:
                    raise self._changed(number, record)
                break  # deliver what was added before; the next call fails
            if self._delivered(number, record):
                end, counted = number, counted + 1
                if counted == max_commits:
                    break
        if end:
            return self._offset(end)
        return latest if latest.commit - start.commit >= _MAX_LAG else start

    def between(self, start: Offset, end: Offset) -> list[FileEntry]:
        """The files to deliver after one commit up to another one, as they were then."""
        listing = self._registry.listing()
        known = self._registry.explained(listing)
        if start.commit == EARLIEST:
            added: Iterable[_AddedFile] = self._existing(end.commit)
        else:
            self._check(start, known)
            added = self._added(start.commit, end.commit)
        return list(self._located(list(added), listing))

    def _offset(self, number: int) -> Offset:
        return Offset(number, self._id(number))

    def _id(self, number: int) -> str:
        """The id of a commit; empty if its record is folded."""

        def read(view: LogView) -> str:
            return self._log.read(number).id if self._log.has(number, view) else ""

        return self._read(read)

    def _check(self, start: Offset, known: ExplainedFiles) -> None:
        """Refuse an offset of another log or another dataset."""
        is_other = bool(start.id) and self._id(start.commit) not in ("", start.id)
        if is_other or not (known.tracked and known.since - 1 <= start.commit <= known.number):
            raise self._stopped(
                start.commit, "its log was removed or keeps no history, or another dataset is at the path now"
            )

    def _stopped(self, number: int, why: str) -> StreamStopped:
        return StreamStopped(
            f"a stream of {self._root!r} cannot continue after commit {number}: {why}. Rows would be lost or "
            "repeated. Start it with a new checkpoint, and option starting_commit='earliest', 'latest' or a "
            f"number. The log has the records of at least the last {KEPT_RECORDS} commits"
        )

    def _existing(self, number: int) -> Iterator[_AddedFile]:
        """The files after a commit."""

        def read(view: LogView) -> ExplainedFiles:
            if not view.checkpoint <= number <= view.last:
                raise self._stopped(
                    number, f"the record of commit {number} was folded into a checkpoint, or removed"
                )
            return self._log.explained(view, number)

        found = self._read(read)
        return (_AddedFile(path, file, number) for path, file in sorted(found.files.items()))

    def _added(self, start: int, end: int) -> Iterator[_AddedFile]:
        for number, record in self._complete(start, end):
            if self._on_change == "fail" and self._kind(number, record) == "changed":
                raise self._changed(number, record)
            yield from self._delivered(number, record)

    def _delivered(self, number: int, record: Record) -> list[_AddedFile]:
        """The files of a commit to deliver."""
        kind, redeliver = _kind(record), self._on_change == "redeliver"
        files: list[_AddedFile] = []
        if record.operation != FOUND and (kind == "added" or (kind == "changed" and redeliver)):
            files += [
                _AddedFile(
                    new.path, ExplainedFile(new.fingerprint if self._moves else None, new.size_bytes), number
                )
                for new in record.publish
            ]
        # Files of other programs that this commit has retired were there before it. Their rows are delivered from
        # there, unless the files are delivered that contain them now.
        revealed = [] if kind == "changed" and redeliver else self._revealed(number)
        wanted = ("added", "replaced") if redeliver else ("added",)
        for at, found in ((number, record.found if record.operation == FOUND else ()), (number - 1, revealed)):
            files += [
                _AddedFile(file.path, ExplainedFile(file.fingerprint, file.size_bytes), at)
                for file in found
                if file.change in wanted
            ]
        return files

    def _revealed(self, number: int) -> Sequence[FoundFile]:
        return self._registry.known.revealed.get(number, ())

    def _kind(self, number: int, record: Record) -> _Kind:
        """What a commit, and other programs before it, did to rows."""
        changes = {file.change for file in self._revealed(number)}
        return "changed" if "replaced" in changes else _kind(record)

    @property
    def _moves(self) -> bool:
        return self._dataset.store.atomic_move

    def _located(self, added: Sequence[_AddedFile], listing: Listing) -> Iterator[FileEntry]:
        """Where the files are now: in the dataset, or retired and kept. Files that others removed have no rows."""
        here = {relative(entry.path, self._root): entry for entry in listing.everything}
        first, last = min((file.number for file in added), default=0), listing.number or 0
        retired: dict[str, list[tuple[int, Retirement]]] = {}
        for number, record in self._complete(first, last) if added else ():
            for old in record.retire:
                retired.setdefault(old.path, []).append((number, old))
        kept = _KeptIndex(KeptFiles(self._dataset.store, self._dataset.workspace.path))
        for file in added:
            gone = next(((at, old) for at, old in retired.get(file.path, ()) if at > file.number), None)
            if gone is not None:
                at, old = gone
                if (file.path, old.fingerprint) not in kept:
                    raise self._lost(file, at)
                yield FileEntry(f"{self._root}/{file.path}", old.size_bytes, old.fingerprint)
            elif (entry := here.get(file.path)) is not None and file.file.is_same(entry):
                yield entry
            elif entry is None:
                logger.info("%s was removed by another program before a stream has read it", file.path)
            elif self._on_change == "fail":
                raise StreamStopped(
                    f"another program has replaced {file.path!r} in {self._root!r}, which commit {file.number} "
                    f"added, before the stream has read it. {_CHOICES}"
                )
            else:
                logger.warning("%s was replaced by another program before a stream has read it", file.path)

    def _complete(self, start: int, end: int) -> Iterator[tuple[int, Record]]:
        """The records of complete commits after one up to another one."""
        for number in range(start + 1, end + 1):
            if number not in self._records:
                self._records[number] = self._read(partial(self._complete_record, number))
            if (record := self._records[number]) is not None:
                yield number, record
        for number in [each for each in self._records if each < start]:
            del self._records[number]

    def _complete_record(self, number: int, view: LogView) -> Record | None:
        if not self._log.has(number, view):
            raise self._stopped(
                number - 1, f"the record of commit {number} was folded into a checkpoint, or removed"
            )
        return self._log.read(number) if self._log.outcome(number, view) == "complete" else None

    def _read(self, read: Callable[[LogView], Result]) -> Result:
        return self._dataset.workspace.read_log(read)

    def _changed(self, number: int, record: Record) -> StreamStopped:
        found = [*record.found, *self._revealed(number)]
        replaced = [file.path for file in found if file.change == "replaced"]
        what = f"other programs have replaced {quoted(replaced[:3])}, as commit {number} at {record.at[:19]}Z says"
        if not replaced:
            what = f"commit {number}, {record.operation} by {record.author} at {record.at[:19]}Z, changed rows"
        return StreamStopped(
            f"{what}. A stream of {self._root!r} delivers rows once, when they are added. "
            f"{_CHOICES}, or start with a new checkpoint and starting_commit={number + 1}"
        )

    def _lost(self, file: _AddedFile, number: int) -> StreamStopped:
        return StreamStopped(
            f"{file.path!r} of {self._root!r} is no longer kept: commit {number} retired it before the stream has "
            f"read it as part of commit {file.number}. Rows would be missing. Start the stream with a new "
            "checkpoint (option starting_commit). Let writers keep retired files for longer than the stream "
            "pauses: Dataset(..., retention=timedelta(...)), or option retention of format('parketto')"
        )


_CHOICES = (
    "Choose option on_change='skip' to deliver nothing of such changes, or 'redeliver' to deliver all rows of the "
    "new files, also those that were not changed"
)


def _kind(record: Record) -> _Kind:
    """What a complete commit did to rows."""
    if record.operation == FOUND:
        changes = {file.change for file in record.found}
        return "changed" if "replaced" in changes else "added" if "added" in changes else "nothing"
    if record.operation == BASELINE or only_moves_rows(record.operation, record.arguments, record.statistics):
        return "nothing"
    # An undo may only bring back files whose rows were delivered before.
    if record.retire or (record.publish and record.operation in (UNDO, RESTORE)):
        return "changed"
    return "added" if record.publish else "nothing"


class _KeptIndex:
    """Which files are kept; manifests are read when the first is looked for."""

    def __init__(self, kept: KeptFiles) -> None:
        self._kept = kept
        self._known: Mapping[tuple[str, str], bool] | None = None

    def __contains__(self, file: tuple[str, str]) -> bool:
        if self._known is None:
            found = [
                (each.path, each.fingerprint) for manifest in self._kept.manifests() for each in manifest.files
            ]
            self._known = dict.fromkeys(found, True)
        return file in self._known
