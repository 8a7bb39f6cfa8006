"""Rows of the footer index: what the footer of one file says, as far as Arrow columns hold it exactly.

A row has the number of rows, the row groups, and for the first columns the bounds and the number of NULLs. It has
neither the schema nor the metadata: files of one `form` have the same, and the footer of one of them shows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from parketto.parquet.calendars import OldCalendar
from parketto.parquet.dataset_schema import layout_key
from parketto.parquet.file_info import FileInfo
from parketto.runtime.arrays import array_of
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry

#: The first columns of a file, whose bounds are kept.
MAX_COLUMNS = 32
#: The coarsest resolution of modification times.
SETTLED_SECONDS = 2.0
_MAX_BOUND = 200  # characters or bytes of a bound
_KINDS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "uint": pa.uint64(),
    "float": pa.float64(),
    "text": pa.string(),
    "binary": pa.binary(),
}
KEYS = pa.schema(
    {
        "path": pa.string(),
        "fingerprint": pa.string(),
        "size": pa.int64(),
        "rows": pa.int64(),
        # What is equal for files with the same schema and calendar, which say what bounds mean.
        "layout": pa.string(),
        # What is equal for files whose footers differ only in numbers, sizes and bounds; see `form_of`.
        "form": pa.string(),
        "group_rows": pa.list_(pa.int64()),
        "group_bytes": pa.list_(pa.int64()),
        # The first columns whose bounds the row does not hold exactly.
        "inexact": pa.list_(pa.string()),
    }
)
NO_ROWS = pa.table([array_of([], kind) for kind in KEYS.types], schema=KEYS)
_SEPARATOR = array_of(["\0"], pa.string())[0]


class _Template(NamedTuple):
    """What files with the same objects have in common."""

    layout: str
    form: str | None
    leading: frozenset[str]
    #: Keeps these objects, whose ids are the key.
    file: FileInfo


def index_rows(files: Iterable[FileInfo], root: str, columns: Container[str] = ()) -> pa.Table:
    """The rows of files, as their own footers describe them.

    Args:
        files: The files.
        root: The dataset.
        columns: The columns whose bounds are kept besides the first ones, as far as they were read.
    """
    keys: dict[str, list[Any]] = {name: [] for name in KEYS.names}
    bounds: dict[str, list[Any]] = {}
    templates: dict[tuple[Any, ...], _Template] = {}
    number = -1
    for number, each in enumerate(files):
        file = each.stored
        known = (id(file.schema), id(file.traits), id(file.metadata), file.created_by, _shape(file))
        if known not in templates:
            templates[known] = _template(file)
        template = templates[known]
        inexact = []
        shown = file.row_groups[0].columns if file.row_groups else {}
        for name in shown:
            if name not in template.leading and name not in columns:
                continue
            fields, exact = _bounds_of(file, name)
            if not exact:
                inexact.append(name)
            for key, value in fields.items():
                values = bounds.setdefault(key, [])
                values += [None] * (number - len(values))
                values.append(value)
        row = (
            path_text(file.path, root),
            file.fingerprint,
            file.size_bytes,
            file.num_rows,
            template.layout,
            template.form,
            [group.num_rows for group in file.row_groups],
            [group.total_byte_size for group in file.row_groups],
            [*inexact, *(name for name in template.leading if name not in shown)],
        )
        for values, value in zip(keys.values(), row, strict=True):
            values.append(value)
    arrays = [array_of(values, kind) for values, kind in zip(keys.values(), KEYS.types, strict=True)]
    for key, values in bounds.items():
        arrays.append(array_of([*values, *[None] * (number + 1 - len(values))], _type_of(key)))
    return pa.table(arrays, names=[*KEYS.names, *bounds])


def form_of(file: FileInfo) -> str | None:
    """A hash of all that a footer says besides numbers of rows, sizes and bounds; None if names are ambiguous."""
    assert file.schema is not None, "a footer always has a schema"
    if len(set(file.schema.names)) < len(file.schema.names):
        return None
    schema: bytes = file.schema.serialize().to_pybytes()
    metadata = sorted((file.metadata or {}).items())
    return _hash((schema, metadata, file.traits, file.created_by, _shape(file)))


def _template(file: FileInfo) -> _Template:
    assert file.schema is not None, "a footer always has a schema"
    leading = frozenset(file.schema.names[:MAX_COLUMNS])
    layout = _hash((layout_key(file), OldCalendar.of(file.metadata)))
    return _Template(layout, form_of(file), leading, file)


def _shape(file: FileInfo) -> tuple[tuple[str | None, tuple[str, ...]], ...]:
    """The codec and the declared order of each row group; of one, if all have the same."""
    found = tuple((group.codec, group.sorted_by) for group in file.row_groups)
    return found[:1] if len(set(found)) == 1 else found


def _hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _bounds_of(file: FileInfo, name: str) -> tuple[dict[str, Any], bool]:
    """The fields with the bounds of a column, and whether they hold those of all row groups exactly.

    Fields of the whole file are for pruning. Those with an "@" hold what row groups say, if that is not the same.
    """
    stats = file.column_stats(name)
    fields: dict[str, Any] = {f"nulls::{name}": stats.null_count}
    if stats.min is not None and (kind := _kind(stats.min)) is not None and kind == _kind(stats.max):
        fields |= {f"min:{kind}:{name}": stats.min, f"max:{kind}:{name}": stats.max}
    groups = [group.columns[name] for group in file.row_groups]
    kinds = {_kind(value) for each in groups for value in (each.min, each.max) if value is not None}
    if len(kinds) > 1 or None in kinds:
        return fields, False
    if groups != [stats]:
        fields[f"nulls@::{name}"] = [each.null_count for each in groups]
        for kind in kinds:
            fields[f"min@:{kind}:{name}"] = [each.min for each in groups]
            fields[f"max@:{kind}:{name}"] = [each.max for each in groups]
    return fields, True


def _kind(value: Any) -> str | None:
    """The kind of a bound that a row can hold exactly; None: it is not kept."""
    match value:
        case bool():
            return "bool"
        case int():
            return "int" if -(2**63) <= value < 2**63 else "uint" if 0 <= value < 2**64 else None
        case float():
            return "float"
        case str() | bytes():
            return None if len(value) > _MAX_BOUND else "text" if isinstance(value, str) else "binary"
        case Decimal():
            digits, exponent = value.as_tuple()[1:]
            exact = isinstance(exponent, int) and -38 <= exponent <= 0 and len(digits) <= 38
            return f"decimal{-exponent}" if exact and isinstance(exponent, int) else None
    return None


def _type_of(key: str) -> pa.DataType:
    end, kind, _ = key.split(":", 2)
    if end.startswith("nulls"):
        found = pa.int64()
    else:
        found = _KINDS[kind] if kind in _KINDS else pa.decimal128(38, int(kind.removeprefix("decimal")))
    return pa.list_(found) if end.endswith("@") else found


def column_of(key: str) -> str | None:
    """The column that a field of an index row is about; None if it is about the whole file."""
    parts = key.split(":", 2)
    return parts[2] if len(parts) == 3 else None


def is_of_row_groups(key: str) -> bool:
    """Whether a field has the bounds of row groups, not of the whole file."""
    return key.partition(":")[0].endswith("@")


def path_text(path: str, root: str) -> str:
    """A path in the dataset as a row holds it. Names of files may be no valid UTF-8."""
    return relative(path, root).encode(errors="backslashreplace").decode()


def keys_of(rows: pa.Table) -> pa.ChunkedArray:
    """What identifies a version of a file."""
    return pc.binary_join_element_wise(
        rows["path"], rows["fingerprint"], rows["size"].cast(pa.string()), _SEPARATOR
    )


def entry_keys(entries: Sequence[FileEntry], root: str) -> pa.Table:
    """The path, fingerprint and size of listed files, as index rows have them."""
    return pa.table(
        {
            "path": array_of([path_text(entry.path, root) for entry in entries], pa.string()),
            "fingerprint": array_of([entry.fingerprint for entry in entries], pa.string()),
            "size": array_of([entry.size_bytes for entry in entries], pa.int64()),
        }
    )


def has_version(entry: FileEntry) -> bool:
    """Whether a fingerprint changes with the content; some filesystems list sizes only."""
    return bool(entry.fingerprint) and not entry.fingerprint.endswith(":None")


def lasting(rows: pa.Table, entries: Sequence[FileEntry], begun: float) -> pa.Table:
    """The rows of those files whose fingerprint will change with their content.

    The modification time of a file that was just written may stay the same if it is written again.

    Args:
        rows: The rows of listed files.
        entries: These files, in the same order.
        begun: A time before they were listed, in seconds since the epoch.
    """
    line = begun - SETTLED_SECONDS
    kept = [has_version(entry) and (entry.modified is None or entry.modified < line) for entry in entries]
    return rows.filter(array_of(kept, pa.bool_()))


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables whose bounds may be of different columns."""
    return pa.concat_tables(tables, promote_options="default")
