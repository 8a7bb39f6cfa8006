"""A filesystem on which writing fails once, in one of Spark's tasks. Its workers import this module."""

from __future__ import annotations

import os
from typing import Any

from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem


class FlakyFileSystem(DirFileSystem):
    """Fails when a task opens its second staged file, the first time that this happens anywhere.

    Args:
        path: The folder that is the root.
        mark: A file that is created when it has failed.
        driver: The process in which it never fails.
    """

    protocol = "flaky"
    cachable = False

    def __init__(self, path: str, mark: str, driver: int) -> None:
        super().__init__(path=path, fs=LocalFileSystem())
        self._mark, self._driver, self._staged = mark, driver, 0

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "w" in mode and "/new/" in path and os.getpid() != self._driver:
            self._staged += 1
            if self._staged == 2:
                try:
                    os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    raise OSError("the disk is on fire")
        return super().open(path, mode, **options)
