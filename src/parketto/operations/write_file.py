"""Write one Parquet file atomically."""

from __future__ import annotations

import posixpath
import uuid

from parketto.engines.base import Context, Engine
from parketto.errors import NotADataset
from parketto.parquet.file_format import FileFormat
from parketto.parquet.output import Output
from parketto.parquet.row_source import RowSource
from parketto.runtime.staging import Staging
from parketto.storage.store import Store


def write_file(store: Store, path: str, source: RowSource, compression: str, engine: Engine) -> int:
    """Write rows to a file, replacing an existing one; returns the row count."""
    engine.check_store(store)
    if store.is_dir(path):
        raise NotADataset(f"{path!r} is a directory; expected the path of a file")
    parent = posixpath.dirname(path)
    # Hidden and in the same folder: the last step is a rename. A suffix could make the file's name too long.
    staging = Staging(f"{parent}/.parketto-{uuid.uuid4().hex}")
    store.make_dirs(f"{staging.directory}/new")
    try:
        output = Output(parent, FileFormat(source.schema, compression), source.schema, single=True)
        written = engine.write(source, output, Context(store, staging, "write"))
        (staged,) = written.staged
        if store.stat(path) is not None:
            store.inherit_access([staged.path], [path])
        store.sync([staged.path])
        store.move(staged.path, path)
        store.sync([path, parent])
    finally:
        store.remove_tree(staging.directory)
    return written.num_rows
