"""Translation of Polars conditions to Arrow expressions for pruning.

The result is true for every row that matches the condition, and possibly for others. Unsupported parts are dropped
where that only adds rows, so the true and the false case are translated separately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.expressions.membership import among
from parketto.expressions.nodes import Node, Scope, balanced, false, literal
from parketto.expressions.polars_tree import function_name, tagged, unnamed
from parketto.expressions.time_zones import Step
from parketto.expressions.values import from_count, nanoseconds

#: Evaluates a step without columns; None if that fails.
Constant = Callable[[Any], pa.Array | None]

_OPERATORS = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_BETWEEN = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
# By float width: integers beyond these are not exact as floats, and Polars may compare as floats.
_EXACT = {64: 2**53, 32: 2**24}


def possible(tree: Any, fields: pa.Schema, constant: Constant) -> tuple[pc.Expression, tuple[Step, ...]]:
    """An Arrow condition that is true wherever the tree is, and its derived columns.

    TRUE if no part of the tree is supported.
    """
    scope = Scope(fields)
    try:
        found = _Reader(scope, constant).when(tree, True)
    except InvalidArgument:
        found = None  # Polars reports type errors itself
    return (pc.scalar(True), ()) if found is None else (found.expression, tuple(scope.steps))


class _Reader:
    def __init__(self, scope: Scope, constant: Constant) -> None:
        self.scope = scope
        self.constant = constant

    def when(self, tree: Any, wanted: bool) -> Node | None:
        """A condition for all rows for which the tree is true, or false; None means any row."""
        kind, body = tagged(unnamed(tree))
        if kind == "Column":
            column = self._column(tree)
            return None if column is None or column.family != "bool" else self._unless(column, wanted)
        if kind == "Literal":
            return self._truth(self.constant(tree), wanted)
        if kind == "BinaryExpr":
            return self._binary(body["op"], body["left"], body["right"], wanted)
        if kind == "Function":
            return self._function(body, wanted)
        return None

    def _unless(self, node: Node, wanted: bool) -> Node:
        return node if wanted else self.scope.negation(node)

    def _truth(self, values: pa.Array | None, wanted: bool) -> Node | None:
        if values is None or len(values) != 1 or not pat.is_boolean(values.type):
            return None
        return None if values[0].as_py() is wanted else false()

    def _column(self, tree: Any) -> Node | None:
        kind, name = tagged(unnamed(tree))
        if kind != "Column":
            return None
        return Node(pc.field(name), self.scope.schema.field(name).type)

    def _binary(self, op: str, left: Any, right: Any, wanted: bool) -> Node | None:
        if op in ("And", "LogicalAnd", "Or", "LogicalOr"):
            sides = [self.when(part, wanted) for part in (left, right)]
            return self._both(*sides) if op.endswith("And") is wanted else self._either(*sides)
        if op in ("EqValidity", "NotEqValidity"):
            return self._same(left, right, (op == "EqValidity") is wanted)
        if op not in _OPERATORS:
            return None
        return self._comparison(_OPERATORS[op], left, right, wanted)

    def _both(self, left: Node | None, right: Node | None) -> Node | None:
        if left is None or right is None:
            return left or right
        return self.scope.both(left, right)

    def _either(self, left: Node | None, right: Node | None) -> Node | None:
        return None if left is None or right is None else self.scope.either(left, right)

    def _comparison(self, operator: str, left: Any, right: Any, wanted: bool) -> Node | None:
        column = self._column(left)
        if column is None:
            column, right, operator = self._column(right), left, _MIRRORED[operator]
        values = None if column is None else self.constant(right)
        if column is None or values is None or len(values) != 1:
            return None
        return self._compare(operator if wanted else _OPPOSITE[operator], column, values[0])

    def _same(self, left: Any, right: Any, wanted: bool) -> Node | None:
        column = self._column(left)
        values = None if column is None else self.constant(right)
        if column is None or values is None or len(values) != 1:
            return None
        null = self.scope.call(pc.is_null, column)
        if not values[0].is_valid:
            return self._unless(null, wanted)
        compared = self._compare("=" if wanted else "<>", column, values[0])
        return compared if wanted else self._either(compared, null)

    def _compare(self, operator: str, column: Node, value: pa.Scalar) -> Node | None:
        """A comparison that is true wherever the Polars comparison is."""
        if not value.is_valid:
            return false()
        if _is_coarser(value.type, column.type):
            return self._compare_coarse(operator, column, value)
        comparable = _as_compared(value, column.type)
        return None if comparable is None else self.scope.compare(operator, column, literal(comparable))

    def _compare_coarse(self, operator: str, column: Node, value: pa.Scalar) -> Node | None:
        """Polars compares timestamps in the coarser unit and truncates the finer one: `=` matches a whole unit."""
        step = nanoseconds(value.type) // nanoseconds(column.type)
        ends = [from_count(count * step, column.type) for count in (value.value, value.value + 1)]
        if ends[0] is None or ends[1] is None:
            return None
        first, after = literal(ends[0]), literal(ends[1])
        if operator == "<=":
            return self.scope.compare("<", column, after)
        found = self.scope.compare(">=" if operator == "=" else operator, column, first)
        return self.scope.both(found, self.scope.compare("<", column, after)) if operator == "=" else found

    def _function(self, body: Any, wanted: bool) -> Node | None:
        family, name, options = function_name(body["function"])
        if family != "Boolean":
            return None
        first, *others = body["input"]
        if name == "Not":
            return self.when(first, not wanted)
        if name == "IsBetween":
            low, high = (
                self._comparison(operator, first, end, wanted)
                for operator, end in zip(_BETWEEN[options["closed"]], others, strict=True)
            )
            return self._both(low, high) if wanted else self._either(low, high)
        column = self._column(first)
        if column is None:
            return None
        if name in ("IsNull", "IsNotNull"):
            return self._unless(self.scope.call(pc.is_null, column), wanted is (name == "IsNull"))
        return self._among(column, others[0], options, wanted) if name == "IsIn" else None

    def _among(self, column: Node, listed: Any, options: Any, wanted: bool) -> Node | None:
        values = self.constant(listed)
        while values is not None and (pat.is_list(values.type) or pat.is_large_list(values.type)):
            values = values.flatten()
        if values is None:
            return None
        found = self._among_values(column, values.drop_null(), wanted)
        if found is None or not (options["nulls_equal"] or values.null_count):
            return found
        # Keep NULL rows if the list contains NULL: Polars decides whether they match.
        return self.scope.either(found, self.scope.call(pc.is_null, column))

    def _among_values(self, column: Node, values: pa.Array, wanted: bool) -> Node | None:
        if _all_compared(values.type, column.type):
            return self._unless(among(self.scope, column, [], [values.cast(column.type)]), wanted)
        if not any(_is_coarser(value.type, column.type) for value in values):
            comparable = [_as_compared(value, column.type) for value in values]
            known = [literal(value) for value in comparable if value is not None]
            return self._unless(among(self.scope, column, known), wanted) if len(known) == len(values) else None
        found = [self._compare("=" if wanted else "<>", column, value) for value in values]
        parts = [part for part in found if part is not None]
        return (
            balanced(self.scope.either if wanted else self.scope.both, parts) if len(parts) == len(found) else None
        )


def _all_compared(values: pa.DataType, column: pa.DataType) -> bool:
    """Whether Polars compares all values of a type with the column as SQL does, and `among` takes them in bulk."""
    if pat.is_large_string(values) or pat.is_string(values):
        return bool(pat.is_string(column) or pat.is_large_string(column))
    return bool(pat.is_int64(column) and pat.is_signed_integer(values))


def _is_coarser(value: pa.DataType, column: pa.DataType) -> bool:
    if not (pat.is_timestamp(value) and pat.is_timestamp(column) and bool(value.tz) == bool(column.tz)):
        return False
    return nanoseconds(value) > nanoseconds(column)


def _as_compared(value: pa.Scalar, column: pa.DataType) -> pa.Scalar | None:
    """The value, if Polars compares it with the column as SQL does; else None."""
    kind = value.type
    if pat.is_large_string(kind) or pat.is_string(kind):
        return value.cast(column) if pat.is_string(column) or pat.is_large_string(column) else None
    if pat.is_boolean(kind):
        return value if pat.is_boolean(column) else None
    if pat.is_integer(kind) or pat.is_floating(kind):
        return value if _is_exact_number(value, column) else None
    if pat.is_date32(kind):
        return value if pat.is_date32(column) or (pat.is_timestamp(column) and not column.tz) else None
    if pat.is_timestamp(kind):
        if pat.is_date32(column):
            return value if not kind.tz else None
        same = pat.is_timestamp(column) and bool(column.tz) == bool(kind.tz)
        return value if same and value.value * nanoseconds(kind) % nanoseconds(column) == 0 else None
    return None


def _is_exact_number(value: pa.Scalar, column: pa.DataType) -> bool:
    number = value.as_py()
    if pat.is_integer(column):
        if pat.is_int64(column) and pat.is_signed_integer(value.type):
            return True
        single = column.bit_width < 32
    elif pat.is_float32(column) or pat.is_float64(column):
        if pat.is_float64(column) and isinstance(number, float):
            return True
        single = pat.is_float32(column)
    else:
        return False
    if isinstance(number, float) and single and float(np.float32(number)) != number:
        return False
    narrow = single and (isinstance(number, float) or pat.is_floating(column))
    return bool(abs(number) < _EXACT[32 if narrow else 64])
