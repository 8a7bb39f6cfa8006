"""What a report shows of the log: the last commits, and what operations changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from parketto.commit.history import Commit
from parketto.health.text import percent, size_text

_MAX_COMMITS = 300
_MAX_OPERATIONS = 12


@dataclass(frozen=True)
class Event:
    """A commit on the timeline."""

    number: int
    operation: str
    at: str
    engine: str
    user: str
    published: int
    retired: int

    @property
    def time_text(self) -> str:
        """The time without fractions of seconds."""
        return self.at[:19].replace("T", " ")


def timeline(commits: Sequence[Commit]) -> list[Event]:
    """The last commits, newest first."""
    return [
        Event(
            each["number"],
            str(each["operation"]),
            str(each["at"]),
            str(each["engine"] or ""),
            str(each["user"] or ""),
            each["files_published"] or 0,
            each["files_retired"] or 0,
        )
        for each in commits[:_MAX_COMMITS]
    ]


@dataclass(frozen=True)
class Change:
    """What an operation did to the files of a dataset."""

    number: int
    operation: str
    before: int
    after: int
    #: In bytes; None where the log has none.
    sizes: tuple[int, int] | None
    #: For each clustering column, the share of row groups that a range of 1 % read before and after.
    reads: Mapping[str, tuple[float, float]]

    @property
    def size_texts(self) -> tuple[str, str]:
        """The sizes for a table."""
        return ("", "") if self.sizes is None else (size_text(self.sizes[0]), size_text(self.sizes[1]))

    @property
    def reads_text(self) -> str:
        """The reads for a table."""
        return "; ".join(f"{name}: {percent(old)} → {percent(new)}" for name, (old, new) in self.reads.items())


def before_and_after(commits: Sequence[Commit]) -> list[Change]:
    """The last operations that rewrote files, newest first."""
    return list(islice(_changes(commits), _MAX_OPERATIONS))


def _changes(commits: Sequence[Commit]) -> Iterator[Change]:
    for each in commits:
        found: Mapping[str, Any] = each["statistics"] or {}
        if "before_file_count" in found:
            before, after = found["before_file_count"], found["after_file_count"]
        elif each["files_retired"] and "files_before" in found:
            before = found["files_before"]
            after = before + (each["files_published"] or 0) - each["files_retired"]
        else:
            continue
        sizes = None
        if "before_total_bytes" in found:
            sizes = (found["before_total_bytes"], found["after_total_bytes"])
        reads = {
            name: (pair["before"]["range"], pair["after"]["range"])
            for name, pair in (found.get("expected_reads") or {}).items()
        }
        yield Change(each["number"], str(each["operation"]), before, after, sizes, reads)
