"""How results, plans and files look: one line of text, or a small table in a notebook."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

_SHOWN_ITEMS = 3  # of a long list
_SHOWN_CHARACTERS = 200  # of a long text
_HTML_ROWS = 20  # of a list of mappings in a notebook
_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")


class _Shortened(reprlib.Repr):
    """Python's own notation. Long lists, deep nesting and long texts are cut, and say how much is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 6
        self.maxlist = self.maxtuple = _SHOWN_ITEMS
        self.maxdict = 24  # more than any result has keys
        self.maxstring = self.maxother = _SHOWN_CHARACTERS
        self.maxlong = 100
        self.fillvalue = "…"

    def repr_dict(self, x: Mapping[Any, Any], level: int) -> str:
        """In the order of insertion, which the base class does not keep."""
        if level <= 0:
            return "{…}" if x else "{}"
        shown = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in list(x.items())[: self.maxdict]
        ]
        return f"{{{', '.join([*shown, *_more(len(x), self.maxdict)])}}}"

    def repr_list(self, x: Sequence[Any], level: int) -> str:
        """With the number of items that are left out."""
        if level <= 0:
            return "[…]" if x else "[]"
        shown = [self.repr1(item, level - 1) for item in x[: self.maxlist]]
        return f"[{', '.join([*shown, *_more(len(x), self.maxlist)])}]"


def _more(count: int, shown: int) -> list[str]:
    return [f"… {count - shown:,} more"] if count > shown else []


_shortened = _Shortened()


def shortened(value: Any) -> str:
    """A value as Python writes it, with long lists and texts cut.

    >>> shortened({"paths": [f"{n}.parquet" for n in range(150)], "files": 150})
    "{'paths': ['0.parquet', '1.parquet', '2.parquet', … 147 more], 'files': 150}"
    """
    return _shortened.repr(value)


def counted(count: int, noun: str) -> str:
    """A number and a noun.

    >>> counted(1, "file"), counted(1200, "row")
    ('1 file', '1,200 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def readable_bytes(size: float) -> str:
    """A size with a unit.

    >>> readable_bytes(512), readable_bytes(12_900_000)
    ('512 bytes', '12.3 MB')
    """
    unit = 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.0f} {_UNITS[0]}" if unit == 0 else f"{size:,.1f} {_UNITS[unit]}"


def escape(text: str) -> str:
    """Text for HTML."""
    import html  # here, because its import is slow, and only notebooks need it

    return html.escape(text)


def table(caption: str, rows: Iterable[tuple[object, Any]]) -> str:
    """An HTML table of names and values. Both are escaped: they contain paths and columns of the user's data."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(str(name))}</th>'
        f'<td style="text-align:left">{_cell(str(name), value)}</td></tr>'
        for name, value in rows
    )
    title = f'<caption style="text-align:left"><b>{escape(caption)}</b></caption>' if caption else ""
    return f"<table>{title}<tbody>{cells}</tbody></table>"


def _cell(name: str, value: Any) -> str:
    match value:
        case Mapping() if value:
            more = [(text, "") for text in _more(len(value), _HTML_ROWS)]
            return table("", [*list(value.items())[:_HTML_ROWS], *more])
        case [Mapping(), *_]:
            head = list(value[0])
            lines = "".join(
                f"<tr>{''.join(f'<td>{_cell(key, row.get(key))}</td>' for key in head)}</tr>"
                for row in value[:_HTML_ROWS]
            )
            rest = "".join(f"<div>{escape(text)}</div>" for text in _more(len(value), _HTML_ROWS))
            heads = "".join(f"<th>{escape(str(key))}</th>" for key in head)
            return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>{rest}"
        case bool() | None:
            return str(value)
        case int() if "bytes" in name:
            return escape(readable_bytes(value))
        case int():
            return f"{value:,}"
        case str():
            return escape(value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}…")
        case _:
            return escape(shortened(value))


Stats = TypeVar("Stats")


def typed_result(stats: Stats) -> Stats:
    """Statistics as a `Result`. For type checkers they keep their type, a `TypedDict`."""
    return cast("Stats", stats if isinstance(stats, Result) else Result(cast("Any", stats)))


Item = TypeVar("Item")


class Results(list[Item]):
    """Several results: a plain list, which prints shortly, and as a table in a notebook."""

    def __repr__(self) -> str:
        return shortened(list(self))

    def _repr_html_(self) -> str:
        return _cell("", list(self)) if self else "<div>nothing</div>"


class Result(dict[str, Any]):
    """The result of an operation: a plain mapping, which prints shortly, and as a table in a notebook.

    It equals the `dict` with the same items, and `json.dumps` takes it. Only its looks are short: all items are
    there.

    >>> Result(inserted=1, updated=0) == {"inserted": 1, "updated": 0}
    True
    """

    def __repr__(self) -> str:
        return shortened(dict(self))

    def _repr_html_(self) -> str:
        return table("", self.items())

    def numbers(self) -> str:
        """What happened, for a log: the counts that are not zero.

        >>> Result(rows_matched=2, files_removed=0, dry_run=False).numbers()
        'rows_matched=2'
        """
        return ", ".join(
            f"{key}={value}"
            for key, value in self.items()
            if isinstance(value, int) and value and value is not True
        )
