"""The address space limit of a process, if there is one, and how to stay within it.

Spark limits its Python workers that way (`spark.executor.pyspark.memory`). Address space is more than memory:
thread stacks, allocator reservations and mapped files count as well.
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

MIN_DATA_BYTES = 32 << 20  # below this, row groups become too small to be useful
_DATA_SHARE = 3  # 1/3 of what is left is for data; decoding, encoding, compression and threads need the rest
_STACK_BYTES = 512 << 10
# Parameters of glibc's mallopt: one arena for all threads, and large blocks that are unmapped once they are free.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BLOCK_BYTES = 256 << 10
_ARENA_BYTES = 64 << 20  # anonymous mappings of at least this size belong to an allocator
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")


def address_space_limit() -> int | None:
    """The address space limit of this process in bytes; None if there is none."""
    try:
        import resource
    except ImportError:  # not on every system
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else int(soft)


def address_space_used() -> int:
    """The bytes of address space that this process uses; 0 where the system does not report it."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    return 0


def reserved_bytes() -> int:
    """The used address space that is only reserved: Arrow's default allocator reserves much of it at once."""
    if pa.default_memory_pool().backend_name != "mimalloc":
        return 0
    found, size = 0, 0
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if _MAPPING.match(line):
                # Anonymous, private, readable and writable.
                size = -1 if len(line.split()) > 5 or " rw-p " not in line else 0
            elif size >= 0 and line.startswith("Size:"):
                size = int(line.split()[1]) << 10
            elif size >= _ARENA_BYTES and line.startswith("Rss:"):
                found = max(found, size - (int(line.split()[1]) << 10))
    return found


def data_bytes(wanted: int) -> int:
    """The bytes that a task may use for data: `wanted`, or less if a limit leaves less.

    Raises:
        OutOfMemory: The limit leaves too little for any work; the message says how much would be enough.
    """
    limit = address_space_limit()
    if limit is None:
        return wanted
    left = (limit - address_space_used() + reserved_bytes()) // _DATA_SHARE
    if left < min(wanted, MIN_DATA_BYTES):
        raise address_space_error(limit + _DATA_SHARE * (MIN_DATA_BYTES - left))
    return min(wanted, left)


def address_space_error(enough: int) -> OutOfMemory:
    """The error for an address space limit that is too small for a task."""
    limit, megabyte = address_space_limit() or 0, 1 << 20
    rounded = -(-enough // (64 * megabyte)) * 64
    return OutOfMemory(
        f"the limit of {limit // megabyte} MB is too little memory for a task: Python and its libraries use "
        f"{address_space_used() // megabyte} MB of it. About {rounded} MB would be enough",
        rounded,
    )


@contextlib.contextmanager
def low_address_space() -> Iterator[None]:
    """Use little address space besides the data, in a process with a limit; restore all settings afterwards."""
    if address_space_limit() is None:
        yield
        return
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no mallopt, and need it less
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
        # The next task runs in the same process, with the same limit.
        pa.default_memory_pool().release_unused()
        stack, cores, readers, pool = before
        threading.stack_size(stack)
        pa.set_cpu_count(cores)
        pa.set_io_thread_count(readers)
        pa.set_memory_pool(pool)
