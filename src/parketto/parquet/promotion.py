"""Lossless promotion: the type in which columns of different types meet, and the conversion of values to it.

The rule is symmetric: the common type depends on the set of types, not on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.types as pat

from parketto.parquet.variant_types import UNSHREDDED, is_variant
from parketto.parquet.variants import cast, has_variants

_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_EXACT_IN_DOUBLE = 32  # bits of integers that every double represents exactly
_UNITS = ("s", "ms", "us", "ns")  # coarse to fine
_MAX_DECIMAL128, _MAX_DECIMAL256 = 38, 76  # digits
# Names of the same time zone.
_UTC = frozenset(
    {"UTC", "Etc/UTC", "Etc/Universal", "Etc/Zulu", "Universal", "Zulu", "UCT", "Z", "+00:00", "-00:00"}
)

#: Metadata in which Polars describes categories. Other programs do not have it for the same values.
POLARS_NOTE = b"_PL_"

_Test = Callable[[pa.DataType], bool]


def common_type(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """The narrowest type that represents the values of all types exactly; None if there is none.

    >>> common_type([pa.int32(), pa.int64()]), common_type([pa.uint32(), pa.int8()])
    (DataType(int64), DataType(int64))
    >>> common_type([pa.int32(), pa.float32()]), common_type([pa.string(), pa.large_string()])
    (DataType(double), DataType(large_string))
    >>> common_type([pa.int64(), pa.float64()]) is None  # a double cannot represent all integers of 64 bits
    True
    """
    found = [kind for kind in types if not pat.is_null(kind)]
    if not found:
        return pa.null()
    if all(kind == found[0] for kind in found[1:]):
        return found[0]
    if all(map(pat.is_dictionary, found)) and len({kind.ordered for kind in found}) == 1:
        values = common_type(kind.value_type for kind in found)
        index = common_type(kind.index_type for kind in found)
        return None if values is None or index is None else pa.dictionary(index, values, found[0].ordered)
    plain = [_stored_type(kind) for kind in found]
    if all(kind == plain[0] for kind in plain[1:]):
        return plain[0]
    for tests, join in _JOINS:
        if all(any(test(kind) for test in tests) for kind in plain):
            return join(plain)
    return None


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary or an extension type."""
    if pat.is_dictionary(kind):
        return _stored_type(kind.value_type)
    return _stored_type(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def _numbers(types: Sequence[pa.DataType]) -> pa.DataType | None:
    floats = [kind for kind in types if pat.is_floating(kind)]
    integers = [kind for kind in types if pat.is_integer(kind)]
    if floats and integers:
        return pa.float64() if all(kind.bit_width <= _EXACT_IN_DOUBLE for kind in integers) else None
    if floats:
        return pa.float64() if any(map(pat.is_float64, floats)) else pa.float32()
    signed = max((kind.bit_width for kind in types if pat.is_signed_integer(kind)), default=0)
    unsigned = max((kind.bit_width for kind in types if pat.is_unsigned_integer(kind)), default=0)
    if not signed:
        return _UNSIGNED[unsigned]
    return _SIGNED.get(max(signed, 2 * unsigned))


def _decimals(types: Sequence[pa.DataType]) -> pa.DataType | None:
    scale = max(kind.scale for kind in types)
    precision = max(kind.precision - kind.scale for kind in types) + scale
    if precision > _MAX_DECIMAL256:
        return None
    wide = precision > _MAX_DECIMAL128 or any(map(pat.is_decimal256, types))
    return pa.decimal256(precision, scale) if wide else pa.decimal128(precision, scale)


def _finest(types: Sequence[pa.DataType]) -> str:
    return str(max((kind.unit for kind in types), key=_UNITS.index))


def _timestamps(types: Sequence[pa.DataType]) -> pa.DataType | None:
    zones = {"UTC" if kind.tz in _UTC else kind.tz for kind in types}
    return pa.timestamp(_finest(types), zones.pop()) if len(zones) == 1 else None


def _times(types: Sequence[pa.DataType]) -> pa.DataType:
    unit = _finest(types)
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def _lists(types: Sequence[pa.DataType]) -> pa.DataType | None:
    value = _common_field([kind.value_field for kind in types])
    if value is None:
        return None
    sizes = {kind.list_size if pat.is_fixed_size_list(kind) else None for kind in types}
    if len(sizes) == 1 and None not in sizes:
        return pa.list_(value, sizes.pop())
    return pa.large_list(value) if any(map(pat.is_large_list, types)) else pa.list_(value)


def _maps(types: Sequence[pa.DataType]) -> pa.DataType | None:
    key = _common_field([kind.key_field for kind in types])
    item = _common_field([kind.item_field for kind in types])
    if key is None or item is None:
        return None
    return pa.map_(key, item, all(kind.keys_sorted for kind in types))


def _structs(types: Sequence[pa.DataType]) -> pa.DataType | None:
    if all(map(is_variant, types)):
        return UNSHREDDED
    names = list(dict.fromkeys(item.name for kind in types for item in kind.fields))
    if any(len({item.name for item in kind.fields}) < kind.num_fields for kind in types):
        return None  # fields are matched by name
    fields = []
    for name in names:
        found = [kind.field(name) for kind in types if kind.get_field_index(name) >= 0]
        field = _common_field(found)
        if field is None:
            return None
        fields.append(field if len(found) == len(types) else field.with_nullable(True))
    return pa.struct(fields)


def _common_field(fields: Sequence[pa.Field]) -> pa.Field | None:
    """The field of nested values: the first one's name, nullable if any is."""
    kind = common_type(field.type for field in fields)
    if kind is None:
        return None
    nullable = any(field.nullable or pat.is_null(field.type) for field in fields)
    return retyped(common_metadata(fields), kind).with_nullable(nullable)


def retyped(field: pa.Field, kind: pa.DataType) -> pa.Field:
    """A field in another type, without what Polars notes about its categories.

    >>> retyped(pa.field("v", pa.int8(), metadata={"_PL_CATEGORICAL2": "x", "unit": "m"}), pa.int64()).metadata
    {b'unit': b'm'}
    """
    if field.type == kind:
        return field
    kept = {key: value for key, value in (field.metadata or {}).items() if not key.startswith(POLARS_NOTE)}
    return field.with_type(kind).with_metadata(kept) if kept else field.with_type(kind).remove_metadata()


def common_metadata(fields: Sequence[pa.Field]) -> pa.Field:
    """The first field, without the metadata in which the others differ (a field id, say)."""
    first = fields[0]
    shared = {
        key: value
        for key, value in (first.metadata or {}).items()
        if all((field.metadata or {}).get(key) == value for field in fields)
    }
    return first.with_metadata(shared) if shared != (first.metadata or {}) else first


_JOINS: tuple[tuple[tuple[_Test, ...], Callable[[Sequence[pa.DataType]], pa.DataType | None]], ...] = (
    ((pat.is_integer, pat.is_floating), _numbers),
    ((pat.is_string, pat.is_large_string, pat.is_string_view), lambda _types: pa.large_string()),
    ((pat.is_binary, pat.is_large_binary, pat.is_binary_view), lambda _types: pa.large_binary()),
    ((pat.is_date,), lambda _types: pa.date32()),
    ((pat.is_timestamp,), _timestamps),
    ((pat.is_time,), _times),
    ((pat.is_duration,), lambda types: pa.duration(_finest(types))),
    ((pat.is_decimal,), _decimals),
    ((pat.is_list, pat.is_large_list, pat.is_fixed_size_list), _lists),
    ((pat.is_map,), _maps),
    ((pat.is_struct,), _structs),
)


def means_the_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether equal bytes of equal Parquet types are equal values. Parquet does not know the unit of durations.

    >>> means_the_same(pa.duration("s"), pa.duration("ms")), means_the_same(pa.string(), pa.large_string())
    (False, True)
    """
    if pat.is_duration(one) or pat.is_duration(other):
        return bool(one == other)
    if not pat.is_nested(one) or not pat.is_nested(other) or one.num_fields != other.num_fields:
        return True
    return all(means_the_same(one.field(at).type, other.field(at).type) for at in range(one.num_fields))


def is_castable(source: pa.DataType, target: pa.DataType, *, nested: bool = False) -> bool:
    """Whether values of one type may be cast to another where they fit: numbers to numbers, text to text.

    Inside of structs floats do not become narrower: Arrow would round them silently.

    >>> is_castable(pa.int64(), pa.int32()), is_castable(pa.string(), pa.int8())
    (True, False)
    """
    source, target = _stored_type(source), _stored_type(target)
    if source == target or pat.is_null(source):
        return True
    if pat.is_struct(target) and pat.is_struct(source):
        return all(target.get_field_index(item.name) >= 0 for item in source.fields) and all(
            is_castable(source.field(item.name).type, item.type, nested=True)
            if source.get_field_index(item.name) >= 0
            else item.nullable
            for item in target.fields
        )
    if pat.is_nested(target):
        return bool(common_type([source, target]) == target)
    if nested and pat.is_floating(source) and pat.is_floating(target) and target.bit_width < source.bit_width:
        return False
    if pat.is_timestamp(source) and pat.is_timestamp(target):
        return _timestamps([source, target]) is not None
    return any(all(any(test(kind) for test in tests) for kind in (source, target)) for tests, _ in _JOINS)


def promoted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array in a common type of its own and others. Fields that a struct lacks are NULL.

    Raises:
        ArrowInvalid: A value does not fit: a timestamp in a finer unit.

    >>> promoted(pa.array([{"a": 1}]), pa.struct({"a": pa.int64(), "b": pa.string()})).to_pylist()
    [{'a': 1, 'b': None}]
    """
    if array.type == kind:
        return array
    if pat.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pat.is_dictionary(array.type):
        # Casting the few values is cheaper than casting all rows.
        values = promoted(array.dictionary, kind.value_type if pat.is_dictionary(kind) else kind)
        decoded = pa.DictionaryArray.from_arrays(array.indices, values)
        return decoded.cast(kind)
    if isinstance(array, pa.ExtensionArray):
        return promoted(array.storage, kind)
    if pat.is_dictionary(kind):
        return promoted(array, kind.value_type).dictionary_encode().cast(kind)
    if has_variants(array.type, kind):
        return cast(array, kind)
    return _promoted_nested(array, kind) if pat.is_nested(kind) else array.cast(kind)


def _promoted_nested(array: pa.Array, kind: pa.DataType) -> pa.Array:
    shapes = (pat.is_struct, pat.is_map, lambda each: not pat.is_struct(each) and not pat.is_map(each))
    if not pat.is_nested(array.type) or not any(test(array.type) and test(kind) for test in shapes):
        raise pa.ArrowNotImplementedError(f"{array.type} and {kind} are not nested in the same way")
    # Concatenated with an empty one, an array has no offset: then its children have matching lengths.
    array = pa.concat_arrays([array, pa.array([], array.type)])
    mask = array.is_null() if array.null_count else None
    if pat.is_struct(kind):
        children = [
            promoted(array.field(item.name), item.type)
            if array.type.get_field_index(item.name) >= 0
            else pa.nulls(len(array), item.type)
            for item in kind.fields
        ]
        return pa.StructArray.from_arrays(children, fields=kind.fields, mask=mask)
    if pat.is_map(kind):
        keys, items = promoted(array.keys, kind.key_type), promoted(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
    if pat.is_fixed_size_list(array.type):
        values = promoted(array.values, kind.value_type)
        same = pa.FixedSizeListArray.from_arrays(
            values, type=pa.list_(kind.value_field, array.type.list_size), mask=mask
        )
        return same if same.type == kind else same.cast(kind)
    values, offsets = promoted(array.values, kind.value_type), array.offsets
    if pat.is_large_list(kind):
        return pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), values, type=kind, mask=mask)
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)
