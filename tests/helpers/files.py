"""Descriptions of Parquet files that exist in memory only."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.parquet.file_info import FileInfo, FooterReader
from parketto.storage.store import FileEntry


def file_of(table, partition=(), **options) -> FileInfo:
    """The `FileInfo` of a file with these rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    data = sink.getvalue()
    return FooterReader(None, None).describe(FileEntry("t/a.parquet", data.size, ""), data, partition)
