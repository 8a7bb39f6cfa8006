"""What travels to Spark's tasks and back, as bytes.

PyArrow's own pickling of a schema forgets the names of list elements and map entries; its IPC format does not.
Functions that no other process can import, because they are from the user's script, travel with their code.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from parketto.errors import InvalidArgument

Batches = Iterable[pa.RecordBatch]


class _Pickler(cloudpickle.CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, pa.Schema):
            return _schema, (obj.serialize().to_pybytes(),)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _schema(content: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(content))


def ship(thing: Any) -> bytes:
    """Anything of ours as bytes, exactly as it is."""
    sink = io.BytesIO()
    try:
        _Pickler(sink, pickle.HIGHEST_PROTOCOL).dump(thing)  # type: ignore[no-untyped-call]
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            "the filesystem, a function or another argument cannot be sent to Spark's tasks, because it cannot be "
            f"pickled: {error}"
        ) from error
    return sink.getvalue()


def unship(content: bytes) -> Any:
    """What was shipped: by this driver or its own tasks, nobody else."""
    return pickle.loads(content)  # noqa: S301 - see above


class Shipped:
    """A function over batches on its way to Spark's tasks."""

    def __init__(self, function: Callable[[Batches], Iterator[pa.RecordBatch]]) -> None:
        self._content = ship(function)

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Call it there."""
        yield from unship(self._content)(batches)
