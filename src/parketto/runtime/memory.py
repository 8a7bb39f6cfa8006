"""The allocator that Arrow uses while tasks run.

Tasks decode, encode and free row groups over and over. Some allocators keep the freed pages, others return them
and request new ones: for the same work on many files, Arrow's default on Linux needed a third more CPU time than
jemalloc, and a third more memory.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from types import TracebackType

import pyarrow as pa

from parketto.allocator import ALLOCATOR_VARIABLE, PREFERRED_ALLOCATOR
from parketto.runtime.address_space import address_space_limit, low_address_space

# jemalloc returns unused pages after this time. With Arrow's default of one second they add up to a third of a
# process that works for a few seconds; returning them at once takes longer than the work.
_DECAY_MS = 100
_DEFAULT_DECAY_MS = 1000


class TaskMemory:
    """Sets Arrow's allocator while any task of the process runs.

    Each buffer knows its allocator, so it is safe if other code changes the default meanwhile. An allocator that
    was chosen by Arrow's environment variable stays.
    """

    def __init__(self) -> None:
        self._lock, self._active = threading.Lock(), 0
        self._before: pa.MemoryPool | None = None
        self._settings = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._active += 1
            if self._active == 1:
                self._settings.enter_context(low_address_space())
            if self._active == 1 and (preferred := _preferred_pool()) is not None:
                self._before = pa.default_memory_pool()
                pa.set_memory_pool(preferred)
            if self._active == 1 and pa.default_memory_pool().backend_name == PREFERRED_ALLOCATOR:
                pa.jemalloc_set_decay_ms(_DECAY_MS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._active -= 1
            if not self._active and pa.default_memory_pool().backend_name == PREFERRED_ALLOCATOR:
                pa.jemalloc_set_decay_ms(_DEFAULT_DECAY_MS)
            if not self._active and self._before is not None:
                # Unless other code has chosen another one meanwhile.
                if pa.default_memory_pool().backend_name == PREFERRED_ALLOCATOR:
                    pa.set_memory_pool(self._before)
                self._before = None
            if not self._active:
                self._settings.close()


TASK_MEMORY = TaskMemory()


def release_unused() -> None:
    """Return unused memory to the system: allocators keep it, and over many row groups it adds up."""
    pa.default_memory_pool().release_unused()


def _preferred_pool() -> pa.MemoryPool | None:
    if ALLOCATOR_VARIABLE in os.environ or address_space_limit() is not None:
        return None
    try:
        return pa.jemalloc_memory_pool()
    except NotImplementedError:  # Arrow may be built without it
        return None
