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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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

    items: list[int] = field(default_factory=list)
    size_bytes: int = 0
    num_rows: int = 0
    outputs: int = 1

    def add(self, other: Bin) -> None:
        """Take in what another bin holds."""
        self.items += other.items
        self.size_bytes += other.size_bytes
        self.num_rows += other.num_rows


def pack(files: Sequence[Sized], thresholds: Thresholds) -> list[Bin]:
    """The bins worth rewriting, each with its files in the given order."""
    oversized: list[Bin] = []
    small: list[Bin] = []
    for index, file in enumerate(files):
        single = Bin([index], file.size_bytes, file.num_rows)
        if thresholds.target_rows is not None and file.num_rows > thresholds.target_rows:
            single.outputs = thresholds.files_needed(file.size_bytes, file.num_rows)
            oversized.append(single)
        elif 4 * _weight(single, thresholds) < 3 * thresholds.capacity:
            small.append(single)
    small = _fill_up(oversized, small, thresholds)
    packed = _settle(_next_fit(small, thresholds), thresholds)
    packed = _absorb_tail(packed, thresholds)
    work = [*oversized, *(each for each in packed if len(each.items) > 1)]
    for each in work:
        each.items.sort()
    return sorted(work, key=lambda each: each.items[0])


def _weight(content: Bin, thresholds: Thresholds) -> int:
    return thresholds.weight(content.size_bytes, content.num_rows)


def _fill_up(oversized: list[Bin], small: list[Bin], thresholds: Thresholds) -> list[Bin]:
    """Let the smallest files use the room that a split leaves; return the small files that remain."""
    if not oversized:
        return small
    waiting = sorted(small, key=lambda each: _weight(each, thresholds), reverse=True)
    for target in oversized:
        room = target.outputs * thresholds.capacity - _weight(target, thresholds)
        while waiting and (weight := _weight(waiting[-1], thresholds)) <= room:
            target.add(waiting.pop())
            room -= weight
    return sorted(waiting, key=lambda each: each.items[0])


def _next_fit(bins: Iterable[Bin], thresholds: Thresholds) -> list[Bin]:
    """Fill one bin after the other, in order."""
    packed: list[Bin] = []
    load = 0
    for each in bins:
        weight = _weight(each, thresholds)
        if packed and load + weight <= thresholds.capacity:
            packed[-1].add(each)
            load += weight
        else:
            packed.append(each)
            load = weight
    return packed


def _settle(bins: list[Bin], thresholds: Thresholds) -> list[Bin]:
    """Merge the smallest bins until the two smallest do not fit together, so that no two do."""

    def weight(each: Bin) -> int:
        return _weight(each, thresholds)

    while True:
        bins.sort(key=weight)
        if len(bins) < 2 or weight(bins[0]) + weight(bins[1]) > thresholds.capacity:
            return bins
        bins = _next_fit(bins, thresholds)


def _absorb_tail(bins: list[Bin], thresholds: Thresholds) -> list[Bin]:
    """Let a last bin that is less than half full join bins that are rewritten anyway.

    One bin takes it if it may grow that far; else the emptiest bins together have the room, and their rows
    are spread evenly over as many files as there were bins.
    """
    if len(bins) < 2 or 2 * _weight(bins[0], thresholds) >= thresholds.capacity:
        return bins
    tail, *others = bins  # sorted by weight
    open_bins = [each for each in others if len(each.items) > 1]
    for each in open_bins:
        rows = each.num_rows + tail.num_rows
        size = each.size_bytes + tail.size_bytes
        if (thresholds.target_rows is None or rows <= thresholds.target_rows) and (
            thresholds.target_bytes is None or 10 * size <= 18 * thresholds.target_bytes
        ):
            each.add(tail)
            return others
    load = _weight(tail, thresholds)
    for count, each in enumerate(open_bins, start=1):
        load += _weight(each, thresholds)
        if load <= count * thresholds.capacity:
            chosen = open_bins[:count]
            joined = Bin(outputs=count)
            for part in [tail, *chosen]:
                joined.add(part)
            taken = {id(part) for part in chosen}
            return [joined, *(other for other in others if id(other) not in taken)]
    return bins
