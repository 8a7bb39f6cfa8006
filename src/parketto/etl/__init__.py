"""The operations guide as classes: argument mapping over `Dataset`, nothing else."""

from parketto.etl.compactor import CompactionStats, ParquetCompactor
from parketto.etl.crud import CRUDStats, ParquetCRUD
from parketto.etl.repartitioner import Repartitioner, RepartitionStats, SizeEstimate

__all__ = [
    "CRUDStats",
    "CompactionStats",
    "ParquetCRUD",
    "ParquetCompactor",
    "RepartitionStats",
    "Repartitioner",
    "SizeEstimate",
]
