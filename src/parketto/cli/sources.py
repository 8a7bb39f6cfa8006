"""Rows that commands read: files of all formats, datasets, and stdin."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parketto.cli.exits import UsageProblem

if TYPE_CHECKING:
    import pyarrow as pa

    from parketto.cli.command import CommandContext
    from parketto.cli.options import SourceFormat
    from parketto.dataset import Dataset

STDIN = "-"


def source_rows(dataset: Dataset, path: str, given: SourceFormat | None, *, evolve: bool = False) -> Any:
    """The rows of a source, for the operations of a dataset that take rows."""
    from parketto.operations.source_files import find_source_files, known_types, source_of

    found, given = spooled(path, given)
    options = dataset._storage_options
    files = find_source_files(found, given, dataset._store.fs, options)
    return source_of(files, dataset.engine, options, lambda: known_types(dataset._context, evolve=evolve))[0]


def file_table(context: CommandContext, path: str) -> pa.Table | None:
    """The rows of a file, in memory; None if the path is not a file, such as that of a dataset."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from parketto.engines.registry import get_engine
    from parketto.operations.source_files import find_source_files, source_of
    from parketto.storage.opening import open_store

    store, location = open_store(path, None, context.storage_options or None)
    if store.stat(location) is None:
        return None
    files = find_source_files(path, None, store.fs)
    (entry,) = files.entries
    if files.format == "parquet":
        with store.open_input(entry.path, entry) as file:
            return pq.ParquetFile(file).read()
    rows: Any = source_of(files, get_engine("pyarrow"))[0]
    return pa.Table.from_batches(rows.batches, rows.schema)


def spooled(path: str, given: SourceFormat | None) -> tuple[str, SourceFormat | None]:
    """The path of a source; stdin becomes a temporary file, because operations may read it more than once."""
    if path != STDIN:
        return path, given
    if given is None:
        raise UsageProblem("stdin has no suffix: pass --format csv, json, arrow or parquet; nothing was changed")
    folder = tempfile.mkdtemp(prefix="parketto-stdin-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder, f"stdin.{given}")
    with file.open("wb") as sink, contextlib.suppress(BrokenPipeError):
        shutil.copyfileobj(sys.stdin.buffer, sink)
    return str(file), given
