"""Errors about files that cannot be read: they name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from parketto.errors import UnreadableFile


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Turn what Arrow says about unreadable bytes into an error that names the file."""
    try:
        yield
    except (FileNotFoundError, PermissionError, ConnectionError, TimeoutError):
        raise
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, UnicodeError) as error:
        raise UnreadableFile(path, error) from error
