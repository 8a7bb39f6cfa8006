"""Paths of the files that an operation stages before the commit publishes them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A new file: the path it is written to, and the path to which the commit moves it."""

    path: str
    destination: str


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging directory of an operation. Only the commit moves files from it into the dataset.

    `local` is the same directory as a local path, if it is on the local disk.
    """

    directory: str
    local: str | None = None
    #: The task attempt that writes here, where tasks may be retried.
    attempt: str = ""

    def new_file(self, directory: str, name: str) -> StagedFile:
        """The paths of a new file in a directory of the dataset; for its name, see `unique_names`."""
        attempt = f".{self.attempt}" if self.attempt else ""
        return StagedFile(f"{self.directory}/new/{name}{attempt}.staged", f"{directory}/{name}")

    def of_attempt(self, path: str) -> str:
        """A path of this task attempt alone: another attempt at the same task may still write to its own."""
        return f"{path}.{self.attempt}" if self.attempt else path

    def restored_file(self, number: int, directory: str, name: str) -> StagedFile:
        """The paths of a file that is restored under its own name."""
        return StagedFile(f"{self.directory}/new/{number}.staged", f"{directory}/{name}")

    def spool_path(self, name: str) -> str:
        """A path for rows that several tasks read; it is deleted when the operation ends."""
        return f"{self.directory}/spool/{name}"


def unique_names(prefix: str) -> Iterator[str]:
    """Globally unique file names, which sort in the order in which they are generated."""
    token = uuid.uuid4().hex
    return (f"{prefix}-{token}-{number:05d}.parquet" for number in count())
