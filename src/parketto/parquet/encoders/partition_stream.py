"""Distributes the rows of files to partition folders in one stream of Polars, where Polars writes as Arrow does.

Polars keeps a row group of each partition in memory and writes one file for each at once. So there must be few
partitions, which are counted first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from parketto.errors import FooterError
from parketto.parquet.calendars import CalendarCheck
from parketto.parquet.codec import PolarsFailed, polars_failures
from parketto.parquet.encoders.polars import (
    ONE_AT_A_TIME,
    is_readable,
    row_bytes,
    rows_per_group,
    scanned,
    sources_of,
    suits_polars,
)
from parketto.parquet.encoders.row_groups import CODECS, PAGE_BYTES, take_over
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output, Written
from parketto.parquet.partitions import folders
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker

if TYPE_CHECKING:
    import polars as pl

_MAX_PARTITIONS = 64  # with more, each row group would be too small
_MAX_BYTES = 2 * 1024**3  # a stream reports no progress, and cannot be cancelled
_MIN_ROWS, _MAX_ROWS = 32 * 1024, 128 * 1024  # per row group
# Python has no such date; or another version of Polars has other parameters, because these are declared unstable.
_UNSUITABLE = (ValueError, OverflowError, TypeError, AttributeError)
_ROLLED = 0.9  # files are limited by rows; this part of the wanted bytes leaves room for rows that are larger


def encode_partitions(files: Sequence[FileInfo], output: Output, worker: Worker) -> Written | None:
    """Write the rows of files to the folders of their partitions, where they keep their order.

    Args:
        files: The files. They contain the partition columns.
        output: The specification of new files.
        worker: The resources of the task.

    Returns:
        The new files; None if Arrow must do it.
    """
    filled = [file for file in files if file.num_rows]
    if not filled or not _suits_stream(filled, output, worker):
        return None
    stream = _PartitionStream(filled, output, worker)
    try:
        if not all(is_readable(worker.store, file) for file in filled):
            return None
        with polars_failures():
            if not stream.has_few_partitions():
                return None
            with ONE_AT_A_TIME:
                worker.check_cancelled()
                stream.run()
        worker.check_cancelled()
        written = stream.finished()
    except (PolarsFailed, FooterError, OSError, *_UNSUITABLE):
        stream.remove()
        return None
    if worker.file_read is not None:
        for file in files:
            worker.file_read(file)
    return written


def _suits_stream(files: Sequence[FileInfo], output: Output, worker: Worker) -> bool:
    schema = output.format.schema
    return (
        sum(file.size_bytes for file in files) <= _MAX_BYTES
        and _may_fit(files, worker)
        and not output.sort_by
        and output.checks is None
        and output.max_rows is None
        and schema.equals(output.row_schema)
        and all(_is_exact(schema.field(name).type) for name in output.partition_by)
        and all(file.schema is not None and file.schema.equals(schema) for file in files)
        and all(file.traits == output.format.traits for file in files)
        and suits_polars(files, output, worker)
        and not CalendarCheck(schema, output.format.metadata, output.format.traits.int96).limits_any
        and not any(
            CalendarCheck(schema, file.stored.metadata, file.stored.traits.int96).limits_any for file in files
        )
    )


def _may_fit(files: Sequence[FileInfo], worker: Worker) -> bool:
    """Whether a row group of one partition may fit into memory, by the footers: values expand when decoded."""
    size = sum(group.total_byte_size for file in files for group in file.row_groups)
    return _MIN_ROWS * size <= 2 * worker.run_bytes * sum(file.num_rows for file in files)


def _is_exact(kind: pa.DataType) -> bool:
    """Whether equal values of a type are the same value: floats are not."""
    return bool(pat.is_integer(kind) or pat.is_boolean(kind) or pat.is_date32(kind) or pat.is_string(kind))


class _PartitionStream:
    def __init__(self, files: Sequence[FileInfo], output: Output, worker: Worker) -> None:
        self._files, self._output, self._worker = files, output, worker
        self._num_rows = sum(file.num_rows for file in files)
        self._sources = sources_of(worker.store, files)
        self._rows: Counter[str] = Counter()
        self._folders: dict[tuple[Any, ...], str] = {}
        self._staged: dict[tuple[str, int], StagedFile] = {}  # by folder, and number in the folder

    def has_few_partitions(self) -> bool:
        """Count the rows of each partition; return whether they are few enough, each with a folder of its own."""
        # Often, one file is enough to know that they are many.
        counts = None if self._counted(self._sources[:1]) is None else self._counted(self._sources)
        if counts is None:
            return False
        keys = counts.select(self._output.partition_by)
        names = folders(keys.to_arrow(), self._output.partition_by).to_pylist()
        self._folders = dict(zip(keys.rows(), names, strict=True))
        self._rows.update(dict(zip(names, counts.get_column(counts.columns[-1]).to_list(), strict=True)))
        # NULL and "" share a folder.
        return len(self._rows) == len(names)

    def _counted(self, sources: list[str]) -> pl.DataFrame | None:
        """The values of the partition columns, and how many rows have them; None if these are many."""
        import polars as pl

        keys = list(self._output.partition_by)
        count = f"{max(keys, key=len)}?"  # no key has this name
        found = scanned(sources).group_by(keys).agg(pl.len().alias(count)).collect(engine="streaming")
        return found if found.height <= _MAX_PARTITIONS else None

    def run(self) -> None:
        """Write all files."""
        import polars as pl

        row_group_bytes = 2 * self._worker.run_bytes / len(self._rows)  # a third of the memory for all of them
        fitting = row_group_bytes / row_bytes(self._files, self._output, self._worker)
        readable = rows_per_group(self._files, self._num_rows, self._output, self._worker)
        if readable is None or fitting < _MIN_ROWS:
            raise PolarsFailed("row groups of all partitions do not fit into memory")
        name, level = CODECS[self._output.format.codec]
        target = pl.PartitionBy(
            "",
            key=list(self._output.partition_by),
            include_key=True,
            file_path_provider=self._new_file,
            max_rows_per_file=self._rows_per_file(),
            approximate_bytes_per_file=None,
        )
        scanned(self._sources).sink_parquet(
            target,
            compression=name,
            compression_level=level,
            row_group_size=int(min(fitting, _MAX_ROWS)),
            data_page_size=PAGE_BYTES,
            engine="streaming",
        )

    def _rows_per_file(self) -> int | None:
        if self._output.roll_bytes is None:
            return None
        size = sum(file.size_bytes for file in self._files)
        return max(1, int(_ROLLED * self._output.roll_bytes * self._num_rows / size))

    def _new_file(self, args: pl.io.partition.FileProviderArgs) -> str:
        folder = self._folders[args.partition_keys.row(0)]
        directory = self._output.directory_of(folder)
        staged = self._worker.new_files(self._output.prefix, directory)()
        self._staged[folder, args.index_in_partition] = staged  # called in any order
        return self._worker.store.local_path(staged.path) or staged.path

    def finished(self) -> Written:
        """The new files, with the footers that Arrow would have written.

        Raises:
            FooterError: Rows are missing.
        """
        in_order = sorted(self._staged.items())
        found = Counter[str]()
        for (folder, _), staged in in_order:
            with self._worker.store.open_written(staged.path) as file:
                rows = pq.read_metadata(file).num_rows
                file.seek(0)
                take_over(file, self._output.format, rows)
            found[folder] += rows
        if found != self._rows:
            raise FooterError("partitions have other numbers of rows than were counted")
        return Written(tuple(staged for _, staged in in_order), self._num_rows)

    def remove(self) -> None:
        """Remove what was written: Arrow writes all rows again."""
        for staged in self._staged.values():
            self._worker.store.remove(staged.path)
