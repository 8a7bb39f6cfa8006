"""IN: whether values are in a list, for any length of the list, and its pruning by bounds.

Arrow prunes lists of up to 50 values. So a list is a `Step` here: a column of truth values, about which a file's
bounds say something after a binary search in the sorted list.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.expressions.nodes import Node, Scope, balanced, literal, null_truth, read_literal
from parketto.expressions.time_zones import Conversion, Integers, is_clock, is_instant
from parketto.expressions.values import (
    ARROW_ERRORS,
    COUNTED,
    NANOSECONDS,
    NUMBERS,
    common_type,
    counted,
    counts_alike,
    counts_nanoseconds,
    family,
    from_count,
)

# Up to this many values, IN becomes a chain of comparisons: Arrow prunes it, and it needs no hash table.
_SHORT_LIST = 8
_MAX_TABLE = 65_536  # entries of a lookup table beyond eight per value
_DATES = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMES = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?$"


@dataclass(frozen=True, eq=False)
class Membership:
    """Whether values are in a list; False for NULL.

    Attributes:
        values: The list, in the type of the values, without NULL and NaN.
        column: The column whose values these are, or None if they are computed.
    """

    values: pa.Array
    column: str | None = None

    def run(self, values: pa.Array) -> pa.Array:
        """A truth value for each value."""
        if not len(values) or not len(self.values):
            return pa.repeat(pa.scalar(False), len(values))
        if self._ordered is None or (self._table is None and len(values) > len(self._ordered)):
            return pc.is_in(values, value_set=self.values)
        numbers = _integers(values.fill_null(0) if values.null_count else values)
        found = self._searched(numbers) if self._table is None else self._looked_up(numbers)
        if values.null_count:
            found &= np.asarray(values.is_valid())
        return pa.array(found)

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "column": self.column}

    @functools.cached_property
    def _ordered(self) -> Integers | None:
        """The distinct values in ascending order, if they are integers: Arrow builds a hash table per batch."""
        kind = self.values.type
        if pat.is_uint64(kind) or not (pat.is_integer(kind) or pat.is_temporal(kind)):
            return None
        return np.unique(_integers(self.values))

    @functools.cached_property
    def _table(self) -> npt.NDArray[np.bool_] | None:
        """For every number from the first to the last value whether it is in the list, unless it is sparse."""
        ordered = self._ordered
        if ordered is None or int(ordered[-1]) - int(ordered[0]) > _MAX_TABLE + 8 * len(ordered):
            return None
        table = np.zeros(int(ordered[-1]) - int(ordered[0]) + 1, np.bool_)
        table[ordered - ordered[0]] = True
        return table

    def _looked_up(self, numbers: Integers) -> npt.NDArray[np.bool_]:
        assert self._ordered is not None
        assert self._table is not None
        first, last = self._ordered[0], self._ordered[-1]
        inside = (numbers >= first) & (numbers <= last)
        found: npt.NDArray[np.bool_] = self._table[np.where(inside, numbers, first) - first] & inside
        return found

    def _searched(self, numbers: Integers) -> npt.NDArray[np.bool_]:
        assert self._ordered is not None
        at = np.searchsorted(self._ordered, numbers)
        found: npt.NDArray[np.bool_] = self._ordered[np.minimum(at, len(self._ordered) - 1)] == numbers
        return found

    @functools.cached_property
    def _sorted(self) -> list[Any]:
        if self._ordered is not None:
            return list(self._ordered.tolist())
        if pat.is_floating(self.values.type):
            return sorted(set(self.values.to_numpy().tolist()))
        return sorted(set(self.values.to_pylist()))

    def between(self, low: pa.Scalar, high: pa.Scalar) -> bool | None:
        """Whether all values from `low` to `high` are in the list (True), or none of them (False).

        >>> odd = Membership(pa.array([1, 3, 5, 6]))
        >>> [odd.between(pa.scalar(low), pa.scalar(high)) for low, high in ((3, 3), (3, 4), (5, 6), (7, 9))]
        [True, None, True, False]
        """
        kind = self.values.type
        first, last = (end.value if pat.is_temporal(kind) else end.as_py() for end in (low, high))
        start = bisect.bisect_left(self._sorted, first)
        count = bisect.bisect_right(self._sorted, last, lo=start) - start
        if count == 0:
            return False
        if pat.is_floating(kind):
            return None  # bounds exclude NaN
        counts = pat.is_temporal(kind) or pat.is_integer(kind)
        return True if first == last or (counts and count == last - first + 1) else None


def _integers(values: pa.Array) -> Integers:
    kind = values.type
    if pat.is_temporal(kind):
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return np.asarray(values).astype(np.int64, copy=False)


def among(scope: Scope, node: Node, values: Sequence[Node], arrays: Sequence[pa.Array] = ()) -> Node:
    """IN over literals and other values that are not literal NULLs; NULL if the node is NULL.

    Args:
        scope: Where expressions are built.
        node: What is looked up.
        values: Elements of the list.
        arrays: More elements: literal numbers without an explicit type, or strings.
    """
    if node.is_null and (values or arrays):
        return null_truth()
    rest, sets = list(values), []
    for array in arrays:
        members = _members(scope, node, array) if len(array) > _SHORT_LIST else None
        if members is None:
            rest += [literal(value, untyped=family(array.type) in NUMBERS) for value in array]
        else:
            sets.append(members)
    if len(rest) > _SHORT_LIST and _is_plain(scope, node, rest):
        members, rest = _one_by_one(scope, node, rest)
        sets.append(members)
    parts = [scope.compare("=", node, value) for value in rest]
    if sets:
        parts.append(_found(scope, node, pa.concat_arrays(sets)))
    return balanced(scope.either, parts) if parts else scope.constant(node, False)


def _found(scope: Scope, node: Node, members: pa.Array) -> Node:
    names = [name for name in scope.schema.names if node.expression.equals(pc.field(name))]
    found = scope.converted(node, Membership(members, names[0] if names else None))
    return scope.either(found, scope.constant(node, False))


def _is_plain(scope: Scope, node: Node, values: Sequence[Node]) -> bool:
    """Whether all values are literals that can be converted to the type of the node."""
    return (
        node.family != "null"
        and all(value.literal is not None for value in values)
        and not (is_clock(node.type) and any(_needs_zone(scope, value) for value in values))
    )


def _needs_zone(scope: Scope, value: Node) -> bool:
    """Whether the time zone determines which wall-clock times equal the value."""
    return is_instant(value.type) or (value.is_told and not scope.clock.zone.is_utc)


def _one_by_one(scope: Scope, node: Node, values: Sequence[Node]) -> tuple[pa.Array, list[Node]]:
    """The values in the type of the node, and those that must be compared."""
    if node.family == "float":
        return _float_members(node, values)
    members = [_member(scope, node, value) for value in values]
    outside = []
    if counts_nanoseconds(node.type):
        outside = [value for value, member in zip(values, members, strict=True) if member is None]
    return pa.array([member for member in members if member is not None], node.type), outside


def _member(scope: Scope, node: Node, value: Node) -> pa.Scalar | None:
    """A literal in the type of the node; None if no value of that type equals it."""
    if node.family != value.family and value.family == "text":
        value = literal(read_literal(value, node))
    if is_instant(node.type) and is_clock(value.type):
        value = scope.instant(value)
    assert value.literal is not None
    if node.family in COUNTED and counts_alike(node.type, value.type):
        if value.family == "float" and not math.isfinite(value.literal.as_py()):
            return None
        count = counted(value.literal, node.type)
        return from_count(count.numerator, node.type) if count.denominator == 1 else None
    common_type(node.type, value.type)  # raises if there is none
    return scope.cast(value, node.type).literal


def _float_members(node: Node, values: Sequence[Node]) -> tuple[pa.Array, list[Node]]:
    plain = [value for value in values if value.untyped and value.family in NUMBERS]
    numbers = np.array([float(value.literal.as_py()) for value in plain if value.literal is not None], np.float64)
    return _floats(numbers, node.type), [value for value in values if not value.untyped]


def _floats(numbers: np.ndarray[Any, np.dtype[np.float64]], kind: pa.DataType) -> pa.Array:
    """The nearest floats of numbers without a type; both zeros, because they are equal."""
    if pat.is_float32(kind):
        with np.errstate(over="ignore"):
            narrow = numbers.astype(np.float32)
        numbers = narrow[np.isfinite(narrow) | ~np.isfinite(numbers)].astype(np.float64)
    if (numbers == 0).any():
        numbers = np.concatenate([numbers, np.array([0.0, -0.0])])
    return pa.array(numbers, pa.float64()).cast(kind)


def _members(scope: Scope, node: Node, array: pa.Array) -> pa.Array | None:
    """The values of an array in the type of the node, without those that it cannot hold; None if not in bulk."""
    kind, source = node.type, family(array.type)
    if node.family == "float" and source in NUMBERS:
        numbers = array.to_pylist() if source == "decimal" else array.to_numpy()
        return _floats(np.array([float(number) for number in numbers], np.float64), kind)
    match node.family, source:
        case "int", "int":
            bits = kind.bit_width - (0 if pat.is_unsigned_integer(kind) else 1)
            low = 0 if pat.is_unsigned_integer(kind) else -(2**bits)
            numbers = array.to_numpy()
            return pa.array(numbers[(numbers >= low) & (numbers <= min(2**bits, 2**63) - 1)]).cast(kind)
        case "decimal", "int" | "decimal":
            return _decimals(array, kind)
        case "text", "text":
            return array.cast(kind)
        case "date", "text" if pat.is_date32(kind):
            return _parsed(array, kind, _DATES)
        case "timestamp", "text" if not node.is_told:
            return _times(scope, array, kind)
        case _:
            return None


def _decimals(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    wide = array.cast(pa.decimal256(76, array.type.scale if pat.is_decimal(array.type) else 0))
    if not 0 <= kind.scale <= 38:
        return None  # 76 digits might not suffice
    cut = wide.cast(pa.decimal256(76, kind.scale), safe=False)
    fits = pc.equal(cut.cast(wide.type, safe=False), wide)
    if kind.precision < 76:
        limit = pa.scalar(Decimal((0, (1,), kind.precision - kind.scale)), cut.type)
        fits = pc.and_(fits, pc.less(pc.abs(cut), limit))
    return cut.filter(fits).cast(kind)


def _parsed(array: pa.Array, kind: pa.DataType, pattern: str) -> pa.Array | None:
    """Strings as dates or times, if all of them are in the usual form."""
    if not pc.all(pc.match_substring_regex(array, pattern=pattern)).as_py():
        return None
    try:
        return array.cast(kind)
    except ARROW_ERRORS:
        return None  # the conversion of single values reports which one it is


def _times(scope: Scope, array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    times = _parsed(array, pa.timestamp("us"), _TIMES)
    if times is None:
        return None
    if is_instant(kind):
        times = Conversion("instant", scope.clock.zone).run(times)
    step = max(1, NANOSECONDS[kind.unit] // 1000)  # microseconds
    counts = times.cast(pa.int64()).to_numpy()
    try:
        return times.filter(pa.array(counts % step == 0)).cast(kind)
    except ARROW_ERRORS:
        return None  # nanoseconds cannot hold every year
