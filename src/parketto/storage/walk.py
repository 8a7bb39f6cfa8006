"""Which folders of a dataset a listing enters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

#: Whether to list a folder, by its path in the dataset. False rules out all that is below it.
Enter = Callable[[str], bool]


class Walk:
    """Decides which folders a listing enters, and remembers those that it leaves out.

    >>> walk = Walk(lambda folder: folder != "day=1")
    >>> walk("day=2"), walk("day=1"), walk.left_out
    (True, False, ['day=1'])
    """

    def __init__(self, *enter: Enter) -> None:
        self._enter = enter
        self._known: dict[str, bool] = {}

    def __call__(self, folder: str) -> bool:
        """Whether to list a folder."""
        if folder not in self._known:
            self._known[folder] = all(enter(folder) for enter in self._enter)
        return self._known[folder]

    @property
    def left_out(self) -> list[str]:
        """The folders that were not entered."""
        return sorted(folder for folder, entered in self._known.items() if not entered)


def is_entered(path: str, enter: Enter) -> bool:
    """Whether a file, by its path in the dataset, is in folders that are all entered."""
    return all(map(enter, parents(path)))


def parents(path: str) -> Iterator[str]:
    """The folders of a relative path, outermost first.

    >>> list(parents("year=2025/day=1/a.parquet"))
    ['year=2025', 'year=2025/day=1']
    """
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)
