"""The functions of the SQL dialect, by the parser's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.expressions.casts import rounded, to_type
from parketto.expressions.nodes import Node, Scope, literal
from parketto.expressions.time_zones import Conversion, is_instant
from parketto.expressions.values import NUMBERS, decimal_type

Translate = Callable[[Any], Node]
Function = Callable[[Scope, Translate, Any], Node]

#: The function names that error messages list.
NAMES = (
    "ABS, CEIL, COALESCE, CONCAT, CONTAINS, CURRENT_DATE, CURRENT_TIMESTAMP, DATE_TRUNC, DAY, ENDSWITH, EXP, "
    "EXTRACT, FLOOR, GREATEST, HOUR, IF, ISNAN, LEAST, LENGTH, LN, LOCALTIMESTAMP, LOWER, LTRIM, MINUTE, MONTH, "
    "NULLIF, POWER, REGEXP_LIKE, REPLACE, ROUND, RTRIM, SECOND, SQRT, STARTSWITH, SUBSTRING, TRIM, UPPER, YEAR"
)
_PARTS = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "week": pc.iso_week,
    "day": pc.day,
    "dayofmonth": pc.day,
    "doy": pc.day_of_year,
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
}
_TIME_PARTS = frozenset({"hour", "minute", "second"})
# Zone offsets are whole seconds, so finer units do not depend on the zone.
_ZONE_UNITS = frozenset({"year", "quarter", "month", "week", "day", "hour", "minute"})
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")


def _needs(node: Node, what: str, *families: str) -> Node:
    if node.family not in families:
        raise InvalidArgument(f"{what} does not accept {node.type}; use CAST")
    return node


def _number(kernel: Callable[..., pc.Expression], name: str, *, as_float: bool = False) -> Function:
    def function(scope: Scope, translate: Translate, tree: Any) -> Node:
        node = translate(tree.this)
        if node.family == "null":
            node = scope.cast(node, pa.float64())
        if _needs(node, name, *NUMBERS).family == "int" and not pat.is_uint64(node.type):
            node = scope.cast(node, pa.int64())
        return scope.call(kernel, scope.cast(node, pa.float64()) if as_float else node)

    return function


def _whole(kernel: Callable[..., pc.Expression], name: str) -> Function:
    def function(scope: Scope, translate: Translate, tree: Any) -> Node:
        node = _needs(translate(tree.this), name, *NUMBERS)
        if node.family == "int":
            return node
        if node.family == "decimal" and node.type.precision < 76:  # 9.9 rounds to 10: one more digit
            node = scope.cast(node, decimal_type(node.type.precision + 1, node.type.scale))
        return scope.call(kernel, node)

    return function


def _text(kernel: Callable[..., pc.Expression], name: str) -> Function:
    def function(scope: Scope, translate: Translate, tree: Any) -> Node:
        return scope.call(kernel, _as_text(scope, translate(tree.this), name))

    return function


def _as_text(scope: Scope, node: Node, name: str) -> Node:
    if node.family == "null":
        return scope.cast(node, pa.string())
    return _needs(node, name, "text")


def _literal_text(translate: Translate, tree: Any, name: str) -> str:
    node = translate(tree)
    if node.literal is None or node.family != "text":
        raise InvalidArgument(f"{name} needs a string literal for {tree.sql()}")
    return str(node.literal.as_py())


def _literal_int(translate: Translate, tree: Any, name: str) -> int:
    node = translate(tree)
    if node.literal is None or node.family != "int":
        raise InvalidArgument(f"{name} needs an integer literal for {tree.sql()}")
    return int(node.literal.as_py())


def _matching(kernel: Callable[..., pc.Expression], name: str) -> Function:
    def function(scope: Scope, translate: Translate, tree: Any) -> Node:
        node = _as_text(scope, translate(tree.this), name)
        return scope.call(kernel, node, pattern=_literal_text(translate, tree.expression, name))

    return function


def _round(scope: Scope, translate: Translate, tree: Any) -> Node:
    node = _needs(translate(tree.this), "ROUND", *NUMBERS)
    decimals = tree.args.get("decimals")
    return rounded(scope, node, _literal_int(translate, decimals, "ROUND") if decimals is not None else 0)


def _trim(scope: Scope, translate: Translate, tree: Any) -> Node:
    node = _as_text(scope, translate(tree.this), "TRIM")
    given = tree.args.get("expression")
    characters = " " if given is None else _literal_text(translate, given, "TRIM")
    kernels = {"LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}
    return scope.call(kernels.get(tree.args.get("position"), pc.utf8_trim), node, characters=characters)


def _length(scope: Scope, translate: Translate, tree: Any) -> Node:
    node = translate(tree.this)
    if node.family == "binary":
        return scope.call(pc.binary_length, node)
    return scope.call(pc.utf8_length, _as_text(scope, node, "LENGTH"))


def _substring(scope: Scope, translate: Translate, tree: Any) -> Node:
    node = _as_text(scope, translate(tree.this), "SUBSTRING")
    if tree.args.get("start") is None:
        raise InvalidArgument("SUBSTRING needs a position")
    start = _literal_int(translate, tree.args["start"], "SUBSTRING")
    given = tree.args.get("length")
    length = None if given is None else max(0, _literal_int(translate, given, "SUBSTRING"))
    if start == 0:
        raise InvalidArgument("SUBSTRING counts characters from 1, or from -1 at the end")
    first = start - 1 if start > 0 else start
    stop = None if length is None or first < 0 <= first + length else first + length
    return scope.call(pc.utf8_slice_codeunits, node, start=first, stop=stop)


def _replace(scope: Scope, translate: Translate, tree: Any) -> Node:
    node = _as_text(scope, translate(tree.this), "REPLACE")
    pattern = _literal_text(translate, tree.expression, "REPLACE")
    given = tree.args.get("replacement")
    replacement = "" if given is None else _literal_text(translate, given, "REPLACE")
    if not pattern:
        return node
    return scope.call(pc.replace_substring, node, pattern=pattern, replacement=replacement)


def _concat(scope: Scope, translate: Translate, tree: Any) -> Node:
    trees = [tree.this, tree.expression] if tree.key == "dpipe" else tree.expressions
    nodes = scope.unified([_as_text(scope, translate(part), "CONCAT") for part in trees], "join")
    separator = literal(pa.scalar("", nodes[0].type))
    return scope.call(pc.binary_join_element_wise, *nodes, separator)


def _date_part(name: str) -> Function:
    return lambda scope, translate, tree: _part(scope, translate(tree.this), name)


def _extract(scope: Scope, translate: Translate, tree: Any) -> Node:
    name = tree.this.name.lower()
    if name not in _PARTS:
        raise InvalidArgument(f"unknown part {name!r}; available: {', '.join(_PARTS)}")
    return _part(scope, translate(tree.expression), name)


def _part(scope: Scope, node: Node, name: str) -> Node:
    if node.family == "date" and name in _TIME_PARTS:
        node = scope.cast(node, pa.timestamp("s"))
    if node.family == "time" and name not in _TIME_PARTS:
        raise InvalidArgument(f"a time of day has no {name}")
    return scope.call(_PARTS[name], scope.wall(_needs(node, name.upper(), "date", "timestamp", "time")))


def _date_trunc(scope: Scope, translate: Translate, tree: Any) -> Node:
    unit = tree.args["unit"].name.lower()
    if unit not in _UNITS:
        raise InvalidArgument(f"unknown unit {unit!r}; available: {', '.join(_UNITS)}")
    node = _needs(translate(tree.this), "DATE_TRUNC", "date", "timestamp")
    if node.family == "date" and _UNITS.index(unit) > _UNITS.index("day"):
        return node
    if is_instant(node.type):
        if unit in _ZONE_UNITS and not scope.clock.zone.is_utc:
            return scope.converted(node, Conversion(unit, scope.clock.zone))
        node = scope.cast(node, pa.timestamp(node.type.unit, "UTC"))
    return scope.call(pc.floor_temporal, node, unit=unit)


def now(scope: Scope) -> Node:
    """The start time of the operation."""
    return literal(pa.scalar(scope.clock.now, pa.timestamp("us", "UTC")))


def _current(value: Callable[[Scope], Node]) -> Function:
    def function(scope: Scope, _translate: Translate, tree: Any) -> Node:
        if tree.args.get("this") is not None:
            raise InvalidArgument(f"{tree.sql_name()} takes no argument")
        return value(scope)

    return function


def _extreme(operator: str) -> Function:
    def function(scope: Scope, translate: Translate, tree: Any) -> Node:
        nodes = scope.unified([translate(part) for part in (tree.this, *tree.expressions)], "compare")
        best = nodes[0]
        for node in nodes[1:]:
            # NULLs are ignored: the result is NULL only if all values are.
            better = scope.either(scope.compare(operator, best, node), scope.call(pc.is_null, node))
            best = scope.choose(better, best, node)
        return best

    return function


def _coalesce(scope: Scope, translate: Translate, tree: Any) -> Node:
    nodes = scope.unified([translate(part) for part in (tree.this, *tree.expressions)], "choose between")
    return scope.call(pc.coalesce, *nodes)


def _nullif(scope: Scope, translate: Translate, tree: Any) -> Node:
    node = translate(tree.this)
    equal = scope.compare("=", node, translate(tree.expression))
    return scope.choose(equal, literal(pa.scalar(None)), node)


def _power(scope: Scope, translate: Translate, tree: Any) -> Node:
    base, exponent = (_needs(translate(part), "POWER", *NUMBERS) for part in (tree.this, tree.expression))
    return scope.call(pc.power, scope.cast(base, pa.float64()), scope.cast(exponent, pa.float64()))


def _isnan(scope: Scope, translate: Translate, tree: Any) -> Node:
    node = _needs(translate(tree.this), "ISNAN", *NUMBERS)
    found = scope.call(pc.is_nan, node) if node.family == "float" else scope.constant(node, False)
    return scope.call(pc.coalesce, found, literal(pa.scalar(False)))


FUNCTIONS: dict[str, Function] = {
    "abs": _number(pc.abs_checked, "ABS"),
    "round": _round,
    "floor": _whole(pc.floor, "FLOOR"),
    "ceil": _whole(pc.ceil, "CEIL"),
    "sqrt": _number(pc.sqrt, "SQRT", as_float=True),
    "ln": _number(pc.ln, "LN", as_float=True),
    "exp": _number(pc.exp, "EXP", as_float=True),
    "pow": _power,
    "isnan": _isnan,
    "lower": _text(pc.utf8_lower, "LOWER"),
    "upper": _text(pc.utf8_upper, "UPPER"),
    "trim": _trim,
    "length": _length,
    "substring": _substring,
    "replace": _replace,
    "startswith": _matching(pc.starts_with, "STARTSWITH"),
    "endswith": _matching(pc.ends_with, "ENDSWITH"),
    "contains": _matching(pc.match_substring, "CONTAINS"),
    "concat": _concat,
    "dpipe": _concat,
    "extract": _extract,
    "datetrunc": _date_trunc,
    "timestamptrunc": _date_trunc,
    "currentdate": _current(lambda scope: to_type(scope, now(scope), pa.date32())),
    "currenttimestamp": _current(now),
    "localtimestamp": _current(lambda scope: scope.wall(now(scope))),
    "greatest": _extreme(">="),
    "least": _extreme("<="),
    "coalesce": _coalesce,
    "nullif": _nullif,
    **{name: _date_part(name) for name in _PARTS},
}
