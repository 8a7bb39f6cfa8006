"""The record of one commit in the log: author, operation and every step, so that any process can finish it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from parketto.commit.swap import Swap
from parketto.errors import CommitStateUnknown

_FORMAT = "parketto commit, version 1"

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
    """A live file that the commit removes, and where in the workspace it is parked until the commit is settled."""

    path: str
    fingerprint: str
    parked: str


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

    @property
    def staging(self) -> str:
        """The folder in the workspace with its staged and parked files."""
        return f"tx-{self.id}"

    def to_bytes(self) -> bytes:
        """Serialize as JSON with a checksum."""
        return sealed({"format": _FORMAT, **_by_name(self)})

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
                }
            )
            record._check()
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise unusable(path, f"its content is invalid ({error})") from error
        return record

    def _check(self) -> None:
        inside = f"{self.staging}/"
        for path in (*(new.path for new in self.publish), *(old.path for old in self.retire)):
            check_relative(path)
        for path in (*(new.staged for new in self.publish), *(old.parked for old in self.retire)):
            check_relative(path)
            if not path.startswith(inside):
                raise ValueError(f"{path!r} is outside {inside!r}")
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


def paths_of(steps: Iterable[Publication | Retirement]) -> set[str]:
    """The paths of the steps, in the dataset."""
    return {step.path for step in steps}


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _by_name(record: Any) -> dict[str, Any]:
    """The fields of a record. Unlike `asdict`, it copies nothing: there may be thousands of files."""
    return {name: getattr(record, name) for name in record.__slots__}
