"""What Polars may decode and encode: the version, the types, the process, and the user's own choice."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.parquet.decoded_types import is_plain
from parketto.runtime.address_space import address_space_limit

#: Forces one library: `polars` wherever it can, `arrow` everywhere.
CODEC_VARIABLE = "PARKETTO_CODEC"
Forced: TypeAlias = Literal["arrow", "polars", ""]
# Versions (from, below) whose files are compared with Arrow's, value by value and bound by bound.
_TRUSTED = ((2, 1), (3, 0))
_WORTH_LOADING = 6 * 1024 * 1024  # importing Polars takes as long as encoding about this many bytes
# Set in a process forked from one with Polars: Polars would wait for threads that only the parent has.
_FORKED = threading.Event()


def _after_fork() -> None:
    if "polars" in sys.modules:
        _FORKED.set()
        has_polars.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def forced() -> Forced:
    """The library that the environment forces; empty if the faster one is used.

    Raises:
        InvalidArgument: The variable has another value.
    """
    found = os.environ.get(CODEC_VARIABLE, "")
    if found not in ("", "arrow", "polars"):
        raise InvalidArgument(
            f"{CODEC_VARIABLE} is {found!r}; set it to 'arrow' or 'polars', or unset it to use the faster one"
        )
    return cast("Forced", found)


@functools.cache
def has_polars() -> bool:
    """Whether a tested version of Polars is installed, and this process can use it."""
    from importlib.metadata import PackageNotFoundError, version

    if _FORKED.is_set():
        return False
    try:
        found = version("polars").split(".")
    except PackageNotFoundError:
        return False
    first, end = _TRUSTED
    return first <= tuple(int(part) for part in found[:2] if part.isdigit()) < end


def may_use_polars() -> bool:
    """Whether Polars may be used at all."""
    # Polars allocates without regard to a limit of the address space.
    return forced() != "arrow" and has_polars() and address_space_limit() is None


class PolarsFailed(Exception):
    """Polars has not decoded or encoded the rows; Arrow must, and reports what is wrong with them."""


@contextlib.contextmanager
def polars_failures() -> Iterator[None]:
    """Raise everything that Polars raises, also when it is imported, as PolarsFailed."""
    try:
        from polars.exceptions import PanicException, PolarsError
    except ImportError as error:  # the installation is broken; Arrow needs nothing of it
        raise PolarsFailed(str(error)) from error
    try:
        yield
    except (PolarsError, PanicException, OSError) as error:
        raise PolarsFailed(str(error)) from error
    except KeyboardInterrupt as error:
        # Polars checks for signals in all threads. Python raises them in the main one only, if at all: a program
        # may handle Ctrl-C itself.
        if threading.current_thread() is threading.main_thread():
            raise
        raise PolarsFailed("interrupted") from error


class Workload:
    """Counts the bytes that Polars could have taken, until importing it pays off."""

    def __init__(self) -> None:
        self._bytes = 0

    def pays(self, size: int) -> bool:
        """Whether Polars is imported already, or this work and earlier work are enough to pay for it."""
        self._bytes += size
        return "polars" in sys.modules or forced() == "polars" or self._bytes >= _WORTH_LOADING


#: The work of this process.
WORKLOAD = Workload()


def are_plain(schema: pa.Schema) -> bool:
    """Whether Polars has all types of a schema, with the same meaning."""
    return len(set(schema.names)) == len(schema.names) and have_twins(schema.types)


def have_twins(kinds: Iterable[pa.DataType]) -> bool:
    """Whether Polars has all of these types, with the same meaning. It has no timestamps of seconds."""
    return all(
        is_plain(kind) or (pat.is_timestamp(kind) and kind.unit != "s" and _is_zone(kind.tz)) for kind in kinds
    )


def knows_zones(kinds: Iterable[pa.DataType]) -> bool:
    """Whether Polars knows the time zones of all columns: otherwise it panics, also if it need not read them."""
    return all(
        _is_zone(kind.tz)
        if pat.is_timestamp(kind)
        else knows_zones(kind.field(at).type for at in range(kind.num_fields))
        for kind in kinds
    )


@functools.cache
def _is_zone(name: str | None) -> bool:
    """Whether Polars probably knows a time zone: it panics if the zone has no name."""
    try:
        return name is None or bool(ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
