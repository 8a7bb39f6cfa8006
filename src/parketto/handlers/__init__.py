"""Functions and handlers for each engine: argument mapping over `Dataset`, nothing else."""

from parketto.handlers.duckdb import DuckDBParquetHandler
from parketto.handlers.functions import compact_parquet_dataset_pyarrow, optimize_parquet_dataset_pyarrow
from parketto.handlers.spark import SparkParquetHandler

__all__ = [
    "DuckDBParquetHandler",
    "SparkParquetHandler",
    "compact_parquet_dataset_pyarrow",
    "optimize_parquet_dataset_pyarrow",
]
