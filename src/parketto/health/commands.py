"""Commands that solve a problem, for a shell and in Python. Paths and names are quoted: they are data."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parketto.arguments import DEFAULT_TARGET_MB
from parketto.health.results import Remedy
from parketto.storage.hive import PartitionFilter, encode_segment


@dataclass(frozen=True)
class Commands:
    """The commands for one dataset."""

    path: str
    target_mb: float = DEFAULT_TARGET_MB
    #: The partitions that were examined.
    partition_filter: PartitionFilter = None

    def compact(self, effect: str, compression: str | None = None) -> Remedy:
        """Merge small files."""
        return self._remedy("compact", effect, {**_given(compression=compression), **self._scope})

    def optimize(self, columns: Sequence[str], effect: str) -> Remedy:
        """Cluster by columns."""
        return self._remedy("optimize", effect, {"columns": list(columns), **self._scope})

    def suggest(self, queries: Sequence[str], effect: str) -> Remedy:
        """Find clustering columns."""
        return self._remedy("suggest", effect, {"queries": list(queries), **self._scope})

    def repartition(self, columns: Sequence[str], effect: str) -> Remedy:
        """Change the partition columns."""
        return self._remedy("repartition", effect, {"partition_by": list(columns) or None})

    def unify_schema(self, effect: str, cast: Mapping[str, str] | None = None) -> Remedy:
        """Rewrite the files that differ."""
        return self._remedy("unify_schema", effect, _given(cast=cast))

    def check(self, effect: str) -> Remedy:
        """Find damage."""
        return self._remedy("check", effect, {"deep": True})

    def restore(self, to: int, effect: str) -> Remedy:
        """Go back to the state after a commit."""
        return self._remedy("restore", effect, {"to": to})

    def vacuum(self, effect: str) -> Remedy:
        """Remove retired files."""
        return self._remedy("vacuum", effect, {"dry_run": False})

    @property
    def _scope(self) -> dict[str, Any]:
        """The arguments of operations on partitions."""
        target: float | None = int(self.target_mb) if self.target_mb == int(self.target_mb) else self.target_mb
        target = None if target == DEFAULT_TARGET_MB else target
        return _given(target_mb_per_file=target, partition_filter=self.partition_filter)

    def _remedy(self, operation: str, effect: str, arguments: Mapping[str, Any]) -> Remedy:
        shell = ["parketto", operation.replace("_", "-"), self.path]
        for name, value in arguments.items():
            shell += _options(name, value)
        values = [f"{name}={value!r}" for name, value in arguments.items()]
        return Remedy(
            command=shlex.join(shell),
            python=f"Dataset({self.path!r}).{operation}({', '.join(values)})",
            effect=effect,
        )


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _options(name: str, value: Any) -> list[str]:
    """An argument as options of the command line."""
    option = f"--{name.replace('_', '-')}"
    match name, value:
        case "queries", _:
            return list(value)
        case "partition_filter", _:
            return [part for each in _partitions(value) for part in ("--partition", each)]
        case "partition_by", None:
            return ["--no-partitions"]
        case _, bool():
            return [option if value else f"--no-{name.replace('_', '-')}"]
        case _, list():
            return [option, ",".join(value)]
        case _, dict():
            return [part for key, each in value.items() for part in (option, f"{key}={each}")]
        case _, float():
            return [option, f"{value:g}"]
        case _:
            return [option, str(value)]


def _partitions(given: Any) -> list[str]:
    """A filter as partitions. Several columns need their order in paths; without it, all partitions are meant.

    >>> _partitions("day=1"), _partitions({"day": [1, 2]}), _partitions({"day": 1, "hour": 2})
    (['day=1'], ['day=1', 'day=2'], [])
    """
    if not isinstance(given, Mapping):
        return [given] if isinstance(given, str) else list(given)
    if len(given) > 1:
        return []
    ((column, value),) = given.items()
    values = list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else [value]
    return [encode_segment(column, each) for each in values]
