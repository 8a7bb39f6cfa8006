"""Polars by hand: a lazy scan of everything into a sink, streamed, and a swap."""

from __future__ import annotations

import os

import polars as pl

from harness.contestants.swapping import new_folder
from harness.request import Request


def prepare(_request: Request) -> None:
    """Importing it was all."""


def compact(request: Request, _: None) -> None:
    """From scan to sink."""
    _write(request, _scan(request))


def cluster(request: Request, _: None) -> None:
    """A sort over everything."""
    _write(request, _scan(request).sort(request.columns))


def upsert(request: Request, _: None) -> None:
    """All rows but those with a new key, and the new ones."""
    frame = _scan(request)
    new = pl.scan_parquet(request.source).select(frame.collect_schema().names())
    _write(request, pl.concat([frame.join(new, on="id", how="anti"), new]))


def delete(request: Request, _: None) -> None:
    """All other rows."""
    _write(request, _scan(request).filter(~pl.sql_expr(request.where())))


def update(request: Request, _: None) -> None:
    """A new column."""
    column, factor = request.assign
    matches = pl.sql_expr(request.where())
    _write(
        request,
        _scan(request).with_columns(pl.when(matches).then(pl.col(column) * factor).otherwise(pl.col(column))),
    )


def repartition(request: Request, _: None) -> None:
    """Into folders."""
    _write(request, _scan(request), request.columns)


def _scan(request: Request) -> pl.LazyFrame:
    return pl.scan_parquet(f"{request.root}/**/*.parquet", hive_partitioning=bool(request.partition_columns))


def _write(request: Request, frame: pl.LazyFrame, partitions: tuple[str, ...] = ()) -> None:
    partitions = partitions or request.partition_columns
    with new_folder(request.root) as out:
        target = pl.PartitionBy(out, key=list(partitions)) if partitions else os.path.join(out, "all.parquet")
        frame.sink_parquet(target, compression="snappy", maintain_order=request.operation == "cluster", mkdir=True)


OPERATIONS = {
    "compact": compact,
    "cluster": cluster,
    "upsert": upsert,
    "delete": delete,
    "update": update,
    "repartition": repartition,
}
