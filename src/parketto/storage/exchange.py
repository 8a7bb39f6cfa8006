"""Swapping two directories, or moving one to a free name, in one step: Linux's renameat2."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
# What a kernel or a filesystem answers that does not know these flags.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL})
_MOUNTS = "/proc/self/mountinfo"
_MOUNT_POINT_FIELD = 4


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


def exchange_problem(directory: str, folders: Iterable[str] = ("",)) -> str | None:
    """Why a directory and its folders (relative paths, without links) cannot be swapped for another tree, or None.

    A process whose working directory is swapped away would be left standing in a removed folder. A filesystem that
    is mounted inside would move away together with the old tree.
    """
    if _renameat2() is None:
        return "this system cannot swap directories"
    if os.path.islink(directory):
        return f"{directory!r} is a symbolic link"
    if os.path.ismount(directory) or _mounted_inside(os.path.realpath(directory)):
        return f"there is a mount point at or below {directory!r}"
    device, occupied = os.stat(directory).st_dev, _working_directories()
    for folder in folders:
        path = f"{directory}/{folder}" if folder else directory
        place = _place(os.lstat(path))
        if place[0] != device:
            return f"{path!r} is on another device"
        if place in occupied:
            return f"a process has its working directory at {path!r}"
    return None


def _mounted_inside(directory: str) -> bool:
    """Whether something is mounted at or below a directory; also a part of the same filesystem."""
    inside = os.fsencode(directory).rstrip(b"/") + b"/"
    try:
        with open(_MOUNTS, "rb") as mounts:
            points = [line.split(b" ")[_MOUNT_POINT_FIELD] for line in mounts]
    except (OSError, IndexError):
        return False  # then devices alone tell mount points from other directories
    return any((_unescaped(point) + b"/").startswith(inside) for point in points)


def _unescaped(mount_point: bytes) -> bytes:
    """Blanks and the like are octal numbers there."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), mount_point)


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
    _rename(first, second, _RENAME_EXCHANGE)


def rename_to_free_name(source: str, destination: str) -> None:
    """Rename, or raise FileExistsError if anything has that name already."""
    try:
        _rename(source, destination, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        if os.path.lexists(destination):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), destination) from None
        os.rename(source, destination)


def _rename(first: str, second: str, flag: int) -> None:
    call = _renameat2()
    if call is None:
        raise OSError(errno.ENOSYS, "this system has no renameat2", first)
    if call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), flag) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), first, None, second)
