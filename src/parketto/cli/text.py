"""Times and lists as people read them; numbers are in `parketto.health.text`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence


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
