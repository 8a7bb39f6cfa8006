"""Pickles objects with Arrow schemas exactly.

PyArrow's own pickling of a schema loses the names of list elements and map entries; its IPC format keeps them.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import pyarrow as pa


def reduced_schema(thing: Any) -> Any:
    """How to pickle an Arrow schema; NotImplemented for all other objects."""
    return (_schema, (thing.serialize().to_pybytes(),)) if isinstance(thing, pa.Schema) else NotImplemented


def _schema(content: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(content))


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        return reduced_schema(thing)


def dumps(thing: Any) -> bytes:
    """Pickle an object.

    >>> names = pa.schema({"x": pa.list_(pa.field("element", pa.int64()))})
    >>> loads(dumps(names)).field("x").type
    ListType(list<element: int64>)
    """
    sink = io.BytesIO()
    _Pickler(sink, pickle.HIGHEST_PROTOCOL).dump(thing)
    return sink.getvalue()


def loads(content: bytes) -> Any:
    """The object that `dumps` has pickled. Only for bytes of this application."""
    return pickle.loads(content)  # noqa: S301 - see above
