"""CAST and TRY_CAST with SQL's rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument, quoted
from parketto.expressions.nodes import Node, Scope, literal
from parketto.expressions.time_zones import is_clock, is_instant, parse_time
from parketto.expressions.values import NUMBERS, as_decimal_type, decimal_type, family, from_count

HALF_UP = "half_towards_infinity"
_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "DATETIME": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
}
# SQL types whose values keep their zone if they have one.
_KEEPS_ZONE = frozenset({"TIMESTAMP", "DATETIME"})
_TEMPORAL = frozenset({"date", "time", "timestamp"})
# Strings that Arrow parses as numbers without an error.
_WHOLE_TEXT = r"^[+-]?[0-9]{1,30}$"
_FLOAT_TEXT = r"^([+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?|[+-]?(nan|NaN|inf|Infinity))$"


def cast(scope: Scope, node: Node, tree: Any, *, attempt: bool) -> Node:
    """CAST or TRY_CAST to the type in a parsed SQL tree."""
    name = _type_name(tree)
    if name in _KEEPS_ZONE and is_instant(node.type):
        return node  # as in Spark, where TIMESTAMP is an instant; wall-clock time could lose an hour
    changed = (try_type if attempt else to_type)(scope, node, sql_type(tree))
    if name == "TIMESTAMPNTZ" and is_instant(changed.type):
        raise InvalidArgument(
            f"{tree.parent.this.sql()} names a time zone, and TIMESTAMP_NTZ has none; remove the zone, or CAST it "
            "to TIMESTAMP first"
        )
    is_timestamp = name in _KEEPS_ZONE and is_clock(changed.type)
    return replace(changed, untyped=False, is_told=is_timestamp or changed.is_told)


def _type_name(tree: Any) -> str:
    return str(tree.this.value if hasattr(tree.this, "value") else tree.this)


def sql_type(tree: Any) -> pa.DataType:
    """The Arrow type of an SQL type."""
    name = _type_name(tree)
    if name == "DECIMAL":
        digits = [int(parameter.name) for parameter in tree.expressions]
        if not digits:
            raise InvalidArgument("DECIMAL needs a precision, such as DECIMAL(18, 2)")
        if not 1 <= digits[0] <= 76:
            raise InvalidArgument(f"DECIMAL has 1 to 76 digits, not {digits[0]}")
        return decimal_type(digits[0], digits[1] if len(digits) > 1 else 0)
    if name not in _TYPES:
        raise InvalidArgument(f"unknown type {name!r}; available: {quoted(['DECIMAL', *_TYPES])}")
    return _TYPES[name]


def named_type(kind: pa.DataType | str) -> pa.DataType:
    """An Arrow type, given as such or as the name of an SQL type.

    >>> named_type("bigint"), named_type("decimal(10, 2)"), named_type(pa.int8())
    (DataType(int64), Decimal128Type(decimal128(10, 2)), DataType(int8))
    """
    if isinstance(kind, pa.DataType):
        return kind
    from sqlglot import exp  # only where a name is parsed: tasks do without it
    from sqlglot.errors import SqlglotError

    try:
        return sql_type(exp.DataType.build(kind, dialect="spark"))
    except (SqlglotError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"unknown type {kind!r}; available: {quoted(['DECIMAL', *_TYPES])}") from error


def to_type(scope: Scope, node: Node, kind: pa.DataType) -> Node:
    """CAST: evaluation fails on a value that the type cannot hold."""
    if node.type == kind:
        return node
    source, target = node.family, family(kind)
    if source == "text" and target in _TEMPORAL and node.literal is not None and node.literal.is_valid:
        # A literal keeps its precision, even if the type is coarser.
        read = literal(parse_time(node.literal.as_py(), kind))
        return scope.instant(read) if is_instant(kind) else read
    if source == "text" and is_instant(kind):
        return scope.instant(node)
    if source == "text" and target not in ("text", "binary"):
        node = scope.call(pc.utf8_trim_whitespace, node)
        if target == "decimal":
            node, source = scope.cast(node, pa.decimal256(76, 38)), "decimal"
    if source in ("float", "decimal") and target == "int":
        return scope.cast(scope.call(pc.trunc, node), kind)
    if source == "decimal" and target == "decimal":
        return scope.cast(rounded(scope, node, kind.scale), kind)
    if source == "int" and target == "decimal":
        return scope.cast(scope.cast(node, as_decimal_type(node.type)), kind)
    if source == "timestamp" and target in _TEMPORAL:
        node = scope.instant(node) if is_instant(kind) else scope.wall(node)
        return scope.call(lambda value: value.cast(kind, safe=False), node)
    if source == "timestamp" and target == "text":
        return scope.cast(_without_zeros(scope, scope.cast(node, pa.string())), kind)
    if {source, target} in ({"bool", "date"}, {"int", "date"}, {"int", "timestamp"}, {"int", "time"}):
        raise InvalidArgument(f"cannot CAST {node.type} to {kind}")
    return scope.cast(node, kind)


def _without_zeros(scope: Scope, node: Node) -> Node:
    """Timestamps as strings without trailing zeros in the fraction of a second."""
    node = scope.call(pc.replace_substring_regex, node, pattern=r"(\.[0-9]*[1-9])0+$", replacement=r"\1")
    return scope.call(pc.replace_substring_regex, node, pattern=r"\.0+$", replacement="")


def rounded(scope: Scope, node: Node, digits: int) -> Node:
    """The node rounded half away from zero, as in SQL."""
    if node.family == "int" and digits >= 0:
        return node
    if node.family == "decimal":
        if digits >= node.type.scale:
            return node
        if node.type.precision < 76:  # 9.9 rounds to 10: one more digit
            node = scope.cast(node, decimal_type(node.type.precision + 1, node.type.scale))
    return scope.call(pc.round, node, ndigits=digits, round_mode=HALF_UP)


def try_type(scope: Scope, node: Node, kind: pa.DataType) -> Node:
    """TRY_CAST: NULL for a value that the type cannot hold."""
    source, target = node.family, family(kind)
    if node.type == kind or source == "null" or target == "text":
        return to_type(scope, node, kind)
    if source == "text":
        node = scope.call(pc.utf8_trim_whitespace, node)
        if target == "int":
            node = _where(scope, _matching(scope, node, _WHOLE_TEXT), node)
            return _within(scope, scope.cast(node, pa.decimal128(38, 0)), kind)
        if target == "float":
            return scope.cast(_where(scope, _matching(scope, node, _FLOAT_TEXT), node), kind)
        if target == "bool":
            return scope.cast(_where(scope, _matching(scope, node, "^(?i:true|false|0|1)$"), node), kind)
        if pat.is_date32(kind):
            return _try_date(scope, node)
    if source in NUMBERS and target == "int":
        return _within(scope, node if source == "int" else scope.call(pc.trunc, node), kind)
    if source in NUMBERS and target == "float":
        return to_type(scope, node, kind)
    raise InvalidArgument(f"TRY_CAST from {node.type} to {kind} is not available")


def _matching(scope: Scope, node: Node, pattern: str) -> Node:
    return scope.call(pc.match_substring_regex, node, pattern=pattern)


def _where(scope: Scope, condition: Node, node: Node) -> Node:
    return scope.call(pc.if_else, condition, node, literal(pa.scalar(None, node.type)))


def _within(scope: Scope, node: Node, kind: pa.DataType) -> Node:
    bits = kind.bit_width
    low, high = (0, 2**bits - 1) if pat.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    bounds = [literal(value) for value in (from_count(low, kind), from_count(high, kind)) if value is not None]
    operator = "<" if node.family == "float" and bits == 64 else "<="  # the bound itself is not exact as a float
    inside = scope.both(scope.compare(">=", node, bounds[0]), scope.compare(operator, node, bounds[1]))
    return scope.cast(_where(scope, inside, node), kind)


def _try_date(scope: Scope, node: Node) -> Node:
    node = _where(scope, _matching(scope, node, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"), node)
    read = scope.call(pc.strptime, node, format="%Y-%m-%d", unit="s", error_is_null=True)
    date = scope.cast(read, pa.date32())
    # Arrow parses the 30th of February as a day of March, so invalid dates do not survive a round trip.
    printed = scope.cast(date, pa.string())
    return _where(scope, scope.compare("=", printed, scope.cast(node, pa.string())), date)
