"""The classes of ETL jobs: argument mapping over `Dataset`, nothing else."""

from parketto.etl.compactor import CompactionStats, ParquetCompactor
from parketto.etl.repartitioner import Repartitioner, RepartitionStats, SizeEstimate

__all__ = ["CompactionStats", "ParquetCompactor", "RepartitionStats", "Repartitioner", "SizeEstimate"]
