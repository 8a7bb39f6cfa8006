"""The schema of a footer: its leaf columns, and whether two schemas mean the same to every reader."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from parketto.errors import FooterError
from parketto.parquet.thrift import (
    BINARY,
    FALSE,
    I8,
    I32,
    STRUCT,
    TRUE,
    Fields,
    decode,
    decode_list,
    encode,
    encode_structs,
    key,
)

_TYPE, TYPE_LENGTH, _REPETITION, NAME = key(1, I32), key(2, I32), key(3, I32), key(4, BINARY)
CHILDREN, _CONVERTED, _SCALE, _PRECISION = key(5, I32), key(6, I32), key(7, I32), key(8, I32)
_FIELD_ID, LOGICAL = key(9, I32), key(10, STRUCT)
_KNOWN = frozenset(
    {_TYPE, TYPE_LENGTH, _REPETITION, NAME, CHILDREN, _CONVERTED, _SCALE, _PRECISION, _FIELD_ID, LOGICAL}
)
_REQUIRED, _OPTIONAL, _REPEATED = range(3)
_INT32, _INT64, INT96, FIXED = 1, 2, 3, 7
_DECIMAL = 5
_MAX_DEPTH = 256
# Dates and timestamps, by converted type and by logical type.
_TEMPORAL_CONVERTED = frozenset({6, 9, 10})
_TEMPORAL_LOGICAL = frozenset({key(6, STRUCT), key(8, STRUCT)})


class Leaf(NamedTuple):
    """A leaf column: every row group has one chunk of it."""

    path: tuple[bytes, ...]
    physical_type: int
    #: Whether a row may have several values.
    repeated: bool
    #: Whether it contains dates or timestamps, of any type.
    temporal: bool


@dataclass(frozen=True)
class Schema:
    """A parsed schema."""

    leaves: tuple[Leaf, ...]
    #: The maximum definition and repetition level of each leaf.
    levels: tuple[tuple[int, int], ...]
    #: A description per element; if all are equal, every reader sees the same rows.
    elements: tuple[tuple[Any, ...], ...]
    #: The converted type of each element, if it has one.
    converted: tuple[int | None, ...]


@functools.lru_cache(maxsize=32)
def read_schema(raw: bytes) -> Schema:
    """Parse a raw schema. Many files share one, so the last ones are cached."""
    elements = [decode(element) for element in decode_list(raw, STRUCT)]
    if not elements:
        raise FooterError("its schema is empty")
    leaves: list[tuple[Leaf, tuple[int, int]]] = []
    _walk(elements, leaves)
    return Schema(
        tuple(leaf for leaf, _ in leaves),
        tuple(levels for _, levels in leaves),
        tuple(_described(element, root=number == 0) for number, element in enumerate(elements)),
        tuple(element.get(_CONVERTED) for element in elements),
    )


def difference(first: bytes, other: bytes) -> str | None:
    """How two raw schemas differ in meaning; None if they do not."""
    if first == other:
        return None
    one, two = read_schema(first), read_schema(other)
    if len(one.elements) != len(two.elements):
        return f"schemas have {len(one.elements) - 1} and {len(two.elements) - 1} fields"
    for mine, theirs, left, right in zip(one.elements, two.elements, one.converted, two.converted, strict=True):
        # Some readers prefer the converted type over the logical type, so converted types must not differ.
        contradicts = left is not None and right is not None and left != right
        if mine != theirs or contradicts:
            name = mine[0].decode(errors="replace")
            other_name = theirs[0].decode(errors="replace")
            return f"schemas differ in {name!r}" + (f" and {other_name!r}" if name != other_name else "")
    return None


def column_difference(common: bytes, other: bytes) -> str | None:
    """How the columns of a raw schema differ from the common ones, as text; None if both mean the same."""
    reason = difference(common, other)
    if reason is None:
        return None
    expected, found = (
        [".".join(_text(name) for name in leaf.path) for leaf in read_schema(raw).leaves]
        for raw in (common, other)
    )
    missing = [name for name in expected if name not in found]
    added = [name for name in found if name not in expected]
    parts = [f"missing column {name!r}" for name in missing] + [f"extra column {name!r}" for name in added]
    return "; ".join(parts) or ("different column order" if expected != found else reason)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


@functools.lru_cache(maxsize=32)
def narrowed(raw: bytes, names: frozenset[bytes]) -> bytes:
    """A raw schema with only some of its top-level columns, by name."""
    elements = decode_list(raw, STRUCT)
    kept: list[bytes] = []
    root, count, at = decode(elements[0]), 0, 1
    while at < len(elements):
        start, missing = at, 1
        name = decode(elements[start]).get(NAME)
        while missing and at < len(elements):
            missing += decode(elements[at]).get(CHILDREN, 0) - 1
            at += 1
        if name in names:
            kept += elements[start:at]
            count += 1
    return encode_structs([encode({**root, CHILDREN: count}), *kept])


def renamed_schema(raw: bytes, names: Mapping[bytes, bytes]) -> bytes:
    """A raw schema with other names of top-level columns, by their old names."""
    elements = decode_list(raw, STRUCT)
    at = 1
    while at < len(elements):
        element = decode(elements[at])
        if element.get(NAME) in names:
            elements[at] = encode({**element, NAME: names[element[NAME]]})
        missing = 1
        while missing and at < len(elements):  # skips the fields inside of the column
            missing += decode(elements[at]).get(CHILDREN, 0) - 1
            at += 1
    return encode_structs(elements)


def exchanged(raw: bytes, other: bytes, leaves: Collection[int]) -> bytes:
    """A raw schema with some leaves, by number, taken from another schema of the same shape."""
    elements, others = decode_list(raw, STRUCT), decode_list(other, STRUCT)
    if len(elements) != len(others):
        raise FooterError("schemas of different shapes cannot be combined")
    at = 0
    for position in range(1, len(elements)):
        element = decode(elements[position])
        if _TYPE in element and not element.get(CHILDREN, 0):
            if at in leaves:
                elements[position] = others[position]
            at += 1
    return encode_structs(elements)


def _walk(elements: list[Fields], leaves: list[tuple[Leaf, tuple[int, int]]]) -> None:
    # (children left, path, levels) of the open groups, outermost first.
    open_groups: list[tuple[int, tuple[bytes, ...], tuple[int, int]]] = []
    for number, element in enumerate(elements):
        children = element.get(CHILDREN, 0)
        path: tuple[bytes, ...] = ()
        levels = (0, 0)
        if number:
            while open_groups and not open_groups[-1][0]:
                open_groups.pop()
            if not open_groups:
                raise FooterError("its schema has fields without a parent")
            left, above, levels = open_groups[-1]
            open_groups[-1] = (left - 1, above, levels)
            path, repetition = (*above, _name(element)), element[_REPETITION]
            levels = (levels[0] + (repetition != _REQUIRED), levels[1] + (repetition == _REPEATED))
        if number and _TYPE in element and not children:
            leaves.append((Leaf(path, element[_TYPE], levels[1] > 0, _is_temporal(element)), levels))
        else:
            # Some writers make a column of a group without fields; no row group has a chunk of it.
            if not 0 <= children < len(elements) or len(open_groups) > _MAX_DEPTH:
                raise FooterError("its schema has an invalid number of fields, or is nested too deeply")
            open_groups.append((children, path, levels))
    if any(left for left, _, _ in open_groups):
        raise FooterError("its schema has fewer fields than it declares")


def _name(element: Fields) -> bytes:
    name = element.get(NAME)
    if name is None or element.get(_REPETITION) not in (_REQUIRED, _OPTIONAL, _REPEATED):
        raise FooterError("its schema has a field without a name or a valid repetition")
    return bytes(name)


def _is_temporal(element: Fields) -> bool:
    if element[_TYPE] == INT96 or element.get(_CONVERTED) in _TEMPORAL_CONVERTED:
        return True
    return LOGICAL in element and not _TEMPORAL_LOGICAL.isdisjoint(decode(element[LOGICAL]))


def _described(element: Fields, *, root: bool) -> tuple[Any, ...]:
    """The properties of an element that matter to readers. The root's name and repetition depend on the writer."""
    kind = element.get(_TYPE)
    field_id = element.get(_FIELD_ID, -1)
    unknown = tuple(sorted((field, value) for field, value in element.items() if field not in _KNOWN))
    return (
        b"" if root else element.get(NAME, b""),
        kind,
        element.get(TYPE_LENGTH, 0) if kind == FIXED else 0,
        None if root else element.get(_REPETITION),
        element.get(CHILDREN, 0),
        field_id if field_id >= 0 else None,
        _meaning(element),
        unknown,
    )


def _meaning(element: Fields) -> object:
    """The logical type of an element, whether it declares a logical type, a converted type, or both.

    The converted types of times contain less, and PyArrow maps them to another type: they are compared as such.
    """
    logical = element.get(LOGICAL)
    converted = element.get(_CONVERTED)
    if logical is None and converted is not None:
        logical = _logical_type(element, converted)
        if logical is None:
            return converted, element.get(_SCALE), element.get(_PRECISION)
    # Signed integers of 32 or 64 bits are what the physical type means anyway.
    return None if logical == _PLAIN.get(element.get(_TYPE, -1)) else logical


def _logical_type(element: Fields, converted: int) -> bytes | None:
    if converted == _DECIMAL:
        decimal = {key(1, I32): element.get(_SCALE, 0), key(2, I32): element.get(_PRECISION, 0)}
        return encode({key(5, STRUCT): decimal})
    if converted in _INTEGERS:
        return _INTEGERS[converted]
    return encode({key(_EQUIVALENT[converted], STRUCT): {}}) if converted in _EQUIVALENT else None


def _integer(bits: int, *, signed: bool) -> bytes:
    return encode({key(10, STRUCT): {key(1, I8): bytes([bits]), key(2, TRUE if signed else FALSE): b""}})


# Converted types with an equivalent logical type: UTF8, MAP, LIST, ENUM, DATE, JSON, BSON.
_EQUIVALENT = {0: 1, 1: 2, 3: 3, 4: 4, 6: 6, 19: 12, 20: 13}
_INTEGERS = {11 + at: _integer(8 << at, signed=False) for at in range(4)} | {
    15 + at: _integer(8 << at, signed=True) for at in range(4)
}
_PLAIN = {_INT32: _INTEGERS[17], _INT64: _INTEGERS[18]}
