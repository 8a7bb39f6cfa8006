"""Translation of SQL to Arrow expressions.

The dialect is what Spark and DuckDB have in common. Where they differ:

* Double quotes and backticks both quote identifiers, single quotes a string. A backslash in a string is literal,
  but in LIKE it escapes the next character (ESCAPE selects another one).
* `/` never truncates; dividing by zero gives NULL. Integer arithmetic uses 64 bits, and overflow is an error.
  Numbers with a decimal point are exact decimals; numbers with an exponent are floats.
* NaN equals NaN and is greater than every number. A number is compared with floats as the nearest float, unless
  CAST gives it a type: then float32 values are widened, and none of them equals CAST(0.1 AS DOUBLE).
* A string literal is parsed as the type it is compared with. All other conversions from and to strings need a
  CAST. Concatenation with NULL gives NULL.
* Dates and timestamps without a zone are interpreted in one time zone when they are combined with instants: that
  of the Spark session, or the dataset's `timezone`, else UTC. Casts and parts of instants use the same zone.
  Times in the gap of a clock change move forward by the gap; of ambiguous times the first one is meant.
  A string compared with a timestamp without a zone has none either: a zone in it is ignored.
  TIMESTAMP is a timestamp with or without a zone, TIMESTAMPTZ (TIMESTAMP_LTZ) one with, TIMESTAMP_NTZ one without.
* CURRENT_TIMESTAMP, NOW() and CURRENT_DATE are fixed at the start of the operation.
* INTERVAL follows Spark. Years, months and days (every 24 hours are a day) move the date on the wall clock of the
  zone, at most to the end of the month; the rest is exact. A date plus hours is an instant. The difference of two
  timestamps is that of their wall-clock times.
* CAST from a fraction to an integer truncates; to a decimal it rounds half away from zero.
* CASE evaluates all of its branches: use TRY_CAST instead of a CAST that may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import ColumnNotFound, InvalidArgument, quoted
from parketto.expressions.arithmetic import calculate
from parketto.expressions.casts import cast
from parketto.expressions.functions import FUNCTIONS, NAMES, now
from parketto.expressions.intervals import difference, interval_literal, interval_of, moved
from parketto.expressions.literal_lists import LiteralList
from parketto.expressions.membership import among
from parketto.expressions.nodes import Node, Scope, balanced, literal, null_truth, truth
from parketto.expressions.parsing import like_pattern, number, parsed, read_hex
from parketto.expressions.time_zones import Clock, Step

_COMPARISONS = {"eq": "=", "neq": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%"}
_QUERIES = frozenset({"select", "subquery", "exists", "union", "any", "all"})


class SQL(str):
    """A string that is an SQL expression, not a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"sql({str(self)!r})"


def sql(text: str) -> SQL:
    """Mark a string as an SQL expression, so that an update does not store it as a value.

    Timestamps without a zone use the Spark session's time zone, or the dataset's `timezone`. `CURRENT_TIMESTAMP`,
    `NOW()` and `CURRENT_DATE` are fixed at the start of the operation. Dates and timestamps can be moved by an
    INTERVAL with Spark's calendar: `ts + INTERVAL '1 hour 30 minutes'`, `day - INTERVAL 1 MONTH`.

    >>> sql("price * 1.1")
    sql('price * 1.1')
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"an SQL expression must be a string, got {text!r}")
    return SQL(text)


def find_column(name: str, schema: pa.Schema) -> str:
    """The column of a name: an exact match, or the only case-insensitive match.

    >>> find_column("ID", pa.schema({"id": pa.int64(), "x": pa.int64()}))
    'id'
    """
    if schema.names.count(name) == 1:
        return name
    if name in schema.names:
        raise InvalidArgument(f"column {name!r} is ambiguous: the data has duplicate column names")
    matches = [column for column in schema.names if column.casefold() == name.casefold()]
    if not matches:
        raise ColumnNotFound([name], schema.names)
    if len(matches) > 1:
        raise InvalidArgument(f"column {name!r} is ambiguous: {quoted(matches)} differ only in case")
    return str(matches[0])


@dataclass(frozen=True)
class Translation:
    """An SQL expression translated for Arrow.

    Attributes:
        expression: The Arrow expression.
        type: The type of its values.
        columns: The columns that it uses, in schema order.
        steps: Derived columns that it uses, to be computed first.
    """

    expression: pc.Expression
    type: pa.DataType
    columns: tuple[str, ...]
    steps: tuple[Step, ...] = ()


def translate(text: str, schema: pa.Schema, clock: Clock | None = None) -> Translation:
    """An SQL expression over columns of plain types, translated for Arrow with the time zone of a clock.

    Raises:
        InvalidArgument: If the SQL is not a single expression on one row, or its types do not fit.
    """
    translator = _Translator(schema, clock)
    try:
        node = translator.translate(parsed(text))
    except ColumnNotFound:
        raise
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}, in {shortened(text)!r}") from error
    except RecursionError as error:
        raise InvalidArgument(f"nested too deeply: {shortened(text)!r}") from error
    used = tuple(name for name in schema.names if name in translator.used)
    return Translation(node.expression, node.type, used, tuple(translator.scope.steps))


def shortened(text: str) -> str:
    """The text in one line of at most 200 characters, for messages."""
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:197] + "..."


class _Translator:
    def __init__(self, schema: pa.Schema, clock: Clock | None) -> None:
        self.scope = Scope(schema, clock)
        self.schema = schema
        self.used: set[str] = set()

    def translate(self, tree: Any) -> Node:
        """The node of a parsed expression."""
        key = tree.key
        if key in _COMPARISONS:
            return self.scope.compare(_COMPARISONS[key], *self._sides(tree))
        if key in _ARITHMETIC:
            return self._arithmetic(tree)
        handler = self._HANDLERS.get(key)
        if handler is not None:
            return handler(self, tree)
        if key in FUNCTIONS:
            return FUNCTIONS[key](self.scope, self.translate, tree)
        raise InvalidArgument(_refusal(tree))

    def _sides(self, tree: Any) -> tuple[Node, Node]:
        return self.translate(tree.this), self.translate(tree.expression)

    def _arithmetic(self, tree: Any) -> Node:
        if (interval := interval_of(tree)) is not None:
            return interval_literal(interval)
        if tree.key in ("add", "sub"):
            if (interval := interval_of(tree.expression)) is not None:
                return moved(self.scope, self.translate(tree.this), interval.times(1 if tree.key == "add" else -1))
            if tree.key == "add" and (interval := interval_of(tree.this)) is not None:
                return moved(self.scope, self.translate(tree.expression), interval)
        left, right = self._sides(tree)
        families = {left.family, right.family}
        if tree.key == "sub" and "timestamp" in families and families <= {"date", "timestamp"}:
            return difference(self.scope, left, right)
        return calculate(self.scope, _ARITHMETIC[tree.key], left, right)

    def _interval(self, tree: Any) -> Node:
        interval = interval_of(tree)
        assert interval is not None, "the tree is an interval"
        return interval_literal(interval)

    def _column(self, tree: Any) -> Node:
        parts = [part.name for part in tree.parts]
        if parts[-1] == "*" and tree.this.key == "star":
            raise InvalidArgument("'*' is not a value")
        whole = ".".join(parts)
        if len(parts) == 1 or whole in self.schema.names:
            return self._field(whole)
        node = self._field(parts[0])
        for part in parts[1:]:
            kind = node.type
            if not pat.is_struct(kind):
                raise InvalidArgument(f"{parts[0]!r} is {kind} and has no field {part!r}")
            field = kind.field(find_column(part, pa.schema(list(kind))))
            node = self.scope.call(pc.struct_field, node, indices=[kind.get_field_index(field.name)])
        return node

    def _field(self, name: str) -> Node:
        column = find_column(name, self.schema)
        self.used.add(column)
        return Node(pc.field(column), self.schema.field(column).type)

    def _literal(self, tree: Any) -> Node:
        return literal(pa.scalar(tree.this)) if tree.is_string else literal(number(tree.this), untyped=True)

    def _negative(self, tree: Any) -> Node:
        if tree.this.key == "literal" and not tree.this.is_string:
            return literal(number("-" + tree.this.this), untyped=True)
        if (interval := interval_of(tree)) is not None:
            return interval_literal(interval)
        node = self.translate(tree.this)
        return (
            calculate(self.scope, "-", literal(pa.scalar(0)), node)
            if node.family != "float"
            else (self.scope.call(pc.negate, node))
        )

    def _is(self, tree: Any) -> Node:
        node = self.translate(tree.this)
        if tree.expression.key == "null":
            return self.scope.call(pc.is_null, node)
        if tree.expression.key != "boolean":
            raise InvalidArgument("IS needs NULL, TRUE or FALSE")
        wanted = truth(node) if tree.expression.this else self.scope.negation(node)
        return self.scope.call(pc.coalesce, wanted, literal(pa.scalar(False)))

    def _in(self, tree: Any) -> Node:
        if tree.args.get("query") is not None or tree.args.get("unnest") is not None:
            raise InvalidArgument("subqueries are not available: an expression sees one row at a time")
        node = self.translate(tree.this)
        values = [self.translate(value) for value in tree.expressions]
        listed: LiteralList = tree.args.get("literals") or LiteralList(())
        values += [literal(number(text), untyped=True) for text in listed.numbers]
        known = [value for value in values if not value.is_null]
        found = among(self.scope, node, known, listed.arrays)
        if listed.has_null or len(known) < len(values):
            found = self.scope.either(found, null_truth())
        return self._unless_negated(tree, found)

    def _and(self, tree: Any) -> Node:
        return balanced(self.scope.both, [self.translate(part) for part in tree.flatten()])

    def _or(self, tree: Any) -> Node:
        return balanced(self.scope.either, [self.translate(part) for part in tree.flatten()])

    def _between(self, tree: Any) -> Node:
        node = self.translate(tree.this)
        low = self.scope.compare(">=", node, self.translate(tree.args["low"]))
        high = self.scope.compare("<=", node, self.translate(tree.args["high"]))
        return self._unless_negated(tree, self.scope.both(low, high))

    def _like(self, tree: Any, escape: str = "\\") -> Node:
        node, pattern = self._text(tree.this), self._pattern(tree)
        matched = self.scope.call(
            pc.match_like, node, pattern=like_pattern(pattern, escape), ignore_case=tree.key == "ilike"
        )
        return self._unless_negated(tree, matched)

    def _escaped(self, tree: Any) -> Node:
        escape = tree.expression.name
        if tree.this.key == "not":
            return self.scope.negation(self._like(tree.this.this, escape))
        if tree.this.key not in ("like", "ilike") or len(escape) != 1:
            raise InvalidArgument("ESCAPE needs LIKE and exactly one character")
        return self._like(tree.this, escape)

    def _regex(self, tree: Any) -> Node:
        node, pattern = self._text(tree.this), self._pattern(tree)
        flags = tree.args.get("flag")
        ignore_case = tree.key == "regexpilike" or (flags is not None and flags.name == "i")
        # Arrow compiles patterns only when there are rows, so this call detects invalid ones early.
        self.scope.call(pc.match_substring_regex, literal(pa.scalar("")), pattern=pattern)
        matched = self.scope.call(pc.match_substring_regex, node, pattern=pattern, ignore_case=ignore_case)
        return self._unless_negated(tree, matched)

    def _text(self, tree: Any) -> Node:
        node = self.translate(tree)
        if node.family not in ("text", "null"):
            raise InvalidArgument(f"a pattern needs a string, but {tree.sql()} is {node.type}; use CAST")
        return self.scope.cast(node, pa.string()) if node.family == "null" else node

    def _pattern(self, tree: Any) -> str:
        pattern = self.translate(tree.expression) if tree.expression.key not in _QUERIES else None
        if pattern is None or pattern.literal is None or pattern.family != "text":
            raise InvalidArgument(f"the pattern of {tree.key.upper()} must be a string literal")
        return str(pattern.literal.as_py())

    def _unless_negated(self, tree: Any, node: Node) -> Node:
        return self.scope.negation(node) if tree.args.get("negate") else node

    def _case(self, tree: Any) -> Node:
        subject = self.translate(tree.this) if tree.this is not None else None
        default = tree.args.get("default")
        result = self.translate(default) if default is not None else literal(pa.scalar(None))
        for branch in reversed(tree.args["ifs"]):
            condition = self.translate(branch.this)
            if subject is not None:
                condition = self.scope.compare("=", subject, condition)
            result = self.scope.choose(condition, self.translate(branch.args["true"]), result)
        return result

    def _if(self, tree: Any) -> Node:
        otherwise = tree.args.get("false")
        return self.scope.choose(
            self.translate(tree.this),
            self.translate(tree.args["true"]),
            self.translate(otherwise) if otherwise is not None else literal(pa.scalar(None)),
        )

    def _cast(self, tree: Any) -> Node:
        return cast(self.scope, self.translate(tree.this), tree.args["to"], attempt=tree.key == "trycast")

    def _anonymous(self, tree: Any) -> Node:
        if tree.name.lower() == "now" and not tree.expressions:
            return now(self.scope)
        raise InvalidArgument(_refusal(tree))

    _HANDLERS: Mapping[str, Callable[[_Translator, Any], Node]] = {
        "paren": lambda self, tree: self.translate(tree.this),
        "column": _column,
        "dot": lambda _self, _tree: _refuse("fields of computed values"),
        "literal": _literal,
        "null": lambda _self, _tree: literal(pa.scalar(None)),
        "boolean": lambda _self, tree: literal(pa.scalar(bool(tree.this))),
        "hexstring": lambda _self, tree: literal(pa.scalar(read_hex(tree.this))),
        "neg": _negative,
        "interval": _interval,
        "and": _and,
        "or": _or,
        "not": lambda self, tree: self.scope.negation(self.translate(tree.this)),
        "is": _is,
        "nullsafeeq": lambda self, tree: self.scope.same(*self._sides(tree)),
        "nullsafeneq": lambda self, tree: self.scope.negation(self.scope.same(*self._sides(tree))),
        "in": _in,
        "between": _between,
        "like": _like,
        "ilike": _like,
        "escape": _escaped,
        "regexplike": _regex,
        "regexpilike": _regex,
        "case": _case,
        "if": _if,
        "cast": _cast,
        "trycast": _cast,
        "anonymous": _anonymous,
    }


def _refuse(what: str) -> Node:
    raise InvalidArgument(f"{what} are not available")


def _refusal(tree: Any) -> str:
    from sqlglot import exp

    what = tree.name if tree.key == "anonymous" else tree.sql_name() if isinstance(tree, exp.Func) else tree.key
    if isinstance(tree, exp.AggFunc | exp.Window):
        return f"{what.upper()} looks at more than one row: an expression sees one row at a time"
    if tree.key in _QUERIES:
        return "subqueries are not available: an expression sees one row at a time"
    functions = f"; functions: {NAMES}" if isinstance(tree, exp.Func) else ""
    return f"{what.upper()} is not available{functions}"
