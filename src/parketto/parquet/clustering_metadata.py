"""The clustering of a file's rows, as recorded in its key-value metadata."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

RECORD = b"parketto.clustering"
LINEAR = "linear"


@dataclass(frozen=True)
class Clustering:
    """Rows clustered by columns: sorted (`linear`), or along a space-filling curve over all of them."""

    columns: tuple[str, ...]
    curve: str = LINEAR

    @property
    def is_linear(self) -> bool:
        """Whether rows are sorted."""
        return self.curve == LINEAR

    def record(self) -> bytes:
        """The metadata value for one clustering run; all files of the run get the same."""
        return json.dumps(
            {"columns": self.columns, "curve": self.curve, "run": uuid.uuid4().hex}, ensure_ascii=False
        ).encode()


def read_clustering(metadata: Mapping[bytes, bytes] | None) -> Clustering | None:
    """The clustering that a file's metadata records, if any.

    >>> read_clustering({RECORD: Clustering(("user", "day"), "hilbert").record()})
    Clustering(columns=('user', 'day'), curve='hilbert')
    """
    found = (metadata or {}).get(RECORD)
    return None if found is None else _read(found)


@functools.lru_cache(maxsize=1024)
def _read(record: bytes) -> Clustering | None:
    try:
        parts = json.loads(record)
        columns, curve = parts["columns"], parts["curve"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # not a record of ours: same as no record
    if not (isinstance(curve, str) and isinstance(columns, list) and columns):
        return None
    if not all(isinstance(name, str) for name in columns):
        return None
    return Clustering(tuple(columns), curve)


def without_record(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
    """Metadata without the record, for files whose rows are rearranged in another way."""
    return {key: value for key, value in (metadata or {}).items() if key != RECORD}
