"""What a maintenance policy finds due: which partitions, why, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from parketto.arguments import MEGABYTE, Thresholds
from parketto.parquet.dataset_schema import unified
from parketto.parquet.file_info import FileInfo
from parketto.planning.clustering import check_clustering, plan_clustering
from parketto.planning.policy import Policy
from parketto.planning.rewrite import RewritePlan, check_orderable_files, plan_compaction

# A query opens a file in about the time in which it reads this much; Spark assumes the same.
OPEN_COST_BYTES = 4 * MEGABYTE
_MIN_GAIN = 0.01  # clustering must reduce the expected reads by this share

Planner = Callable[[Sequence[FileInfo]], RewritePlan]


@dataclass(frozen=True)
class Step:
    """One operation on one partition that is due."""

    operation: Literal["compact", "optimize"]
    directory: str
    reason: str
    files_before: int
    files_after: int
    rewritten_bytes: int
    #: What a query that reads the whole partition, or a range of 1 % of it, no longer reads; an opened file counts
    #: as `OPEN_COST_BYTES`.
    saved_bytes: float

    @property
    def value(self) -> float:
        """What queries save per byte that is rewritten."""
        return self.saved_bytes / max(1, self.rewritten_bytes)


def in_order(steps: Sequence[Step]) -> list[Step]:
    """The steps, the most valuable first.

    >>> few = Step("compact", "day=1", "", 9, 1, rewritten_bytes=800, saved_bytes=8)
    >>> many = Step("compact", "day=2", "", 90, 1, rewritten_bytes=900, saved_bytes=89)
    >>> [step.directory for step in in_order([few, many])]
    ['day=2', 'day=1']
    """
    return sorted(steps, key=lambda step: (-step.value, step.directory))


def due_step(files: Sequence[FileInfo], policy: Policy) -> Step | None:
    """What is due for the files of one partition. Clustering merges small files, too, so it comes first."""
    found = _clustering(files, policy) if policy.cluster else None
    return found or (_compaction(files, policy) if policy.compact else None)


def compaction_planner(policy: Policy) -> Planner:
    """Plans compactions as the policy says."""
    assert policy.compact is not None, "the policy has such a rule"
    thresholds = Thresholds.of(policy.compact.target_mb_per_file, None)
    return lambda files: plan_compaction(files, thresholds)


def clustering_planner(policy: Policy) -> Planner:
    """Plans clustering as the policy says."""
    assert policy.cluster is not None, "the policy has such a rule"
    clustering = check_clustering(policy.cluster.columns, policy.cluster.curve)
    thresholds = Thresholds.of(policy.cluster_target_mb, None)

    def planner(files: Sequence[FileInfo]) -> RewritePlan:
        check_orderable_files(files, clustering.columns)
        return plan_clustering(files, clustering, thresholds)

    return planner


class PartitionPlanner:
    """Plans for the files of one directory. `others` counts the files of other directories that it was given."""

    def __init__(self, planner: Planner, directory: str) -> None:
        self._planner, self._directory = planner, directory
        self.others = 0

    def __call__(self, files: Sequence[FileInfo]) -> RewritePlan:
        """Plan; files of other directories stay."""
        others = [file for file in files if file.directory != self._directory]
        self.others = len(others)
        if not others:
            return self._planner(files)
        plan = self._planner([file for file in files if file.directory == self._directory])
        return replace(plan, untouched=(*plan.untouched, *others))


def _compaction(files: Sequence[FileInfo], policy: Policy) -> Step | None:
    rule = policy.compact
    assert rule is not None, "the policy has such a rule"
    small_mb = 0.75 * rule.target_mb_per_file
    small = sum(file.size_bytes < small_mb * MEGABYTE for file in files)
    if small <= rule.small_files:
        return None
    plan = compaction_planner(policy)(unified(files).files)
    reason = f"{small:,} files below {small_mb:g} MB, more than {rule.small_files:,}"
    return _step(plan, reason) if plan.groups else None


def _clustering(files: Sequence[FileInfo], policy: Policy) -> Step | None:
    rule = policy.cluster
    assert rule is not None, "the policy has such a rule"
    plan = clustering_planner(policy)(unified(files).files)
    before, after = (sum(reads[at]["range"] for reads in plan.reads.values()) / len(plan.reads) for at in (0, 1))
    if not plan.groups or before <= rule.expected_reads or after > before * (1 - _MIN_GAIN):
        return None
    reason = (
        f"a range of 1 % of {', '.join(rule.columns)} reads {before:.0%} of the row groups, more than "
        f"{rule.expected_reads:.0%}; about {after:.0%} afterwards"
    )
    return _step(plan, reason, (before - after) * sum(file.size_bytes for file in files))


def _step(plan: RewritePlan, reason: str, skipped_bytes: float = 0.0) -> Step:
    files = plan.files
    after = len(plan.untouched) + sum(group.outputs for group in plan.groups)
    return Step(
        plan.operation,
        files[0].directory,
        reason,
        files_before=len(files),
        files_after=after,
        rewritten_bytes=sum(group.size_bytes for group in plan.groups),
        saved_bytes=skipped_bytes + max(0, len(files) - after) * OPEN_COST_BYTES,
    )
