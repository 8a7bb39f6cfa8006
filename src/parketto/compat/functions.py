"""Functions for the PyArrow engine, which needs only PyArrow and fsspec."""

from __future__ import annotations

from collections.abc import Sequence

from fsspec import AbstractFileSystem

from parketto.dataset import Dataset
from parketto.planning.clustering import DEFAULT_CURVE, Curve
from parketto.planning.copy_policy import Rewrite
from parketto.results import MaintenanceStats
from parketto.storage.hive import PartitionFilter


def compact_parquet_dataset_pyarrow(
    path: str,
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    partition_filter: PartitionFilter = None,
    compression: str | None = None,
    dry_run: bool = False,
    filesystem: AbstractFileSystem | None = None,
    *,
    rewrite: Rewrite = "auto",
    verify: bool = False,
) -> MaintenanceStats:
    """Merge the small files of a dataset with PyArrow. See `Dataset.compact`.

    Example:
        >>> import pyarrow as pa
        >>> from parketto import Dataset
        >>> for part in range(4):
        ...     _ = Dataset("memory://compact-example", engine="pyarrow").write(pa.table({"part": [part]}))
        >>> stats = compact_parquet_dataset_pyarrow("memory://compact-example", target_mb_per_file=128)
        >>> stats["compacted_file_count"], stats["after_file_count"]
        (4, 1)
    """
    return Dataset(path, "pyarrow", filesystem=filesystem).compact(
        target_mb_per_file,
        target_rows_per_file,
        partition_filter=partition_filter,
        compression=compression,
        dry_run=dry_run,
        rewrite=rewrite,
        verify=verify,
    )


def optimize_parquet_dataset_pyarrow(
    path: str,
    zorder_columns: Sequence[str],
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    partition_filter: PartitionFilter = None,
    compression: str | None = None,
    dry_run: bool = False,
    filesystem: AbstractFileSystem | None = None,
    curve: Curve = DEFAULT_CURVE,
) -> MaintenanceStats:
    """Cluster the rows of a dataset by columns with PyArrow. See `Dataset.optimize`.

    Example:
        >>> import pyarrow as pa
        >>> from parketto import Dataset
        >>> dataset = Dataset("memory://optimize-example", engine="pyarrow")
        >>> _ = dataset.write(pa.table({"user": [3, None, 1]}))
        >>> stats = optimize_parquet_dataset_pyarrow("memory://optimize-example", zorder_columns=["user"])
        >>> dataset.read().column("user").to_pylist()
        [1, 3, None]
    """
    return Dataset(path, "pyarrow", filesystem=filesystem).optimize(
        zorder_columns,
        target_mb_per_file=target_mb_per_file,
        target_rows_per_file=target_rows_per_file,
        partition_filter=partition_filter,
        compression=compression,
        dry_run=dry_run,
        curve=curve,
    )
