"""How the rows of a file are laid out, as the file itself records it among its key-value metadata."""

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
    """Rows laid out by columns: in their order (`linear`), or along a curve through all of them at once."""

    columns: tuple[str, ...]
    curve: str = LINEAR

    @property
    def is_linear(self) -> bool:
        """Whether rows are simply sorted."""
        return self.curve == LINEAR

    def record(self) -> bytes:
        """What a file of a new layout says about itself. Files that were laid out together say the same."""
        return json.dumps(
            {"columns": self.columns, "curve": self.curve, "run": uuid.uuid4().hex}, ensure_ascii=False
        ).encode()


def recorded(metadata: Mapping[bytes, bytes] | None) -> Clustering | None:
    """What a file's metadata says about the layout of its rows.

    >>> recorded({RECORD: Clustering(("user", "day"), "hilbert").record()})
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
        return None  # somebody else's words: a file without a record
    if not (isinstance(curve, str) and isinstance(columns, list) and columns):
        return None
    if not all(isinstance(name, str) for name in columns):
        return None
    return Clustering(tuple(columns), curve)


def without_record(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
    """Metadata for files whose rows are laid out anew by something else."""
    return {key: value for key, value in (metadata or {}).items() if key != RECORD}
