"""Pruning of files, row groups and pages by their statistics and partition values.

The statistics of a file become a guarantee: an Arrow expression that holds for all of its rows. Arrow's simplifier
then decides whether the condition can still be true. No data is read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import FooterError, InvalidArgument
from parketto.expressions.conditions import Predicate
from parketto.expressions.membership import Membership
from parketto.expressions.values import ARROW_ERRORS, family, from_count, parse_text, plain_type
from parketto.parquet.dataset_schema import presented_row_groups
from parketto.parquet.file_info import FileInfo
from parketto.parquet.page_reader import PageReader
from parketto.parquet.row_group_info import ColumnStats, RowGroupInfo
from parketto.parquet.row_ranges import Ranges, merged

_BOUNDED: Mapping[str, type | tuple[type, ...]] = {
    "bool": bool,
    "int": int,
    "date": int,
    "timestamp": int,
    "time": int,
    "duration": int,
    "float": float,
    "text": str,
    "binary": bytes,
}


def partition_constants(file: FileInfo, types: Mapping[str, pa.DataType]) -> dict[str, pa.Scalar]:
    """The values of the partition columns that exist only in the path of a file.

    >>> file = FileInfo("t/day=7/a.parquet", 1, 1, partition=(("day", "7"),))
    >>> partition_constants(file, {"day": pa.int64()})
    {'day': <pyarrow.Int64Scalar: 7>}
    """
    stored = file.schema.names if file.schema is not None else ()
    return {
        column: partition_value(text, types[column])
        for column, text in file.partition
        if column in types and column not in stored
    }


# Thousands of files share partition values.
@functools.lru_cache(maxsize=4096)
def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """The value of a partition column, from its text in a path."""
    if pat.is_dictionary(kind):
        return partition_value(text, kind.value_type)
    if text is None:
        return pa.scalar(None, kind)
    return pa.scalar(text, kind) if family(kind) == "text" else parse_text(text, kind).cast(kind)


def may_match(
    predicate: Predicate, files: Sequence[FileInfo], types: Mapping[str, pa.DataType] | None = None
) -> list[bool]:
    """For each file whether it may contain matching rows. False is certain, True is not.

    Args:
        predicate: The condition.
        files: Files whose footer metadata includes the bounds of the condition's columns.
        types: The types of the partition columns that exist only in paths.
    """
    guarantees = [_of_file(predicate, file, types or {}) for file in files]
    possible = _satisfiable(predicate, guarantees)
    return [file.num_rows > 0 and at in possible for at, file in enumerate(files)]


def row_groups_may_match(
    predicate: Predicate, file: FileInfo, types: Mapping[str, pa.DataType] | None = None
) -> list[bool]:
    """For each row group of a file whether it may contain matching rows."""
    constants = _of_path(predicate, file, types or {})
    guarantees = [_all([*constants, *_of_stats(predicate, file, [group])]) for group in file.row_groups]
    possible = _satisfiable(predicate, guarantees)
    return [group.num_rows > 0 and at in possible for at, group in enumerate(file.row_groups)]


def rows_may_match(
    predicate: Predicate,
    file: FileInfo,
    number: int,
    pages: PageReader | None,
    types: Mapping[str, pa.DataType] | None = None,
) -> Ranges:
    """The rows of a row group that may match, judged by the bounds of its pages.

    Args:
        predicate: The condition.
        file: The file.
        number: The number of the row group.
        pages: Its pages, with the bounds of the condition's columns; None if they are not known.
        types: The types of the partition columns that exist only in paths.
    """
    try:
        stretches = () if pages is None else pages.lookup.stretches()
    except FooterError:  # without bounds, all rows may match
        stretches = ()
    if not stretches:
        return [(0, file.row_groups[number].num_rows)]
    own = replace(file.stored, row_groups=stretches)
    paged = replace(file, row_groups=stretches if file.own is None else presented_row_groups(own, file))
    possible = row_groups_may_match(predicate, paged, types)
    ends = list(accumulate(stretch.num_rows for stretch in stretches))
    rows = zip([0, *ends], ends, strict=False)
    return merged(range_ for range_, matches in zip(rows, possible, strict=True) if matches)


def _of_file(predicate: Predicate, file: FileInfo, types: Mapping[str, pa.DataType]) -> pc.Expression:
    return _all([*_of_path(predicate, file, types), *_of_stats(predicate, file, file.row_groups)])


def _all(parts: Sequence[pc.Expression]) -> pc.Expression:
    whole = parts[0] if parts else pc.scalar(True)
    for part in parts[1:]:
        whole = whole & part
    return whole


def _of_path(predicate: Predicate, file: FileInfo, types: Mapping[str, pa.DataType]) -> list[pc.Expression]:
    if not file.partition or not types:
        return []
    found = []
    used = {column: types[column] for column in predicate.columns if column in types}
    try:
        values = partition_constants(file, used)
    except (InvalidArgument, *ARROW_ERRORS):
        return []  # the values do not fit the type; reading the rows reports it
    for column, value in values.items():
        kind = predicate.formula.fields.field(column).type
        if not value.is_valid:
            found += [pc.field(column).is_null(), *_of_lists(predicate, column, None)]
        elif value.type == kind and family(kind) != "float":
            found += [pc.field(column) == pc.scalar(value), *_of_lists(predicate, column, (value, value))]
    return found


def _of_lists(
    predicate: Predicate, column: str, bounds: tuple[pa.Scalar, pa.Scalar] | None, *, nulls: bool = False
) -> list[pc.Expression]:
    """What the bounds of a column say about the lists that its values are looked up in. None: all are NULL."""
    found = []
    for step in predicate.formula.derived:
        if isinstance(step.conversion, Membership) and step.conversion.column == column:
            inside = False if bounds is None else step.conversion.between(*bounds)
            if inside is False or (inside and not nulls):
                found.append(pc.field(step.target.name) == pc.scalar(inside))
    return found


def _of_stats(predicate: Predicate, file: FileInfo, groups: Sequence[RowGroupInfo]) -> list[pc.Expression]:
    if file.schema is None:
        return []
    found: list[pc.Expression] = []
    filled = [group for group in groups if group.num_rows]
    for field in predicate.formula.fields:
        if file.schema.names.count(field.name) != 1:
            continue
        own = file.schema.field(field.name).type
        if plain_type(own) != field.type:
            continue
        stats = [(group.num_rows, group.columns.get(field.name)) for group in filled]
        if stats and all(known is not None for _, known in stats):
            found += _of_column(predicate, field, own, stats)
    return found


def _of_column(
    predicate: Predicate, field: pa.Field, own: pa.DataType, stats: Sequence[Any]
) -> list[pc.Expression]:
    column = pc.field(field.name)
    counts = [known.null_count for _, known in stats]
    bounded = [known for rows, known in stats if known.null_count != rows]
    if not bounded:
        return [column.is_null(), *_of_lists(predicate, field.name, None)]
    low, high = _bounds(field.type, own, bounded, predicate.formula.nan_aware)
    nulls = any(count is None or count > 0 for count in counts)
    if low is None or high is None:
        return [] if nulls else [column.is_valid()]
    parts = [column >= low, column <= high]
    # Arrow's simplifier only handles this form, with one bound per term.
    parts = [part | column.is_null() for part in parts] if nulls else parts
    return [*parts, *_of_lists(predicate, field.name, (low, high), nulls=nulls)]


def _bounds(
    kind: pa.DataType, own: pa.DataType, stats: Sequence[ColumnStats], nan_aware: bool
) -> tuple[pa.Scalar | None, pa.Scalar | None]:
    ends = [end for known in stats for end in (known.min, known.max)]
    if not all(_trusted(end, kind, own) for end in ends) or (family(kind) == "float" and not nan_aware):
        return None, None
    return _scalar(min(ends), kind), _scalar(max(ends), kind)


def _trusted(end: Any, kind: pa.DataType, own: pa.DataType) -> bool:
    """Whether a bound is usable: of the expected Python type, in the unit of the column's type."""
    if pat.is_float16(own) or pat.is_date64(own) or (pat.is_temporal(kind) and getattr(kind, "unit", "") == "s"):
        return False  # files store these in other units
    if family(kind) == "decimal":
        return not isinstance(end, bytes | str | float) and end is not None
    if family(kind) == "float" and isinstance(end, float) and math.isnan(end):
        return False
    return isinstance(end, _BOUNDED.get(family(kind), ()))


def _scalar(end: Any, kind: pa.DataType) -> pa.Scalar | None:
    if family(kind) in ("int", "date", "timestamp", "time", "duration"):
        return from_count(end, kind)
    try:
        return pa.scalar(end, kind)
    except (*ARROW_ERRORS, TypeError, ValueError):
        return None


def _satisfiable(predicate: Predicate, guarantees: Sequence[pc.Expression]) -> set[int]:
    try:
        return _surviving(predicate, list(enumerate(guarantees)))
    except ARROW_ERRORS:
        # Arrow evaluates the guarantees, which may overflow: keep such a file, and reading it reports the error.
        return {at for at, guarantee in enumerate(guarantees) if _maybe(predicate, guarantee)}


def _maybe(predicate: Predicate, guarantee: pc.Expression) -> bool:
    try:
        return bool(_surviving(predicate, [(0, guarantee)]))
    except ARROW_ERRORS:
        return True


def _surviving(predicate: Predicate, guarantees: Sequence[tuple[int, pc.Expression]]) -> set[int]:
    # The fragments are not real files; they only hold the guarantees.
    import pyarrow.dataset as ds  # here, because it imports pandas if installed
    import pyarrow.fs as pafs

    file_format, filesystem = ds.ParquetFileFormat(), pafs.LocalFileSystem()
    fragments = [
        file_format.make_fragment(str(at), filesystem, partition_expression=guarantee)
        for at, guarantee in guarantees
    ]
    formula = predicate.formula
    fields = pa.schema([*formula.fields, *(step.target for step in formula.derived)])
    dataset = ds.FileSystemDataset(fragments, fields, file_format, filesystem)
    return {int(fragment.path) for fragment in dataset.get_fragments(filter=formula.possible)}
