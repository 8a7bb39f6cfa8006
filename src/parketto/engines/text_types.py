"""The types in which text files are read: those of the dataset that gets their rows, where it has the column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.parquet.promotion import common_type

#: What parses texts of a column: these types, and encodings of strings.
_PARSED = (
    pat.is_boolean,
    pat.is_integer,
    pat.is_floating,
    pat.is_decimal,
    pat.is_date32,
    pat.is_timestamp,
    pat.is_string,
    pat.is_large_string,
    pat.is_string_view,
)
_ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})$"
_WHOLE = pa.decimal128(38, 9)  # holds whole numbers that are written with a fraction of zero, such as 5.0
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class KnownTypes:
    """The types of the columns that a dataset has.

    Attributes:
        types: The types, by column.
        evolve: Whether the dataset's types may become wider: inferred types that fit to them are kept.
    """

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    evolve: bool = False

    def _of(self, name: str, inferred: pa.DataType) -> pa.DataType | None:
        """The type of a column whose texts are parsed; None if the inferred type is kept."""
        wanted = self.types.get(name)
        wanted = wanted.value_type if wanted is not None and pat.is_dictionary(wanted) else wanted
        if wanted is None or pat.is_nested(inferred):
            return None
        if not any(test(wanted) for test in _PARSED):
            return None
        if self.evolve and not pat.is_null(inferred) and common_type([inferred, wanted]) is not None:
            return None
        return wanted

    def among(self, inferred: pa.Schema, *, has_types: bool) -> dict[str, pa.DataType]:
        """The types of the columns whose texts are parsed.

        Args:
            inferred: All columns, with inferred types.
            has_types: Whether the format has types of its own, as JSON: then those that fit are kept.
        """
        found = {item.name: self._of(item.name, item.type) for item in inferred}
        return {
            name: kind
            for name, kind in found.items()
            if kind is not None and not (has_types and kind == inferred.field(name).type)
        }


@dataclass(frozen=True)
class ParsedColumns:
    """Parses columns of texts. It can be pickled.

    Attributes:
        takes: The columns of the rows, some of them texts.
        types: The types of these columns.
        source: What the rows are read from, for errors.

    >>> rows = pa.record_batch({"day": ["2026-11-02"], "n": ["5.0"]})
    >>> ParsedColumns(rows.schema, {"n": pa.int32()}, "a.csv").added(rows).to_pylist()
    [{'day': '2026-11-02', 'n': 5}]
    """

    takes: pa.Schema
    types: Mapping[str, pa.DataType]
    source: str

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types."""
        return pa.schema([item.with_type(self.types.get(item.name, item.type)) for item in self.takes])

    def added(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with parsed columns."""
        columns = [
            column if name not in self.types else parsed(column, self.types[name], name, self.source)
            for name, column in zip(self.takes.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def parsed(column: pa.Array, kind: pa.DataType, name: str, source: str) -> pa.Array:
    """Texts as values of a type.

    Raises:
        InvalidArgument: A text is no such value; the error names it.
    """
    if column.type == kind:
        return column
    try:
        return _parsed(column, kind)
    except pa.ArrowInvalid as error:
        value = _first_wrong(column, lambda each: _parsed(each, kind))
        shown = value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}…"
        zone = " with a time zone, such as 2026-11-02T10:00:00Z" if pat.is_timestamp(kind) and kind.tz else ""
        raise InvalidArgument(
            f"column {name!r} of {source} has {shown!r}, which is no {kind}{zone}, the type of this column in the "
            "dataset. Nothing was changed; correct the value, or give the column another name"
        ) from error


def _parsed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pat.is_timestamp(kind) and kind.tz is None:
        return _without_zone(column, kind)
    if not pat.is_integer(kind):
        return column.cast(kind)
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return column.cast(_WHOLE).cast(kind)


def _without_zone(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times; those with a zone in UTC."""
    zoned = pc.match_substring_regex(column, _ZONE)
    if not pc.any(zoned).as_py():
        return column.cast(kind)
    nothing = pa.scalar(None, column.type)
    utc = pc.if_else(zoned, column, nothing).cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
    return pc.coalesce(utc, pc.if_else(zoned, nothing, column).cast(kind))


def _first_wrong(column: pa.Array, parse: Callable[[pa.Array], pa.Array]) -> str:
    """The first text that cannot be parsed."""
    while len(column) > 1:
        head = column.slice(0, len(column) // 2)
        try:
            parse(head)
            column = column.slice(len(head))
        except pa.ArrowInvalid:
            column = head
    return str(column[0].as_py())


def named(paths: Sequence[str]) -> str:
    """Files, for errors."""
    return repr(paths[0]) if len(paths) == 1 else f"one of {len(paths)} files such as {paths[0]!r}"
