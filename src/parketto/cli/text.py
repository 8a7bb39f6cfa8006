"""Numbers and lists as people read them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size(count: float) -> str:
    """A size in bytes.

    >>> size(0), size(1023), size(1536), size(5 * 1024**3)
    ('0 B', '1,023 B', '1.5 kB', '5.0 GB')
    """
    for unit in _UNITS[:-1]:
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} {_UNITS[-1]}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "file"), counted(2500, "file"), counted(2, "entry", "entries")
    ('1 file', '2,500 files', '2 entries')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def percent(share: float) -> str:
    """A share.

    >>> percent(1), percent(0.0312), percent(0.0004)
    ('100 %', '3.1 %', '0.04 %')
    """
    shown = share * 100
    return f"{shown:.0f} %" if shown >= 10 or shown == 0 else f"{shown:.2g} %"


def moment(at: str) -> str:
    """A time of the log, to the second.

    >>> moment("2026-11-18T12:30:15.123456+00:00")
    '2026-11-18 12:30:15'
    """
    return f"{dt.datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Some names of a list.

    >>> listed(["a", "b"]), listed(["a", "b", "c"], most=2)
    ('a, b', 'a, b, … (3)')
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names):,})"
