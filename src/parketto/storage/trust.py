"""Trust in a folder beside a dataset: its records are executed, so other users must not be able to write them."""

from __future__ import annotations

import os
from stat import S_ISDIR, S_IWGRP, S_IWOTH


def distrust(path: str, like: str) -> str | None:
    """Why a folder may contain what another user wrote; None if it cannot, or does not exist.

    It must not be a link, must belong to this user, to root or to the owner of the dataset, and must not be
    world-writable. If a group may write to the dataset, the same group may write to the folder. Any member of it
    may own the folder, unless its parent is world-writable.

    Args:
        path: The folder.
        like: The dataset, which may not exist yet.
    """
    if not hasattr(os, "geteuid"):
        return None
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if not S_ISDIR(found.st_mode):
        return f"{path!r} is a link or a file, not a folder"
    if found.st_mode & S_IWOTH:
        return f"{path!r} is world-writable"
    parent = os.stat(os.path.dirname(path) or "/")
    try:
        dataset: os.stat_result | None = os.stat(like)
    except FileNotFoundError:
        dataset = None
    shared = dataset is not None and dataset.st_mode & S_IWGRP and dataset.st_gid == found.st_gid
    owners = {os.geteuid(), 0} | ({dataset.st_uid} if dataset is not None else set())
    if found.st_uid not in owners and not (shared and not parent.st_mode & S_IWOTH):
        return f"{path!r} belongs to user {found.st_uid}, neither you nor the owner of the dataset"
    if found.st_mode & S_IWGRP and not shared and found.st_gid not in _own_groups():
        return f"group {found.st_gid} may write to {path!r}, but not to the dataset"
    return None


def _own_groups() -> set[int]:
    return {os.getegid()} if os.geteuid() else {0}
