"""Results of operations as text: a headline, and a tree below it of what happened or would happen."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parketto.cli.text import listed
from parketto.health.text import counted, percent, size_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree

_GAP = 3  # characters between the columns of a table
_MIN_WIDTH = 4  # characters that a column keeps on a narrow terminal
_BRANCHES = 20  # of one kind that a tree shows; `--json` has all


def tree(headline: str, branches: Iterable[Any] = ()) -> RenderableType:
    """A headline with branches: texts, or other trees. None and empty texts are left out."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(headline, style="bold"))
    found = [branch for branch in branches if branch]
    for branch in found:
        _add(root, branch)
    return root if found else Text(headline, style="bold")


def _add(root: Tree, branch: Any) -> None:
    from rich.text import Text
    from rich.tree import Tree

    if isinstance(branch, tuple):
        text, below = branch
        inner = root.add(Text(text))
        for each in [each for each in below if each]:
            _add(inner, each)
    else:
        root.add(branch if isinstance(branch, Tree) else Text(branch))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[str] = ()) -> RenderableType:
    """A table of texts; columns in `right` are numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    found = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        found.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        found.add_row(*(Text(str(value)) for value in row))
    return found


def lines_table(
    columns: Mapping[str, Sequence[str]],
    width: int,
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> RenderableType:
    """A table of one line per row, however narrow the terminal is.

    Args:
        columns: The texts of each column.
        width: The characters of a line.
        right: Columns that are numbers.
        whole: Columns that are never shortened.
        spare: Columns that are left out, one after the other, until the others fit.
    """
    widths = {name: max(map(len, (name, *texts))) for name, texts in columns.items()}

    def missing() -> int:
        return sum(widths.values()) + _GAP * (len(widths) - 1) - width

    for name in spare:
        if missing() > 0:
            del widths[name]
    while missing() > 0 and (wide := [name for name in widths if name not in whole and widths[name] > _MIN_WIDTH]):
        widths[max(wide, key=widths.__getitem__)] -= 1
    shown = [[_shortened(text, widths[name]) for text in columns[name]] for name in widths]
    return table([_shortened(name, size) for name, size in widths.items()], zip(*shown, strict=True), right)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def together(*parts: RenderableType | None) -> RenderableType:
    """Several parts, one below the other."""
    from rich.console import Group

    return Group(*(part for part in parts if part))


def some(branches: Sequence[Any]) -> list[Any]:
    """The first branches, and how many more there are."""
    more = len(branches) - _BRANCHES
    return [*branches[:_BRANCHES], *([f"… and {more:,} more; --json lists all"] if more > 0 else [])]


def maintenance(verb: str, root: str, stats: Mapping[str, Any]) -> RenderableType:
    """A compaction or clustering."""
    if stats["unchanged_because"]:
        return tree(f"nothing to {verb}: {stats['unchanged_because']}")
    before, after = stats["before_file_count"], stats["after_file_count"]
    total = f"{size_text(stats['rewritten_bytes'])} of {size_text(stats['before_total_bytes'])}"
    codec = f"codec: {stats['compression_codec']}"
    reconciled = (
        stats["reconciled_columns"] and f"columns that files differ in: {listed(stats['reconciled_columns'])}"
    )
    if not stats["dry_run"]:
        headline = f"{verb}: {counted(before, 'file')} → {after:,}, {size_text(stats['after_total_bytes'])}"
        rewritten = f"rewrote {counted(stats['compacted_file_count'], 'file')}, {total}"
        backup = stats["backup_path"] and f"backup of the replaced files: {stats['backup_path']}"
        return tree(headline, [rewritten, codec, reconciled, backup, _reads(stats)])
    groups = [
        _group(root, paths, planned)
        for paths, planned in zip(stats["planned_groups"], stats["planned_rewrites"], strict=True)
    ]
    untouched = before - stats["compacted_file_count"]
    return tree(
        f"{verb} would turn {counted(before, 'file')} into {after:,}, and rewrite {total}",
        [
            *some(groups),
            f"{counted(untouched, 'file')} left unchanged" if untouched else None,
            codec,
            reconciled,
            _reads(stats),
        ],
    )


def _group(root: str, paths: Sequence[str], planned: Mapping[str, Any]) -> tuple[str, list[str | None]]:
    folders = {posixpath.dirname(path) for path in paths}
    where = posixpath.relpath(folders.pop(), root) if len(folders) == 1 else "."
    copied, encoded = planned["copied_row_groups"], planned["encoded_row_groups"]
    inputs, outputs = counted(len(paths), "file"), counted(planned["files_after"], "file")
    return (
        f"{'all' if where == '.' else where}: {inputs} → {outputs}, about {size_text(planned['bytes'])}",
        [
            f"{counted(copied, 'row group')} copied as bytes" if copied else None,
            f"{counted(encoded, 'row group')} decoded and encoded" if encoded else None,
        ],
    )


def _reads(stats: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """What queries on the clustering columns read, before and after."""
    if not stats["expected_reads"]:
        return None
    lines = [
        f"{column}: a value {percent(reads['before']['point'])} → {percent(reads['after']['point'])}, "
        f"a range of 1 % {percent(reads['before']['range'])} → {percent(reads['after']['range'])}"
        for column, reads in stats["expected_reads"].items()
    ]
    return "row groups that queries read", lines


def repeated(stats: Mapping[str, Any]) -> RenderableType | None:
    """A replay: an operation whose `commit_id` the log contains."""
    if (number := stats.get("repeated_commit")) is None:
        return None
    return tree(f"already done by commit {number:,}: nothing was changed")


def edit(verb: str, stats: Mapping[str, Any]) -> RenderableType:
    """A delete, an update, or the removal of duplicates."""
    if (done := repeated(stats)) is not None:
        return done
    rows = counted(stats["rows_matched"], "row")
    if not stats["rows_matched"]:
        return tree(f"no rows to {verb}", [_scanned(stats), _purged(stats)])
    files, removed = stats["files_rewritten"], stats["files_removed"]
    where = f"in {counted(stats['partitions_affected'], 'partition')}"
    would = f"would {verb}" if stats["dry_run"] else f"{verb}d"
    before, after = stats["rows_before"], stats["rows_after"]
    headline = f"{would} {rows}"
    if before is not None and before == after:
        headline = f"{would} {stats['rows_matched']:,} of {counted(before, 'row')}"
    elif before is not None:
        headline = f"{would} {rows}: {counted(before, 'row')} → {after:,}"
    packed = f" as {stats['files_written']:,}" if 0 < stats["files_written"] < files else ""
    return tree(
        headline,
        [
            f"{counted(files, 'file')} rewritten{packed}, {size_text(stats['rewritten_bytes'])} {where}"
            if files
            else None,
            f"{counted(removed, 'file')} removed: no rows remain" if removed else None,
            _scanned(stats),
            ("files", some(stats["rewritten_files"])) if stats["dry_run"] else None,
            stats["backup_path"] and f"backup of the replaced files: {stats['backup_path']}",
            _purged(stats),
        ],
    )


def _purged(stats: Mapping[str, Any]) -> Any:
    """The files that a purge has removed, or would remove."""
    files = stats.get("purged_files")
    if not files:
        return None
    verb = "would be purged" if stats["dry_run"] else "purged"
    return (
        f"{counted(len(files), 'file')} that held, or may have held, these rows {verb}",
        some([f"{each['location']}: {each['path']}" for each in files]),
    )


def _scanned(stats: Mapping[str, Any]) -> str:
    if stats["files_before"] is None:
        return f"{counted(stats['files_scanned'], 'file')} searched, in the partitions of the condition"
    return f"{stats['files_scanned']:,} of {counted(stats['files_before'], 'file')} searched"


def changes(verb: str, stats: Mapping[str, Any], *, dry_run: bool) -> RenderableType:
    """A merge, or applied change records."""
    if (done := repeated(stats)) is not None:
        return done
    names = [name for name in ("inserted", "updated", "deleted", "ignored") if name in stats]
    counts = ", ".join(f"{stats[name]:,} {name}" for name in names)
    return tree(
        f"{verb}{' would have' if dry_run else ''}: {counts}; {counted(stats['total'], 'row')} afterwards",
        [
            (
                "files that would be rewritten, unless their rows have these values already",
                some(stats["rewritten_files"]),
            )
            if dry_run and stats.get("rewritten_files")
            else None,
            f"{counted(stats['files_written'], 'file')} {'to write' if dry_run else 'written'}"
            if stats.get("files_written")
            else None,
            stats.get("backup_path") and f"backup of the replaced files: {stats['backup_path']}",
            expectations(stats),
        ],
    )


def written(verb: str, root: str, stats: Mapping[str, Any]) -> RenderableType:
    """A write or a repartition, or the plan of one."""
    if (done := repeated(stats)) is not None:
        return done
    rows = stats["rows_written"]
    shown = "all rows" if rows is None else counted(rows, "row")
    sources = stats.get("source_files")
    replaced = stats["files_replaced"]
    branches: list[Any] = [
        f"from {counted(len(sources), 'file')}: {listed(sources, 3)}" if sources else None,
        f"{counted(replaced, 'file')} replaced" if replaced else None,
        f"{counted(stats['rows_deleted'], 'row')} replaced" if stats.get("rows_deleted") else None,
        expectations(stats),
    ]
    if "dry_run" not in stats:
        files = f"{counted(stats['files_written'], 'file')}, {size_text(stats['bytes_written'])}"
        return tree(f"{verb}: {shown} in {files}", branches)
    folders = [f"{name}: {counted(count, 'row')}" for name, count in sorted((stats["partitions"] or {}).items())]
    paths = [path.removeprefix(f"{root}/") for path in stats["replaced_files"] or ()]
    return tree(
        f"would write {shown}" if verb == "write" else f"{verb} would write {shown}",
        [
            (counted(len(folders), "partition"), some(folders)) if folders else None,
            *branches,
            ("files that would be replaced", some(paths)) if paths else None,
        ],
    )


def expectations(stats: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """How many rows broke rules."""
    if not stats.get("expectations"):
        return None
    where = f", in {stats['quarantine']}" if stats.get("quarantine") else ""
    rules = [f"{name}: {counts['violations']:,} broken" for name, counts in stats["expectations"].items()]
    return f"{counted(stats['rows_violating'], 'row')} left out{where}", rules


def altered(verb: str, stats: Mapping[str, Any], changes: Iterable[str] = ()) -> RenderableType:
    """A change of the schema; `changes` says for each column what changes."""
    files = f"{stats['files_rewritten']:,} of {counted(stats['files_before'], 'file')}"
    whose = "dataset's" if verb == "unify-schema" else "wanted"
    if not stats["files_rewritten"]:
        return tree(f"nothing to do: {_all(stats['files_before'])} the {whose} schema")
    would = "would rewrite" if stats["dry_run"] else "rewrote"
    return tree(
        f"{verb}: {would} {files}, {size_text(stats['rewritten_bytes'])}",
        [
            *changes,
            ("files", some(stats["rewritten_files"])) if stats["dry_run"] else None,
            stats["backup_path"] and f"backup of the replaced files: {stats['backup_path']}",
        ],
    )


def _all(files: int) -> str:
    return "the only file has" if files == 1 else f"all {files:,} files have"
