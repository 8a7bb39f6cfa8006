"""What travels to Spark's tasks and back, as bytes.

PyArrow's own pickling of a schema forgets the names of list elements and map entries; its IPC format does not.
Functions that no other process can import, because they are from the user's script, travel with their code.
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

Batches = Iterable[pa.RecordBatch]

#: Goes ahead of all that travels: what one version has packed, another one may take for something else.
VERSIONS = (__version__, pa.__version__)


class OtherVersion(RuntimeError):
    """A driver and a worker have versions that do not go together. Spark passes on no more than the text."""

    def __init__(self, library: str, here: str, there: str, rule: str) -> None:
        super().__init__(
            f"{MARK}Spark's workers have {library} {here} and the driver has {there}, but {rule}. Nothing was "
            "changed; install the same version on both sides, or send it along with spark.submit.pyFiles or "
            "spark.archives"
        )


MARK = "parketto-versions: "


@functools.cache
def _pickler() -> Any:
    # Not before something travels: without Spark an engine must still be able to say what is missing.
    from pyspark import cloudpickle

    class Pickler(cloudpickle.CloudPickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, pa.Schema):
                return _schema, (obj.serialize().to_pybytes(),)
            return super().reducer_override(obj)  # type: ignore[no-untyped-call]

    return Pickler


def _schema(content: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(content))


def ship(thing: Any) -> bytes:
    """Anything of ours as bytes, exactly as it is."""
    sink = io.BytesIO()
    try:
        _pickler()(sink, pickle.HIGHEST_PROTOCOL).dump(thing)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            "the filesystem, a function or another argument cannot be sent to Spark's tasks, because it cannot be "
            f"pickled: {error}"
        ) from error
    return " ".join(VERSIONS).encode() + b"\n" + sink.getvalue()


def unship(content: bytes) -> Any:
    """What was shipped: by this driver or its own tasks, nobody else.

    Raises:
        OtherVersion: Those have another version of Parketto, or another major version of PyArrow.
    """
    versions, _, packed = content.partition(b"\n")
    theirs, their_arrow = versions.decode().split(" ")
    ours, our_arrow = VERSIONS
    if theirs != ours:
        raise OtherVersion("Parketto", ours, theirs, "the versions must be the same")
    if their_arrow.partition(".")[0] != our_arrow.partition(".")[0]:
        raise OtherVersion("PyArrow", our_arrow, their_arrow, "the major versions must be the same")
    return pickle.loads(packed)  # noqa: S301 - see above


class Shipped:
    """A function over batches on its way to Spark's tasks."""

    def __init__(self, function: Callable[[Batches], Iterator[pa.RecordBatch]]) -> None:
        self._content = ship(function)

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Call it there."""
        yield from unship(self._content)(batches)
