"""Conversion of values to the exact type of a column, or an error that names the value that does not fit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.expressions.time_zones import UTC, Conversion, Zone, is_clock, is_instant, parse_time
from parketto.expressions.values import ARROW_ERRORS, decimal_type, family, plain, plain_type

_TEMPORAL = frozenset({"date", "time", "timestamp"})
# The type families that a column accepts without a CAST.
_TAKES = {
    "bool": {"bool"},
    "int": {"int", "float", "decimal"},
    "decimal": {"int", "float", "decimal"},
    "float": {"int", "float", "decimal"},
    "text": {"text"},
    "binary": {"binary"},
    "date": {"date", "timestamp", "text"},
    "timestamp": {"date", "timestamp", "text"},
    "time": {"time"},
    "duration": {"duration"},
}


def fitted_literal(value: object, target: pa.Field, zone: Zone = UTC) -> pa.Scalar:
    """A literal in the type of a column; dates and timestamps without a time zone use the given one.

    >>> fitted_literal("2024-05-01", pa.field("day", pa.date32()))
    <pyarrow.Date32Scalar: datetime.date(2024, 5, 1)>
    >>> fitted_literal(300, pa.field("level", pa.int8()))
    Traceback (most recent call last):
        ...
    parketto.errors.InvalidArgument: 300 does not fit into column 'level' of type int8
    """
    try:
        scalar = _scalar(value, target.type)
    except (*ARROW_ERRORS, OverflowError, ValueError, TypeError) as error:
        raise _misfit(repr(value), target) from error
    array = pa.array([None], target.type) if not scalar.is_valid else pa.repeat(scalar, 1)
    fits = fitted(array, target, repr(value), zone)
    refuse_nulls(fits, target, repr(value))
    return fits[0]


def _scalar(value: object, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, pa.Scalar):
        return value
    target = plain_type(kind)
    if value is None:
        return pa.scalar(None, target)
    if isinstance(value, str) and family(target) in _TEMPORAL:
        return parse_time(value, target)
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    if family(target) == "nested" or (isinstance(value, dt.timedelta) and family(target) == "duration"):
        return pa.scalar(value, target)
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return pa.scalar(value, pa.uint64()) if 0 <= value < 2**64 else pa.scalar(Decimal(value))
    if isinstance(value, Decimal) and not value.is_finite():
        return pa.scalar(float(value))
    return pa.scalar(value)


def refuse_nulls(array: pa.Array, target: pa.Field, said: str) -> None:
    """Raise if the array has NULLs and the column is not nullable."""
    if not target.nullable and array.null_count:
        raise InvalidArgument(f"{said} is NULL, but column {target.name!r} of type {target.type} may not be NULL")


def fitted(array: pa.Array, target: pa.Field, said: str, zone: Zone = UTC) -> pa.Array:
    """Values in the exact type of a column.

    Args:
        array: The values.
        target: The column.
        said: The value or expression as given, for messages.
        zone: The time zone for conversions between instants and wall-clock times.

    Raises:
        InvalidArgument: If a value does not fit; names the column, its type and the value.
    """
    refuse_nulls(array, target, said)
    if array.type == target.type:
        return array
    values, kind = plain(array), plain_type(target.type)
    if values.null_count == len(values) and (len(values) or pat.is_null(values.type)):
        return pa.nulls(len(values), target.type)
    source, wanted = family(values.type), family(kind)
    if values.type != kind and source not in _TAKES.get(wanted, ()):
        raise InvalidArgument(
            f"{said} is of type {values.type} and does not fit into column {target.name!r} of type {target.type}; "
            "use CAST to convert it"
        )
    if source == "timestamp" and wanted == "timestamp" and values.type.tz and not kind.tz:
        raise InvalidArgument(
            f"{said} has a time zone, but column {target.name!r} of type {target.type} has none; use "
            "CAST(... AS TIMESTAMP_NTZ)"
        )
    return own_type(_checked(values, kind, target, said, zone), target, said)


def _checked(values: pa.Array, kind: pa.DataType, target: pa.Field, said: str, zone: Zone) -> pa.Array:
    change = _change(values.type, kind, zone)
    try:
        return change(values)
    except ARROW_ERRORS as error:
        raise _misfit(_culprit(values, change, said), target) from error


def _misfit(value: str, target: pa.Field) -> InvalidArgument:
    return InvalidArgument(f"{value} does not fit into column {target.name!r} of type {target.type}")


def _culprit(values: pa.Array, change: Callable[[pa.Array], pa.Array], said: str) -> str:
    """The first value that does not fit, found by bisection."""
    while len(values) > 1:
        half = values.slice(0, len(values) // 2)
        try:
            change(half)
        except ARROW_ERRORS:
            values = half
        else:
            values = values.slice(len(half))
    try:
        value, python = str(values[0]), repr(values[0].as_py())
    except (ValueError, OverflowError):  # a timestamp out of Python's range
        value = python = str(values.cast(pa.string())[0])
    return said if said in (value, python) else f"{value} ({said})"


def _change(source: pa.DataType, kind: pa.DataType, zone: Zone) -> Callable[[pa.Array], pa.Array]:
    """The conversion between two types: it rounds only where SQL does, else it fails."""
    wanted = family(kind)
    if wanted == "float":
        return lambda values: _to_float(values, kind)
    if wanted == "decimal":
        return lambda values: _to_decimal(values, kind)
    if is_instant(kind) and (is_clock(source) or family(source) == "text"):
        return lambda values: Conversion("instant", zone).run(values).cast(kind)
    if is_instant(source) and wanted == "date":
        clocks = Conversion("wall", zone)
        return lambda values: _lossless(clocks.run(values), clocks.run(values).cast(kind, safe=False))
    if family(source) == "timestamp" and wanted == "date":
        return lambda values: _lossless(values, values.cast(kind, safe=False))
    return lambda values: values.cast(kind)


def _to_float(values: pa.Array, kind: pa.DataType) -> pa.Array:
    numbers = values.cast(pa.float64(), safe=False)
    narrow = numbers.cast(kind, safe=False)
    if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(numbers))).as_py():
        raise pa.ArrowInvalid("too large")
    return narrow


def _to_decimal(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pat.is_integer(values.type):
        values = values.cast(pa.decimal128(20, 0))
    if pat.is_decimal(values.type) and values.type.scale > kind.scale:
        if values.type.precision < 76:  # 9.9 rounds to 10: one more digit
            values = values.cast(decimal_type(values.type.precision + 1, values.type.scale))
        values = pc.round(values, ndigits=kind.scale, round_mode="half_towards_infinity")
    return values.cast(kind)


def _lossless(values: pa.Array, changed: pa.Array) -> pa.Array:
    if not changed.cast(values.type).equals(values):
        raise pa.ArrowInvalid("the conversion would lose data")
    return changed


def own_type(values: pa.Array, target: pa.Field, said: str) -> pa.Array:
    """Plain values in the type of a column, which may be a dictionary or an extension type."""
    kind = target.type
    if values.type == kind:
        return values
    try:
        if isinstance(kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(kind, values.cast(kind.storage_type))
        if pat.is_dictionary(kind):
            return values.cast(kind.value_type).dictionary_encode().cast(kind)
        return values.cast(kind)
    except ARROW_ERRORS as error:
        raise _misfit(said, target) from error
