"""Footers that are alike: what is taken from a known one is what a look at each of them would have told."""

from __future__ import annotations

import os
import pickle
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from helpers.processes import in_another_process
from parketto.errors import UnreadableFile
from parketto.rowgroups import read_footer
from parketto.rowgroups.compact import encode
from parketto.rowgroups.footer import FileKeys
from parketto.storage import footers
from parketto.storage.alike import Frame, UnreadRowGroups
from parketto.storage.footers import FileInfo, FooterReader
from parketto.storage.local import LocalStore
from parketto.storage.store import FileEntry


def rows(count: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "id": pa.array(rng.integers(0, 2**40, count)),
            "word": pa.array([f"w{number}" for number in rng.integers(0, 90, count)]),
            "list": pa.array([[int(number)] for number in rng.integers(0, 9, count)]),
        }
    )


def by_arrow(table: pa.Table, path: Path, **options: Any) -> None:
    pq.write_table(table, path, row_group_size=100, **options)


def by_polars(table: pa.Table, path: Path) -> None:
    pl.from_arrow(table).write_parquet(path, row_group_size=100)  # type: ignore[union-attr]


def by_duckdb(table: pa.Table, path: Path) -> None:
    with duckdb.connect() as connection:
        connection.from_arrow(table).write_parquet(str(path), row_group_size=2048)


@pytest.fixture
def store() -> LocalStore:
    return LocalStore(LocalFileSystem())


def entry(path: Path) -> FileEntry:
    return FileEntry(str(path), path.stat().st_size, f"print of {path.name}")


def knowing(store: LocalStore, path: Path) -> FooterReader:
    """A reader that has read a file often enough to know what others may be like."""
    reader = FooterReader(store)
    for _ in range(8):
        assert isinstance(reader.read(entry(path)).row_groups, tuple)
    return reader


def alone(store: LocalStore, path: Path) -> FileInfo:
    """What a reader says that has seen no other file."""
    found = FooterReader(store).read(entry(path))
    assert isinstance(found.row_groups, tuple)
    return found


@pytest.mark.parametrize("write", [by_arrow, by_polars, by_duckdb])
def test_what_alike_files_say_is_what_each_says_alone(tmp_path: Path, store: LocalStore, write: Any) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(6)]
    for number, path in enumerate(paths):
        write(rows(70 * number + 1, seed=number), path)
    reader = knowing(store, paths[0])
    found = [reader.read(entry(path), (("day", "1"),)) for path in paths]

    assert {type(file.row_groups) for file in found} == {UnreadRowGroups}
    for path, file in zip(paths, found, strict=True):
        expected = alone(store, path)
        assert file.partition == (("day", "1"),)
        assert len(file.row_groups) == len(expected.row_groups)
        for name in FileInfo.__slots__:
            if name != "partition":
                assert getattr(file, name) == getattr(expected, name), name
        travelled = pickle.loads(pickle.dumps(file))
        assert travelled.row_groups == expected.row_groups
        assert travelled.codecs == expected.codecs


def test_row_groups_travel_unread(tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that sends files to its workers does not read for them what they may not need."""
    for number in range(3):
        by_arrow(rows(200, seed=number), tmp_path / f"{number}.parquet")
    reader = knowing(store, tmp_path / "0.parquet")
    files = [reader.read(entry(tmp_path / f"{number}.parquet")) for number in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(Frame, "footer", lambda *_: pytest.fail("it was read"))
        travelled = pickle.loads(pickle.dumps(files))
        assert [len(file.row_groups) for file in travelled] == [2, 2, 2]

    assert [file.row_groups for file in travelled] == [file.row_groups for file in files]
    assert travelled[2].row_groups[-1].num_rows == 100
    assert travelled[2].row_groups[:1] == files[2].row_groups[:1]


def test_files_that_differ_are_told_apart(tmp_path: Path, store: LocalStore) -> None:
    first, other = tmp_path / "first.parquet", tmp_path / "other.parquet"
    by_arrow(rows(150), first)
    base = rows(150, seed=1)
    variants: dict[str, tuple[pa.Table, dict[str, Any]]] = {
        "notes": (base.replace_schema_metadata({"by": "me"}), {}),
        "codec": (base, {"compression": "zstd"}),
        "types": (base.set_column(0, "id", base["id"].cast("float64")), {}),
        "names": (base.rename_columns(["id", "term", "list"]), {}),
        "NULLs": (base.cast(pa.schema([base.schema.field(0).with_nullable(False), *list(base.schema)[1:]])), {}),
        "no rows": (base.slice(0, 0), {}),
        "version": (base, {"version": "1.0"}),
    }
    for name, (table, options) in variants.items():
        by_arrow(table, other, **options)
        reader = knowing(store, first)
        assert reader.read(entry(other)) == alone(store, other), name
        assert isinstance(reader.read(entry(first)).row_groups, UnreadRowGroups), name


def test_a_footer_without_an_end_of_its_own_is_like_no_other(tmp_path: Path, store: LocalStore) -> None:
    """Writers need not say who they are. Then nothing follows the row groups, and every footer ends like that."""
    first, other = tmp_path / "first.parquet", tmp_path / "other.parquet"
    by_arrow(rows(150), first)
    by_arrow(rows(150, seed=1).replace_schema_metadata({"owner": "me"}), other)
    with first.open("r+b") as file:
        found = read_footer(file)
        said = (FileKeys.KEY_VALUES, FileKeys.CREATED_BY, FileKeys.COLUMN_ORDERS)
        bare = encode({place: value for place, value in found.fields.items() if place not in said})
        file.truncate(found.data_end)
        file.seek(found.data_end)
        file.write(bare + struct.pack("<I", len(bare)) + b"PAR1")
    reader = knowing(store, first)
    told = reader.read(entry(other))

    assert told == alone(store, other)
    assert told.metadata is not None
    assert told.metadata[b"owner"] == b"me"


def test_the_codec_is_that_of_the_file(tmp_path: Path, store: LocalStore) -> None:
    """Not that of the file that it is like; and where columns have several, the one that most have."""
    first, mixed, other = (tmp_path / f"{name}.parquet" for name in ("first", "mixed", "other"))
    by_arrow(rows(150), first)
    by_arrow(rows(150, seed=1), mixed, compression={"id": "zstd", "word": "gzip", "list.list.element": "gzip"})
    by_arrow(rows(150, seed=2), other, compression="zstd")
    assert knowing(store, first).read(entry(other)).codec == "zstd"
    reader = knowing(store, mixed)
    assert [reader.read(entry(path)).codec for path in (mixed, other, first)] == ["gzip", "zstd", "snappy"]


def test_a_footer_longer_than_its_file_is_named(tmp_path: Path, store: LocalStore) -> None:
    path = tmp_path / "cut.parquet"
    path.write_bytes(b"PAR1" + bytes(70_000) + struct.pack("<I", 99_999) + b"PAR1")
    with pytest.raises(UnreadableFile, match=r"cut\.parquet.*100007 bytes.*70012"):
        FooterReader(store).read(entry(path))


def test_nothing_is_taken_from_others_where_bounds_are_wanted(tmp_path: Path, store: LocalStore) -> None:
    for number in range(12):
        by_arrow(rows(100, seed=number), tmp_path / f"{number}.parquet")
    reader = FooterReader(store, ["id"])
    files = [reader.read(entry(tmp_path / f"{number}.parquet")) for number in range(12)]

    assert len({file.column_stats("id") for file in files}) == 12
    assert None not in (files[11].column_stats("id").min, files[11].column_stats("id").max)


def test_so_many_bytes_are_kept_and_no_more(
    tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        by_arrow(rows(300, seed=number), tmp_path / f"{number}.parquet")
    footer = pq.read_metadata(tmp_path / "0.parquet").serialized_size
    monkeypatch.setattr(footers, "_MOST_UNREAD", 5 * footer)
    reader = knowing(store, tmp_path / "0.parquet")
    files = [reader.read(entry(tmp_path / f"{number}.parquet")) for number in range(20)]

    unread = sum(isinstance(file.row_groups, UnreadRowGroups) for file in files)
    assert 5 <= unread < 15
    assert {sum(group.num_rows for group in file.row_groups) for file in files} == {300}


def test_a_long_footer_is_read_as_a_whole(tmp_path: Path, store: LocalStore) -> None:
    """Longer than what is read of a file at first."""
    table = pa.table({f"column {number}": [number] for number in range(700)})
    for number in range(2):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    assert pq.read_metadata(tmp_path / "0.parquet").serialized_size > 64 * 1024
    reader = knowing(store, tmp_path / "0.parquet")
    files = [reader.read(entry(tmp_path / f"{number}.parquet")) for number in range(2)]

    assert files[1].row_groups == files[0].row_groups
    assert files[1].schema == table.schema


def test_nested_columns_of_other_names_are_other_columns(tmp_path: Path, store: LocalStore) -> None:
    """Arrow takes such schemas for equal; nothing but the names of the outer columns differs here."""
    for name in ("size", "mass"):
        with duckdb.connect() as connection:
            connection.sql(f"select 1 as id, {{'x': 5}} as {name}").write_parquet(
                str(tmp_path / f"{name}.parquet")
            )
    for columns in ((), None):
        reader = FooterReader(store, columns)
        found = {name: reader.read(entry(tmp_path / f"{name}.parquet")).schema for name in ("size", "mass")}
        assert {name: schema.names for name, schema in found.items() if schema is not None} == {
            "size": ["id", "size"],
            "mass": ["id", "mass"],
        }


def test_a_name_that_is_no_text_names_its_file(tmp_path: Path, store: LocalStore) -> None:
    path = tmp_path / "odd.parquet"
    by_arrow(pa.table({"price": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"price", b"pr\xffce"))
    with pytest.raises(UnreadableFile, match=r"odd\.parquet"):
        FooterReader(store).read(entry(path))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Arrow ends some of these processes")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(1, 50))])
def test_damaged_footers_say_the_same_as_they_do_alone(tmp_path: Path, store: LocalStore, seed: int) -> None:
    """One bit at a time: an error, at once or when row groups are asked for, or what Arrow makes of it."""
    first, other = tmp_path / "first.parquet", tmp_path / "other.parquet"
    by_arrow(rows(250), first)
    by_arrow(rows(220, seed=1), other)
    sound = other.read_bytes()
    generator = random.Random(seed)
    outcomes = Counter[str]()
    for at in range(len(sound) - pq.read_metadata(other).serialized_size - 8 + seed % 9, len(sound), 9):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << generator.randrange(8)
        other.write_bytes(damaged)
        reader = knowing(store, first)
        outcomes[in_another_process(lambda reader=reader: _compared(reader, FooterReader(store), other))] += 1
    # Over types and codecs that do not exist Arrow ends the process, whoever asks it.
    assert set(outcomes) <= {"refused", "the same", "ended by Arrow"}, outcomes
    assert min(outcomes["refused"], outcomes["the same"]) > 20, outcomes


def _compared(reader: FooterReader, fresh: FooterReader, path: Path) -> str:
    told, alone = described(reader, path), described(fresh, path)
    if told is None:
        return "refused"
    return "the same" if told == alone else f"{told} instead of {alone}"


def described(reader: FooterReader, path: Path) -> tuple[object, ...] | None:
    """All that a file tells; None if it is an error at any point."""
    try:
        file = reader.read(entry(path))
        row_groups = tuple(file.row_groups)
    except UnreadableFile:
        return None
    return (*(getattr(file, name) for name in FileInfo.__slots__ if name != "row_groups"), *row_groups)
