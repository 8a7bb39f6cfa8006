"""The record of one commit in the log: author, operation and every step, so that any process can finish it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from parketto.commit.swap import Swap
from parketto.errors import CommitStateUnknown

_FORMAT = "parketto commit, version 1"

#: The folder in the workspace with the files that commits have retired (see `retention.py`).
KEPT = "kept"

#: The outcome of a commit: applied; rolled back; or given up, because its dataset is no longer there.
Outcome = Literal["complete", "undone", "abandoned"]


@dataclass(frozen=True, slots=True)
class Publication:
    """A staged file (path in the workspace), its path in the dataset, and its fingerprint."""

    staged: str
    path: str
    fingerprint: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Retirement:
    """A live file that the commit removes, and where in the workspace it is parked.

    It stays there until the commit is settled or, if the record says so, for a retention time.
    """

    path: str
    fingerprint: str
    parked: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A change by another program that a commit registers: what happened to a data file of the dataset.

    A `moved` file has the fingerprint of a file that is gone: the same rows under another name.
    """

    path: str
    fingerprint: str
    size_bytes: int
    change: Literal["added", "replaced", "moved", "gone"] = "added"


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a commit: user, host, process and program."""

    user: str
    host: str
    process: int
    program: str

    def __str__(self) -> str:
        return f"{self.user}@{self.host}, process {self.process}"


@dataclass(frozen=True, slots=True)
class Record:
    """A commit. It is written once, before the first step, and never changed.

    Attributes:
        id: The id of the attempt. A writer looks for it when it resumes after a stall.
        operation: Such as `compact`.
        root: The dataset, relative to the workspace: still valid when both are moved together.
        dataset: The identities of the dataset, before and after the commit (see `identity.py`).
        sweeps: Names of staging folders of dead writers that this commit removes.
        commit_id: The caller's idempotency key.
        kept_until: Until when the retired files are kept, in seconds since the epoch; None if they are not.
        found: What other programs have done to data files (see `explained_files.py`).
    """

    id: str
    operation: str
    root: str
    dataset: tuple[str, ...]
    publish: tuple[Publication, ...] = ()
    retire: tuple[Retirement, ...] = ()
    swap: Swap | None = None
    sweeps: tuple[str, ...] = ()
    commit_id: str | None = None
    at: str = ""
    duration_seconds: float = 0.0
    engine: str = ""
    author: Author = Author("", "", 0, "")
    arguments: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    kept_until: int | None = None
    found: tuple[FoundFile, ...] = ()

    @property
    def staging(self) -> str:
        """The folder in the workspace with its staged files, and the parked ones if they are not kept."""
        return f"tx-{self.id}"

    @property
    def kept(self) -> str | None:
        """The folder in the workspace that keeps the retired files; None if they are not kept."""
        return posixpath.dirname(self.retire[0].parked) if self.retire and self.kept_until is not None else None

    def to_bytes(self) -> bytes:
        """Serialize as JSON with a checksum."""
        fields = _by_name(self)
        if not self.found:
            del fields["found"]  # earlier versions do not know it
        return sealed({"format": _FORMAT, **fields})

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> Record:
        """Parse a record; a damaged one, or one with paths outside its dataset, is never applied."""
        found = unsealed(content, path)
        if found.pop("format", None) != _FORMAT:
            raise unusable(path, "another version of Parketto wrote it; use that version")
        try:
            swap = found.pop("swap")
            record = cls(
                **found
                | {
                    "dataset": tuple(found["dataset"]),
                    "sweeps": tuple(found["sweeps"]),
                    "publish": tuple(Publication(**each) for each in found["publish"]),
                    "retire": tuple(Retirement(**each) for each in found["retire"]),
                    "author": Author(**found["author"]),
                    "swap": None if swap is None else Swap(**swap),
                    "found": tuple(FoundFile(**each) for each in found.get("found", ())),
                }
            )
            record._check()
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise unusable(path, f"its content is invalid ({error})") from error
        return record

    def _check(self) -> None:
        inside = f"{self.staging}/"
        for path in paths_of((*self.publish, *self.retire, *self.found)):
            check_relative(path)
        for path in (*(new.staged for new in self.publish), *(old.parked for old in self.retire)):
            check_relative(path)
            if not path.startswith(inside) and posixpath.dirname(path) != self.kept:
                raise ValueError(f"{path!r} is outside {inside!r}")
        kept = rf"{KEPT}/[0-9]+-{self.kept_until}-{re.escape(self.id)}"
        if self.kept is not None and not re.fullmatch(kept, self.kept):
            raise ValueError(f"{self.kept!r} is not a folder for its retired files")
        for name in (self.staging, *self.sweeps):
            check_relative(name)
            if "/" in name or not name.startswith("tx-"):
                raise ValueError(f"{name!r} is not a staging folder")
        if self.swap is not None:
            self.swap.check()


def check_relative(path: str) -> None:
    """Refuse a path that is absolute, not normalized, or leads out of its folder."""
    if not path or path.startswith("/") or posixpath.normpath(path) != path:
        raise ValueError(f"{path!r} is not a normalized relative path")
    if ".." in path.split("/") or "\0" in path or path == ".":
        raise ValueError(f"{path!r} leads out of its folder")


def sealed(body: Mapping[str, Any]) -> bytes:
    """Serialize as JSON with a checksum."""
    text = json.dumps(body, sort_keys=True, default=_by_name)
    return f'{{"sha256": "{_checksum(text)}", {text[1:]}'.encode()


def unsealed(content: bytes, path: str) -> dict[str, Any]:
    """Parse what `sealed` wrote; raises CommitStateUnknown if it is damaged."""
    try:
        found: dict[str, Any] = json.loads(content)
        intact = found.pop("sha256") == _checksum(json.dumps(found, sort_keys=True))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unusable(path, "it is damaged") from error
    if not intact:
        raise unusable(path, "its checksum does not match")
    return found


def unusable(path: str, reason: str) -> CommitStateUnknown:
    """The error about a record that cannot be used."""
    return CommitStateUnknown(f"the record {path!r} cannot be used: {reason}. Nothing was changed")


def to_json_value(value: Any) -> Any:
    """A value as JSON types; what JSON cannot represent becomes a string."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): to_json_value(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_json_value(each) for each in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return to_json_value(dataclasses.asdict(value))
        case _:
            return str(value)


def paths_of(steps: Iterable[Publication | Retirement | FoundFile]) -> set[str]:
    """The paths of the steps, in the dataset."""
    return {step.path for step in steps}


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _by_name(record: Any) -> dict[str, Any]:
    """The fields of a record. Unlike `asdict`, it copies nothing: there may be thousands of files."""
    return {name: getattr(record, name) for name in record.__slots__}
