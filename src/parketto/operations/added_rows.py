"""Scans of files that were added to a dataset: in the schema of the dataset, whatever columns they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from parketto.errors import DatasetNotFound
from parketto.operations.context import DatasetContext
from parketto.operations.read import RowQuery, Scan, scan_of
from parketto.parquet.bounded_columns import MentionedColumns
from parketto.parquet.dataset_schema import template_file, unified
from parketto.parquet.file_info import FileInfo
from parketto.parquet.snapshot import Snapshot, read_snapshot
from parketto.storage.store import FileEntry


def schema_template(dataset: DatasetContext, otherwise: pa.Schema) -> FileInfo:
    """A file with the columns of the dataset, for files that lack some; or, without one, of another schema."""
    try:
        first = dataset.snapshot().files[0]
    except DatasetNotFound:
        first = template_file(otherwise)
    return replace(first, path="the schema of the dataset", num_rows=0, row_groups=(), partition=())


def added_scans(
    dataset: DatasetContext, entries: Sequence[FileEntry], query: RowQuery, template: FileInfo
) -> Iterator[Scan]:
    """Scans of files: one for each way in which they are partitioned, because that may have changed meanwhile.

    Args:
        dataset: The dataset.
        entries: The files, which may be retired by now.
        query: Which rows and columns to read.
        template: A file with all columns that readers expect.
    """
    store = dataset.snapshot_store()
    mentioned = () if query.where is None else MentionedColumns(str(query.where))
    types = dataset.partition_types()
    groups: defaultdict[tuple[tuple[str, bool], ...], list[FileInfo]] = defaultdict(list)
    for file in read_snapshot(store, dataset.root, entries, mentioned).files:
        inside = () if file.schema is None else file.schema.names
        groups[tuple((name, name in inside) for name, _ in file.partition)].append(file)
    for names, files in groups.items():
        # Columns of the template that these files have in their paths only are read from there.
        own = _without(template, [name for name, is_inside in names if not is_inside])
        found = unified((own, *files), _casts(own, files)).files[1:]
        yield scan_of(dataset, Snapshot(dataset.root, found).with_path_types(types), query)


def _casts(template: FileInfo, files: Sequence[FileInfo]) -> dict[str, pa.DataType]:
    """The types of the template's columns that some file has with another one, such as before a cast."""
    assert template.schema is not None, "a template has a schema"
    schemas = {id(file.schema): file.schema for file in files if file.schema is not None}.values()
    return {
        field.name: field.type
        for field in template.schema
        if any(field.name in each.names and each.field(field.name).type != field.type for each in schemas)
    }


def _without(template: FileInfo, names: Sequence[str]) -> FileInfo:
    assert template.schema is not None, "a template has a schema"
    names = [name for name in names if name in template.schema.names]
    if not names:
        return template
    fields = [field for field in template.schema if field.name not in names]
    return replace(template, schema=pa.schema(fields, metadata=template.schema.metadata))
