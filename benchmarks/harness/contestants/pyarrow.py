"""PyArrow by hand: a dataset into `write_dataset`, and a swap."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from harness.contestants.swapping import new_folder
from harness.request import Request

COMPARISONS = {"=": operator.eq, ">=": operator.ge, "<": operator.lt}


def prepare(_request: Request) -> None:
    """Importing it was all."""


def compact(request: Request, _: None) -> None:
    """From one dataset into another."""
    _write(request, _open(request))


def cluster(request: Request, _: None) -> None:
    """A sort of everything, in memory."""
    table = _open(request).to_table().sort_by([(name, "ascending") for name in request.columns])
    _write(request, table)


def upsert(request: Request, _: None) -> None:
    """All rows but those with a new key, and the new ones."""
    dataset = _open(request)
    new = pq.read_table(request.source).select(dataset.schema.names).cast(dataset.schema)
    kept = dataset.to_batches(filter=~pc.field("id").isin(new["id"].combine_chunks()))

    def rows() -> Iterator[pa.RecordBatch]:
        yield from kept
        yield from new.to_batches()

    _write(request, rows(), dataset.schema)


def delete(request: Request, _: None) -> None:
    """All other rows."""
    _write(request, _open(request).scanner(filter=~_expression(request)))


def update(request: Request, _: None) -> None:
    """A new column."""
    column, factor = request.assign
    dataset = _open(request)
    names = dataset.schema.names
    new = pc.if_else(_expression(request), pc.field(column) * factor, pc.field(column))
    columns = {name: new if name == column else pc.field(name) for name in names}
    _write(request, dataset.scanner(columns=columns))


def repartition(request: Request, _: None) -> None:
    """Into folders."""
    _write(request, _open(request), partitions=request.columns)


def _open(request: Request) -> ds.Dataset:
    partitioning = "hive" if request.partition_columns else None
    return ds.dataset(request.root, format="parquet", partitioning=partitioning)


def _expression(request: Request) -> pc.Expression:
    parts = [COMPARISONS[comparison](pc.field(name), value) for name, comparison, value in request.condition]
    return reduce(operator.and_, parts)


def _write(
    request: Request, rows: object, schema: pa.Schema | None = None, partitions: tuple[str, ...] = ()
) -> None:
    partitions = partitions or request.partition_columns
    most = -(-request.rows // request.parts)
    with new_folder(request.root) as out:
        ds.write_dataset(
            rows,
            out,
            schema=schema,
            format="parquet",
            partitioning=list(partitions) or None,
            partitioning_flavor="hive" if partitions else None,
            max_rows_per_file=max(most, 1),
            max_rows_per_group=min(most, 1_000_000),
            min_rows_per_group=min(most, 500_000),
            existing_data_behavior="overwrite_or_ignore",
        )


OPERATIONS = {
    "compact": compact,
    "cluster": cluster,
    "upsert": upsert,
    "delete": delete,
    "update": update,
    "repartition": repartition,
}
