"""Commands that solve a problem, for a shell and in Python. Paths and names are quoted: they are data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parketto.arguments import DEFAULT_TARGET_MB
from parketto.health.results import Remedy


@dataclass(frozen=True)
class Commands:
    """The commands for one dataset."""

    path: str
    target_mb: float = DEFAULT_TARGET_MB

    def compact(self, effect: str, compression: str | None = None) -> Remedy:
        """Merge small files."""
        return self._remedy("compact", effect, {**self._target, **_given(compression=compression)})

    def optimize(self, columns: Sequence[str], effect: str) -> Remedy:
        """Cluster by columns."""
        return self._remedy("optimize", effect, {"columns": list(columns), **self._target})

    def suggest(self, queries: Sequence[str], effect: str) -> Remedy:
        """Find clustering columns."""
        return self._remedy("suggest", effect, {"queries": list(queries)})

    def repartition(self, columns: Sequence[str], effect: str) -> Remedy:
        """Change the partition columns."""
        return self._remedy("repartition", effect, {"partition_by": list(columns) or None})

    def unify_schema(self, effect: str, cast: Mapping[str, str] | None = None) -> Remedy:
        """Rewrite the files that differ."""
        return self._remedy("unify_schema", effect, _given(cast=cast))

    def check(self, effect: str) -> Remedy:
        """Find damage."""
        return self._remedy("check", effect, {"deep": True})

    def vacuum(self, effect: str) -> Remedy:
        """Remove retired files."""
        return self._remedy("vacuum", effect, {"dry_run": False})

    @property
    def _target(self) -> dict[str, Any]:
        return _given(target_mb_per_file=None if self.target_mb == DEFAULT_TARGET_MB else self.target_mb)

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
    if name == "queries":
        return list(value)  # these are arguments
    if name == "partition_by" and value is None:
        return ["--no-partitions"]
    option = f"--{name.replace('_', '-')}"
    match value:
        case None:
            return []
        case bool():
            return [option if value else f"--no-{name.replace('_', '-')}"]
        case list():
            return [option, ",".join(value)]
        case dict():
            return [part for key, each in value.items() for part in (option, f"{key}={each}")]
        case float():
            return [option, f"{value:g}"]
        case _:
            return [option, str(value)]
