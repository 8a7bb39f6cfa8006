"""Small files of a stream's micro-batches are merged as it goes, so that the dataset stays healthy.

Files are merged with files of their own size: 8 of up to 24 kB, then 8 of up to 192 kB, and so on up to the target
of 128 MB. So the work per byte grows with the logarithm of the target, not with the number of micro-batches. Each
merge is a commit of its own: readers of streams can tell rows that were moved from new ones.
"""

from __future__ import annotations

import logging
import posixpath
from collections import Counter
from collections.abc import Collection, Iterable

from parketto.arguments import MEGABYTE
from parketto.dataset.dataset import Dataset
from parketto.errors import CommitError
from parketto.storage.listing import relative

logger = logging.getLogger(__name__)

_FILES = 8  # of about one size in one folder; fewer are left alone
_FULL = 0.75  # the fraction of the target from which on a file is not small, as for `compact`
_MIN_LIMIT_BYTES = 8 * 1024


def absorb(dataset: Dataset, folders: Collection[str], target_mb: float) -> None:
    """Merge the small files of folders, if there are enough of about one size."""
    limit = size_limit(_sizes(dataset, folders), target_mb * MEGABYTE)
    if limit is None:
        return
    try:
        dataset.compact(
            target_mb,
            partition_filter=None if "" in folders else sorted(folders),
            min_file_count=_FILES,
            max_file_size_mb=limit / MEGABYTE,
        )
    except CommitError as error:
        # The rows are committed. Another writer works on these files; a later micro-batch tries again.
        logger.info("small files of %s are left for later: %s", dataset.path, error)


def _sizes(dataset: Dataset, folders: Collection[str]) -> Iterable[tuple[str, int]]:
    context = dataset._context
    for entry in context.listed():
        folder = posixpath.dirname(relative(entry.path, context.root))
        if folder in folders:
            yield folder, entry.size_bytes


def size_limit(sizes: Iterable[tuple[str, int]], target_bytes: float) -> int | None:
    """The size below which files are merged: the largest class of sizes with enough files in one folder.

    >>> size_limit([("day=1", 900)] * 8, 128 * MEGABYTE), size_limit([("day=1", 900)] * 7, 128 * MEGABYTE)
    (24576, None)
    >>> size_limit([("", 20 * MEGABYTE)] * 8 + [("", 900)] * 9, 128 * MEGABYTE) == 96 * MEGABYTE
    True
    """
    limits = [int(_FULL * target_bytes)]
    while limits[-1] // _FILES >= _MIN_LIMIT_BYTES:
        limits.append(limits[-1] // _FILES)
    counts: Counter[tuple[str, int]] = Counter()
    for folder, size in sizes:
        if size < limits[0]:
            counts[folder, min(limit for limit in limits if size < limit)] += 1
    return max((limit for (_, limit), count in counts.items() if count >= _FILES), default=None)
