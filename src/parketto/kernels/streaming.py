"""Encoding files anew with Polars: faster than Arrow, for those types and codecs that both write alike.

Polars streams the rows from file to file, and writes a footer of its own. Its row groups are taken over where they
lie, and get the footer that Arrow would have written.
"""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import IO, Literal, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import FooterError
from parketto.kernels.work import StagedFile, Worker
from parketto.kernels.write import Output
from parketto.kernels.writer import FileFormat
from parketto.plan.rewrite import FileGroup
from parketto.rowgroups import RowGroupAppender
from parketto.rowgroups.footer import MAGIC
from parketto.rowgroups.pages import has_checksums
from parketto.storage.footers import FileInfo
from parketto.storage.store import Store

# The version whose files were compared with Arrow's, value by value and bound by bound.
_TRUSTED = (2, 1)
# To load Polars takes as long as to encode about so much.
_WORTH_LOADING = 8 * 1024 * 1024
_MOST_ROWS = 128 * 1024
# So many rows are worth a row group, however wide they are (see `plan.copying`).
_LEAST_ROWS = 32 * 1024
# About 20,000 numbers, as Arrow has them in a page: so that the index of pages is of use.
_PAGE_BYTES = 160 * 1024
# What Polars compresses as Arrow does: names, and levels where there are several.
_Codec: TypeAlias = Literal["lz4", "uncompressed", "snappy", "gzip", "brotli", "zstd"]
_CODECS: dict[str, tuple[_Codec, int | None]] = {
    "none": ("uncompressed", None),
    "snappy": ("snappy", None),
    "lz4": ("lz4", None),
    "zstd": ("zstd", 1),
}
_TYPES = (
    pat.is_integer,
    pat.is_boolean,
    pat.is_float32,
    pat.is_float64,
    pat.is_string,
    pat.is_large_string,
    pat.is_binary,
    pat.is_large_binary,
    pat.is_date32,
    pat.is_timestamp,
)
# A column that is not nested, and may have NULLs: Polars writes no other.
_OPTIONAL = " 1/0"
# A stream of several row groups keeps all cores busy, and two of them would hold twice as much. One of a single
# row group keeps one core busy.
_ONE_AT_A_TIME = threading.Lock()


def stream_files(group: FileGroup, output: Output, worker: Worker) -> tuple[StagedFile, ...] | None:
    """Make one file of the rows of a group's files; None if Arrow must do it. All rows are encoded anew."""
    if not _is_for_polars(group, output, worker):
        return None
    # Loaded only here: it is not needed otherwise, and need not be there.
    from polars.exceptions import PanicException, PolarsError

    store, files = worker.store, [file for file in group.files if file.num_rows]
    staged = worker.new_files(output.prefix, output.directory)()
    try:
        if any(_has_checksums(store, file) for file in files):
            return None
        sources = [store.local_path(file.path) or file.path for file in files]
        target = store.local_path(staged.path) or staged.path
        row_group_rows = _row_group_rows(group, output, worker)
        with _ONE_AT_A_TIME if group.num_rows > row_group_rows else nullcontext():
            worker.check_cancelled()
            _stream(sources, target, output.format.codec, row_group_rows)
        worker.check_cancelled()
        with store.open_written(staged.path) as file:
            _take_over(file, output.format, group.num_rows)
    except (PolarsError, PanicException, FooterError, OSError):
        # What is wrong with the files, or with the disk, Arrow finds as well, and then an error names the file.
        store.remove(staged.path)
        return None
    return (staged,)


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
    sizes = [part.total_byte_size for file in group.files for part in file.row_groups]
    return (
        worker.any_thread
        and worker.store.local_path(group.directory) is not None
        and not any(map(any, group.copies))
        and not group.keeps_row_groups
        and not output.format.order_by
        and output.format.codec in _CODECS
        and group.num_rows > 0
        and max(sizes) <= worker.row_group_bytes
        and all(leaf.endswith(_OPTIONAL) for leaf in group.traits.leaves)
        and not group.traits.int96_timestamps
        and _are_plain(group.schema)
        and _has_polars()
        and _is_worth_loading(sum(sizes), worker)
    )


def _is_worth_loading(size: int, worker: Worker) -> bool:
    """Whether Polars is loaded already, or there is much to do: here, and in the tasks before."""
    seen = worker.cache["encoded"] = worker.cache.get("encoded", 0) + size
    return "polars" in sys.modules or seen >= _WORTH_LOADING


def _are_plain(schema: pa.Schema) -> bool:
    return len(set(schema.names)) == len(schema.names) and all(
        any(is_one(kind) for is_one in _TYPES) for kind in schema.types
    )


@functools.cache
def _has_polars() -> bool:
    try:
        found = version("polars").split(".")
    except PackageNotFoundError:
        return False
    return tuple(int(part) for part in found[:2] if part.isdigit()) >= _TRUSTED


def _has_checksums(store: Store, file: FileInfo) -> bool:
    """Whether the pages of a file have checksums: Polars would not look at them."""
    with store.open_input(file.path) as source:
        return has_checksums(source, len(MAGIC), file.size_bytes)


def _row_group_rows(group: FileGroup, output: Output, worker: Worker) -> int:
    size = sum(part.total_byte_size for file in group.files for part in file.row_groups)
    fitting = int(worker.row_group_bytes * group.num_rows / max(1, size))
    return min(output.row_group_rows or _MOST_ROWS, max(_LEAST_ROWS, min(fitting, _MOST_ROWS)))
