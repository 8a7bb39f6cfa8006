"""The types that variants have in files: bytes, and what a file stores of them in columns of its own."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

_PARTS = frozenset({"metadata", "value", "typed_value"})
#: A variant that is not shredded.
WHOLE = pa.struct([pa.field(part, pa.binary(), nullable=False) for part in ("metadata", "value")])


def is_variant(kind: pa.DataType) -> bool:
    """Whether a type is that of variants, shredded or not.

    >>> is_variant(WHOLE), is_variant(pa.struct({"value": pa.binary()}))
    (True, False)
    """
    if not pat.is_struct(kind):
        return False
    found = {item.name: item.type for item in kind.fields}
    return found.keys() <= _PARTS and all(pat.is_binary(found.get(name, pa.null())) for name in WHOLE.names)


def whole(kind: pa.DataType) -> pa.DataType:
    """A type with all variants in it in one form, whatever form they have.

    >>> whole(pa.list_(pa.struct({"value": pa.binary(), "metadata": pa.binary()}))).value_type == WHOLE
    True
    """
    if is_variant(kind):
        return WHOLE
    if pat.is_struct(kind):
        return pa.struct([item.with_type(whole(item.type)) for item in kind.fields])
    if pat.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(whole(key.type)), item.with_type(whole(item.type)), kind.keys_sorted)
    if pat.is_list(kind):
        return pa.list_(kind.value_field.with_type(whole(kind.value_type)))
    return kind
