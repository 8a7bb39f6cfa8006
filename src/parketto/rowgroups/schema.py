"""The schema of a footer: its leaf columns, and what makes two schemas the same to every reader."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from parketto.errors import FooterError
from parketto.rowgroups.compact import (
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

_TYPE, _TYPE_LENGTH, _REPETITION, NAME = key(1, I32), key(2, I32), key(3, I32), key(4, BINARY)
CHILDREN, _CONVERTED, _SCALE, _PRECISION = key(5, I32), key(6, I32), key(7, I32), key(8, I32)
_FIELD_ID, LOGICAL = key(9, I32), key(10, STRUCT)
_KNOWN = frozenset(
    {_TYPE, _TYPE_LENGTH, _REPETITION, NAME, CHILDREN, _CONVERTED, _SCALE, _PRECISION, _FIELD_ID, LOGICAL}
)
_REQUIRED, _OPTIONAL, _REPEATED = range(3)
_INT32, _INT64, INT96, _FIXED = 1, 2, 3, 7
_DECIMAL = 5
_MAX_DEPTH = 256
# Dates and timestamps: the first in either form, the second as logical types number them.
_TEMPORAL_CONVERTED = frozenset({6, 9, 10})
_TEMPORAL_LOGICAL = frozenset({key(6, STRUCT), key(8, STRUCT)})


class Leaf(NamedTuple):
    """A leaf column: what every row group has one chunk of."""

    path: tuple[bytes, ...]
    physical_type: int
    #: Whether a row may have several values.
    repeated: bool
    #: Whether it holds dates or timestamps, in whatever form.
    temporal: bool


@dataclass(frozen=True)
class Schema:
    """A schema, taken apart."""

    leaves: tuple[Leaf, ...]
    #: The highest definition and repetition level of each leaf.
    levels: tuple[tuple[int, int], ...]
    #: A description per element; the same list means the same rows to every reader.
    elements: tuple[tuple[Any, ...], ...]
    #: The older form of each element's type, where it is given.
    converted: tuple[int | None, ...]


@functools.lru_cache(maxsize=32)
def read_schema(raw: bytes) -> Schema:
    """Take a raw schema apart. Many files share one, so the last ones are remembered."""
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
    """How two raw schemas differ in what they mean, if they do."""
    if first == other:
        return None
    one, two = read_schema(first), read_schema(other)
    if len(one.elements) != len(two.elements):
        return f"schemas have {len(one.elements) - 1} and {len(two.elements) - 1} fields"
    for mine, theirs, old, other_old in zip(one.elements, two.elements, one.converted, two.converted, strict=True):
        # Some readers go by the older form where there are both, so it must not contradict.
        contradicts = old is not None and other_old is not None and old != other_old
        if mine != theirs or contradicts:
            name = mine[0].decode(errors="replace")
            other_name = theirs[0].decode(errors="replace")
            return f"schemas differ in {name!r}" + (f" and {other_name!r}" if name != other_name else "")
    return None


def column_difference(common: bytes, other: bytes) -> str | None:
    """How the columns of a raw schema differ from the common ones, in words; None if both mean the same."""
    reason = difference(common, other)
    if reason is None:
        return None
    expected, found = (
        [".".join(_text(name) for name in leaf.path) for leaf in read_schema(raw).leaves]
        for raw in (common, other)
    )
    missing = [name for name in expected if name not in found]
    added = [name for name in found if name not in expected]
    parts = [f"no column {name!r}" for name in missing] + [f"a column {name!r} more" for name in added]
    return "; ".join(parts) or ("another order of columns" if expected != found else reason)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


@functools.lru_cache(maxsize=32)
def narrowed(raw: bytes, names: frozenset[bytes]) -> bytes:
    """A raw schema with some of its columns only, by the names that they have at the top."""
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


def exchanged(raw: bytes, other: bytes, leaves: Collection[int]) -> bytes:
    """A raw schema with some leaves, by their numbers, from another one of the same shape."""
    elements, others = decode_list(raw, STRUCT), decode_list(other, STRUCT)
    if len(elements) != len(others):
        raise FooterError("schemas of different shapes cannot be put together")
    at = 0
    for place in range(1, len(elements)):
        element = decode(elements[place])
        if _TYPE in element and not element.get(CHILDREN, 0):
            if at in leaves:
                elements[place] = others[place]
            at += 1
    return encode_structs(elements)


def _walk(elements: list[Fields], leaves: list[tuple[Leaf, tuple[int, int]]]) -> None:
    # (children left, path, levels) of the groups that are open, outermost first.
    open_groups: list[tuple[int, tuple[bytes, ...], tuple[int, int]]] = []
    for number, element in enumerate(elements):
        children = element.get(CHILDREN, 0)
        path: tuple[bytes, ...] = ()
        levels = (0, 0)
        if number:
            while open_groups and not open_groups[-1][0]:
                open_groups.pop()
            if not open_groups:
                raise FooterError("its schema has fields that belong nowhere")
            left, above, levels = open_groups[-1]
            open_groups[-1] = (left - 1, above, levels)
            path, repetition = (*above, _name(element)), element[_REPETITION]
            levels = (levels[0] + (repetition != _REQUIRED), levels[1] + (repetition == _REPEATED))
        if number and _TYPE in element and not children:
            leaves.append((Leaf(path, element[_TYPE], levels[1] > 0, _is_temporal(element)), levels))
        else:
            # A group without fields is a column to some writers; no row group has one.
            if not 0 <= children < len(elements) or len(open_groups) > _MAX_DEPTH:
                raise FooterError("its schema has impossible fields")
            open_groups.append((children, path, levels))
    if any(left for left, _, _ in open_groups):
        raise FooterError("its schema lacks fields")


def _name(element: Fields) -> bytes:
    name = element.get(NAME)
    if name is None or element.get(_REPETITION) not in (_REQUIRED, _OPTIONAL, _REPEATED):
        raise FooterError("its schema has a field without a name, or that is neither required nor optional")
    return bytes(name)


def _is_temporal(element: Fields) -> bool:
    if element[_TYPE] == INT96 or element.get(_CONVERTED) in _TEMPORAL_CONVERTED:
        return True
    return LOGICAL in element and not _TEMPORAL_LOGICAL.isdisjoint(decode(element[LOGICAL]))


def _described(element: Fields, *, root: bool) -> tuple[Any, ...]:
    """What counts about an element. The root's name and repetition mean nothing; each writer has its own."""
    kind = element.get(_TYPE)
    field_id = element.get(_FIELD_ID, -1)
    unknown = tuple(sorted((place, value) for place, value in element.items() if place not in _KNOWN))
    return (
        b"" if root else element.get(NAME, b""),
        kind,
        element.get(_TYPE_LENGTH, 0) if kind == _FIXED else 0,
        None if root else element.get(_REPETITION),
        element.get(CHILDREN, 0),
        field_id if field_id >= 0 else None,
        _meaning(element),
        unknown,
    )


def _meaning(element: Fields) -> object:
    """What the values are, whether the type is given in the newer form, the older one, or both.

    The older form of times says less, and PyArrow gives it another type: there it counts for itself.
    """
    logical = element.get(LOGICAL)
    converted = element.get(_CONVERTED)
    if logical is None and converted is not None:
        logical = _logical_form(element, converted)
        if logical is None:
            return converted, element.get(_SCALE), element.get(_PRECISION)
    # A plain 32 or 64 bits wide signed integer is what the physical type says anyhow.
    return None if logical == _PLAIN.get(element.get(_TYPE, -1)) else logical


def _logical_form(element: Fields, converted: int) -> bytes | None:
    if converted == _DECIMAL:
        decimal = {key(1, I32): element.get(_SCALE, 0), key(2, I32): element.get(_PRECISION, 0)}
        return encode({key(5, STRUCT): decimal})
    if converted in _INTEGERS:
        return _INTEGERS[converted]
    return encode({key(_SAME[converted], STRUCT): {}}) if converted in _SAME else None


def _integer(bits: int, *, signed: bool) -> bytes:
    return encode({key(10, STRUCT): {key(1, I8): bytes([bits]), key(2, TRUE if signed else FALSE): b""}})


# Older forms, by number, and the newer ones that say just the same: UTF8, MAP, LIST, ENUM, DATE, JSON, BSON.
_SAME = {0: 1, 1: 2, 3: 3, 4: 4, 6: 6, 19: 12, 20: 13}
_INTEGERS = {11 + at: _integer(8 << at, signed=False) for at in range(4)} | {
    15 + at: _integer(8 << at, signed=True) for at in range(4)
}
_PLAIN = {_INT32: _INTEGERS[17], _INT64: _INTEGERS[18]}
