"""Builds one Parquet file from row groups of other files, copied as bytes."""

from __future__ import annotations

import contextlib
import functools
import operator
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import IO

from parketto.errors import FooterError, InvalidArgument
from parketto.parquet.column_metadata import (
    encoded_group,
    encoded_key_value,
    mark_truncated_bounds,
    without_bounds,
)
from parketto.parquet.compatible import (
    SameArrowSchema,
    common_writer,
    leaf_positions,
    why_not_combinable,
    why_not_copied,
    why_not_replaceable,
)
from parketto.parquet.footer import MAGIC, ChunkKeys, FileKeys, Footer, GroupKeys, RowGroup, read_footer
from parketto.parquet.geo_area import GEO_KEY, merged_geo
from parketto.parquet.offsets import CopyPlan, MovedChunk, MovedRowGroup, compute_offsets
from parketto.parquet.thrift import Fields, encode, encode_structs
from parketto.parquet.transfer import check_size, copy_range, write_fully

_MAX_ORDINAL = 2**15 - 1  # row group ordinals are i16; files with more row groups have none
_MAX_FOOTER_BYTES = 2**31 - 1  # the largest signed 32-bit footer length
_MAX_ROWS = 2**63 - 1  # num_rows is an i64


class RowGroupAppender:
    """Appends row groups to a new file.

    The first footer's schema and metadata apply to the whole file; `why_not_combinable` decides which other files
    are compatible. GeoParquet bounding boxes are merged. Pages and Bloom filters are copied unchanged. Page
    indexes are buffered until `finish` and written together before the footer, where readers expect to find all
    of them at once. If one column chunk has no page index, the file gets none.

    If `append` refuses row groups, the file is unchanged: the caller may encode their rows and append those.
    Without `finish` the file is not valid.

    Args:
        sink: A new binary file.
        same_arrow_schema: See `why_not_combinable`.
        index_all: Build page indexes from page headers for row groups that have none.
    """

    def __init__(
        self, sink: IO[bytes], *, same_arrow_schema: SameArrowSchema = operator.eq, index_all: bool = False
    ) -> None:
        with contextlib.suppress(OSError):  # a pipe has no position
            if sink.tell():
                raise InvalidArgument("the sink is not at its first byte, where a Parquet file must begin")
        self._sink, self._same_arrow_schema = sink, same_arrow_schema
        self._offsets_of = functools.partial(compute_offsets, index_all=index_all)
        self._first: Footer | None = None
        self._writers: set[bytes | None] = set()
        self._num_sources = 0
        self._last_source: object = None
        self._areas: list[bytes] = []
        self._checked_parts: set[tuple[object, ...]] = set()
        self._version = 1
        self._groups: list[tuple[MovedRowGroup, bool]] = []
        self._num_rows = 0
        self._orders: bytes | None = None
        self._position = 0
        self._taken_over_bytes = 0
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
        """The bytes written so far, without page indexes and footer."""
        return self._position

    @property
    def num_rows(self) -> int:
        """The number of rows so far."""
        return self._num_rows

    @property
    def num_row_groups(self) -> int:
        """The number of row groups so far."""
        return len(self._groups)

    def append(self, source: IO[bytes], footer: Footer, row_groups: Sequence[int] | None = None) -> None:
        """Copy row groups of a file.

        Args:
            source: The file, binary and seekable.
            footer: Its footer, from `read_footer`.
            row_groups: The numbers of the row groups, in output order; None copies all. Empty ones are skipped.

        Raises:
            FooterError: They cannot be copied as bytes; the message gives the reason.
        """
        self._check_open()
        numbers = range(len(footer.row_groups)) if row_groups is None else row_groups
        if any(not 0 <= number < len(footer.row_groups) for number in numbers) or len(set(numbers)) < len(numbers):
            raise InvalidArgument(
                f"cannot copy row groups {list(numbers)}: the file has {len(footer.row_groups)} row groups, "
                "and each can be copied once"
            )
        self._check_compatible(footer)
        check_size(source, footer.file_size)
        placement = self._offsets_of(source, footer, numbers, self._position or len(MAGIC))
        self._write([(source, placement)])
        self._record_groups(footer, placement.groups)
        if placement.groups:
            self._count_source(footer)

    def replace_columns(
        self,
        source: IO[bytes],
        footer: Footer,
        number: int,
        patch: IO[bytes],
        patch_footer: Footer,
        sorting_columns: bytes | None = None,
    ) -> None:
        """Copy a row group of a file, with some of its columns replaced by those of another file.

        Args:
            source: The file, binary and seekable.
            footer: Its footer, from `read_footer`.
            number: The number of the row group.
            patch: A file with only the replacement columns, in one row group with the same number of rows.
            patch_footer: Its footer. Its key-value metadata is ignored: what that of the first file declares
                about reading must hold for these columns, too.
            sorting_columns: The sorting columns that the row group declares now, raw; None keeps the old ones.

        Raises:
            FooterError: They cannot be copied as bytes, or are incompatible; the message gives the reason.
        """
        self._check_open()
        if not 0 <= number < len(footer.row_groups):
            raise InvalidArgument(f"no row group {number}: the file has {len(footer.row_groups)} row groups")
        self._check_compatible(footer)
        positions = leaf_positions(footer, patch_footer)
        group, patch_group = footer.row_groups[number], patch_footer.row_groups[0]
        if patch_group.num_rows != group.num_rows or not group.num_rows:
            raise FooterError(
                f"columns of {patch_group.num_rows} rows do not fit a row group of {group.num_rows} rows"
            )
        kept = set(range(len(footer.leaves))) - positions
        parts = [
            (source, footer, number, {at: at for at in kept}),
            (patch, patch_footer, 0, dict(enumerate(sorted(positions)))),
        ]
        self._weave(footer, parts, group.sorting_columns if sorting_columns is None else sorting_columns)
        self._record_writer(patch_footer)
        self._count_source(footer)
        self._count_source(patch_footer)

    def assemble(
        self, whole: Footer, parts: Iterable[tuple[IO[bytes], Footer]], sorting_columns: bytes = b""
    ) -> None:
        """Append a row group whose columns are spread over several files.

        Each part is copied before the next one is requested, so that only one is needed at a time. If any part
        but the first is refused, nothing more can be appended.

        Args:
            whole: The footer of a file with all columns; its row groups are ignored.
            parts: Files with one row group each, all with the same number of rows, and their footers. Together
                they have all columns in schema order. Their key-value metadata is ignored.
            sorting_columns: The sorting columns that the row group declares, raw.

        Raises:
            FooterError: They cannot be copied as bytes, or are incompatible; the message gives the reason.
        """
        self._check_open()
        self._check_compatible(whole)
        start = self._position or len(MAGIC)
        groups: list[RowGroup] = []
        placed: list[MovedRowGroup] = []
        chunks: list[MovedChunk] = []
        for source, part in parts:
            self._check_part(whole, part, range(len(chunks), len(chunks) + len(part.leaves)))
            groups.append(part.row_groups[0])
            if groups[-1].num_rows != groups[0].num_rows or not groups[0].num_rows:
                raise FooterError("the parts have different numbers of rows, or no rows")
            check_size(source, part.file_size)
            placement = self._offsets_of(source, part, [0], self._position or len(MAGIC))
            self._write([(source, placement)])
            self._open = False  # until all parts are copied
            placed += placement.groups
            chunks += placement.groups[0].chunks
            self._record_writer(part)
        if len(chunks) != len(whole.leaves) or not chunks:
            raise FooterError(f"the parts have {len(chunks)} of {len(whole.leaves)} columns")
        self._open = True
        group = MovedRowGroup(placed[0].fields, placed[0].num_rows, chunks)
        self._record_assembled(whole, group, start, groups, sorting_columns)
        self._count_source(self)

    def weave(
        self,
        whole: Footer,
        parts: Sequence[tuple[IO[bytes], Footer, int, Mapping[int, int]]],
        sorting_columns: bytes = b"",
    ) -> None:
        """Append a row group whose leaf columns are spread over several files, in any order.

        Args:
            whole: The footer of a file with all columns; its row groups are ignored.
            parts: Files, their footers, the numbers of the row groups, and their leaf positions mapped to those in
                `whole`.
            sorting_columns: The sorting columns that the row group declares, raw.

        Raises:
            FooterError: They cannot be copied as bytes, or are incompatible; the message gives the reason.
        """
        self._check_open()
        self._check_compatible(whole)
        self._weave(whole, parts, sorting_columns)
        for _, part, _, _ in parts:
            self._record_writer(part)
        self._count_source(self)

    def _weave(
        self,
        whole: Footer,
        parts: Sequence[tuple[IO[bytes], Footer, int, Mapping[int, int]]],
        sorting_columns: bytes,
    ) -> None:
        """Append some leaves of one row group per file, as one row group."""
        start = end = self._position or len(MAGIC)
        placements: list[tuple[IO[bytes], CopyPlan]] = []
        groups: list[RowGroup] = []
        chunks: dict[int, MovedChunk] = {}
        # Readers that split files expect the first column at the start of the row group.
        for source, part, number, leaves in sorted(parts, key=lambda each: 0 not in each[3].values()):
            if any(part.leaves[mine] != whole.leaves[at] for mine, at in leaves.items()):
                raise FooterError("columns cannot be combined: the columns of a part differ from the schema")
            check_size(source, part.file_size)
            placement = self._offsets_of(source, part, [number], end, leaves.keys())
            end = placement.end
            placements.append((source, placement))
            groups.append(part.row_groups[number].narrowed(leaves.keys()))
            chunks |= zip((leaves[mine] for mine in sorted(leaves)), placement.groups[0].chunks, strict=True)
        rows = {group.num_rows for group in groups}
        if len(rows) != 1 or sorted(chunks) != list(range(len(whole.leaves))):
            raise FooterError("the parts have different numbers of rows, or lack columns")
        self._write(placements)
        first = next(placed for source, placed in placements if source is parts[0][0]).groups[0]
        group = MovedRowGroup(first.fields, first.num_rows, [chunks[at] for at in range(len(chunks))])
        self._record_assembled(whole, group, start, groups, sorting_columns)

    def take_over(self, whole: Footer) -> None:
        """Take over the file that another writer has written into the sink.

        Its row groups stay in place. Everything after them is overwritten, its footer included. If it has no page
        indexes, they are built from its page headers.

        Args:
            whole: The footer of a file with the same columns. This file gets its schema and key-value metadata.

        Raises:
            FooterError: It has different columns, or is not a readable Parquet file.
        """
        self._check_open()
        if self._position:
            raise InvalidArgument("a file can only be taken over before row groups are appended")
        self._check_compatible(whole)
        found = read_footer(self._sink)
        # created_by must name the writer of the pages.
        whole = whole.created_as(found)
        reason = why_not_copied(found) or why_not_replaceable(whole, found, range(len(found.leaves)))
        if reason is not None:
            raise FooterError(f"row groups cannot be taken over: {reason}")
        for group in found.row_groups:
            for column in group.columns:
                mark_truncated_bounds(column.meta)
        placement = compute_offsets(self._sink, found, range(len(found.row_groups)), None, index_all=True)
        self._sink.seek(placement.end)
        self._position, self._taken_over_bytes = placement.end, found.file_size
        self._record_groups(whole, placement.groups)
        self._record_writer(found)

    def _check_part(self, whole: Footer, part: Footer, positions: range) -> None:
        """Check that a file has exactly these columns. Schemas that have passed are not checked again."""
        known = (whole.schema, whole.column_orders, part.schema, part.column_orders, part.created_by, positions)
        reason = why_not_copied(part) or (None if len(part.row_groups) == 1 else "a part must have one row group")
        if reason is None and known not in self._checked_parts:
            if whole.leaves[positions.start : positions.stop] != part.leaves:
                reason = "the columns of a part differ from the schema"
            reason = reason or why_not_replaceable(whole, part, positions)
        if reason is not None:
            raise FooterError(f"columns cannot be combined: {reason}")
        self._checked_parts.add(known)

    def _record_assembled(
        self,
        footer: Footer,
        whole: MovedRowGroup,
        start: int,
        parts: Sequence[RowGroup],
        sorting_columns: bytes,
    ) -> None:
        """Record a row group that was assembled from parts and written at `start`."""
        whole.fields[GroupKeys.FILE_OFFSET] = start
        whole.fields[GroupKeys.TOTAL_BYTE_SIZE] = sum(part.total_uncompressed_size for part in parts)
        whole.fields[GroupKeys.TOTAL_COMPRESSED_SIZE] = sum(part.total_compressed_size for part in parts)
        whole.fields.pop(GroupKeys.SORTING_COLUMNS, None)
        if sorting_columns:
            whole.fields[GroupKeys.SORTING_COLUMNS] = sorting_columns
        self._record_groups(footer, [whole])

    def _count_source(self, source: object) -> None:
        self._num_sources += source is not self._last_source
        self._last_source = source

    def _record_writer(self, part: Footer) -> None:
        self._writers.add(part.created_by)
        self._version = max(self._version, part.fields.get(FileKeys.VERSION, 1))

    def finish(self, key_value_metadata: Mapping[bytes, bytes] | None = None) -> int:
        """Write page indexes and footer; return the file's size. The sink stays open.

        Args:
            key_value_metadata: Replaces the first footer's key-value metadata.
        """
        self._check_open()
        if self._first is None:
            raise InvalidArgument("nothing was appended: a Parquet file needs a schema")
        self._open = False
        groups = [self._with_trusted_bounds(group, ordered=ordered) for group, ordered in self._groups]
        footer = encode(self._footer(self._first, self._write_indexes(groups), key_value_metadata))
        if len(footer) > _MAX_FOOTER_BYTES:
            raise FooterError(f"the footer would have {len(footer)} bytes, more than {_MAX_FOOTER_BYTES}")
        # A file that was taken over is padded: truncating it would make the filesystem flush it first. Readers
        # ignore bytes that no offset refers to.
        unused = bytes(max(0, self._taken_over_bytes - self._position - len(footer) - 8))
        write_fully(self._sink, unused + footer + struct.pack("<I", len(footer)) + MAGIC)
        return self._position + len(unused) + len(footer) + 8

    def _write(self, placements: Sequence[tuple[IO[bytes], CopyPlan]]) -> None:
        rows = max(sum(group.num_rows for group in placement.groups) for _, placement in placements)
        if self._num_rows + rows > _MAX_ROWS:
            raise FooterError(f"the file would have {self._num_rows + rows} rows, more than {_MAX_ROWS}")
        self._open = False  # until all is copied: a partial row group cannot be undone
        if not self._position:
            write_fully(self._sink, MAGIC)
        for source, placement in placements:
            for run in placement.runs:
                copy_range(source, run.start, run.size, self._sink)
            self._position = placement.end
        self._open = True

    def _record_groups(self, footer: Footer, groups: Sequence[MovedRowGroup]) -> None:
        area = footer.key_value_metadata.get(GEO_KEY)
        self._num_rows += sum(group.num_rows for group in groups)
        self._groups += [(group, footer.column_orders is not None) for group in groups]
        self._first = self._first or footer
        self._orders = self._orders or footer.column_orders
        self._record_writer(footer)
        if area is not None and area not in self._areas[-1:]:
            self._areas.append(area)

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidArgument("the file is finished, or was abandoned after an error")

    def _check_compatible(self, footer: Footer) -> None:
        _ = footer.key_value_metadata  # raises if it cannot be decoded
        if self._first is None:
            reason = why_not_copied(footer)
        else:
            reason = why_not_combinable(self._first, footer, same_arrow_schema=self._same_arrow_schema)
        if reason is None and None not in (self._orders, footer.column_orders):
            reason = "their column orders differ" if self._orders != footer.column_orders else None
        if reason is not None:
            raise FooterError(f"row groups cannot be copied: {reason}")

    def _with_trusted_bounds(self, group: MovedRowGroup, *, ordered: bool) -> MovedRowGroup:
        """Drop bounds without a declared order: readers would trust them beside the footer's column orders."""
        if ordered or self._orders is None:
            return group
        return MovedRowGroup(group.fields, group.num_rows, [without_bounds(chunk) for chunk in group.chunks])

    def _write_indexes(self, groups: list[MovedRowGroup]) -> list[bytes]:
        chunks = [chunk for group in groups for chunk in group.chunks]
        # All column chunks or none: some readers check only the first one, others give up at one without an index.
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

    def _write_index(self, chunk: MovedChunk, index: bytes, offset_key: int, length_key: int) -> None:
        if index:
            chunk.fields[offset_key], chunk.fields[length_key] = self._position, len(index)
            write_fully(self._sink, index)
            self._position += len(index)

    def _footer(self, first: Footer, groups: list[bytes], metadata: Mapping[bytes, bytes | None] | None) -> Fields:
        # Only known fields: an unknown one (a second footer in FlatBuffers, say) would be stale.
        fields: Fields = {
            FileKeys.VERSION: self._version,
            FileKeys.SCHEMA: first.schema,
            FileKeys.NUM_ROWS: self.num_rows,
            FileKeys.ROW_GROUPS: encode_structs(groups),
        }
        if metadata is None and len(self._areas) > 1:
            metadata = {**first.key_value_metadata, GEO_KEY: merged_geo(self._areas)}
        if metadata is not None:
            fields[FileKeys.KEY_VALUES] = encode_structs(
                [encoded_key_value(name, value) for name, value in metadata.items()]
            )
        elif FileKeys.KEY_VALUES in first.fields:
            fields[FileKeys.KEY_VALUES] = first.fields[FileKeys.KEY_VALUES]
        created_by = common_writer(first, self._writers, several=self._num_sources > 1)
        if created_by is not None:
            fields[FileKeys.CREATED_BY] = created_by
        if self._orders is not None:
            fields[FileKeys.COLUMN_ORDERS] = self._orders
        return fields
