"""Bin packing of small files into full ones: pure, deterministic arithmetic on sizes.

Of the files in one cell (a directory and a schema):

- a file with more than `target_rows` rows is split, and the small files beside it fill up its last piece;
- a file that is at least three quarters full is left alone;
- each run of neighbours among the others is packed in order into bins up to capacity. A bin that is light (at
  most half full) joins the one beside it, up to 180 % of the target size; where the row limit forbids that,
  several bins beside it share its rows;
- if more than a quarter of all files would be light after that, the light ones are merged with each other,
  wherever they are. Only then does the order of rows change.

Bins of one file need no work and are dropped. Everything is sorting and single passes: O(n log n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from parketto.arguments import Thresholds

_MANY_LIGHT = 0.25  # light files are merged across others once they are more than this share of the files


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
    small = [index for index, weight in enumerate(weights) if is_small(weight, thresholds) and index not in split]
    small = _fill_up(oversized, small, sizes, rows, weights, thresholds)
    bins = [each for run in _runs(small) for each in _pack_run(run, sizes, rows, weights, thresholds)]
    full = sum(not is_small(weight, thresholds) for index, weight in enumerate(weights) if index not in split)
    light = sum(thresholds.is_light(each.weight) for each in bins)
    if light > _MANY_LIGHT * (full + sum(each.outputs for each in (*bins, *oversized))):
        bins = _absorb_last(_merge_light(bins, thresholds), thresholds)
    work = [*oversized, *(each for each in bins if len(each.items) > 1)]
    for each in work:
        each.items.sort()
    return sorted(work, key=lambda each: each.items[0])


def is_small(weight: int, thresholds: Thresholds) -> bool:
    """Whether a file of this weight is less than three quarters full."""
    return 4 * weight < 3 * thresholds.capacity


def pack_neighbours(weights: Sequence[int], thresholds: Thresholds) -> list[tuple[int, int]]:
    """Ranges of positions that fill one file each, in order; a small last range joins the one before it.

    >>> pack_neighbours([60, 30, 20, 70, 9], Thresholds(100, None))
    [(0, 2), (2, 5)]
    >>> pack_neighbours([60, 30, 80, 9], Thresholds(100, None))
    [(0, 2), (2, 4)]
    """
    ranges = _next_fit(weights, thresholds.capacity)
    if len(ranges) > 1:
        (first, _), (start, stop) = ranges[-2:]
        if thresholds.is_light(sum(weights[start:stop])):
            ranges[-2:] = [(first, stop)]
    return ranges


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
    """Fill the room that splits leave with the files beside them; return the others."""
    remaining = set(small)
    for target in oversized:
        room = target.outputs * thresholds.capacity - target.weight
        for step in (1, -1):
            index = target.items[0] + step
            while index in remaining and weights[index] <= room:
                room -= weights[index]
                remaining.remove(index)
                target.add(_bin([index], sizes, rows, thresholds), thresholds)
                index += step
    return sorted(remaining)


def _runs(indices: Sequence[int]) -> list[list[int]]:
    """Runs of neighbours.

    >>> _runs([1, 2, 5, 6, 7])
    [[1, 2], [5, 6, 7]]
    """
    runs: list[list[int]] = []
    for index in indices:
        if not runs or runs[-1][-1] != index - 1:
            runs.append([])
        runs[-1].append(index)
    return runs


def _pack_run(
    run: list[int], sizes: list[int], rows: list[int], weights: list[int], thresholds: Thresholds
) -> list[Bin]:
    """Bins of neighbours, as few as possible of them light."""
    bins: list[Bin] = []
    for start, stop in _next_fit([weights[index] for index in run], thresholds.capacity):
        found = _bin(run[start:stop], sizes, rows, thresholds)
        light = bool(bins) and thresholds.is_light(min(found.weight, bins[-1].weight))
        if light and len(bins[-1].items) + len(found.items) > 2 and _has_room(bins[-1], found, thresholds):
            bins[-1].add(found, thresholds)
        else:
            bins.append(found)
    if bins and thresholds.is_light(bins[-1].weight):
        return _spread(bins[-1], bins[-2::-1], thresholds)[::-1]
    return bins


def _spread(light: Bin, others: list[Bin], thresholds: Thresholds) -> list[Bin]:
    """All bins; a light one and the next ones share their rows evenly, if that saves a file.

    Bins of one file are not rewritten for that.
    """
    load = light.weight
    for count, each in enumerate(others, start=1):
        load += each.weight
        if len(each.items) == 1:
            break
        if load <= count * thresholds.capacity:
            merged = _merged([light, *others[:count]], thresholds)
            merged.outputs = count
            return [merged, *others[count:]]
    return [light, *others]


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


def _merge_light(bins: list[Bin], thresholds: Thresholds) -> list[Bin]:
    """Merge bins that are at most half full, in order, until at most one is left."""
    while True:
        light = [each for each in bins if thresholds.is_light(each.weight)]
        if len(light) < 2:
            return bins
        ranges = _next_fit([each.weight for each in light], thresholds.capacity)
        heavy = [each for each in bins if not thresholds.is_light(each.weight)]
        bins = [*heavy, *(_merged(light[start:stop], thresholds) for start, stop in ranges)]


def _merged(bins: list[Bin], thresholds: Thresholds) -> Bin:
    first, *others = bins
    for other in others:
        first.add(other, thresholds)
    return first


def _has_room(each: Bin, other: Bin, thresholds: Thresholds) -> bool:
    """Whether a bin can take another one, up to 180 % of the target size."""
    rows, size = each.num_rows + other.num_rows, each.size_bytes + other.size_bytes
    return (thresholds.target_rows is None or rows <= thresholds.target_rows) and (
        thresholds.target_bytes is None or 10 * size <= 18 * thresholds.target_bytes
    )


def _absorb_last(bins: list[Bin], thresholds: Thresholds) -> list[Bin]:
    """Merge the only light bin into the nearest one with room for it, or spread its rows over several.

    Bins of several files, which are rewritten anyway, may become larger than the target.
    """
    light = next((each for each in bins if thresholds.is_light(each.weight)), None)
    if light is None:
        return bins
    start = min(light.items)
    others = sorted((each for each in bins if each is not light), key=lambda each: abs(min(each.items) - start))
    for each in others:
        fits = each.weight + light.weight <= thresholds.capacity
        if each.outputs == 1 and (fits or (len(each.items) > 1 and _has_room(each, light, thresholds))):
            each.add(light, thresholds)
            return others
    together = [each for each in others if len(each.items) > 1 and each.outputs == 1]
    apart = [each for each in others if len(each.items) == 1 or each.outputs > 1]
    return [*_spread(light, together, thresholds), *apart]
