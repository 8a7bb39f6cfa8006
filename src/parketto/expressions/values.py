"""Types and scalar values of expressions: common types and exact conversions."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9
_FAMILIES = (
    ("bool", pat.is_boolean),
    ("int", pat.is_integer),
    ("decimal", pat.is_decimal),
    ("float", pat.is_floating),
    ("text", lambda kind: pat.is_string(kind) or pat.is_large_string(kind)),
    ("binary", lambda kind: pat.is_binary(kind) or pat.is_large_binary(kind)),
    ("date", pat.is_date),
    ("timestamp", pat.is_timestamp),
    ("time", pat.is_time),
    ("duration", pat.is_duration),
    ("null", pat.is_null),
)
NUMBERS = frozenset({"int", "decimal", "float"})
#: Families whose values are integer multiples of a unit: comparisons with a literal need no rounding.
COUNTED = frozenset({"int", "decimal", "date", "timestamp", "time", "duration"})
#: What Arrow raises when an expression and its data do not fit each other.
ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)


@functools.lru_cache(maxsize=1024)
def family(kind: pa.DataType) -> str:
    """The family of a plain type.

    >>> family(pa.uint8()), family(pa.timestamp("ns")), family(pa.list_(pa.int8()))
    ('int', 'timestamp', 'nested')
    """
    return next((name for name, test in _FAMILIES if test(kind)), "nested")


@functools.lru_cache(maxsize=1024)
def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which expressions see a column: dictionaries are decoded, narrow types widened.

    >>> plain_type(pa.dictionary(pa.int8(), pa.string()))
    DataType(string)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pat.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pat.is_string_view(kind):
        return pa.large_string()
    if pat.is_binary_view(kind):
        return pa.large_binary()
    if pat.is_fixed_size_binary(kind):
        return pa.binary()
    if pat.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return pa.float32() if pat.is_float16(kind) else kind


def plain(array: pa.Array) -> pa.Array:
    """The array cast to its plain type."""
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pat.is_dictionary(array.type):
        return plain(array.dictionary_decode())
    kind = plain_type(array.type)
    return array if array.type == kind else array.cast(kind)


def plain_table(batch: pa.RecordBatch, fields: pa.Schema, constants: Mapping[str, pa.Scalar]) -> pa.Table:
    """The columns of an expression, in its types.

    `constants` are the partition columns that exist only in the path: one value for all rows.
    """
    columns = []
    for field in fields:
        if field.name in constants:
            column = pa.repeat(constants[field.name], batch.num_rows)
        else:
            column = plain(batch.column(field.name))
        columns.append(column if column.type == field.type else column.cast(field.type))
    if not columns:  # an expression of literals still yields one value per row
        return pa.table([pa.nulls(batch.num_rows)], names=["rows"])
    return pa.Table.from_arrays(columns, schema=fields)


def evaluate(expression: pc.Expression, table: pa.Table) -> pa.Array:
    """The values of an expression, in row order."""
    import pyarrow.acero as acero  # here, because it imports pandas if installed

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]), [source])
    column = project.to_table(use_threads=False).column(0)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [_empty(column.type)])


def _empty(kind: pa.DataType) -> pa.Array:
    return pa.array([], kind)


def nanoseconds(kind: pa.DataType) -> int:
    """The nanoseconds of one unit of a temporal type."""
    return _DAY if pat.is_date32(kind) else NANOSECONDS["ms" if pat.is_date64(kind) else kind.unit]


def counted(value: pa.Scalar, kind: pa.DataType) -> Fraction:
    """A literal as a multiple of the unit of a type; fractional if the type cannot hold it exactly.

    >>> counted(pa.scalar(1500, pa.timestamp("ms")), pa.timestamp("s"))
    Fraction(3, 2)
    """
    if family(kind) in ("int", "decimal"):
        return Fraction(value.as_py()) * 10 ** (kind.scale if pat.is_decimal(kind) else 0)
    return Fraction(value.value * nanoseconds(value.type), nanoseconds(kind))


def counts_alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether values of two types can be compared as integer multiples of a unit."""
    families = {family(left), family(right)}
    if families <= NUMBERS:
        return True
    # A date is coarser than a timestamp and is compared in the timestamp's unit.
    return families in ({"date"}, {"time"}, {"duration"}, {"timestamp"}, {"date", "timestamp"})


def from_count(count: int, kind: pa.DataType) -> pa.Scalar | None:
    """The value of a type that equals `count` units; None if the type cannot hold it.

    >>> from_count(1, pa.date32()), from_count(300, pa.int8())
    (<pyarrow.Date32Scalar: datetime.date(1970, 1, 2)>, None)
    """
    try:
        if pat.is_decimal(kind):
            digits = Decimal((int(count < 0), tuple(map(int, str(abs(count)))), -kind.scale))
            return pa.scalar(digits, kind) if abs(count) < 10**kind.precision else None
        if pat.is_integer(kind):
            return pa.scalar(count, kind)
        raw = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array([count], raw).view(kind)[0]
    except (pa.ArrowInvalid, OverflowError):
        return None


def float32_at_most(number: float) -> float:
    """The largest float32 that is not above a number.

    >>> float32_at_most(0.5), float32_at_most(0.1)
    (0.5, 0.09999999403953552)
    """
    with np.errstate(over="ignore"):
        nearest = np.float32(number)
    return float(nearest if float(nearest) <= number else np.nextafter(nearest, np.float32(-np.inf)))


def parse_text(text: str, kind: pa.DataType) -> pa.Scalar:
    """A string literal parsed as another type, as in SQL.

    Times and dates keep the precision of the string, and its time zone.

    Raises:
        InvalidArgument: If the string is not a value of that type.
    """
    stripped = text if family(kind) in ("binary", "text") else text.strip()
    for attempt in _parse_types(kind):
        try:
            if pat.is_time(attempt):  # Arrow parses a time of day only after a date
                return pa.scalar(f"1970-01-01 {stripped}").cast(pa.timestamp("ns")).cast(attempt)
            return _no_finer(pa.scalar(stripped).cast(attempt))
        except ARROW_ERRORS:
            continue
    raise InvalidArgument(f"{text!r} is not a value of type {kind}")


def _no_finer(value: pa.Scalar) -> pa.Scalar:
    """A timestamp in microseconds if that is exact: nanoseconds cannot hold every year."""
    if pat.is_timestamp(value.type) and value.type.unit == "ns" and value.value % 1000 == 0:
        return value.cast(pa.timestamp("us", value.type.tz))
    return value


def _parse_types(kind: pa.DataType) -> list[pa.DataType]:
    match family(kind):
        case "timestamp":
            # Nanoseconds cannot hold every year, so coarser units follow.
            zones = (None, "UTC")
            return [pa.timestamp(unit, zone) for unit in ("ns", "us", "s") for zone in zones]
        case "time":
            return [pa.time64("ns")]
        case "int" | "decimal":
            return [pa.int64(), pa.uint64(), *(pa.decimal256(76, scale) for scale in (0, 10, 38))]
        case "date":
            return [pa.date32()]
        case "float" | "bool" | "text" | "binary":
            return [kind]
        case _:
            return []


def common_type(left: pa.DataType, right: pa.DataType, doing: str = "compare") -> pa.DataType:
    """The type that can hold the values of both, or an error: strings need an explicit CAST."""
    if left == right or pat.is_null(right):
        return left
    if pat.is_null(left):
        return right
    families = {family(left), family(right)}
    if families <= NUMBERS:
        return _common_number(left, right, families)
    if families == {"text"}:
        return pa.large_string()
    if families == {"binary"}:
        return pa.large_binary()
    if families == {"date"}:
        return pa.date32()
    if families == {"time"}:
        return pa.time64(_finer(left, right, at_least="us"))
    if families == {"duration"}:
        return pa.duration(_finer(left, right))
    if families <= {"date", "timestamp"}:
        zoned = any(pat.is_timestamp(kind) and kind.tz for kind in (left, right))
        return pa.timestamp(_finer(left, right), "UTC" if zoned else None)
    raise InvalidArgument(f"cannot {doing} {left} and {right}; use CAST")


def _finer(left: pa.DataType, right: pa.DataType, at_least: str = "s") -> str:
    units = [kind.unit for kind in (left, right) if not pat.is_date(kind)]
    return str(min([*units, at_least], key=NANOSECONDS.__getitem__))


def _common_number(left: pa.DataType, right: pa.DataType, families: set[str]) -> pa.DataType:
    if "float" in families:
        return pa.float64()
    if families == {"int"}:
        if not any(pat.is_uint64(kind) for kind in (left, right)):
            return pa.int64()
        if all(pat.is_unsigned_integer(kind) for kind in (left, right)):
            return pa.uint64()
    left, right = as_decimal_type(left), as_decimal_type(right)
    scale = max(left.scale, right.scale)
    return decimal_type(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def as_decimal_type(kind: pa.DataType) -> pa.DataType:
    """The decimal type that holds every value of an integer or decimal type."""
    if pat.is_decimal(kind):
        return kind
    return pa.decimal128({8: 3, 16: 5, 32: 10, 64: 20}[kind.bit_width], 0)


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """The narrowest Arrow decimal type of a precision and scale."""
    if precision > 76:
        raise InvalidArgument(f"the result would have {precision} digits, more than the maximum of 76; use CAST")
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def decimal_digits(operator: str, left: pa.DataType, right: pa.DataType) -> int:
    """The precision that Arrow gives the result of decimal arithmetic."""
    if operator == "*":
        return int(left.precision + right.precision + 1)
    if operator in ("/", "%"):
        return int(left.precision - left.scale + right.scale + max(4, left.scale + right.precision + 1))
    scale = max(left.scale, right.scale)
    return int(max(left.precision - left.scale, right.precision - right.scale) + scale + 1)


def beyond(operator: str, *, above: bool) -> bool:
    """The result of a comparison with a value above, or below, every value of the left type."""
    return operator == "<>" or operator in (("<", "<=") if above else (">", ">="))


def counts_nanoseconds(kind: pa.DataType) -> bool:
    """Whether the type is instants in nanoseconds: INT96 values in files may be out of its range."""
    return bool(pat.is_timestamp(kind) and kind.tz is not None and kind.unit == "ns")
