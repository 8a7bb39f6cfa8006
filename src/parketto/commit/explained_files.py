"""Explained files: the data files that commits have published or found, and that no commit has retired since.

All other files in a listing were added by other programs. Readers of streams register them by commits of their own
(`operations/found_files.py`), so that the number of a commit says which files there were, to all readers.

- A `baseline` starts that: it registers all files, because earlier records may be folded.
- From then on, `found` registers what other programs have changed since the commit before.
- A commit may retire a file that was not registered yet. Then its own record shows that the file was there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parketto.commit.record import FoundFile, Record
from parketto.storage.store import FileEntry

#: Operations of commits that only register files.
BASELINE = "baseline"
FOUND = "found"


@dataclass(frozen=True, slots=True)
class ExplainedFile:
    """A file as the log describes it. The fingerprint of a published copy is not known (None)."""

    fingerprint: str | None
    size_bytes: int

    def is_same(self, entry: FileEntry) -> bool:
        """Whether a listed file of the same path can be this one."""
        return entry.size_bytes == self.size_bytes and self.fingerprint in (None, entry.fingerprint)


@dataclass
class ExplainedFiles:
    """The explained files after a commit, by their paths in the dataset.

    Attributes:
        number: The commit.
        tracked: Whether these are all files: there was a baseline.
        dataset: The identities of the dataset then.
        since: The first known commit of this dataset: earlier ones belong to another one, or are folded.
        revealed: For commits that have retired files which were not registered: these files.
    """

    number: int = 0
    tracked: bool = False
    dataset: frozenset[str] = frozenset()
    since: int = 1
    files: dict[str, ExplainedFile] = field(default_factory=dict)
    revealed: dict[int, list[FoundFile]] = field(default_factory=dict, compare=False)

    def apply(self, number: int, record: Record, *, moves: bool) -> None:
        """Bring the files to the state after a complete commit.

        Args:
            number: The number of the commit.
            record: Its record.
            moves: Whether files are published by moves, so that they keep their fingerprints.
        """
        self.number = number
        if not record.dataset:
            return  # a sweep
        if self.dataset.isdisjoint(record.dataset):  # another dataset is at the path, or this is the first commit
            self.tracked, self.since, self.files = False, number, {}
        self.dataset = frozenset(record.dataset)
        if record.operation == BASELINE:
            self.tracked, self.files = True, {}
        if self.tracked and (found := self._unregistered(record, moves=moves)):
            self.revealed[number] = found
        for old in record.retire:
            self.files.pop(old.path, None)
        for new in record.publish:
            self.files[new.path] = ExplainedFile(new.fingerprint if moves else None, new.size_bytes)
        for file in record.found:
            if file.change == "gone":
                self.files.pop(file.path, None)
            else:
                self.files[file.path] = ExplainedFile(file.fingerprint, file.size_bytes)

    def _unregistered(self, record: Record, *, moves: bool) -> list[FoundFile]:
        """The retired files that no earlier commit explains."""
        found = [
            old
            for old in record.retire
            if (known := self.files.get(old.path)) is None
            or not known.is_same(FileEntry(old.path, old.size_bytes, old.fingerprint))
        ]
        marks = {file.fingerprint for file in self.files.values()} if found and moves else set()
        return [
            FoundFile(
                old.path,
                old.fingerprint,
                old.size_bytes,
                "replaced" if old.path in self.files else "moved" if old.fingerprint in marks else "added",
            )
            for old in found
        ]

    def to_json(self) -> dict[str, Any]:
        """The state, for a checkpoint."""
        files = [[path, file.fingerprint, file.size_bytes] for path, file in sorted(self.files.items())]
        return {
            "number": self.number,
            "tracked": self.tracked,
            "dataset": sorted(self.dataset),
            "since": self.since,
            "files": files,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ExplainedFiles:
        """The state from a checkpoint."""
        files = {path: ExplainedFile(fingerprint, size) for path, fingerprint, size in content["files"]}
        return cls(**{**content, "dataset": frozenset(content["dataset"]), "files": files})
