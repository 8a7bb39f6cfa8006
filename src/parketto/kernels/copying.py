"""Putting files together whose row groups are copied, all or some of them."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import IO

import pyarrow as pa

from parketto.errors import FooterError
from parketto.kernels.ahead import read_ahead
from parketto.kernels.carrier import carrier_schema
from parketto.kernels.damage import refuse_damage
from parketto.kernels.reader import BatchReader, OpenFile
from parketto.kernels.sizes import small_dictionaries
from parketto.kernels.splicing import Choices, SplicingWriter
from parketto.kernels.work import StagedFile, Worker
from parketto.kernels.write import Output
from parketto.plan.rewrite import FileGroup
from parketto.rowgroups import Footer, RowGroup, read_footer
from parketto.rowgroups.footer import MetaKeys
from parketto.storage.footers import FileInfo
from parketto.storage.row_groups import CODECS

# Larger row groups serve no reader better, and of several one is encoded while rows for the next are read.
_ENCODED_ROWS = 256 * 1024


def copier(
    output: Output,
    worker: Worker,
    like: tuple[IO[bytes], Footer] | None = None,
    row_group_rows: int | None = None,
    *,
    mixed: bool = True,
) -> SplicingWriter:
    """A writer for one new file; its row groups have as many rows as the output says, or else so many.

    If copied row groups and encoded ones are `mixed`, all get page indexes, unless that would take long.
    """
    return SplicingWriter(
        worker.store,
        output.format,
        worker.new_files(output.prefix, output.directory),
        row_group_bytes=worker.row_group_bytes,
        row_group_rows=output.row_group_rows or row_group_rows,
        like=like,
        threads=worker.threads if worker.use_threads else 0,
        index_all=mixed and worker.store.often_cached,
        choices=worker.cache.setdefault("dictionaries", Choices()),
    )


def has_codec(group: RowGroup, codec: str) -> bool:
    """Whether all columns of a row group have a codec."""
    return all(column.codec == CODECS.get(codec) for column in group.columns)


def small_categories(schema: pa.Schema) -> frozenset[str]:
    """The names of columns of categories with a small index type."""
    return frozenset(schema.names[position] for position in small_dictionaries(schema))


def can_be_read_back(group: RowGroup, footer: Footer, small: Collection[str]) -> bool:
    """Whether Arrow reads a row group among any others back into its own types.

    Categories with a small index type must have a dictionary: without one, Arrow counts their values on from those
    of the row groups before, until there are more than the type can tell apart.
    """
    return not small or all(
        column.start < column.meta[MetaKeys.DATA_PAGE_OFFSET]
        for column, leaf in zip(group.columns, footer.leaves, strict=False)
        if leaf.path[0].decode() in small
    )


def codec_of(group: RowGroup, positions: Collection[int]) -> str | None:
    """The codec that some columns of a row group have, if it is one for all of them, and can be written."""
    found = {column.codec for position, column in enumerate(group.columns) if position in positions}
    return next((name for name, number in CODECS.items() if found == {number}), None)


def copy_files(group: FileGroup, output: Output, worker: Worker) -> tuple[StagedFile, ...]:
    """Make one file of a group's files: row groups are copied or encoded as the group says.

    What turns out not to be copied, because its bytes do not fit in, is encoded as well. Of files that are copied
    whole, nothing but footers, page indexes and the bytes themselves are read.

    Raises:
        UnreadableFile: A row group that the group wants verified is damaged.
        DoNotMix: Copied row groups and encoded ones do not go together: then all must be encoded.
    """
    schema = carrier_schema(group.schema).remove_metadata()
    reader = BatchReader(
        worker.store, schema, worker.batch_bytes, use_threads=worker.use_threads, widths=worker.widths
    )
    # What has begun to read must end with the task, not whenever Python collects it: threads work for it.
    with (
        copier(output, worker, row_group_rows=_ENCODED_ROWS, mixed=not all(map(all, group.copies))) as writer,
        closing(_copied_or_read(group, reader, writer, worker)) as found,
    ):
        for file, copies in found:
            with reader.open(file, for_bytes=True) as opened:
                for numbers in _copied_or_not(opened, copies, group, writer, worker):
                    # Where row groups stay as they are, each is read for itself; else all at once.
                    for some in ([number] for number in numbers) if group.keeps_row_groups else [numbers]:
                        for batch in worker.until_cancelled(opened.rows(*some)):
                            writer.write(batch)
                        if group.keeps_row_groups:
                            writer.cut()
    return tuple(writer.staged)


def _copied_or_read(
    group: FileGroup, reader: BatchReader, writer: SplicingWriter, worker: Worker
) -> Generator[tuple[FileInfo, Sequence[bool]], None, None]:
    """Write the rows of files of which nothing is copied; the others, in between, are for the caller."""
    pairs = zip(group.files, group.copies, strict=True)
    for whole, found in groupby(pairs, key=lambda pair: not any(pair[1]) and not group.keeps_row_groups):
        if not whole:
            yield from found
            continue
        rows = read_ahead(
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
    opened: OpenFile, copies: Sequence[bool], group: FileGroup, writer: SplicingWriter, worker: Worker
) -> Iterator[list[int]]:
    """Copy what is to be copied; the numbers of row groups whose rows are to be written, run by run."""
    footer, schema, codec = _footer(opened, copies), opened.file.schema, group.compression
    assert schema is not None, "files to put together come from a snapshot"
    small = small_categories(schema)
    wanted = [
        footer is not None
        and copied
        and (codec is None or has_codec(footer.row_groups[number], codec))
        and can_be_read_back(footer.row_groups[number], footer, small)
        for number, copied in enumerate(copies)
    ]
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


def _footer(opened: OpenFile, copies: Sequence[bool]) -> Footer | None:
    if not any(copies):
        return None
    try:
        footer = read_footer(opened.source)
    except FooterError:
        return None
    return footer if len(footer.row_groups) == len(copies) else None
