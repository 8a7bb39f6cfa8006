"""Of which columns the bounds in footers are kept: a dataset of many files and columns has too many of them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from parketto.parquet.clustering_metadata import read_clustering


@dataclass(frozen=True)
class MentionedColumns:
    """The columns that a text mentions: a condition in any language, before it is parsed.

    These may be more than the condition needs. The bounds of a column whose name is escaped are not known.

    >>> "price" in MentionedColumns("Price > 3"), "size" in MentionedColumns("Price > 3")
    (True, False)
    """

    text: str

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.casefold() in self.text.casefold()


@dataclass(frozen=True)
class WithLeadingColumns:
    """Some columns, and the first ones of each file."""

    others: Container[str]
    leading: int

    def __contains__(self, name: object) -> bool:
        return name in self.others


@dataclass(frozen=True)
class _EitherColumns:
    one: Container[str]
    other: Container[str]

    @property
    def leading(self) -> int:
        return getattr(self.one, "leading", 0)

    def __contains__(self, name: object) -> bool:
        return name in self.one or name in self.other


#: The columns whose bounds are kept; None keeps all.
StatsColumns: TypeAlias = Container[str] | None


def with_clustering_columns(columns: StatsColumns, metadata: Mapping[bytes, bytes] | None) -> StatsColumns:
    """The columns whose bounds are kept of a file, given its metadata.

    How well rows are clustered shows in the bounds of the clustering columns.
    """
    clustering = read_clustering(metadata)
    return columns if columns is None or clustering is None else _EitherColumns(columns, clustering.columns)


def columns_with_bounds(names: Sequence[str], columns: StatsColumns) -> list[str]:
    """Which columns of a file have bounds, of those that are not nested."""
    leading = frozenset(names[: getattr(columns, "leading", 0)])
    return [name for name in names if columns is None or name in leading or name in columns]
