"""What an operation asks a commit for: how the log records it, the changes, and what they rely on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parketto.commit.backup import Backup
from parketto.commit.record import FoundFile
from parketto.planning.naming import Naming
from parketto.runtime.staging import StagedFile
from parketto.storage.store import FileEntry

_LOGGED_CHARACTERS = 10_000  # of an argument that the log keeps


def logged_value(value: Any) -> Any:
    """An argument as the log keeps it: a condition may list 100,000 values."""
    if isinstance(value, str) and len(value) > _LOGGED_CHARACTERS:
        return f"{value[:_LOGGED_CHARACTERS]}… ({len(value):,} characters)"
    return value


@dataclass(frozen=True)
class Request:
    """An operation, as the log records it.

    Attributes:
        operation: Such as `compact`.
        arguments: Its arguments.
        engine: The name of its engine.
        commit_id: The caller's idempotency key.
        retention_seconds: How long the files that it retires are kept.
        ordered: Whether the numbers of an application's commit ids only grow.
    """

    operation: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    engine: str = ""
    commit_id: str | None = None
    retention_seconds: float = 0.0
    ordered: bool = False


#: Gets the data files added since an operation listed the dataset, and a function that describes who added a path;
#: raises CommitConflict if one of them matters to the operation.
CheckAdded = Callable[[Sequence[FileEntry], Callable[[str], str]], None]


@dataclass(frozen=True)
class Change:
    """The changes of a commit, and what they rely on (see `Transaction.commit`)."""

    publish: Sequence[StagedFile]
    retire: Sequence[FileEntry]
    naming: Naming | None = None
    named: Sequence[StagedFile] = ()
    read: Sequence[FileEntry] = ()
    check_added: CheckAdded | None = None
    follows: tuple[str, ...] | None = None
    names_may_exist: bool = False
    statistics: Any = None
    backup: Backup | None = None
    validate: Callable[[], None] | None = None
    found: Sequence[FoundFile] = ()

    @property
    def inputs(self) -> list[FileEntry]:
        """All files that must be unchanged."""
        return list({entry.path: entry for entry in (*self.read, *self.retire)}.values())


class AlreadyCommitted(Exception):
    """The log already contains a commit with this commit_id."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        super().__init__(entry["commit_id"])
        self.entry = entry
