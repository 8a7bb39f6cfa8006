"""Spark Columns as conditions and new values: their expression trees are translated to Parketto's SQL.

The printed form of a Column does not quote everything, so the tree is used: JVM objects in classic Spark, Python
objects in Spark Connect. PySpark is not imported, and no Spark job runs.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.expressions.conditions import Formula, sql_formula
from parketto.expressions.spark_sql import to_sql
from parketto.expressions.spark_tree import Call, Case, Convert, Name, Node, Text, Value
from parketto.expressions.sql import SQL, sql
from parketto.expressions.time_zones import Clock, is_instant

if TYPE_CHECKING:
    from pyspark.sql import Column

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - for timestamps without a zone
_ONE_ROW = "an expression sees one row at a time; select the rows with Spark and merge them instead"
_REFUSED = {
    "Window": f"window functions are not available: {_ONE_ROW}",
    "WindowExpression": f"window functions are not available: {_ONE_ROW}",
    "SubqueryExpression": f"subqueries are not available: {_ONE_ROW}",
    "LazyExpression": f"subqueries are not available: {_ONE_ROW}",
    "UnresolvedStar": "'*' is not a value; name the columns",
    "UnresolvedRegex": "name columns one by one, not by a pattern",
    "SortOrder": "a sort order is not a value",
}


def is_spark(given: object) -> TypeGuard[Column]:
    """Whether the object is a Spark Column, without importing PySpark."""
    loaded = sys.modules.get("pyspark.sql")
    return loaded is not None and isinstance(given, loaded.Column)


def spark_formula(
    column: Column, schema: pa.Schema, clock: Clock | None = None, target: pa.DataType | None = None
) -> Formula:
    """A formula from a Spark Column, checked against the columns of a dataset.

    Args:
        column: A Column of classic Spark or of Spark Connect.
        schema: The columns of the dataset.
        clock: The time zone of the operation; if none was requested, that of the active session applies.
        target: The type of the column to assign to.

    Raises:
        InvalidArgument: If it uses a feature that Parketto's SQL does not have; names it.
    """
    text = spark_sql(column)
    clock = Clock() if clock is None else clock
    if clock.stated is None:
        clock = Clock(lambda: _session_zone("_expr" in vars(column)), clock.now)
    formula = sql_formula(text, schema, clock)
    if target is None or is_instant(target) == is_instant(formula.type):
        return formula
    if pat.is_timestamp(target) and is_instant(formula.type):
        # As in Spark, when it stores an instant in a column without a zone.
        return sql_formula(f"CAST({text} AS TIMESTAMP_NTZ)", schema, clock)
    return replace(formula, zone=clock.zone)


def spark_sql(column: Column) -> SQL:
    """A Spark Column as SQL for `parketto.sql`."""
    # Columns resolve any attribute name as a field, so use their instance attributes.
    held: dict[str, Any] = vars(column)
    try:
        return sql(to_sql(_of_connect(held["_expr"]) if "_expr" in held else _of_classic(held["_jc"].node())))
    except RecursionError as error:
        raise InvalidArgument("the Spark Column is nested too deeply") from error


def _session_zone(connect: bool) -> str:
    module = sys.modules.get("pyspark.sql.connect.session" if connect else "pyspark.sql.session")
    default = "_default_session" if connect else "_instantiatedSession"
    session = module and (module.SparkSession.getActiveSession() or getattr(module.SparkSession, default, None))
    if session is None:
        raise InvalidArgument(
            "timestamps in a Spark Column use the time zone of a Spark session, and no session is active; pass a "
            "time zone: Dataset(..., timezone='UTC')"
        )
    return str(session.conf.get("spark.sql.session.timeZone"))


def _refusal(kind: str, text: str) -> InvalidArgument:
    reason = _REFUSED.get(kind, f"{kind} is not available; use the functions of parketto.sql")
    return InvalidArgument(f"Spark Column {text}: {reason}")


def _udf(name: object) -> InvalidArgument:
    return InvalidArgument(
        f"the user-defined function {str(name)!r} is not available: files are rewritten without Spark's own "
        "functions; use the functions of parketto.sql, or select the rows with Spark and merge them"
    )


# Classic Spark: JVM objects.


def _of_classic(node: Any) -> Node:
    kind = str(node.getClass().getSimpleName())
    match kind:
        case "UnresolvedAttribute":
            return Name(tuple(_listed(node.nameParts())))
        case "Literal":
            return Value(_java_value(node.value(), node))
        case "UnresolvedFunction":
            return Call(str(node.functionName()), tuple(map(_of_classic, _listed(node.arguments()))))
        case "Alias":
            return _of_classic(node.child())
        case "Cast":
            mode = node.evalMode()
            attempt = bool(mode.isDefined()) and "Try" in mode.get().toString()
            return Convert(_of_classic(node.child()), str(node.dataType().sql()), attempt)
        case "CaseWhenOtherwise":
            branches = [(_of_classic(pair._1()), _of_classic(pair._2())) for pair in _listed(node.branches())]
            otherwise = node.otherwise()
            return Case(tuple(branches), _of_classic(otherwise.get()) if otherwise.isDefined() else Value(None))
        case "UnresolvedExtractValue":
            return _field_of(_of_classic(node.child()), _of_classic(node.extraction()), str(node.sql()))
        case "SqlExpression":
            return Text(str(node.expression()))
        case "ExpressionColumnNode":
            return _of_catalyst(node.expression())
        case _:
            raise _refusal(kind, str(node.sql()))


def _of_catalyst(expression: Any) -> Node:
    """A column that a DataFrame has already resolved (`df.price`); anything else is an error."""
    kind = str(expression.getClass().getSimpleName())
    match kind:
        case "AttributeReference":
            return Name((str(expression.name()),))
        case "Alias":
            return _of_catalyst(expression.child())
        case "GetStructField":
            child = _of_catalyst(expression.child())
            return _field_of(child, Value(str(expression.extractFieldName())), str(expression.sql()))
        case "PythonUDF" | "ScalaUDF" | "PythonUDAF":
            raise _udf(expression.name() if kind.startswith("Python") else expression.toString())
        case _:
            raise _refusal(kind, str(expression.sql()))


def _listed(sequence: Any) -> list[Any]:
    elements = sequence.iterator()  # Scala's lists take longer to find later elements by position
    return [elements.next() for _ in range(sequence.length())]


def _java_value(value: Any, node: Any) -> Any:
    if not hasattr(value, "getClass"):
        return bytes(value) if isinstance(value, bytearray) else value
    read = _JAVA_VALUES.get(str(value.getClass().getName()))
    if read is None:
        raise InvalidArgument(f"a literal {node.sql()} of {value.getClass().getSimpleName()} is not available")
    return read(value)


def _instant(seconds: int, microseconds: int) -> dt.datetime:
    return (_EPOCH + dt.timedelta(seconds=seconds, microseconds=microseconds)).replace(tzinfo=dt.UTC)


_JAVA_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "java.sql.Date": lambda value: dt.date.fromisoformat(value.toString()),
    "java.sql.Timestamp": lambda value: _instant(value.getTime() // 1000, value.getNanos() // 1000),
    "java.time.Duration": lambda value: dt.timedelta(
        seconds=value.getSeconds(), microseconds=value.getNano() // 1000
    ),
    "java.time.Instant": lambda value: _instant(value.getEpochSecond(), value.getNano() // 1000),
    "java.time.LocalDate": lambda value: dt.date.fromisoformat(value.toString()),
    "java.time.LocalDateTime": lambda value: dt.datetime.fromisoformat(value.toString()),
    "java.time.LocalTime": lambda value: dt.time.fromisoformat(value.toString()),
}


# Spark Connect: Python objects.


def _of_connect(node: Any) -> Node:
    kind = type(node).__name__
    match kind:
        case "ColumnReference":
            return Name(_name_parts(node._unparsed_identifier))
        case "LiteralExpression":
            return Value(_connect_value(node))
        case "UnresolvedFunction" | "CallFunction":
            return Call(node._name, tuple(map(_of_connect, node._args)))
        case "ColumnAlias":
            return _of_connect(node._child)
        case "CastExpression":
            given = node._data_type
            text = given if isinstance(given, str) else given.simpleString()
            return Convert(_of_connect(node._expr), text, node._eval_mode == "try")
        case "CaseWhen":
            branches = tuple((_of_connect(condition), _of_connect(value)) for condition, value in node._branches)
            otherwise = Value(None) if node._else_value is None else _of_connect(node._else_value)
            return Case(branches, otherwise)
        case "UnresolvedExtractValue":
            return _field_of(_of_connect(node._child), _of_connect(node._extraction), repr(node))
        case "SQLExpression":
            return Text(node._expr)
        case "CommonInlineUserDefinedFunction":
            raise _udf(node._function_name)
        case _:
            raise _refusal(kind, repr(node))


def _name_parts(text: str) -> tuple[str, ...]:
    """The parts of a name as Spark parses it.

    >>> _name_parts("a.`b.c`"), _name_parts("`tick```")
    (('a', 'b.c'), ('tick`',))
    """
    parts = re.findall(r"(?:^|\.)(?:`((?:[^`]|``)*)`|([^.`]*))", text)
    return tuple(quoted.replace("``", "`") or bare for quoted, bare in parts)


def _connect_value(node: Any) -> Any:
    kind, value = type(node._dataType).__name__, node._value
    if kind == "ArrayType":
        raise InvalidArgument(f"a literal {node!r} of {kind} is not available")
    if value is None:
        return None
    match kind:
        case "TimestampType":
            return _instant(0, value)
        case "TimestampNTZType":
            return _EPOCH + dt.timedelta(microseconds=value)
        case "DateType":
            return (_EPOCH + dt.timedelta(days=value)).date()
        case "DayTimeIntervalType":
            return dt.timedelta(microseconds=value)
        case "TimeType":
            return (_EPOCH + dt.timedelta(microseconds=value // 1000)).time()
        case _:
            return bytes(value) if isinstance(value, bytearray) else value


def _field_of(child: Node, field: Node, text: str) -> Node:
    if isinstance(child, Name) and isinstance(field, Value) and isinstance(field.value, str):
        return Name((*child.parts, field.value))
    raise InvalidArgument(f"Spark Column {text}: only named fields of a column are available, not elements")
