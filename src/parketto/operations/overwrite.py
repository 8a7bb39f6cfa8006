"""Overwrite partitions: the files of every partition that occurs in the new rows are replaced, no others."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from parketto.errors import InvalidArgument, quoted
from parketto.operations.context import DatasetContext
from parketto.parquet.decoded_types import decoded_type
from parketto.parquet.output import Output, Written
from parketto.parquet.partitions import segments
from parketto.parquet.snapshot import read_snapshot
from parketto.storage.hive import partition_values
from parketto.storage.listing import directory_of, relative
from parketto.storage.store import FileEntry

# Raised where a folder name is not a value of the column's type; the name itself is the value then.
_UNREADABLE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError)


@dataclass(frozen=True)
class ExistingPartitions:
    """The data files of a dataset, by the folder to which a write would add rows of the same partition.

    That folder may differ from the one that contains the files: `day=01` contains rows of `day=1` if days are
    numbers.
    """

    files: Mapping[str, Sequence[FileEntry]]
    #: Whether there is any data file, in a partition or not.
    exist: bool

    @classmethod
    def of(cls, dataset: DatasetContext, existing: Sequence[FileEntry], output: Output) -> ExistingPartitions:
        """Group the files. Those beside the partitions are ignored if they are empty, and refused otherwise."""
        columns = output.partition_by
        types = [decoded_type(output.row_schema.field(name).type) for name in columns]
        found: defaultdict[str, list[FileEntry]] = defaultdict(list)
        beside = []
        for entry in existing:
            values = partition_values(directory_of(entry, dataset.root))
            if tuple(name for name, _ in values) == columns:
                texts = [text for _, text in values]
                found[segments(columns, list(map(_value, texts, types)))].append(entry)
            else:
                beside.append(entry)
        _refuse_rows(dataset, beside, columns)
        return cls(found, bool(existing))

    def among(self, folders: Iterable[str]) -> list[FileEntry]:
        """The files of some partitions."""
        return [entry for folder in sorted(set(folders)) for entry in self.files.get(folder, ())]


def check_partitioned(output: Output, existing: Sequence[FileEntry]) -> None:
    """Refuse to overwrite the partitions of a dataset that has none."""
    if output.partition_by:
        return
    if existing:
        raise InvalidArgument(
            "mode='overwrite_partitions' replaces whole partitions, but the dataset is not partitioned; use "
            "mode='overwrite' to replace all rows, or repartition the dataset first. Nothing was changed"
        )
    raise InvalidArgument(
        "mode='overwrite_partitions' needs partition_by, because the dataset does not exist yet; nothing was "
        "written"
    )


def written_folders(root: str, written: Written) -> set[str]:
    """The folders, relative to the dataset, to which rows were written."""
    return {posixpath.dirname(relative(file.destination, root)) for file in written.staged}


def _value(text: str | None, kind: pa.DataType) -> object:
    """The value of a folder name."""
    if text is None:
        return None
    try:
        return pa.scalar(text, pa.string()).cast(kind).as_py()
    except _UNREADABLE:
        return text


def _refuse_rows(dataset: DatasetContext, beside: Sequence[FileEntry], columns: tuple[str, ...]) -> None:
    """Refuse files outside of the partitions, which may contain rows of any partition."""
    for file in read_snapshot(dataset.store, dataset.root, beside).files if beside else ():
        if file.num_rows:
            raise InvalidArgument(
                f"{file.path!r} is not in a partition folder of {quoted(columns)}, so it may contain rows of any "
                "partition; repartition the dataset first. Nothing was changed"
            )
