"""Pickles objects that are sent to Spark's tasks and back, with Arrow schemas exactly (`runtime/pickling.py`).

Functions from the user's script, which no other process can import, are pickled by value.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from parketto import __version__
from parketto.errors import InvalidArgument
from parketto.runtime.pickling import reduced_schema

Batches = Iterable[pa.RecordBatch]

#: Prefix of every payload: another version may misread what this one has pickled.
VERSIONS = (__version__, pa.__version__)


class VersionMismatch(RuntimeError):
    """The driver and a worker have incompatible versions. Spark passes on only the message."""

    def __init__(self, library: str, here: str, there: str, rule: str) -> None:
        super().__init__(
            f"{MARK}Spark's workers have {library} {here} and the driver has {there}, but {rule}. Nothing was "
            "changed; install the same version on both sides, or send it along with spark.submit.pyFiles or "
            "spark.archives"
        )


MARK = "parketto-versions: "


@functools.cache
def _pickler() -> Any:
    # Imported on first use: without pyspark the engine must still be able to report what is missing.
    from pyspark import cloudpickle

    class Pickler(cloudpickle.CloudPickler):
        def reducer_override(self, obj: Any) -> Any:
            found = reduced_schema(obj)
            return found if found is not NotImplemented else super().reducer_override(obj)  # type: ignore[no-untyped-call]

    return Pickler


def dumps(thing: Any) -> bytes:
    """Pickle an object; Arrow schemas are kept exactly."""
    sink = io.BytesIO()
    try:
        _pickler()(sink, pickle.HIGHEST_PROTOCOL).dump(thing)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            "the filesystem, a function or another argument cannot be sent to Spark's tasks, because it cannot be "
            f"pickled: {error}"
        ) from error
    return " ".join(VERSIONS).encode() + b"\n" + sink.getvalue()


def loads(content: bytes) -> Any:
    """The object that `dumps` has pickled. Only for bytes from this driver or its own tasks.

    Raises:
        VersionMismatch: The sender has another version of Parketto, or another major version of PyArrow.
    """
    versions, _, packed = content.partition(b"\n")
    theirs, their_arrow = versions.decode().split(" ")
    ours, our_arrow = VERSIONS
    if theirs != ours:
        raise VersionMismatch("Parketto", ours, theirs, "the versions must be the same")
    if their_arrow.partition(".")[0] != our_arrow.partition(".")[0]:
        raise VersionMismatch("PyArrow", our_arrow, their_arrow, "the major versions must be the same")
    return pickle.loads(packed)  # noqa: S301 - see above


class PickledFunction:
    """A function over batches, pickled for Spark's tasks."""

    def __init__(self, function: Callable[[Batches], Iterator[pa.RecordBatch]]) -> None:
        self._content = dumps(function)

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Unpickle the function in the task, and call it."""
        yield from loads(self._content)(batches)
