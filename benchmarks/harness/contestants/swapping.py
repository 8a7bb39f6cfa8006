"""What everybody writes by hand around a rewrite: a new folder, and then that in the place of the old one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator


@contextlib.contextmanager
def new_folder(root: str, *, make: bool = True) -> Iterator[str]:
    """Write into this; afterwards it stands in the place of the dataset. A crash in between loses the dataset."""
    new = f"{root}-new"
    shutil.rmtree(new, ignore_errors=True)
    if make:
        os.makedirs(new)
    yield new
    shutil.rmtree(root)
    os.rename(new, root)
