"""pandas' description of the columns of a file, a metadata entry, fitted to other columns.

pandas takes the index, the labels of columns and its own types (`Int32`, `string`) from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

PANDAS_KEY = b"pandas"
_NULLABLE_NUMBER = re.compile(r"(U?Int|Float)[0-9]+")
_FLOATS = {16: "float16", 32: "float32", 64: "float64"}
_PLAIN_LABELS = frozenset({"unicode", "string", "empty"})


def fitted_pandas_schema(
    metadata: Mapping[bytes, bytes] | None, before: pa.Schema, after: pa.Schema, origins: Mapping[str, str]
) -> dict[bytes, bytes]:
    """The entry as metadata, without what is no longer true; empty if there is none, or if it is not pandas' own.

    Args:
        metadata: The metadata of a file.
        before: The columns of the file.
        after: Its columns after a change.
        origins: For each column of the file that is kept, by its new name, its old name.
    """
    entry = (metadata or {}).get(PANDAS_KEY)
    if entry is None:
        return {}
    names = {old: new for new, old in origins.items() if new in after.names}
    try:
        found = json.loads(entry)
        columns = [
            _fitted(each, name, before.field(name).type, after.field(names[name]))
            for each in found["columns"]
            for name in [each.get("field_name") or each["name"]]
            if name in names and name in before.names
        ]
        # A range is no column. pandas ignores it if the number of rows differs.
        index = [each for each in found["index_columns"] if not isinstance(each, str) or each in names]
        labels = found.get("column_indexes", [])
        if any(before.get_field_index(name) < 0 or names.get(name) != name for name in after.names) and not (
            len(labels) == 1 and labels[0]["pandas_type"] in _PLAIN_LABELS
        ):
            labels = []  # new names are texts, which pandas cannot convert to such labels
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    fitted = {
        **found,
        "columns": columns,
        "index_columns": [names[each] if isinstance(each, str) else each for each in index],
        "column_indexes": labels,
    }
    return {PANDAS_KEY: json.dumps(fitted).encode()}


def _fitted(description: Mapping[str, Any], name: str, kind: pa.DataType, field: pa.Field) -> dict[str, Any]:
    """The description of a column under its new name, for its new type."""
    found = dict(description)
    if field.name != name:
        found |= {"name": field.name, "field_name": field.name}
    if field.type != kind and not (_is_text(kind) and _is_text(field.type)):
        found |= _described(
            field.type, nullable=_NULLABLE_NUMBER.fullmatch(str(found.get("numpy_type"))) is not None
        )
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind))


def _described(kind: pa.DataType, *, nullable: bool) -> dict[str, Any]:
    """A type as pandas describes it; `nullable` selects pandas' own type of a number.

    >>> _described(pa.int64(), nullable=True)
    {'pandas_type': 'int64', 'numpy_type': 'Int64', 'metadata': None}
    """
    name, numpy, more = "object", "object", None
    if pat.is_integer(kind) or pat.is_floating(kind):
        name = numpy = _FLOATS[kind.bit_width] if pat.is_floating(kind) else str(kind)
        if nullable and name != "float16":
            numpy = name.replace("uint", "UInt").replace("int", "Int").replace("float", "Float")
    elif pat.is_boolean(kind):
        name = numpy = "bool"
    elif pat.is_timestamp(kind):
        name, numpy = "datetime" if kind.tz is None else "datetimetz", f"datetime64[{kind.unit}]"
        more = None if kind.tz is None else {"timezone": kind.tz}
    elif pat.is_dictionary(kind):
        name, numpy, more = "categorical", str(kind.index_type), {"ordered": bool(kind.ordered)}
    elif _is_text(kind):
        name = "unicode"
    return {"pandas_type": name, "numpy_type": numpy, "metadata": more}
