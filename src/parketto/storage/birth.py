"""Folder identity: inode number plus creation time, which distinguish a folder from a later one of its name."""

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
# Offsets into struct statx: the mask of filled fields, and the creation time (seconds, nanoseconds).
_MASK_OFFSET, _BTIME_OFFSET = 0, 80


@functools.cache
def _statx() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    return function


def birth(path: str) -> str:
    """The inode number and creation time of a folder; the time is empty where the system does not report it.

    Filesystems reuse the inode numbers of removed folders, so the number alone is not unique.
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
    (known,) = struct.unpack_from("=I", buffer, _MASK_OFFSET)
    if not known & _STATX_BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _BTIME_OFFSET)
    return f"{seconds}.{nanoseconds:09d}"
