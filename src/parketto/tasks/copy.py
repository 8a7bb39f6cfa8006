"""Combines files into one, copying all or some of their row groups."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import groupby

from parketto.errors import FooterError
from parketto.parquet.copy_rules import copyable, copyable_footer
from parketto.parquet.damage import refuse_damage
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.encoders.arrow import ENCODED_ROWS
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_writer import FileWriter, file_writer
from parketto.parquet.output import Output
from parketto.parquet.parallel_reader import read_parallel
from parketto.parquet.reader import BatchReader, OpenFile
from parketto.planning.rewrite import FileGroup
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker


def copy_files(group: FileGroup, output: Output, worker: Worker) -> tuple[StagedFile, ...]:
    """Combine a group's files into one: row groups are copied or encoded as the group declares.

    Row groups whose bytes turn out to be incompatible are encoded as well. Of files that are copied whole, only
    footers, page indexes and the bytes themselves are read.

    Raises:
        UnreadableFile: A row group that must be verified is damaged.
        CannotCombine: Copied row groups and encoded ones are incompatible: then all must be encoded.
    """
    schema = decoded_schema(group.schema).remove_metadata()
    reader = BatchReader(
        worker.store, schema, worker.batch_bytes, use_threads=worker.use_threads, widths=worker.widths
    )
    # Readers have threads, and so must end with the task, not whenever Python collects them.
    with (
        file_writer(
            output,
            worker,
            single_file=True,
            row_group_rows=ENCODED_ROWS,
            index_all=not all(map(all, group.copies)),
        ) as writer,
        closing(_copied_or_read(group, reader, writer, worker)) as found,
    ):
        for file, copies in found:
            with reader.open(file, for_bytes=True) as opened:
                for numbers in _copied_or_not(opened, copies, group, writer, worker):
                    # If row groups keep their bounds, each is read separately; else all are read at once.
                    for some in ([number] for number in numbers) if group.keeps_row_groups else [numbers]:
                        for batch in worker.until_cancelled(opened.rows(*some)):
                            writer.write(batch)
                        if group.keeps_row_groups:
                            writer.end_row_group()
    return tuple(writer.staged)


def _copied_or_read(
    group: FileGroup, reader: BatchReader, writer: FileWriter, worker: Worker
) -> Generator[tuple[FileInfo, Sequence[bool]], None, None]:
    """Write the rows of files without copied row groups; yield the other files in between."""
    pairs = zip(group.files, group.copies, strict=True)
    for whole, found in groupby(pairs, key=lambda pair: not any(pair[1]) and not group.keeps_row_groups):
        if not whole:
            yield from found
            continue
        rows = read_parallel(
            [file for file, _ in found],
            reader.read,
            worker.batch_bytes,
            threads=worker.threads,
            size_of=reader.sizes.of,
        )
        with closing(rows):
            for batch in worker.until_cancelled(rows):
                writer.write(batch)


def _copied_or_not(
    opened: OpenFile, copies: Sequence[bool], group: FileGroup, writer: FileWriter, worker: Worker
) -> Iterator[list[int]]:
    """Copy the row groups to copy; yield the numbers of those to encode, run by run."""
    schema = opened.file.schema
    assert schema is not None, "files to combine come from a snapshot"
    bytes_fit = any(copies) and opened.file.has_stored_types
    footer = copyable_footer(opened.source, len(copies)) if bytes_fit else None
    allowed = [] if footer is None else copyable(footer, schema, group.required_codec)
    wanted = [copied and bool(allowed) and allowed[number] for number, copied in enumerate(copies)]
    for copied, found in groupby(range(len(copies)), key=wanted.__getitem__):
        worker.check_cancelled()
        numbers = list(found)
        if copied and footer is not None:
            if opened.file.path in group.verify:
                refuse_damage(opened.file, worker, numbers)
            try:
                writer.copy(opened.source, footer, numbers)
            except FooterError:
                pass
            else:
                continue
        yield numbers
