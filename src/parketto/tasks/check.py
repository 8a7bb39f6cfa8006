"""Tasks that check files: their footers, or all of their pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from parketto.parquet.damage import FooterCheck, find_damage
from parketto.parquet.structure import Problem
from parketto.runtime.task import Worker
from parketto.storage.store import FileEntry

_FILES_PER_TASK = 512
_FOOTER_BYTES = 64 * 1024  # the cost of checking a footer, in bytes read, whatever the size of its file
_TASK_BYTES = 64 * 1024 * 1024  # bytes that a task decodes: several small files, or some row groups of a large one


@dataclass(frozen=True)
class CheckedFooter:
    """The contents of a file's footer, and its problems."""

    problems: tuple[Problem, ...] = ()
    num_rows: int = 0
    #: Compressed bytes of each row group.
    row_groups: tuple[int, ...] = ()
    #: The encoded schema; None if it cannot be read.
    schema: bytes | None = None


@dataclass(frozen=True)
class CheckedPages:
    """How much of a file was decoded, and its problems."""

    problems: tuple[Problem, ...]
    columns: int
    pages: int


@dataclass(frozen=True)
class CheckFooters:
    """Check the footers of some files."""

    entries: tuple[FileEntry, ...]

    @property
    def size_bytes(self) -> int:
        """About how many bytes are read."""
        return len(self.entries) * _FOOTER_BYTES

    def run(self, worker: Worker) -> list[CheckedFooter | None]:
        """The contents of each footer; None for a file that was deleted or replaced."""
        schemas: dict[bytes, bytes] = {}

        def check(entry: FileEntry) -> CheckedFooter | None:
            worker.check_cancelled()
            try:
                found = FooterCheck(worker.store, entry, read_head=worker.store.often_cached)
            except FileNotFoundError:
                return None
            if found.problems and worker.store.stat(entry.path) != entry:
                return None
            if found.footer is None:
                return CheckedFooter(tuple(found.problems))
            footer = found.footer
            # Thousands of files share one schema, which the result of the task then contains once.
            schema = schemas.setdefault(footer.schema, footer.schema)
            sizes = tuple(group.total_compressed_size for group in footer.row_groups)
            return CheckedFooter(tuple(found.problems), footer.num_rows, sizes, schema)

        if worker.store.often_cached:
            return [check(entry) for entry in self.entries]
        with ThreadPoolExecutor(worker.store.parallel_reads, "parketto-footer") as pool:
            return list(pool.map(check, self.entries))


@dataclass(frozen=True)
class FilePart:
    """Some row groups of a file, by their numbers, and their size."""

    entry: FileEntry
    row_groups: range
    size_bytes: int


@dataclass(frozen=True)
class CheckPages:
    """Decode parts of files."""

    parts: tuple[FilePart, ...]

    @property
    def size_bytes(self) -> int:
        """How many bytes are read."""
        return sum(part.size_bytes for part in self.parts)

    def run(self, worker: Worker) -> list[CheckedPages | None]:
        """The problems of each part; None for a file that was deleted or replaced."""
        return [self._check(part, worker) for part in self.parts]

    def _check(self, part: FilePart, worker: Worker) -> CheckedPages | None:
        try:
            found = find_damage(worker.store, part.entry, worker, part.row_groups)
        except FileNotFoundError:
            return None
        if found.problems and worker.store.stat(part.entry.path) != part.entry:
            return None
        return CheckedPages(tuple(found.problems), found.columns, found.pages)


def footer_check_tasks(entries: Sequence[FileEntry]) -> list[CheckFooters]:
    """Tasks that check all footers, in the order of the files."""
    starts = range(0, len(entries), _FILES_PER_TASK)
    return [CheckFooters(tuple(entries[start : start + _FILES_PER_TASK])) for start in starts]


def page_check_tasks(footers: Iterable[tuple[FileEntry, CheckedFooter]]) -> list[CheckPages]:
    """Tasks that decode all files, in their order. Large files are split by row groups."""
    tasks: list[CheckPages] = []
    parts: list[FilePart] = []
    size = 0
    for part in (part for entry, footer in footers for part in _parts(entry, footer)):
        if parts and (size + part.size_bytes > _TASK_BYTES or len(parts) == _FILES_PER_TASK):
            tasks.append(CheckPages(tuple(parts)))
            parts, size = [], 0
        parts.append(part)
        size += part.size_bytes
    return [*tasks, CheckPages(tuple(parts))] if parts else tasks


def _parts(entry: FileEntry, footer: CheckedFooter) -> Iterator[FilePart]:
    start = size = 0
    for number, group_bytes in enumerate(footer.row_groups):
        if size and size + group_bytes > _TASK_BYTES:
            yield FilePart(entry, range(start, number), size)
            start, size = number, 0
        size += group_bytes
    yield FilePart(entry, range(start, len(footer.row_groups)), size)
