"""delta-rs: the same files as a Delta table. Making them one is not timed; old files stay, as is its way."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, WriterProperties, convert_to_deltalake
from deltalake import Schema as DeltaSchema

from harness.request import Request


def prepare(request: Request) -> None:
    """Make a table of the files."""
    if request.partition_columns:
        fields = [pa.field(name, pa.int32()) for name in request.partition_columns]
        partitions = DeltaSchema.from_arrow(pa.schema(fields))
        convert_to_deltalake(request.root, partition_by=partitions, partition_strategy="hive")
    else:
        convert_to_deltalake(request.root)


def compact(request: Request, _: None) -> None:
    """Its bin packing."""
    DeltaTable(request.root).optimize.compact(target_size=request.target_mb << 20)


def cluster(request: Request, _: None) -> None:
    """Its z-order."""
    size = request.target_mb << 20
    properties = None
    if request.target_rows:
        parts = -(-request.rows // request.target_rows)
        size = sum(os.path.getsize(path) for path in result_files(request, None)) // parts
        properties = WriterProperties(max_row_group_size=request.target_rows)
    DeltaTable(request.root).optimize.z_order(
        list(request.columns), target_size=size, writer_properties=properties
    )


def upsert(request: Request, _: None) -> None:
    """Its merge."""
    new = pq.read_table(request.source)
    merger = DeltaTable(request.root).merge(new, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def delete(request: Request, _: None) -> None:
    """By a condition."""
    DeltaTable(request.root).delete(request.where())


def update(request: Request, _: None) -> None:
    """By a condition."""
    column, factor = request.assign
    DeltaTable(request.root).update({column: f"{column} * {factor}"}, predicate=request.where())


def result_files(request: Request, _: None) -> list[str]:
    """The files that the log names."""
    uris = DeltaTable(request.root).file_uris()
    return [unquote(urlparse(uri).path) if "://" in uri else uri for uri in uris]


OPERATIONS = {"compact": compact, "cluster": cluster, "upsert": upsert, "delete": delete, "update": update}
