"""Read errors that name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from parketto.errors import UnreadableFile


@contextlib.contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Turn Arrow's errors about unreadable bytes into errors that name the file."""
    try:
        yield
    except (FileNotFoundError, PermissionError, ConnectionError, TimeoutError):
        raise
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, UnicodeError) as error:
        raise UnreadableFile(path, error) from error
