"""When a folder was made: with its inode number, what tells it from a later one of the same name."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
from collections.abc import Callable

_AT_FDCWD = -100
_STATX_BTIME = 0x800
_STATX_BYTES = 256
# Where struct statx has the mask of what is known, and the time of birth (seconds, nanoseconds).
_MASK_AT, _BIRTH_AT = 0, 80


@functools.cache
def _statx() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    return function


def birth(path: str) -> str:
    """The inode number and the time of birth of a folder; without the time where the system does not tell it.

    A filesystem gives the number of a removed folder to the next one, so the number alone would not do.
    """
    status = os.stat(path)
    seconds = getattr(status, "st_birthtime", None) or _birth_time(path)
    return f"{status.st_ino}:{seconds or ''}"


def _birth_time(path: str) -> str | None:
    call = _statx()
    if call is None:
        return None
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if call(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return None
    (known,) = struct.unpack_from("=I", buffer, _MASK_AT)
    if not known & _STATX_BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _BIRTH_AT)
    return f"{seconds}.{nanoseconds:09d}"
