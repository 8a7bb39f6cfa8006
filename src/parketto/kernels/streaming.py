"""Encoding files anew with Polars: faster than Arrow, for those types and codecs that both write alike.

Polars streams the rows from file to file, and writes a footer of its own. Its row groups are taken over where they
lie, and get the footer that Arrow would have written.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import IO, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from parketto.errors import FooterError
from parketto.kernels.carrier import is_plain
from parketto.kernels.sizes import RowSizes, decoded_bytes, has_fixed_width
from parketto.kernels.work import StagedFile, Worker
from parketto.kernels.write import Output
from parketto.kernels.writer import FileFormat
from parketto.plan.rewrite import FileGroup
from parketto.rowgroups import RowGroupAppender
from parketto.rowgroups.compatible import ASSEMBLED_BY
from parketto.rowgroups.footer import MAGIC
from parketto.rowgroups.pages import has_checksums
from parketto.storage.footers import FileInfo
from parketto.storage.store import Store
from parketto.storage.unreadable import naming
from parketto.storage.writing_out import sent_while_written

# Versions whose files are compared with Arrow's, value by value and bound by bound: from the first to the second.
_TRUSTED = ((2, 1), (3, 0))
# To load Polars takes as long as to encode files of about so much.
_WORTH_LOADING = 6 * 1024 * 1024
_MOST_ROWS = 128 * 1024
# So many rows are worth a row group, however wide they are (see `plan.copying`).
_LEAST_ROWS = 32 * 1024
# About 32,000 numbers: few enough for the index of pages to be of use. Smaller ones take longer to write.
_PAGE_BYTES = 256 * 1024
# What Polars compresses as Arrow does: names, and levels where there are several.
_Codec: TypeAlias = Literal["lz4", "uncompressed", "snappy", "gzip", "brotli", "zstd"]
_CODECS: dict[str, tuple[_Codec, int | None]] = {
    "none": ("uncompressed", None),
    "snappy": ("snappy", None),
    "lz4": ("lz4", None),
    "zstd": ("zstd", 1),
}
# To see how wide rows are, so many of some files are decoded.
_PROBE_ROWS = 512
# A column that is not nested, and may have NULLs: Polars writes no other.
_OPTIONAL = " 1/0"
# A stream of several row groups keeps all cores busy, and two of them would hold twice as much. One of a single
# row group keeps one core busy.
_ONE_AT_A_TIME = threading.Lock()
# Set in a process that was forked from one with Polars: it would wait for threads that only the other one has.
_FORKED = threading.Event()


def _after_fork() -> None:
    if "polars" in sys.modules:
        _FORKED.set()
        _has_polars.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def stream_files(group: FileGroup, output: Output, worker: Worker) -> tuple[StagedFile, ...] | None:
    """Make one file of the rows of a group's files; None if Arrow must do it. All rows are encoded anew."""
    if not _is_for_polars(group, output, worker):
        return None
    staged = worker.new_files(output.prefix, output.directory)()
    if not _streamed(group, output, worker, staged):
        worker.store.remove(staged.path)
        return None
    return (staged,)


def _streamed(group: FileGroup, output: Output, worker: Worker, staged: StagedFile) -> bool:
    """Whether all went well. If not, it is for Arrow to find out why: its errors name the file."""
    try:
        # Loaded only here: it is not needed otherwise, and need not be there.
        from polars.exceptions import PanicException, PolarsError
    except ImportError:
        return False
    store, files = worker.store, [file for file in group.files if file.num_rows]
    try:
        row_group_rows = _row_group_rows(group, output, worker)
        if row_group_rows is None or any(_may_have_checksums(store, file) for file in files):
            return False
        sources = [store.local_path(file.path) or file.path for file in files]
        target = store.local_path(staged.path) or staged.path
        with _ONE_AT_A_TIME if group.num_rows > row_group_rows else nullcontext():
            worker.check_cancelled()
            with sent_while_written(target):
                _stream(sources, target, output.format.codec, row_group_rows)
        worker.check_cancelled()
        with store.open_written(staged.path) as file:
            _take_over(file, output.format, group.num_rows)
    except (PolarsError, PanicException, FooterError, OSError):
        return False
    except KeyboardInterrupt:
        # Polars looks for signals in all threads. Python raises them in the main one only, if at all: a program
        # may have something else in mind with a Ctrl-C.
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
    """Make the file one that Arrow could have written."""
    with RowGroupAppender(file, same_arrow_schema=lambda _one, _other: True) as out:
        out.take_over(file_format.empty_footer)
        if out.num_rows != num_rows:
            raise FooterError(f"{out.num_rows} rows were written of {num_rows}")
        out.finish(file_format.metadata or {})


def _is_for_polars(group: FileGroup, output: Output, worker: Worker) -> bool:
    """Whether Polars writes the same as Arrow, within the memory of the task, and it is worth it."""
    return (
        worker.any_thread
        and worker.store.local_path(group.directory) is not None
        and not any(map(any, group.copies))
        and not group.keeps_row_groups
        and not output.format.order_by
        and output.format.codec in _CODECS
        and group.num_rows > 0
        and all(leaf.endswith(_OPTIONAL) for leaf in group.traits.leaves)
        and not group.traits.int96_timestamps
        and _are_plain(group.schema)
        and _has_polars()
        and _is_worth_loading(group.size_bytes, worker)
    )


def _is_worth_loading(size: int, worker: Worker) -> bool:
    """Whether Polars is loaded already, or there is much to do: here, and in the tasks before."""
    seen = worker.cache["encoded"] = worker.cache.get("encoded", 0) + size
    return "polars" in sys.modules or seen >= _WORTH_LOADING


def _are_plain(schema: pa.Schema) -> bool:
    return len(set(schema.names)) == len(schema.names) and all(
        is_plain(kind) or (pat.is_timestamp(kind) and _is_zone(kind.tz)) for kind in schema.types
    )


@functools.cache
def _is_zone(name: str | None) -> bool:
    """Whether Polars is likely to know a time zone: one without a name makes it panic."""
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
    """Whether pages of a file may have checksums: Polars would not look at them.

    The first page tells, unless pages come from several files.
    """
    if file.created_by.startswith(ASSEMBLED_BY):
        return True
    with store.open_input(file.path) as source:
        return has_checksums(source, len(MAGIC), file.size_bytes)


def _row_group_rows(group: FileGroup, output: Output, worker: Worker) -> int | None:
    """How many rows row groups should have: equally many, and as many as fit. None if too few would fit."""
    row_bytes = _row_bytes(group, worker)
    fitting = int(worker.row_group_bytes / row_bytes)
    longest = max(
        max(part.num_rows for part in file.row_groups) if file.num_rows > fitting else 0 for file in group.files
    )
    if longest > fitting or 2 * fitting < _LEAST_ROWS:
        return None
    most = min(output.row_group_rows or _MOST_ROWS, max(_LEAST_ROWS, min(fitting, _MOST_ROWS)))
    return math.ceil(group.num_rows / math.ceil(group.num_rows / most))


def _row_bytes(group: FileGroup, worker: Worker) -> float:
    """How large a row is once it is decoded, which footers do not tell: some are decoded to see."""
    fixed = pa.schema([field for field in group.schema if has_fixed_width(field.type)])
    others = [field.name for field in group.schema if not has_fixed_width(field.type)]
    found = max(1.0, RowSizes(fixed).fixed or 0.0)
    if not others:
        return found
    # The first group of an operation shows more than the next ones, which are likely to be like it.
    files = [file for file in group.files if file.num_rows]
    known: dict[str, float] = worker.cache.setdefault("text bytes", {})
    places = {len(files) // 2} if known else {0, len(files) // 2, len(files) - 1}
    for at in places:
        file = files[at]
        rows = max(1, min(_PROBE_ROWS, worker.batch_bytes * file.num_rows // file.size_bytes))
        with worker.store.open_input(file.path) as source, naming(file.path):
            parquet = pq.ParquetFile(source, pre_buffer=False)
            batch = next(parquet.iter_batches(rows, columns=others, use_threads=False))
            known[file.path] = decoded_bytes(batch) / max(1, batch.num_rows)
    return found + max(list(known.values()))  # a list, because other tasks add to it
