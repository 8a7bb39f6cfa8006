"""Arithmetic on numbers with SQL semantics."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.expressions.nodes import Node, Scope, literal
from parketto.expressions.values import NUMBERS, as_decimal_type, decimal_digits, decimal_type

_ARITHMETIC = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked, "/": pc.divide_checked}


def calculate(scope: Scope, operator: str, left: Node, right: Node) -> Node:
    """`+ - * / %`: 64-bit integers with overflow errors, exact decimals; division by zero gives NULL."""
    for side in (left, right):
        if side.family not in NUMBERS and side.family != "null":
            raise InvalidArgument(f"cannot calculate with {side.type} ({operator!r} needs numbers); use CAST")
    if "null" in (left.family, right.family):
        return literal(pa.scalar(None, pa.float64() if "float" in (left.family, right.family) else pa.int64()))
    if operator == "%":
        return _remainder(scope, left, right)
    left, right = _operands(scope, operator, left, right)
    if operator == "/":
        right = _without_zero(scope, right)
    return scope.call(_ARITHMETIC[operator], left, right)


def _remainder(scope: Scope, left: Node, right: Node) -> Node:
    left, right = _operands(scope, "%", left, right)
    right = _without_zero(scope, right)
    if left.family == "decimal":
        whole = scope.call(pc.trunc, calculate(scope, "/", left, right))
    else:
        whole = scope.call(pc.divide_checked, left, right)
        whole = scope.call(pc.trunc, whole) if left.family == "float" else whole
    return calculate(scope, "-", left, calculate(scope, "*", whole, right))


def _without_zero(scope: Scope, node: Node) -> Node:
    zero = literal(pa.scalar(0, node.type))
    return scope.call(pc.if_else, scope.call(pc.equal, node, zero), literal(pa.scalar(None, node.type)), node)


def _operands(scope: Scope, operator: str, left: Node, right: Node) -> tuple[Node, Node]:
    families = {left.family, right.family}
    if "float" in families or (operator == "/" and families == {"int"}):
        return scope.cast(left, pa.float64()), scope.cast(right, pa.float64())
    if families == {"int"}:
        kind = _wide_integer(operator, left, right)
        if kind is not None:
            return scope.cast(left, kind), scope.cast(right, kind)
    sides = [_narrowest_decimal(side) for side in (left, right)]
    digits = decimal_digits(operator, *sides)
    if digits > 38:
        sides = [pa.decimal256(kind.precision, kind.scale) for kind in sides]
    decimal_type(digits, 0)  # raises if too wide
    return scope.cast(left, sides[0]), scope.cast(right, sides[1])


def _wide_integer(operator: str, left: Node, right: Node) -> pa.DataType | None:
    if not any(pat.is_uint64(side.type) for side in (left, right)):
        return pa.int64()
    signed = [side for side in (left, right) if not pat.is_unsigned_integer(side.type)]
    fits = all(side.literal is not None and side.literal.as_py() >= 0 for side in signed)
    # A difference of unsigned numbers may be negative; decimals can hold it.
    return pa.uint64() if fits and operator != "-" else None


def _narrowest_decimal(node: Node) -> pa.DataType:
    if node.literal is not None and node.literal.is_valid and node.family == "int":
        return pa.decimal128(max(1, len(str(abs(node.literal.as_py())))), 0)
    return as_decimal_type(node.type)
