"""Scan of a local directory tree, with a fingerprint of each file."""

from __future__ import annotations

import contextlib
import errno
import os

_ATTEMPTS = 20

#: The folders of a tree by relative path ("" is the top), each with its files and their fingerprints.
Tree = dict[str, dict[str, str]]


def fingerprint(status: os.stat_result) -> str:
    """A value that changes when a file is replaced or rewritten. Inode numbers alone are soon reused."""
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def scan_tree(top: str, limit: int | None = None) -> Tree:
    """All folders and files below a folder. Links count as files, whatever their target.

    Raises:
        OSError: with EFBIG if there are more than `limit` files and folders.
    """
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            return _scan(top, limit)
        # An entry renamed meanwhile may be listed under neither name: scan again.
        os.stat(top)
    return _scan(top, limit)


def _scan(top: str, limit: int | None) -> Tree:
    found: Tree = {}
    pending, count = [""], 0
    while pending:
        folder = pending.pop()
        files = found[folder] = {}
        with os.scandir(f"{top}/{folder}" if folder else top) as entries:
            for entry in entries:
                count += 1
                if limit is not None and count > limit:
                    raise OSError(errno.EFBIG, f"more than {limit} files and folders", top)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{folder}/{entry.name}" if folder else entry.name)
                else:
                    files[entry.name] = fingerprint(entry.stat(follow_symlinks=False))
    return found
