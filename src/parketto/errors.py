"""What can go wrong, by name. Each error is also the builtin that callers expect to catch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class ParkettoError(Exception):
    """The base of every error that Parketto raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors come back from other processes, whatever their constructors ask for.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[ParkettoError], args: tuple[Any, ...], state: dict[str, Any]) -> ParkettoError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidArgument(ParkettoError, ValueError):
    """An argument that cannot be right; raised before any data is read."""


class EngineUnavailable(ParkettoError, ImportError):
    """An engine cannot run here: its library, or something the library needs, is missing. Says what to install."""


class AuthenticationFailed(ParkettoError, PermissionError):
    """A storage service was not given credentials that it takes. Says what to pass."""


class AccessDenied(ParkettoError, PermissionError):
    """A storage service knows the credentials and does not allow them this. Says what was not allowed."""


class ColumnNotFound(InvalidArgument):
    """A named column is not in the dataset.

    >>> raise ColumnNotFound(["usr"], ["user", "day"])
    Traceback (most recent call last):
        ...
    parketto.errors.ColumnNotFound: columns not found: 'usr'; available columns: 'user', 'day'
    """

    def __init__(
        self, missing: Iterable[str], available: Iterable[str], what: str = "columns", where: str = ""
    ) -> None:
        self.missing = list(missing)
        self.available = list(available)
        place = f" {where}" if where else ""
        super().__init__(
            f"{what} not found{place}: {quoted(self.missing)}; available columns: {quoted(self.available)}"
        )


class IncompatibleTypes(ParkettoError, TypeError):
    """Values of one type were given where another is needed; raised before anything is changed."""


class TransformFailed(ParkettoError, ValueError):
    """A function that a caller gave for the rows failed, or what it returned does not fit. Nothing was changed."""


class DatasetNotFound(ParkettoError, FileNotFoundError):
    """There is no dataset at the path, or no file of it matches the partition filter."""


class BucketNotFound(ParkettoError, FileNotFoundError):
    """There is no such bucket. Buckets are never created."""


class NotADataset(ParkettoError, NotADirectoryError):
    """The path is a file; a dataset is a directory."""


class NotPlainParquet(ParkettoError, ValueError):
    """The directory belongs to a table format, whose log would no longer be true if files changed."""


class UnreadableFile(ParkettoError, ValueError):
    """A file of the dataset cannot be read as Parquet. Nothing was touched.

    `path` names the file, `column` the damaged column where that is known, and `reason` says what is wrong.
    """

    def __init__(self, path: str, reason: object, column: str | None = None) -> None:
        self.path, self.column = path, column
        self.reason = " ".join(str(reason).split()).rstrip(".")
        super().__init__(
            f"cannot read {path!r} as Parquet: {self.reason}. Nothing was changed; repair the file or move it away"
        )


class FooterError(ParkettoError, ValueError):
    """A Parquet footer is damaged, or row groups cannot be copied as they are. Says why; nothing was changed."""


class OutOfMemory(MemoryError, ParkettoError):  # in this order, or Python cannot make one out of a pickle
    """A task has too little memory. Says what would be enough; nothing was changed."""

    def __init__(self, message: str, enough_mb: int) -> None:
        self.enough_mb = enough_mb
        super().__init__(message)


class OperationCancelled(ParkettoError):
    """The operation was cancelled, or its Spark session was stopped, before the commit. Nothing was changed."""


class UntrustedWorkspace(ParkettoError, PermissionError):
    """The folder beside a dataset may have been prepared by a stranger. Nothing in it is acted upon."""


class CommitError(ParkettoError):
    """An operation could not be committed. The subclasses say what that means for the dataset."""


class CommitFailed(CommitError):
    """The commit did not happen: the dataset is exactly as it was."""


class CommitConflict(CommitFailed):
    """Somebody else changed the files that this operation had read. Their work stands; run it again."""

    @classmethod
    def over(cls, path: str, *, gone: bool, who: str = "") -> CommitConflict:
        """The conflict over one file, and who was in the way."""
        return cls(
            f"{path!r} {'is gone' if gone else 'has changed'} since this operation read it: "
            f"{who or 'somebody else is working on the dataset'}. Their work stands and nothing of this one was "
            "published; run it again"
        )

    @classmethod
    def because_of(cls, path: str, *, operation: str, matters: str, who: str = "") -> CommitConflict:
        """The conflict over a file that has appeared meanwhile, why it matters, and who has added it."""
        by = f"by {who}, " if who else ""
        return cls(
            f"{path!r} was added {by}while this {operation} ran, and {matters}. That work stands and nothing of "
            "this one was published; run it again, or ask for isolation='snapshot'"
        )


class LockTimeout(CommitFailed, TimeoutError):
    """Another process has been committing to the dataset for too long."""


class CommitStateUnknown(CommitError):
    """The commit is in the log but not all of it is done: the next operation or `recover` finishes it."""


def quoted(names: Iterable[object]) -> str:
    """The names as a readable list: `'a', 'b'`, or `none`."""
    return ", ".join(repr(name) for name in names) or "none"
