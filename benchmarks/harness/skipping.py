"""How much of a dataset a query must read, as its footers tell: the share of row groups and of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Predicate = Mapping[str, tuple[Any, Any]]
"""Ranges by column, both ends included; all must hold."""

BOX_SHARE = 0.1
RANGE_SHARE = 0.01


@dataclass(frozen=True)
class RowGroup:
    """One row group: the file it is in, and the least and greatest value of columns, where they are known."""

    file: int
    bounds: Mapping[str, tuple[Any, Any] | None]

    def may_match(self, predicate: Predicate) -> bool:
        """Whether a reader that knows the bounds must still read it."""
        for column, (low, high) in predicate.items():
            known = self.bounds[column]
            if known is not None and (known[1] < low or high < known[0]):
                return False
        return True


def row_groups(files: Sequence[str], columns: Sequence[str]) -> list[RowGroup]:
    """What the footers say."""
    found = []
    for number, path in enumerate(files):
        footer = pq.read_metadata(path)
        places = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
        for index in range(footer.num_row_groups):
            group = footer.row_group(index)
            found.append(
                RowGroup(number, {name: _bounds(group.column(places[name]).statistics) for name in columns})
            )
    return found


def _bounds(statistics: Any) -> tuple[Any, Any] | None:
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


def shares(groups: Sequence[RowGroup], predicates: Sequence[Predicate]) -> tuple[float, float]:
    """The shares of row groups and of files that must be read, on average."""
    files = {group.file for group in groups}
    read_groups = read_files = 0
    for predicate in predicates:
        read = [group for group in groups if group.may_match(predicate)]
        read_groups += len(read)
        read_files += len({group.file for group in read})
    return read_groups / (len(predicates) * len(groups)), read_files / (len(predicates) * len(files))


def predicates(table: pa.Table, columns: Sequence[str], count: int = 200) -> dict[str, list[Predicate]]:
    """What queries ask for: a value or one percent of the rows by each column in turn, and boxes around rows.

    A box covers a tenth of the rows in each column, so that it is not empty whatever the data are like.
    """
    rng = np.random.default_rng(17)
    values = {name: table.column(name).combine_chunks() for name in columns}
    places = {name: pc.sort_indices(values[name]) for name in columns}
    orders = {name: values[name].take(places[name]) for name in columns}
    ranks = {name: np.argsort(np.asarray(places[name])) for name in columns}
    rows = table.num_rows
    found: dict[str, list[Predicate]] = {"point": [], "range": [], "box": []}
    for number in range(count):
        name = columns[number % len(columns)]
        value = values[name][int(rng.integers(rows))].as_py()
        found["point"].append({name: (value, value)})
        width = max(1, int(rows * RANGE_SHARE))
        found["range"].append({name: _range(orders[name], int(rng.integers(rows - width)), width)})
        row, width = int(rng.integers(rows)), max(1, int(rows * BOX_SHARE))
        found["box"].append(
            {
                column: _range(
                    orders[column], min(max(0, int(ranks[column][row]) - width // 2), rows - width), width
                )
                for column in columns
            }
        )
    return found


def _range(order: pa.Array, first: int, width: int) -> tuple[Any, Any]:
    return order[first].as_py(), order[min(first + width, len(order)) - 1].as_py()
