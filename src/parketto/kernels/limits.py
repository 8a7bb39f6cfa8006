"""What a process may use of its address space, where somebody has set a limit, and how to keep within it.

Spark limits its Python workers that way (`spark.executor.pyspark.memory`). Address space is more than memory: the
stacks of threads count, what allocators reserve, and files that are mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from parketto.errors import OutOfMemory

# Below this, row groups are too small for anybody to want them.
MIN_DATA_BYTES = 32 << 20
# Of what is left; decoding, encoding, compressing and threads need the rest.
_DATA_SHARE = 3
_STACK_BYTES = 512 << 10
# Numbers of glibc's own: one heap for all threads, and large blocks that are given back as soon as they are free.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BLOCK_BYTES = 256 << 10
# What is at least so large and belongs to no file is an allocator's.
_ARENA_BYTES = 64 << 20
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")


def address_space_limit() -> int | None:
    """How many bytes of address space this process may use; None if nobody has set a limit."""
    try:
        import resource
    except ImportError:  # not on every system
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else int(soft)


def address_space_used() -> int:
    """How many bytes of address space this process uses; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    return 0


def reserved_bytes() -> int:
    """How much of the address space in use is only reserved: Arrow's usual allocator takes much of it at once."""
    if pa.default_memory_pool().backend_name != "mimalloc":
        return 0
    found, size = 0, 0
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if _MAPPING.match(line):
                # Private memory of no file, to be read and written.
                size = -1 if len(line.split()) > 5 or " rw-p " not in line else 0
            elif size >= 0 and line.startswith("Size:"):
                size = int(line.split()[1]) << 10
            elif size >= _ARENA_BYTES and line.startswith("Rss:"):
                found = max(found, size - (int(line.split()[1]) << 10))
    return found


def data_bytes(wanted: int) -> int:
    """How many bytes a task may use for data: what it wants, or less if a limit leaves no more.

    Raises:
        OutOfMemory: It leaves too little for any work. Says what would be enough.
    """
    limit = address_space_limit()
    if limit is None:
        return wanted
    left = (limit - address_space_used() + reserved_bytes()) // _DATA_SHARE
    if left < min(wanted, MIN_DATA_BYTES):
        raise too_little(limit + _DATA_SHARE * (MIN_DATA_BYTES - left))
    return min(wanted, left)


def too_little(enough: int) -> OutOfMemory:
    """The error for a limit of address space that work does not fit into."""
    limit, megabyte = address_space_limit() or 0, 1 << 20
    rounded = -(-enough // (64 * megabyte)) * 64
    return OutOfMemory(
        f"the limit of {limit // megabyte} MB is too little memory for a task: Python and its libraries use "
        f"{address_space_used() // megabyte} MB of it. About {rounded} MB would be enough",
        rounded,
    )


@contextlib.contextmanager
def thrifty() -> Iterator[None]:
    """Use little address space besides the data, in a process with a limit; afterwards things are as they were."""
    if address_space_limit() is None:
        yield
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such thing, and needs it less
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
    before = threading.stack_size(_STACK_BYTES), pa.cpu_count(), pa.io_thread_count(), pa.default_memory_pool()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    if pa.default_memory_pool().backend_name == "jemalloc":  # never gives address space back
        pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        # The next task has the same process, and the same limit.
        pa.default_memory_pool().release_unused()
        stack, cores, readers, pool = before
        threading.stack_size(stack)
        pa.set_cpu_count(cores)
        pa.set_io_thread_count(readers)
        pa.set_memory_pool(pool)
