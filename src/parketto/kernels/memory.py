"""Where tasks get their memory from: while they work, from the one of Arrow's allocators that suits them best.

Row groups are decoded, encoded and gone, over and over. One allocator keeps the pages that they were in, another
gives them back and asks for them anew: for the same work on many files, Arrow's usual one on Linux needed a third
more processor time than jemalloc, and a third more memory.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from types import TracebackType

import pyarrow as pa

from parketto.allocator import SUITED, VARIABLE
from parketto.kernels.limits import address_space_limit, thrifty

# Pages that are not in use are given back after so long. With Arrow's second they add up to a third of a process
# that works for a few seconds; to give them back at once takes longer than the work.
_KEPT_MS = 100
_ARROWS_MS = 1000


class TaskMemory:
    """Lends Arrow an allocator for as long as anybody in the process works with it.

    Memory knows its own allocator, so nobody is harmed if others change it meanwhile. Whoever has chosen one by
    Arrow's own variable keeps it.
    """

    def __init__(self) -> None:
        self._lock, self._working = threading.Lock(), 0
        self._before: pa.MemoryPool | None = None
        self._thrift = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._working += 1
            if self._working == 1:
                self._thrift.enter_context(thrifty())
            if self._working == 1 and (suited := _suited()) is not None:
                self._before = pa.default_memory_pool()
                pa.set_memory_pool(suited)
            if self._working == 1 and pa.default_memory_pool().backend_name == SUITED:
                pa.jemalloc_set_decay_ms(_KEPT_MS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._working -= 1
            if not self._working and pa.default_memory_pool().backend_name == SUITED:
                pa.jemalloc_set_decay_ms(_ARROWS_MS)
            if not self._working and self._before is not None:
                # Unless somebody has chosen another one meanwhile.
                if pa.default_memory_pool().backend_name == SUITED:
                    pa.set_memory_pool(self._before)
                self._before = None
            if not self._working:
                self._thrift.close()


TASK_MEMORY = TaskMemory()


def release_unused() -> None:
    """Give back what tasks have used: allocators keep it, and over many row groups it adds up."""
    pa.default_memory_pool().release_unused()


def _suited() -> pa.MemoryPool | None:
    if VARIABLE in os.environ or address_space_limit() is not None:
        return None
    try:
        return pa.jemalloc_memory_pool()
    except NotImplementedError:  # not everywhere is Arrow built with it
        return None
