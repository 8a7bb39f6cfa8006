"""Re-encodes files with Polars: faster than Arrow, for types and codecs that both write the same way.

Polars streams the rows from file to file, and writes its own footer. Its row groups stay where they are, and get
the footer that Arrow would have written.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.errors import FooterError
from parketto.parquet.codec import WORKLOAD, PolarsFailed, are_plain, forced, may_use_polars, polars_failures
from parketto.parquet.decoders.sound_pages import are_sound
from parketto.parquet.encoders.changing_stream import ChangingStream
from parketto.parquet.encoders.row_groups import CODECS, PAGE_BYTES, take_over
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output
from parketto.parquet.row_changes import RowChanges
from parketto.parquet.unreadable import naming_file
from parketto.runtime.batches import RowSizes, decoded_bytes, has_fixed_width
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker
from parketto.storage.store import Store

if TYPE_CHECKING:
    import polars as pl

_MAX_ROWS = 128 * 1024  # per row group, unless the output asks for more
_MIN_ROWS = 32 * 1024  # enough for a row group, however wide the rows are (see `planning.copy_policy`)
_MIN_CHANGED_ROWS = 64 * 1024  # for fewer rows, starting a stream takes longer than encoding by Arrow
_PROBE_ROWS = 512  # rows of a file that are decoded to estimate the row width
_FLOAT_BYTES = {"FLOAT": 4, "DOUBLE": 8}
_SMALL_FLOATS = 0.6  # of the size without a dictionary
# A nullable column that is not nested: Polars writes no other.
_OPTIONAL = " 1/0"
# A stream of several row groups uses all cores, and two streams would hold twice as much. A stream of a single row
# group uses one core.
ONE_AT_A_TIME = threading.Lock()


def encode_files(files: Sequence[FileInfo], output: Output, worker: Worker) -> StagedFile | None:
    """Write all rows of the files as one staged file; None if Arrow must do it."""
    filled = [file for file in files if file.num_rows]
    if not filled or not suits_polars(filled, output, worker):
        return None
    return _encoded(filled, sum(file.num_rows for file in filled), output, worker)


def suits_changes(files: Sequence[FileInfo], output: Output, worker: Worker) -> bool:
    """Whether `encode_changed_rows` may be used for the rows of files. Arrow changes few rows sooner."""
    num_rows = sum(file.num_rows for file in files)
    return (
        (num_rows >= _MIN_CHANGED_ROWS or forced() == "polars")
        and num_rows <= worker.row_group_bytes  # what stays takes a byte per row
        and suits_polars(files, output, worker)
    )


def encode_changed_rows(
    files: Sequence[FileInfo], changes: RowChanges, output: Output, worker: Worker
) -> StagedFile | None:
    """Write the rows of files as one staged file, with changes.

    Args:
        files: The files, see `suits_changes`. None of them is empty.
        changes: The changes. Some rows are left.
        output: The specification of the new file.
        worker: The resources of the task.

    Returns:
        The file; None if Arrow must do it, or if the changes leave all rows of a file as they are.
    """
    left = changes.rows_left(0, sum(file.num_rows for file in files))
    return _encoded(files, left, output, worker, changes)


def _encoded(
    files: Sequence[FileInfo], num_rows: int, output: Output, worker: Worker, changes: RowChanges | None = None
) -> StagedFile | None:
    staged = worker.new_files(output.prefix, output.directory)()
    if not _streamed(files, num_rows, output, worker, staged, changes):
        worker.store.remove(staged.path)
        return None
    return staged


def _streamed(
    files: Sequence[FileInfo],
    num_rows: int,
    output: Output,
    worker: Worker,
    staged: StagedFile,
    changes: RowChanges | None,
) -> bool:
    """Whether Polars succeeded. If not, Arrow does it again: its errors name the file."""
    store = worker.store
    try:
        row_group_rows = rows_per_group(files, num_rows, output, worker)
        if row_group_rows is None or not all(is_readable(store, file) for file in files):
            return False
        target = store.local_path(staged.path) or staged.path
        with ONE_AT_A_TIME if num_rows > row_group_rows else nullcontext():
            worker.check_cancelled()
            with polars_failures():
                rows = scanned(sources_of(store, files))
                if changes is not None:
                    rows = ChangingStream(files, changes, worker.check_cancelled).of(rows)
                _stream(rows, target, output.format.codec, row_group_rows)
        worker.check_cancelled()
        with store.open_written(staged.path) as file:
            take_over(file, output.format, num_rows)
    except (PolarsFailed, FooterError, OSError, pa.ArrowInvalid):
        return False
    return True


def sources_of(store: Store, files: Sequence[FileInfo]) -> list[str]:
    """The local paths of files."""
    return [store.local_path(file.path) or file.path for file in files]


def scanned(sources: list[str]) -> pl.LazyFrame:
    """The rows of files, in order."""
    import polars as pl

    return pl.scan_parquet(
        sources, glob=False, hive_partitioning=False, use_statistics=False, cache=False, parallel="none"
    )


def _stream(rows: pl.LazyFrame, path: str, codec: str, row_group_rows: int) -> None:
    name, level = CODECS[codec]
    rows.sink_parquet(
        path,
        compression=name,
        compression_level=level,
        row_group_size=row_group_rows,
        data_page_size=PAGE_BYTES,
        engine="streaming",
    )


def suits_polars(files: Sequence[FileInfo], output: Output, worker: Worker) -> bool:
    """Whether Polars writes the same as Arrow, within the memory of the task, and pays off."""
    wanted = output.format
    return (
        worker.any_thread
        and worker.store.local_path(output.directory) is not None
        and not wanted.order_by
        and wanted.codec in CODECS
        and all(file.has_stored_types for file in files)
        and all(leaf.endswith(_OPTIONAL) for leaf in wanted.traits.leaves)
        and not wanted.traits.int96_timestamps
        and are_plain(wanted.readable_as or wanted.schema)
        and may_use_polars()
        and WORKLOAD.pays(sum(file.size_bytes for file in files))
    )


def is_readable(store: Store, file: FileInfo) -> bool:
    """Whether Polars may decode a file, and would not write it much larger."""
    with store.open_input(file.path) as source:
        metadata = pq.read_metadata(source)
        numbers = range(metadata.num_row_groups)
        if forced() != "polars" and any(_has_small_floats(metadata.row_group(number)) for number in numbers):
            return False
        return are_sound(source, metadata, numbers)


def _has_small_floats(group: pq.RowGroupMetaData) -> bool:
    """Whether a dictionary makes a column of floats much smaller: Polars writes none for them."""
    for chunk in map(group.column, range(group.num_columns)):
        if width := _FLOAT_BYTES.get(chunk.physical_type, 0):
            known = chunk.statistics is not None and chunk.statistics.has_null_count
            values = chunk.num_values - (chunk.statistics.null_count if known else 0)
            if chunk.total_uncompressed_size < _SMALL_FLOATS * values * width:
                return True
    return False


def rows_per_group(files: Sequence[FileInfo], num_rows: int, output: Output, worker: Worker) -> int | None:
    """The rows per row group: the same for all, and as many as fit into memory. None if too few would fit."""
    fitting = int(worker.row_group_bytes / row_bytes(files, output, worker))
    longest = max(
        max(part.num_rows for part in file.row_groups) if file.num_rows > fitting else 0 for file in files
    )
    if longest > fitting or 2 * fitting < _MIN_ROWS:
        return None
    most = min(output.row_group_rows or _MAX_ROWS, max(_MIN_ROWS, fitting))
    return math.ceil(num_rows / math.ceil(num_rows / most))


def row_bytes(files: Sequence[FileInfo], output: Output, worker: Worker) -> float:
    """The estimated decoded size of a row. Footers do not record it, so some rows are decoded."""
    schema = output.format.readable_as or output.format.schema
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
