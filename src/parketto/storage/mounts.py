"""Mounts: files can be renamed only within one, even if two mounts show the same disk."""

from __future__ import annotations

import os


def same_mount(first: str, second: str) -> bool:
    """Whether files can be renamed from one folder to the other."""
    return _mount(first) == _mount(second)


def mount_point(path: str) -> str:
    """The topmost parent folder of a path that is on the same mount.

    >>> mount_point("/")
    '/'
    """
    path = os.path.realpath(path)
    while (parent := os.path.dirname(path)) != path and same_mount(parent, path):
        path = parent
    return path


def existing_folder(path: str) -> str:
    """The folder, or the nearest one above it that exists."""
    while not os.path.isdir(path) and (parent := os.path.dirname(path)) != path:
        path = parent
    return path


def _mount(folder: str) -> tuple[int, str | None]:
    """A folder's device and, where the kernel reports it, its mount: a bind mount has its origin's device."""
    device = os.stat(folder).st_dev
    if not hasattr(os, "O_PATH"):
        return device, None
    descriptor = os.open(folder, os.O_PATH)
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:
            return device, next((line for line in lines if line.startswith("mnt_id:")), None)
    except OSError:  # no /proc here
        return device, None
    finally:
        os.close(descriptor)
