"""Which folders of a dataset a listing enters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parketto.storage.hive import is_data_path

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
        #: The folders of data files below each folder that was left out, if the store has listed it anyway.
        self.seen: dict[str, set[str]] = {}

    def __call__(self, folder: str) -> bool:
        """Whether to list a folder."""
        if folder not in self._known:
            self._known[folder] = all(enter(folder) for enter in self._enter)
        return self._known[folder]

    @property
    def left_out(self) -> list[str]:
        """The folders that were not entered."""
        return sorted(folder for folder, entered in self._known.items() if not entered)


def keeps(path: str, enter: Enter) -> bool:
    """The same as `is_entered`, for a file that was listed: a `Walk` remembers its folder."""
    entered = is_entered(path, enter)
    if not entered and isinstance(enter, Walk) and is_data_path(path):
        left_out = next(folder for folder in parents(path) if not enter(folder))
        enter.seen.setdefault(left_out, set()).add(path.rpartition("/")[0])
    return entered


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
