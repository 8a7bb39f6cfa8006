"""The last fsspeckit whose `optimize` took "z-order" columns: a plain sort of each group of files, in memory."""

from __future__ import annotations

import warnings

from fsspeckit.datasets.pyarrow import optimize_parquet_dataset_pyarrow

from harness.request import Request


def prepare(_request: Request) -> None:
    """Importing it was all."""
    warnings.simplefilter("ignore")


def cluster(request: Request, _: None) -> None:
    """Its optimisation."""
    optimize_parquet_dataset_pyarrow(
        request.root,
        list(request.columns),
        target_mb_per_file=None if request.target_rows else request.target_mb,
        target_rows_per_file=request.target_rows,
    )


OPERATIONS = {"cluster": cluster}
