"""The log: one immutable record per commit, numbered, made by one writer only.

    log/
        00000000000000000007.json        what commit 7 does; creating it is the point of no return
        00000000000000000007.undo.json   commit 7 is to be undone (only where that is possible)
        00000000000000000007.done.json   commit 7 is settled: what became of it
        checkpoint-00000000000000000004.json   what is kept of commits 1 to 4

A record is made only when the one before it is done, by its owner or by somebody who helps. So only the last one
can be unsettled. Nobody overwrites a record, and only records that a checkpoint covers are removed.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parketto.commit.record import Outcome, Publication, Record, paths_of, sealed, unsealed
from parketto.storage.store import Store

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(?P<checkpoint>checkpoint-)?(?P<number>[0-9]{20})(?P<kind>\.undo|\.done)?\.json")
_CHECKPOINT_FORMAT = "parketto checkpoint, version 1"

#: Records that are kept when others are folded into a checkpoint; and how many more there are before that happens.
#: With both, the log is one request of an object store's listing.
KEPT_RECORDS = 150
_FOLDED_AT_ONCE = 150
#: Where nobody holds a lock, younger records are never removed: a writer that stalls after it has looked at the
#: log would find their numbers free.
STALL_SECONDS = 3600.0
_REMEMBERED = dt.timedelta(days=30)
_MOST_REMEMBERED = 10_000

# Operations after which none of the files is there that were there before.
_REPLACING = ("overwrite", "repartition")

# Settled commits that this process has read, where a listing shows fingerprints and each read is a request.
_settled: dict[tuple[str, ...], dict[str, Any]] = {}
_MOST_SETTLED = 2_000

#: The operation of a commit that only removes what dead writers have staged.
SWEEP = "sweep"


@dataclass(frozen=True, slots=True)
class View:
    """What a listing of the log shows."""

    last: int = 0
    done: bool = True
    undo: bool = False
    checkpoint: int = 0
    #: Differs after every commit, also where records are removed at once, so that numbers begin anew.
    mark: object = None
    names: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def first(self) -> int:
        """The first commit that has a record of its own."""
        return self.checkpoint + 1


def view_of(names: Mapping[str, str], mark: object = None) -> View:
    """What names in the log, with their fingerprints, say."""
    found = [(match, name) for name in names if (match := _NAME.fullmatch(name))]
    checkpoint = max((int(match["number"]) for match, _ in found if match["checkpoint"]), default=0)
    last = max((int(match["number"]) for match, _ in found if not match["checkpoint"]), default=0)
    last = max(last, checkpoint)
    return View(
        last,
        # A record that somebody has removed by hand cannot be carried out.
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
        """Where a record is."""
        return f"{self.folder}/{_name(number, kind)}"

    def read(self, number: int) -> Record:
        """The record of a commit."""
        path = self.path(number)
        return Record.from_bytes(self._store.read(path), path)

    def create(self, number: int, record: Record) -> None:
        """The point of no return. FileExistsError: somebody else has that number."""
        self._store.create(self.path(number), record.to_bytes())

    def owns(self, number: int, record: Record) -> bool:
        """Whether the record of that number is this one, whatever became of the request that made it."""
        try:
            return self.read(number).id == record.id
        except FileNotFoundError:
            return False

    def decide_undo(self, number: int, reason: str) -> None:
        """From here on the commit is to be undone, by whoever finds it."""
        self._make(self.path(number, ".undo"), {"reason": reason})

    def settle(self, number: int, outcome: Outcome, duration_seconds: float | None = None) -> Outcome:
        """All steps are taken, or all are undone. What became of the commit, if somebody else was first."""
        path = self.path(number, ".done")
        if self._make(path, {"outcome": outcome, "at": now(), "duration_seconds": duration_seconds}):
            return outcome
        try:
            found: Outcome = unsealed(self._store.read(path), path)["outcome"]
        except FileNotFoundError:
            return outcome  # folded since
        return found

    def is_settled(self, number: int) -> bool:
        """Whether somebody has settled a commit that was unsettled a while ago."""
        return self._store.stat(self.path(number, ".done")) is not None

    def _make(self, path: str, content: Mapping[str, Any]) -> bool:
        """Make a record that others may make, too; whether this one is it."""
        try:
            self._store.create(path, sealed(content))
        except FileExistsError:
            logger.debug("%s was made by somebody else", path)
            return False
        return True

    def outcome(self, number: int, view: View) -> Outcome | None:
        """What became of a commit; None as long as it is not settled."""
        if _name(number, ".done") not in view.names:
            return "complete" if number < view.last else None
        path = self.path(number, ".done")
        found: Outcome = unsealed(self._store.read(path), path)["outcome"]
        return found

    def entries(self, view: View, after: int = 0) -> Iterator[dict[str, Any]]:
        """What is known of commits after a number, newest first: records without their files."""
        for number in range(view.last, max(view.checkpoint, after), -1):
            if _name(number) in view.names:  # else somebody has removed it by hand
                yield self._entry(number, view)
        if view.checkpoint > after:
            kept = self._checkpoint(view.checkpoint)
            yield from (entry for entry in reversed(kept) if entry["number"] > after)

    def records(self, view: View, after: int) -> Iterator[tuple[int, Record]]:
        """Commits after a number that have records of their own, oldest first."""
        for number in range(max(view.checkpoint, after) + 1, view.last + 1):
            if _name(number) in view.names:
                yield number, self.read(number)

    def history(self, view: View, identity: Collection[str]) -> Iterator[dict[str, Any]]:
        """The commits of the dataset that is known by this now, newest first; none of an earlier dataset."""
        known = set(identity)
        for entry in self.entries(view):
            if entry["operation"] == SWEEP:
                continue
            if known.isdisjoint(entry["dataset"]):
                return
            known.update(entry["dataset"])
            if entry["outcome"] == "complete":
                yield entry

    def expected(self, view: View, identity: Collection[str]) -> dict[str, Publication]:
        """The files that records have published and not retired since, by their paths in the dataset."""
        files: dict[str, Publication] = {}
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
            files |= {new.path: new for new in record.publish if new.path not in gone}
            gone |= paths_of(record.retire)
            if record.operation in _REPLACING:
                break
        return files

    def find(self, commit_id: str, view: View, identity: Collection[str]) -> dict[str, Any] | None:
        """The commit that a caller gave this name, if it happened."""
        return next((entry for entry in self.history(view, identity) if entry["commit_id"] == commit_id), None)

    def _entry(self, number: int, view: View) -> dict[str, Any]:
        """A settled commit is read once: nobody changes it, and its fingerprint tells it from any other."""
        marks = [view.names.get(_name(number, kind), "") for kind in ("", ".done")]
        known = (self.path(number), *marks)
        if known in _settled:
            return _settled[known]
        entry = self._read_entry(number, view)
        if all(mark and not mark.endswith(":None") for mark in marks):  # else the listing tells no versions
            if len(_settled) >= _MOST_SETTLED:
                _settled.clear()
            _settled[known] = entry
        return entry

    def _read_entry(self, number: int, view: View) -> dict[str, Any]:
        record = self.read(number)
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
            "dataset": list(record.dataset),
            "outcome": self.outcome(number, view),
        }

    def _checkpoint(self, number: int) -> list[dict[str, Any]]:
        path = f"{self.folder}/checkpoint-{_name(number)}"
        kept: list[dict[str, Any]] = unsealed(self._store.read(path), path)["commits"]
        return kept

    def _is_old(self, number: int) -> bool:
        """Whether nobody can still be about to make the record of a number: then it is worth reading all."""
        try:
            return self.read(number).at < now(-STALL_SECONDS)
        except FileNotFoundError:
            return True  # somebody has removed it by hand

    @staticmethod
    def is_long(records: int, keep: int) -> bool:
        """Whether there are enough records to fold some."""
        return records - keep >= (_FOLDED_AT_ONCE if keep else 1)

    def fold(self, view: View, keep: int = KEPT_RECORDS, *, alone: bool) -> bool:
        """Keep what matters of old commits in a checkpoint, and remove their records; False if nothing was folded.

        Args:
            view: The log as it is.
            keep: How many of the last commits keep a record of their own.
            alone: The caller holds a lock, so that nobody else can be about to make a record.
        """
        # Where nobody is kept out the last record stays: nobody must find another one of its number unsettled.
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
        # A writer that stalls looks for its own commit when it comes back, whether or not a history is wanted.
        commits = remembered(folded, identified_only=alone and keep == 0)
        if commits or not alone:
            path = f"{self.folder}/checkpoint-{_name(line)}"
            self._make(path, {"format": _CHECKPOINT_FORMAT, "commits": commits})
        gone = [match for name in view.names if (match := _NAME.fullmatch(name)) and int(match["number"]) <= line]
        # A record without its outcome would be carried out again, so records go first.
        records = [match for match in gone if not match["checkpoint"] and not match["kind"]]
        for matches in (records, [match for match in gone if match not in records]):
            self._store.remove_many([f"{self.folder}/{match[0]}" for match in matches])
        return True


def remembered(entries: Iterable[Mapping[str, Any]], *, identified_only: bool) -> list[Mapping[str, Any]]:
    """Of old commits: those of the last 30 days, and the last one of each application, whenever it was."""
    known = list(entries)
    last_of = {
        application(entry["commit_id"]): entry["number"] for entry in known if entry["commit_id"] is not None
    }
    since = now(-_REMEMBERED.total_seconds())

    def is_kept(at: int, entry: Mapping[str, Any]) -> bool:
        recent = entry["at"] >= since and at >= len(known) - _MOST_REMEMBERED
        if entry["commit_id"] is None:
            return recent and not identified_only
        return bool(recent or last_of[application(entry["commit_id"])] == entry["number"])

    return _linked([(entry, is_kept(at, entry)) for at, entry in enumerate(known)])


def _linked(entries: Sequence[tuple[Mapping[str, Any], bool]]) -> list[Mapping[str, Any]]:
    """The commits to keep. A dataset's identity may change with each commit, so what others said of it stays."""
    kept: list[Mapping[str, Any]] = []
    newest: list[str] = []
    dropped: set[str] = set()  # what the dataset was known by, after the last one that is kept
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
    """Whose piece of work it is: what stands before the last colon.

    >>> application("orders-stream:17"), application("17")
    ('orders-stream', '')
    """
    return commit_id.rpartition(":")[0]


def now(seconds: float = 0.0) -> str:
    """The time, so many seconds from now, as records have it: texts of it sort."""
    at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return at.isoformat(timespec="microseconds")
