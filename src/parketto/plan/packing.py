"""Packing small files into full ones: pure arithmetic on sizes, the same result for the same sizes.

Of the files in one cell (a directory and a schema):

- a file with more than `target_rows` rows is split, and small files fill up its last piece;
- a file that is at least three quarters full is left alone;
- the others are packed, neighbours first, into bins that are at most full; then the smallest bins are put
  together until not even the two smallest fit into one. That makes packing idempotent: what it leaves behind
  can never be packed again;
- a last bin that is less than half full joins another bin, up to 180 % of the target size; where the limit of
  rows forbids that, several bins share its rows. So no tiny file is left while others are rewritten.

Bins of one file are no work and fall away. Everything is sorting and single passes: n log n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from parketto.plan.limits import Thresholds


class Sized(Protocol):
    """All that packing knows about a file."""

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
        """Take in what another bin holds."""
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
    """Let the smallest files use the room that a split leaves; return the small files that remain."""
    if not oversized:
        return small
    waiting = sorted(small, key=weights.__getitem__, reverse=True)
    for target in oversized:
        room = target.outputs * thresholds.capacity - target.weight
        while waiting and weights[waiting[-1]] <= room:
            room -= weights[waiting[-1]]
            target.add(_bin([waiting.pop()], sizes, rows, thresholds), thresholds)
    return sorted(waiting)


def _next_fit(weights: Sequence[int], capacity: int) -> list[tuple[int, int]]:
    """Fill one bin after the other, in order: the ranges of positions that go together.

    Weights simply add up, though by bytes and by rows at once a bin may be lighter than the sum: how much
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
        bins = [_joined(bins[start:stop], thresholds) for start, stop in ranges]


def _joined(bins: list[Bin], thresholds: Thresholds) -> Bin:
    first, *others = bins
    for other in others:
        first.add(other, thresholds)
    return first


def _absorb_tail(bins: list[Bin], thresholds: Thresholds) -> list[Bin]:
    """Let a last bin that is less than half full join bins that are rewritten anyway.

    One bin takes it if it may grow that far; else the emptiest bins together have the room, and their rows
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
            joined = _joined([tail, *open_bins[:count]], thresholds)
            joined.outputs = count
            taken = {id(part) for part in open_bins[:count]}
            return [joined, *(other for other in others if id(other) not in taken)]
    return bins


_by_weight = attrgetter("weight")
