"""One commit as the log keeps it: who did what, and every step, complete enough for anybody to finish it."""

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

#: What became of a commit: all of it happened; none of it; or it belongs to a dataset that is not there any more.
Outcome = Literal["complete", "undone", "abandoned"]


@dataclass(frozen=True, slots=True)
class Publication:
    """A staged file (path in the workspace), its place in the dataset, and what it is known by."""

    staged: str
    path: str
    fingerprint: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Retirement:
    """A live file that the new ones replace, and where in the workspace it is parked meanwhile."""

    path: str
    fingerprint: str
    parked: str


@dataclass(frozen=True, slots=True)
class Author:
    """Who commits: the user, the machine, the process and the program."""

    user: str
    host: str
    process: int
    program: str

    def __str__(self) -> str:
        return f"{self.user}@{self.host}, process {self.process}"


@dataclass(frozen=True, slots=True)
class Record:
    """A commit. It is written once, before its first step, and never changed.

    Attributes:
        id: The name of the attempt. A writer that comes back after a stall looks for it.
        operation: Such as `compact`.
        root: The dataset, as seen from the workspace: still true when both are moved together.
        dataset: What the dataset is known by, before the commit and after it (see `identity.py`).
        sweeps: Names of staging folders of dead writers that this commit removes.
        commit_id: What the caller calls this piece of work.
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
        """The folder in the workspace that has what it stages and parks."""
        return f"tx-{self.id}"

    def to_bytes(self) -> bytes:
        """As it is stored: JSON with a checksum."""
        return sealed({"format": _FORMAT, **_by_name(self)})

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> Record:
        """Read a record back; one that is not whole, or leads out of its dataset, is never acted upon."""
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
            raise unusable(path, f"it makes no sense ({error})") from error
        return record

    def _check(self) -> None:
        inside = f"{self.staging}/"
        for path in (*(new.path for new in self.publish), *(old.path for old in self.retire)):
            check_relative(path)
        for path in (*(new.staged for new in self.publish), *(old.parked for old in self.retire)):
            check_relative(path)
            if not path.startswith(inside):
                raise ValueError(f"{path!r} is outside of {inside!r}")
        for name in (self.staging, *self.sweeps):
            check_relative(name)
            if "/" in name or not name.startswith("tx-"):
                raise ValueError(f"{name!r} is no staging folder")
        if self.swap is not None:
            self.swap.check()


def check_relative(path: str) -> None:
    """Refuse a path that is absolute, leads upwards, or has two ways to be written."""
    if not path or path.startswith("/") or posixpath.normpath(path) != path:
        raise ValueError(f"{path!r} is no plain relative path")
    if ".." in path.split("/") or "\0" in path or path == ".":
        raise ValueError(f"{path!r} leads out of its folder")


def sealed(body: Mapping[str, Any]) -> bytes:
    """JSON with a checksum over it."""
    text = json.dumps(body, sort_keys=True, default=_by_name)
    return f'{{"sha256": "{_checksum(text)}", {text[1:]}'.encode()


def unsealed(content: bytes, path: str) -> dict[str, Any]:
    """What was sealed; anything else raises CommitStateUnknown."""
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


def plain(value: Any) -> Any:
    """A value as JSON can hold it; what it cannot is named, long lists are counted."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return plain(dataclasses.asdict(value))
        case _:
            return str(value)


def paths_of(steps: Iterable[Publication | Retirement]) -> set[str]:
    """The paths in the dataset that some steps are about."""
    return {step.path for step in steps}


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _by_name(record: Any) -> dict[str, Any]:
    """What a record holds. Unlike `asdict` it copies nothing: there may be thousands of files."""
    return {name: getattr(record, name) for name in record.__slots__}
