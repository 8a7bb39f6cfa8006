"""Checks: every damaged file and column is named, sound ones never are, and nothing is changed."""

from __future__ import annotations

import errno
import io
import json
import resource
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers.damage import (
    DICTIONARY_PAGES,
    MAX_VALUE,
    MIN_VALUE,
    flipped,
    in_page,
    page_bodies,
    with_footer,
    with_meta,
    with_statistics,
)
from helpers.encrypted import FORMS, encrypted
from helpers.exotic import exotic
from parketto import CheckReport, Dataset, DatasetNotFound, Progress
from parketto.engines.base import Engine
from parketto.parquet.footer import FileKeys, GroupKeys, MetaKeys, read_footer
from parketto.parquet.thrift import I64, LIST, key
from parketto.storage.local import LocalStore
from parketto.tasks import check as tasks

CODECS = ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]
COUNT = 5000
TRADES = pa.table(
    {
        "id": pa.array(range(COUNT), pa.int64()),
        "side": [("ask", "bid", None)[number % 3] for number in range(COUNT)],
        "note": [f"the trade has the number {number * 7919 % COUNT}" for number in range(COUNT)],
        "trade": [{"price": number * 1.37, "tags": [f"tag {number % 91}"]} for number in range(COUNT)],
    }
)


def written(table: pa.Table = TRADES, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **{"row_group_size": 2500, **options})
    return sink.getvalue()


def put(place: Place, files: dict[str, bytes]) -> Dataset:
    for name, data in files.items():
        place.fs.makedirs(f"{place.root}/{name}".rpartition("/")[0], exist_ok=True)
        place.fs.pipe_file(f"{place.root}/{name}", data)
    return place.dataset(engine="pyarrow")


def places(report: CheckReport) -> list[tuple[str, int | None, str | None]]:
    """File name, row group and column of all damage."""
    return [(found["path"].rpartition("/")[2], found["row_group"], found["column"]) for found in report["damaged"]]


def only_reason(report: CheckReport) -> str:
    (found,) = report["damaged"]
    return found["reason"]


@pytest.mark.parametrize("deep", [False, True])
def test_sound_files_of_every_type_are_healthy(place: Place, engine: Engine, deep: bool) -> None:
    place.write_files({f"day={n}/f.parquet": exotic(n) for n in (1, 2)}, write_page_checksum=True)
    state = place.state()
    report = place.dataset(engine=engine).check(deep=deep)
    leaves = pq.read_metadata(io.BytesIO(written(exotic(1)))).num_columns
    assert (report["healthy"], report["deep"], report["damaged"]) == (True, deep, [])
    assert (report["files_checked"], report["rows"], report["row_groups"]) == (2, 4, 2)
    assert report["bytes"] == sum(file.size_bytes for file in place.dataset().files())
    assert report["columns_checked"] == (2 * leaves if deep else 0)
    assert (report["pages_checked"] > 0) is deep
    assert (report["other_schemas"], report["notes"]) == ([], [])
    assert (report["missing"], report["changed"], report["unknown"]) == ([], [], [])
    assert json.loads(json.dumps(report)) == report
    assert place.state() == state
    assert place.left_behind() == []


def test_all_damaged_files_are_named_on_every_engine(local: Place, engine: Engine) -> None:
    """The check goes on after a damaged file."""
    sound = written(write_page_checksum=True)
    put(
        local,
        {
            "a.parquet": sound,
            "b.parquet": b"",
            "c.parquet": sound[:-50],
            "d.parquet": bytes(range(256)) * 40,
            "e.parquet": in_page(in_page(sound, "id", row_group=1), "trade.price"),
            "f.parquet": with_meta(sound, {MetaKeys.DATA_PAGE_OFFSET: 2**40}),
            "g.parquet": sound,
            "h.parquet": in_page(sound, "side", kinds=DICTIONARY_PAGES),
        },
    )
    state = local.state()
    shallow = local.dataset(engine=engine).check()
    files = [("b.parquet", None, None), ("c.parquet", None, None), ("d.parquet", None, None)]
    assert places(shallow) == [*files, ("f.parquet", 0, "id")]
    assert not shallow["healthy"]
    deep = local.dataset(engine=engine).check(deep=True)
    assert places(deep) == [
        *files,
        ("e.parquet", 0, "trade.price"),
        ("e.parquet", 1, "id"),
        ("f.parquet", 0, "id"),
        ("h.parquet", 0, "side"),
    ]
    assert deep["files_checked"] == 8
    assert local.state() == state


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("column", ["id", "note", "trade.tags.list.element"])
def test_flipped_bits_are_found_by_checksums(place: Place, codec: str, version: str, column: str) -> None:
    """A single bit, wherever it is."""
    sound = written(compression=codec, data_page_version=version, write_page_checksum=True)
    for at in (0, 0.5, 1):
        dataset = put(place, {"f.parquet": in_page(sound, column, at=at, flip=b"\x10")})
        report = dataset.check(deep=True)
        assert places(report) == [("f.parquet", 0, column)]
        assert "does not match its checksum" in only_reason(report)
        assert dataset.check()["healthy"], "a shallow check reads no pages"


@pytest.mark.parametrize("codec", ["snappy", "gzip", "lz4", "brotli"])
@pytest.mark.parametrize("column", ["id", "note", "trade.price"])
def test_flipped_bytes_without_a_checksum_are_found_by_decoding(place: Place, codec: str, column: str) -> None:
    """Damaged pages fail to decompress, or contain invalid values. Zstandard often detects nothing."""
    sound = written(compression=codec, use_dictionary=False, data_page_size=2**20)
    broken = in_page(sound, column, row_group=1, flip=b"\xff" * 32)
    report = put(place, {"f.parquet": broken}).check(deep=True)
    assert places(report) == [("f.parquet", 1, column)]


def test_damaged_dictionary_without_a_checksum_is_found(place: Place) -> None:
    """The length of the first string is changed."""
    sound = written(compression="none")
    broken = in_page(sound, "side", row_group=1, kinds=DICTIONARY_PAGES, at=0)
    assert places(put(place, {"f.parquet": broken}).check(deep=True)) == [("f.parquet", 1, "side")]


def test_strings_that_are_not_utf8_are_damage(place: Place) -> None:
    sound = written(compression="none", use_dictionary=False, write_statistics=False)
    at = sound.index(b"the trade has the number 7919"[:20])
    broken = sound[: at + 8] + b"\xff" + sound[at + 9 :]
    report = put(place, {"f.parquet": broken}).check(deep=True)
    assert places(report) == [("f.parquet", 0, "note")]
    assert "UTF8" in only_reason(report)


def test_undetectable_damage_is_not_reported(place: Place) -> None:
    """A valid number replaced by another one, without a checksum: a documented limit."""
    sound = written(compression="none", use_dictionary=False)
    page = next(body for body in page_bodies(sound) if body.column == "id")
    broken = flipped(sound, page.start + page.size - 8 * 1000, b"\x01")  # the low bit of a number
    assert broken != sound
    assert put(place, {"f.parquet": broken}).check(deep=True)["healthy"]


def test_values_outside_of_their_bounds_are_damage(place: Place) -> None:
    """The same, where the flipped bit makes a number larger than any other one."""
    sound = written(compression="none", use_dictionary=False)
    page = next(body for body in page_bodies(sound) if body.column == "id")
    broken = flipped(sound, page.start + page.size - 2, b"\x40")  # a high bit of the last number
    report = put(place, {"f.parquet": broken}).check(deep=True)
    assert places(report) == [("f.parquet", 0, "id")]
    assert "outside of the bounds" in only_reason(report)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({MIN_VALUE: (10).to_bytes(8, "little")}, "outside of the bounds"),
        ({MAX_VALUE: (10).to_bytes(8, "little")}, "outside of the bounds"),
        ({key(3, I64): 7}, "0 nulls were decoded, the footer declares 7"),
    ],
)
def test_wrong_statistics_are_damage(place: Place, changes: dict[int, Any], reason: str) -> None:
    dataset = put(place, {"f.parquet": with_statistics(written(), changes)})
    assert dataset.check()["healthy"]
    report = dataset.check(deep=True)
    assert places(report) == [("f.parquet", 0, "id")]
    assert reason in only_reason(report)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.2, 0.5, 0.9, 0.99, 0.9999])
def test_truncated_files_are_damage(place: Place, share: float) -> None:
    sound = written()
    report = put(place, {"a.parquet": sound, "b.parquet": sound[: int(len(sound) * share)]}).check()
    assert places(report) == [("b.parquet", None, None)]
    assert (report["files_checked"], report["rows"]) == (2, COUNT)


def _size_of_first(data: bytes) -> int:
    return read_footer(io.BytesIO(data)).row_groups[0].columns[0].size


def _groups(change: Callable[[dict[int, Any]], None]) -> Callable[[bytes], bytes]:
    return lambda data: with_footer(data, lambda fields: change(fields[FileKeys.ROW_GROUPS][0]))


FOOTERS: dict[str, tuple[Callable[[bytes], bytes], str | None, str]] = {
    "pages behind the end": (
        lambda data: with_meta(data, {MetaKeys.TOTAL_COMPRESSED_SIZE: 2**31}),
        "id",
        "outside of the",
    ),
    "pages of another column": (
        lambda data: with_meta(data, {MetaKeys.TOTAL_COMPRESSED_SIZE: _size_of_first(data) + 1}),
        "side",
        "overlap",
    ),
    "unknown codec": (lambda data: with_meta(data, {MetaKeys.CODEC: 77}), "id", "unknown codec 77"),
    "another type": (lambda data: with_meta(data, {MetaKeys.TYPE: 4}), "id", "does not match the schema's column"),
    "unknown encoding": (lambda data: with_meta(data, {MetaKeys.ENCODINGS: b"\x15\x7e"}), "id", "encodings"),
    "number of values": (lambda data: with_meta(data, {MetaKeys.NUM_VALUES: 3}), "id", "3 values in a row group"),
    "wrong bounds": (lambda data: with_statistics(data, {MIN_VALUE: b"\0"}), "id", "bounds have the wrong size"),
    "too many nulls": (lambda data: with_statistics(data, {key(3, I64): 9999}), "id", "9999 nulls of 2500"),
    "histograms": (
        lambda data: with_meta(data, {MetaKeys.SIZE_STATISTICS: {key(3, LIST): b"\x36\x02\x02\x02"}}),
        "id",
        "size statistics",
    ),
    "number of rows": (
        lambda data: with_footer(data, lambda fields: fields.update({FileKeys.NUM_ROWS: 1})),
        None,
        "row groups have 5000 rows, not 1",
    ),
    "missing column": (
        _groups(lambda group: group[GroupKeys.COLUMNS].pop()),
        None,
        "4 columns, the schema has 5",
    ),
    "length of the footer": (lambda data: data[:-8] + b"\xff\xff\x00\x01PAR1", None, "its footer needs"),
    "bytes inside": (lambda data: data[:-400] + b"\x33" * 20 + data[-380:], None, ""),
    "beginning": (lambda data: b"PARX" + data[4:], None, "does not begin with PAR1"),
}


@pytest.mark.parametrize("name", FOOTERS)
def test_footers_that_contradict_their_file_are_damage(local: Place, name: str) -> None:
    change, column, expected = FOOTERS[name]
    report = put(local, {"a.parquet": written(), "b.parquet": change(written())}).check()
    row_group = None if column is None and name != "missing column" else 0
    assert places(report) == [("b.parquet", row_group, column)]
    assert expected in only_reason(report)
    assert not local.dataset().check(deep=True)["healthy"]


@pytest.mark.parametrize("field", [1, 2, 3])
def test_wrong_page_headers_are_damage(place: Place, field: int) -> None:
    """The kind of a page, or its size before or after compression."""
    sound = written(compression="none", use_dictionary=False)
    page = next(body for body in page_bodies(sound) if body.column == "id")
    values = [at + 1 for at in range(4, page.start) if sound[at] == 0x15]  # Thrift: the next field, an i32
    broken = flipped(sound, values[field - 1], b"\x18")
    assert places(put(place, {"f.parquet": broken}).check(deep=True)) == [("f.parquet", 0, "id")]


@pytest.mark.parametrize("form", FORMS)
def test_encrypted_files_are_named(place: Place, form: str) -> None:
    rows = pa.table({"x": [1, 2], "y": [3, 4]})
    report = put(place, {"a.parquet": written(rows), "b.parquet": encrypted(rows, form)}).check(deep=True)
    assert places(report) == [("b.parquet", None, None)]
    assert "encrypted" in only_reason(report)


def test_files_of_other_writers_are_healthy(local: Place) -> None:
    put(local, {"arrow.parquet": written(write_page_index=True)})
    trades = TRADES  # noqa: F841 - DuckDB finds it by its name
    duckdb.sql(f"COPY (FROM trades) TO '{local.root}/duckdb.parquet' (FORMAT parquet)")
    pl.from_arrow(TRADES).write_parquet(f"{local.root}/polars.parquet")
    report = local.dataset().check(deep=True)
    assert (report["damaged"], report["rows"]) == ([], 3 * COUNT)


def test_files_of_spark_have_checksums(local: Place, spark: Any) -> None:
    frame = spark.range(3000).selectExpr(
        "id",
        "cast(id as string) text",
        "cast(id as decimal(20, 3)) price",
        "timestamp_seconds(id) at",
        "if(id % 3 = 0, null, array(id, null)) list",
        "map('k', struct(id, id % 7 as day)) nested",
        "date_add(date'1970-01-01', cast(id as int)) day",
    )
    frame.coalesce(1).write.parquet(local.root)
    dataset = local.dataset()
    assert dataset.check(deep=True)["damaged"] == []
    (name,) = local.files()
    sound = local.fs.cat_file(f"{local.root}/{name}")
    report = put(local, {name: in_page(sound, "price", flip=b"\x01")}).check(deep=True)
    assert places(report) == [(name, 0, "price")]
    assert "does not match its checksum" in only_reason(report)


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": False, "column_encoding": {"id": "DELTA_BINARY_PACKED", "note": "DELTA_BYTE_ARRAY"}},
        {"write_statistics": False, "store_schema": False},
        {"use_deprecated_int96_timestamps": True, "write_page_index": True},
        {"max_rows_per_page": 100, "data_page_version": "2.0", "write_page_index": True},
    ],
)
def test_files_in_every_encoding_are_healthy(place: Place, options: dict[str, Any]) -> None:
    times = pa.array([None, *range(1, COUNT)], pa.timestamp("us"))
    dataset = put(place, {"f.parquet": written(TRADES.append_column("at", times), **options)})
    assert dataset.check(deep=True)["damaged"] == []


def test_special_values_are_healthy(place: Place) -> None:
    numbers = pa.table(
        {
            "f": pa.array([float("nan"), -0.0, 0.0, None, float("inf")] * 10),
            "nan": [float("nan")] * 50,
            "long": ["x" * 5000 + chr(0x10FFFF)] * 50,
            "raw": [b"\xff\xfe", b""] * 25,
            "none": pa.nulls(50, pa.int32()),
        }
    )
    empty = numbers.slice(0, 0)
    dataset = put(place, {"a.parquet": written(numbers), "b.parquet": written(empty)})
    assert dataset.check(deep=True)["damaged"] == []


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("stored", [True, False])
def test_string_dictionaries_are_healthy(place: Place, kind: pa.DataType, stored: bool) -> None:
    """Including several dictionaries, and a fallback to plain encoding within a chunk."""
    words = pa.array([f"{n % 7 if n < 2000 else n} words" if n % 5 else None for n in range(COUNT)]).cast(kind)
    options = {"dictionary_pagesize_limit": 4096, "store_schema": stored, "row_group_size": COUNT - 100}
    table = pa.table({"a.b": words, "c": words.dictionary_encode(), "d": [{"e": word} for word in words]})
    sound = written(table, **options)
    assert put(place, {"f.parquet": sound}).check(deep=True)["damaged"] == []
    cut = with_statistics(sound, {MAX_VALUE: b"3"})
    assert places(put(place, {"f.parquet": cut}).check(deep=True)) == [("f.parquet", 0, "a.b")]


def test_different_schemas_are_reported_but_not_as_damage(place: Place) -> None:
    rows = pa.table({"x": [1], "y": ["a"]})
    place.write_files({f"{name}.parquet": rows for name in "abc"})
    place.write_files({"d.parquet": rows.select(["x"]), "e.parquet": rows.append_column("z", pa.array([1]))})
    place.write_files(
        {"f.parquet": rows.set_column(0, "x", pa.array(["1"])), "g.parquet": rows.select(["y", "x"])}
    )
    report = place.dataset().check()
    assert report["healthy"]
    differences = {
        found["difference"]: [path[-9:] for path in found["paths"]] for found in report["other_schemas"]
    }
    assert differences == {
        "missing column 'y'": ["d.parquet"],
        "extra column 'z'": ["e.parquet"],
        "schemas differ in 'x'": ["f.parquet"],
        "different column order": ["g.parquet"],
    }


def test_a_filter_and_progress(place: Place, engine: Engine) -> None:
    sound = written()
    put(place, {"day=1/f.parquet": sound, "day=2/f.parquet": sound[:-4], "day=3/f.parquet": sound})
    seen: list[Progress] = []
    report = place.dataset(engine=engine).check(True, partition_filter="day=3", progress=seen.append)
    assert (report["healthy"], report["files_checked"]) == (True, 1)
    assert {step.operation for step in seen} == {"check"}
    assert seen[-1].done == seen[-1].total
    assert not place.dataset(engine=engine).check(True, partition_filter=["day=2", "day=3"])["healthy"]


def test_missing_dataset_is_an_error(place: Place) -> None:
    with pytest.raises(DatasetNotFound):
        place.dataset().check()


def test_large_files_are_divided_by_row_groups(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_TASK_BYTES", 50_000)
    sound = written(row_group_size=500, write_page_checksum=True)
    put(local, {"a.parquet": sound, "b.parquet": in_page(in_page(sound, "id", row_group=9), "id", row_group=2)})
    seen: list[Progress] = []
    report = local.dataset().check(deep=True, progress=seen.append)
    assert places(report) == [("b.parquet", 2, "id"), ("b.parquet", 9, "id")]
    assert report["columns_checked"] == 2 * 10 * 5
    assert len(seen) > 4


def test_files_replaced_during_the_check_are_checked_in_their_new_version(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed file is not damaged; its replacement is checked."""
    place.write_files({"a.parquet": TRADES, "b.parquet": TRADES})
    found = tasks.FooterCheck
    others = iter([written(TRADES.slice(0, 7))])

    def replacing(store: Any, entry: Any, **options: Any) -> Any:
        for data in others:
            place.fs.rm_file(f"{place.root}/a.parquet")
            place.fs.pipe_file(f"{place.root}/c.parquet", data)
        return found(store, entry, **options)

    monkeypatch.setattr(tasks, "FooterCheck", replacing)
    report = place.dataset().check(deep=True)
    assert (report["healthy"], report["files_checked"], report["rows"]) == (True, 2, COUNT + 7)
    assert report["notes"] == []


def test_files_that_keep_vanishing_are_noted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write_files({"a.parquet": TRADES, "b.parquet": TRADES})
    found = tasks.FooterCheck

    def vanishing(store: Any, entry: Any, **options: Any) -> Any:
        if entry.path.endswith("a.parquet"):
            raise FileNotFoundError(entry.path)
        return found(store, entry, **options)

    monkeypatch.setattr(tasks, "FooterCheck", vanishing)
    report = place.dataset().check()
    assert report["files_checked"] == 1
    assert "1 files were replaced or removed" in report["notes"][0]


def test_io_error_of_one_file_is_damage(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost connection is not."""
    local.write_files({"a.parquet": TRADES, "b.parquet": TRADES})
    dataset, read = local.dataset(), LocalStore.read_range

    def failing(error: OSError) -> Callable[..., bytes]:
        def read_range(self: LocalStore, path: str, start: int, end: int, *known: str) -> bytes:
            if path.endswith("b.parquet"):
                raise error
            return read(self, path, start, end, *known)

        return read_range

    monkeypatch.setattr(LocalStore, "read_range", failing(OSError(errno.EIO, "Input/output error")))
    report = dataset.check(deep=True)
    assert places(report) == [("b.parquet", None, None)]
    assert "Input/output error" in only_reason(report)
    monkeypatch.setattr(LocalStore, "read_range", failing(PermissionError(errno.EACCES, "Permission denied")))
    assert "Permission denied" in only_reason(dataset.check())
    monkeypatch.setattr(LocalStore, "read_range", failing(ConnectionResetError("the server is gone")))
    with pytest.raises(ConnectionResetError):
        dataset.check()


def test_strings_are_not_decoded_from_their_dictionary(local: Place) -> None:
    """Decoded, these strings would take 10 GB."""
    text = pa.DictionaryArray.from_arrays(np.repeat(np.array([0, 1], "int32"), 100_000), ["y", "x" * 100_000])
    put(local, {"f.parquet": written(pa.table({"text": text}), store_schema=False, row_group_size=200_000)})
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert local.dataset(memory_mb=64).check(deep=True)["healthy"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - usage < 200 * 1024


def test_files_are_compared_with_the_log(place: Place) -> None:
    dataset = place.dataset()
    dataset.write(pa.table({"day": [1, 2, 3], "n": [1, 2, 3]}), partition_by="day")
    assert dataset.check()["healthy"]
    first, second, _third = (file.path for file in dataset.files())
    place.write_files({"day=3/other.parquet": pa.table({"day": [3], "n": [4]})})
    report = dataset.check()
    assert (report["healthy"], report["unknown"]) == (True, [f"{place.root}/day=3/other.parquet"])
    place.fs.rm_file(first)
    place.fs.pipe_file(second, place.fs.cat_file(second) + b"more")
    report = dataset.check()
    assert report["missing"] == [first]
    assert [file["path"] for file in report["changed"]] == [second]
    assert not report["healthy"]
    only = dataset.check(partition_filter="day=3")
    assert (only["healthy"], only["missing"], only["changed"]) == (True, [], [])
    dataset.write(pa.table({"day": [1], "n": [1]}), mode="overwrite")
    assert dataset.check()["healthy"]


def test_missing_files_are_reported_if_the_log_lists_them(place: Place) -> None:
    dataset = place.dataset()
    dataset.write(pa.table({"n": [1]}))
    (file,) = dataset.files()
    place.fs.rm_file(file.path)
    report = dataset.check()
    assert (report["files_checked"], report["missing"]) == (0, [file.path])
