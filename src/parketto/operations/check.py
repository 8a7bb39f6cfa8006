"""Check a dataset: validate its footers, or decode every page, and compare its files with the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parketto.commit.identity import identity_of
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import DatasetNotFound, FooterError
from parketto.operations.context import DatasetContext
from parketto.parquet.schema import column_difference
from parketto.parquet.structure import Problem
from parketto.results import ChangedFile, CheckReport, Damage, OtherSchema
from parketto.runtime.staging import Staging
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry
from parketto.tasks.check import CheckedFooter, CheckedPages, footer_check_tasks, page_check_tasks

_MAX_ROUNDS = 5  # files that other writers replace during a check are listed and checked in another round


@dataclass(frozen=True, slots=True)
class Expected:
    """The size and the fingerprint that the log records for a file; None where it has none."""

    size_bytes: int | None = None
    fingerprint: str | None = None

    def difference(self, entry: FileEntry) -> str | None:
        """How a file differs from the recorded one; None if it does not."""
        if self.size_bytes is not None and entry.size_bytes != self.size_bytes:
            return f"{entry.size_bytes} bytes instead of {self.size_bytes}"
        if self.fingerprint is not None and entry.fingerprint != self.fingerprint:
            return "it was replaced or rewritten"
        return None


def check(
    dataset: DatasetContext,
    partition_filter: PartitionFilter = None,
    progress: ProgressCallback | None = None,
    *,
    deep: bool = False,
) -> CheckReport:
    """Discover → check → report. Nothing is written.

    Args:
        dataset: The dataset.
        partition_filter: Which partitions to check.
        progress: Called with a `Progress` as work completes.
        deep: Decode every page, not only the footers.
    """
    dataset.engine.check_store(dataset.store)
    work = _Checker(dataset, progress, deep=deep)
    files = work.run(partition_filter, may_be_empty=bool(expected_files(dataset)))
    found = {entry: work.footers[entry] for entry in files}
    pages = [result for entry in files for result in work.pages.get(entry, ())]
    damaged = [
        Damage(path=entry.path, row_group=problem.row_group, column=problem.column, reason=problem.reason)
        for entry in files
        for problem in work.problems(entry)
    ]
    against = LogDifferences.of(dataset, files, partition_filter, expected_files(dataset)).confirmed(dataset)
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


def expected_files(dataset: DatasetContext) -> dict[str, Expected]:
    """The files that must exist according to the log, by path."""
    store, root, log = dataset.store, dataset.root, dataset.workspace.log
    identity = identity_of(store, root)
    found = dataset.workspace.read_log(lambda view: log.expected(view, identity))
    return {
        # A published copy has another fingerprint than the staged file.
        f"{root}/{path}": Expected(file.size_bytes, file.fingerprint if store.atomic_move else None)
        for path, file in found.items()
    }


class _Checker:
    """Checks the listed files, and those that replace them during the check."""

    def __init__(self, dataset: DatasetContext, progress: ProgressCallback | None, *, deep: bool) -> None:
        self._dataset, self._deep = dataset, deep
        self._context = Context(dataset.store, Staging(""), "check", progress)
        self.footers: dict[FileEntry, CheckedFooter] = {}
        self.pages: dict[FileEntry, list[CheckedPages]] = {}
        self.notes: list[str] = []

    def run(self, partition_filter: PartitionFilter, *, may_be_empty: bool) -> list[FileEntry]:
        """Check the files; returns those that were checked."""
        for _ in range(_MAX_ROUNDS):
            try:
                listed = self._dataset.listed(partition_filter)
            except DatasetNotFound:
                if not may_be_empty:
                    raise
                listed = []
            new = [entry for entry in listed if entry not in self.footers]
            self._check(new)
            # Files that were replaced meanwhile are listed again.
            if all(entry in self.footers for entry in new):
                return listed
        checked = [entry for entry in listed if entry in self.footers]
        self.notes.append(
            f"{len(listed) - len(checked)} files were replaced or removed by other writers during the check and "
            "were not checked; run the check again"
        )
        return checked

    def problems(self, entry: FileEntry) -> list[Problem]:
        """All problems of a file."""
        found = list(self.footers[entry].problems)
        for part in self.pages.get(entry, ()):
            # Each part of a file repeats the problems of the whole file.
            found += [problem for problem in part.problems if problem not in found]
        return found

    def _check(self, entries: Sequence[FileEntry]) -> None:
        context = replace(self._context, progress=None) if self._deep else self._context
        results = self._dataset.engine.run(footer_check_tasks(entries), context)
        found = zip(entries, (footer for result in results for footer in result), strict=True)
        footers = {entry: footer for entry, footer in found if footer is not None}
        self.footers |= footers
        if self._deep:
            self._decode({entry: footer for entry, footer in footers.items() if not footer.problems})

    def _decode(self, footers: Mapping[FileEntry, CheckedFooter]) -> None:
        tasks = page_check_tasks(footers.items())
        for task, results in zip(tasks, self._dataset.engine.run(tasks, self._context), strict=True):
            for part, result in zip(task.parts, results, strict=True):
                if result is None:
                    self.footers.pop(part.entry, None)
                else:
                    self.pages.setdefault(part.entry, []).append(result)


@dataclass(frozen=True)
class LogDifferences:
    """How the files differ from those that the log expects."""

    missing: list[str]
    changed: list[ChangedFile]
    unknown: list[str]

    @classmethod
    def of(
        cls,
        dataset: DatasetContext,
        files: Sequence[FileEntry],
        partition_filter: PartitionFilter,
        expected: Mapping[str, Expected],
    ) -> LogDifferences:
        """How listed files differ from expected ones."""
        matches = directory_matcher(partition_filter)
        wanted = {
            path: file
            for path, file in expected.items()
            if matches(relative(path, dataset.root).rpartition("/")[0])
        }
        present = {entry.path: entry for entry in files}
        changed = [
            ChangedFile(path=path, reason=reason)
            for path in sorted(wanted.keys() & present.keys())
            if (reason := wanted[path].difference(present[path])) is not None
        ]
        unknown = sorted(present.keys() - wanted.keys()) if expected else []
        return cls(sorted(wanted.keys() - present.keys()), changed, unknown)

    def confirmed(self, dataset: DatasetContext) -> LogDifferences:
        """The differences that still hold: other writers may have committed during the check."""
        if not self.missing and not self.changed:
            return self
        expected = expected_files(dataset)
        present = dataset.store.stat_many([*self.missing, *(file["path"] for file in self.changed)])
        return replace(
            self,
            missing=[path for path in self.missing if path in expected and path not in present],
            changed=[
                file
                for file in self.changed
                if (path := file["path"]) in expected
                and path in present
                and expected[path].difference(present[path])
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
        except FooterError:  # already reported as damaged
            continue
        if difference is not None:
            others[difference] += paths
    return [OtherSchema(paths=sorted(paths), difference=difference) for difference, paths in others.items()]
