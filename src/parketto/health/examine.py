"""Examine a dataset: read its listing, footers and log, and judge what they show. Nothing is written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from parketto.arguments import DEFAULT_TARGET_MB, Thresholds, check_names
from parketto.commit.history import Commit, commits
from parketto.commit.record import KEPT, paths_of
from parketto.commit.retention import KeptFiles
from parketto.commit.settled import Listing, list_settled
from parketto.commit.workspace import TRANSACTION_PREFIX
from parketto.errors import ParkettoError, UnreadableFile
from parketto.health.columns import Bounds, default_columns
from parketto.health.problems import find_problems, summary_of, verdict_of
from parketto.health.results import CommitSummary, FileHealth, Health, HistoryHealth
from parketto.health.schemas import schema_health
from parketto.health.tally import SHOWN_PATHS, Tally
from parketto.operations.check import LogDifferences, expected_files
from parketto.operations.context import DatasetContext
from parketto.parquet.snapshot import read_footers
from parketto.storage.hive import PartitionFilter, partition_values
from parketto.storage.listing import directory_of, relative, retry_on_vanished_files


@dataclass(frozen=True)
class Examination:
    """The health of a dataset, and what its report shows beyond it."""

    health: Health
    bounds: Bounds
    #: Newest first.
    commits: Sequence[Commit]


def examine(
    dataset: DatasetContext,
    path: str,
    partition_filter: PartitionFilter = None,
    columns: Sequence[str] | None = None,
    target_mb_per_file: float = DEFAULT_TARGET_MB,
) -> Examination:
    """Discover → judge → report, without an engine.

    Args:
        dataset: The dataset.
        path: Its path, as commands name it.
        partition_filter: The partitions to examine.
        columns: The columns that queries filter by.
        target_mb_per_file: The target file size.
    """
    given = None if columns is None else check_names("columns", columns)
    thresholds = Thresholds.of(target_mb_per_file, None)

    def read() -> tuple[Listing, Tally, Bounds]:
        listing = list_settled(dataset.workspace, partition_filter)
        tally, examined = _tally(dataset, listing, thresholds, given)
        return listing, tally, Bounds.of(tally, examined, given=given is not None)

    listing, tally, bounds = retry_on_vanished_files(dataset.root, read)
    log = commits(dataset.workspace)
    folders = (directory_of(entry, dataset.root) for entry in listing.files)
    partition_columns = list(
        dict.fromkeys(name for folder in set(folders) for name, _ in partition_values(folder))
    )
    health = Health(
        path=path,
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        verdict="healthy",
        summary="",
        target_mb_per_file=float(target_mb_per_file),
        problems=[],
        files=_file_health(dataset, listing, tally, partition_filter),
        row_groups=tally.row_group_health(),
        partitions=tally.partition_health(partition_columns),
        codecs=tally.codecs,
        schema=schema_health(tally),
        columns=bounds.columns(tally),
        clustering=tally.clusterings,
        history=_history_health(dataset, log),
        sampled=tally.sample.share,
    )
    health["problems"] = find_problems(health, given or (), partition_filter)
    health["verdict"] = verdict_of(health["problems"])
    health["summary"] = summary_of(health)
    return Examination(health, bounds, log)


def _tally(
    dataset: DatasetContext, listing: Listing, thresholds: Thresholds, given: Sequence[str] | None
) -> tuple[Tally, Sequence[str]]:
    """What the files add up to, and the columns whose bounds were read."""
    tally = Tally(dataset.root, thresholds)
    store, root, entries = dataset.store, dataset.root, listing.files
    columns: Sequence[str] = given or ()
    if given is None:
        for entry in entries:
            first = next(read_footers(store, root, [entry]))
            if not isinstance(first, UnreadableFile):
                columns = default_columns(first)
                break
    tally.add_all(read_footers(store, root, entries, frozenset(columns)))
    return tally, columns


def _file_health(
    dataset: DatasetContext, listing: Listing, tally: Tally, partition_filter: PartitionFilter
) -> FileHealth:
    expected = expected_files(dataset)
    against = LogDifferences.of(dataset, listing.files, partition_filter, expected).confirmed(dataset)
    missing, changed = against.missing, [each["path"] for each in against.changed]
    return FileHealth(
        count=tally.files,
        rows=tally.rows,
        bytes=tally.bytes,
        sizes=tally.sizes.summary(),
        small=tally.small,
        small_bytes=tally.small_bytes,
        large=tally.large,
        empty=tally.empty,
        after_compaction=tally.after_compaction,
        damaged=tally.damaged,
        damaged_count=tally.damaged_count,
        missing=[relative(each, dataset.root) for each in missing[:SHOWN_PATHS]],
        missing_count=len(missing),
        restorable=_restorable(dataset, {relative(each, dataset.root) for each in missing}) if missing else None,
        changed=[relative(each, dataset.root) for each in changed[:SHOWN_PATHS]],
        changed_count=len(changed),
        unknown_count=len(against.unknown),
    )


def _restorable(dataset: DatasetContext, missing: Set[str]) -> int | None:
    """The last commit before those that published missing files, if it can be restored."""
    from parketto.operations.past_states import commits_of
    from parketto.operations.undo import restore_state

    records = commits_of(dataset).records
    first = min((number for number, record in records.items() if missing & paths_of(record.publish)), default=0)
    before = max((number for number in records if number < first), default=None)
    if before is None:
        return None
    try:
        restore_state(dataset, before, dry_run=True)
    except ParkettoError:
        return None  # for example, because replaced files are no longer kept
    return before


def _history_health(dataset: DatasetContext, log: Sequence[Commit]) -> HistoryHealth:
    workspace = dataset.workspace
    found: dict[str, Any] = {"log": 0, KEPT: 0, "staged": 0}
    expired_bytes = kept_files = 0
    if workspace.exists():
        expired = set(KeptFiles(dataset.store, workspace.path).expired())
        for entry in dataset.store.list_files(workspace.path):
            folder, _, rest = relative(entry.path, workspace.path).partition("/")
            kind = "staged" if folder.startswith(TRANSACTION_PREFIX) else folder
            found[kind] = found.get(kind, 0) + entry.size_bytes
            if folder == KEPT:
                kept_files += 1
                expired_bytes += entry.size_bytes if rest.partition("/")[0] in expired else 0
    last = log[0] if log else None
    return HistoryHealth(
        commits=len(log),
        last=last and CommitSummary(number=last["number"], operation=last["operation"], at=last["at"]),
        log_bytes=found["log"],
        kept_bytes=found[KEPT],
        kept_files=kept_files,
        expired_bytes=expired_bytes,
        staged_bytes=found["staged"],
    )
