"""How the files of one group are written: schema, codec, metadata, physical types."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from parketto.parquet.annotating_writer import AnnotatingWriter
from parketto.parquet.annotations import Annotation
from parketto.parquet.bounds import leaf_index
from parketto.parquet.dictionaries import has_huge_values, is_high_cardinality
from parketto.parquet.file_info import STANDARD_LAYOUT, PhysicalTraits
from parketto.parquet.footer import Footer, ascending, read_footer
from parketto.parquet.mixed_int96 import MixedWriter, int96_numbers, mixes_int96
from parketto.parquet.spark_schema import spark_annotations
from parketto.parquet.spark_schema_fit import with_fitted_spark_schema


@dataclass(frozen=True)
class FileFormat:
    """How the files of one group are written."""

    schema: pa.Schema
    codec: str
    #: Verbatim key-value metadata, Arrow's own schema entry included; None lets the writer create it.
    metadata: Mapping[bytes, bytes] | None = None
    traits: PhysicalTraits = STANDARD_LAYOUT
    order_by: Sequence[str] = ()
    #: The schema that readers see, if rows are encoded in a different one.
    readable_as: pa.Schema | None = None
    #: Whether list elements get the standard name. None: in new files only; rewritten ones keep theirs.
    compliant_lists: bool | None = None

    def open(
        self, sink: IO[bytes], dictionaries: bool | list[str] = True, first: pa.Table | None = None
    ) -> pq.ParquetWriter:
        """A writer for one file.

        Args:
            sink: The file.
            dictionaries: The leaf columns that get a dictionary, or whether all do.
            first: The first rows. Columns with huge values get no statistics: Arrow would copy values several
                times to find bounds, and then omit them as too long.
        """
        if mixes_int96(self):
            return MixedWriter(sink, self, dictionaries)
        verbatim = self.metadata is not None
        schema = self.schema.remove_metadata() if verbatim else with_fitted_spark_schema(self.schema)
        order = [pq.SortingColumn(leaf_index(self.schema, name)) for name in self.order_by]
        return AnnotatingWriter(
            sink,
            schema,
            self._annotations(schema.metadata),
            compression=self.codec.upper(),
            use_dictionary=dictionaries,
            store_schema=not verbatim,
            use_compliant_nested_type=self._has_compliant_lists,
            # Arrow applies this to all timestamps or none.
            use_deprecated_int96_timestamps=bool(int96_numbers(self)),
            store_decimal_as_integer=self.traits.integer_decimals,
            write_time_adjusted_to_utc=self.traits.utc_times,
            write_page_index=True,
            write_statistics=self._with_statistics(first),
            sorting_columns=order or None,
        )

    def _annotations(self, metadata: Mapping[bytes, bytes] | None) -> tuple[Annotation, ...]:
        return self.traits.annotations or (() if self.metadata is not None else tuple(spark_annotations(metadata)))

    @property
    def _has_compliant_lists(self) -> bool:
        return self.metadata is None if self.compliant_lists is None else self.compliant_lists

    def _with_statistics(self, rows: pa.Table | None) -> bool | list[str]:
        columns = [] if rows is None else zip(rows.schema.names, rows.columns, strict=True)
        huge = {name for name, column in columns if has_huge_values(column)}
        if not huge:
            return True
        return [
            b".".join(leaf.path).decode() for leaf in self.empty_footer.leaves if leaf.path[0].decode() not in huge
        ]

    def close(self, writer: pq.ParquetWriter) -> None:
        """Write the metadata and the footer of a file."""
        if self.metadata:
            writer.add_key_value_metadata(dict(self.metadata))
        writer.close()

    @property
    def empty_footer(self) -> Footer:
        """The footer that Arrow writes for an empty file of this format."""
        metadata = None if self.metadata is None else frozenset(self.metadata.items())
        # Serialized: Arrow schemas that differ in field ids compare as equal.
        schema = self.schema.serialize().to_pybytes()
        return _empty_footer(
            schema,
            self.codec,
            metadata,
            self.traits,
            tuple(self.order_by),
            compliant_lists=self._has_compliant_lists,
        )

    @property
    def declared_order(self) -> bytes:
        """The sorting columns that row groups declare, raw."""
        return ascending(leaf_index(self.schema, name) for name in self.order_by)

    def dictionaries(self, rows: pa.Table) -> list[str]:
        """The leaf columns that are worth a dictionary, estimated from these rows. Categoricals always get one."""
        kinds = self.readable_as or self.schema
        without = {
            name
            for name, column, kind in zip(rows.schema.names, rows.columns, kinds.types, strict=True)
            if not pat.is_dictionary(kind) and is_high_cardinality(column)
        }
        leaves = (b".".join(leaf.path).decode() for leaf in self.empty_footer.leaves)
        return [path for path in leaves if path not in without]

    def narrowed(self, positions: Sequence[int]) -> FileFormat:
        """The format of some columns of such a file, without metadata."""
        traits = self.traits
        if self.metadata is None:
            traits = traits._replace(annotations=self._annotations(with_fitted_spark_schema(self.schema).metadata))
        readable = (
            None if self.readable_as is None else pa.schema([self.readable_as.field(at) for at in positions])
        )
        schema = pa.schema([self.schema.field(at) for at in positions])
        return replace(
            self,
            schema=schema,
            metadata={},
            traits=traits,
            order_by=(),
            readable_as=readable,
            compliant_lists=self._has_compliant_lists,
        )

    def encoded(self, rows: pa.Table | None, dictionaries: bool | list[str] | None = None) -> pa.Buffer:
        """A whole file in memory.

        Args:
            rows: The rows of its only row group; None: it has none.
            dictionaries: As in `open`, if Arrow encodes the rows; None: as they suggest.
        """
        from parketto.parquet.encoders.row_groups import (
            encode_rows,  # imported here, because code that only compares formats does not need it
        )

        if rows is not None and (found := encode_rows(self, rows)) is not None:
            return found
        if rows is not None and dictionaries is None:
            dictionaries = self.dictionaries(rows)
        sink = pa.BufferOutputStream()
        writer = self.open(sink, True if dictionaries is None else dictionaries, rows)
        if rows is not None:
            writer.write_table(rows, row_group_size=rows.num_rows)
        self.close(writer)
        return sink.getvalue()


@functools.lru_cache(maxsize=64)
def _empty_footer(
    raw_schema: bytes,
    codec: str,
    entries: frozenset[tuple[bytes, bytes]] | None,
    traits: PhysicalTraits,
    order_by: tuple[str, ...],
    *,
    compliant_lists: bool,
) -> Footer:
    """Cached: thousands of files mostly share one format."""
    metadata = None if entries is None else dict(entries)
    schema = pa.ipc.read_schema(pa.py_buffer(raw_schema))
    empty = FileFormat(schema, codec, metadata, traits, order_by, compliant_lists=compliant_lists)
    return read_footer(pa.BufferReader(empty.encoded(None)))
