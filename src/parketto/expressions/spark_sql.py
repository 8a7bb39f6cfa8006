"""Translation of a Spark Column's tree to Parketto's SQL, with names and literals quoted."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from parketto.errors import InvalidArgument
from parketto.expressions.functions import NAMES
from parketto.expressions.parsing import parsed
from parketto.expressions.spark_tree import Call, Case, Convert, Name, Node, Text, Value, flattened

_COMPARISONS = {
    "=": "=",
    "==": "=",
    "<=>": "<=>",
    "!=": "<>",
    "<>": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_ARITHMETIC = frozenset("+-*/%")
_TESTS = {"isnull": "IS NULL", "isnotnull": "IS NOT NULL"}
_PATTERNS = {"like": "LIKE", "ilike": "ILIKE", "rlike": "RLIKE", "regexp": "RLIKE", "regexp_like": "RLIKE"}
_TRIMS = {"trim": "BOTH", "ltrim": "LEADING", "rtrim": "TRAILING"}
_CASTS = {"to_date": "DATE", "date": "DATE", "to_timestamp": "TIMESTAMPTZ", "timestamp": "TIMESTAMPTZ"}
_NEGATIVE = re.compile(r"\(-[0-9][0-9.e+-]*\)")
_MANY = range(1, 1_000_000)
# Spark's name: Parketto's, and the argument counts for which both have the same meaning.
_FUNCTIONS: dict[str, tuple[str, Sequence[int]]] = {
    **{name: (name.upper(), (1,)) for name in ("abs", "floor", "sqrt", "ln", "exp", "isnan", "upper", "lower")},
    **{name: (name.upper(), (1,)) for name in ("year", "quarter", "month", "day", "hour", "minute", "second")},
    **{name: (name.upper(), (0,)) for name in ("current_date", "current_timestamp", "localtimestamp")},
    **{name: (name.upper(), (2,)) for name in ("startswith", "endswith", "contains", "nullif", "date_trunc")},
    **{name: (name.upper(), _MANY) for name in ("coalesce", "concat", "greatest", "least")},
    **dict.fromkeys(("length", "len", "char_length", "character_length"), ("LENGTH", (1,))),
    **dict.fromkeys(("substring", "substr"), ("SUBSTRING", (2, 3))),
    **dict.fromkeys(("nvl", "ifnull"), ("COALESCE", (2,))),
    **dict.fromkeys(("ceil", "ceiling"), ("CEIL", (1,))),
    **dict.fromkeys(("pow", "power"), ("POWER", (2,))),
    "dayofmonth": ("DAY", (1,)),
    "curdate": ("CURRENT_DATE", (0,)),
    "now": ("CURRENT_TIMESTAMP", (0,)),
    "ucase": ("UPPER", (1,)),
    "lcase": ("LOWER", (1,)),
    "round": ("ROUND", (1, 2)),
    "replace": ("REPLACE", (2, 3)),
}
_TYPES = {
    **{
        name: name.upper()
        for name in ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date")
    },
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INT",
    "long": "BIGINT",
    "real": "FLOAT",
    "string": "VARCHAR",
    "binary": "BINARY",
    "decimal": "DECIMAL(10, 0)",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ltz": "TIMESTAMPTZ",
}


def to_sql(tree: Node) -> str:
    """A tree as SQL. The caller supplies the time zone when it parses the SQL.

    >>> print(to_sql(Call("=", (Name(("side",)), Value("it's")))))
    ("side" = 'it''s')
    """
    match tree:
        case Name(parts):
            return ".".join(_quoted_name(part) for part in parts)
        case Value(value):
            return _literal(value)
        case Call():
            return _call(tree)
        case Case(branches, otherwise):
            cases = [f"WHEN {to_sql(test)} THEN {to_sql(value)}" for test, value in branches]
            return f"CASE {' '.join(cases)} ELSE {to_sql(otherwise)} END"
        case Convert():
            return _convert(tree)
        case Text(text):
            return _text(text)


def _call(node: Call) -> str:
    name = node.function.lower()
    if name in ("and", "or"):
        chain = f" {name.upper()} ".join(to_sql(part) for part in flattened(node, name))
        return f"({chain})"
    arguments = [to_sql(argument) for argument in node.arguments]
    text = _operator(name, arguments) or _function(name, arguments)
    if text is None:
        raise InvalidArgument(
            f"Spark's function {node.function!r} with {len(arguments)} arguments is not available: an expression "
            f"sees one row at a time and has the functions {NAMES}; use these, or select the rows with Spark "
            "and merge them"
        )
    return text


def _operator(name: str, arguments: Sequence[str]) -> str | None:
    match name, arguments:
        case _, (left, right) if name in _COMPARISONS:
            return f"({left} {_COMPARISONS[name]} {right})"
        case _, (left, right) if name in _ARITHMETIC:
            return f"({left} {name} {right})"
        case _, (left, right) if name in _PATTERNS:
            return f"({left} {_PATTERNS[name]} {right})"
        case "like" | "ilike", (left, right, escape):
            return f"({left} {_PATTERNS[name]} {right} ESCAPE {escape})"
        case _, (only,) if name in _TESTS:
            return f"({only} {_TESTS[name]})"
        case "!" | "not", (only,):
            return f"(NOT {only})"
        case "negative" | "-", (only,):
            return f"(- {only})"
        case "positive" | "+", (only,):
            return only
        case "in", (left,):
            return f"({left} IS NULL AND FALSE)"  # an empty list
        case "in", (left, *values):
            # Long lists of plain numbers are read in bulk.
            plain = (value[1:-1] if _NEGATIVE.fullmatch(value) else value for value in values)
            return f"({left} IN ({', '.join(plain)}))"
        case _:
            return None


def _function(name: str, arguments: Sequence[str]) -> str | None:
    if name in _TRIMS:
        what = f"{arguments[0]} FROM {arguments[1]}" if len(arguments) == 2 else f"' ' FROM {arguments[0]}"
        return f"TRIM({_TRIMS[name]} {what})" if len(arguments) in (1, 2) else None
    if name in _CASTS and len(arguments) == 1:
        return f"CAST({arguments[0]} AS {_CASTS[name]})"
    translated, counts = _FUNCTIONS.get(name, ("", ()))
    return f"{translated}({', '.join(arguments)})" if len(arguments) in counts else None


def _convert(node: Convert) -> str:
    given = node.type.strip().lower()
    digits = re.fullmatch(r"(?:decimal|dec|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", given)
    kind = f"DECIMAL({digits[1]}, {digits[2] or 0})" if digits else _TYPES.get(given)
    if kind is None:
        raise InvalidArgument(f"a CAST to Spark's type {node.type!r} is not available")
    return f"{'TRY_CAST' if node.attempt else 'CAST'}({to_sql(node.child)} AS {kind})"


def _text(text: str) -> str:
    if '"' in text or "\\" in text:
        raise InvalidArgument(
            f"expr({text!r}): double quotes and backslashes have a different meaning in Spark's SQL than in "
            "parketto.sql; use columns and lit(), or parketto.sql"
        )
    parsed(text)  # raises unless it is complete, so that the parentheses are safe
    return f"({text}\n)"  # it may end in a comment


def _literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value) if value >= 0 else f"({value})"
        case float():
            return _float(value)
        case Decimal() if value.is_finite():
            return f"({value:f})" if value < 0 else f"{value:f}"
        case str():
            return _quoted_text(value)
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime():
            return f"TIMESTAMP '{value.isoformat(' ')}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
        case dt.time():
            return f"TIME '{value.isoformat()}'"
        case dt.timedelta():
            return _interval(value)
        case _:
            raise InvalidArgument(f"a literal of {type(value).__name__} is not available: {value!r}")


def _interval(value: dt.timedelta) -> str:
    minutes, seconds = divmod(abs(value).seconds, 60)
    text = f"{abs(value).days} {minutes // 60}:{minutes % 60}:{seconds}.{abs(value).microseconds:06}"
    return f"INTERVAL '{'-' if value < dt.timedelta() else ''}{text}' DAY TO SECOND"


def _float(value: float) -> str:
    if math.isnan(value):
        return "CAST('NaN' AS DOUBLE)"
    if math.isinf(value):
        return f"CAST('{'-' if value < 0 else ''}Infinity' AS DOUBLE)"
    # With an exponent, because numbers with only a decimal point are decimals.
    text = repr(value) if "e" in repr(value) else f"{value!r}e0"
    return f"({text})" if value < 0 else text


def _quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
