"""All exceptions. Each also inherits from the builtin exception that callers expect to catch."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable, Mapping
from typing import Any

_EXAMPLE_CHARACTERS = 500  # of a row, in messages


class ParkettoError(Exception):
    """The base class of all errors that Parketto raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes send errors back pickled, whatever the signatures of their constructors.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[ParkettoError], args: tuple[Any, ...], state: dict[str, Any]) -> ParkettoError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidArgument(ParkettoError, ValueError):
    """An argument is invalid; raised before any data is read."""


class EngineUnavailable(ParkettoError, ImportError):
    """An engine cannot run: its library, or a dependency of it, is missing. Names what to install."""


class AuthenticationFailed(ParkettoError, PermissionError):
    """A storage service got no valid credentials. Names what to pass."""


class AccessDenied(ParkettoError, PermissionError):
    """The credentials do not allow a storage operation. Names the denied operation."""


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
        location = f" {where}" if where else ""
        super().__init__(
            f"{what} not found{location}: {quoted(self.missing)}; available columns: {quoted(self.available)}"
        )


class IncompatibleTypes(ParkettoError, TypeError):
    """Values have a different type than required; raised before anything is changed."""


class TransformFailed(ParkettoError, ValueError):
    """A user function failed, or its result does not fit the expected schema. Nothing was changed."""


class ExpectationFailed(ParkettoError, ValueError):
    """Rows break expectations. Nothing was changed.

    `counts` has the number of rows that break each rule, and `examples` one of them, by the names of the rules.
    """

    def __init__(
        self,
        rows: int,
        violating: int,
        counts: Mapping[str, int],
        examples: Mapping[str, Mapping[str, Any] | None],
    ) -> None:
        self.rows, self.violating, self.counts = rows, violating, dict(counts)
        self.examples = {name: row for name, row in examples.items() if row is not None}
        broken = "; ".join(
            f"{name!r} by {counts[name]:,} row{'' if counts[name] == 1 else 's'}, for example {shortened_row(row)}"
            for name, row in self.examples.items()
        )
        super().__init__(
            f"{violating:,} of {rows:,} rows break expectations (NULL breaks them, too): {broken}. Correct these "
            "rows, or pass on_violation='drop' or 'quarantine'. Nothing was changed"
        )


def shortened_row(row: Mapping[str, Any]) -> str:
    """A row as text for a message.

    >>> shortened_row({"id": 7, "name": "a", "day": dt.date(2026, 11, 2)})
    "{'id': 7, 'name': 'a', 'day': 2026-11-02}"
    """
    texts = (dt.date, dt.time, dt.timedelta, decimal.Decimal)  # their repr is Python code
    values = (f"{name!r}: {value if isinstance(value, texts) else repr(value)}" for name, value in row.items())
    shown = f"{{{', '.join(values)}}}"
    return shown if len(shown) <= _EXAMPLE_CHARACTERS else f"{shown[:_EXAMPLE_CHARACTERS]}…"


class DatasetNotFound(ParkettoError, FileNotFoundError):
    """There is no dataset at the path, or none of its files match the partition filter."""


class SourceNotFound(ParkettoError, FileNotFoundError):
    """No file matches the path or pattern to read from."""


class BucketNotFound(ParkettoError, FileNotFoundError):
    """The bucket does not exist. Buckets are never created."""


class NotADataset(ParkettoError, NotADirectoryError):
    """The path is a file; a dataset is a directory."""


class NotPlainParquet(ParkettoError, ValueError):
    """The directory belongs to a table format; changing files would invalidate its metadata."""


class UnreadableFile(ParkettoError, ValueError):
    """A file of the dataset cannot be read as Parquet. Nothing was changed.

    `path` is the file, `column` the damaged column if known, and `reason` what is wrong.
    """

    def __init__(self, path: str, reason: object, column: str | None = None) -> None:
        self.path, self.column = path, column
        self.reason = " ".join(str(reason).split()).rstrip(".")
        super().__init__(
            f"cannot read {path!r} as Parquet: {self.reason}. Nothing was changed; repair the file or move it out "
            "of the dataset"
        )


class FooterError(ParkettoError, ValueError):
    """A Parquet footer is damaged, or row groups cannot be copied without encoding. Nothing was changed."""


class OutOfMemory(MemoryError, ParkettoError):  # in this order, or unpickling fails
    """A task ran out of memory. `enough_mb` is the memory that would suffice; nothing was changed."""

    def __init__(self, message: str, enough_mb: int) -> None:
        self.enough_mb = enough_mb
        super().__init__(message)


class OperationCancelled(ParkettoError):
    """The operation was cancelled, or its Spark session stopped, before the commit. Nothing was changed."""


class UntrustedWorkspace(ParkettoError, PermissionError):
    """Another user may have written the workspace directory of a dataset. Nothing in it is used."""


class CommitError(ParkettoError):
    """An operation could not be committed. The subclass defines the state of the dataset."""


class CommitFailed(CommitError):
    """The commit did not happen: the dataset is unchanged."""


class CommitConflict(CommitFailed):
    """Another writer changed files that this operation had read. Its changes are kept; run the operation again."""

    @classmethod
    def over(cls, path: str, *, gone: bool, who: str = "") -> CommitConflict:
        """The conflict over a file that was changed or removed; `who` describes the other commit."""
        return cls(
            f"{path!r} {'is gone' if gone else 'has changed'} since this operation read it: "
            f"{who or 'another writer is changing the dataset'}. Those changes are kept and nothing of this "
            "operation was published; run it again"
        )

    @classmethod
    def because_of(cls, path: str, *, operation: str, matters: str, who: str = "") -> CommitConflict:
        """The conflict over a file that was added concurrently; `who` describes the other commit."""
        author = f"by {who}, " if who else ""
        return cls(
            f"{path!r} was added {author}while this {operation} ran, and {matters}. That file is kept and nothing "
            f"of this {operation} was published; run it again, or use isolation='snapshot'"
        )


class CannotUndo(CommitFailed):
    """A commit cannot be undone, or a state not be restored. Names the reason; nothing was changed."""


class StateUnavailable(ParkettoError, LookupError):
    """An earlier state of a dataset cannot be read. Names the reason, and the states that can be."""


class StreamStopped(ParkettoError, RuntimeError):
    """A stream cannot continue without losing or repeating rows. Names the commit, and the choices."""


class LockTimeout(CommitFailed, TimeoutError):
    """Another process held the commit lock of the dataset for too long."""


class CommitStateUnknown(CommitError):
    """The commit is in the log but only partly applied: the next operation or `recover` finishes it."""


def quoted(names: Iterable[object]) -> str:
    """The names as a readable list: `'a', 'b'`, or `none`."""
    return ", ".join(repr(name) for name in names) or "none"
