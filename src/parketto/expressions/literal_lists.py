"""Long lists of literals after IN, read in bulk: the SQL parser takes 40 microseconds per element.

Only numbers, strings and NULL are read here. Lists with anything else, and texts that are not certain to have the
same meaning for the parser, are left to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

_MIN_LENGTH = 400  # characters; the parser reads shorter lists in a millisecond
_SPACE = r"[ \t\r\n]*+"
_STRING = r"(?:'[^']*+')++"  # a doubled quote is a quote in the string
_NUMBER = r"-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
# Identifiers with quotes or backslashes, and block comments, nest in ways that only the parser knows.
_TOKENS = re.compile(
    rf"""{_STRING} | "[^"'`\\]*+" | `[^"'`\\]*+` | --[^\r\n]*+(?:\n|\Z)
    | (?P<opened>(?<![\w$@.])IN{_SPACE}\() | (?P<unclear>--|/\*|[{{"`'])""",
    re.X | re.I,
)


def _listed(item: str) -> re.Pattern[str]:
    return re.compile(rf"{_SPACE}{item}(?:{_SPACE},{_SPACE}{item})*+{_SPACE}(?=\))", re.I)


_INTEGERS = re.compile(r"[-0-9, \t\r\n]++(?=\))")
_STRINGS = _listed(_STRING)
_MIXED = _listed(f"(?:{_STRING}|{_NUMBER}|NULL)")
_ITEMS = re.compile(rf"({_STRING})|({_NUMBER})|(NULL)", re.I)


@dataclass(frozen=True)
class LiteralList:
    """The elements of a list.

    Attributes:
        arrays: Elements of the same kind: 64-bit integers, decimals, floats or strings.
        numbers: Other numbers, as in the text.
        has_null: Whether NULL is an element.
    """

    arrays: tuple[pa.Array, ...]
    numbers: tuple[str, ...] = ()
    has_null: bool = False


def cut_lists(text: str) -> tuple[str, dict[str, LiteralList]]:
    """The text with an identifier instead of every long list of literals, and the lists by identifier.

    >>> numbers = ", ".join(map(str, range(1000)))
    >>> text, lists = cut_lists(f"a = 'IN (1)' AND id IN ({numbers})")
    >>> len(text), [len(each.arrays[0]) for each in lists.values()]
    (34, [1000])
    """
    lists: dict[str, LiteralList] = {}
    if len(text) < _MIN_LENGTH or "\0" in text:
        return text, lists
    parts, done, at = [], 0, 0
    while (token := _TOKENS.search(text, at)) is not None:
        at = token.end()
        if token["unclear"]:
            return text, {}
        found = _read(text, at) if token["opened"] else None
        if found is not None:
            name = f"\0list {len(lists)}"
            parts += [text[done:at], f'"{name}"']
            lists[name], at = found
            done = at
    return "".join([*parts, text[done:]]), lists


def attach_lists(tree: Any, lists: dict[str, LiteralList]) -> bool:
    """Whether every list is the only operand of an IN; then the trees of these have it as `literals`."""
    from sqlglot import exp

    left = dict(lists)
    for found in tree.find_all(exp.In):
        listed = found.expressions
        if len(listed) == 1 and listed[0].key == "column" and listed[0].name in left:
            found.set("expressions", [])
            found.args["literals"] = left.pop(listed[0].name)
    return not left


def _read(text: str, start: int) -> tuple[LiteralList, int] | None:
    """The list of literals that starts at a position and is long enough, and the position of its end."""
    for pattern, read in ((_INTEGERS, _read_integers), (_STRINGS, _read_strings), (_MIXED, _read_mixed)):
        found = pattern.match(text, start)
        if found is not None and found.end() - start >= _MIN_LENGTH:
            elements = read(found[0])
            if elements is not None:
                return elements, found.end()
    return None


def _read_integers(text: str) -> LiteralList | None:
    try:
        # JSON has no leading zeros and no `--`; the other patterns decide about these.
        return LiteralList((pa.array(json.loads(f"[{text}]"), pa.int64()),))
    except (ValueError, OverflowError):
        return None


def _read_strings(text: str) -> LiteralList:
    if "''" not in text:
        return LiteralList((pa.array(text.split("'")[1::2], pa.string()),))
    return LiteralList((_strings([string for string, _, _ in _ITEMS.findall(text)]),))


def _strings(quoted: Sequence[str]) -> pa.Array:
    return pa.array([string[1:-1].replace("''", "'") for string in quoted], pa.string())


def _read_mixed(text: str) -> LiteralList:
    strings, numbers, nulls = zip(*_ITEMS.findall(text), strict=True)
    texts = [each for each in strings if each]
    whole, fractions, floats, others = [], [], [], []
    for number in filter(None, numbers):
        if "e" in number.lower():
            floats.append(float(number))
        elif len(number) > 18:
            others.append(number)
        elif "." in number:
            fractions.append(Decimal(number))
        else:
            whole.append(int(number))
    arrays = (
        pa.array(whole, pa.int64()),
        pa.array(fractions, pa.decimal128(38, 18)) if fractions else pa.array([], pa.decimal128(38, 18)),
        pa.array(floats, pa.float64()),
        _strings(texts),
    )
    return LiteralList(tuple(array for array in arrays if len(array)), tuple(others), any(nulls))
