"""List the partitions of a dataset, with their files, rows and bytes."""

from __future__ import annotations

from itertools import groupby

from parketto.expressions.pruning import partition_value
from parketto.operations.context import DatasetContext
from parketto.parquet.partition_spec import partition_spec_of
from parketto.results import PartitionInfo
from parketto.storage.hive import PartitionFilter


def list_partitions(dataset: DatasetContext, partition_filter: PartitionFilter) -> list[PartitionInfo]:
    """The partitions in path order. Their values have the types of the dataset's columns."""
    files = dataset.snapshot(partition_filter).files
    spec = partition_spec_of(files)
    assert files[0].schema is not None, "files to read come from a snapshot"
    schema = spec.row_schema(files[0].schema)
    types = {name: schema.field(name).type for name in spec.partition_by}
    # A file without rows only has the schema, and may be in the root folder.
    placed = [file for file in files if file.num_rows or len(file.partition) == len(spec.partition_by)]
    found = []
    for _, group in groupby(placed, key=lambda file: file.partition):
        members = list(group)
        values = {name: partition_value(text, types[name]).as_py() for name, text in members[0].partition}
        found.append(
            PartitionInfo(
                values=values,
                files=len(members),
                rows=sum(file.num_rows for file in members),
                bytes=sum(file.size_bytes for file in members),
            )
        )
    return found
