"""Arrow arrays from Python values, and NumPy arrays from Arrow's, without pandas.

`pa.array`, `pa.scalar` and `to_numpy` import pandas where it is installed: longer than a small operation takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values of a type; None is NULL.

    >>> array_of(["a", None, "bc"], pa.string()).to_pylist(), array_of([True, None], pa.bool_()).to_pylist()
    (['a', None, 'bc'], [True, None])
    >>> array_of([1, None, 3], pa.int64()).to_pylist()
    [1, None, 3]
    >>> array_of([[1, 2], None, []], pa.list_(pa.int64())).to_pylist()
    [[1, 2], None, []]
    """
    known = [value is not None for value in values]
    nulls = None if all(known) else _bits(known)
    if pat.is_string(kind) or pat.is_binary(kind):
        texts = [b"" if value is None else value.encode() if isinstance(value, str) else value for value in values]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        if offsets[-1] < 2**31:
            data = [pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(texts))]
            return pa.Array.from_buffers(kind, len(texts), [nulls, *data])
    elif pat.is_list(kind):
        offsets = np.zeros(len(values) + 1, np.int32)
        np.cumsum([len(value or ()) for value in values], out=offsets[1:])
        items = array_of([item for value in values for item in value or ()], kind.value_type)
        return pa.Array.from_buffers(kind, len(values), [nulls, pa.py_buffer(offsets)], children=[items])
    elif pat.is_boolean(kind):
        return pa.Array.from_buffers(kind, len(known), [nulls, _bits([bool(value) for value in values])])
    elif pat.is_integer(kind) or pat.is_float64(kind):
        numbers = np.array([0 if value is None else value for value in values], kind.to_pandas_dtype())
        return pa.Array.from_buffers(kind, len(known), [nulls, pa.py_buffer(numbers)])
    return pa.array(values, kind)


def integers(values: npt.NDArray[np.int64] | range) -> pa.Array:
    """64-bit integers, without a copy of an array.

    >>> integers(range(3)).to_pylist()
    [0, 1, 2]
    """
    found = np.ascontiguousarray(np.arange(values.start, values.stop) if isinstance(values, range) else values)
    return pa.Array.from_buffers(pa.int64(), len(found), [None, pa.py_buffer(found.astype(np.int64, copy=False))])


def numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """The values of a column of 64-bit integers without NULLs.

    >>> numbers(pa.chunked_array([integers(range(2)), integers(range(1))])).tolist()
    [0, 1, 0]
    """
    parts = [np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(flags, np.bool_), bitorder="little"))
