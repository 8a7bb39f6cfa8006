"""Row groups as rectangles over two columns: what clustering looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from parketto.health.examine import Examination
from parketto.health.text import percent
from parketto.parquet.bounds import row_group_bounds
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_group_info import RowGroupInfo
from parketto.planning.skipping import spans

_MAX_RECTANGLES = 600
_MAX_TABLE_ROWS = 100
_MAX_VALUE_CHARACTERS = 40
# Bounds of these types are shown.
_SHOWN = (
    pat.is_boolean,
    pat.is_integer,
    pat.is_floating,
    pat.is_decimal,
    pat.is_temporal,
)


@dataclass(frozen=True)
class Rectangle:
    """A row group: the shares of all rows, in the order of each column, between which it lies."""

    x: tuple[float, float]
    y: tuple[float, float]
    rows: int
    x_text: tuple[str, str]
    y_text: tuple[str, str]


@dataclass(frozen=True)
class Rectangles:
    """Rectangles over two columns, and the number of row groups they were chosen from."""

    columns: tuple[str, str]
    shown: Sequence[Rectangle]
    total: int

    @property
    def table_rows(self) -> Sequence[Rectangle]:
        """Those of the table."""
        return self.shown[:_MAX_TABLE_ROWS]


def rectangles(found: Examination) -> Rectangles | None:
    """The row groups over the two columns that show most; None if there are no such columns."""
    columns = _two_columns(found)
    bounds = found.bounds
    if columns is None or not bounds.groups:
        return None
    chosen = np.unique(np.linspace(0, len(bounds.groups) - 1, _MAX_RECTANGLES).round().astype(int))
    x, y = (spans(bounds.groups, name) for name in columns)
    shown = []
    for at in map(int, chosen):
        if x.high[at] < x.low[at] or y.high[at] < y.low[at]:
            continue  # only NULLs: no query on values reads it
        file, group = bounds.stored[at]
        shown.append(
            Rectangle(
                (float(x.low[at]), float(x.high[at])),
                (float(y.low[at]), float(y.high[at])),
                group.num_rows,
                _texts(file, group, columns[0], (float(x.low[at]), float(x.high[at]))),
                _texts(file, group, columns[1], (float(y.low[at]), float(y.high[at]))),
            )
        )
    return Rectangles(columns, shown, found.health["row_groups"]["count"]) if shown else None


def _two_columns(found: Examination) -> tuple[str, str] | None:
    """Clustering columns, else those that let queries skip most."""
    bounded = [each for each in found.health["columns"] if each["bounded"] > 0]
    recorded = found.health["clustering"][0]["columns"] if found.health["clustering"] else []

    def rank(name: str, reads: float, *, partition: bool) -> tuple[int, bool, float]:
        return recorded.index(name) if name in recorded else len(recorded), partition, reads

    ordered = sorted(bounded, key=lambda each: rank(each["column"], each["range"], partition=each["partition"]))
    names = [each["column"] for each in ordered[:2]]
    return (names[0], names[1]) if len(names) == 2 else None


def _texts(file: FileInfo, group: RowGroupInfo, column: str, shares: tuple[float, float]) -> tuple[str, str]:
    """The bounds of a row group as text; those of texts as places in the order of the column.

    Bounds are values of single rows, such as e-mail addresses, and the page can be mailed.
    """
    if file.schema is None or column not in file.schema.names:
        value = str(dict(file.partition).get(column, ""))
        return value, value
    found = row_group_bounds(file, group, column)
    if found is None:
        return "", ""
    if not all(any(test(value.type) for test in _SHOWN) for value in found):
        return percent(shares[0]), percent(shares[1])
    return _text(found[0]), _text(found[1])


def _text(value: pa.Scalar) -> str:
    try:
        text = str(value.cast(pa.string()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        text = str(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"
