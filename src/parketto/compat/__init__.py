"""Handler classes and functions that map their arguments to `Dataset`."""

from parketto.compat.compactor import CompactionStats, ParquetCompactor
from parketto.compat.crud import CRUDStats, ParquetCRUD
from parketto.compat.duckdb import DuckDBParquetHandler
from parketto.compat.functions import compact_parquet_dataset_pyarrow, optimize_parquet_dataset_pyarrow
from parketto.compat.repartitioner import Repartitioner, RepartitionStats, SizeEstimate
from parketto.compat.spark import SparkParquetHandler

__all__ = [
    "CRUDStats",
    "CompactionStats",
    "DuckDBParquetHandler",
    "ParquetCRUD",
    "ParquetCompactor",
    "RepartitionStats",
    "Repartitioner",
    "SizeEstimate",
    "SparkParquetHandler",
    "compact_parquet_dataset_pyarrow",
    "optimize_parquet_dataset_pyarrow",
]
