"""Distributions of sizes: exact extremes and medians, and a histogram between powers of two."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from parketto.health.results import SizeBin, Sizes


class Distribution:
    """Sizes, eight bytes each.

    >>> found = Distribution([0, 3, 5, 7]).summary()
    >>> found["smallest"], found["median"], found["largest"]
    (0, 4.0, 7)
    >>> [(each["low"], each["high"], each["count"]) for each in found["histogram"]]
    [(0, 1, 1), (1, 2, 0), (2, 4, 1), (4, 8, 2)]
    """

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._values = array("q", values)

    def add(self, value: int) -> None:
        """Add one size."""
        self._values.append(value)

    def summary(self) -> Sizes | None:
        """The distribution; None if there is no size."""
        if not self._values:
            return None
        values = np.frombuffer(self._values, np.int64)
        # The number of bits: 0 is alone, and each further bin is twice as wide as the one before.
        bins = np.frexp(values.astype(np.float64))[1].astype(np.int64)
        counts = np.bincount(bins)
        sizes = np.bincount(bins, weights=values)
        return Sizes(
            smallest=int(values.min()),
            median=float(np.median(values)),
            largest=int(values.max()),
            histogram=[
                SizeBin(low=(1 << at) >> 1, high=1 << at, count=int(counts[at]), total=int(sizes[at]))
                for at in range(int(bins.min()), len(counts))
            ],
        )
