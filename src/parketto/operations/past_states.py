"""Earlier states of a dataset: which commit a number or a time means, and the files that there were after it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from parketto.commit.identity import identity_of
from parketto.commit.log import LogView
from parketto.commit.past import Commits, PastFiles, files_after, past_files
from parketto.commit.record import Retirement
from parketto.commit.retention import KeptFiles, unix_time
from parketto.commit.settled import Listing
from parketto.errors import DatasetNotFound, InvalidArgument, ParkettoError, StateUnavailable
from parketto.operations.context import DatasetContext, PastState
from parketto.operations.found_files import FileRegistry
from parketto.storage.hive import is_data_path
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry

#: A state: the number of a commit, or a time.
StateLike = int | str | dt.datetime
_SHOWN_RANGES = 5  # of readable states that an error message lists


@dataclass(frozen=True)
class LoggedFiles:
    """The current files of a dataset, and the commits that led to them.

    Attributes:
        current: The data files, by path relative to the dataset.
        names: The paths of all files.
        kept: Where retired files are, by relative path and fingerprint.
    """

    commits: Commits
    current: Mapping[str, FileEntry]
    names: frozenset[str]
    kept: Mapping[tuple[str, str], FileEntry]

    @classmethod
    def of(cls, dataset: DatasetContext, list_files: Callable[[], Listing] | None = None) -> LoggedFiles:
        """What the log of a dataset says, at a moment between two commits."""
        listing = FileRegistry(dataset).listing(list_files)
        commits = commits_of(dataset, listing.number)
        everything = {relative(entry.path, dataset.root): entry for entry in listing.everything}
        current = {path: entry for path, entry in everything.items() if is_data_path(path)}
        kept = KeptFiles(dataset.store, dataset.workspace.path).places()
        return cls(commits, current, frozenset(everything), kept)

    def is_kept(self, old: Retirement) -> bool:
        """Whether a retired file is still kept."""
        return (old.path, old.fingerprint) in self.kept

    def why_not_kept(self, number: int, old: Retirement) -> str:
        """Why a file that a commit has retired is not kept."""
        until = self.commits.records[number].kept_until
        what = f"{old.path!r}, which {self.commits.describe(number)} replaced"
        if until is None:
            return f"{what}, was not kept (retention=0, or a delete with purge=True)"
        if unix_time() < until:
            return f"{what}, is no longer kept: a vacuum or a purge removed it"
        return (
            f"{what}, is no longer kept: its time ended at {dt.datetime.fromtimestamp(until, dt.UTC).isoformat()}"
        )

    def after(self, number: int) -> PastFiles:
        """The files after a commit, which are all there or kept.

        Raises:
            StateUnavailable: Some are not.
        """
        found = files_after(self.commits, number, self.current)
        for at, old in found.retired.values():
            if not self.is_kept(old):
                raise self._unavailable(f"the state after commit {number}: {self.why_not_kept(at, old)}")
        return found

    def _readable(self) -> list[int]:
        """The commits after which all files are known and kept, the last one first."""
        return [
            past.number
            for past in past_files(self.commits, self.current, self.commits.after)
            if all(self.is_kept(old) for _, old in past.retired.values())
        ]

    def number_at(self, state: Any) -> int:
        """The commit that a number or a time means.

        Raises:
            InvalidArgument: It is neither.
            StateUnavailable: It is not in the log.
        """
        first, last = self.commits.after, self.commits.last
        if isinstance(state, int) and not isinstance(state, bool):
            if not first <= state <= last:
                raise self._unavailable(f"the state after commit {state}: the log leads from {first} to {last}")
            return state
        time = _time(state)
        before = [number for number in self.commits.numbers if self.commits.records[number].at <= time]
        if not before:
            raise self._unavailable(f"the state at {time}: the log has no commit up to that time")
        return before[-1]

    def _unavailable(self, what: str) -> StateUnavailable:
        numbers = self._readable()
        times = (
            f", since {self.commits.records[numbers[-1]].at}"
            if numbers and numbers[-1] in self.commits.records
            else ""
        )
        plural = "" if len(numbers) == 1 else "s"
        return StateUnavailable(
            f"there is no way back to {what}. You can read the state{plural} after commit{plural} "
            f"{_ranges(reversed(numbers))}{times}"
        )


def commits_of(dataset: DatasetContext, until: int | None = None) -> Commits:
    """The commits of a dataset whose records are in the log, up to a number."""
    workspace = dataset.workspace
    identity = identity_of(dataset.store, dataset.root)

    def read(view: LogView) -> Commits:
        records, after = workspace.log.complete(view, identity)
        last = view.last if until is None else until
        # If records were folded since, the state after `until` is all that is known.
        known = {number: record for number, record in records.items() if number <= last}
        return Commits(known, min(after, last), last)

    return workspace.read_log(read)


def refuse_without_history(dataset: DatasetContext, what: str, error: type[ParkettoError]) -> None:
    """Raise if the dataset keeps no log of its commits."""
    if not dataset.workspace.keeps_history:
        raise error(
            f"{what} of {dataset.root!r} needs its log, but history='off' and partitions that are opened as "
            "datasets keep none; use history='on' and the path of the whole dataset. Nothing was changed"
        )


def context_at(dataset: DatasetContext, state: StateLike | None) -> DatasetContext:
    """The dataset as it was in a state, for reading; None is the current one."""
    return dataset if state is None else replace(dataset, past=past_state(dataset, state))


def past_state(dataset: DatasetContext, state: StateLike) -> PastState:
    """The files of a state, to read them.

    Raises:
        DatasetNotFound: There were no data files.
        StateUnavailable: Files of the state are not kept any more, or the log does not lead there.
    """
    refuse_without_history(dataset, "an earlier state", StateUnavailable)
    logged = LoggedFiles.of(dataset)
    found = state_of(dataset, logged, logged.number_at(state))
    if not found.files:
        raise DatasetNotFound(f"{dataset.root!r} had no data files after commit {found.number}")
    return found


def state_of(dataset: DatasetContext, logged: LoggedFiles, number: int) -> PastState:
    """The files after a commit."""
    past = logged.after(number)
    retired = {
        (f"{dataset.root}/{path}", old.fingerprint): (old, logged.kept[old.path, old.fingerprint])
        for path, (_, old) in past.retired.items()
    }
    files = [
        *past.present.values(),
        *(FileEntry(path, old.size_bytes, mark) for (path, mark), (old, _) in retired.items()),
    ]
    return PastState(number, files, {known: place for known, (_, place) in retired.items()})


def _time(state: Any) -> str:
    """A time in the form of the log."""
    moment = state
    if isinstance(state, str):
        try:
            moment = dt.datetime.fromisoformat(state)
        except ValueError:
            moment = None
    if not isinstance(moment, dt.datetime):
        raise InvalidArgument(
            f"a state is the number of a commit, a datetime, or a time as ISO text such as "
            f"'2026-11-18T12:00:00+00:00', got {state!r}"
        )
    # Without a zone it is UTC, like the times of `history()`.
    moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)
    return moment.isoformat(timespec="microseconds")


def _ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers, as text.

    >>> _ranges([1, 2, 3, 7])
    '1 to 3 and 7'
    """
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    shown = [" to ".join(map(str, each)) for each in found[-_SHOWN_RANGES:]]
    *others, last = ["…", *shown] if len(found) > _SHOWN_RANGES else shown
    return f"{', '.join(others)} and {last}" if others else last
