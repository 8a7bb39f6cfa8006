"""Parketto keeps plain Parquet datasets healthy: in place, atomically, rewriting as little as possible."""

import importlib as _importlib
import logging as _logging
from typing import TYPE_CHECKING
from typing import Any as _Any

from parketto import allocator as _allocator  # noqa: F401 - before anything else loads Arrow

if TYPE_CHECKING:
    from parketto.commit.history import Commit
    from parketto.commit.recovery import Recovery
    from parketto.dataset import Dataset
    from parketto.engines.base import Progress
    from parketto.errors import (
        AccessDenied,
        AuthenticationFailed,
        BucketNotFound,
        ColumnNotFound,
        CommitConflict,
        CommitError,
        CommitFailed,
        CommitStateUnknown,
        DatasetNotFound,
        EngineUnavailable,
        IncompatibleTypes,
        InvalidArgument,
        LockTimeout,
        NotADataset,
        NotPlainParquet,
        OperationCancelled,
        OutOfMemory,
        ParkettoError,
        TransformFailed,
        UnreadableFile,
        UntrustedWorkspace,
    )
    from parketto.etl import (
        CompactionStats,
        CRUDStats,
        ParquetCompactor,
        ParquetCRUD,
        Repartitioner,
        RepartitionStats,
        SizeEstimate,
    )
    from parketto.handlers import (
        DuckDBParquetHandler,
        SparkParquetHandler,
        compact_parquet_dataset_pyarrow,
        optimize_parquet_dataset_pyarrow,
    )
    from parketto.operations.suggest import Advice, Suggestion
    from parketto.plan.expressions import sql
    from parketto.plan.merge import MergeStats
    from parketto.plan.rewrite import FileGroup
    from parketto.planning import (
        DatasetStats,
        GroupPlan,
        collect_dataset_stats,
        plan_compaction_groups,
        plan_optimize_groups,
    )
    from parketto.stats import (
        ChangedFile,
        CheckReport,
        Damage,
        EditStats,
        MaintenanceStats,
        OtherSchema,
        RestoreStats,
        WriteStats,
    )
    from parketto.storage.footers import FileInfo
    from parketto.storage.options import AwsStorageOptions, LocalStorageOptions, StorageOptions
    from parketto.storage.row_groups import ColumnStats, RowGroupInfo

__version__ = "0.1.0"

# A library speaks through logging only where the program has set it up.
_logging.getLogger(__name__).addHandler(_logging.NullHandler())

__all__ = [
    "AccessDenied",
    "Advice",
    "AuthenticationFailed",
    "AwsStorageOptions",
    "BucketNotFound",
    "CRUDStats",
    "ChangedFile",
    "CheckReport",
    "ColumnNotFound",
    "ColumnStats",
    "Commit",
    "CommitConflict",
    "CommitError",
    "CommitFailed",
    "CommitStateUnknown",
    "CompactionStats",
    "Damage",
    "Dataset",
    "DatasetNotFound",
    "DatasetStats",
    "DuckDBParquetHandler",
    "EditStats",
    "EngineUnavailable",
    "FileGroup",
    "FileInfo",
    "GroupPlan",
    "IncompatibleTypes",
    "InvalidArgument",
    "LocalStorageOptions",
    "LockTimeout",
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
    "Progress",
    "Recovery",
    "RepartitionStats",
    "Repartitioner",
    "RestoreStats",
    "RowGroupInfo",
    "SizeEstimate",
    "SparkParquetHandler",
    "StorageOptions",
    "Suggestion",
    "TransformFailed",
    "UnreadableFile",
    "UntrustedWorkspace",
    "WriteStats",
    "collect_dataset_stats",
    "compact_parquet_dataset_pyarrow",
    "optimize_parquet_dataset_pyarrow",
    "plan_compaction_groups",
    "plan_optimize_groups",
    "sql",
]

# Where each name lives. It is imported when it is first asked for: Spark's workers ask for none, and need not have
# what only drivers need.
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
            "ColumnNotFound",
            "CommitConflict",
            "CommitError",
            "CommitFailed",
            "CommitStateUnknown",
            "DatasetNotFound",
            "EngineUnavailable",
            "IncompatibleTypes",
            "InvalidArgument",
            "LockTimeout",
            "NotADataset",
            "NotPlainParquet",
            "OperationCancelled",
            "OutOfMemory",
            "ParkettoError",
            "TransformFailed",
            "UnreadableFile",
            "UntrustedWorkspace",
        ),
        "parketto.etl": (
            "CompactionStats",
            "CRUDStats",
            "ParquetCompactor",
            "ParquetCRUD",
            "Repartitioner",
            "RepartitionStats",
            "SizeEstimate",
        ),
        "parketto.handlers": (
            "DuckDBParquetHandler",
            "SparkParquetHandler",
            "compact_parquet_dataset_pyarrow",
            "optimize_parquet_dataset_pyarrow",
        ),
        "parketto.operations.suggest": (
            "Advice",
            "Suggestion",
        ),
        "parketto.plan.expressions": ("sql",),
        "parketto.plan.merge": ("MergeStats",),
        "parketto.plan.rewrite": ("FileGroup",),
        "parketto.planning": (
            "DatasetStats",
            "GroupPlan",
            "collect_dataset_stats",
            "plan_compaction_groups",
            "plan_optimize_groups",
        ),
        "parketto.stats": (
            "ChangedFile",
            "CheckReport",
            "Damage",
            "EditStats",
            "MaintenanceStats",
            "OtherSchema",
            "RestoreStats",
            "WriteStats",
        ),
        "parketto.storage.footers": ("FileInfo",),
        "parketto.storage.options": (
            "AwsStorageOptions",
            "LocalStorageOptions",
            "StorageOptions",
        ),
        "parketto.storage.row_groups": (
            "ColumnStats",
            "RowGroupInfo",
        ),
    }.items()
    for name in names
}


def __getattr__(name: str) -> _Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
