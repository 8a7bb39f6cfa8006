"""Names of new files, assigned at the last moment under the lock, so that writers never collide."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from parketto.errors import InvalidArgument, quoted

NamingScheme = Literal["uuid", "timestamp", "sequential"]
NAMING_SCHEMES = ("uuid", "timestamp", "sequential")
_DEFAULT_TEMPLATE = "part-{}.parquet"


@dataclass(frozen=True, slots=True)
class Naming:
    """How the files of a write are named.

    The names of one write sort in the order of its rows.

    >>> Naming("sequential", "data_{}.parquet").names(2, existing=["data_007.parquet", "other.parquet"])
    ['data_008.parquet', 'data_009.parquet']
    """

    scheme: NamingScheme = "uuid"
    template: str = _DEFAULT_TEMPLATE

    @classmethod
    def of(cls, scheme: str | None, template: str | None) -> Naming:
        """The validated naming: a template alone means sequential numbers, no argument means UUIDs."""
        chosen = scheme or ("uuid" if template is None else "sequential")
        if chosen not in NAMING_SCHEMES:
            raise InvalidArgument(f"unknown naming {scheme!r}; valid choices: {quoted(NAMING_SCHEMES)}")
        if template is None:
            return cls(chosen)  # type: ignore[arg-type]
        if template.count("{}") != 1 or not template.endswith(".parquet"):
            raise InvalidArgument(
                f"basename_template {template!r} must end in '.parquet' and have one '{{}}' for the number or id"
            )
        if "/" in template or template.startswith(("_", ".")):
            raise InvalidArgument(
                f"basename_template {template!r} must be a plain file name; names that begin with '_' or '.' are "
                "hidden from readers"
            )
        return cls(chosen, template)  # type: ignore[arg-type]

    def names(self, number: int, existing: Collection[str]) -> list[str]:
        """`number` new names for a directory that contains the existing ones."""
        taken = set(existing)
        chosen = []
        for each in self._candidates(number, existing):
            name = self.template.replace("{}", each)
            if name not in taken:
                chosen.append(name)
            if len(chosen) == number:
                break
        return chosen

    def _candidates(self, number: int, existing: Collection[str]) -> Iterator[str]:
        match self.scheme:
            case "uuid":
                return iter(sorted(uuid.uuid4().hex for _ in range(number)))
            case "timestamp":
                now = time.time_ns()
                return (_timestamp(now + step) for step in count())
            case "sequential":
                return (f"{position:03d}" for position in count(self._highest(existing) + 1))

    def _highest(self, existing: Collection[str]) -> int:
        before, _, after = self.template.partition("{}")
        pattern = re.compile(rf"{re.escape(before)}([0-9]+){re.escape(after)}")
        return max((int(found[1]) for name in existing if (found := pattern.fullmatch(name))), default=-1)


def _timestamp(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds)) + f"{rest:09d}"
