"""Swapping two directories in one step, where the kernel can: Linux's renameat2 with RENAME_EXCHANGE."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable, Iterable

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    # Not every C library has it; without it directories are not swapped.
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    function.restype = ctypes.c_int
    exchange: Callable[..., int] = function
    return exchange


def exchangeable(directories: Iterable[str]) -> set[str]:
    """Those directories that may be swapped: leaves of the tree in which nobody stands.

    A process whose working directory is swapped away would be left standing in a removed folder.
    """
    if _renameat2() is None:
        return set()
    occupied = _working_directories()
    return {path for path in directories if _is_plain_leaf(path) and _place(os.stat(path)) not in occupied}


def _is_plain_leaf(path: str) -> bool:
    if os.path.islink(path) or os.path.ismount(path) or not os.path.isdir(path):
        return False
    with os.scandir(path) as entries:
        return not any(entry.is_dir(follow_symlinks=False) for entry in entries)


def _working_directories() -> set[tuple[int, int]]:
    """The places where the processes that we may look at stand."""
    places = set()
    for process in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if process.isdecimal() or process == "self":
            # Other users' processes may not be looked at, and processes end at any time.
            with contextlib.suppress(OSError):
                places.add(_place(os.stat(f"/proc/{process}/cwd")))
    return places


def _place(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def exchange(first: str, second: str) -> None:
    """Swap two paths atomically, or raise OSError and leave both as they were."""
    call = _renameat2()
    if call is None:
        raise OSError(errno.ENOSYS, "this system cannot swap directories", first)
    if call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), first, None, second)
