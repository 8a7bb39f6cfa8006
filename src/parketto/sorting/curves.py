"""Space-filling curves: map points of a multi-dimensional grid to positions on one line.

Points that are close on the line are close in the grid, in every dimension. All functions work on whole arrays; a
point is one element of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint32]
Keys = npt.NDArray[np.uint64]

#: The maximum total number of bits of the coordinates of a point.
KEY_BITS = 63


def morton(coordinates: Sequence[Codes], bits: int) -> Keys:
    """The z-order keys of points: the bits of their coordinates interleaved, the first coordinate's first.

    >>> morton([np.array([0, 0, 1, 1], np.uint32), np.array([0, 1, 0, 1], np.uint32)], bits=1).tolist()
    [0, 1, 2, 3]
    """
    dimensions = len(coordinates)
    keys = np.zeros(len(coordinates[0]), np.uint64)
    for position, codes in enumerate(coordinates):
        # Spread the coordinate's bits with a lookup table, one byte at a time.
        for byte in range(-(-bits // 8)):
            spread = _spread(dimensions, dimensions - 1 - position, min(8, bits - 8 * byte), 8 * byte * dimensions)
            keys |= spread[(codes >> np.uint32(8 * byte)) & np.uint32(len(spread) - 1)]
    return keys


def _spread(dimensions: int, shift: int, bits: int, start: int) -> Keys:
    values = np.arange(1 << bits, dtype=np.uint64)
    spread = np.zeros_like(values)
    for bit in range(bits):
        position = np.uint64(start + bit * dimensions + shift)
        spread |= ((values >> np.uint64(bit)) & np.uint64(1)) << position
    return spread


def hilbert(coordinates: Sequence[Codes], bits: int) -> Keys:
    """The positions of points along Hilbert's curve, where every step leads to a direct neighbour.

    Skilling's transform: rotates and reflects the coordinates, from the highest bit down, until the curve is the
    z-order of the result.

    >>> hilbert([np.array([0, 0, 1, 1], np.uint32), np.array([0, 1, 1, 0], np.uint32)], bits=1).tolist()
    [0, 1, 2, 3]
    """
    axes = [np.array(codes, np.uint32) for codes in coordinates]
    first = axes[0]
    for bit in range(bits - 1, 0, -1):
        low = np.uint32((1 << bit) - 1)
        for axis in axes:
            # All ones where the bit is set: there the first axis is reflected, elsewhere the two are swapped.
            is_set = np.uint32(0) - ((axis >> np.uint32(bit)) & np.uint32(1))
            swapped_bits = (first ^ axis) & low & ~is_set
            first ^= swapped_bits
            axis ^= swapped_bits
            first ^= low & is_set
    for before, axis in pairwise(axes):
        axis ^= before
    reflected_bits = np.zeros_like(first)
    for bit in range(bits - 1, 0, -1):
        is_set = np.uint32(0) - ((axes[-1] >> np.uint32(bit)) & np.uint32(1))
        reflected_bits ^= np.uint32((1 << bit) - 1) & is_set
    return morton([axis ^ reflected_bits for axis in axes], bits)


CURVES: Mapping[str, Callable[[Sequence[Codes], int], Keys]] = {"hilbert": hilbert, "zorder": morton}
