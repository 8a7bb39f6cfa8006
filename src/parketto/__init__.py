"""Parketto keeps plain Parquet datasets healthy: in place, atomically, rewriting as little as possible."""

import logging as _logging
from importlib.metadata import version as _version

from parketto import allocator as _allocator  # noqa: F401 - before anything else loads Arrow
from parketto.commit.recovery import Recovery
from parketto.dataset import Dataset
from parketto.engines.base import Progress
from parketto.errors import (
    AuthenticationFailed,
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
    ParkettoError,
    TransformFailed,
    UnreadableFile,
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
from parketto.stats import EditStats, MaintenanceStats, RestoreStats, WriteStats
from parketto.storage.footers import FileInfo
from parketto.storage.options import AwsStorageOptions, LocalStorageOptions, StorageOptions
from parketto.storage.row_groups import ColumnStats, RowGroupInfo

__version__ = _version("parketto")

# A library speaks through logging only where the program has set it up.
_logging.getLogger(__name__).addHandler(_logging.NullHandler())

__all__ = [
    "Advice",
    "AuthenticationFailed",
    "AwsStorageOptions",
    "CRUDStats",
    "ColumnNotFound",
    "ColumnStats",
    "CommitConflict",
    "CommitError",
    "CommitFailed",
    "CommitStateUnknown",
    "CompactionStats",
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
    "WriteStats",
    "collect_dataset_stats",
    "compact_parquet_dataset_pyarrow",
    "optimize_parquet_dataset_pyarrow",
    "plan_compaction_groups",
    "plan_optimize_groups",
    "sql",
]
