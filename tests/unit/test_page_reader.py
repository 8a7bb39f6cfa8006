"""Reading with a narrow condition reads few bytes, and every kind of page returns its rows."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from helpers.exotic import exotic, plain
from parketto import Dataset, UnreadableFile
from parketto.expressions.conditions import predicate
from parketto.parquet import page_reader, reader
from parketto.parquet.footer import MAGIC, ChunkKeys, FileKeys, Footer, GroupKeys, read_footer
from parketto.parquet.thrift import I32, I64, LIST, encode, encode_booleans, encode_integers, encode_strings, key

ROWS = 400_000


def wide(rows: int = ROWS) -> pa.Table:
    """Rows sorted by `id`, in columns whose pages have different rows."""
    chance = np.random.default_rng(0)
    return pa.table(
        {
            "id": np.arange(rows),
            "random": chance.permutation(rows),
            "value": chance.random(rows),
            "text": [f"text number {number}" for number in chance.integers(0, 10**9, rows)],
            "few": pa.array(chance.integers(0, 5, rows)).cast(pa.string()),
        }
    )


def matching(where: str, table: pa.Table) -> pa.Table:
    return table.filter(predicate(where, table.schema).formula.possible)


class Counting(io.FileIO):
    """A local file that counts the bytes read from it."""

    total = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(-1 if size is None else size)
        Counting.total += len(found)
        return found


def local(path: Path) -> tuple[Dataset, Callable[[], int]]:
    dataset = Dataset(path, "pyarrow")
    Counting.total = 0
    dataset._store.open_input = lambda path, *_: Counting(path)  # type: ignore[method-assign]
    return dataset, lambda: Counting.total


def remote(path: Path) -> tuple[Dataset, Callable[[], int]]:
    """Any filesystem but the local one is read by ranges, as S3 is."""
    dataset = Dataset(path.name, "pyarrow", filesystem=DirFileSystem(str(path.parent), LocalFileSystem()))
    asked: list[int] = []
    read_range = dataset._store.read_range

    def noted(path: str, start: int, end: int, *more: Any) -> bytes:
        asked.append(end - start)
        return read_range(path, start, end, *more)

    dataset._store.read_range = noted  # type: ignore[method-assign]
    return dataset, lambda: sum(asked)


@pytest.mark.parametrize("opened", [local, remote])
@pytest.mark.parametrize(
    ("where", "share"),
    [("id = 345678", 0.1), ("id BETWEEN 200000 AND 200400", 0.1), ("random = 77", 0.5), ("id < 0", 0.05)],
)
def test_a_narrow_condition_reads_a_small_share_of_a_large_row_group(
    tmp_path: Path, opened: Callable[[Path], tuple[Dataset, Callable[[], int]]], where: str, share: float
) -> None:
    """Of a column that the condition uses, pages that cannot match; of others, pages without matches."""
    table = wide()
    pq.write_table(table, tmp_path / "a.parquet", write_page_index=True, compression="none")
    size = (tmp_path / "a.parquet").stat().st_size
    dataset, count = opened(tmp_path)
    expected = matching(where, table)
    assert dataset.read(where=where).equals(expected)
    assert count() < share * size
    assert dataset.count(where) == expected.num_rows


def test_columns_are_counted_from_single_pages(tmp_path: Path) -> None:
    pq.write_table(wide(), tmp_path / "a.parquet", write_page_index=True, compression="none")
    dataset, count = local(tmp_path)
    assert dataset.count("id BETWEEN 200000 AND 200400") == 401
    assert count() < 0.05 * (tmp_path / "a.parquet").stat().st_size


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small row groups are read like large ones, and errors are not hidden by reading the whole row group."""
    monkeypatch.setattr(reader, "_MIN_PAGED_BYTES", 0)
    monkeypatch.setattr(reader, "_PAGE_ERRORS", ())
    monkeypatch.setattr(page_reader.PageReader, "pays", lambda *_: True)


SMALL_PAGES = {"write_page_index": True, "write_batch_size": 1, "data_page_size": 1}


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_type_is_read_from_single_pages(tmp_path: Path, version: str) -> None:
    table = pa.concat_tables([exotic(seed) for seed in range(5)])
    pq.write_table(table, tmp_path / "a.parquet", data_page_version=version, **SMALL_PAGES)
    dataset = Dataset(tmp_path, "pyarrow")
    whole = dataset.read()
    for key_ in table.column("required").to_pylist():
        found = dataset.read(where=f"required = {key_}")
        at = whole.column("required").to_pylist().index(key_)
        assert plain(found).equals(plain(whole.slice(at, 1)))
    far = dataset.read(where="required IN (10, 5)")
    rows = [at for at, value in enumerate(whole.column("required").to_pylist()) if value in (10, 5)]
    expected = pa.concat_tables([whole.slice(at, 1) for at in rows])
    assert plain(far).combine_chunks().equals(plain(expected).combine_chunks())


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("column", [["moment"], ["inside"]])
def test_int96_timestamps_out_of_range_are_refused(tmp_path: Path, column: list[str]) -> None:
    good, far = np.datetime64("2024-01-01", "us"), np.datetime64("5000-01-01", "us")
    moments = pa.array([good] * 10 + [far] * 10 + [good] * 10)
    table = pa.table({"id": range(30), "moment": moments, "inside": pa.StructArray.from_arrays([moments], ["m"])})
    pq.write_table(
        table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, store_schema=False, **SMALL_PAGES
    )
    dataset = Dataset(tmp_path, "pyarrow")
    assert dataset.read(column, where="id = 3").num_rows == 1
    with pytest.raises(UnreadableFile, match="INT96 timestamps outside of the years"):
        dataset.read(column, where="id = 12")


def with_index(content: bytes, leaf: int, index: bytes, *, offsets: bool = False) -> bytes:
    """A file of one row group whose column index (or offset index) of a leaf column is another one."""
    footer: Footer = read_footer(io.BytesIO(content))
    (group,) = footer.row_groups
    chunk = group.columns[leaf].fields
    place = (
        (ChunkKeys.OFFSET_INDEX_OFFSET, ChunkKeys.OFFSET_INDEX_LENGTH)
        if offsets
        else (ChunkKeys.COLUMN_INDEX_OFFSET, ChunkKeys.COLUMN_INDEX_LENGTH)
    )
    chunk.update(zip(place, (footer.data_end, len(index)), strict=True))
    group.fields[GroupKeys.COLUMNS] = [column.fields for column in group.columns]
    data = encode({**footer.fields, FileKeys.ROW_GROUPS: [group.fields]})
    return content[: footer.data_end] + index + data + len(data).to_bytes(4, "little") + MAGIC


def column_index(minima: list[bytes], maxima: list[bytes], nulls: list[bool], counts: list[int] | None) -> bytes:
    fields = {
        key(1, LIST): encode_booleans(nulls),
        key(2, LIST): encode_strings(minima),
        key(3, LIST): encode_strings(maxima),
        key(4, I32): 1,  # claims to be ascending, which nobody relies on
    }
    return encode(fields | ({} if counts is None else {key(5, LIST): encode_integers(counts, I64)}))


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("counts", [[0, 1, 1, 0], None], ids=["null counts", "no null counts"])
def test_truncated_bounds_and_pages_of_nulls(tmp_path: Path, counts: list[int] | None) -> None:
    """Writers cut long bounds: the lower one to a prefix, the upper one to a prefix with a larger last byte."""
    texts = ["prefix zzz", None, None, "prefix abc"]
    texts = [f"{text} {'x' * 50}" if text else None for text in texts]
    sink = io.BytesIO()
    pq.write_table(pa.table({"s": texts, "n": range(4)}), sink, use_dictionary=False, **SMALL_PAGES)
    minima, maxima = [b"prefix z", b"", b"", b"pre"], [b"prefix {", b"", b"", b"prf"]
    index = column_index(minima, maxima, [False, True, True, False], counts)
    (tmp_path / "a.parquet").write_bytes(with_index(sink.getvalue(), 0, index))
    dataset = Dataset(tmp_path, "pyarrow")
    for where, expected in {
        "s IS NULL": [1, 2],
        "s IS NOT NULL": [0, 3],
        f"s = 'prefix zzz {'x' * 50}'": [0],
        "s < 'prefix b'": [3],
        "s <> 'q'": [0, 3],
        "s > 'prefix b' OR s IS NULL": [0, 1, 2],
        "NOT (s > 'prefix b')": [3],
        "s > 'q'": [],
    }.items():
        assert dataset.read(["n"], where=where).column("n").to_pylist() == expected, where


@pytest.mark.usefixtures("any_size")
def test_bounds_of_the_wrong_size_are_ignored(tmp_path: Path) -> None:
    """Arrow would end the process."""
    table = pa.table({"d": pa.array([1, 2, 3, 4]).cast(pa.decimal128(30, 2)), "n": range(4)})
    for leaf, where in ((0, "d = 3"), (1, "n = 2")):
        sink = io.BytesIO()
        pq.write_table(table, sink, use_dictionary=False, **SMALL_PAGES)
        index = column_index([b"x"] * 4, [b"y" * 40] * 4, [False] * 4, [0] * 4)
        (tmp_path / "a.parquet").write_bytes(with_index(sink.getvalue(), leaf, index))
        assert Dataset(tmp_path, "pyarrow").read(["n"], where=where).column("n").to_pylist() == [2]


def test_wrong_indexes_do_not_change_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers of the pages contradict a damaged offset index: the whole row group is read."""
    monkeypatch.setattr(reader, "_MIN_PAGED_BYTES", 0)
    monkeypatch.setattr(page_reader.PageReader, "pays", lambda *_: True)
    table = pa.table({"n": range(60), "s": [str(number) for number in range(60)]})
    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_index=True, write_batch_size=7, data_page_size=1)
    content = sink.getvalue()
    footer = read_footer(io.BytesIO(content))
    chance = random.Random(0)
    for leaf, column in enumerate(footer.row_groups[0].columns * 60):
        assert column.offset_index is not None
        start, size = column.offset_index
        index = bytearray(content[start : start + size])
        for _ in range(chance.choice([1, 2, 10])):
            index[chance.randrange(size)] = chance.randrange(256)
        (tmp_path / "a.parquet").write_bytes(with_index(content, leaf % 2, bytes(index), offsets=True))
        for where in ("n = 31", "n BETWEEN 13 AND 15", "s = '31' AND n < 40"):
            assert Dataset(tmp_path, "pyarrow").read(where=where).equals(matching(where, table))
