"""The journal record: what a commit is about to do, complete enough for anybody to finish it or undo it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from parketto.commit.swap import Swap
from parketto.errors import CommitStateUnknown

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Publication:
    """A staged file (path in the workspace), its place in the dataset, and what it is known by."""

    staged: str
    path: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Retirement:
    """A live file that the new ones replace, and where in the workspace it is parked meanwhile."""

    path: str
    fingerprint: str
    parked: str


@dataclass(frozen=True, slots=True)
class Journal:
    """One commit. While it says `commit` recovery completes it; once it says `rollback` recovery undoes it."""

    id: str
    operation: str
    #: The dataset, as seen from the workspace.
    root: str
    publish: tuple[Publication, ...]
    retire: tuple[Retirement, ...]
    swaps: tuple[Swap, ...] = ()
    state: Literal["commit", "rollback"] = "commit"

    def to_bytes(self) -> bytes:
        """The record, with a checksum over it."""
        body = json.dumps({"version": _VERSION, **_by_name(self)}, sort_keys=True, default=_by_name)
        return json.dumps({"body": body, "sha256": hashlib.sha256(body.encode()).hexdigest()}).encode()

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> Journal:
        """Read a record back; one that is not whole is never acted upon."""
        try:
            envelope = json.loads(content)
            body = envelope["body"]
            intact = hashlib.sha256(body.encode()).hexdigest() == envelope["sha256"]
            record: dict[str, Any] = json.loads(body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unusable(path, "it is damaged") from error
        if not intact:
            raise _unusable(path, "its checksum does not match")
        if record.pop("version") != _VERSION:
            raise _unusable(path, "another version of Parketto wrote it; use that version to recover")
        return cls(
            id=record["id"],
            operation=record["operation"],
            root=record["root"],
            publish=tuple(Publication(**each) for each in record["publish"]),
            retire=tuple(Retirement(**each) for each in record["retire"]),
            swaps=tuple(Swap(**each) for each in record["swaps"]),
            state=record["state"],
        )


def _by_name(record: Any) -> dict[str, Any]:
    """What a record holds. Unlike `asdict` it copies nothing: there may be thousands of files."""
    return {name: getattr(record, name) for name in record.__slots__}


def _unusable(path: str, reason: str) -> CommitStateUnknown:
    return CommitStateUnknown(f"the journal {path!r} cannot be used: {reason}. Nothing was changed")
