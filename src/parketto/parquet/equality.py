"""Which rows of two columns are equal: NULL equals NULL, NaN equals NaN, and zeros of different signs differ."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.runtime.arrays import Flags

_BITS = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def equal_values(one: pa.Array, other: pa.Array) -> Flags:
    """For each position of two columns of one type, whether the values are equal.

    >>> equal_values(pa.array([1.0, None, float("nan"), 0.0]), pa.array([1.0, None, float("nan"), -0.0])).tolist()
    [True, True, True, False]
    >>> equal_values(pa.array([[1, None], [2]]), pa.array([[1, None], [2, 3]])).tolist()
    [True, False]
    """
    one, other = _stored(one), _stored(other)
    valid, other_valid = _valid(one), _valid(other)
    same: Flags = valid == other_valid
    both = np.flatnonzero(valid & other_valid)
    if len(both) < len(one):
        one, other = one.take(pa.array(both)), other.take(pa.array(both))
    if len(both):
        same[both] = _equal(one, other)
    return same


def _stored(column: pa.Array) -> pa.Array:
    """The values in a type that Arrow compares: without dictionaries, extension types and views."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _stored(column.storage)
    if pat.is_dictionary(kind):
        return _stored(column.dictionary_decode())
    if pat.is_string_view(kind):
        return column.cast(pa.large_string())
    if pat.is_binary_view(kind):
        return column.cast(pa.large_binary())
    return column


def _equal(one: pa.Array, other: pa.Array) -> Flags:
    """The same for values without NULLs."""
    kind = one.type
    if pat.is_floating(kind):
        bits = _BITS[kind.bit_width]
        same = pc.equal(one.view(bits), other.view(bits)).to_numpy(zero_copy_only=False)
        nan = [np.isnan(each.to_numpy(zero_copy_only=False)) for each in (one, other)]
        found: Flags = same | (nan[0] & nan[1])
        return found
    if pat.is_struct(kind):
        found = np.ones(len(one), np.bool_)
        for mine, theirs in zip(one.flatten(), other.flatten(), strict=True):
            found &= equal_values(mine, theirs)
        return found
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_map(kind) or pat.is_fixed_size_list(kind):
        return _equal_lists(one, other)
    try:
        return np.asarray(pc.equal(one, other).to_numpy(zero_copy_only=False), dtype=np.bool_)
    except pa.ArrowNotImplementedError:  # a type without a kernel, such as intervals
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.array([mine == theirs for mine, theirs in pairs], np.bool_)


def _equal_lists(one: pa.Array, other: pa.Array) -> Flags:
    lengths, other_lengths = _lengths(one), _lengths(other)
    found: Flags = lengths == other_lengths
    same = np.flatnonzero(found)
    if len(same) < len(one):
        one, other, lengths = one.take(pa.array(same)), other.take(pa.array(same)), lengths[same]
    elements = [equal_values(mine, theirs) for mine, theirs in zip(_elements(one), _elements(other), strict=True)]
    differing = np.append(0, np.cumsum(~np.logical_and.reduce(elements)))
    stops = np.cumsum(lengths)
    found[same] = differing[stops] == differing[stops - lengths]
    return found


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    if pat.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, np.int64)
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return np.asarray(np.diff(offsets), dtype=np.int64)


def _elements(column: pa.Array) -> list[pa.Array]:
    """The elements of lists without NULLs, end to end; of maps the keys and the items."""
    if not pat.is_map(column.type):
        return [column.flatten()]
    offsets = column.offsets.to_numpy(zero_copy_only=False)
    first, last = int(offsets[0]), int(offsets[-1])
    return [each.slice(first, last - first) for each in (column.keys, column.items)]


def _valid(column: pa.Array) -> Flags:
    if pat.is_null(column.type):
        return np.zeros(len(column), np.bool_)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
