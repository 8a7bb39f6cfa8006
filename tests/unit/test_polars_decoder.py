"""Row groups that Polars decodes: the batches of Arrow's reader, of the file that is open, or Arrow does it."""

from __future__ import annotations

import io
import os
import struct
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parketto import UnreadableFile
from parketto.parquet import codec as choice
from parketto.parquet.decoders import polars as decode
from parketto.parquet.file_info import FileInfo
from parketto.parquet.reader import BatchReader
from parketto.parquet.snapshot import read_files
from parketto.storage.opening import open_store

ROWS = 3000
NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000001234))[0]
TABLE = pa.table(
    {
        "n": pa.array(range(ROWS), pa.uint32()),
        "x": pa.array([0.0, -0.0, NAN, None, 1.5] * (ROWS // 5)),
        "word": pa.array(["ä", "", None] * (ROWS // 3)),
        "large": pa.array(["b" * 40, "c"] * (ROWS // 2), pa.large_string()),
        "bytes": pa.array([b"\xff", None] * (ROWS // 2), pa.binary()),
        "at": pa.array(range(ROWS), pa.timestamp("us", "Europe/Paris")),
        "flag": pa.array([True, None, False] * (ROWS // 3)),
        "^n.*$": pa.array([1] * ROWS, pa.int8()),
    }
)


@pytest.fixture(autouse=True)
def by_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARKETTO_CODEC", "polars")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges of rows that Polars has decoded."""
    found: list[tuple[int, int]] = []
    frame = decode._frame

    def counted(source: Any, start: int, end: int, names: Any) -> Any:
        result = frame(source, start, end, names)
        found.append((start, end))
        return result

    monkeypatch.setattr(decode, "_frame", counted)
    return found


def described(path: Path) -> tuple[Any, FileInfo]:
    store, place = open_store(path)
    (file,) = read_files(store, [place])
    return store, file


def written(folder: Path, table: pa.Table = TABLE, **options: Any) -> Path:
    path = folder / "data" / "f.parquet"
    path.parent.mkdir()
    pq.write_table(table, path, **options)
    return path


def rows_of(path: Path, names: list[str] | None = None, batch_bytes: int = 2**22) -> pa.Table:
    store, file = described(path)
    assert file.schema is not None
    schema = file.schema if names is None else pa.schema([file.schema.field(name) for name in names])
    reader = BatchReader(store, schema, batch_bytes)
    return pa.Table.from_batches(list(reader.read([file])), reader.schema)


@pytest.mark.parametrize("row_group_size", [700, ROWS])
@pytest.mark.parametrize("names", [None, ["word", "n"], ["^n.*$"], ["flag", "at", "x"]])
def test_batches_are_those_of_arrow(
    tmp_path: Path,
    row_group_size: int,
    names: list[str] | None,
    decoded: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = written(tmp_path, row_group_size=row_group_size)
    found = rows_of(path, names)
    assert decoded == [(0, ROWS)]
    monkeypatch.setenv("PARKETTO_CODEC", "arrow")
    expected = rows_of(path, names)
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert len(decoded) == 1
    for name in found.column_names:
        one, two = (table[name].combine_chunks() for table in (found, expected))
        if name == "x":  # the bits of NaN and -0.0
            one, two = one.fill_null(7).view(pa.int64()), two.fill_null(7).view(pa.int64())
        assert one.equals(two), name


def test_open_file_is_read_and_not_what_replaced_it(tmp_path: Path, decoded: list[Any]) -> None:
    """Also a file that is too large to be read whole when it is opened."""
    path = written(tmp_path)
    store, file = described(path)
    assert file.schema is not None
    reader = BatchReader(store, pa.schema([file.schema.field("n")]), 2**22)
    with reader.open(file) as opened:
        assert isinstance(opened.source, pa.OSFile)
        pq.write_table(TABLE.slice(0, 0), tmp_path / "other.parquet")
        os.replace(tmp_path / "other.parquet", path)
        found = pa.Table.from_batches(list(opened.rows(0)))
    assert found["n"].to_pylist() == list(range(ROWS))
    assert decoded == [(0, ROWS)]


def test_row_groups_are_only_decoded_together_if_they_fit_into_memory(tmp_path: Path, decoded: list[Any]) -> None:
    path = written(tmp_path, TABLE.select(["n"]), row_group_size=1000, use_dictionary=False)
    assert rows_of(path, batch_bytes=3000)["n"].to_pylist() == list(range(ROWS))
    assert decoded == [(0, 2000), (2000, 3000)]
    decoded.clear()
    assert rows_of(path, batch_bytes=1000)["n"].to_pylist() == list(range(ROWS))
    assert decoded == []


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1]] * 10),
        pa.array(["a"] * 10).dictionary_encode(),
        pa.array([1] * 10, pa.time64("us")),
        pa.array([1] * 10, pa.timestamp("us", "Mars/Base")),
        pa.array([1] * 10, pa.int64()).cast(pa.decimal128(20, 1)),
    ],
    ids=lambda column: str(column.type),
)
def test_arrow_decodes_other_types(tmp_path: Path, column: pa.Array, decoded: list[Any]) -> None:
    given = pa.table({"x": column, "n": range(10)})
    path = written(tmp_path, given)
    assert rows_of(path).equals(given)
    assert decoded == []
    assert rows_of(path, ["n"]).equals(given.select(["n"]))
    # Polars panics on an unknown zone, even of another column.
    assert decoded == ([] if pa.types.is_timestamp(column.type) else [(0, 10)])


def test_arrow_decodes_pages_with_checksums(tmp_path: Path, decoded: list[Any]) -> None:
    path = written(
        tmp_path, TABLE.select(["word"]), write_page_checksum=True, use_dictionary=False, compression="none"
    )
    assert rows_of(path).num_rows == ROWS
    assert decoded == []
    content = bytearray(path.read_bytes())
    content[content.index("ä".encode(), 200)] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(UnreadableFile, match=r"f\.parquet"):
        rows_of(path)


def test_text_that_is_not_utf8_is_passed_through(tmp_path: Path, decoded: list[Any]) -> None:
    column = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())
    found = rows_of(written(tmp_path, pa.table({"x": column})))["x"].combine_chunks()
    assert found.view(pa.binary()).to_pylist() == [b"\xff\xfe", b"ok"]
    assert decoded == []


@pytest.mark.parametrize(
    "error", [pl.exceptions.ComputeError("no"), pl.exceptions.PanicException("lost"), OSError("no"), "few"]
)
def test_arrow_reads_on_where_polars_fails(tmp_path: Path, error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is lost or read twice."""
    path = written(tmp_path, TABLE.select(["n"]), row_group_size=1000, use_dictionary=False)
    collect, calls = pl.LazyFrame.collect, []

    def failing(self: Any, *args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            return collect(self, *args, **options)
        if error == "few":
            return collect(self.head(10), *args, **options)
        raise error

    monkeypatch.setattr(pl.LazyFrame, "collect", failing)
    assert rows_of(path, batch_bytes=3000)["n"].to_pylist() == list(range(ROWS))
    assert len(calls) == 2


def test_damaged_file_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, TABLE.select(["word", "large"]), compression="snappy")
    content = bytearray(path.read_bytes())
    content[4:90] = b"\xff" * 86
    path.write_bytes(bytes(content))
    with pytest.raises(UnreadableFile, match=r"f\.parquet"):
        rows_of(path)


def test_assembled_file_is_decoded_if_no_chunk_has_checksums(tmp_path: Path, decoded: list[Any]) -> None:
    """Files of edits are assembled from copied and encoded row groups."""
    from helpers.parquet_files import any_arrow, joined

    parts = []
    for checked in (False, True):
        for _ in range(2):
            sink = io.BytesIO()
            pq.write_table(TABLE.select(["n"]), sink, write_page_checksum=checked)
            parts.append(sink)
    path = tmp_path / "data" / "f.parquet"
    path.parent.mkdir()
    path.write_bytes(joined(parts[:2], same_arrow_schema=any_arrow))
    assert described(path)[1].created_by.startswith("parketto")
    assert rows_of(path).num_rows == 2 * ROWS
    assert decoded == [(0, 2 * ROWS)]
    path.write_bytes(joined(parts[1:3], same_arrow_schema=any_arrow))
    assert rows_of(path).num_rows == 2 * ROWS
    assert len(decoded) == 1


def test_without_force_only_large_row_groups_are_decoded_by_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARKETTO_CODEC")
    numbers, both = pa.schema({"n": pa.int64()}), pa.schema({"n": pa.int64(), "word": pa.string()})
    assert not decode.suits_polars(numbers, numbers, 30_000)
    assert not decode.suits_polars(both, both, 3000)
    assert decode.suits_polars(both, both, 60_000)
    monkeypatch.setattr(choice, "has_polars", lambda: False)
    assert not decode.suits_polars(both, both, 60_000)


def test_interrupt_in_another_thread_leaves_the_rows_to_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polars raises it in any thread; Python only in the main one."""
    path = written(tmp_path, TABLE.select(["n"]))

    def interrupted(*_args: Any, **_options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(pl.LazyFrame, "collect", interrupted)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(rows_of(path).num_rows))
    thread.start()
    thread.join()
    assert found == [ROWS]
    with pytest.raises(KeyboardInterrupt):
        rows_of(path)
