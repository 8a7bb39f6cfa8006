"""Rows as output: a table, CSV, JSON lines or Parquet. All of them are streams of bounded memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from itertools import zip_longest
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.types as pat

from parketto.cli.exits import UsageProblem
from parketto.cli.output import dumps, print_to

RowFormat = Literal["table", "csv", "json", "parquet"]
_SUFFIXES: dict[str, RowFormat] = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_PAGE_ROWS = 1000  # rows that determine the widths of a table's columns at a time
_MIN_COLUMN = 4  # characters that a column keeps on a narrow terminal


def chosen_format(given: RowFormat | None, target: str | None, *, as_json: bool) -> RowFormat:
    """The format of the output: as given, by the suffix of the file, or a table.

    >>> chosen_format(None, "out.parquet", as_json=False), chosen_format(None, None, as_json=True)
    ('parquet', 'json')
    """
    if as_json and given not in (None, "json"):
        raise UsageProblem(f"--json and --format {given} exclude each other")
    if given is not None or as_json:
        return given or "json"
    if target is None:
        return "table"
    for suffix, found in _SUFFIXES.items():
        if target.lower().endswith(suffix):
            return found
    raise UsageProblem(f"the format of {target!r} is unknown: pass --format csv, json or parquet")


def write_rows(rows: pa.RecordBatchReader, form: RowFormat, target: str | None, storage_options: Any) -> None:
    """Write rows to a file or URL, which appears when it is complete; without one, to stdout."""
    if target is None:
        if form == "parquet" and sys.stdout.isatty():
            raise UsageProblem("Parquet is not text: pass -o FILE, or redirect the output")
        if form == "table":
            _show_table(rows)
            return
        sys.stdout.flush()
        _write(rows, form, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with _created(target, storage_options) as sink:
        if form == "table":
            raise UsageProblem(f"a table is for people: pass --format csv, json or parquet for {target!r}")
        _write(rows, form, sink)


@contextlib.contextmanager
def _created(target: str, storage_options: Any) -> Iterator[Any]:
    """A new file, which replaces an old one only if all of it was written."""
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(target, **(storage_options or {}))
    with filesystem.open(path, "wb", autocommit=False) as sink:
        try:
            yield sink
        except BaseException:
            sink.close()
            sink.discard()
            raise
    sink.commit()


def _write(rows: pa.RecordBatchReader, form: RowFormat, sink: IO[bytes]) -> None:
    {"csv": _write_csv, "json": _write_json, "parquet": _write_parquet}[form](rows, sink)


def _write_parquet(rows: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)


def _write_csv(rows: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    import pyarrow.csv as csv

    schema = pa.schema([pa.field(item.name, _csv_type(item.type)) for item in rows.schema])
    with csv.CSVWriter(sink, schema, write_options=csv.WriteOptions(quoting_style="needed")) as writer:
        for batch in rows:
            columns = [
                column if column.type == item.type else _as_text(column, item.type)
                for column, item in zip(batch.columns, schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """The type that PyArrow writes; values of others become text."""
    if pat.is_dictionary(kind):
        return _csv_type(kind.value_type)
    if pat.is_primitive(kind) and not pat.is_duration(kind) and not pat.is_float16(kind):
        return kind
    return pa.string()


def _as_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pat.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == kind:
        return column
    if pat.is_string(column.type) or pat.is_large_string(column.type) or pat.is_decimal(column.type):
        return column.cast(kind)
    return pa.array([None if value is None else _text(value) for value in plain(column)], pa.string())


def _text(value: Any) -> str:
    """A value as text: lists and structs as JSON."""
    if isinstance(value, str):
        return value
    shown = dumps(value)
    return shown[1:-1] if shown.startswith('"') else shown


def _write_json(rows: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    names = rows.schema.names
    for batch in rows:
        columns = [plain(column) for column in batch.columns]
        lines = [dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
        sink.write("".join(f"{line}\n" for line in lines).encode())


def plain(column: pa.Array) -> list[Any]:
    """Values that do not need pandas: times are texts as Arrow writes them, with all of their digits.

    >>> plain(pa.array([1_500_000_001], pa.timestamp("ns", "UTC")))
    ['1970-01-01 00:00:01.500000001Z']
    """
    kind = _plain_type(column.type)
    values: list[Any] = (column if kind == column.type else column.cast(kind)).to_pylist()
    return values


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pat.is_timestamp(kind) or pat.is_time(kind):
        return pa.string()
    if pat.is_duration(kind):
        return pa.int64()
    if pat.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        inner = kind.value_field.with_type(_plain_type(kind.value_type))
        return pa.large_list(inner) if _plain_type(kind.value_type) != kind.value_type else kind
    if pat.is_struct(kind):
        return pa.struct([item.with_type(_plain_type(item.type)) for item in kind])
    if pat.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), kind.item_field.with_type(_plain_type(kind.item_type)))
    return kind


def _show_table(rows: pa.RecordBatchReader) -> None:
    """Print rows page by page; later pages are at least as wide as earlier ones."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    widths: list[int] = []
    shown = 0
    for page in _pages(rows):
        cells = [[_cell(value) for value in plain(column)] for column in page.columns]
        wide = [max(map(len, column), default=0) for column in cells]
        names = [len(name) for name in page.schema.names]
        widths = [max(each) for each in zip_longest(widths, wide, names, fillvalue=0)]
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=not shown, show_edge=False)
        for item, width in zip(page.schema, widths, strict=True):
            right = pat.is_integer(item.type) or pat.is_floating(item.type) or pat.is_decimal(item.type)
            table.add_column(
                item.name,
                justify="right" if right else "left",
                min_width=min(width, _MIN_COLUMN) if sys.stdout.isatty() else width,
                overflow="ellipsis",
                no_wrap=True,
            )
        for row in zip(*cells, strict=True):
            table.add_row(*map(Text, row))
        print_to(sys.stdout, table)
        shown += page.num_rows
    if not shown:
        print_to(sys.stdout, f"no rows; columns: {', '.join(rows.schema.names)}")


def _pages(rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        for start in range(0, batch.num_rows, _PAGE_ROWS):
            yield batch.slice(start, _PAGE_ROWS)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = _text(value)
    return text if text.isprintable() else repr(text)[1:-1]
