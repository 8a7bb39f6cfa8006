"""Writing one Parquet file out of the row groups of others, as the bytes that they are."""

from __future__ import annotations

import contextlib
import functools
import operator
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import IO

from parketto.errors import FooterError, InvalidArgument
from parketto.rowgroups.area import AREA, united_area
from parketto.rowgroups.compact import Fields, encode, encode_structs
from parketto.rowgroups.compatible import (
    SameArrowSchema,
    common_writer,
    places_of,
    why_not_copied,
    why_not_exchanged,
    why_not_together,
)
from parketto.rowgroups.describing import encoded_group, mark_cut_bounds, note, without_bounds
from parketto.rowgroups.footer import (
    MAGIC,
    ChunkKeys,
    FileKeys,
    Footer,
    GroupKeys,
    RowGroup,
    read_footer,
)
from parketto.rowgroups.placing import PlacedChunk, PlacedGroup, Placement, place
from parketto.rowgroups.transfer import check_size, copy_range, write_fully

_MAX_ORDINAL = 2**15 - 1
_MAX_FOOTER_BYTES = 2**31 - 1
_MAX_ROWS = 2**63 - 1


class RowGroupAppender:
    """Appends row groups to a new file.

    The first footer's schema and metadata hold for the file; `why_not_together` says which others fit. Areas of
    GeoParquet are united. Pages are copied as they are, and so are Bloom filters; page indexes are held until
    `finish` and written together before the footer, where readers expect to find all of them at once; if one
    column chunk has none, they are left out.

    What `append` refuses leaves the file as it was before, so a caller may write those rows in another way and
    append that. What is not finished is no valid file.

    Args:
        sink: Where to write: a new binary file.
        same_arrow_schema: As in `why_not_together`.
        index_all: Whether row groups without page indexes get some, made of the headers of their pages.
    """

    def __init__(
        self, sink: IO[bytes], *, same_arrow_schema: SameArrowSchema = operator.eq, index_all: bool = False
    ) -> None:
        with contextlib.suppress(OSError):  # a pipe does not know
            if sink.tell():
                raise InvalidArgument("a Parquet file begins at the first byte, and the sink is not there")
        self._sink, self._same_arrow_schema = sink, same_arrow_schema
        self._place = functools.partial(place, index_all=index_all)
        self._first: Footer | None = None
        self._writers: set[bytes | None] = set()
        self._origins = 0
        self._last_origin: object = None
        self._areas: list[bytes] = []
        self._parts: set[tuple[object, ...]] = set()
        self._version = 1
        self._groups: list[tuple[PlacedGroup, bool]] = []
        self._num_rows = 0
        self._orders: bytes | None = None
        self._position = 0
        self._taken_over = 0
        self._open = True

    def __enter__(self) -> RowGroupAppender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._open:
            self.finish()
        self._open = False

    @property
    def is_open(self) -> bool:
        """Whether more can be appended: not after `finish`, nor after an error in the middle of a row group."""
        return self._open

    @property
    def size_bytes(self) -> int:
        """The bytes written so far; the footer and page indexes come on top."""
        return self._position

    @property
    def num_rows(self) -> int:
        """The rows of all row groups so far."""
        return self._num_rows

    @property
    def num_row_groups(self) -> int:
        """How many row groups there are so far."""
        return len(self._groups)

    def append(self, source: IO[bytes], footer: Footer, row_groups: Sequence[int] | None = None) -> None:
        """Copy row groups of a file.

        Args:
            source: The file: anything binary that can seek.
            footer: Its footer, from `read_footer`.
            row_groups: The numbers of the row groups, in the order wanted; None takes all. Those without rows are
                left out.

        Raises:
            FooterError: They cannot be copied as they are; says why.
        """
        self._check_open()
        numbers = range(len(footer.row_groups)) if row_groups is None else row_groups
        if any(not 0 <= number < len(footer.row_groups) for number in numbers) or len(set(numbers)) < len(numbers):
            raise InvalidArgument(f"the file has {len(footer.row_groups)} row groups, each of which goes in once")
        self._check_together(footer)
        check_size(source, footer.file_size)
        placement = self._place(source, footer, numbers, self._position or len(MAGIC))
        self._write([(source, placement)])
        self._took(footer, placement.groups)
        if placement.groups:
            self._came_from(footer)

    def graft(
        self,
        source: IO[bytes],
        footer: Footer,
        number: int,
        patch: IO[bytes],
        patch_footer: Footer,
        sorting_columns: bytes | None = None,
    ) -> None:
        """Copy a row group of a file, with some of its columns from another file, which has no others.

        Args:
            source: The file: anything binary that can seek.
            footer: Its footer, from `read_footer`.
            number: The number of the row group.
            patch: A file with one row group of as many rows.
            patch_footer: Its footer. Its notes do not count: what those of the first file say of how to read it
                must hold for these columns, too.
            sorting_columns: The order that the row group declares now, raw; None leaves it.

        Raises:
            FooterError: They cannot be copied as they are, or do not go together; says why.
        """
        self._check_open()
        if not 0 <= number < len(footer.row_groups):
            raise InvalidArgument(f"the file has {len(footer.row_groups)} row groups")
        self._check_together(footer)
        positions = places_of(footer, patch_footer)
        group, donor = footer.row_groups[number], patch_footer.row_groups[0]
        if donor.num_rows != group.num_rows or not group.num_rows:
            raise FooterError(f"columns of {donor.num_rows} rows do not fit to {group.num_rows} rows")
        others = set(range(len(footer.leaves))) - positions
        parts = [
            (source, footer, number, {at: at for at in others}),
            (patch, patch_footer, 0, dict(enumerate(sorted(positions)))),
        ]
        self._weave(footer, parts, group.sorting_columns if sorting_columns is None else sorting_columns)
        self._added(patch_footer)
        self._came_from(footer)
        self._came_from(patch_footer)

    def assemble(
        self, whole: Footer, parts: Iterable[tuple[IO[bytes], Footer]], sorting_columns: bytes = b""
    ) -> None:
        """Append a row group whose columns are in several files, some in each.

        Each is copied before the next one is asked for, so that no two need to be there at once. A part that is
        refused ends the file, unless it is the first one.

        Args:
            whole: The footer of a file with all columns; its row groups do not matter.
            parts: Files with one row group each, of as many rows, and their footers: together they have the
                columns in their order. Their notes do not count.
            sorting_columns: The order that the row group declares, raw.

        Raises:
            FooterError: They cannot be copied as they are, or do not go together; says why.
        """
        self._check_open()
        self._check_together(whole)
        start = self._position or len(MAGIC)
        groups: list[RowGroup] = []
        placed: list[PlacedGroup] = []
        chunks: list[PlacedChunk] = []
        for source, part in parts:
            self._check_part(whole, part, range(len(chunks), len(chunks) + len(part.leaves)))
            groups.append(part.row_groups[0])
            if groups[-1].num_rows != groups[0].num_rows or not groups[0].num_rows:
                raise FooterError("the parts have different numbers of rows, or none")
            check_size(source, part.file_size)
            placement = self._place(source, part, [0], self._position or len(MAGIC))
            self._write([(source, placement)])
            self._open = False  # until all of them are there
            placed += placement.groups
            chunks += placement.groups[0].chunks
            self._added(part)
        if len(chunks) != len(whole.leaves) or not chunks:
            raise FooterError(f"the parts have {len(chunks)} columns of {len(whole.leaves)}")
        self._open = True
        group = PlacedGroup(placed[0].fields, placed[0].num_rows, chunks)
        self._take(whole, group, start, groups, sorting_columns)
        self._came_from(self)

    def weave(
        self,
        whole: Footer,
        parts: Sequence[tuple[IO[bytes], Footer, Mapping[int, int]]],
        sorting_columns: bytes = b"",
    ) -> None:
        """Append a row group whose leaf columns are in several files, some in each, in any order.

        Args:
            whole: The footer of a file with all columns; its row groups do not matter.
            parts: Files with one row group each, their footers, and which of their leaves become which of the
                whole, by number.
            sorting_columns: As for `assemble`, and so are errors.
        """
        self._check_open()
        self._check_together(whole)
        self._weave(whole, [(source, part, 0, leaves) for source, part, leaves in parts], sorting_columns)
        for _, part, _ in parts:
            self._added(part)
        self._came_from(self)

    def _weave(
        self,
        whole: Footer,
        parts: Sequence[tuple[IO[bytes], Footer, int, Mapping[int, int]]],
        sorting_columns: bytes,
    ) -> None:
        """Append some leaves of one row group of each file, as those of one row group."""
        start = end = self._position or len(MAGIC)
        placements: list[tuple[IO[bytes], Placement]] = []
        groups: list[RowGroup] = []
        chunks: dict[int, PlacedChunk] = {}
        # Readers that split a file expect the first column where the row group begins.
        for source, part, number, leaves in sorted(parts, key=lambda each: 0 not in each[3].values()):
            if any(part.leaves[mine] != whole.leaves[at] for mine, at in leaves.items()):
                raise FooterError("columns cannot be put together: the columns of a part are others")
            check_size(source, part.file_size)
            placement = self._place(source, part, [number], end, leaves.keys())
            end = placement.end
            placements.append((source, placement))
            groups.append(part.row_groups[number].narrowed(leaves.keys()))
            chunks |= zip((leaves[mine] for mine in sorted(leaves)), placement.groups[0].chunks, strict=True)
        rows = {group.num_rows for group in groups}
        if len(rows) != 1 or sorted(chunks) != list(range(len(whole.leaves))):
            raise FooterError("the parts do not have the same rows, or not all columns")
        self._write(placements)
        first = next(placed for source, placed in placements if source is parts[0][0]).groups[0]
        group = PlacedGroup(first.fields, first.num_rows, [chunks[at] for at in range(len(chunks))])
        self._take(whole, group, start, groups, sorting_columns)

    def take_over(self, whole: Footer) -> None:
        """Take over the file that another writer has written into the sink.

        Its row groups stay where they are, and what follows them, its footer among it, is written over. If it has
        no page indexes, they are made of the headers of its pages.

        Args:
            whole: The footer of a file with the same columns, whose schema and notes this one gets.

        Raises:
            FooterError: It has other columns, or is no file that can be read.
        """
        self._check_open()
        if self._position:
            raise InvalidArgument("row groups that were there before come first")
        self._check_together(whole)
        found = read_footer(self._sink)
        # The pages are those of its writer, whatever becomes of its footer.
        whole = whole.created_as(found)
        reason = why_not_copied(found) or why_not_exchanged(whole, found, range(len(found.leaves)))
        if reason is not None:
            raise FooterError(f"row groups cannot be taken over: {reason}")
        for group in found.row_groups:
            for column in group.columns:
                mark_cut_bounds(column.meta)
        placement = place(self._sink, found, range(len(found.row_groups)), None, index_all=True)
        self._sink.seek(placement.end)
        self._position, self._taken_over = placement.end, found.file_size
        self._took(whole, placement.groups)
        self._added(found)

    def _check_part(self, whole: Footer, part: Footer, positions: range) -> None:
        """Whether a file has these columns and no others. What is known of one holds for the next one like it."""
        known = (whole.schema, whole.column_orders, part.schema, part.column_orders, part.created_by, positions)
        reason = why_not_copied(part) or (None if len(part.row_groups) == 1 else "a part has one row group")
        if reason is None and known not in self._parts:
            if whole.leaves[positions.start : positions.stop] != part.leaves:
                reason = "the columns of a part are others"
            reason = reason or why_not_exchanged(whole, part, positions)
        if reason is not None:
            raise FooterError(f"columns cannot be put together: {reason}")
        self._parts.add(known)

    def _take(
        self,
        footer: Footer,
        whole: PlacedGroup,
        start: int,
        parts: Sequence[RowGroup],
        sorting_columns: bytes,
    ) -> None:
        """Note a row group that is made of parts of others, and was written to `start`."""
        whole.fields[GroupKeys.FILE_OFFSET] = start
        whole.fields[GroupKeys.TOTAL_BYTE_SIZE] = sum(part.total_uncompressed_size for part in parts)
        whole.fields[GroupKeys.TOTAL_COMPRESSED_SIZE] = sum(part.total_compressed_size for part in parts)
        whole.fields.pop(GroupKeys.SORTING_COLUMNS, None)
        if sorting_columns:
            whole.fields[GroupKeys.SORTING_COLUMNS] = sorting_columns
        self._took(footer, [whole])

    def _came_from(self, origin: object) -> None:
        self._origins += origin is not self._last_origin
        self._last_origin = origin

    def _added(self, part: Footer) -> None:
        self._writers.add(part.created_by)
        self._version = max(self._version, part.fields.get(FileKeys.VERSION, 1))

    def finish(self, key_value_metadata: Mapping[bytes, bytes] | None = None) -> int:
        """Write what makes it a Parquet file; the file's size. The sink stays open.

        Args:
            key_value_metadata: What to note in the file instead of the first footer's notes.
        """
        self._check_open()
        if self._first is None:
            raise InvalidArgument("a file without a schema is no Parquet file: nothing was appended")
        self._open = False
        groups = [self._finished(group, ordered=ordered) for group, ordered in self._groups]
        footer = encode(self._footer(self._first, self._write_indexes(groups), key_value_metadata))
        if len(footer) > _MAX_FOOTER_BYTES:
            raise FooterError("the footer would be too long")
        # A file that was taken over does not get shorter: to cut off its end, filesystems first write out all that
        # waits to be written. Nobody reads what stands before a footer without being sent there.
        unused = bytes(max(0, self._taken_over - self._position - len(footer) - 8))
        write_fully(self._sink, unused + footer + struct.pack("<I", len(footer)) + MAGIC)
        return self._position + len(unused) + len(footer) + 8

    def _write(self, placements: Sequence[tuple[IO[bytes], Placement]]) -> None:
        rows = max(sum(group.num_rows for group in placement.groups) for _, placement in placements)
        if self._num_rows + rows > _MAX_ROWS:
            raise FooterError("no file can have so many rows")
        self._open = False  # until all is copied: half a row group cannot be taken back
        if not self._position:
            write_fully(self._sink, MAGIC)
        for source, placement in placements:
            for run in placement.runs:
                copy_range(source, run.start, run.size, self._sink)
            self._position = placement.end
        self._open = True

    def _took(self, footer: Footer, groups: Sequence[PlacedGroup]) -> None:
        area = footer.key_value_metadata.get(AREA)
        self._num_rows += sum(group.num_rows for group in groups)
        self._groups += [(group, footer.column_orders is not None) for group in groups]
        self._first = self._first or footer
        self._orders = self._orders or footer.column_orders
        self._added(footer)
        if area is not None and area not in self._areas[-1:]:
            self._areas.append(area)

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidArgument("the file is finished, or was given up")

    def _check_together(self, footer: Footer) -> None:
        _ = footer.key_value_metadata  # what cannot be read is found here
        if self._first is None:
            reason = why_not_copied(footer)
        else:
            reason = why_not_together(self._first, footer, same_arrow_schema=self._same_arrow_schema)
        if reason is None and None not in (self._orders, footer.column_orders):
            reason = "their bounds are in different orders" if self._orders != footer.column_orders else None
        if reason is not None:
            raise FooterError(f"row groups cannot be copied: {reason}")

    def _finished(self, group: PlacedGroup, *, ordered: bool) -> PlacedGroup:
        """Readers trust bounds whose order the footer declares. Those that came without do not become trusted."""
        if ordered or self._orders is None:
            return group
        return PlacedGroup(group.fields, group.num_rows, [without_bounds(chunk) for chunk in group.chunks])

    def _write_indexes(self, groups: list[PlacedGroup]) -> list[bytes]:
        chunks = [chunk for group in groups for chunk in group.chunks]
        # All columns or none: some readers look at the first one only, others give up at one without.
        if not all(chunk.offset_index for chunk in chunks):
            chunks = []
        for chunk in chunks:
            self._write_index(
                chunk, chunk.column_index, ChunkKeys.COLUMN_INDEX_OFFSET, ChunkKeys.COLUMN_INDEX_LENGTH
            )
        for chunk in chunks:
            self._write_index(
                chunk, chunk.offset_index, ChunkKeys.OFFSET_INDEX_OFFSET, ChunkKeys.OFFSET_INDEX_LENGTH
            )
        numbered = len(groups) <= _MAX_ORDINAL + 1
        return [encoded_group(group, number if numbered else None) for number, group in enumerate(groups)]

    def _write_index(self, chunk: PlacedChunk, index: bytes, offset_key: int, length_key: int) -> None:
        if index:
            chunk.fields[offset_key], chunk.fields[length_key] = self._position, len(index)
            write_fully(self._sink, index)
            self._position += len(index)

    def _footer(self, first: Footer, groups: list[bytes], notes: Mapping[bytes, bytes | None] | None) -> Fields:
        # Only known fields: an unknown one of a whole file (a second footer in FlatBuffers, say) would be stale.
        fields: Fields = {
            FileKeys.VERSION: self._version,
            FileKeys.SCHEMA: first.schema,
            FileKeys.NUM_ROWS: self.num_rows,
            FileKeys.ROW_GROUPS: encode_structs(groups),
        }
        if notes is None and len(self._areas) > 1:
            notes = {**first.key_value_metadata, AREA: united_area(self._areas)}
        if notes is not None:
            fields[FileKeys.KEY_VALUES] = encode_structs([note(name, value) for name, value in notes.items()])
        elif FileKeys.KEY_VALUES in first.fields:
            fields[FileKeys.KEY_VALUES] = first.fields[FileKeys.KEY_VALUES]
        created_by = common_writer(first, self._writers, several=self._origins > 1)
        if created_by is not None:
            fields[FileKeys.CREATED_BY] = created_by
        if self._orders is not None:
            fields[FileKeys.COLUMN_ORDERS] = self._orders
        return fields


def append_files(sources: Iterable[IO[bytes]], sink: IO[bytes]) -> int:
    """Make one file of all row groups of some files, in order; its size. The files must fit together."""
    with RowGroupAppender(sink) as out:
        for source in sources:
            out.append(source, read_footer(source))
        return out.finish()
