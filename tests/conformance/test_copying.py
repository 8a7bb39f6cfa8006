"""Row groups copied as bytes: compactions with every `rewrite` mode, and edits that copy unaffected row groups."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from conftest import Place
from helpers import oracle
from helpers.exotic import exotic, row_by_row
from parketto import (
    Dataset,
    InvalidArgument,
    ParquetCompactor,
    UnreadableFile,
    compact_parquet_dataset_pyarrow,
    sql,
)
from parketto.engines.base import Engine
from parketto.parquet import reader
from parketto.parquet.footer import FileKeys, read_footer
from parketto.parquet.thrift import encode
from parketto.planning.copy_policy import REWRITES

GOOD, SMALL = 33_000, 1_000
PARQUET_MR = b"parquet-mr version 1.13.1 (build x)"


def numbers(rows: int, first: int = 0) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table({"id": ids, "value": np.sin(ids), "word": pa.array([f"w{n % 7}" for n in ids.tolist()])})


def contents(place: Place) -> list[bytes]:
    return [place.fs.cat_file(path) for path in oracle.data_files(place.root, place.fs)]


def row_groups(content: bytes) -> list[tuple[bytes, ...]]:
    """The bytes of the columns, for each row group."""
    footer = read_footer(io.BytesIO(content))
    return [tuple(content[c.start : c.start + c.size] for c in group.columns) for group in footer.row_groups]


def copied(before: list[bytes], after: list[bytes]) -> int:
    """How many row groups of `before` are in `after`, byte for byte."""
    there = Counter(group for content in before for group in row_groups(content))
    now = Counter(group for content in after for group in row_groups(content))
    return sum((there & now).values())


def sizes(place: Place) -> list[list[int]]:
    return [[group.num_rows for group in file.row_groups] for file in place.dataset().files()]


@pytest.mark.parametrize("rewrite", REWRITES)
def test_every_rewrite_mode_keeps_all_rows(place: Place, engine: Engine, rewrite: Any) -> None:
    """Large row groups, a single small one, and adjacent small ones."""
    layout = [GOOD, SMALL, GOOD, SMALL, SMALL, SMALL]
    for at, rows in enumerate(layout):
        place.write_files({f"f{at}.parquet": numbers(rows, sum(layout[:at]))}, write_page_index=at != 1)
    before, files = place.rows(), contents(place)
    dataset = place.dataset(engine=engine)
    planned = dataset.compact(dry_run=True, rewrite=rewrite)
    stats = dataset.compact(rewrite=rewrite)
    assert place.rows() == before
    assert dataset.read().column("id").to_pylist() == list(range(sum(layout)))
    expected = {
        "auto": [GOOD, SMALL, GOOD, 3 * SMALL],
        "copy": layout,
        "encode": [sum(layout)],
    }[rewrite]
    assert sizes(place) == [expected]
    count = {"auto": 3, "copy": 6, "encode": 0}[rewrite]
    assert oracle.planned_row_groups(stats) == [(count, 6 - count)]
    assert planned["planned_rewrites"] == stats["planned_rewrites"]
    assert copied(files, contents(place)) == count
    (content,) = contents(place)
    indexed = [
        bool(c.offset_index) for group in read_footer(io.BytesIO(content)).row_groups for c in group.columns
    ]
    # Encoded row groups have page indexes; copied ones get them too, unless each page needs a request.
    assert all(indexed) == (rewrite == "encode" or (rewrite == "auto" and isinstance(place.fs, LocalFileSystem)))
    state = place.state()
    assert dataset.compact(rewrite=rewrite)["planned_rewrites"] == []
    assert place.state() == state


@pytest.mark.parametrize("rewrite", REWRITES)
def test_exotic_schemas(place: Place, rewrite: Any) -> None:
    place.write_files({f"f{n}.parquet": exotic(n) for n in range(3)})
    before = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    footer = pq.read_metadata(io.BytesIO(contents(place)[0]))
    place.dataset().compact(rewrite=rewrite)
    (path,) = oracle.data_files(place.root, place.fs)
    after = oracle.read_file(path, place.fs)
    assert after.schema.equals(before[0].schema, check_metadata=True)
    expected, found = row_by_row(before), row_by_row([after])
    assert all(found[key].equals(row, check_metadata=True) for key, row in expected.items())
    new = pq.read_metadata(io.BytesIO(contents(place)[0]))
    assert str(new.schema).split("\n")[1:] == str(footer.schema).split("\n")[1:]
    assert new.metadata == footer.metadata


@pytest.mark.parametrize("rewrite", REWRITES)
def test_files_of_several_writers(local: Place, engine: Engine, rewrite: Any) -> None:
    """Large and small files of each writer: row groups that cannot be copied are encoded."""
    local.fs.makedirs(local.root)
    for at, rows in enumerate((GOOD, SMALL, SMALL)):
        table = pa.table({"id": np.arange(rows) + at * GOOD, "value": np.arange(rows) / 7})
        pl.from_arrow(table).write_parquet(f"{local.root}/polars{at}.parquet")
        with duckdb.connect() as connection:
            connection.register("given", table)
            connection.execute(f"COPY given TO '{local.root}/duckdb{at}.parquet' (FORMAT parquet)")
        local.write_files({f"arrow{at}.parquet": table})
        local.write_files({f"noted{at}.parquet": table}, store_schema=False)
    before, files = local.rows(), contents(local)
    stats = local.dataset(engine=engine).compact(rewrite=rewrite)
    assert local.rows() == before
    assert stats["after_file_count"] == 1
    (path,) = oracle.data_files(local.root)
    if rewrite == "copy":
        assert copied(files, contents(local)) == len(files) == 12
    assert pl.read_parquet(path).height == 4 * (GOOD + 2 * SMALL)


def test_copied_row_groups_are_not_decoded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write_files({f"f{n}.parquet": numbers(GOOD, n * GOOD) for n in range(3)})
    before = place.rows()
    with monkeypatch.context() as patch:
        patch.setattr(reader.OpenFile, "rows", lambda *_: pytest.fail("decoded"))
        place.dataset().compact()
    assert place.rows() == before
    assert sizes(place) == [[GOOD] * 3]


def test_row_groups_with_another_codec_are_encoded(place: Place) -> None:
    """Row groups that have the codec are copied; the others are encoded, whatever their size."""
    place.write_files({"a.parquet": numbers(GOOD), "b.parquet": numbers(GOOD, GOOD)}, compression="zstd")
    place.write_files({"c.parquet": numbers(GOOD, 2 * GOOD)}, compression="gzip")
    before = place.rows()
    stats = place.dataset().compact(compression="zstd")
    assert oracle.planned_row_groups(stats) == [(2, 1)]
    assert stats["compression_codec"] == "zstd"
    (file,) = place.dataset().files()
    assert [group.codec for group in file.row_groups] == ["zstd"] * 3
    assert place.rows() == before


def test_copies_keep_their_codecs(place: Place) -> None:
    place.write_files({"a.parquet": numbers(GOOD)}, compression="zstd")
    place.write_files({"b.parquet": numbers(GOOD, GOOD)}, compression="gzip")
    assert place.dataset().compact()["compression_codec"] == "mixed"
    assert [group.codec for group in place.dataset().files()[0].row_groups] == ["zstd", "gzip"]


def test_small_clustered_row_groups_are_copied(place: Place) -> None:
    dataset = place.dataset()
    for n in range(4):
        place.write_files({f"f{n}.parquet": numbers(4 * SMALL, 4 * n * SMALL)})
    dataset.optimize(["id", "value"], target_rows_per_file=2 * SMALL)
    before, files = place.rows(), contents(place)
    stats = dataset.compact()
    assert oracle.planned_row_groups(stats) == [(len(files), 0)]
    assert copied(files, contents(place)) == len(files)
    assert place.rows() == before
    assert all(group.sorted_by == ("id", "value") for group in place.dataset().files()[0].row_groups)
    assert dataset.optimize(["id", "value"])["planned_groups"] == []


def test_split_files_are_encoded(place: Place) -> None:
    place.write_files({"f.parquet": numbers(2 * GOOD)}, row_group_size=GOOD)
    stats = place.dataset().compact(target_rows_per_file=GOOD, rewrite="copy")
    assert oracle.planned_row_groups(stats) == [(0, 2)]
    assert stats["after_file_count"] == 2


def test_damaged_pages_are_found_by_encoding_only(place: Place) -> None:
    table = pa.table({"x": pa.array(range(GOOD), pa.int64())})
    place.write_files({"a.parquet": table, "b.parquet": table}, compression="none", write_page_checksum=True)
    path = oracle.data_files(place.root, place.fs)[0]
    rotten = bytearray(place.fs.cat_file(path))
    rotten[5000] ^= 0xFF
    place.fs.pipe_file(path, bytes(rotten))
    files = contents(place)
    state = place.state()
    with pytest.raises(UnreadableFile):
        place.dataset().compact(rewrite="encode")
    assert place.state() == state
    place.dataset().compact(rewrite="copy")
    assert copied(files, contents(place)) == 2


@pytest.mark.parametrize(
    "run",
    [
        lambda place: place.dataset().compact(rewrite="move"),
        lambda place: ParquetCompactor(place.root, engine="pyarrow", filesystem=place.fs).compact(rewrite="move"),
        lambda place: compact_parquet_dataset_pyarrow(place.root, filesystem=place.fs, rewrite="move"),
    ],
)
def test_unknown_rewrite_mode_is_refused(memory: Place, run: Callable[[Place], object]) -> None:
    """Before anything is read: the dataset does not even exist."""
    with pytest.raises(InvalidArgument, match="unknown rewrite 'move'; valid choices: 'auto', 'copy', 'encode'"):
        run(memory)


def by_another_writer(content: bytes, created_by: bytes) -> bytes:
    """The same file, with another writer's name in its footer."""
    footer = read_footer(io.BytesIO(content))
    new = encode({**footer.fields, FileKeys.CREATED_BY: created_by})
    return content[: footer.data_end] + new + len(new).to_bytes(4, "little") + b"PAR1"


def test_int96_row_groups_of_different_writers_are_encoded(place: Place) -> None:
    """Some readers shift INT96 timestamps unless parquet-mr wrote the file: no file may mix these writers."""
    times = pa.table({"at": pa.array(range(GOOD + SMALL), pa.timestamp("us"))})
    options: dict[str, Any] = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    for name, part in (("a", times.slice(0, GOOD)), ("b", times.slice(GOOD)), ("c", times.slice(GOOD))):
        place.write_files({f"{name}.parquet": part}, **options)
        path = f"{place.root}/{name}.parquet"
        place.fs.pipe_file(
            path, by_another_writer(place.fs.cat_file(path), b"parquet-mr version 1.13.1 (build x)")
        )
    before = place.rows()
    place.dataset().compact()
    assert place.rows() == before
    assert sizes(place) == [[GOOD + 2 * SMALL]]
    assert pq.read_metadata(io.BytesIO(contents(place)[0])).schema.column(0).physical_type == "INT96"


# Edits: only row groups with affected rows are encoded.


@pytest.fixture
def sorted_file(place: Place) -> list[bytes]:
    """A file of five row groups that declare their order, with bounds, page indexes and Bloom filters."""
    order = [pq.SortingColumn(0), pq.SortingColumn(1)]
    place.write_files(
        {"f.parquet": numbers(5 * SMALL)},
        row_group_size=SMALL,
        write_page_index=True,
        sorting_columns=order,
        compression="zstd",
        bloom_filter_options={"word": {"ndv": 10, "fpp": 0.01}},
    )
    return contents(place)


def declared(place: Place) -> list[int]:
    """The number of sorting columns that each row group declares."""
    footer = pq.read_metadata(io.BytesIO(contents(place)[0]))
    return [len(footer.row_group(n).sorting_columns) for n in range(footer.num_row_groups)]


def check_copies(place: Place, before: list[bytes], changed: set[int]) -> None:
    """All row groups but the changed ones are unchanged, byte for byte, with indexes and Bloom filters."""
    (after,) = contents(place)
    old, new = row_groups(before[0]), row_groups(after)
    assert [n for n, group in enumerate(old) if group not in new] == sorted(changed)
    footers = [read_footer(io.BytesIO(content)) for content in (before[0], after)]
    for number in set(range(len(old))) - changed:
        group = footers[1].row_groups[new.index(old[number])]
        for mine, theirs in zip(footers[0].row_groups[number].columns, group.columns, strict=True):
            assert (theirs.bloom_filter is None) == (mine.bloom_filter is None)
            assert theirs.column_index
            assert theirs.offset_index
    parsed = pq.read_metadata(io.BytesIO(after))
    assert all(parsed.row_group(n).column(0).statistics.has_min_max for n in range(parsed.num_row_groups))


def test_delete_copies_unaffected_row_groups(place: Place, engine: Engine, sorted_file: list[bytes]) -> None:
    place.dataset(engine=engine).delete("id = 1234 OR id BETWEEN 3000 AND 3999")
    check_copies(place, sorted_file, {1, 3})
    assert sizes(place) == [[SMALL, SMALL - 1, SMALL, SMALL]]
    assert declared(place) == [2, 2, 2, 2]
    assert place.dataset().files()[0].codec == "zstd"


def test_update_copies_unaffected_row_groups(place: Place, engine: Engine, sorted_file: list[bytes]) -> None:
    dataset = place.dataset(engine=engine)
    dataset.update("id = 1234", {"word": "new"})
    check_copies(place, sorted_file, {1})
    assert declared(place) == [2, 2, 2, 2, 2]
    dataset.update("id = 2345", {"value": 7.0})
    check_copies(place, sorted_file, {1, 2})
    assert declared(place) == [2, 2, 1, 2, 2], "no order is declared for a changed column"
    dataset.update("id = 3456", {"id": -1})
    assert declared(place) == [2, 2, 1, 0, 2]


def test_bounds_exclude_row_groups_from_reading(
    place: Place, sorted_file: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = reader.OpenFile.rows

    def watched(self: reader.OpenFile, number: int) -> Any:
        read.append(number)
        return original(self, number)

    monkeypatch.setattr(reader.OpenFile, "rows", watched)
    dataset = place.dataset(engine="pyarrow")
    dataset.delete("id BETWEEN 1990 AND 2010")
    assert read == [1, 2, 1, 2]
    read.clear()
    dataset.merge(numbers(5, 3500).set_column(1, "value", pa.array([0.5] * 5)), ["id"])
    assert set(read) == {3}
    check_copies(place, sorted_file, {1, 2, 3})


def test_upsert_copies_unaffected_row_groups(place: Place, merge_engine: Engine, sorted_file: list[bytes]) -> None:
    """Updated rows keep their positions, so an order by the key still holds."""
    new = numbers(3, 1000).set_column(1, "value", pa.array([0.5] * 3))
    last = numbers(1, 4999).set_column(1, "value", pa.array([0.5]))
    place.dataset(engine=merge_engine).merge(pa.concat_tables([new, last]), ["id"])
    check_copies(place, sorted_file, {1, 4})
    assert sizes(place) == [[SMALL] * 5]
    assert declared(place) == [2, 1, 2, 2, 1]
    (file,) = place.dataset().files()
    assert [group.codec for group in file.row_groups] == ["zstd", "snappy", "zstd", "zstd", "snappy"]
    assert place.dataset().read().column("id").to_pylist() == list(range(5000))


def test_full_merge_drops_row_groups_without_matches(
    place: Place, merge_engine: Engine, sorted_file: list[bytes]
) -> None:
    place.dataset(engine=merge_engine).merge(numbers(2, 2500), ["id"], strategy="full_merge")
    assert sizes(place) == [[2]]


def test_partial_merge_moves_rows(local: Place, merge_engine: Engine) -> None:
    """Moved rows keep the columns that the source lacks; row groups without moved rows are copied."""
    table = numbers(3 * SMALL).append_column("day", pa.array([1] * 3 * SMALL))
    local.write_files({"day=1/f.parquet": table}, row_group_size=SMALL)
    before = contents(local)
    source = pa.table({"id": [1500, 1501], "day": [1, 2], "word": ["x", "y"]})
    local.dataset(engine=merge_engine).merge(source, ["id"], partial=True)
    assert copied(before, contents(local)) == 2
    found = local.dataset().read().sort_by("id")
    assert found.column("word").to_pylist()[1499:1502] == ["w1", "x", "y"]
    assert found.column("value").equals(table.column("value"))
    assert sorted(map(sum, sizes(local))) == [1, 3 * SMALL - 1]


def test_update_that_moves_rows(place: Place) -> None:
    table = numbers(3 * SMALL).append_column("day", pa.array([1] * 3 * SMALL))
    place.write_files({"day=1/f.parquet": table}, row_group_size=SMALL)
    before = contents(place)
    place.dataset().update("id BETWEEN 1000 AND 1999 OR id = 2000", {"day": 2})
    assert copied(before, contents(place)) == 1
    assert sizes(place) == [[SMALL, SMALL - 1], [SMALL + 1]]


def test_codec_of_an_edit_applies_to_the_whole_file(place: Place, sorted_file: list[bytes]) -> None:
    place.dataset().delete("id = 1234", compression="gzip")
    (file,) = place.dataset().files()
    assert [group.codec for group in file.row_groups] == ["gzip"] * 5
    assert sizes(place) == [[SMALL, SMALL - 1, SMALL, SMALL, SMALL]]
    assert declared(place) == [2] * 5


def test_categories_stay_readable(place: Place) -> None:
    """Arrow allows 128 categories per row group with int8 indices: a row group that gets more is split."""
    words = pa.array([f"w{n % 120}" for n in range(3 * SMALL)]).cast(pa.dictionary(pa.int8(), pa.string()))
    table = pa.table({"id": range(3 * SMALL), "word": words})
    place.write_files({"f.parquet": table}, row_group_size=SMALL)
    before = contents(place)
    new = pa.table({"id": range(1000, 1040), "word": [f"new {n}" for n in range(40)]})
    place.dataset().merge(new, ["id"])
    assert copied(before, contents(place)) == 2
    assert len(sizes(place)[0]) == 4
    found = oracle.read_file(oracle.data_files(place.root, place.fs)[0], place.fs)
    assert found.schema.field("word").type == pa.dictionary(pa.int8(), pa.string())
    assert found.column("word").cast(pa.string()).to_pylist()[998:1003] == [
        "w38",
        "w39",
        "new 0",
        "new 1",
        "new 2",
    ]


def categories(words: list[str]) -> pa.Array:
    return pa.array(words).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))


@pytest.mark.parametrize("rewrite", REWRITES)
def test_categories_without_a_dictionary_are_encoded(place: Place, rewrite: Any) -> None:
    """If they were copied, Arrow would build one dictionary across row groups and overflow its int8 indices."""
    words = [[f"{file} {n % 100}" for n in range(GOOD)] for file in "ab"]
    for name, some in zip("ab", words, strict=True):
        table = pa.table({"id": range(GOOD), "word": categories(some)})
        place.write_files({f"{name}.parquet": table}, use_dictionary=False)
    place.dataset().compact(rewrite=rewrite)
    (path,) = oracle.data_files(place.root, place.fs)
    found = oracle.read_file(path, place.fs).column("word")
    assert found.type == pa.dictionary(pa.int8(), pa.string())
    assert found.cast(pa.string()).to_pylist() == [*words[0], *words[1]]


def test_edits_beside_categories_without_a_dictionary(place: Place) -> None:
    words = [f"w{n % 100}" for n in range(400)]
    table = pa.table({"id": range(400), "value": range(400), "other": range(400), "word": categories(words)})
    place.write_files({"f.parquet": table}, use_dictionary=False, row_group_size=100)
    place.dataset().update("id BETWEEN 100 AND 159", {"word": sql("'new ' || CAST(id AS VARCHAR)")})
    (path,) = oracle.data_files(place.root, place.fs)
    expected = [f"new {n}" if 100 <= n <= 159 else word for n, word in enumerate(words)]
    assert oracle.read_file(path, place.fs).column("word").cast(pa.string()).to_pylist() == expected


@pytest.mark.parametrize("writer", [None, PARQUET_MR])
def test_int96(place: Place, writer: bytes | None) -> None:
    """If Arrow cannot write the same kind of timestamps, the whole file is encoded."""
    table = pa.table({"id": range(3 * SMALL), "at": pa.array(range(3 * SMALL), pa.timestamp("us"))})
    place.write_files(
        {"f.parquet": table}, row_group_size=SMALL, use_deprecated_int96_timestamps=True, store_schema=False
    )
    (path,) = oracle.data_files(place.root, place.fs)
    if writer is not None:
        place.fs.pipe_file(path, by_another_writer(place.fs.cat_file(path), writer))
    before, rows = contents(place), place.rows()
    place.dataset().delete("id = 5")
    assert sum((rows - place.rows()).values()) == 1
    assert sizes(place) == [[SMALL - 1, SMALL, SMALL]]
    if writer is None:
        assert copied(before, contents(place)) == 2
    assert pq.read_metadata(io.BytesIO(contents(place)[0])).schema.column(1).physical_type == "INT96"


def test_exotic_files_are_edited(place: Place) -> None:
    table = pa.concat_tables([exotic(n) for n in range(4)])
    place.write_files({"f.parquet": table}, row_group_size=2)
    before = contents(place)
    table = pq.ParquetFile(io.BytesIO(before[0])).read()
    dataset = place.dataset()
    dataset.delete("required = 6")
    dataset.update("required = 9", {"bool": False})
    assert copied(before, contents(place)) == 2
    (path,) = oracle.data_files(place.root, place.fs)
    after = oracle.read_file(path, place.fs)
    assert after.schema.equals(table.schema, check_metadata=True)
    expected, found = row_by_row([table]), row_by_row([after])
    assert expected.keys() - found.keys() == {6}
    assert all(found[key].equals(expected[key], check_metadata=True) for key in found if key != 9)


def test_random_edits_keep_all_row_groups(place: Place) -> None:
    """Compared with a table in memory: row groups are neither lost nor duplicated."""
    rng = np.random.default_rng(4)
    expected = numbers(6 * SMALL)
    place.write_files({"f.parquet": expected}, row_group_size=SMALL)
    dataset: Dataset = place.dataset(engine="pyarrow")
    for step in range(8):
        ids = np.sort(rng.choice(6 * SMALL, 3, replace=False))
        keep = ~np.isin(expected.column("id").to_numpy(), ids)
        if step % 2:
            dataset.delete(f"id IN ({', '.join(map(str, ids))})")
            expected = expected.filter(pa.array(keep))
        else:
            new = numbers(6 * SMALL).take(pa.array(ids)).set_column(1, "value", pa.array([float(step)] * 3))
            dataset.merge(new, ["id"])
            expected = pa.concat_tables([expected.filter(pa.array(keep)), new]).sort_by("id")
        assert dataset.read().sort_by("id").equals(expected)
