"""Converts variants between files that shred them differently.

A variant is bytes: a dictionary of names (`metadata`) and a `value`. A file may *shred* variants: it then stores
what most rows have in typed columns (`typed_value`). Where rows of differently shredded files are combined,
variants are reassembled row by row. In a file that shreds, a `value` alone is a valid variant, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.parquet.variant_types import is_variant

_OBJECT, _ARRAY = 2, 3
_SHORT_TEXT = 64  # shorter strings (bytes) have their length in the header
_LARGE = 256  # from here on, the number of elements takes four bytes
_MICROSECONDS, _NANOSECONDS = "us", "ns"


def cast(column: Any, kind: pa.DataType) -> Any:
    """Values cast to another type as by Arrow, with variants shredded as in that type."""
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([cast(chunk, kind) for chunk in column.chunks], kind)
    if column.type == kind or not has_variants(column.type, kind):
        return column.cast(kind)
    # Concatenation removes the offset of an array, so that its children have its length.
    return _converted(pa.concat_arrays([column, pa.array([], column.type)]), kind)


def has_variants(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types of the same shape contain variants, which may be shredded differently."""
    if is_variant(one) and is_variant(other):
        return True
    if not pat.is_nested(one) or one.id != other.id or one.num_fields != other.num_fields:
        return False
    return any(has_variants(one.field(at).type, other.field(at).type) for at in range(one.num_fields))


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if is_variant(array.type) and is_variant(kind):
        return _variants(array, kind)
    if not has_variants(array.type, kind):
        return array.cast(kind)
    if pat.is_struct(kind):
        own_buffers, children = 1, [array.field(at) for at in range(kind.num_fields)]
    elif pat.is_map(kind):
        entries = pa.StructArray.from_arrays([array.keys, array.items], fields=array.type.field(0).type.fields)
        own_buffers, children = 2, [entries]
    else:
        own_buffers, children = 2, [array.values]
    below = [_converted(child, kind.field(at).type) for at, child in enumerate(children)]
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:own_buffers], array.null_count, children=below)


def _variants(array: pa.Array, kind: pa.DataType) -> pa.Array:
    parts = {"metadata": array.field("metadata"), "value": _unshredded_values(array)}
    children = [parts[item.name] if item.name in parts else _nulls(len(array), item.type) for item in kind.fields]
    return pa.StructArray.from_arrays(children, fields=kind.fields, mask=array.is_null())


def _nulls(length: int, kind: pa.DataType, *, nullable: bool = True) -> pa.Array:
    """NULLs. Non-nullable fields below them are not NULL, because Arrow rejects that."""
    if pat.is_struct(kind):
        children = [_nulls(length, item.type, nullable=item.nullable) for item in kind.fields]
        mask = pa.repeat(pa.scalar(nullable), length)
        return pa.StructArray.from_arrays(children, fields=kind.fields, mask=mask)
    if pat.is_binary(kind) and not nullable:
        return pa.repeat(pa.scalar(b"", kind), length)
    return pa.nulls(length, kind)


def _unshredded_values(array: pa.Array) -> pa.Array:
    """The values of variants, with all shredded parts merged back."""
    if array.type.get_field_index("typed_value") < 0:
        return array.field("value")
    dictionaries = [_dictionary(metadata or b"") for metadata in array.field("metadata").to_pylist()]
    found = _rebuilt(array, dictionaries)
    # Values below a NULL are ignored, but readers expect bytes even there.
    return pa.array([b"\x00" if value is None else value for value in found], pa.binary())


_Dictionary = Mapping[str, int]


@lru_cache(maxsize=256)
def _dictionary(metadata: bytes) -> _Dictionary:
    """The ids of the names in the metadata of a variant."""
    if not metadata:
        return {}
    width = (metadata[0] >> 6) + 1
    count = int.from_bytes(metadata[1 : 1 + width], "little")
    ends = [
        int.from_bytes(metadata[at : at + width], "little")
        for at in range(1 + width, 1 + (count + 2) * width, width)
    ]
    names = metadata[1 + (count + 2) * width :]
    return {names[ends[at] : ends[at + 1]].decode(): at for at in range(count)}


def _rebuilt(group: pa.Array, dictionaries: Sequence[_Dictionary]) -> list[bytes | None]:
    """The bytes of values, each from `value` or `typed_value`, objects from both; None for missing ones."""
    has_value = group.type.get_field_index("value") >= 0
    values = group.field("value").to_pylist() if has_value else [None] * len(group)
    if group.type.get_field_index("typed_value") < 0:
        return values
    typed = group.field("typed_value")
    if pat.is_struct(typed.type):
        found = _objects(typed, values, dictionaries)
    elif pat.is_list(typed.type) or pat.is_large_list(typed.type):
        found = _arrays(typed, dictionaries)
    else:
        found = _primitives(typed)
    return [values[at] if value is None else value for at, value in enumerate(found)]


def _objects(
    typed: pa.Array, values: Sequence[bytes | None], dictionaries: Sequence[_Dictionary]
) -> list[bytes | None]:
    names = [item.name for item in typed.type.fields]
    fields = [_rebuilt(typed.field(at), dictionaries) for at in range(len(names))]
    found: list[bytes | None] = []
    for at, valid in enumerate(typed.is_valid().to_pylist()):
        if not valid:
            found.append(None)
            continue
        ids = dictionaries[at]
        members = {name: field[at] for name, field in zip(names, fields, strict=True) if field[at] is not None}
        rest = values[at]
        if rest is not None:
            by_id = {number: name for name, number in ids.items()}
            members |= {by_id[number]: value for number, value in _members(rest).items()}
        found.append(_object({name: value for name, value in members.items() if value is not None}, ids))
    return found


def _arrays(typed: pa.Array, dictionaries: Sequence[_Dictionary]) -> list[bytes | None]:
    valid = typed.is_valid().to_pylist()
    lengths = pc.fill_null(pc.list_value_length(typed), 0).to_numpy()
    elements = typed.flatten()  # without the elements of NULL lists
    rows = np.repeat(np.arange(len(typed)), lengths).tolist()
    elements = pa.concat_arrays([elements, pa.array([], elements.type)])
    values = _rebuilt(elements, [dictionaries[row] for row in rows])
    ends = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    return [
        _array([value or b"\x00" for value in values[ends[at] : ends[at + 1]]]) if valid[at] else None
        for at in range(len(typed))
    ]


def _object(members: Mapping[str, bytes], ids: _Dictionary) -> bytes:
    ordered = sorted(members.items(), key=lambda item: item[0].encode())
    offsets, data = _offsets([value for _, value in ordered])
    numbers = [ids[name] for name, _ in ordered]
    id_width, offset_width = _width(max(numbers, default=0)), _width(offsets[-1])
    large = len(ordered) >= _LARGE
    head = (int(large) << 4 | (id_width - 1) << 2 | (offset_width - 1)) << 2 | _OBJECT
    return b"".join(
        [
            bytes([head]),
            len(ordered).to_bytes(4 if large else 1, "little"),
            *(number.to_bytes(id_width, "little") for number in numbers),
            *(offset.to_bytes(offset_width, "little") for offset in offsets),
            data,
        ]
    )


def _array(values: Sequence[bytes]) -> bytes:
    offsets, data = _offsets(values)
    width, large = _width(offsets[-1]), len(values) >= _LARGE
    head = (int(large) << 2 | (width - 1)) << 2 | _ARRAY
    ends = b"".join(offset.to_bytes(width, "little") for offset in offsets)
    return bytes([head]) + len(values).to_bytes(4 if large else 1, "little") + ends + data


def _members(value: bytes) -> dict[int, bytes]:
    """The values of an object by the ids of their names."""
    head = value[0] >> 2
    offset_width, id_width, large = (head & 3) + 1, (head >> 2 & 3) + 1, head >> 4 & 1
    start = 1 + (4 if large else 1)
    count = int.from_bytes(value[1:start], "little")

    def numbers(at: int, width: int, many: int) -> list[int]:
        return [int.from_bytes(value[at + n * width : at + (n + 1) * width], "little") for n in range(many)]

    ids = numbers(start, id_width, count)
    begins = start + count * id_width
    offsets = numbers(begins, offset_width, count + 1)
    data = value[begins + (count + 1) * offset_width :]
    # Values need not be stored in the order of their names.
    ends = {one: other for one, other in zip(sorted(offsets), sorted(offsets)[1:], strict=False) if other > one}
    return {number: data[offset : ends[offset]] for number, offset in zip(ids, offsets, strict=False)}


def _offsets(values: Sequence[bytes]) -> tuple[list[int], bytes]:
    return [0, *np.cumsum([len(value) for value in values]).tolist()], b"".join(values)


def _width(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


def _primitives(typed: pa.Array) -> list[bytes | None]:
    if isinstance(typed, pa.ExtensionArray):
        typed = typed.storage
    encode, values = _encoder(typed)
    return [None if value is None else encode(value) for value in values.to_pylist()]


def _encoder(typed: pa.Array) -> tuple[Callable[[Any], bytes], pa.Array]:
    """The encoder for the values of an array; and the values, as integers where it needs them."""
    kind = typed.type
    if pat.is_boolean(kind):
        return lambda value: bytes([1 << 2 if value else 2 << 2]), typed
    if pat.is_integer(kind):
        return _integer, typed
    if pat.is_float32(kind):
        return lambda value: bytes([14 << 2]) + np.float32(value).tobytes(), typed
    if pat.is_float64(kind):
        return lambda value: bytes([7 << 2]) + np.float64(value).tobytes(), typed
    if pat.is_decimal(kind):
        return lambda value: _decimal(value, kind.precision, kind.scale), typed
    if pat.is_date32(kind):
        return _fixed(11, 4), typed.cast(pa.int32())
    if pat.is_timestamp(kind) and kind.unit in (_MICROSECONDS, _NANOSECONDS):
        first = 12 if kind.unit == _MICROSECONDS else 18
        return _fixed(first if kind.tz is not None else first + 1, 8), typed.cast(pa.int64())
    if pat.is_time64(kind) and kind.unit == _MICROSECONDS:
        return _fixed(17, 8), typed.cast(pa.int64())
    if pat.is_fixed_size_binary(kind) and kind.byte_width == 16:
        return lambda value: bytes([20 << 2]) + value, typed
    if pat.is_binary(kind):
        return lambda value: bytes([15 << 2]) + len(value).to_bytes(4, "little") + value, typed
    if pat.is_string(kind):
        return _text, typed
    raise TypeError(f"variants cannot contain values of type {kind}")


def _fixed(number: int, width: int) -> Callable[[int], bytes]:
    return lambda value: bytes([number << 2]) + value.to_bytes(width, "little", signed=True)


def _integer(value: int) -> bytes:
    """The smallest encoding, as Spark writes it: the width of an integer is not part of its value."""
    bits = value.bit_length() if value >= 0 else (~value).bit_length()
    size = next(at for at in range(4) if bits < 8 << at)
    return bytes([3 + size << 2]) + value.to_bytes(1 << size, "little", signed=True)


def _decimal(value: Decimal, precision: int, scale: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    unscaled: int = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale) * (-1 if sign else 1)
    size = 0 if precision <= 9 else 1 if precision <= 18 else 2
    return bytes([8 + size << 2, scale]) + unscaled.to_bytes(4 << size, "little", signed=True)


def _text(value: str) -> bytes:
    data = value.encode()
    if len(data) < _SHORT_TEXT:
        return bytes([len(data) << 2 | 1]) + data
    return bytes([16 << 2]) + len(data).to_bytes(4, "little") + data
