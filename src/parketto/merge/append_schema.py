"""The schema of files with appended rows, and the checks that rows fit the dataset."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from parketto.errors import IncompatibleTypes, InvalidArgument, quoted
from parketto.merge.rules import same_kind

_OTHERWISE = "or use mode='overwrite' to replace the dataset; nothing was written"


def appended_schema(rows: pa.Schema, dataset: pa.Schema, path_only: Collection[str] = ()) -> pa.Schema:
    """The schema of new files: the dataset's, if the rows have the same columns and types, in any order.

    Types are compared as in merges: equal are strings of any width, dictionaries and their values, timestamps of
    any unit. The values are cast to the dataset's own types.

    Args:
        rows: The schema of the rows.
        dataset: The schema of a file of the dataset.
        path_only: Partition columns that are stored only in the path, as untyped text.

    Raises:
        InvalidArgument: Columns are missing, or the dataset lacks them.
        IncompatibleTypes: A column has a different type in the dataset.

    >>> dataset = pa.schema({"id": pa.int64(), "at": pa.timestamp("ms", "UTC")})
    >>> appended_schema(pa.schema({"at": pa.timestamp("us", "UTC"), "id": pa.int64()}), dataset).types
    [DataType(int64), TimestampType(timestamp[ms, tz=UTC])]
    """
    expected = [*dataset.names, *(name for name in path_only if name not in dataset.names)]
    only_rows = [name for name in rows.names if name not in expected]
    only_dataset = [name for name in expected if name not in rows.names]
    if only_rows or only_dataset:
        raise InvalidArgument(
            f"the rows do not fit the dataset: only the rows have {quoted(only_rows)}, only the dataset has "
            f"{quoted(only_dataset)}. Appended rows need the same columns, in any order: add missing ones as "
            f"NULLs and drop the others, {_OTHERWISE}"
        )
    wrong = [
        f"{item.name!r} is {rows.field(item.name).type} in the rows and {item.type} in the dataset"
        for item in dataset
        if not same_kind(rows.field(item.name).type, item.type)
    ]
    if wrong:
        raise IncompatibleTypes(
            f"the rows do not fit the dataset: {'; '.join(wrong)}. Cast these columns first, {_OTHERWISE}"
        )
    return pa.schema(list(dataset), metadata=rows.metadata)
