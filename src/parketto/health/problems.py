"""The rules: which numbers are problems, how severe they are, and what would solve them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parketto.arguments import MEGABYTE
from parketto.health.commands import Commands
from parketto.health.results import (
    PROBLEM_NAMES,
    ColumnHealth,
    Health,
    HealthProblem,
    ProblemName,
    Remedy,
    Severity,
    Verdict,
)
from parketto.health.text import counted, percent, size_text
from parketto.storage.hive import PartitionFilter

# Compaction is worth a commit if it removes this many files, and this share of them.
_MIN_REMOVED_FILES, _MIN_REMOVED_SHARE = 10, 0.1
_MANY_SMALL_FILES = 20  # in one partition, whatever their share; as in a maintenance policy
_MANY_PARTITIONS = 100  # fewer small partitions do little harm
_SMALL_PARTITION = 1 / 16  # of the target size
_SKEW, _MIN_SKEWED_PARTITIONS = 10, 4  # the largest partition, relative to the median
_MIN_SMALL_ROW_GROUPS, _MIN_SMALL_ROW_GROUP_SHARE = 20, 0.1
_MANY_READS = 0.3  # of the row groups, for a range of 1 %; as in a maintenance policy
_MIN_GAIN = 0.5  # clustering is worth a rewrite if it halves the reads
_UNCOMPRESSED = 0.1  # of the bytes
_MIN_HISTORY_BYTES, _LARGE_HISTORY = 64 * MEGABYTE, 0.5  # of retired files; relative to the dataset
_SUGGESTED_COLUMNS = 4
_VERDICTS: dict[Severity, Verdict] = {"error": "damaged", "warning": "attention", "note": "healthy"}


def find_problems(
    health: Health, columns: Sequence[str] = (), partition_filter: PartitionFilter = None
) -> list[HealthProblem]:
    """The problems of a dataset, the most severe first.

    Args:
        health: All numbers.
        columns: The columns that queries filter by, if the caller has named some.
        partition_filter: The partitions that were examined.
    """
    commands = Commands(health["path"], health["target_mb_per_file"], partition_filter)
    rules = (_files, _drift, _sizes, _partitions, _row_groups, _codecs, _history)
    found = [each for rule in rules for each in rule(health, commands)]
    found += _overlap(health, commands, columns)
    severities = list(_VERDICTS)
    return sorted(found, key=lambda each: (severities.index(each["severity"]), PROBLEM_NAMES.index(each["name"])))


def verdict_of(problems: Sequence[HealthProblem]) -> Verdict:
    """The verdict: that of the most severe problem."""
    return _VERDICTS[problems[0]["severity"]] if problems else "healthy"


def summary_of(health: Health) -> str:
    """The verdict in one sentence."""
    files = health["files"]
    whole = f"{counted(files['rows'], 'row')} in {counted(files['count'], 'file')}, {size_text(files['bytes'])}"
    counts = [
        counted(count, noun)
        for severity, noun in (("error", "error"), ("warning", "warning"), ("note", "note"))
        if (count := sum(each["severity"] == severity for each in health["problems"]))
    ]
    first = {"healthy": "Healthy", "attention": "Needs attention", "damaged": "Damaged"}[health["verdict"]]
    return f"{first}: {whole}" + (f"; {', '.join(counts)}" if counts else "")


def _problem(name: ProblemName, severity: Severity, summary: str, *remedies: Remedy) -> HealthProblem:
    return HealthProblem(name=name, severity=severity, summary=summary, remedies=list(remedies))


def _files(health: Health, commands: Commands) -> Iterator[HealthProblem]:
    files = health["files"]
    check = commands.check("Decodes every page, and lists each damaged file, row group and column.")
    if count := files["damaged_count"]:
        first = files["damaged"][0]
        yield _problem(
            "damaged-files",
            "error",
            f"{counted(count, 'file')} cannot be read; the first is {first['path']!r}: {first['reason']}. "
            "Repair it or move it out of the dataset",
            check,
        )
    if count := files["missing_count"]:
        to, advice, remedies = files["restorable"], "", []
        if to is None:
            advice = (
                ". No earlier state is kept: copy them back from a backup of your own, or write their rows again"
            )
        else:
            effect = f"Goes back to the state after commit {to:,}, whose files are kept. Later commits are undone."
            remedies = [commands.restore(to, effect)]
        yield _problem(
            "missing-files",
            "error",
            f"{counted(count, 'file')} that commits have published {'is' if count == 1 else 'are'} missing; "
            f"the first is {files['missing'][0]!r}{advice}",
            *remedies,
        )
    if count := files["changed_count"]:
        yield _problem(
            "changed-files",
            "warning",
            f"{counted(count, 'file')} that commits have published {'was' if count == 1 else 'were'} replaced by "
            f"another program; the first is {files['changed'][0]!r}",
            check,
        )


def _drift(health: Health, commands: Commands) -> Iterator[HealthProblem]:
    drift, differing = health["schema"]["drift"], health["schema"]["differing_files"]
    clashing = [each for each in drift if each["unified"] is None]
    if clashing:
        cast = {each["column"]: next(iter(each["types"])).removesuffix(" not null") for each in clashing}
        first = clashing[0]
        yield _problem(
            "incompatible-types",
            "error",
            f"{_listed([each['column'] for each in clashing])}: no type holds the values of all files exactly; "
            f"{first['column']!r} is {' and '.join(first['types'])}. Operations fail until one type is chosen",
            commands.unify_schema(
                "Casts to the most common type; if a value cannot be cast, nothing is changed.", cast
            ),
        )
    if len(drift) > len(clashing):
        yield _problem(
            "drift",
            "warning",
            f"{counted(differing, 'file')} of {health['files']['count']:,} "
            f"{'does' if differing == 1 else 'do'} not have the schema of the dataset: "
            f"{_listed([each['column'] for each in drift if each['unified'] is not None])}",
            *([] if clashing else [commands.unify_schema("Rewrites only the files that differ.")]),
        )


def _sizes(health: Health, commands: Commands) -> Iterator[HealthProblem]:
    files = health["files"]
    removed = files["count"] - files["after_compaction"]
    most = max((each["small_files"] for each in health["partitions"]["most_small_files"]), default=0)
    worthwhile = removed >= max(_MIN_REMOVED_FILES, _MIN_REMOVED_SHARE * files["count"])
    if worthwhile or (most > _MANY_SMALL_FILES and removed):
        yield _problem(
            "small-files",
            "warning",
            f"{files['small']:,} of {counted(files['count'], 'file')} "
            f"{'is' if files['small'] == 1 else 'are'} below {_small_text(health)}; "
            f"compaction would leave {files['after_compaction']:,}",
            commands.compact(
                f"Merges small files: {files['count']:,} files become about {files['after_compaction']:,}."
            ),
        )


def _small_text(health: Health) -> str:
    return size_text(0.75 * health["target_mb_per_file"] * MEGABYTE)


def _partitions(health: Health, commands: Commands) -> Iterator[HealthProblem]:
    found, target = health["partitions"], health["target_mb_per_file"] * MEGABYTE
    columns = found["columns"]
    if columns and found["count"] >= _MANY_PARTITIONS and found["median_bytes"] < _SMALL_PARTITION * target:
        by = _listed(columns[:-1]) if columns[1:] else "nothing"
        yield _problem(
            "small-partitions",
            "warning",
            f"{found['count']:,} partitions with a median of {size_text(found['median_bytes'])}: too many for so "
            f"little data, and compaction never merges files of different partitions",
            commands.repartition(columns[:-1], f"Partitions by {by} instead of {_listed(columns)}."),
        )
    largest = found["largest"][0] if found["largest"] else None
    if (
        largest is not None
        and found["count"] >= _MIN_SKEWED_PARTITIONS
        and found["skew"] >= _SKEW
        and largest["bytes"] >= 2 * target
    ):
        yield _problem(
            "skew",
            "note",
            f"the largest partition, {largest['folder']!r}, has {size_text(largest['bytes'])}, "
            f"{found['skew']:,.0f} times the median: work on it dominates. Consider a further partition column",
        )


def _row_groups(health: Health, commands: Commands) -> Iterator[HealthProblem]:
    found = health["row_groups"]
    columns = _natural_order(health)
    remedies = [commands.optimize(columns, "Rewrites row groups, sorted by this column.")] if columns else []
    if found["small"] >= max(_MIN_SMALL_ROW_GROUPS, _MIN_SMALL_ROW_GROUP_SHARE * found["count"]):
        # Compaction also merges the row groups of the files that it rewrites.
        by_compaction = health["files"]["small"] > 1 and health["files"]["after_compaction"] == 1
        merge = (
            [commands.compact("Merges small row groups along with their files.")] if by_compaction else remedies
        )
        yield _problem(
            "small-row-groups",
            "warning",
            f"{found['small']:,} of {counted(found['count'], 'row group')} are so small that opening them costs "
            "more than reading their rows: less than 32,768 rows, and less than 1 MB per column",
            *merge,
        )
    if found["large"]:
        yield _problem(
            "large-row-groups",
            "note",
            f"{counted(found['large'], 'row group')} of more than 1 GB before compression: readers need much "
            "memory for them, and can skip little",
            *remedies,
        )


def _natural_order(health: Health) -> list[str]:
    """The column in whose order the rows are already, more or less."""
    inside = [each for each in health["columns"] if not each["partition"]]
    return [min(inside, key=lambda each: each["range"])["column"]] if inside else []


def _overlap(health: Health, commands: Commands, given: Sequence[str]) -> Iterator[HealthProblem]:
    columns = [each for each in health["columns"] if not each["partition"]]
    wanted = [each for each in columns if (each["column"] in given if given else each["clustered"])]
    poor = [each for each in wanted if _reads_too_much(each)]
    if poor:
        names = [each["column"] for each in wanted]
        why = "" if given else ", by which files are clustered"
        yield _problem(
            "overlap",
            "warning",
            f"a range of 1 % of {_listed([each['column'] for each in poor])}{why}, reads "
            f"{percent(max(each['range'] for each in poor))} of the row groups",
            commands.optimize(names, f"Clusters by {_listed(names)}, so that queries on them skip row groups."),
        )
    elif not wanted and columns and all(map(_reads_too_much, columns)):
        names = [each["column"] for each in columns[:_SUGGESTED_COLUMNS]]
        least = min(each["range"] for each in columns)
        yield _problem(
            "overlap",
            "note",
            f"no column lets queries skip much: a range of 1 % reads at least {percent(least)} of the row groups, "
            f"and could read {percent(min(each['range_if_sorted'] for each in columns))} of them",
            commands.suggest(
                names, "Tries clustering columns on a sample. Name the columns that queries filter by."
            ),
        )


def _reads_too_much(column: ColumnHealth) -> bool:
    reads = column["range"]
    return reads > _MANY_READS and column["range_if_sorted"] <= reads * (1 - _MIN_GAIN)


def _codecs(health: Health, commands: Commands) -> Iterator[HealthProblem]:
    codecs = health["codecs"]
    total = sum(each["bytes"] for each in codecs)
    plain = sum(each["bytes"] for each in codecs if each["codec"] == "none")
    if total and plain >= _UNCOMPRESSED * total:
        yield _problem(
            "uncompressed",
            "note",
            f"{percent(plain / total)} of the data, {size_text(plain)}, is not compressed",
            commands.compact("Compresses the files that it merges.", compression="zstd"),
        )
    if len(codecs) > 1:
        shares = ", ".join(f"{each['codec']} {percent(each['bytes'] / max(1, total))}" for each in codecs)
        # Compaction leaves files alone that are large enough, whatever their codec is.
        yield _problem(
            "mixed-codecs",
            "note",
            f"{len(codecs)} codecs: {shares}. Every reader needs all of them",
            commands.repartition(
                health["partitions"]["columns"],
                "Writes all rows anew, in the same partitions, all with the codec of most of the data.",
            ),
        )


def _history(health: Health, commands: Commands) -> Iterator[HealthProblem]:
    history = health["history"]
    kept = history["kept_bytes"] + history["staged_bytes"]
    if kept > max(_MIN_HISTORY_BYTES, _LARGE_HISTORY * health["files"]["bytes"]):
        # Each commit removes what is expired; if there is none for long, it stays.
        expired = history["expired_bytes"]
        remedy = commands.vacuum(f"Removes {size_text(expired)} of files whose retention is over.")
        yield _problem(
            "history",
            "note",
            f"replaced files take {size_text(kept)} beside {size_text(health['files']['bytes'])} of data: they "
            "are kept for readers, time travel and undo until their retention is over",
            *([remedy] if expired else []),
        )


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence, at most eight of them.

    >>> _listed(["day"]), _listed(["day", "user"]), _listed([str(n) for n in range(10)])[-21:]
    ("'day'", "'day' and 'user'", "'6', '7' and 2 others")
    """
    shown = [repr(name) for name in names[:8]]
    if len(names) > 8:
        shown.append(f"{len(names) - 8} others")
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
