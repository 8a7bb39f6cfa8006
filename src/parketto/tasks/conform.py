"""Rewrites a file in another schema: unchanged columns are copied as bytes, under new names if need be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import FooterError, IncompatibleTypes
from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.compatible import why_not_woven
from parketto.parquet.copy_rules import codec_of, copyable_footer
from parketto.parquet.dataset_schema import path_value
from parketto.parquet.decoded_types import decoded_schema, has_refused_nulls
from parketto.parquet.equality import equal_values
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_writer import file_writer
from parketto.parquet.footer import Footer, read_footer
from parketto.parquet.output import Output
from parketto.parquet.promotion import common_type, means_the_same, promoted
from parketto.parquet.reader import BatchReader, OpenFile
from parketto.parquet.schema import difference, narrowed
from parketto.parquet.thrift import I32, STRUCT, decode, decode_list, encode, encode_structs, key
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker

_COLUMN = key(1, I32)


@dataclass(frozen=True)
class Conformed:
    """A file in its new schema."""

    staged: StagedFile
    #: The columns whose bytes were copied.
    copied: int


@dataclass(frozen=True)
class ConformFile:
    """Write a file in the schema of an output."""

    #: The file as it is stored.
    file: FileInfo
    #: For each column of the output, the column of the file that it comes from. Others are NULL.
    origins: Mapping[str, str]
    output: Output

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.file.size_bytes

    def check_types(self) -> None:
        """Refuse pairs of types without a conversion, whatever the values are."""
        assert self.file.schema is not None, "files to conform come from a snapshot"
        own = decoded_schema(self.file.schema)
        for item in self.output.format.schema:
            if item.name not in self.origins:
                continue
            name = self.origins[item.name]
            kind, stored = own.field(name).type, self.file.schema.field(name).type
            try:
                found = promoted(pa.array([], kind), item.type)
                if not _is_exact(kind, item.type):
                    promoted(found, kind)  # values that change are found by casting them back
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise IncompatibleTypes(
                    f"column {name!r} of {self.file.path!r} is {stored}, and there is no conversion "
                    f"to {item.type}. Nothing was changed; choose another type, or add a column and "
                    "compute its values with update"
                ) from error

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that it reads."""
        return (self.file,)

    def run(self, worker: Worker) -> Conformed:
        """Copy what has not changed, and encode the rest. Row groups keep their rows."""
        assert self.file.schema is not None, "files to rewrite come from a snapshot"
        reader = BatchReader(worker.store, self.file.schema, worker.batch_bytes, use_threads=worker.use_threads)
        with reader.open(self.file, for_bytes=True) as opened:
            copies = self._copyable(opened)
            if copies is not None:
                staged = worker.new_files(self.output.prefix, self.output.directory)()
                try:
                    with worker.store.open_output(staged.path) as sink:
                        self._weave(opened, copies, sink, worker)
                    return Conformed(staged, len(copies.columns))
                except FooterError:  # the bytes do not allow it
                    worker.store.remove(staged.path)
            return Conformed(self._encode(opened, worker), 0)

    def _copyable(self, opened: OpenFile) -> _Copies | None:
        """The columns whose bytes can be copied; None if there are none."""
        footer = copyable_footer(opened.source, len(self.file.row_groups))
        if footer is None or not self.file.num_rows:
            return None
        whole = self.output.format.empty_footer
        names = {old.encode(): new.encode() for new, old in self.origins.items()}
        # Columns that are dropped must not collide with new names.
        dropped = {leaf.path[0] for leaf in footer.leaves} - names.keys()
        renamed = footer.renamed({**names, **{name: b"\0" + name for name in dropped}})
        columns = {
            name for name in self.origins if self._has_same_type(name) and _same_column(renamed, whole, name)
        }
        leaves = _leaf_map(renamed, whole, columns)
        return (
            _Copies(renamed, columns, leaves) if leaves and why_not_woven(whole, renamed, leaves) is None else None
        )

    def _has_same_type(self, name: str) -> bool:
        """Whether the bytes of a column mean the same in both files. A categorical also needs dictionary pages."""
        assert self.file.schema is not None, "files to rewrite come from a snapshot"
        readable = self.output.format.readable_as or self.output.format.schema
        kinds = (self.file.schema.field(self.origins[name]).type, readable.field(name).type)
        return kinds[0] == kinds[1] or (not any(map(pat.is_dictionary, kinds)) and means_the_same(*kinds))

    def _weave(self, opened: OpenFile, copies: _Copies, sink: IO[bytes], worker: Worker) -> None:
        whole = self.output.format.empty_footer
        encoded = [name for name in self.output.format.schema.names if name not in copies.columns]
        appender = RowGroupAppender(sink, same_arrow_schema=lambda _one, _other: True, index_all=True)
        for number, group in enumerate(self.file.row_groups):
            worker.check_cancelled()
            if not group.num_rows:
                continue
            copied = copies.footer.row_groups[number]
            parts = [(opened.source, copies.footer, number, copies.leaves)]
            if encoded:
                codec = codec_of(copied, copies.leaves.keys())
                patch = pa.BufferReader(self._encoded(opened, number, encoded, codec, worker))
                footer = read_footer(patch)
                parts.append((patch, footer, 0, _leaf_map(footer, whole, set(encoded))))
            appender.weave(whole, parts, _declared_order(copied.sorting_columns, copies.leaves))
        appender.finish(self.output.format.metadata)

    def _encoded(
        self, opened: OpenFile, number: int, names: Sequence[str], codec: str | None, worker: Worker
    ) -> pa.Buffer:
        """Some columns of a row group as a file in memory."""
        if codec is None:
            raise FooterError("its columns have several codecs")
        rows = pa.Table.from_batches(self._rows(opened, number, names, worker)).combine_chunks()
        schema = self.output.format.schema
        narrow = replace(self.output.format, codec=codec).narrowed(
            [schema.get_field_index(name) for name in names]
        )
        return narrow.encoded(rows)

    def _encode(self, opened: OpenFile, worker: Worker) -> StagedFile:
        names = self.output.format.schema.names
        with file_writer(self.output, worker, single_file=True) as writer:
            for number in range(len(self.file.row_groups)):
                for batch in worker.until_cancelled(self._rows(opened, number, names, worker)):
                    writer.write(batch)
                writer.end_row_group()
        (staged,) = writer.staged
        return staged

    def _rows(
        self, opened: OpenFile, number: int, names: Sequence[str], worker: Worker
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a row group with some columns of the output."""
        own, schema = self.file.schema, self.output.format.schema
        assert own is not None, "files to rewrite come from a snapshot"
        wanted = pa.schema([schema.field(name) for name in names])
        read = list(dict.fromkeys(self.origins[name] for name in names if name in self.origins))
        if not read:
            rows = self.file.row_groups[number].num_rows
            yield self._converted({}, rows, wanted)
            return
        narrow = decoded_schema(pa.schema([own.field(name) for name in read]))
        reader = BatchReader(worker.store, narrow, worker.batch_bytes, use_threads=worker.use_threads)
        for batch in opened.read_by(reader).rows(number):
            columns = dict(zip(read, batch.columns, strict=True))
            yield self._converted(columns, batch.num_rows, wanted)

    def _converted(self, columns: Mapping[str, pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
        found = []
        for item in schema:
            if item.name in self.origins:
                found.append(self._cast(columns[self.origins[item.name]], item))
            else:
                value = path_value(self.file, item)
                found.append(pa.nulls(rows, item.type) if value is None else pa.repeat(value, rows))
        return pa.RecordBatch.from_arrays(found, schema=schema)

    def _cast(self, column: pa.Array, item: pa.Field) -> pa.Array:
        name, kind = self.origins[item.name], item.type
        try:
            found = promoted(column, kind)
            changed = None if _is_exact(column.type, kind) else ~equal_values(promoted(found, column.type), column)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise IncompatibleTypes(
                f"column {name!r} of {self.file.path!r} cannot be cast from {column.type} to {kind}: {error}. "
                "Nothing was changed"
            ) from error
        if changed is not None and changed.any():
            example = column[int(changed.argmax())].as_py()
            raise IncompatibleTypes(
                f"column {name!r} of {self.file.path!r} has the value {example!r}, which {kind} cannot hold "
                "exactly. Round it with update first; nothing was changed"
            )
        if (not item.nullable and found.null_count) or has_refused_nulls(found, kind):
            raise IncompatibleTypes(
                f"column {name!r} of {self.file.path!r} has NULLs, which {item} does not allow. Nothing was "
                "changed"
            )
        return found


def _is_exact(own: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a conversion changes no value that it accepts."""
    return common_type([own, kind]) == kind or _is_text(own) or _is_text(kind)


def _is_text(kind: pa.DataType) -> bool:
    plain = kind.value_type if pat.is_dictionary(kind) else kind
    return bool(pat.is_string(plain) or pat.is_large_string(plain) or pat.is_string_view(plain))


@dataclass(frozen=True)
class _Copies:
    """A footer with the new names, and the columns that are copied."""

    footer: Footer
    columns: set[str]
    #: The leaf positions of these columns, mapped to those in the new file.
    leaves: Mapping[int, int]


def _declared_order(raw: bytes, leaves: Mapping[int, int]) -> bytes:
    """The sorting columns that a row group declares, up to the first one that is not copied."""
    kept = []
    for column in map(decode, decode_list(raw, STRUCT) if raw else ()):
        if column.get(_COLUMN) not in leaves:
            break
        kept.append(encode({**column, _COLUMN: leaves[column[_COLUMN]]}))
    return encode_structs(kept) if kept else b""


def _same_column(footer: Footer, whole: Footer, name: str) -> bool:
    """Whether a column means the same in two files."""
    only = frozenset({name.encode()})
    return difference(narrowed(footer.schema, only), narrowed(whole.schema, only)) is None


def _leaf_map(footer: Footer, whole: Footer, names: set[str]) -> dict[int, int]:
    """The leaf positions of some columns in a footer, with those in another one."""
    known = {leaf.path: at for at, leaf in enumerate(whole.leaves)}
    return {at: known[leaf.path] for at, leaf in enumerate(footer.leaves) if leaf.path[0].decode() in names}
