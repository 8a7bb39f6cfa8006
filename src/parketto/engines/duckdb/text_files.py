"""Reads CSV and JSON files with DuckDB's own readers, as streams."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from parketto.engines.duckdb.session import Session, quoted_name, require_duckdb
from parketto.engines.text_files import TextFormat
from parketto.engines.text_types import KnownTypes, ParsedColumns, named
from parketto.errors import InvalidArgument
from parketto.parquet.decoded_types import decoded_type, recast
from parketto.parquet.row_source import checked_columns
from parketto.parquet.streams import RereadableRows

# Arrow has no JSON type that every engine reads: it is text.
_JSON = re.compile(r"\bJSON\b(?=$|[\[\],)])")


def duckdb_text_rows(
    paths: Sequence[str], format_name: TextFormat, known: KnownTypes, memory: int, threads: int
) -> RereadableRows:
    """The rows of local CSV or JSON files; types are known, or detected by DuckDB from samples of all files."""
    files = DuckDBFiles(paths, format_name, known, memory, threads)
    return RereadableRows(checked_columns(files.schema), files)


class DuckDBFiles:
    """The result of one of DuckDB's readers, read anew for every iteration."""

    def __init__(
        self, paths: Sequence[str], format_name: TextFormat, known: KnownTypes, memory: int, threads: int
    ) -> None:
        self._paths, self._format, self._memory, self._threads = paths, format_name, memory, threads
        listed = ", ".join(map(_text, paths))
        self._source = f"read_{format_name}_auto([{listed}], union_by_name=true)"
        with self._session() as session:
            columns = session.all_rows(f"DESCRIBE SELECT * FROM {self._source}").to_pylist()
            kinds = {column["column_name"]: column["column_type"] for column in columns}
            found = self._described(session, kinds)
            if types := known.among(found, has_types=format_name == "json"):
                kinds |= dict.fromkeys(types, "VARCHAR")
                given = kinds if format_name == "json" else dict.fromkeys(types, "VARCHAR")
                pairs = ", ".join(f"{_text(name)}: {_text(kind)}" for name, kind in given.items())
                option = "columns" if format_name == "json" else "types"
                self._source = f"read_{format_name}_auto([{listed}], union_by_name=true, {option}={{{pairs}}})"
                found = self._described(session, kinds)
        self._read = found
        self._parsed = ParsedColumns(found, types, named(paths))
        #: The columns of all files.
        self.schema = self._parsed.schema

    def _described(self, session: Session, kinds: Mapping[str, str]) -> pa.Schema:
        selected = (_selected(name, kind) for name, kind in kinds.items())
        self._query = f"SELECT {', '.join(selected)} FROM {self._source}"
        found = session.all_rows(f"{self._query} LIMIT 0").schema
        return pa.schema([item.with_type(decoded_type(item.type)) for item in found.remove_metadata()])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self._session() as session:
            for batch in session.rows(self._query):
                yield self._parsed.added(recast(batch, self._read))

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        with (
            tempfile.TemporaryDirectory(prefix="parketto-") as scratch,
            Session(self._memory, self._threads, scratch, in_order=True) as session,
        ):
            try:
                yield session
            except (require_duckdb().Error, OSError) as error:  # errors of a stream arrive through Arrow
                reason = " ".join(str(error).partition("\n\n")[0].split())
                named = self._paths[0] if len(self._paths) == 1 else f"{len(self._paths)} files"
                raise InvalidArgument(
                    f"cannot read {named!r} as {self._format}: {reason}. Nothing was changed"
                ) from error


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _selected(name: str, kind: str) -> str:
    column = quoted_name(name)
    return f"CAST({column} AS {_JSON.sub('VARCHAR', kind)}) AS {column}" if _JSON.search(kind) else column
