"""Options and arguments that several commands share, and the values that are written as `name=value`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from parketto.cli.exits import UsageProblem

DatasetPath = Annotated[str, typer.Argument(metavar="PATH", help="The dataset: a folder, or a URL.")]
EngineName = Literal["spark", "duckdb", "pyarrow"]
Codec = Literal["snappy", "gzip", "lz4", "zstd", "brotli", "none"]
SourceFormat = Literal["csv", "json", "parquet", "arrow"]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def _partitions(given: list[str] | None) -> list[str] | None:
    """Refuse a value of --partition that is only a column or a value."""
    for each in given or ():
        if not each.partition("=")[0] or "=" not in each:
            raise typer.BadParameter(f"{each!r} is not of the form COLUMN=VALUE, such as day=2026-11-18")
    return given


Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition", metavar="COLUMN=VALUE", help="Only these partitions. Repeatable.", callback=_partitions
    ),
]
TargetMb = Annotated[
    float | None,
    typer.Option("--target-mb-per-file", "--target-mb", help="The file size to aim for.  [default: 128]"),
]
TargetRows = Annotated[
    int | None, typer.Option("--target-rows-per-file", "--target-rows", help="At most this many rows per file.")
]
Compression = Annotated[Codec | None, typer.Option("--compression", help="The codec of new files.")]
NoPack = Annotated[
    bool, typer.Option("--no-pack", help="Write one file for each one that is rewritten, however small.")
]
Backup = Annotated[
    str | None, typer.Option("--backup", metavar="DIR", help="Keep the replaced files here, for restore.")
]
CommitId = Annotated[
    str | None,
    typer.Option("--commit-id", metavar="APP:N", help="Do nothing if the log has this id: safe to repeat."),
]
Keys = Annotated[list[str], typer.Option("--keys", metavar="COLUMNS", help="The columns that identify a row.")]
Expect = Annotated[
    list[str] | None,
    typer.Option("--expect", metavar="CONDITION", help="A condition that all rows must meet. Repeatable."),
]
OnViolationName = Literal["fail", "drop", "quarantine"]
OnViolation = Annotated[
    OnViolationName, typer.Option("--on-violation", help="What happens to rows that break an expectation.")
]
Quarantine = Annotated[
    str | None, typer.Option("--quarantine", metavar="PATH", help="The dataset for these rows.")
]
PartitionBy = Annotated[
    list[str] | None, typer.Option("--partition-by", metavar="COLUMNS", help="The partition columns.")
]
Format = Annotated[
    SourceFormat | None, typer.Option("--format", help="The format of the input; by default by suffix.")
]


def names(given: Sequence[str] | None) -> list[str] | None:
    """Columns, given one by one or with commas; None if there are none.

    >>> names(["user,day", "kind"]), names(None)
    (['user', 'day', 'kind'], None)
    """
    found = [name.strip() for each in given or () for name in each.split(",")]
    return [name for name in found if name] or None


def required_names(option: str, given: Sequence[str] | None) -> list[str]:
    """The same, of an option that needs at least one."""
    found = names(given)
    if found is None:
        raise UsageProblem(f"{option} names no column; pass for example {option} id, or {option} id,day")
    return found


def pairs(option: str, given: Sequence[str] | None, example: str) -> dict[str, str]:
    """The `name=value` texts of an option as a mapping.

    >>> pairs("--set", ["price=price * 2", "note='a=b'"], "price=0")
    {'price': 'price * 2', 'note': "'a=b'"}
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, separator, value = text.partition("=")
        if not (separator and name.strip() and value.strip()):
            raise UsageProblem(f"{option} {text!r} is not of the form name=value, such as {option} {example!r}")
        if name.strip() in found:
            raise UsageProblem(f"{option} names {name.strip()!r} twice")
        found[name.strip()] = value.strip()
    return found


def storage_options(given: Sequence[str] | None) -> dict[str, Any]:
    """Options of the filesystem. Values are texts, except true, false, null, and JSON objects and lists.

    >>> storage_options(["anon=true", "key=123", 'client_kwargs={"region_name": "eu-central-1"}'])
    {'anon': True, 'key': '123', 'client_kwargs': {'region_name': 'eu-central-1'}}
    """
    return {
        name: _option_value(name, value)
        for name, value in pairs("--storage-option", given, "endpoint_url=http://localhost:9000").items()
    }


def _option_value(name: str, value: str) -> Any:
    if value not in ("true", "false", "null") and not value.startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise UsageProblem(f"--storage-option {name} is not valid JSON: {error}") from None


def state(given: str | None) -> int | str | None:
    """A state of a dataset: the number of a commit, or a time as ISO text.

    >>> state("7"), state("2026-11-18T12:00"), state(None)
    (7, '2026-11-18T12:00', None)
    """
    return int(given) if given is not None and given.isdecimal() else given


def duration(option: str, given: str | None) -> float | None:
    """A time span in seconds.

    >>> duration("--older-than", "90s"), duration("--older-than", "7d"), duration("--older-than", "0")
    (90.0, 604800.0, 0.0)
    """
    if given is None:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)", given.strip())
    if found is None:
        raise UsageProblem(f"{option} {given!r} is not a time span such as 90s, 15m, 12h, 7d or 4w")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}[found[2]]


def conditions(given: Sequence[str] | None) -> dict[str, str] | None:
    """Expectations by name: a condition is its own name."""
    return {text: text for text in given} if given else None
