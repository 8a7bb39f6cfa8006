"""Thrift's compact protocol, as far as Parquet footers need it: decodes and encodes structs without loss.

A struct becomes a dictionary. Its keys contain the field number *and* the wire type (`key`), so a field with an
unknown number or an unexpected type is just one more entry, and is written back unchanged. Nested values stay raw
bytes unless a `Shape` asks for more: raw values do not depend on their position, so they can be spliced into
another footer, and most of a footer is never parsed.

Files are untrusted input. Every length is checked against the remaining bytes before anything is allocated,
nesting is limited, and every error is a `FooterError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from parketto.errors import FooterError

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

#: Values by `key`: integers, the content of BINARY, and all else raw or, where the shape asks for it, decoded.
Fields: TypeAlias = dict[int, Any]
#: The nested structs to decode, by key; a LIST is a list of structs.
Shape: TypeAlias = Mapping[int, Any]

_MAX_DEPTH = 32  # levels; footers have about eight
_BITS = {I16: 16, I32: 32, I64: 64}
_FLAT: Shape = {}


def key(field_id: int, kind: int) -> int:
    """The key of a field in `Fields`.

    >>> key(9, I64)
    150
    """
    return field_id << 4 | kind


def decode(data: bytes, shape: Shape = _FLAT) -> Fields:
    """The struct that the bytes encode, without any bytes after it."""
    fields, end = decode_first(data, shape)
    if end != len(data):
        raise FooterError(f"{len(data) - end} unexpected bytes follow a struct")
    return fields


def decode_first(data: bytes, shape: Shape = _FLAT) -> tuple[Fields, int]:
    """The struct at the start of the bytes, and its end offset."""
    try:
        return _read_struct(data, 0, shape, 0, {})
    except IndexError:
        raise FooterError("it ends in the middle of a value") from None


def decode_list(data: bytes, kind: int) -> list[bytes]:
    """The elements of a raw LIST: structs as raw bytes, strings as their content."""
    found = []
    try:
        found_kind, size, at = list_head(data, 0)
        if size and found_kind != kind:
            raise FooterError(f"a list has elements of type {found_kind}, expected {kind}")
        for _ in range(size):
            end = skip(data, at, kind, 0)
            if kind == BINARY:
                at = varint(data, at)[1]
            found.append(data[at:end])
            at = end
    except IndexError:
        raise FooterError("it ends in the middle of a list") from None
    return found


def find_field(data: bytes, at: int, place: int) -> int:
    """The offset of the value of a field, by its key, in the struct at offset `at`. Other fields are skipped.

    >>> find_field(encode({key(1, I32): 1, key(6, BINARY): b"me"}), 0, key(6, BINARY))
    3
    """
    field_id = 0
    while head := data[at]:
        at += 1
        if head > 15:
            field_id += head >> 4
        else:
            value, at = varint(data, at)
            field_id = value >> 1 ^ -(value & 1)
        if field_id << 4 | head & 15 == place:
            return at
        at = skip(data, at, head & 15, 0)
    raise FooterError(f"field {place >> 4} is missing")


def encode(fields: Fields) -> bytes:
    """The bytes of a struct, with fields ordered by number.

    >>> encode({key(1, I32): 1, key(6, BINARY): b"me"}).hex()
    '150258026d6500'
    """
    parts: list[bytes] = []
    _write_struct(parts, fields)
    return b"".join(parts)


def encode_structs(structs: Sequence[bytes]) -> bytes:
    """A raw LIST of encoded structs."""
    return _list_header(len(structs), STRUCT) + b"".join(structs)


def encode_strings(strings: Sequence[bytes]) -> bytes:
    """A raw LIST of strings."""
    parts = [_list_header(len(strings), BINARY)]
    for string in strings:
        parts += (_write_varint(len(string)), string)
    return b"".join(parts)


def encode_booleans(values: Sequence[bool]) -> bytes:
    """A raw LIST of booleans, one byte each."""
    return _list_header(len(values), TRUE) + bytes(TRUE if value else FALSE for value in values)


def encode_integers(values: Sequence[int], kind: int) -> bytes:
    """A raw LIST of integers.

    >>> encode_integers([1, -1], I64).hex()
    '260201'
    """
    return _list_header(len(values), kind) + b"".join(map(_write_zigzag, values))


def _read_struct(data: bytes, at: int, shape: Shape, depth: int, seen: dict[int, bytes]) -> tuple[Fields, int]:
    # The hot loop: a wide file has tens of thousands of these structs. The callers above translate IndexError, so
    # single bytes need no bounds check. Many raw values repeat from struct to struct. No value is a prefix of
    # another, so where the bytes of the last value of a field follow again, they are the value, without parsing.
    fields: Fields = {}
    field_id = 0
    end = len(data)
    while True:
        head = data[at]
        at += 1
        if not head:
            return fields, at
        kind = head & 15
        if head > 15:
            field_id += head >> 4
        else:
            value, at = varint(data, at)
            field_id = value >> 1 ^ -(value & 1)
        if not 0 < field_id < 32768:
            raise FooterError(f"invalid field number {field_id}")
        field_key = field_id << 4 | kind
        if 4 <= kind <= 6:
            value = data[at]
            at += 1
            if value > 127:
                value, at = varint(data, at - 1)
                if value >> _BITS[kind]:
                    raise FooterError(f"field {field_id} has more than {_BITS[kind]} bits")
            fields[field_key] = value >> 1 ^ -(value & 1)
        elif kind == 8:
            size = data[at]
            at += 1
            if size > 127:
                size, at = varint(data, at - 1)
            if size > end - at:
                raise IndexError
            fields[field_key] = data[at : at + size]
            at += size
        elif field_key in shape:
            fields[field_key], at = _read_shaped(data, at, kind, shape[field_key], depth + 1, seen)
        elif field_key in seen and data.startswith(seen[field_key], at):
            fields[field_key] = seen[field_key]
            at += len(seen[field_key])
        else:
            start = at
            at = skip(data, at, kind, depth)
            fields[field_key] = seen[field_key] = data[start:at]


def _read_shaped(
    data: bytes, at: int, kind: int, shape: Shape, depth: int, seen: dict[int, bytes]
) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise FooterError("it is nested too deeply")
    if kind == STRUCT:
        return _read_struct(data, at, shape, depth, seen)
    element, size, at = list_head(data, at)
    if size and element != STRUCT:
        raise FooterError(f"a list has elements of type {element}, expected {STRUCT}")
    # A decoded struct has at least one field. Lists of empty structs would allocate many dictionaries.
    if size * 3 > len(data) - at:
        raise IndexError
    structs = []
    for _ in range(size):
        fields, at = _read_struct(data, at, shape, depth, seen)
        structs.append(fields)
    return structs, at


def skip(data: bytes, at: int, kind: int, depth: int = 0) -> int:  # noqa: C901 - one loop, because it is hot
    """The end offset of a value."""
    if kind == 12:
        if depth > _MAX_DEPTH:
            raise FooterError("it is nested too deeply")
        while True:
            head = data[at]
            at += 1
            if not head:
                return at
            if head < 16:
                at = varint(data, at)[1]
            kind = head & 15
            if 4 <= kind <= 6:
                at += 1
                if data[at - 1] > 127:
                    at = varint(data, at - 1)[1]
            elif kind == 8:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = varint(data, at - 1)
                at += size
                if at > len(data):
                    raise IndexError
            elif not 1 <= kind <= 2:
                at = skip(data, at, kind, depth + 1)
    if kind == 9 or kind == 10:
        if depth > _MAX_DEPTH:
            raise FooterError("it is nested too deeply")
        kind, size, at = list_head(data, at)
        for _ in range(size):
            at = _skip_element(data, at, kind, depth + 1)
        return at
    if 1 <= kind <= 2:
        return at
    if kind == 11:
        return _skip_map(data, at, depth + 1)
    return _skip_element(data, at, kind, depth)


def _skip_element(data: bytes, at: int, kind: int, depth: int) -> int:
    """The end offset of an element of a list or map, where a boolean takes one byte."""
    if 4 <= kind <= 6:
        return at + 1 if data[at] < 128 else varint(data, at)[1]
    if kind == 8:
        size, at = varint(data, at)
        at += size
    elif 1 <= kind <= 3:
        at += 1
    elif kind == 7:
        at += 8
    elif 9 <= kind <= 12:
        return skip(data, at, kind, depth)
    else:
        raise FooterError(f"unknown Thrift type {kind}")
    if at > len(data):
        raise IndexError
    return at


def _skip_map(data: bytes, at: int, depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise FooterError("it is nested too deeply")
    size, at = varint(data, at)
    if not size:
        return at
    if size > len(data) - at:
        raise IndexError
    kinds = data[at]
    at += 1
    for _ in range(size):
        at = _skip_element(data, at, kinds >> 4, depth)
        at = _skip_element(data, at, kinds & 15, depth)
    return at


def list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """The element type of a list, its length, and the offset of its first element."""
    head = data[at]
    at += 1
    size = head >> 4
    if size == 15:
        size, at = varint(data, at)
    # Every element takes at least one byte.
    if size > len(data) - at:
        raise IndexError
    return head & 15, size, at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned integer, and its end offset."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise FooterError("a number has more than 64 bits")
    if value >> 64:
        raise FooterError("a number has more than 64 bits")
    return value, at


_BYTES = [bytes([number]) for number in range(256)]


def _write_varint(value: int) -> bytes:
    if value < 128:
        return _BYTES[value]
    if value < 16384:
        return bytes((value & 127 | 128, value >> 7))
    if value < 2097152:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _write_zigzag(value: int) -> bytes:
    return _write_varint((value << 1 ^ value >> 63) & 0xFFFFFFFFFFFFFFFF)


def _list_header(size: int, kind: int) -> bytes:
    return _BYTES[size << 4 | kind] if size < 15 else _BYTES[240 | kind] + _write_varint(size)


def _write_struct(parts: list[bytes], fields: Fields) -> None:
    last = 0
    for field_key in sorted(fields):
        value = fields[field_key]
        field_id, kind = field_key >> 4, field_key & 15
        delta = field_id - last
        if 0 < delta < 16:
            parts.append(_BYTES[delta << 4 | kind])
        else:
            parts.append(_BYTES[kind] + _write_varint(field_id << 1))
        last = field_id
        if 4 <= kind <= 6:
            parts.append(_BYTES[value << 1] if 0 <= value < 64 else _write_zigzag(value))
        elif kind == 8:
            parts.append(_write_varint(len(value)))
            parts.append(value)
        elif isinstance(value, bytes):
            parts.append(value)
        elif kind == STRUCT:
            _write_struct(parts, value)
        else:
            parts.append(_list_header(len(value), STRUCT))
            for element in value:
                _write_struct(parts, element)
    parts.append(b"\0")
