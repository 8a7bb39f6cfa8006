"""A Spark Column's tree as Parketto's SQL: names and literals quoted, times as the session means them."""

from __future__ import annotations

import datetime as dt
import math
import re
import zoneinfo
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.languages.spark_tree import Call, Case, Convert, Name, Node, Text, Value, flattened, names, names_in
from parketto.plan.functions import NAMES
from parketto.plan.values import nanoseconds, parse_text

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
_CLOCK_PARTS = frozenset(
    {"year", "quarter", "month", "day", "dayofmonth", "hour", "minute", "second", "date_trunc"}
)
# What gives one of its arguments: a time stays a time.
_CHOICES = frozenset({"coalesce", "nvl", "ifnull", "nullif", "greatest", "least"})
_MANY = range(1, 1_000_000)
# Spark's name: ours, and how many arguments mean the same in both.
_FUNCTIONS: dict[str, tuple[str, Sequence[int]]] = {
    **{name: (name.upper(), (1,)) for name in ("abs", "floor", "sqrt", "ln", "exp", "isnan", "upper", "lower")},
    **{name: (name.upper(), (1,)) for name in sorted(_CLOCK_PARTS - {"date_trunc", "dayofmonth"})},
    **{name: (name.upper(), (2,)) for name in ("startswith", "endswith", "contains", "nullif", "date_trunc")},
    **{name: (name.upper(), _MANY) for name in ("coalesce", "concat", "greatest", "least")},
    **dict.fromkeys(("length", "len", "char_length", "character_length"), ("LENGTH", (1,))),
    **dict.fromkeys(("substring", "substr"), ("SUBSTRING", (2, 3))),
    **dict.fromkeys(("nvl", "ifnull"), ("COALESCE", (2,))),
    **dict.fromkeys(("ceil", "ceiling"), ("CEIL", (1,))),
    **dict.fromkeys(("pow", "power"), ("POWER", (2,))),
    "dayofmonth": ("DAY", (1,)),
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
    "timestamp_ntz": "TIMESTAMP",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ltz": "TIMESTAMPTZ",
}
_UTC_NAMES = frozenset({"UTC", "GMT", "UT", "Z", "ETC/UTC", "ETC/GMT", "ETC/UCT", "UCT", "ZULU", "ETC/ZULU"})


def clock_zone(name: str) -> dt.tzinfo:
    """A time zone by the name that Spark has for it.

    >>> clock_zone("Etc/UTC"), clock_zone("+02:00"), clock_zone("Europe/Berlin")
    (datetime.timezone.utc, datetime.timezone(datetime.timedelta(seconds=7200)), ...(key='Europe/Berlin'))
    """
    if name.upper() in _UTC_NAMES:
        return dt.UTC
    if offset := re.fullmatch(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?", name):
        sign, *parts = offset.groups()
        hours, minutes, seconds = (int(part or 0) for part in parts)
        ahead = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds) * (1 if sign == "+" else -1)
        return dt.timezone(ahead) if ahead else dt.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidArgument(f"the session's time zone {name!r} is not known here") from error


def written(
    tree: Node, schema: pa.Schema, zone: Callable[[], dt.tzinfo], target: pa.DataType | None = None
) -> str:
    """A tree as SQL.

    >>> tree = Call("=", (Name(("side",)), Value("it's")))
    >>> print(written(tree, pa.schema({"side": pa.string()}), lambda: dt.UTC))
    ("side" = 'it''s')

    Args:
        tree: What to say.
        schema: The columns.
        zone: Tells the session's time zone; asked only if it matters.
        target: The type of the column that it is a new value of.
    """
    writer = _Writer(schema, zone)
    clock = None if target is None else _clock_of(target)
    if isinstance(tree, Value) and clock == "zoned":
        tree = writer.in_zone(tree)
    return writer.write(tree, clock)


class _Writer:
    def __init__(self, schema: pa.Schema, zone: Callable[[], dt.tzinfo]) -> None:
        self.schema = schema
        self._zone = zone
        self._kept: dt.tzinfo | None = None

    @property
    def zone(self) -> dt.tzinfo:
        """The session's time zone."""
        if self._kept is None:
            self._kept = self._zone()
        return self._kept

    def write(self, node: Node, clock: str | None = None) -> str:
        """A node as SQL; the clock says with what kind of times its literals will be compared."""
        match node:
            case Name(parts):
                return ".".join(_quoted_name(part) for part in parts)
            case Value(value):
                return self._literal(value, clock)
            case Call():
                return self._call(node, clock)
            case Case(branches, otherwise):
                values = [value for _, value in branches]
                clock = self._clock([*values, otherwise]) or clock
                cases = [f"WHEN {self.write(test)} THEN {self.write(value, clock)}" for test, value in branches]
                return f"CASE {' '.join(cases)} ELSE {self.write(otherwise, clock)} END"
            case Convert():
                return self._convert(node)
            case Text(text):
                return self._text(text)

    def _call(self, node: Call, clock: str | None) -> str:
        name = node.function.lower()
        if name in ("and", "or"):
            joined = f" {name.upper()} ".join(self.write(part) for part in flattened(node, name))
            return f"({joined})"
        arguments = node.arguments
        if name in _COMPARISONS or name == "in" or name in _CHOICES:
            arguments = self._compared(arguments)
        self._refuse_other_clocks(name, arguments)
        clock = self._clock(arguments) or clock
        said = [self.write(argument, clock) for argument in arguments]
        text = self._operator(name, said) or self._function(name, said)
        if text is None:
            raise InvalidArgument(
                f"Spark's function {node.function!r} with {len(said)} arguments is not available: an expression "
                f"sees one row at a time and has the functions {NAMES}; use these, or select the rows with Spark "
                "and merge them"
            )
        return text

    def _operator(self, name: str, said: Sequence[str]) -> str | None:
        match name, said:
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
                return f"({left} IS NULL AND FALSE)"  # among no values at all
            case "in", (left, *values):
                return f"({left} IN ({', '.join(values)}))"
            case _:
                return None

    def _function(self, name: str, said: Sequence[str]) -> str | None:
        if name in _TRIMS:
            what = f"{said[0]} FROM {said[1]}" if len(said) == 2 else f"' ' FROM {said[0]}"
            return f"TRIM({_TRIMS[name]} {what})" if len(said) in (1, 2) else None
        ours, counts = _FUNCTIONS.get(name, ("", ()))
        return f"{ours}({', '.join(said)})" if len(said) in counts else None

    def _compared(self, arguments: tuple[Node, ...]) -> tuple[Node, ...]:
        """Texts and dates that meet a time with a zone are meant in the session's zone."""
        if not any(self._is_instant(node) for node in arguments):
            return arguments
        return tuple(self.in_zone(node) if isinstance(node, Value) else node for node in arguments)

    def _is_instant(self, node: Node) -> bool:
        match node:
            case Name():
                return self._clock([node]) == "zoned"
            case Call(function, arguments):
                return function.lower() in _CHOICES and any(map(self._is_instant, arguments))
            case Case(branches, otherwise):
                return any(map(self._is_instant, [*(value for _, value in branches), otherwise]))
            case _:
                return False

    def in_zone(self, node: Value) -> Value:
        """A text or a date that stands for a time, as an instant."""
        value = node.value
        if isinstance(value, str):
            read = parse_text(value, pa.timestamp("us", "UTC"))
            wall = _from_microseconds(read.value * nanoseconds(read.type) // 1000)
            return Value(wall.replace(tzinfo=dt.UTC if read.type.tz else self.zone))
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return Value(dt.datetime.combine(value, dt.time(), self.zone))
        return node

    def _refuse_other_clocks(self, name: str, arguments: Sequence[Node]) -> None:
        if name in _CLOCK_PARTS and self._clock(arguments) == "zoned" and self.zone != dt.UTC:
            raise InvalidArgument(
                f"Spark's function {name!r} reads a clock in the session's time zone, {self.zone}, and an "
                "expression reads one in UTC; compare with a time instead, or set spark.sql.session.timeZone=UTC"
            )

    def _convert(self, node: Convert) -> str:
        given = node.type.strip().lower()
        digits = re.fullmatch(r"(?:decimal|dec|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", given)
        kind = f"DECIMAL({digits[1]}, {digits[2] or 0})" if digits else _TYPES.get(given)
        if kind is None:
            raise InvalidArgument(f"a CAST to Spark's type {node.type!r} is not available")
        if kind == "TIMESTAMPTZ" and isinstance(node.child, Value):
            return self.write(self.in_zone(node.child), "zoned")
        if (kind == "TIMESTAMPTZ" or self._clock([node.child]) == "zoned") and self.zone != dt.UTC:
            raise InvalidArgument(
                f"a CAST to {node.type!r} depends on the session's time zone, {self.zone}, and an expression "
                "knows UTC only; compare with a time instead, or set spark.sql.session.timeZone to UTC"
            )
        return f"{'TRY_CAST' if node.attempt else 'CAST'}({self.write(node.child)} AS {kind})"

    def _text(self, text: str) -> str:
        if '"' in text or "\\" in text:
            raise InvalidArgument(
                f"expr({text!r}): double quotes and backslashes mean something else in Spark's SQL than in "
                "parketto.sql; use columns and lit(), or parketto.sql"
            )
        if "zoned" in {self._clock([Name((name,))]) for name in names_in(text)} and self.zone != dt.UTC:
            raise InvalidArgument(
                f"expr({text!r}): times are read in the session's time zone, {self.zone}, by Spark and in UTC "
                "here; use columns and lit(), or parketto.sql"
            )
        return f"({text}\n)"  # it may end in a comment

    def _clock(self, nodes: Sequence[Node]) -> str | None:
        """Whether the times of some columns are instants (`zoned`) or what a clock shows (`naive`)."""
        found = {_clock_of(self._type(name)) for node in nodes for name in names(node)}
        return "zoned" if "zoned" in found else "naive" if "naive" in found else None

    def _type(self, name: Name) -> pa.DataType:
        kind = pa.struct(list(self.schema))
        for part in name.parts:
            fields = list(kind) if pat.is_struct(kind) else []
            # As find_column does it; whether the column exists is said by whoever reads the SQL.
            alike = [field for field in fields if field.name == part] or [
                field for field in fields if field.name.casefold() == part.casefold()
            ]
            kind = alike[0].type if alike else pa.null()
        return kind

    def _literal(self, value: Any, clock: str | None) -> str:
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
                return self._time(value, clock)
            case dt.date():
                return f"DATE '{value.isoformat()}'"
            case dt.time():
                return f"TIME '{value.isoformat()}'"
            case _:
                raise InvalidArgument(f"a literal of {type(value).__name__} is not available: {value!r}")

    def _time(self, value: dt.datetime, clock: str | None) -> str:
        if value.tzinfo is None:
            instant = value.replace(tzinfo=self.zone) if clock == "zoned" else None
        else:
            instant = value if clock != "naive" else None
            value = value.astimezone(self.zone).replace(tzinfo=None) if clock == "naive" else value
        shown = value if instant is None else instant.astimezone(dt.UTC)
        return f"TIMESTAMP '{shown.isoformat(' ')}'"


def _clock_of(kind: pa.DataType) -> str | None:
    if pat.is_timestamp(kind):
        return "zoned" if kind.tz else "naive"
    return "naive" if pat.is_date(kind) else None


def _from_microseconds(count: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=count)  # noqa: DTZ001 - what a clock shows


def _float(value: float) -> str:
    if math.isnan(value):
        return "CAST('NaN' AS DOUBLE)"
    if math.isinf(value):
        return f"CAST('{'-' if value < 0 else ''}Infinity' AS DOUBLE)"
    # With an exponent: numbers with a point alone are decimals.
    text = repr(value) if "e" in repr(value) else f"{value!r}e0"
    return f"({text})" if value < 0 else text


def _quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
