"""Expression building: comparisons, logic and arithmetic with SQL semantics on Arrow kernels.

Arrow's implicit casts go through floats and fail on mixed integers, and its comparisons follow IEEE while SQL
databases order NaN above every number. So operands are cast to a common type here first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.expressions.time_zones import (
    Clock,
    Conversion,
    Derivation,
    Step,
    is_clock,
    is_instant,
    parse_clock,
    parse_time,
)
from parketto.expressions.values import (
    ARROW_ERRORS,
    COUNTED,
    NUMBERS,
    beyond,
    common_type,
    counted,
    counts_alike,
    counts_nanoseconds,
    evaluate,
    family,
    float32_at_most,
    from_count,
)

_COMPARISONS: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ONE_ROW = pa.table([pa.nulls(1)], names=["rows"])


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An expression, its type, and its value if it is a literal.

    An `untyped` literal is a number from the SQL text without an explicit type.
    """

    expression: pc.Expression
    type: pa.DataType
    literal: pa.Scalar | None = None
    untyped: bool = False
    #: Whether it is SQL's TIMESTAMP: in Spark an instant, given as a wall-clock time with gaps and overlaps.
    is_told: bool = False

    @property
    def family(self) -> str:
        """The type family of its values."""
        return family(self.type)

    @property
    def is_null(self) -> bool:
        """Whether it is a literal NULL."""
        return self.literal is not None and not self.literal.is_valid


class Scope:
    """The columns that expressions may use, in their plain types, and the time zone of timestamps without one."""

    def __init__(self, schema: pa.Schema, clock: Clock | None = None) -> None:
        self.schema = schema
        self.clock = Clock() if clock is None else clock
        self.steps: list[Step] = []
        # Arrow cannot evaluate expressions on a table without columns.
        self._empty = schema.empty_table() if schema.names else _ONE_ROW.slice(0, 0)

    def call(self, function: Callable[..., pc.Expression], *operands: Node, **options: Any) -> Node:
        """A function call. Calls on literals are folded into a literal, which pruning can use."""
        try:
            expression = function(*(operand.expression for operand in operands), **options)
            if all(operand.literal is not None for operand in operands):
                return literal(evaluate(expression, _ONE_ROW)[0])
            return Node(expression, evaluate(expression, self._empty).type)
        except ARROW_ERRORS as error:
            raise InvalidArgument(f"{' '.join(str(error).split())}") from error

    def cast(self, node: Node, kind: pa.DataType) -> Node:
        """The node cast to a type that can hold its values; integers are rounded to the nearest float."""
        if node.type == kind:
            return node
        if node.literal is not None and node.family == "int" and pat.is_decimal(kind) and node.literal.is_valid:
            return literal(pa.scalar(Decimal(node.literal.as_py()), kind))  # Arrow's cast needs room for any int
        if is_instant(node.type) and not is_instant(kind):
            node = self.wall(node)
        elif is_instant(kind) and is_clock(node.type):
            node = self.instant(node)
        safe = not (pat.is_floating(kind) and node.family in NUMBERS)
        return self.call(lambda value: value.cast(kind, safe=safe), node)

    def wall(self, node: Node) -> Node:
        """Instants as wall-clock times of the zone (timestamps without a zone); other nodes unchanged."""
        if not is_instant(node.type):
            return node
        if node.literal is None and self.clock.zone.is_utc:
            unit = node.type.unit
            return self.call(lambda value: value.cast(pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit)), node)
        return self.converted(node, Conversion("wall", self.clock.zone))

    def instant(self, node: Node) -> Node:
        """Dates, wall-clock times of the zone, or strings as instants."""
        if is_instant(node.type):
            return node
        if node.literal is None and node.family == "timestamp" and self.clock.zone.is_utc:
            return self.call(lambda value: value.cast(pa.timestamp(node.type.unit, "UTC")), node)
        return self.converted(node, Conversion("instant", self.clock.zone))

    def converted(self, node: Node, conversion: Derivation) -> Node:
        """The node after a conversion: a column of a step, or a literal if the node is one."""
        try:
            if node.literal is not None:
                return literal(conversion.run(pa.array([node.literal], node.type))[0])
            for step in self.steps:
                if step.conversion == conversion and step.source.equals(node.expression):
                    return Node(pc.field(step.target.name), step.target.type)
            kind = conversion.run(pa.array([], node.type)).type
        except ARROW_ERRORS as error:
            raise InvalidArgument(f"{' '.join(str(error).split())}") from error
        name = f"step {len(self.steps)}"
        while name in self.schema.names:
            name += "'"
        step = Step(pa.field(name, kind), node.expression, conversion)
        self.steps.append(step)
        self._empty = self._empty.append_column(step.target, pa.array([], kind))
        return Node(pc.field(name), kind)

    def unified(self, nodes: Sequence[Node], doing: str) -> list[Node]:
        """All nodes cast to a common type; string literals are parsed as the type of the others."""
        kind = pa.null()
        for node in nodes:
            if node.literal is None or node.family != "text":
                kind = common_type(kind, node.type, doing)
        texts = [node for node in nodes if node.literal is not None and node.family == "text"]
        if texts and kind in (pa.null(), pa.string()):
            kind = pa.string()
        sample = Node(pc.scalar(None), kind)
        nodes = [literal(read_literal(node, sample)) if node in texts else node for node in nodes]
        for node in nodes:
            kind = common_type(kind, node.type, doing)
        return [self.cast(node, kind) for node in nodes]

    def compare(self, operator: str, left: Node, right: Node) -> Node:
        """A comparison; NULL if either side is NULL."""
        if left.literal is not None and right.literal is None:
            return self.compare(_MIRRORED[operator], right, left)
        if left.is_null or right.is_null:
            return null_truth()
        if right.literal is not None:
            if left.family != right.family and right.family == "text":
                right = literal(read_literal(right, left))
            elif left.family != right.family and left.family == "text" and left.literal is not None:
                left = literal(read_literal(left, right))
        left, right = self._on_one_clock(left, right)
        if right.literal is not None and is_clock(left.type) and is_instant(right.type):
            return self._compare_shown(operator, left, right)
        if right.literal is not None:
            if exact := self._compare_counted(operator, left, right):
                return exact
            if left.family == "float" and right.family in NUMBERS:
                return self._compare_float(operator, left, right)
        kind = common_type(left.type, right.type)
        if family(kind) == "nested":
            raise InvalidArgument(f"cannot compare values of type {kind}")
        left, right = self.cast(left, kind), self.cast(right, kind)
        if family(kind) == "float":
            return self._compare_floats(operator, left, right)
        return self.call(_COMPARISONS[operator], left, right)

    def _on_one_clock(self, left: Node, right: Node) -> tuple[Node, Node]:
        """Convert wall-clock times to instants where needed; those compared with a literal stay unconverted."""
        if (left.is_told or right.is_told) and is_clock(left.type) and is_clock(right.type):
            right = right if self.clock.zone.is_utc else self.instant(right)
        if is_instant(left.type) and is_clock(right.type):
            return left, self.instant(right)
        if not (is_clock(left.type) and is_instant(right.type)):
            return left, right
        if right.literal is None or not right.literal.is_valid:
            return self.instant(left), right
        seconds = math.floor(counted(right.literal, pa.timestamp("s")))
        # A day may begin at a clock change. All other times compare the same way as wall-clock times.
        unambiguous = left.family != "date" or self.clock.zone.is_quiet(seconds)
        return left if unambiguous else self.instant(left), right

    def _compare_shown(self, operator: str, left: Node, right: Node) -> Node:
        """Compare wall-clock times with the wall-clock time of an instant, as Spark does: this can be pruned."""
        local = self.wall(right)
        first = self.instant(local)
        assert first.literal is not None, "conversions of literals are literals"
        assert right.literal is not None, "callers check this"
        if first.literal.value != right.literal.value:  # the second of two equal times; the first is meant
            if operator in ("=", "<>"):
                return self.constant(left, operator == "<>")
            operator = "<=" if operator in ("<", "<=") else ">"
        return self.compare(operator, replace(left, is_told=False), local)

    def _compare_counted(self, operator: str, left: Node, right: Node) -> Node | None:
        """Compare with a literal exactly, in the units of the left type, even if it lies between two units."""
        assert right.literal is not None
        if left.family not in COUNTED or not counts_alike(left.type, right.type):
            return None
        if right.family == "float":
            number = right.literal.as_py()
            if not math.isfinite(number):
                return self.constant(left, beyond(operator, above=number != -math.inf))
        count = counted(right.literal, left.type)
        whole = math.floor(count)
        if whole != count:
            if operator in ("=", "<>"):
                return self.constant(left, operator == "<>")
            operator = "<=" if operator in ("<", "<=") else ">"
        bound = from_count(whole, left.type)
        if bound is None and counts_nanoseconds(left.type):
            # No constant here: it would prune files whose values do not fit, and reading must report those.
            coarse = pa.timestamp("us", left.type.tz)
            bound = from_count(whole // 1000, coarse)
            left = self.call(lambda value: value.cast(coarse, safe=False), left)
        if bound is None:
            return self.constant(left, beyond(operator, above=whole > 0))
        return self.call(_COMPARISONS[operator], left, literal(bound))

    def _compare_float(self, operator: str, left: Node, right: Node) -> Node:
        assert right.literal is not None
        number = float(right.literal.as_py())
        if math.isnan(number):
            return self._compare_nan(operator, left)
        if pat.is_float32(left.type) and pat.is_float64(right.type) and not right.untyped:
            # SQL widens the left side, so the comparison is exact even between two float32 values.
            below = float32_at_most(number)
            if below != number:
                if operator in ("=", "<>"):
                    return self.constant(left, operator == "<>")
                operator, number = "<=" if operator in ("<", "<=") else ">", below
        elif math.isfinite(number) and not math.isfinite(pa.scalar(number, left.type).as_py()):
            left = self.cast(left, pa.float64())
        plain = self.call(_COMPARISONS[operator], left, literal(pa.scalar(number, left.type)))
        # NaN needs its own term: footer bounds exclude NaN, so pruning may assume that the comparison holds for
        # all rows if it holds for all other values.
        nan = self.call(pc.is_nan, left)
        if operator in ("<>", ">", ">="):
            return self.either(plain, nan)
        return self.both(plain, self.negation(nan))

    def _compare_nan(self, operator: str, left: Node) -> Node:
        if operator in ("<=", ">"):
            return self.constant(left, operator == "<=")
        nan = self.call(pc.is_nan, left)
        return nan if operator in ("=", ">=") else self.negation(nan)

    def _compare_floats(self, operator: str, left: Node, right: Node) -> Node:
        if operator in (">", ">="):
            return self._compare_floats(_MIRRORED[operator], right, left)
        if operator == "<>":
            return self.negation(self._compare_floats("=", left, right))
        left_nan, right_nan = self.call(pc.is_nan, left), self.call(pc.is_nan, right)
        plain = self.call(_COMPARISONS[operator], left, right)
        other = {"=": left_nan, "<": self.negation(left_nan), "<=": self.constant(left, True)}[operator]
        return self.either(plain, self.both(other, right_nan))

    def same(self, left: Node, right: Node) -> Node:
        """Null-safe equality: true if both are equal or both NULL; never NULL."""
        if left.is_null or right.is_null:
            return self.call(pc.is_null, left if right.is_null else right)
        neither = self.both(self.call(pc.is_null, left), self.call(pc.is_null, right))
        return self.either(neither, self.call(pc.coalesce, self.compare("=", left, right), false()))

    def both(self, left: Node, right: Node) -> Node:
        """Three-valued AND."""
        return self.call(pc.and_kleene, truth(left), truth(right))

    def either(self, left: Node, right: Node) -> Node:
        """Three-valued OR."""
        return self.call(pc.or_kleene, truth(left), truth(right))

    def negation(self, node: Node) -> Node:
        """Three-valued NOT."""
        return self.call(pc.invert, truth(node))

    def constant(self, node: Node, value: bool) -> Node:
        """A constant boolean; NULL where the node is NULL."""
        known = self.call(lambda operand: pc.Expression._call("true_unless_null", [operand]), node)
        return known if value else self.negation(known)

    def choose(self, condition: Node, then: Node, otherwise: Node) -> Node:
        """`then` where the condition is true; `otherwise` where it is false or NULL."""
        then, otherwise = self.unified([then, otherwise], "choose between")
        if then.family == "null":
            return then
        certain = self.call(pc.coalesce, truth(condition), false())
        return self.call(pc.if_else, certain, then, otherwise)


def literal(value: pa.Scalar, *, untyped: bool = False) -> Node:
    """A literal value."""
    return Node(pc.scalar(value), value.type, value, untyped)


# Functions, not constants: PyArrow imports pandas when it creates its first scalar.
def false() -> Node:
    """A boolean literal FALSE."""
    return literal(pa.scalar(False))


def null_truth() -> Node:
    """A boolean literal NULL."""
    return literal(pa.scalar(None, pa.bool_()))


def truth(node: Node) -> Node:
    """The node, if it is boolean or NULL; else an error."""
    if node.family == "null":
        return null_truth()
    if node.family != "bool":
        raise InvalidArgument(f"a value of type {node.type} is not a condition; compare it with something")
    return node


def balanced(join: Callable[[Node, Node], Node], parts: list[Node]) -> Node:
    """Many parts combined as a balanced tree: a chain of hundreds would exhaust the stack."""
    while len(parts) > 1:
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [join(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return truth(parts[0])


def read_literal(node: Node, other: Node) -> pa.Scalar:
    """A string literal parsed as the type of another node, for a comparison.

    As in Spark, a time zone in the string is ignored if the other node is a wall-clock time.
    """
    assert node.literal is not None
    text = node.literal.as_py()
    parse = parse_clock if is_clock(other.type) and not other.is_told else parse_time
    return parse(text, other.type)
