"""The planner as plain functions, for callers that execute plans themselves.

Collect the files of a dataset, plan groups of them, and process the groups as needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import pyarrow as pa
from fsspec import AbstractFileSystem

from parketto.arguments import Thresholds, check_columns_exist
from parketto.commit.settled import list_settled
from parketto.commit.workspace import Workspace
from parketto.display import typed_result
from parketto.parquet.file_info import FileInfo
from parketto.parquet.snapshot import discover
from parketto.planning.clustering import DEFAULT_CURVE, Curve, check_clustering, plan_clustering
from parketto.planning.rewrite import FileGroup, RewritePlan, check_orderable_files, plan_compaction
from parketto.planning.statistics import maintenance_stats
from parketto.results import MaintenanceStats
from parketto.sorting.order import check_orderable
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store


class DatasetStats(TypedDict):
    """The files of a dataset and their totals."""

    files: list[FileInfo]
    total_bytes: int
    total_rows: int


class GroupPlan(TypedDict):
    """Groups of files to rewrite, the untouched files, and the statistics of a dry run."""

    groups: list[FileGroup]
    untouched: list[FileInfo]
    planned_stats: MaintenanceStats


def collect_dataset_stats(
    path: str, filesystem: AbstractFileSystem | None = None, partition_filter: PartitionFilter = None
) -> DatasetStats:
    """List a dataset and read every footer once.

    Args:
        path: The directory of the dataset.
        filesystem: The fsspec filesystem; by default that of the path.
        partition_filter: `"date=2025-11-04"`, a list of such strings (any must match), or a mapping of partition
            columns to values (all must match).

    Returns:
        `files` (a list of `FileInfo`, ordered by path), `total_bytes` and `total_rows`.

    Raises:
        FileNotFoundError: There is no dataset, or the filter excludes all of its files.

    Example:
        >>> import fsspec, pyarrow as pa, pyarrow.parquet as pq
        >>> fs = fsspec.filesystem("memory")
        >>> pq.write_table(pa.table({"x": [1, 2]}), "/stats-example/a.parquet", filesystem=fs)
        >>> collect_dataset_stats("/stats-example", fs)["total_rows"]
        2
    """
    store, root = open_store(path, filesystem)
    snapshot = discover(
        store, root, lambda: list_settled(Workspace(store, root), partition_filter).files, stats_columns=None
    )
    found = DatasetStats(
        files=list(snapshot.files), total_bytes=snapshot.total_bytes, total_rows=snapshot.total_rows
    )
    return typed_result(found)


def plan_compaction_groups(
    files: Sequence[FileInfo],
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
) -> GroupPlan:
    """Plan which files to merge. Pure: no file is accessed.

    A group has one directory, one schema and at least two files, except that a file with more than
    `target_rows_per_file` rows is a group of its own, to be split. Files that are at least 75 % full are skipped.

    Example:
        >>> files = [FileInfo(f"day=1/{n}.parquet", size_bytes=10 * 2**20, num_rows=10) for n in range(5)]
        >>> plan = plan_compaction_groups(files, target_mb_per_file=100)
        >>> len(plan["groups"]), plan["planned_stats"]["after_file_count"]
        (1, 1)
    """
    plan = plan_compaction(files, Thresholds.of(target_mb_per_file, target_rows_per_file))
    return _group_plan(plan)


def plan_optimize_groups(
    files: Sequence[FileInfo],
    zorder_columns: Sequence[str],
    sample_schema: pa.Schema,
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    curve: Curve = DEFAULT_CURVE,
) -> GroupPlan:
    """Plan which files to cluster together. Pure: no file is accessed.

    A group has one directory and one schema. Clustered files are skipped.

    Example:
        >>> files = [FileInfo(f"day=1/{n}.parquet", size_bytes=10 * 2**20, num_rows=10) for n in range(5)]
        >>> plan = plan_optimize_groups(files, ["user"], pa.schema({"user": pa.int64()}), target_mb_per_file=25)
        >>> len(plan["groups"]), plan["planned_stats"]["after_file_count"]
        (1, 2)
    """
    clustering = check_clustering(zorder_columns, curve)
    columns = clustering.columns
    thresholds = Thresholds.of(target_mb_per_file, target_rows_per_file)
    check_columns_exist(columns, sample_schema, "zorder_columns")
    check_orderable(columns, sample_schema)
    check_orderable_files(files, columns)
    return _group_plan(plan_clustering(files, clustering, thresholds))


def _group_plan(plan: RewritePlan) -> GroupPlan:
    found = GroupPlan(
        groups=list(plan.groups),
        untouched=list(plan.untouched),
        planned_stats=maintenance_stats(plan, dry_run=True),
    )
    return typed_result(found)
