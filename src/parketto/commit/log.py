"""The log: one immutable, numbered record per commit, created by exactly one writer.

    log/
        00000000000000000007.json        what commit 7 does; creating it is the point of no return
        00000000000000000007.undo.json   commit 7 must be undone (only on stores where that is possible)
        00000000000000000007.done.json   commit 7 is settled: its outcome
        checkpoint-00000000000000000004.json   what is kept of commits 1 to 4

A record is created only after the one before it is settled, by its owner or by another process. So only the last
one can be unsettled. Records are never overwritten, and only records that a checkpoint covers are removed.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parketto.commit.explained_files import BASELINE, FOUND, ExplainedFiles
from parketto.commit.record import Outcome, Publication, Record, paths_of, sealed, unsealed
from parketto.commit.undone import UndoneBy
from parketto.storage.store import Store

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(?P<checkpoint>checkpoint-)?(?P<number>[0-9]{20})(?P<kind>\.undo|\.done)?\.json")
_CHECKPOINT_FORMAT = "parketto checkpoint, version 1"
_EXPLAINED = "explained"  # the key of the files in a checkpoint

#: Records kept when older ones are folded into a checkpoint, and how many more trigger that.
#: Their sum keeps the log within one listing request of an object store.
KEPT_RECORDS = 150
_FOLDED_AT_ONCE = 150
#: Without locks, younger records are never removed: a writer that stalls after reading the log would find their
#: numbers free.
STALL_SECONDS = 3600.0
_RETENTION = dt.timedelta(days=30)  # age up to which a checkpoint keeps commits
_MAX_RETAINED = 10_000  # commits that a checkpoint keeps for their age

# Operations that replace all files.
_REPLACING = ("overwrite", "repartition")

# Cache of settled commits, for stores where a listing has fingerprints and each read is a request.
_settled_entries: dict[tuple[str, ...], dict[str, Any]] = {}
_MAX_SETTLED_ENTRIES = 2_000
_records: dict[tuple[str, str], Record] = {}
_MAX_RECORDS = 400  # more than a log has, because older ones are folded

#: The operation of a commit that only removes the staged files of dead writers.
SWEEP = "sweep"


@dataclass(frozen=True, slots=True)
class LogView:
    """The state of the log, from one listing."""

    last: int = 0
    done: bool = True
    undo: bool = False
    checkpoint: int = 0
    #: Differs after every commit, even where records are removed at once and numbers start again.
    mark: object = None
    names: Mapping[str, str] = field(default_factory=dict, compare=False)


def view_of(names: Mapping[str, str], mark: object = None) -> LogView:
    """The state of a log with these names and their fingerprints."""
    found = [(match, name) for name in names if (match := _NAME.fullmatch(name))]
    checkpoint = max((int(match["number"]) for match, _ in found if match["checkpoint"]), default=0)
    last = max((int(match["number"]) for match, _ in found if not match["checkpoint"]), default=0)
    last = max(last, checkpoint)
    return LogView(
        last,
        # A record that was removed by hand cannot be applied.
        done=_name(last) not in names or _name(last, ".done") in names,
        undo=_name(last, ".undo") in names,
        checkpoint=checkpoint,
        mark=mark,
        names=names,
    )


def _name(number: int, kind: str = "") -> str:
    return f"{number:020d}{kind}.json"


class Log:
    """The log of one dataset.

    Args:
        store: Where it is.
        folder: Its folder.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self.folder = store, folder

    def path(self, number: int, kind: str = "") -> str:
        """The path of a record."""
        return f"{self.folder}/{_name(number, kind)}"

    def read(self, number: int) -> Record:
        """The record of a commit."""
        path = self.path(number)
        return Record.from_bytes(self._store.read(path), path)

    def create(self, number: int, record: Record) -> None:
        """Create a record: the point of no return. Raises FileExistsError if another writer has the number."""
        self._store.create(self.path(number), record.to_bytes())

    def owns(self, number: int, record: Record) -> bool:
        """Whether the record of that number is this one, whether or not the request that created it succeeded."""
        try:
            return self.read(number).id == record.id
        except FileNotFoundError:
            return False

    def decide_undo(self, number: int, reason: str) -> None:
        """Decide that every process undoes the commit from now on."""
        self._make(self.path(number, ".undo"), {"reason": reason})

    def settle(self, number: int, outcome: Outcome, duration_seconds: float | None = None) -> Outcome:
        """Record that all steps are done, or all undone; returns the outcome that was recorded first."""
        path = self.path(number, ".done")
        if self._make(path, {"outcome": outcome, "at": now(), "duration_seconds": duration_seconds}):
            return outcome
        try:
            found: Outcome = unsealed(self._store.read(path), path)["outcome"]
        except FileNotFoundError:
            return outcome  # folded meanwhile
        return found

    def is_settled(self, number: int) -> bool:
        """Whether a commit that was unsettled earlier is settled now."""
        return self._store.stat(self.path(number, ".done")) is not None

    def _make(self, path: str, content: Mapping[str, Any]) -> bool:
        """Create a file that other processes may create, too; returns whether this process did."""
        try:
            self._store.create(path, sealed(content))
        except FileExistsError:
            logger.debug("%s was created by another process", path)
            return False
        return True

    def outcome(self, number: int, view: LogView) -> Outcome | None:
        """The outcome of a commit; None until it is settled."""
        if _name(number, ".done") not in view.names:
            return "complete" if number < view.last else None
        path = self.path(number, ".done")
        found: Outcome = unsealed(self._store.read(path), path)["outcome"]
        return found

    def entries(self, view: LogView, after: int = 0) -> Iterator[dict[str, Any]]:
        """The commits after a number, newest first: records without their files."""
        for number in range(view.last, max(view.checkpoint, after), -1):
            if _name(number) in view.names:  # else it was removed by hand
                yield self._entry(number, view)
        if view.checkpoint > after:
            kept = self._checkpoint(view.checkpoint)["commits"]
            yield from (entry for entry in reversed(kept) if entry["number"] > after)

    def records(self, view: LogView, after: int) -> Iterator[tuple[int, Record]]:
        """The commits after a number that are not folded, oldest first."""
        for number in range(max(view.checkpoint, after) + 1, view.last + 1):
            if _name(number) in view.names:
                yield number, self.read(number)

    def has(self, number: int, view: LogView) -> bool:
        """Whether the record of a commit is in the log, not folded or removed."""
        return number > view.checkpoint and _name(number) in view.names

    def history(
        self, view: LogView, identity: Collection[str], without: Iterable[int] = ()
    ) -> Iterator[dict[str, Any]]:
        """The commits of the dataset with this identity, newest first; none of an earlier dataset.

        `undone_by` is the number of the commit that has undone a commit. Commits in `without` count as undone.
        """
        known, undone = set(identity), UndoneBy(without)
        for entry in self.entries(view):
            if entry["operation"] == SWEEP:
                continue
            if known.isdisjoint(entry["dataset"]):
                return
            known.update(entry["dataset"])
            if entry["outcome"] == "complete":
                by = undone.add(entry["number"], entry["operation"], entry["statistics"])
                yield {**entry, "undone_by": by}

    def complete(self, view: LogView, identity: Collection[str], after: int = 0) -> tuple[dict[int, Record], int]:
        """The records of complete commits of the dataset with this identity, newest first.

        Args:
            view: The current state of the log.
            identity: The identity of the dataset.
            after: Only commits after this number.

        Returns:
            The records, and the number after which they are all there is: earlier ones are folded, removed, of
            another dataset, or not asked for.
        """
        found: dict[int, Record] = {}
        known, line = set(identity), max(after, view.checkpoint)
        for number in range(view.last, line, -1):
            if _name(number) not in view.names:
                return found, number
            record = self._record(number, view)
            if record.operation == SWEEP:
                continue
            if known.isdisjoint(record.dataset):
                return found, number
            known.update(record.dataset)
            # Where each read is a request, entries are cached.
            cached = bool(view.names[_name(number)])
            outcome = self._entry(number, view)["outcome"] if cached else self.outcome(number, view)
            if outcome == "complete":
                found[number] = record
        return found, line

    def expected(self, view: LogView, identity: Collection[str]) -> dict[str, Publication]:
        """The files that records published and did not retire later, by their paths in the dataset.

        Those of undone commits are gone, too: another program may have removed them before.
        """
        files: dict[str, Publication] = {}
        undone = UndoneBy()
        known, gone = set(identity), set[str]()
        for number in range(view.last, view.checkpoint, -1):
            if _name(number) not in view.names or self.outcome(number, view) != "complete":
                continue
            record = self.read(number)
            if record.operation == SWEEP:
                continue
            if known.isdisjoint(record.dataset):
                break
            known.update(record.dataset)
            if undone.add(number, record.operation, record.statistics) is not None:
                gone |= paths_of(record.publish)
            files |= {new.path: new for new in record.publish if new.path not in gone}
            gone |= paths_of(record.retire)
            if record.operation in _REPLACING:
                break
        return files

    def find(
        self, commit_id: str, view: LogView, identity: Collection[str], *, ordered: bool = False
    ) -> dict[str, Any] | None:
        """The commit with this commit_id, if it is complete and not undone.

        Args:
            commit_id: The application and the number.
            view: The current state of the log.
            identity: The identity of the dataset.
            ordered: The numbers of the application only grow: its last commit is found for smaller numbers too.
        """
        for entry in self.history(view, identity):
            if entry["undone_by"] is not None:
                continue  # as if it had not happened: a replay applies it again
            if entry["commit_id"] == commit_id or (ordered and _is_later(entry["commit_id"], commit_id)):
                return entry
        return None

    def _entry(self, number: int, view: LogView) -> dict[str, Any]:
        """A commit, cached once it is settled: it never changes, and its fingerprint identifies it."""
        marks = [view.names.get(_name(number, kind), "") for kind in ("", ".done")]
        known = (self.path(number), *marks)
        if known in _settled_entries:
            return _settled_entries[known]
        entry = self._read_entry(number, view)
        if all(mark and not mark.endswith(":None") for mark in marks):  # else the listing has no versions
            if len(_settled_entries) >= _MAX_SETTLED_ENTRIES:
                _settled_entries.clear()
            _settled_entries[known] = entry
        return entry

    def _record(self, number: int, view: LogView) -> Record:
        """A record, cached where its fingerprint identifies it: each read is a request there."""
        mark = view.names.get(_name(number), "")
        if not mark or mark.endswith(":None"):
            return self.read(number)
        known = self.path(number), mark
        if known not in _records:
            if len(_records) >= _MAX_RECORDS:
                _records.clear()
            _records[known] = self.read(number)
        return _records[known]

    def _read_entry(self, number: int, view: LogView) -> dict[str, Any]:
        record = self._record(number, view)
        return {
            "number": number,
            "id": record.id,
            "operation": record.operation,
            "at": record.at,
            "duration_seconds": record.duration_seconds,
            "engine": record.engine,
            "user": record.author.user,
            "author": str(record.author),
            "program": record.author.program,
            "commit_id": record.commit_id,
            "arguments": dict(record.arguments),
            "statistics": dict(record.statistics),
            "files_published": len(record.publish),
            "files_retired": len(record.retire),
            "kept_until": record.kept_until,
            "dataset": list(record.dataset),
            "outcome": self.outcome(number, view),
        }

    def explained(self, view: LogView, last: int | None = None) -> ExplainedFiles:
        """The files that the commits up to a number explain, as far as they are known."""
        found = ExplainedFiles(view.checkpoint, since=view.checkpoint + 1)
        if view.checkpoint and (kept := self._checkpoint(view.checkpoint).get(_EXPLAINED)):
            found = ExplainedFiles.from_json(kept)
        return self.explained_after(found, view, view.last if last is None else last)

    def explained_after(self, found: ExplainedFiles, view: LogView, last: int) -> ExplainedFiles:
        """The same, brought from an earlier commit to a later one."""
        for number in range(found.number + 1, last + 1):
            if _name(number) in view.names and self.outcome(number, view) == "complete":
                found.apply(number, self.read(number), moves=self._store.atomic_move)
        found.number = max(found.number, last)
        return found

    def _checkpoint(self, number: int) -> dict[str, Any]:
        path = f"{self.folder}/checkpoint-{_name(number)}"
        return unsealed(self._store.read(path), path)

    def _folded_files(self, view: LogView, line: int, folded: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """What a checkpoint says about files: nothing, unless readers of streams register those of others."""
        known = view.checkpoint and _EXPLAINED in self._checkpoint(view.checkpoint)
        if not known and all(entry["operation"] not in (BASELINE, FOUND) for entry in folded):
            return {}
        return {_EXPLAINED: self.explained(view, line).to_json()}

    def _is_old(self, number: int) -> bool:
        """Whether a record is so old that no stalled writer can still create it; only then read them all."""
        try:
            return self.read(number).at < now(-STALL_SECONDS)
        except FileNotFoundError:
            return True  # removed by hand

    @staticmethod
    def is_long(records: int, keep: int) -> bool:
        """Whether there are enough records to fold some."""
        return records - keep >= (_FOLDED_AT_ONCE if keep else 1)

    def fold(self, view: LogView, keep: int = KEPT_RECORDS, *, alone: bool) -> bool:
        """Fold old commits into a checkpoint, and remove their records; False if nothing was folded.

        Args:
            view: The current state of the log.
            keep: How many of the last commits keep their records.
            alone: The caller holds a lock, so that no other process can create a record.
        """
        # Without a lock the last record stays: no process may find another record of its number unsettled.
        line = view.last - (keep if alone else max(keep, 1))
        if not self.is_long(view.last - view.checkpoint, keep):
            return False
        if not alone and not self._is_old(min(view.checkpoint + _FOLDED_AT_ONCE // 2, line)):
            return False
        folded = [entry for entry in reversed([*self.entries(view)]) if entry["number"] <= line]
        if not alone:
            young = now(-STALL_SECONDS)
            line = max((entry["number"] for entry in folded if entry["at"] < young), default=0)
            folded = [entry for entry in folded if entry["number"] <= line]
            if line - view.checkpoint < _FOLDED_AT_ONCE // 2:
                return False
        # A stalled writer looks for its own commit when it resumes, whether or not a history is kept.
        commits = remembered(folded, identified_only=alone and keep == 0)
        files = self._folded_files(view, line, folded) if keep or not alone else {}
        if commits or files or not alone:
            path = f"{self.folder}/checkpoint-{_name(line)}"
            self._make(path, {"format": _CHECKPOINT_FORMAT, "commits": commits, **files})
        gone = [match for name in view.names if (match := _NAME.fullmatch(name)) and int(match["number"]) <= line]
        # A record without its outcome would be applied again, so records are removed first.
        records = [match for match in gone if not match["checkpoint"] and not match["kind"]]
        for matches in (records, [match for match in gone if match not in records]):
            self._store.remove_many([f"{self.folder}/{match[0]}" for match in matches])
        return True


def remembered(entries: Iterable[Mapping[str, Any]], *, identified_only: bool) -> list[Mapping[str, Any]]:
    """The old commits to retain: those of the last 30 days, and the last one of each application in effect."""
    known = list(entries)
    undone = UndoneBy()
    in_effect = [
        entry
        for entry in reversed(known)
        if undone.add(entry["number"], entry["operation"], entry["statistics"]) is None
    ]
    last_of = {
        application(entry["commit_id"]): entry["number"]
        for entry in reversed(in_effect)
        if entry["commit_id"] is not None
    }
    since = now(-_RETENTION.total_seconds())

    def is_kept(at: int, entry: Mapping[str, Any]) -> bool:
        recent = entry["at"] >= since and at >= len(known) - _MAX_RETAINED
        if entry["commit_id"] is None:
            return recent and not identified_only
        return bool(recent or last_of.get(application(entry["commit_id"])) == entry["number"])

    return _linked([(entry, is_kept(at, entry)) for at, entry in enumerate(known)])


def _linked(entries: Sequence[tuple[Mapping[str, Any], bool]]) -> list[Mapping[str, Any]]:
    """The commits to keep. Identities may change with each commit, so kept ones inherit those of dropped ones."""
    kept: list[Mapping[str, Any]] = []
    newest: list[str] = []
    dropped: set[str] = set()  # identities of the dataset after the last kept commit
    for entry, is_kept in reversed(entries):
        own = entry["dataset"]
        is_linked = not dropped.isdisjoint(own)
        if is_kept:
            kept.append({**entry, "dataset": [own[0], *newest]} if is_linked else entry)
            dropped = set()
        elif own:
            newest = newest if is_linked else own
            dropped = {*own, *(dropped if is_linked else ())}
    return kept[::-1]


def application(commit_id: str) -> str:
    """The application of a commit_id: the part before the last colon.

    >>> application("orders-stream:17"), application("17")
    ('orders-stream', '')
    """
    return commit_id.rpartition(":")[0]


def _is_later(known: str | None, commit_id: str) -> bool:
    """Whether a commit_id is of the same application and has a larger number."""
    if known is None or application(known) != application(commit_id):
        return False
    numbers = known.rpartition(":")[2], commit_id.rpartition(":")[2]
    return all(number.isdecimal() for number in numbers) and int(numbers[0]) > int(numbers[1])


def now(seconds: float = 0.0) -> str:
    """The UTC time, some seconds from now, as a sortable ISO 8601 string."""
    at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return at.isoformat(timespec="microseconds")
