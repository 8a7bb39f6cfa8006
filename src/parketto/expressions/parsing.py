"""Parsing of SQL: the dialect, single expressions, and their literals."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from parketto.errors import InvalidArgument
from parketto.expressions.intervals import check_interval_text
from parketto.expressions.literal_lists import attach_lists, cut_lists


@functools.cache
def _dialect() -> Any:
    # Imported lazily: the parser takes longer to load than the rest of Parketto.
    import sqlglot

    class Language(sqlglot.Dialect):
        class Tokenizer(sqlglot.Tokenizer):
            IDENTIFIERS = ['"', "`"]  # noqa: RUF012 - how sqlglot is configured
            QUOTES = ["'"]  # noqa: RUF012
            STRING_ESCAPES = ["'"]  # noqa: RUF012
            HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012

    return Language()


def parsed(text: str) -> Any:
    """The syntax tree of a single expression, or a one-line error with the position.

    A long list of literals after IN is the argument `literals` of its node, a `LiteralList`.
    """
    if not text.strip():
        raise InvalidArgument("the expression is empty")
    short, lists = cut_lists(text)
    if lists:
        try:
            tree = _parsed(short)
        except InvalidArgument:
            return _parsed(text)  # the error is about the text as given
        if attach_lists(tree, lists):
            return tree
    return _parsed(text)


def _parsed(text: str) -> Any:
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    dialect = _dialect()
    try:
        tokens = dialect.tokenize(text)
        _check_statement(tokens)
        _check_intervals(tokens)
        statements = dialect.parser().parse_into(exp.Condition, tokens, text)
    except ParseError as error:
        raise InvalidArgument(_syntax_error(error)) from None
    except SqlglotError as error:
        raise InvalidArgument(f"not valid SQL: {' '.join(str(error).split())}") from None
    if len(statements) != 1 or statements[0] is None:
        raise InvalidArgument("expected exactly one expression")
    return statements[0]


def _check_statement(tokens: Sequence[Any]) -> None:
    from sqlglot import TokenType

    if tokens and tokens[0].token_type in (TokenType.SELECT, TokenType.WITH, TokenType.WHERE):
        raise InvalidArgument(
            f"expected an expression such as id = 7, not a whole SQL statement: it starts with {tokens[0].text}"
        )


def _check_intervals(tokens: Sequence[Any]) -> None:
    from sqlglot import TokenType

    for token, following in itertools.pairwise(tokens):
        if token.token_type == TokenType.INTERVAL and following.token_type == TokenType.STRING:
            check_interval_text(following.text)


def _syntax_error(error: Any) -> str:
    first = error.errors[0] if error.errors else {}
    near = f"{first.get('highlight', '')}{first.get('end_context', '')}".strip()[:40]
    if first.get("start_context", "").rstrip().endswith(";"):
        return f"only one expression is allowed, and {near!r} is another statement"
    return f"not valid SQL near {near!r} (line {first.get('line', 1)}, column {first.get('col', 1)})"


def number(text: str) -> pa.Scalar:
    """A number literal as in SQL: an integer, a decimal or, with an exponent, a float.

    >>> number("1.10").type, number("1e3").as_py()
    (Decimal128Type(decimal128(3, 2)), 1000.0)
    """
    if sum(letter.isdigit() for letter in text) > 76 and "e" not in text.lower():
        raise InvalidArgument(f"{text[:20]}... has more than 76 digits; write it with an exponent")
    if re.fullmatch(r"-?\d+", text):
        whole = int(text)
        if -(2**63) <= whole < 2**63:
            return pa.scalar(whole)
        return pa.scalar(whole, pa.uint64()) if 0 <= whole < 2**64 else pa.scalar(Decimal(text))
    if re.fullmatch(r"-?(\d+\.\d*|\.\d+)", text):
        return pa.scalar(Decimal(text))
    return pa.scalar(float(text))


def read_hex(text: str) -> bytes:
    """The bytes of a hexadecimal literal."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgument(f"X'{text}' is not hexadecimal") from None


def like_pattern(pattern: str, escape: str) -> str:
    """The pattern with backslashes as escapes, as Arrow expects."""
    if escape == "\\":
        return pattern
    parts = re.findall(re.escape(escape) + r".|.", pattern, re.S)
    return "".join("\\" + part[1] if len(part) == 2 else "\\\\" if part == "\\" else part for part in parts)
