"""Parketto keeps plain Parquet datasets healthy: in place, atomically, rewriting as little as possible."""

import importlib as _importlib
import logging as _logging
from typing import TYPE_CHECKING
from typing import Any as _Any

from parketto import allocator as _allocator  # noqa: F401 - it must come before the first import of Arrow

if TYPE_CHECKING:
    from parketto import maintenance as maintenance
    from parketto import streaming as streaming
    from parketto.commit.history import Commit
    from parketto.commit.recovery import Recovery
    from parketto.compat import (
        CompactionStats,
        CRUDStats,
        DuckDBParquetHandler,
        ParquetCompactor,
        ParquetCRUD,
        Repartitioner,
        RepartitionStats,
        SizeEstimate,
        SparkParquetHandler,
        compact_parquet_dataset_pyarrow,
        optimize_parquet_dataset_pyarrow,
    )
    from parketto.compat.planner import (
        DatasetStats,
        GroupPlan,
        collect_dataset_stats,
        plan_compaction_groups,
        plan_optimize_groups,
    )
    from parketto.dataset import Dataset
    from parketto.engines.base import Progress
    from parketto.errors import (
        AccessDenied,
        AuthenticationFailed,
        BucketNotFound,
        CannotUndo,
        ColumnNotFound,
        CommitConflict,
        CommitError,
        CommitFailed,
        CommitStateUnknown,
        DatasetNotFound,
        EngineUnavailable,
        ExpectationFailed,
        IncompatibleTypes,
        InvalidArgument,
        LockTimeout,
        NotADataset,
        NotPlainParquet,
        OperationCancelled,
        OutOfMemory,
        ParkettoError,
        StateUnavailable,
        StreamStopped,
        TransformFailed,
        UnreadableFile,
        UntrustedWorkspace,
    )
    from parketto.expressions.conditions import sql
    from parketto.health.results import (
        ClusteringShare,
        CodecShare,
        ColumnDrift,
        ColumnHealth,
        CommitSummary,
        DamagedFile,
        FileHealth,
        Health,
        HealthProblem,
        HistoryHealth,
        PartitionHealth,
        PartitionSize,
        Remedy,
        RowGroupHealth,
        SchemaHealth,
        SizeBin,
        Sizes,
    )
    from parketto.merge.rules import MergeStats
    from parketto.operations.diff import Diff
    from parketto.operations.suggest import Advice, Suggestion
    from parketto.parquet.file_info import FileInfo
    from parketto.parquet.row_group_info import ColumnStats, RowGroupInfo
    from parketto.planning.rewrite import FileGroup
    from parketto.results import (
        AlterStats,
        ChangedFile,
        ChangeStats,
        CheckReport,
        ColumnReads,
        Damage,
        EditStats,
        ExpectationStats,
        MaintenanceAction,
        MaintenanceLeft,
        MaintenanceRun,
        MaintenanceStats,
        OtherSchema,
        PartitionInfo,
        PlannedRewrite,
        PurgedFile,
        RestoreStats,
        RuleCounts,
        UndoStats,
        VacuumStats,
        WritePlan,
        WriteStats,
    )
    from parketto.storage.options import AwsStorageOptions, LocalStorageOptions, StorageOptions

__version__ = "0.1.0"

# Log records go nowhere until the application configures logging.
_logging.getLogger(__name__).addHandler(_logging.NullHandler())

__all__ = [
    "AccessDenied",
    "Advice",
    "AlterStats",
    "AuthenticationFailed",
    "AwsStorageOptions",
    "BucketNotFound",
    "CRUDStats",
    "CannotUndo",
    "ChangeStats",
    "ChangedFile",
    "CheckReport",
    "ClusteringShare",
    "CodecShare",
    "ColumnDrift",
    "ColumnHealth",
    "ColumnNotFound",
    "ColumnReads",
    "ColumnStats",
    "Commit",
    "CommitConflict",
    "CommitError",
    "CommitFailed",
    "CommitStateUnknown",
    "CommitSummary",
    "CompactionStats",
    "Damage",
    "DamagedFile",
    "Dataset",
    "DatasetNotFound",
    "DatasetStats",
    "Diff",
    "DuckDBParquetHandler",
    "EditStats",
    "EngineUnavailable",
    "ExpectationFailed",
    "ExpectationStats",
    "FileGroup",
    "FileHealth",
    "FileInfo",
    "GroupPlan",
    "Health",
    "HealthProblem",
    "HistoryHealth",
    "IncompatibleTypes",
    "InvalidArgument",
    "LocalStorageOptions",
    "LockTimeout",
    "MaintenanceAction",
    "MaintenanceLeft",
    "MaintenanceRun",
    "MaintenanceStats",
    "MergeStats",
    "NotADataset",
    "NotPlainParquet",
    "OperationCancelled",
    "OtherSchema",
    "OutOfMemory",
    "ParkettoError",
    "ParquetCRUD",
    "ParquetCompactor",
    "PartitionHealth",
    "PartitionInfo",
    "PartitionSize",
    "PlannedRewrite",
    "Progress",
    "PurgedFile",
    "Recovery",
    "Remedy",
    "RepartitionStats",
    "Repartitioner",
    "RestoreStats",
    "RowGroupHealth",
    "RowGroupInfo",
    "RuleCounts",
    "SchemaHealth",
    "SizeBin",
    "SizeEstimate",
    "Sizes",
    "SparkParquetHandler",
    "StateUnavailable",
    "StorageOptions",
    "StreamStopped",
    "Suggestion",
    "TransformFailed",
    "UndoStats",
    "UnreadableFile",
    "UntrustedWorkspace",
    "VacuumStats",
    "WritePlan",
    "WriteStats",
    "collect_dataset_stats",
    "compact_parquet_dataset_pyarrow",
    "optimize_parquet_dataset_pyarrow",
    "plan_compaction_groups",
    "plan_optimize_groups",
    "sql",
]

# The module of each public name, imported on first access: Spark workers access none, so they do not need the
# driver's dependencies.
_HOMES = {
    name: module
    for module, names in {
        "parketto.commit.history": ("Commit",),
        "parketto.commit.recovery": ("Recovery",),
        "parketto.dataset": ("Dataset",),
        "parketto.engines.base": ("Progress",),
        "parketto.errors": (
            "AccessDenied",
            "AuthenticationFailed",
            "BucketNotFound",
            "CannotUndo",
            "ColumnNotFound",
            "CommitConflict",
            "CommitError",
            "CommitFailed",
            "CommitStateUnknown",
            "DatasetNotFound",
            "EngineUnavailable",
            "ExpectationFailed",
            "IncompatibleTypes",
            "InvalidArgument",
            "LockTimeout",
            "NotADataset",
            "NotPlainParquet",
            "OperationCancelled",
            "OutOfMemory",
            "ParkettoError",
            "StateUnavailable",
            "StreamStopped",
            "TransformFailed",
            "UnreadableFile",
            "UntrustedWorkspace",
        ),
        "parketto.compat": (
            "CompactionStats",
            "CRUDStats",
            "ParquetCompactor",
            "ParquetCRUD",
            "Repartitioner",
            "RepartitionStats",
            "SizeEstimate",
            "DuckDBParquetHandler",
            "SparkParquetHandler",
            "compact_parquet_dataset_pyarrow",
            "optimize_parquet_dataset_pyarrow",
        ),
        "parketto.operations.diff": ("Diff",),
        "parketto.operations.suggest": (
            "Advice",
            "Suggestion",
        ),
        "parketto.expressions.conditions": ("sql",),
        "parketto.health.results": (
            "ClusteringShare",
            "CodecShare",
            "ColumnDrift",
            "ColumnHealth",
            "CommitSummary",
            "DamagedFile",
            "FileHealth",
            "Health",
            "HealthProblem",
            "HistoryHealth",
            "PartitionHealth",
            "PartitionSize",
            "Remedy",
            "RowGroupHealth",
            "SchemaHealth",
            "SizeBin",
            "Sizes",
        ),
        "parketto.merge.rules": ("MergeStats",),
        "parketto.planning.rewrite": ("FileGroup",),
        "parketto.compat.planner": (
            "DatasetStats",
            "GroupPlan",
            "collect_dataset_stats",
            "plan_compaction_groups",
            "plan_optimize_groups",
        ),
        "parketto.results": (
            "AlterStats",
            "ChangeStats",
            "ChangedFile",
            "CheckReport",
            "ColumnReads",
            "Damage",
            "EditStats",
            "ExpectationStats",
            "MaintenanceAction",
            "MaintenanceLeft",
            "MaintenanceRun",
            "MaintenanceStats",
            "OtherSchema",
            "PartitionInfo",
            "PlannedRewrite",
            "PurgedFile",
            "RestoreStats",
            "RuleCounts",
            "UndoStats",
            "VacuumStats",
            "WritePlan",
            "WriteStats",
        ),
        "parketto.parquet.file_info": ("FileInfo",),
        "parketto.storage.options": (
            "AwsStorageOptions",
            "LocalStorageOptions",
            "StorageOptions",
        ),
        "parketto.parquet.row_group_info": (
            "ColumnStats",
            "RowGroupInfo",
        ),
    }.items()
    for name in names
}

# Modules with public functions.
_SUBMODULES = ("maintenance", "streaming")


if not TYPE_CHECKING:  # or checkers would accept any name

    def __getattr__(name: str) -> _Any:
        if name in _SUBMODULES:
            return _importlib.import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_importlib.import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_SUBMODULES})
