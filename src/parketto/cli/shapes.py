"""Shapes of JSON documents that only the command line has; those of results are in `parketto.results`."""

from __future__ import annotations

from typing import Literal, TypedDict

from parketto.results import MaintenanceAction, MaintenanceLeft


class MaintenanceDocument(TypedDict):
    """What a maintenance run did, why, and what it left."""

    datasets: list[str]
    dry_run: bool
    actions: list[MaintenanceAction]
    left: list[MaintenanceLeft]
    seconds: float


class ColumnDocument(TypedDict):
    """A column of a dataset."""

    name: str
    #: The type in Arrow.
    type: str
    nullable: bool
    #: Whether the folders are named after its values.
    partition: bool


class SchemaDocument(TypedDict):
    """The columns of a dataset."""

    path: str
    columns: list[ColumnDocument]


class ReportDocument(TypedDict):
    """A health report that was written."""

    path: str
    #: Where it is.
    report: str
    bytes: int


class DiffDocument(TypedDict):
    """How many rows differ between two states of a dataset."""

    #: The numbers of the commits.
    start: int
    end: int
    key_columns: list[str] | None
    rows_added: int
    rows_removed: int
    #: 0 without key columns: then a changed row is one that was removed and one that was added.
    rows_changed: int
    #: The files that are not in both states.
    files_compared: int
    bytes_compared: int


class RecoveryDocument(TypedDict):
    """What a recovery did, or would do (`dry_run`)."""

    action: Literal["none", "completed", "rolled back"]
    #: The operation that was interrupted; None if there was none.
    operation: str | None
    files_published: int
    files_retired: int
    #: The interrupted operations of which only staged files were left.
    staging_removed: int
    dry_run: bool


class ErrorDetails(TypedDict):
    """What went wrong."""

    #: The class of the error.
    type: str
    #: One sentence: what is wrong, the state of the dataset, what to do.
    message: str
    exit_code: int


class ErrorDocument(TypedDict):
    """An error, as the last line of stderr."""

    error: ErrorDetails
