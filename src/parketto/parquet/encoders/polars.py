"""Re-encodes files with Polars: faster than Arrow, for types and codecs that both write the same way.

Polars streams the rows from file to file, and writes its own footer. Its row groups stay where they are, and get
the footer that Arrow would have written.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import IO, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from parketto.errors import FooterError
from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.compatible import ASSEMBLED_BY
from parketto.parquet.decoded_types import is_plain
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_info import FileInfo
from parketto.parquet.footer import MAGIC
from parketto.parquet.output import Output
from parketto.parquet.page_index import has_checksums
from parketto.parquet.unreadable import naming_file
from parketto.runtime.batches import RowSizes, decoded_bytes, has_fixed_width
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker
from parketto.storage.store import Store

# Versions (from, below) whose files are compared with Arrow's, value by value and bound by bound.
_TRUSTED = ((2, 1), (3, 0))
_WORTH_LOADING = 6 * 1024 * 1024  # importing Polars takes as long as encoding about this many bytes
_MAX_ROWS = 128 * 1024  # per row group
_MIN_ROWS = 32 * 1024  # enough for a row group, however wide the rows are (see `planning.copy_policy`)
# About 32,000 numbers: few enough for a useful page index. Smaller pages take longer to write.
_PAGE_BYTES = 256 * 1024
# Codecs that Polars compresses as Arrow does: names, and levels where there are several.
_Codec: TypeAlias = Literal["lz4", "uncompressed", "snappy", "gzip", "brotli", "zstd"]
_CODECS: dict[str, tuple[_Codec, int | None]] = {
    "none": ("uncompressed", None),
    "snappy": ("snappy", None),
    "lz4": ("lz4", None),
    "zstd": ("zstd", 1),
}
_PROBE_ROWS = 512  # rows of a file that are decoded to estimate the row width
# A nullable column that is not nested: Polars writes no other.
_OPTIONAL = " 1/0"
# A stream of several row groups uses all cores, and two streams would hold twice as much. A stream of a single row
# group uses one core.
_ONE_AT_A_TIME = threading.Lock()
# Set in a process forked from one with Polars: Polars would wait for threads that only the parent has.
_FORKED = threading.Event()


def _after_fork() -> None:
    if "polars" in sys.modules:
        _FORKED.set()
        _has_polars.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def encode_files(files: Sequence[FileInfo], output: Output, worker: Worker) -> StagedFile | None:
    """Write all rows of the files as one staged file; None if Arrow must do it."""
    filled = [file for file in files if file.num_rows]
    if not filled or not _suits_polars(filled, output, worker):
        return None
    staged = worker.new_files(output.prefix, output.directory)()
    if not _streamed(filled, output, worker, staged):
        worker.store.remove(staged.path)
        return None
    return staged


def _streamed(files: Sequence[FileInfo], output: Output, worker: Worker, staged: StagedFile) -> bool:
    """Whether Polars succeeded. If not, Arrow does it again: its errors name the file."""
    try:
        # An optional dependency, which nothing else needs.
        from polars.exceptions import PanicException, PolarsError
    except ImportError:
        return False
    store, num_rows = worker.store, sum(file.num_rows for file in files)
    try:
        row_group_rows = _row_group_rows(files, output, worker)
        if row_group_rows is None or any(_may_have_checksums(store, file) for file in files):
            return False
        sources = [store.local_path(file.path) or file.path for file in files]
        target = store.local_path(staged.path) or staged.path
        with _ONE_AT_A_TIME if num_rows > row_group_rows else nullcontext():
            worker.check_cancelled()
            _stream(sources, target, output.format.codec, row_group_rows)
        worker.check_cancelled()
        with store.open_written(staged.path) as file:
            _take_over(file, output.format, num_rows)
    except (PolarsError, PanicException, FooterError, OSError):
        return False
    except KeyboardInterrupt:
        # Polars checks for signals in all threads. Python raises them in the main one only, if at all: a program
        # may handle Ctrl-C itself.
        if threading.current_thread() is threading.main_thread():
            raise
        return False
    return True


def _stream(sources: list[str], path: str, codec: str, row_group_rows: int) -> None:
    import polars as pl

    name, level = _CODECS[codec]
    rows = pl.scan_parquet(
        sources, glob=False, hive_partitioning=False, use_statistics=False, cache=False, parallel="none"
    )
    rows.sink_parquet(
        path,
        compression=name,
        compression_level=level,
        row_group_size=row_group_rows,
        data_page_size=_PAGE_BYTES,
        engine="streaming",
    )


def _take_over(file: IO[bytes], file_format: FileFormat, num_rows: int) -> None:
    """Replace the footer by the one that Arrow would have written."""
    with RowGroupAppender(file, same_arrow_schema=lambda _one, _other: True) as out:
        out.take_over(file_format.empty_footer)
        if out.num_rows != num_rows:
            raise FooterError(f"{out.num_rows} rows were written of {num_rows}")
        out.finish(file_format.metadata or {})


def _suits_polars(files: Sequence[FileInfo], output: Output, worker: Worker) -> bool:
    """Whether Polars writes the same as Arrow, within the memory of the task, and pays off."""
    wanted = output.format
    return (
        worker.any_thread
        and worker.store.local_path(output.directory) is not None
        and not wanted.order_by
        and wanted.codec in _CODECS
        and all(file.has_stored_types for file in files)
        and all(leaf.endswith(_OPTIONAL) for leaf in wanted.traits.leaves)
        and not wanted.traits.int96_timestamps
        and _are_plain(wanted.readable_as or wanted.schema)
        and _has_polars()
        and _is_worth_loading(sum(file.size_bytes for file in files), worker)
    )


def _is_worth_loading(size: int, worker: Worker) -> bool:
    """Whether Polars is imported already, or this task and earlier ones encode enough to pay for it."""
    seen = worker.cache["encoded"] = worker.cache.get("encoded", 0) + size
    return "polars" in sys.modules or seen >= _WORTH_LOADING


def _are_plain(schema: pa.Schema) -> bool:
    return len(set(schema.names)) == len(schema.names) and all(
        is_plain(kind) or (pat.is_timestamp(kind) and _is_zone(kind.tz)) for kind in schema.types
    )


@functools.cache
def _is_zone(name: str | None) -> bool:
    """Whether Polars probably knows a time zone: it panics if the zone has no name."""
    try:
        return name is None or bool(ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False


@functools.cache
def _has_polars() -> bool:
    if _FORKED.is_set():
        return False
    try:
        found = version("polars").split(".")
    except PackageNotFoundError:
        return False
    first, end = _TRUSTED
    return first <= tuple(int(part) for part in found[:2] if part.isdigit()) < end


def _may_have_checksums(store: Store, file: FileInfo) -> bool:
    """Whether pages of a file may have checksums: Polars would not verify them.

    The first page decides, unless pages come from several files.
    """
    if file.created_by.startswith(ASSEMBLED_BY):
        return True
    with store.open_input(file.path) as source:
        return has_checksums(source, len(MAGIC), file.size_bytes)


def _row_group_rows(files: Sequence[FileInfo], output: Output, worker: Worker) -> int | None:
    """The rows per row group: the same for all, and as many as fit into memory. None if too few would fit."""
    row_bytes = _row_bytes(files, output.format.readable_as or output.format.schema, worker)
    fitting = int(worker.row_group_bytes / row_bytes)
    longest = max(
        max(part.num_rows for part in file.row_groups) if file.num_rows > fitting else 0 for file in files
    )
    if longest > fitting or 2 * fitting < _MIN_ROWS:
        return None
    most = min(output.row_group_rows or _MAX_ROWS, max(_MIN_ROWS, min(fitting, _MAX_ROWS)))
    num_rows = sum(file.num_rows for file in files)
    return math.ceil(num_rows / math.ceil(num_rows / most))


def _row_bytes(files: Sequence[FileInfo], schema: pa.Schema, worker: Worker) -> float:
    """The estimated decoded size of a row. Footers do not record it, so some rows are decoded."""
    fixed = pa.schema([field for field in schema if has_fixed_width(field.type)])
    others = [field.name for field in schema if not has_fixed_width(field.type)]
    found = max(1.0, RowSizes(fixed).fixed or 0.0)
    if not others:
        return found
    # The first group of an operation is probed more thoroughly: the next ones are probably similar.
    known: dict[str, float] = worker.cache.setdefault("text bytes", {})
    places = {len(files) // 2} if known else {0, len(files) // 2, len(files) - 1}
    for at in places:
        file = files[at]
        rows = max(1, min(_PROBE_ROWS, worker.batch_bytes * file.num_rows // file.size_bytes))
        with worker.store.open_input(file.path) as source, naming_file(file.path):
            parquet = pq.ParquetFile(source, pre_buffer=False)
            batch = next(parquet.iter_batches(rows, columns=others, use_threads=False))
            known[file.path] = decoded_bytes(batch) / max(1, batch.num_rows)
    return found + max(list(known.values()))  # copied, because other tasks add to it
