"""Reads CSV and JSON files with PyArrow, as streams of bounded memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json as json
import pyarrow.types as pat

from parketto.engines.text_types import KnownTypes, ParsedColumns
from parketto.errors import InvalidArgument
from parketto.parquet.row_source import checked_columns
from parketto.parquet.streams import RereadableRows
from parketto.storage.store import FileEntry, Store

TextFormat = Literal["csv", "json"]
_BLOCK_BYTES = 4 * 1024 * 1024  # read at once; the first block of a file determines its types


def text_rows(
    store: Store, entries: Sequence[FileEntry], format_name: TextFormat, known: KnownTypes
) -> RereadableRows:
    """The rows of CSV files with a header, or of files with one JSON object per line.

    The first 4 MB of each file determine its types. Types that differ between files are promoted where Arrow can
    (integers to floats); columns that a file lacks are NULL in its rows. Known columns are parsed as their types.
    """
    files = TextFiles(store, tuple(entries), format_name, known)
    return RereadableRows(checked_columns(files.schema), files)


class TextFiles:
    """The rows of text files, read anew for every iteration."""

    def __init__(
        self, store: Store, entries: tuple[FileEntry, ...], format_name: TextFormat, known: KnownTypes
    ) -> None:
        self._store, self._entries, self._format = store, entries, format_name
        inferred = self._unified(known)
        self._types = known.among(inferred, has_types=format_name == "json")
        #: The columns of the files; those that are parsed are texts.
        self._read = pa.schema([item.with_type(self._as_read(item)) for item in inferred])
        #: The columns of all rows.
        self.schema = pa.schema([item.with_type(self._types.get(item.name, item.type)) for item in self._read])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for entry in self._entries:
            parsed = ParsedColumns(self._read, self._types, repr(entry.path))
            with self._naming(entry), self._opened(entry, self._read) as reader:
                for batch in reader:
                    columns = [batch.column(name) for name in self._read.names]
                    yield parsed.added(pa.RecordBatch.from_arrays(columns, schema=self._read))

    def _as_read(self, item: pa.Field) -> pa.DataType:
        """The type in which the reader gets a column."""
        if (wanted := self._types.get(item.name)) is None:
            return _typed(item.type)
        if self._format == "json" and _is_number(item.type):
            # The reader makes no texts of numbers; other inferred types are cast later.
            fits = pat.is_floating(wanted) or pat.is_decimal(wanted) or pat.is_integer(item.type)
            found = wanted if fits and _is_number(wanted) else item.type
            del self._types[item.name]
            return found
        if self._format == "json" and pat.is_null(item.type) and (_is_number(wanted) or pat.is_boolean(wanted)):
            del self._types[item.name]
            return wanted
        return pa.string()

    def _unified(self, known: KnownTypes) -> pa.Schema:
        found = []
        for entry in self._entries:
            with self._naming(entry), self._opened(entry, None) as reader:
                found.append(reader.schema)
        if known.types:
            # Columns whose inferred types differ are texts, if they are parsed anyway.
            texts = _differing(found) & known.types.keys()
            found = [
                pa.schema([item.with_type(pa.string()) if item.name in texts else item for item in schema])
                for schema in found
            ]
        try:
            schema = pa.unify_schemas(found, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InvalidArgument(
                f"the {self._format} files have columns of different types: {error}. Nothing was changed"
            ) from error
        return schema

    @contextlib.contextmanager
    def _opened(self, entry: FileEntry, schema: pa.Schema | None) -> Iterator[Any]:
        with self._store.open_input(entry.path, entry) as file:
            source: Any = file if isinstance(file, pa.NativeFile) else pa.PythonFile(file, "r")
            if entry.path.lower().endswith(".gz"):
                source = pa.CompressedInputStream(source, "gzip")
            with self._reader(source, schema) as reader:
                yield reader

    def _reader(self, source: Any, schema: pa.Schema | None) -> Any:
        if self._format == "json":
            parse = (
                None
                if schema is None
                else json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
            )
            options = json.ReadOptions(block_size=_BLOCK_BYTES)
            return json.open_json(source, read_options=options, parse_options=parse)
        # As DuckDB and Spark do: only empty fields are NULL, not texts such as "NA".
        convert = csv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
        if schema is not None:
            convert.column_types = schema
            convert.include_columns = schema.names
            convert.include_missing_columns = True
        return csv.open_csv(source, read_options=csv.ReadOptions(block_size=_BLOCK_BYTES), convert_options=convert)

    @contextlib.contextmanager
    def _naming(self, entry: FileEntry) -> Iterator[None]:
        """Name the file in errors."""
        try:
            yield
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = " ".join(str(error).split())
            raise InvalidArgument(
                f"cannot read {entry.path!r} as {self._format}: {reason}. Nothing was changed"
            ) from error


def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind))


def _differing(schemas: Sequence[pa.Schema]) -> set[str]:
    """The columns of plain texts in one file and of other plain values in another."""
    kinds: dict[str, set[pa.DataType]] = {}
    for schema in schemas:
        for item in schema:
            kinds.setdefault(item.name, set()).add(item.type)
    return {name for name, found in kinds.items() if len(found) > 1 and not any(map(pat.is_nested, found))}


def _typed(kind: pa.DataType) -> pa.DataType:
    """A type in which NULLs of unknown type become strings: a column of NULLs may have text later."""
    if pat.is_null(kind):
        return pa.string()
    if pat.is_list(kind):
        return pa.list_(_typed(kind.value_type))
    if pat.is_struct(kind):
        return pa.struct([kind.field(at).with_type(_typed(kind.field(at).type)) for at in range(kind.num_fields)])
    return kind
