"""Guards against using the Spark session of the parent in a forked process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path

from parketto.errors import EngineUnavailable

_inherited: list[int] = []  # not empty in a process forked from one with a session


def refuse_inherited() -> None:
    """Raise in a forked process: it cannot share its parent's session.

    Raises:
        EngineUnavailable: The session belongs to the process that this one was forked from.
    """
    if is_inherited():
        raise EngineUnavailable(
            "this process was forked from one that has a Spark session, and they cannot share it. Start processes "
            "with multiprocessing's 'spawn', or use engine='pyarrow' or engine='duckdb' in them"
        )


def is_inherited() -> bool:
    """Whether pyspark's session was started by the process that this one was forked from."""
    if _inherited:
        return True
    # This module may have been loaded only after the fork.
    core = sys.modules.get("pyspark.core.context")
    context = core.SparkContext._active_spark_context if core is not None else None
    java = getattr(getattr(context, "_gateway", None), "proc", None)
    return java is not None and _parent(java.pid) not in (None, os.getpid())


def _parent(process: int) -> int | None:
    """The parent of a process; None if it is gone or the system does not report it."""
    with contextlib.suppress(OSError):
        # The process name, in parentheses, may contain anything.
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _after_fork() -> None:
    classic, connect = map(sys.modules.get, ("pyspark.core.context", "pyspark.sql.connect.session"))
    known = classic is not None and classic.SparkContext._active_spark_context is not None
    if known or (connect is not None and connect.SparkSession._get_default_session() is not None):
        _inherited.append(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def warehouse() -> str:
    """This process's folder for managed tables; it is removed when the process ends."""
    folder, owner = tempfile.mkdtemp(prefix="parketto-warehouse-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not when a forked child ends
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
