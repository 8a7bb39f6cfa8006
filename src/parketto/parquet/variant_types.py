"""The types of variants in files, shredded or not."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

_PARTS = frozenset({"metadata", "value", "typed_value"})
#: A variant that is not shredded.
UNSHREDDED = pa.struct([pa.field(part, pa.binary(), nullable=False) for part in ("metadata", "value")])


def is_variant(kind: pa.DataType) -> bool:
    """Whether a type is a variant, shredded or not.

    >>> is_variant(UNSHREDDED), is_variant(pa.struct({"value": pa.binary()}))
    (True, False)
    """
    if not pat.is_struct(kind):
        return False
    found = {item.name: item.type for item in kind.fields}
    return found.keys() <= _PARTS and all(pat.is_binary(found.get(name, pa.null())) for name in UNSHREDDED.names)


def unshredded(kind: pa.DataType) -> pa.DataType:
    """A type with all of its variants unshredded.

    >>> unshredded(pa.list_(pa.struct({"value": pa.binary(), "metadata": pa.binary()}))).value_type == UNSHREDDED
    True
    """
    if is_variant(kind):
        return UNSHREDDED
    if pat.is_struct(kind):
        return pa.struct([item.with_type(unshredded(item.type)) for item in kind.fields])
    if pat.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(unshredded(key.type)), item.with_type(unshredded(item.type)), kind.keys_sorted
        )
    if pat.is_list(kind):
        return pa.list_(kind.value_field.with_type(unshredded(kind.value_type)))
    return kind
