"""Replays: operations whose `commit_id` is in the log already."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from parketto.commit.record import to_json_value
from parketto.commit.request import Request
from parketto.display import shortened
from parketto.errors import InvalidArgument, StreamStopped

# The recorded arguments that say which rows change, and how. Others may differ in a replay, such as the codec.
_DESCRIPTION = (
    "where",
    "values",
    "purge",
    "key_columns",
    "strategy",
    "update_columns",
    "update_when",
    "delete_when",
    "insert_when",
    "within",
    "replace_where",
    "order_by",
    "sequence_by",
    "scd",
    "partition_filter",
)


def replayed(result: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of an operation, with the number of the earlier commit that did its work."""
    statistics = result if isinstance(result, Mapping) else dataclasses.asdict(result)
    return {**statistics, "repeated_commit": entry["number"]}


def check_same_request(request: Request, entry: Mapping[str, Any], root: str) -> None:
    """Refuse a commit_id that another request has used: its work would be reported, but not done.

    Rows and keys are not compared, because the log does not have them. Batches of a stream are recognised by their
    numbers alone: the program may have been changed since the batch was committed.
    """
    if request.ordered:
        return
    known, given = (
        _described(entry["operation"], entry["arguments"]),
        _described(request.operation, request.arguments),
    )
    if names := [name for name in ("operation", *_DESCRIPTION) if _text(known, name) != _text(given, name)]:
        differences = "; ".join(
            f"{name} was {shortened(known.get(name))} and is now {shortened(given.get(name))}" for name in names
        )
        raise InvalidArgument(
            f"commit_id {request.commit_id!r} belongs to commit {entry['number']} of {root!r}, which was another "
            f"request: {differences}. Nothing was changed; pass another commit_id, or repeat the "
            "request as it was"
        )


def check_same_batch(request: Request, offsets: Any, entry: Mapping[str, Any] | None, root: str) -> None:
    """Refuse a micro-batch whose number was committed with other rows of its sources."""
    committed = offsets if entry is None else entry["arguments"].get("source_offsets", offsets)
    if committed != offsets:
        raise StreamStopped(
            f"micro-batch {request.commit_id!r} of a stream to {root!r} was committed with other offsets of its "
            "sources: an older copy of its checkpoint was restored, and the sources divide their rows "
            "differently now. Rows would be lost. Nothing was changed; start the stream with a new checkpoint "
            "(and another app_id, if it has one), and remove rows that are there twice by deduplicate()"
        )


def _described(operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: to_json_value(arguments[name]) for name in _DESCRIPTION if arguments.get(name) is not None}
    # The text of a Python object may contain its address, which differs in every process.
    return {"operation": operation, **{name: each for name, each in found.items() if " at 0x" not in str(each)}}


def _text(described: Mapping[str, Any], name: str) -> str:
    """An argument as text: NaN does not equal itself. A filter may be a set, in another order in every process."""
    value = described.get(name)
    if name == "partition_filter" and isinstance(value, Mapping):
        value = {column: _sorted(each) for column, each in value.items()}
    return json.dumps(_sorted(value) if name == "partition_filter" else value, sort_keys=True)


def _sorted(value: Any) -> Any:
    return sorted(value, key=json.dumps) if isinstance(value, list) else value
