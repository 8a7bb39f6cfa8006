"""64-bit hashes of keys, vectorized with NumPy.

PyArrow has no such function, and those of pandas and Polars need these libraries in every worker. Values must have
the types that `keys.matchable` returns, and no NULLs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

Hashes = npt.NDArray[np.uint64]

_WORD = 8  # bytes that are hashed per round
_LONG_BYTES = 256  # longer values are hashed one by one, or each would take a round per word
_MASKS = np.array([(1 << (8 * count)) - 1 for count in range(_WORD + 1)], np.uint64)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)


def key_hashes(columns: Sequence[pa.Array], seed: int = 0) -> Hashes:
    """A hash for each row. Equal keys have equal hashes; different keys almost never do.

    >>> hashes = key_hashes([pa.array([1, 2, 1]), pa.array(["x", "x", "x"])])
    >>> bool(hashes[0] == hashes[2]), bool(hashes[0] == hashes[1])
    (True, False)
    """
    state = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        state += _STEP
        state = _strings(column, state) if _has_offsets(column.type) else _numbers(column, state)
    return state


def is_one_word(kind: pa.DataType) -> bool:
    """Whether values of a type fit into 64 bits, so that they need no hash."""
    return not _has_offsets(kind) and kind.bit_width <= 8 * _WORD


def words(column: pa.Array) -> Hashes:
    """The bits of values of at most 64 bits."""
    found: Hashes = _fixed(column)[:, 0]
    return found


def _has_offsets(kind: pa.DataType) -> bool:
    return bool(
        pat.is_string(kind) or pat.is_binary(kind) or pat.is_large_string(kind) or pat.is_large_binary(kind)
    )


def _mixed(state: Hashes) -> Hashes:
    """Mix the bits of numbers: every bit of a result depends on all bits of its input."""
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    mixed: Hashes = state ^ (state >> np.uint64(31))
    return mixed


def _numbers(column: pa.Array, state: Hashes) -> Hashes:
    for word in _fixed(column).T:
        state = _mixed(state ^ word)
    return state


def _fixed(column: pa.Array) -> Hashes:
    """Fixed-width values as 64-bit words, one row per value."""
    if pat.is_boolean(column.type):
        column = column.cast(pa.uint8())
    width = column.type.bit_width // 8
    raw = _bytes(column.buffers()[1])[column.offset * width : (column.offset + len(column)) * width]
    if width in {1, 2, 4, 8}:
        return raw.view(f"<u{width}").astype(np.uint64).reshape(-1, 1)
    padded = np.zeros((len(column), -(-width // _WORD) * _WORD), np.uint8)
    padded[:, :width] = raw.reshape(len(column), width)
    return padded.view("<u8").astype(np.uint64)


def _strings(column: pa.Array, state: Hashes) -> Hashes:
    """Hash strings and binaries, eight bytes of every value per round."""
    large = pat.is_large_string(column.type) or pat.is_large_binary(column.type)
    _, raw_offsets, data = column.buffers()
    offsets = np.zeros(1, np.int64)
    if len(column):
        offsets = _bytes(raw_offsets).view("<i8" if large else "<i4")[
            column.offset : column.offset + len(column) + 1
        ]
    lengths, starts = np.diff(offsets), offsets[:-1] - offsets[0]
    content = np.concatenate([_bytes(data)[offsets[0] : offsets[-1]], np.zeros(_WORD, np.uint8)])
    # A view of the eight bytes that begin at each byte.
    at_byte = np.ndarray((len(content) - _WORD + 1,), "<u8", content, strides=(1,))
    state = _mixed(state ^ lengths.astype(np.uint64))
    rows = np.flatnonzero((lengths > 0) & (lengths <= _LONG_BYTES))
    done = 0
    while len(rows):
        word = at_byte[starts[rows] + done] & _MASKS[np.minimum(lengths[rows] - done, _WORD)]
        state[rows] = _mixed(state[rows] ^ word)
        done += _WORD
        rows = rows[lengths[rows] > done]
    for row in np.flatnonzero(lengths > _LONG_BYTES).tolist():
        value = content[starts[row] : starts[row] + lengths[row]].tobytes()
        key = int(state[row]).to_bytes(_WORD, "little")
        digest = hashlib.blake2b(value, digest_size=_WORD, key=key).digest()
        state[row] = np.uint64(int.from_bytes(digest, "little"))
    return state


def _bytes(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
