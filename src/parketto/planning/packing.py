"""Bin packing of small files into full ones: pure, deterministic arithmetic on sizes.

Of the files in one cell (a directory and a schema):

- a file with more than `target_rows` rows is split, and small files fill up its last piece;
- a file that is at least three quarters full is left alone;
- the others are packed in order into bins up to capacity; then the smallest bins are merged until not even
  the two smallest fit into one. That makes packing idempotent: what it leaves behind can never be packed
  again;
- a last bin that is less than half full is merged into another bin, up to 180 % of the target size; where the
  row limit forbids that, several bins share its rows. So no tiny file is left while others are rewritten.

Bins of one file need no work and are dropped. Everything is sorting and single passes: O(n log n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from parketto.arguments import Thresholds


class Sized(Protocol):
    """What packing needs of a file."""

    @property
    def size_bytes(self) -> int: ...  # noqa: D102
    @property
    def num_rows(self) -> int: ...  # noqa: D102


@dataclass(slots=True)
class Bin:
    """Files, by their index, that become `outputs` new files."""

    items: list[int]
    size_bytes: int
    num_rows: int
    weight: int
    outputs: int = 1

    def add(self, other: Bin, thresholds: Thresholds) -> None:
        """Merge another bin into this one."""
        self.items += other.items
        self.size_bytes += other.size_bytes
        self.num_rows += other.num_rows
        self.weight = thresholds.weight(self.size_bytes, self.num_rows)


def pack(files: Sequence[Sized], thresholds: Thresholds) -> list[Bin]:
    """The bins worth rewriting, each with its files in the given order."""
    sizes = [file.size_bytes for file in files]
    rows = [file.num_rows for file in files]
    weights = list(map(thresholds.weight, sizes, rows))
    oversized: list[Bin] = []
    if (target_rows := thresholds.target_rows) is not None:
        oversized = [
            Bin([index], sizes[index], count, weights[index], thresholds.files_needed(sizes[index], count))
            for index, count in enumerate(rows)
            if count > target_rows
        ]
    split = {each.items[0] for each in oversized}
    small_limit = -(-3 * thresholds.capacity // 4)
    small = [index for index, weight in enumerate(weights) if weight < small_limit and index not in split]
    small = _fill_up(oversized, small, sizes, rows, weights, thresholds)
    bins = [
        _bin(small[start:stop], sizes, rows, thresholds)
        for start, stop in _next_fit([weights[index] for index in small], thresholds.capacity)
    ]
    packed = _absorb_tail(_settle(bins, thresholds), thresholds)
    work = [*oversized, *(each for each in packed if len(each.items) > 1)]
    for each in work:
        each.items.sort()
    return sorted(work, key=lambda each: each.items[0])


def _bin(items: list[int], sizes: list[int], rows: list[int], thresholds: Thresholds) -> Bin:
    size = sum([sizes[index] for index in items])
    count = sum([rows[index] for index in items])
    return Bin(items, size, count, thresholds.weight(size, count))


def _fill_up(
    oversized: list[Bin],
    small: list[int],
    sizes: list[int],
    rows: list[int],
    weights: list[int],
    thresholds: Thresholds,
) -> list[int]:
    """Fill the room that splits leave with the smallest files; return the small files that remain."""
    if not oversized:
        return small
    remaining = sorted(small, key=weights.__getitem__, reverse=True)
    for target in oversized:
        room = target.outputs * thresholds.capacity - target.weight
        while remaining and weights[remaining[-1]] <= room:
            room -= weights[remaining[-1]]
            target.add(_bin([remaining.pop()], sizes, rows, thresholds), thresholds)
    return sorted(remaining)


def _next_fit(weights: Sequence[int], capacity: int) -> list[tuple[int, int]]:
    """Fill one bin after the other, in order; return the range of positions of each bin.

    Weights simply add up, although a bin limited by both bytes and rows may be lighter than the sum: how much
    lighter depends on the order, and what packing leaves behind must not.
    """
    ranges = []
    load = first = 0
    for position, weight in enumerate(weights):
        load += weight
        if load > capacity and position > first:
            ranges.append((first, position))
            first, load = position, weight
    if weights:
        ranges.append((first, len(weights)))
    return ranges


def _settle(bins: list[Bin], thresholds: Thresholds) -> list[Bin]:
    """Merge the smallest bins until the two smallest do not fit together, so that no two do."""
    while True:
        bins.sort(key=_by_weight)
        if len(bins) < 2 or bins[0].weight + bins[1].weight > thresholds.capacity:
            return bins
        ranges = _next_fit([each.weight for each in bins], thresholds.capacity)
        bins = [_merged(bins[start:stop], thresholds) for start, stop in ranges]


def _merged(bins: list[Bin], thresholds: Thresholds) -> Bin:
    first, *others = bins
    for other in others:
        first.add(other, thresholds)
    return first


def _absorb_tail(bins: list[Bin], thresholds: Thresholds) -> list[Bin]:
    """Merge a last bin that is less than half full into bins that are rewritten anyway.

    One bin takes it if its limits allow that. Otherwise the emptiest bins together have the room, and their rows
    are spread evenly over as many files as there were bins.
    """
    if len(bins) < 2 or 2 * bins[0].weight >= thresholds.capacity:
        return bins
    tail, *others = bins  # sorted by weight
    open_bins = [each for each in others if len(each.items) > 1]
    for each in open_bins:
        rows = each.num_rows + tail.num_rows
        size = each.size_bytes + tail.size_bytes
        if (thresholds.target_rows is None or rows <= thresholds.target_rows) and (
            thresholds.target_bytes is None or 10 * size <= 18 * thresholds.target_bytes
        ):
            each.add(tail, thresholds)
            return others
    load = tail.weight
    for count, each in enumerate(open_bins, start=1):
        load += each.weight
        if load <= count * thresholds.capacity:
            merged = _merged([tail, *open_bins[:count]], thresholds)
            merged.outputs = count
            taken = {id(part) for part in open_bins[:count]}
            return [merged, *(other for other in others if id(other) not in taken)]
    return bins


_by_weight = attrgetter("weight")
