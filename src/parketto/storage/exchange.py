"""Atomic directory swaps, and renames that never replace anything: Linux's renameat2."""

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
# Errors of kernels and filesystems that do not support these flags.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL})
_MOUNTS = "/proc/self/mountinfo"
_MOUNT_POINT_FIELD = 4


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    # Not every C library has it; without it, directories are not swapped.
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    function.restype = ctypes.c_int
    exchange: Callable[..., int] = function
    return exchange


def exchange_problem(directory: str, folders: Iterable[str] = ("",)) -> str | None:
    """Why a directory and its folders (relative paths, no links) cannot be swapped for another tree, or None.

    A process whose working directory is swapped away would end up in a removed folder. A filesystem mounted inside
    would move away together with the old tree.
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
        identity = _device_and_inode(os.lstat(path))
        if identity[0] != device:
            return f"{path!r} is on another device"
        if identity in occupied:
            return f"a process has its working directory at {path!r}"
    return None


def _mounted_inside(directory: str) -> bool:
    """Whether something is mounted at or below a directory, bind mounts of the same filesystem included."""
    inside = os.fsencode(directory).rstrip(b"/") + b"/"
    try:
        with open(_MOUNTS, "rb") as mounts:
            points = [line.split(b" ")[_MOUNT_POINT_FIELD] for line in mounts]
    except (OSError, IndexError):
        return False  # without mountinfo, only the device check finds mount points
    return any((_unescaped(point) + b"/").startswith(inside) for point in points)


def _unescaped(mount_point: bytes) -> bytes:
    """Decode the octal escapes that mountinfo uses for blanks and other special characters."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), mount_point)


def _working_directories() -> set[tuple[int, int]]:
    """Device and inode of the working directory of each process that this user may inspect."""
    found = set()
    for process in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if process.isdecimal() or process == "self":
            # Other users' processes are not readable, and a process may exit at any time.
            with contextlib.suppress(OSError):
                found.add(_device_and_inode(os.stat(f"/proc/{process}/cwd")))
    return found


def _device_and_inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def exchange(first: str, second: str) -> None:
    """Swap two paths atomically, or raise OSError and leave both unchanged."""
    _rename(first, second, _RENAME_EXCHANGE)


def rename_to_free_name(source: str, destination: str) -> None:
    """Rename, or raise FileExistsError if the name is taken."""
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
