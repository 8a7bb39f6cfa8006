"""Who may have written into a folder beside a dataset: its records are carried out, so not anybody."""

from __future__ import annotations

import os
from stat import S_ISDIR, S_IWGRP, S_IWOTH


def distrust(path: str, like: str) -> str | None:
    """Why a folder may hold what a stranger wrote; None if it does not, or is not there.

    It must be a folder and no link, belong to this user, to root or to the owner of the dataset, and not be
    writable by others. If a group may write into the dataset, the same group may write into the folder, and any
    member of it may have made it, unless everybody may make folders there.

    Args:
        path: The folder.
        like: The dataset, which may not be there yet.
    """
    if not hasattr(os, "geteuid"):
        return None
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if not S_ISDIR(found.st_mode):
        return f"{path!r} is no folder but a link or a file"
    if found.st_mode & S_IWOTH:
        return f"everybody may write into {path!r}"
    beside = os.stat(os.path.dirname(path) or "/")
    try:
        dataset: os.stat_result | None = os.stat(like)
    except FileNotFoundError:
        dataset = None
    shared = dataset is not None and dataset.st_mode & S_IWGRP and dataset.st_gid == found.st_gid
    owners = {os.geteuid(), 0} | ({dataset.st_uid} if dataset is not None else set())
    if found.st_uid not in owners and not (shared and not beside.st_mode & S_IWOTH):
        return f"{path!r} belongs to user {found.st_uid}, neither you nor the owner of the dataset"
    if found.st_mode & S_IWGRP and not shared and found.st_gid not in _own_groups():
        return f"the group {found.st_gid}, which may not write into the dataset, may write into {path!r}"
    return None


def _own_groups() -> set[int]:
    return {os.getegid()} if os.geteuid() else {0}
