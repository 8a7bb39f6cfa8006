"""The budget of a maintenance run: how much was rewritten, and how long it took."""

from __future__ import annotations

import time

from parketto.arguments import MEGABYTE
from parketto.planning.policy import Budget


class Meter:
    """Measures a run against its budget, and against that of a larger run that it is a part of."""

    def __init__(self, budget: Budget | None, outer: Meter | None = None) -> None:
        self._budget, self._outer = budget, outer
        self._started = time.monotonic()
        self._spent = 0

    def refuses(self, size_bytes: int = 0) -> str | None:
        """Why a step that rewrites this much is not affordable; None if it is."""
        return self._refuses(size_bytes) or (self._outer.refuses(size_bytes) if self._outer else None)

    def spend(self, size_bytes: int) -> None:
        """Count bytes that were rewritten."""
        self._spent += size_bytes
        if self._outer is not None:
            self._outer.spend(size_bytes)

    def _refuses(self, size_bytes: int) -> str | None:
        if self._budget is None:
            return None
        minutes, limit = self._budget.minutes, self._budget.mb
        if minutes is not None and time.monotonic() - self._started >= 60 * minutes:
            return f"the budget of {minutes:g} minutes is used up"
        if limit is None or self._spent + size_bytes <= limit * MEGABYTE:
            return None
        size = f"{size_bytes / MEGABYTE:,.1f} MB"
        if size_bytes > limit * MEGABYTE:
            return f"{size} are more than the whole budget of {limit:,g} MB: raise it for this partition"
        return f"{size} exceed what remains of the budget of {limit:,g} MB"
