"""Inspects a dataset independently of Parketto: with fsspec and PyArrow, file by file."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem


def parquet_has_views() -> bool:
    """Whether this PyArrow reads string views back from Parquet; older ones cannot."""
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(pa.table({"v": pa.array(["x"], pa.string_view())}), sink)
        return bool(pq.read_table(pa.BufferReader(sink.getvalue())).schema.field("v").type == pa.string_view())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False


def data_files(root: str, fs: AbstractFileSystem | None = None) -> list[str]:
    fs = fs or fsspec.filesystem("file")
    return sorted(
        path
        for path in fs.find(root)
        if path.endswith(".parquet")
        and not any(part.startswith(("_", ".")) for part in path[len(root) :].strip("/").split("/"))
    )


def read_file(path: str, fs: AbstractFileSystem | None = None) -> pa.Table:
    """A file as a table, without its clustering metadata."""
    fs = fs or fsspec.filesystem("file")
    table = pq.ParquetFile(pa.BufferReader(bytes(fs.cat_file(path)))).read()
    kept = {key: value for key, value in (table.schema.metadata or {}).items() if key != b"parketto.clustering"}
    return table.replace_schema_metadata(kept or None)


def rows(root: str, fs: AbstractFileSystem | None = None) -> Counter[str]:
    """Every row with its partition directory, counted: order does not matter, duplicates do."""
    counted: Counter[str] = Counter()
    for path in data_files(root, fs):
        directory = os.path.dirname(path)[len(root) :]
        counted.update(f"{directory} {row!r}" for row in read_file(path, fs).to_pylist())
    return counted


def file_state(root: str, fs: AbstractFileSystem | None = None) -> dict[str, str]:
    """Every file of any kind below the root and a hash of its bytes."""
    fs = fs or fsspec.filesystem("file")
    return {path[len(root) :]: hashlib.sha256(fs.cat_file(path)).hexdigest() for path in fs.find(root)}


def schemas(root: str, fs: AbstractFileSystem | None = None) -> list[pa.Schema]:
    return [read_file(path, fs).schema for path in data_files(root, fs)]


def write_files(
    root: str, tables: dict[str, pa.Table], fs: AbstractFileSystem | None = None, **options: Any
) -> None:
    """Write each table to its relative path, as any other program would."""
    fs = fs or fsspec.filesystem("file")
    for relative, table in tables.items():
        fs.makedirs(os.path.dirname(f"{root}/{relative}"), exist_ok=True)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **options)
        path = f"{root}/{relative}"
        if isinstance(fs, LocalFileSystem):
            # Complete before its name appears: other writers may read the dataset at the same time.
            unfinished = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.unfinished")
            fs.pipe_file(unfinished, sink.getvalue().to_pybytes())
            os.replace(unfinished, path)
        else:
            fs.pipe_file(path, sink.getvalue().to_pybytes())


def row_groups(content: bytes) -> Iterator[tuple[int, str]]:
    """The rows of each row group of a file, and a hash of its bytes."""
    footer = pq.ParquetFile(pa.BufferReader(content)).metadata
    for number in range(footer.num_row_groups):
        group, digest = footer.row_group(number), hashlib.sha256()
        for column in map(group.column, range(group.num_columns)):
            start = column.dictionary_page_offset or column.data_page_offset
            digest.update(content[start : start + column.total_compressed_size])
        yield group.num_rows, digest.hexdigest()


def planned_row_groups(stats: Any) -> list[tuple[int, int]]:
    """The copied and encoded row groups of each planned group."""
    return [(each["copied_row_groups"], each["encoded_row_groups"]) for each in stats["planned_rewrites"]]
