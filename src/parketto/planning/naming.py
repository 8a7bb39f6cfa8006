"""Names of new files. Every name is unique, so that writers never collide, and sorts in the order of the rows."""

from __future__ import annotations

import os
import posixpath
import re
import secrets
import threading
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from parketto.errors import InvalidArgument, quoted
from parketto.runtime.staging import StagedFile

NamingScheme = Literal["uuid", "timestamp", "sequential"]
NAMING_SCHEMES = ("uuid", "timestamp", "sequential")
_DEFAULT_TEMPLATE = "part-{}.parquet"
_MAX_NAME_BYTES = 255  # the limit of Linux filesystems
# What `in_place` has appended to the name of a file that was replaced, or a whole name without one.
_SUFFIX = re.compile(r"(?:^|-)(?:compact|optimized|delete|update|merge)-[0-9a-f]{32}-[0-9]{5,}(?=$|-)")

_id_lock = threading.Lock()
_last_tick = 0


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
                return (time_ordered_id() for _ in range(number))
            case "timestamp":
                now = time.time_ns()
                return (_timestamp(now + step) for step in count())
            case "sequential":
                return (f"{position:03d}" for position in count(self._highest(existing) + 1))

    def _highest(self, existing: Collection[str]) -> int:
        before, _, after = self.template.partition("{}")
        pattern = re.compile(rf"{re.escape(before)}([0-9]+){re.escape(after)}")
        return max((int(found[1]) for name in existing if (found := pattern.fullmatch(name))), default=-1)


@dataclass(frozen=True, slots=True)
class Replacement:
    """The path of a replaced file (of several, the first), and the new files in the order of their rows."""

    path: str
    staged: Sequence[StagedFile]


def in_place(
    prefix: str, replacements: Iterable[Replacement], untouched: Iterable[str], *, short: bool = False
) -> list[StagedFile]:
    """The staged files under names that sort where the files sorted that they replace.

    A name begins with that of the replaced file, without what earlier calls have appended. A prefix, an id and a
    number follow. More of the old name is kept where the order needs it. If that is too long, the new file sorts
    elsewhere.

    Args:
        prefix: What has replaced the files, such as `compact`.
        replacements: The new files, in the directories of the files that they replace.
        untouched: The paths of the files that stay.
        short: Leave the name of the replaced file out, where the order does not need it.
    """
    names: defaultdict[str, list[str]] = defaultdict(list)
    for path in untouched:
        directory, name = posixpath.split(path)
        names[directory].append(name)
    for each in names.values():
        each.sort()
    named: list[StagedFile] = []
    previous: dict[str, str] = {}
    for replacement in sorted(replacements, key=lambda each: each.path):
        directory, replaced = posixpath.split(replacement.path)
        stay = names[directory]
        at = bisect(stay, replaced)
        low = max(stay[at - 1] if at else "", previous.get(directory, ""))
        stem = _stem_between(prefix, replaced, low, stay[at] if at < len(stay) else None, short=short)
        chosen = [_numbered(stem, number) for number in range(len(replacement.staged))]
        named += [
            StagedFile(file.path, f"{directory}/{name}")
            for file, name in zip(replacement.staged, chosen, strict=True)
        ]
        if chosen and low < chosen[-1]:
            previous[directory] = chosen[-1]
    return named


def appended(staged: Iterable[StagedFile]) -> list[StagedFile]:
    """The staged files under default names: they sort after earlier ones."""
    return [
        StagedFile(file.path, f"{posixpath.dirname(file.destination)}/{name}")
        for file in staged
        for name in Naming().names(1, ())
    ]


def _stem_between(prefix: str, replaced: str, low: str, high: str | None, *, short: bool) -> str:
    """The stem of new names between two others; any unique stem if there is none."""
    new = f"{prefix}-{time_ordered_id()}"
    for kept in _kept_names(replaced, short=short):
        stem = _joined(kept, new)
        if low < _numbered(stem, 0) and (high is None or _numbered(stem, 99_999) < high):
            return stem
    return new


def _kept_names(replaced: str, *, short: bool) -> Iterator[str]:
    """How much of the name of a replaced file can be kept, the least first."""
    stem = replaced.removesuffix(".parquet")
    if short:
        yield ""
    yield from (stem[: found.start()] for found in _SUFFIX.finditer(stem) if found.start())
    yield stem
    yield replaced


def _joined(kept: str, new: str) -> str:
    """A stem that begins with an old name, cut off if it is too long for a file."""
    while kept:
        stem = f"{kept}-{new}"
        if len(os.fsencode(_numbered(stem, 0))) <= _MAX_NAME_BYTES:
            return stem
        kept = kept[:-1]
    return new


def _numbered(stem: str, number: int) -> str:
    return f"{stem}-{number:05d}.parquet"


def time_ordered_id() -> str:
    """A unique id of 32 hexadecimal digits (UUID version 7). Ids sort by time, those of one process strictly."""
    global _last_tick
    with _id_lock:
        # 48 bits of milliseconds and 12 bits of their fraction
        _last_tick = tick = max(_last_tick + 1, time.time_ns() * 4096 // 1_000_000)
    milliseconds, fraction = divmod(tick, 4096)
    return f"{milliseconds:012x}7{fraction:03x}{secrets.randbits(62) | 1 << 63:016x}"


def _timestamp(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds)) + f"{rest:09d}"
