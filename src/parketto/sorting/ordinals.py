"""Ordinals: integers in the order of values, which sort several times faster than values.

NumPy sorts plain numbers with vector instructions, where Arrow calls a function for every comparison. So several
sort columns become one integer per row, and the row number in its lowest bits makes the sort stable.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

Unsigned: TypeAlias = npt.NDArray[np.uint64]
Positions: TypeAlias = npt.NDArray[np.int64]

_INT64_DIGITS = 18  # decimals up to this precision fit into int64
_SAMPLE_VALUES = 256  # values in each of two samples, to detect whether values repeat
_WORD = 8  # bytes of a text that are compared at once, as one integer
_WORD_BITS = 4  # for the number of bytes of a text that are in a word, 0 to 8
_MAX_WORDS = 16  # texts that are equal up to here are left to Arrow
_MAX_TEXTS = 2**30  # so that two ordinals and the bytes in a word fit into 64 bits


class Ordinals(NamedTuple):
    """An integer per row, and how many bits it has at most: 2 to the power of `bits` exceeds all of them."""

    of_rows: Unsigned
    bits: int


def sorted_positions(columns: list[pa.ChunkedArray]) -> Positions:
    """The positions of rows ordered by columns, at least one: NaN after numbers, NULLs last; stable.

    >>> sorted_positions([pa.chunked_array([[2, None, 1, 1]]), pa.chunked_array([["x", "y", "z", "a"]])]).tolist()
    [3, 2, 0, 1]
    """
    rows = len(columns[0])
    keys = Ordinals(np.zeros(rows, np.uint64), 0)
    for column in columns:
        keys = _combined(keys, ordinals(column))
    row_bits = _bits(rows)
    if keys.bits + row_bits > 64:
        keys = _dense(keys.of_rows)
    ordered = keys.of_rows << np.uint64(row_bits)
    ordered |= np.arange(rows, dtype=np.uint64)
    ordered.sort()
    ordered &= np.uint64((1 << row_bits) - 1)
    return ordered.view(np.int64)


def ordinals(column: pa.ChunkedArray | pa.Array) -> Ordinals:
    """Ordinals of comparable values: equal where values are, NaN after numbers, NULLs last."""
    values = _in_one_piece(column)
    valid = values.drop_null() if values.null_count else values
    found = _valid_ordinals(valid)
    if not values.null_count:
        return found
    filled = np.full(len(values), 1 << found.bits, np.uint64)
    filled[np.asarray(values.is_valid())] = found.of_rows
    return Ordinals(filled, found.bits + 1)


def numbers(values: pa.Array) -> npt.NDArray[Any] | None:
    """Values as numbers of the same order, or None if impossible; NaN is the highest. NULLs become any number."""
    kind = values.type
    if pat.is_null(kind):
        return np.zeros(len(values), np.int64)
    if pat.is_boolean(kind):
        return np.asarray(values.cast(pa.uint8()).fill_null(0))
    if pat.is_floating(kind):
        return np.asarray(np.add(values.fill_null(0), kind.to_pandas_dtype()(0)))  # -0.0 becomes 0.0
    if pat.is_integer(kind):
        return np.asarray(values.fill_null(0))
    if pat.is_temporal(kind):
        return np.asarray(values.view(pa.int32() if kind.bit_width == 32 else pa.int64()).fill_null(0))
    if pat.is_decimal128(kind) and kind.precision <= _INT64_DIGITS:
        # The lower 64 bits of each value contain it completely.
        halves = np.frombuffer(values.buffers()[1], np.int64)
        return halves[2 * values.offset : 2 * (values.offset + len(values)) : 2]
    return None


def _valid_ordinals(values: pa.Array) -> Ordinals:
    if not len(values):
        return Ordinals(np.zeros(0, np.uint64), 0)
    found = numbers(values)
    if found is not None:
        if found.dtype.kind in "iu":
            low, high = int(found.min()), int(found.max())
            if (high - low).bit_length() <= _bits(len(found)):
                # Differences wrap around correctly, whatever the signs are.
                return Ordinals(found.astype(np.uint64) - np.uint64(low % 2**64), (high - low).bit_length())
        return _dense(found)
    if _is_text(values.type) and len(values) <= _MAX_TEXTS and not repeats(values):
        return _text_ordinals(values)
    return _compared(values)


def _compared(values: pa.Array) -> Ordinals:
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    found = np.empty(len(order), np.uint64)
    found[order] = np.arange(len(order), dtype=np.uint64)
    return Ordinals(found[encoded.indices.to_numpy()], _bits(len(order)))


def _dense(values: npt.NDArray[Any]) -> Ordinals:
    """Ordinals of numbers, without gaps."""
    order = np.argsort(values)
    ordered = values[order]
    begins = ordered[1:] != ordered[:-1]
    if ordered.dtype.kind == "f" and np.isnan(ordered[-1]):
        begins[int(np.searchsorted(ordered, np.nan)) :] = False  # all NaN are equal
    del ordered
    ranked = np.zeros(len(order), np.uint64)
    np.cumsum(begins, out=ranked[1:])
    found = np.empty_like(ranked)
    found[order] = ranked
    return Ordinals(found, int(ranked[-1]).bit_length())


def _combined(one: Ordinals, other: Ordinals) -> Ordinals:
    """Ordinals by the first and then the second."""
    if one.bits + other.bits > 64:
        one = _dense(one.of_rows)
    if one.bits + other.bits > 64:
        other = _dense(other.of_rows)
    if not one.bits:
        return other
    return Ordinals((one.of_rows << np.uint64(other.bits)) | other.of_rows, one.bits + other.bits)


def _text_ordinals(values: pa.Array) -> Ordinals:
    """Ordinals of texts or binary values: for each, the number of smaller ones. Compares eight bytes at a time."""
    data, starts, ends = _bytes_of(values)
    found = np.zeros(len(values), np.uint64)
    rows = np.arange(len(values))  # those that equal others so far
    for depth in range(0, _WORD * _MAX_WORDS, _WORD):
        begins = starts[rows] + depth
        lengths = np.clip(ends[rows] - begins, 0, _WORD)
        words = _words(data, begins, lengths)
        if lengths.min() == _WORD and words.min() == words.max():
            continue  # a common prefix
        # Of texts that differ only in trailing zero bytes, the shorter one comes first.
        parts = _combined(_dense(words), Ordinals(lengths.astype(np.uint64), _WORD_BITS))
        found[rows], is_tied = _refined(found[rows], parts)
        rows = rows[is_tied & (lengths == _WORD)]
        if not len(rows):
            break
    else:
        found[rows], _ = _refined(found[rows], _compared(values.take(pa.array(rows))))
    return Ordinals(found, _bits(len(values)))


def _refined(known: Unsigned, parts: Ordinals) -> tuple[Unsigned, npt.NDArray[np.bool_]]:
    """The numbers of smaller values, refined by the next bytes; and which values are still equal to others."""
    keys = (known << np.uint64(parts.bits)) | parts.of_rows
    order = np.argsort(keys)
    keys = keys[order]
    before = keys >> np.uint64(parts.bits)
    firsts, first_equals = _first_equal(keys), _first_equal(before)
    found, is_tied = np.empty_like(known), np.empty(len(known), np.bool_)
    found[order] = before + (firsts - first_equals)
    is_first = firsts == np.arange(len(keys), dtype=np.uint64)
    is_tied[order] = ~(is_first & np.append(is_first[1:], True))
    return found, is_tied


def _first_equal(ordered: Unsigned) -> Unsigned:
    """For each of some ordered numbers, the position of the first equal one."""
    firsts = np.arange(len(ordered), dtype=np.uint64)
    firsts[1:][ordered[1:] == ordered[:-1]] = 0
    return np.maximum.accumulate(firsts)


def _bytes_of(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Positions, Positions]:
    """The bytes of texts, and where each begins and ends."""
    _, offsets, data = values.buffers()
    width = np.int64 if values.type in (pa.large_string(), pa.large_binary()) else np.int32
    edges = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    if len(content) < _WORD:
        content = np.append(content, np.zeros(_WORD, np.uint8))
    return content, edges[:-1], edges[1:]


def _words(data: npt.NDArray[np.uint8], begins: Positions, lengths: Positions) -> Unsigned:
    """The eight bytes from each position on as one integer, most significant first; zero beyond the length."""
    every = np.ndarray(len(data) - _WORD + 1, np.dtype(">u8"), data, strides=(1,))
    at = np.minimum(begins, len(data) - _WORD)  # the last bytes of the data are read from further left
    words = every[at].astype(np.uint64)
    words <<= ((begins - at) * 8).clip(0, 63).astype(np.uint64)
    words &= _MASKS[lengths]
    return words


#: The first bytes of a word, by their number.
_MASKS = np.array([0, *((0xFFFFFFFFFFFFFFFF << (64 - 8 * n)) % 2**64 for n in range(1, _WORD + 1))], np.uint64)


def repeats(values: pa.Array) -> bool:
    """Whether values are texts that repeat so often that a dictionary of them is small."""
    if not _is_text(values.type):
        return False
    samples = (values.slice(part * len(values) // 4, _SAMPLE_VALUES) for part in (1, 3))
    return len(values) > 4 * _SAMPLE_VALUES and all(len(some.unique()) <= _SAMPLE_VALUES // 4 for some in samples)


def _in_one_piece(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if _is_text(column.type) and column.nbytes > np.iinfo(np.int32).max:
        column = column.cast(pa.large_binary())
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pat.is_string(kind) or pat.is_large_string(kind) or pat.is_binary(kind) or pat.is_large_binary(kind)
    )


def _bits(count: int) -> int:
    """The bits of the numbers below `count`."""
    return max(0, count - 1).bit_length()
