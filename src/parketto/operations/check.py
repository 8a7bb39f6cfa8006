"""Checking a dataset: its footers, or every page, against themselves and against what is expected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parketto.commit.identity import identity_of
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import DatasetNotFound, FooterError
from parketto.kernels.check import CheckedFooter, CheckedPages, footer_check_tasks, page_check_tasks
from parketto.kernels.work import Staging
from parketto.operations.place import Place
from parketto.rowgroups.damage import Problem
from parketto.rowgroups.schema import column_difference
from parketto.stats import ChangedFile, CheckReport, Damage, OtherSchema
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.snapshot import relative
from parketto.storage.store import FileEntry

_ROUNDS = 5  # other writers may replace files during a check; new ones are checked in another round


@dataclass(frozen=True, slots=True)
class Expected:
    """What a record says about a file; None where it does not say."""

    size_bytes: int | None = None
    fingerprint: str | None = None

    def difference(self, entry: FileEntry) -> str | None:
        """Why a file is not the recorded one, if it is not."""
        if self.size_bytes is not None and entry.size_bytes != self.size_bytes:
            return f"{entry.size_bytes} bytes instead of {self.size_bytes}"
        if self.fingerprint is not None and entry.fingerprint != self.fingerprint:
            return "it was replaced or rewritten"
        return None


def check(
    place: Place,
    partition_filter: PartitionFilter = None,
    progress: ProgressCallback | None = None,
    *,
    deep: bool = False,
) -> CheckReport:
    """Discover → check → report. Nothing is written.

    Args:
        place: The dataset.
        partition_filter: Which partitions to check.
        progress: Called with a `Progress` whenever a piece of the work is done.
        deep: Whether all pages are decoded.
    """
    place.engine.check_store(place.store)
    work = _Checking(place, progress, deep=deep)
    files = work.run(partition_filter, may_be_empty=bool(_expected(place)))
    found = {entry: work.footers[entry] for entry in files}
    pages = [result for entry in files for result in work.pages.get(entry, ())]
    damaged = [
        Damage(path=entry.path, row_group=problem.row_group, column=problem.column, reason=problem.reason)
        for entry in files
        for problem in work.problems(entry)
    ]
    against = _Record.of(place, files, partition_filter, _expected(place)).confirmed(place)
    return CheckReport(
        healthy=not (damaged or against.missing or against.changed),
        deep=deep,
        files_checked=len(files),
        rows=sum(footer.num_rows for footer in found.values()),
        row_groups=sum(len(footer.row_groups) for footer in found.values()),
        bytes=sum(entry.size_bytes for entry in files),
        columns_checked=sum(result.columns for result in pages),
        pages_checked=sum(result.pages for result in pages),
        damaged=damaged,
        missing=against.missing,
        changed=against.changed,
        unknown=against.unknown,
        other_schemas=_other_schemas(found),
        notes=work.notes,
    )


def _expected(place: Place) -> dict[str, Expected]:
    """The files that the log says are there, by path."""
    store, root, log = place.store, place.root, place.workspace.log
    identity = identity_of(store, root)
    found = place.workspace.read_log(lambda view: log.expected(view, identity))
    return {
        # Where files are published by copies, these have fingerprints of their own.
        f"{root}/{path}": Expected(file.size_bytes, file.fingerprint if store.atomic_move else None)
        for path, file in found.items()
    }


class _Checking:
    """Checks listed files, and those that replace them meanwhile."""

    def __init__(self, place: Place, progress: ProgressCallback | None, *, deep: bool) -> None:
        self._place, self._deep = place, deep
        self._context = Context(place.store, Staging(""), "check", progress)
        self.footers: dict[FileEntry, CheckedFooter] = {}
        self.pages: dict[FileEntry, list[CheckedPages]] = {}
        self.notes: list[str] = []

    def run(self, partition_filter: PartitionFilter, *, may_be_empty: bool) -> list[FileEntry]:
        """The files that were checked."""
        for _ in range(_ROUNDS):
            try:
                listed = self._place.listed(partition_filter)
            except DatasetNotFound:
                if not may_be_empty:
                    raise
                listed = []
            new = [entry for entry in listed if entry not in self.footers]
            self._check(new)
            # Files that were replaced meanwhile are listed anew.
            if all(entry in self.footers for entry in new):
                return listed
        checked = [entry for entry in listed if entry in self.footers]
        self.notes.append(
            f"{len(listed) - len(checked)} files were replaced or removed by other writers during the check, and "
            "are not part of it. Run it again"
        )
        return checked

    def problems(self, entry: FileEntry) -> list[Problem]:
        """All that is wrong with a file."""
        found = list(self.footers[entry].problems)
        for part in self.pages.get(entry, ()):
            # Parts of a file report what concerns the whole file each for itself.
            found += [problem for problem in part.problems if problem not in found]
        return found

    def _check(self, entries: Sequence[FileEntry]) -> None:
        context = replace(self._context, progress=None) if self._deep else self._context
        results = self._place.engine.run(footer_check_tasks(entries), context)
        found = zip(entries, (footer for result in results for footer in result), strict=True)
        footers = {entry: footer for entry, footer in found if footer is not None}
        self.footers |= footers
        if self._deep:
            self._decode({entry: footer for entry, footer in footers.items() if not footer.problems})

    def _decode(self, footers: Mapping[FileEntry, CheckedFooter]) -> None:
        tasks = page_check_tasks(footers.items())
        for task, results in zip(tasks, self._place.engine.run(tasks, self._context), strict=True):
            for part, result in zip(task.parts, results, strict=True):
                if result is None:
                    self.footers.pop(part.entry, None)
                else:
                    self.pages.setdefault(part.entry, []).append(result)


@dataclass(frozen=True)
class _Record:
    """How the files differ from those that a record expects."""

    missing: list[str]
    changed: list[ChangedFile]
    unknown: list[str]

    @classmethod
    def of(
        cls,
        place: Place,
        files: Sequence[FileEntry],
        partition_filter: PartitionFilter,
        expected: Mapping[str, Expected],
    ) -> _Record:
        matches = directory_matcher(partition_filter)
        wanted = {
            path: file for path, file in expected.items() if matches(relative(path, place.root).rpartition("/")[0])
        }
        there = {entry.path: entry for entry in files}
        changed = [
            ChangedFile(path=path, reason=reason)
            for path in sorted(wanted.keys() & there.keys())
            if (reason := wanted[path].difference(there[path])) is not None
        ]
        unknown = sorted(there.keys() - wanted.keys()) if expected else []
        return cls(sorted(wanted.keys() - there.keys()), changed, unknown)

    def confirmed(self, place: Place) -> _Record:
        """The same without what is not true any more: others may have committed during the check."""
        if not self.missing and not self.changed:
            return self
        expected = _expected(place)
        there = place.store.stat_many([*self.missing, *(file["path"] for file in self.changed)])
        return replace(
            self,
            missing=[path for path in self.missing if path in expected and path not in there],
            changed=[
                file
                for file in self.changed
                if (path := file["path"]) in expected and path in there and expected[path].difference(there[path])
            ],
        )


def _other_schemas(found: Mapping[FileEntry, CheckedFooter]) -> list[OtherSchema]:
    by_schema: defaultdict[bytes, list[str]] = defaultdict(list)
    for entry, footer in found.items():
        if footer.schema is not None:
            by_schema[footer.schema].append(entry.path)
    if not by_schema:
        return []
    common = max(by_schema, key=lambda schema: len(by_schema[schema]))
    others: defaultdict[str, list[str]] = defaultdict(list)
    for schema, paths in by_schema.items():
        try:
            difference = column_difference(common, schema)
        except FooterError:  # a damaged one is reported as such
            continue
        if difference is not None:
            others[difference] += paths
    return [OtherSchema(paths=sorted(paths), difference=difference) for difference, paths in others.items()]
