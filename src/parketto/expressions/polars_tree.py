"""Analysis of serialised Polars expressions: their columns, and whether they are evaluated row by row.

Polars' `is_row_separable` checks only the outermost step: it is true for `pl.col("a") > pl.col("a").mean()`, and
for steps that drop rows. So every step is looked up here, and unlisted ones are an error: an expression that
depends on other rows would depend on how files are split into batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_STEPS = frozenset(
    {
        *(
            "Abs",
            "Atan2",
            "Ceil",
            "Clip",
            "Coalesce",
            "Cut",
            "Degrees",
            "Exp",
            "FillNull",
            "Floor",
            "Log",
            "Log1p",
        ),
        *("Negate", "Radians", "Reinterpret", "Round", "RoundSF", "Sign", "Truncate", "AsStruct"),
        *("MaxHorizontal", "MeanHorizontal", "MinHorizontal", "SumHorizontal", "Replace", "ReplaceStrict"),
    }
)
# Function families of which only these functions are row-wise.
_SOME_OF = {
    "Boolean": frozenset(
        {
            *(
                "AllHorizontal",
                "AnyHorizontal",
                "IsBetween",
                "IsClose",
                "IsEmpty",
                "IsFinite",
                "IsIn",
                "IsInfinite",
            ),
            *("IsNan", "IsNotNan", "IsNotNull", "IsNull", "Not"),
        }
    ),
    "Bitwise": frozenset(
        {"CountOnes", "CountZeros", "LeadingOnes", "LeadingZeros", "TrailingOnes", "TrailingZeros"}
    ),
    "Categorical": frozenset({"EndsWith", "LenBytes", "LenChars", "Slice", "StartsWith"}),
    "Sql": frozenset({"IsIn"}),
}
# Function families that are row-wise, except for these functions.
_ALL_BUT = {
    "ArrayExpr": frozenset({"Explode", "Sample"}),
    "BinaryExpr": frozenset[str](),
    "ListExpr": frozenset({"Sample", "ToStruct"}),
    "Pow": frozenset[str](),
    "StringExpr": frozenset({"ConcatVertical", "JsonDecode", "ToDecimal"}),
    "StructExpr": frozenset[str](),
    "TemporalExpr": frozenset[str](),
    "Trigonometry": frozenset[str](),
}
#: Inputs, by position, that are sets of values: a column there would mean all of its rows.
_SETS = {"IsIn": (1,), "Replace": (1, 2), "ReplaceStrict": (1, 2)}


def tagged(tree: Any) -> tuple[str, Any]:
    """The kind of a step, and its body.

    >>> tagged({"Column": "a"}), tagged("Len")
    (('Column', 'a'), ('Len', None))
    """
    if isinstance(tree, dict) and len(tree) == 1:
        return next(iter(tree.items()))
    return (tree, None) if isinstance(tree, str) else ("", tree)


def function_name(function: Any) -> tuple[str, str, Any]:
    """The family, the name and the options of a function.

    >>> function_name({"Boolean": {"IsIn": {"nulls_equal": False}}}), function_name("Abs")
    (('Boolean', 'IsIn', {'nulls_equal': False}), ('', 'Abs', None))
    """
    outer, inner = tagged(function)
    if outer in _SOME_OF or outer in _ALL_BUT:
        return (outer, *tagged(inner))
    return "", outer, inner


def unnamed(tree: Any) -> Any:
    """The step without aliases."""
    kind, body = tagged(tree)
    while kind in ("Alias", "KeepName", "RenameAlias"):
        tree = body[0] if kind == "Alias" else body["expr"] if kind == "RenameAlias" else body
        kind, body = tagged(tree)
    return tree


def columns_of(tree: Any) -> Iterator[str]:
    """The columns in a tree, with repetitions."""
    kind, body = tagged(tree)
    if kind == "Column" and isinstance(body, str):
        yield body
    else:
        for part in _parts(kind, body):
            yield from columns_of(part)


def not_row_wise(tree: Any) -> Any:
    """The innermost step that is not known to be row-wise; None if there is none."""
    kind, body = tagged(tree)
    for part in _parts(kind, body):
        if (found := not_row_wise(part)) is not None:
            return found
    return None if _is_row_wise(kind, body) else tree


def _parts(kind: str, body: Any) -> list[Any]:
    match kind:
        case "Alias" | "KeepName" | "RenameAlias":
            return [unnamed({kind: body})]
        case "Cast":
            return [body["expr"]]
        case "BinaryExpr":
            return [body["left"], body["right"]]
        case "Ternary":
            return [body["predicate"], body["truthy"], body["falsy"]]
        case "Function":
            _, name, _ = function_name(body["function"])
            sets = _SETS.get(name, ())
            return [part for at, part in enumerate(body["input"]) if at not in sets or not _is_literal(part)]
        case _:
            return []


def _is_row_wise(kind: str, body: Any) -> bool:
    if kind == "Literal":
        # A series is not a single value.
        return tagged(body)[0] not in ("Series", "Range")
    if kind == "Cast":
        # The codes of categories depend on their order of appearance.
        return "Categorical" not in str(body["dtype"])
    if kind != "Function":
        return kind in ("Column", "Alias", "KeepName", "RenameAlias", "BinaryExpr", "Ternary")
    family, name, options = function_name(body["function"])
    if any(at < len(body["input"]) and not _is_constant(body["input"][at]) for at in _SETS.get(name, ())):
        return False
    if name == "Strptime" and options[1]["format"] is None:
        return False  # the format is inferred from the first rows
    if family in _SOME_OF:
        return name in _SOME_OF[family]
    return name not in _ALL_BUT[family] if family else name in _STEPS


def _is_literal(tree: Any) -> bool:
    return tagged(unnamed(tree))[0] == "Literal"


def _is_constant(tree: Any) -> bool:
    return _is_literal(tree) or not any(True for _ in columns_of(tree))
