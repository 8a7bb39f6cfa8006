"""The options of `format("parketto")`: texts by names, as Spark passes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from parketto.dataset.dataset import Dataset
from parketto.errors import InvalidArgument, quoted

Value = TypeVar("Value")


def _text(text: str) -> str:
    return text


def _flag(text: str) -> bool:
    choices = {"true": True, "false": False}
    if text.lower() not in choices:
        raise ValueError("expected true or false")
    return choices[text.lower()]


def _names(text: str) -> Any:
    """Names separated by commas; or JSON, for names with commas and for expressions."""
    if text.strip().startswith(("[", "{")):
        return json.loads(text)
    return [name.strip() for name in text.split(",") if name.strip()]


def _mapping(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError('expected a JSON object such as {"key": "…"}')  # noqa: TRY004 - a bad value, not a bad type
    return found


def _positive(text: str) -> int:
    if (found := int(text)) < 1:
        raise ValueError("expected a number of at least 1")
    return found


def _start(text: str) -> str | int:
    if text in ("earliest", "latest"):
        return text
    try:
        return _positive(text)
    except ValueError:
        raise ValueError("expected 'earliest', 'latest' or the number of a commit") from None


#: How the options of a dataset, a write, a stream and a read are parsed.
DATASET: dict[str, Callable[[str], Any]] = {
    "storage_options": _mapping,
    "workspace": _text,
    "publish": _text,
    "timezone": _text,
    "history": _text,
    "retention": float,
}
WRITE: dict[str, Callable[[str], Any]] = {
    "overwrite_partitions": _flag,
    "replace_where": _text,
    "partition_by": _names,
    "partition_columns": _text,
    "sort_by": _names,
    "max_rows_per_file": int,
    "target_rows_per_file": int,
    "target_mb_per_file": float,
    "row_group_rows": int,
    "compression": _text,
    "naming": _text,
    "basename_template": _text,
    "schema": _text,
    "expect": _mapping,
    "on_violation": _text,
    "quarantine": _text,
}
#: Whether a stream merges the small files of its earlier micro-batches.
STREAM: dict[str, Callable[[str], Any]] = {"app_id": _text, "absorb": _flag}
READ: dict[str, Callable[[str], Any]] = {"where": _text, "columns": _names}
STREAM_READ: dict[str, Callable[[str], Any]] = {
    **READ,
    "starting_commit": _start,
    "on_change": _text,
    "max_commits_per_batch": _positive,
}
# Options of Spark itself.
_SPARK = ("path", "checkpointlocation", "queryname")


class SourceOptions:
    """The validated options of one reader or writer.

    Args:
        given: The options, as Spark passes them.
        known: How each is parsed, beside those of the dataset.
        what: What they belong to, for messages.
    """

    def __init__(self, given: Mapping[str, str], known: Mapping[str, Callable[[str], Any]], what: str) -> None:
        known = {**DATASET, **known}
        self._given = {name.lower(): value for name, value in given.items()}
        unknown = [name for name in self._given if name not in known and name not in _SPARK]
        if unknown:
            raise InvalidArgument(
                f"format('parketto') has no option {quoted(unknown)} for {what}; options: {quoted(sorted(known))}"
            )
        if not self._given.get("path"):
            raise InvalidArgument("format('parketto') needs a path: .load(path), .save(path) or .start(path)")
        self._values = {
            name: _parsed(name, text, known[name]) for name, text in self._given.items() if name in known
        }

    @property
    def path(self) -> str:
        """The path of the dataset."""
        return self._given["path"]

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint of a stream."""
        return self._given.get("checkpointlocation")

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an option."""
        return self._values.get(name, default)

    def among(self, names: Iterable[str]) -> dict[str, Any]:
        """The values of the given options among some."""
        return {name: self._values[name] for name in names if name in self._values}

    def dataset(self) -> Dataset:
        """The dataset. Its engine is PyArrow: these processes have no Spark session."""
        return Dataset(_plain(self.path), engine="pyarrow", **self.among(DATASET))


def _parsed(name: str, text: str, parse: Callable[[str], Value]) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidArgument(f"option {name!r} has the value {text!r}: {error}") from None


def _plain(path: str) -> str:
    """A path as fsspec writes it: Spark writes local ones as `file:/…`, and those of S3 also as `s3a://…`.

    >>> _plain("file:/data/events"), _plain("file:///data/events"), _plain("s3a://bucket/events")
    ('/data/events', '/data/events', 's3://bucket/events')
    """
    for prefix in ("file://", "file:"):
        if path.startswith(prefix):
            return path[len(prefix) :]
    return "s3://" + path.partition("://")[2] if path.startswith(("s3a://", "s3n://")) else path
