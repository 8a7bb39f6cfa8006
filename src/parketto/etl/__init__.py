"""The operations guide as classes: argument mapping over `Dataset`, nothing else."""

from parketto.etl.crud import CRUDStats, ParquetCRUD

__all__ = ["CRUDStats", "ParquetCRUD"]
