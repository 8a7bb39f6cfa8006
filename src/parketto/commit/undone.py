"""Which commits a commit has undone, as the log records it. Such commits are as if they had not happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from parketto.commit.retention import MOVING_ROWS

#: The operations that undo commits.
UNDO, RESTORE = "undo", "restore"
#: Keys in the statistics of such a commit: the numbers of the undone commits; whether all of these only moved
#: rows; the files that came back under another name, as `[name, number of the commit that retired it, old name]`.
UNDONE, ONLY_MOVED, RENAMED = "undone", "only_moved_rows", "renamed"


def undone_commits(operation: str, statistics: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of the commits that a commit has undone; none if it is another operation.

    >>> undone_commits("undo", {"undone": [7, 9]}), undone_commits("delete", {})
    ((7, 9), ())
    """
    return tuple(statistics.get(UNDONE, ())) if operation in (UNDO, RESTORE) else ()


def only_moves_rows(operation: str, arguments: Mapping[str, Any], statistics: Mapping[str, Any]) -> bool:
    """Whether a commit leaves the rows of the dataset as they were, in other files.

    >>> only_moves_rows("compact", {}, {}), only_moves_rows("undo", {}, {"only_moved_rows": True})
    (True, True)
    >>> only_moves_rows("delete", {}, {})
    False
    """
    if operation in MOVING_ROWS:
        return "source" not in arguments  # a repartition from another dataset brings rows of that one
    return operation in (UNDO, RESTORE) and bool(statistics.get(ONLY_MOVED))


class UndoneBy:
    """Finds the commits that are undone. Commits are added newest first: an undo may be undone itself.

    Args:
        without: Commits to treat as undone.
    """

    def __init__(self, without: Iterable[int] = ()) -> None:
        self._found: dict[int, int] = dict.fromkeys(without, 0)

    def add(self, number: int, operation: str, statistics: Mapping[str, Any]) -> int | None:
        """The commit by which this one is undone; None if it is in effect."""
        if (by := self._found.get(number)) is not None:
            return by
        for each in undone_commits(operation, statistics):
            self._found.setdefault(each, number)
        return None
