"""The partition spec of a dataset: its partition columns, and whether the files contain them as well."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from parketto.errors import InvalidArgument, quoted
from parketto.parquet.file_info import FileInfo
from parketto.storage.hive import PartitionValues

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class PartitionSpec:
    """Partition columns in path order; `path_only` are those that files lack, with types inferred from paths."""

    partition_by: tuple[str, ...] = ()
    path_only: Mapping[str, pa.DataType] = field(default_factory=dict)

    def row_schema(self, file_schema: pa.Schema) -> pa.Schema:
        """The columns that a reader of the dataset sees: those of the file, then those of the path."""
        for name, kind in self.path_only.items():
            if name not in file_schema.names:
                file_schema = file_schema.append(pa.field(name, kind))
        return file_schema


def partition_spec_of(files: Sequence[FileInfo]) -> PartitionSpec:
    """The partition spec that all files share. Files without rows are ignored if there are others."""
    files = [file for file in files if file.num_rows] or files
    if not files:
        return PartitionSpec()
    specs: dict[tuple[tuple[str, ...], frozenset[str]], FileInfo] = {}
    for file in files:
        names = tuple(name for name, _ in file.partition)
        inside = frozenset(file.schema.names if file.schema is not None else ())
        specs.setdefault((names, frozenset(names) - inside), file)
    if len(specs) > 1:
        (one, first), (other, second) = list(specs.items())[:2]
        raise InvalidArgument(
            f"the files are partitioned in different ways: {first.path!r} by {quoted(one[0])}, {second.path!r} by "
            f"{quoted(other[0])}; of these columns, the files contain {quoted(sorted(set(one[0]) - one[1]))} and "
            f"{quoted(sorted(set(other[0]) - other[1]))}. Rewrite them with the same partitioning first"
        )
    (names, outside), _ = next(iter(specs.items()))
    types = files[0].path_types or (partition_types(files) if outside else {})
    return PartitionSpec(names, {name: types.get(name, pa.string()) for name in names if name in outside})


def partition_types(files: Iterable[FileInfo]) -> dict[str, pa.DataType]:
    """The types of the partition columns that only paths contain: int64, date32, or else string.

    >>> days = [FileInfo(f"t/day={day}/a.parquet", 1, 1, partition=(("day", day),)) for day in ("1", "12", None)]
    >>> partition_types(days)
    {'day': DataType(int64)}
    """
    files = list(files)
    stored = {name for file in files if file.schema is not None for name in file.schema.names}
    types = path_types(file.partition for file in files)
    return {column: kind for column, kind in types.items() if column not in stored}


def path_types(partitions: Iterable[PartitionValues]) -> dict[str, pa.DataType]:
    """The types of partition columns by their values in all paths: int64, date32, or else string.

    A number with leading zeros is text: as a number it would lose them.

    >>> path_types([(("month", "01"),), (("month", "12"),)])
    {'month': DataType(string)}
    """
    values: dict[str, set[str]] = {}
    for partition in set(partitions):
        for column, value in partition:
            known = values.setdefault(column, set())
            if value is not None:
                known.add(value)
    return {column: _type_of(known) for column, known in values.items()}


def _type_of(values: set[str]) -> pa.DataType:
    if values and all(_INTEGER.fullmatch(value) and -(2**63) <= int(value) < 2**63 for value in values):
        return pa.int64()
    if values and all(_is_date(value) for value in values):
        return pa.date32()
    return pa.string()


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return True
