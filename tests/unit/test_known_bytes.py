"""Cached bytes of remote files are not requested again, and use bounded memory."""

from __future__ import annotations

import io
import pickle
import random
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from parketto import Dataset
from parketto.parquet import file_info as footers
from parketto.parquet.snapshot import read_files
from parketto.storage import ranged
from parketto.storage.opening import open_store
from parketto.storage.ranged import RangedFile

CONTENT = random.Random(0).randbytes(500_000)


class Counted:
    """Serves ranges of some bytes, and records the requested ranges."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __call__(self, start: int, end: int) -> bytes:
        assert 0 <= start < end <= len(CONTENT)
        self.asked.append((start, end))
        return CONTENT[start:end]


@pytest.mark.parametrize("known", [0, 10, 1_000, 300_000, 500_000])
@pytest.mark.parametrize("block", [0, 200_000])
def test_ranged_file_returns_the_bytes_of_any_range(
    known: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "_CACHE_BYTES", 150_000)
    fetch, chance = Counted(), random.Random(known + block)
    tail = CONTENT[len(CONTENT) - known :]
    with RangedFile(fetch, len(CONTENT), tail, block) as file:
        assert file.seek(0, io.SEEK_END) == len(CONTENT)
        for _ in range(200):
            start, size = chance.randrange(len(CONTENT) + 10), chance.choice([0, 1, 10, 70_000, 400_000])
            file.seek(start)
            assert file.read(size) == CONTENT[start : start + size]
            assert file.tell() == max(start, min(start + size, len(CONTENT)))
        into = bytearray(100)
        file.seek(50)
        assert file.readinto(into) == 100
        assert bytes(into) == CONTENT[50:150]
    assert bool(fetch.asked) == (known < len(CONTENT))


def test_cached_ranges_are_not_requested_again() -> None:
    fetch = Counted()
    with RangedFile(fetch, len(CONTENT), CONTENT[-1_000:], 100_000) as file:
        for start in (0, 4, 50_000, 99_990, 0):
            file.seek(start)
            file.read(10)
        assert fetch.asked == [(0, 100_000)]
        file.seek(450_000)
        file.read(10)
        assert fetch.asked[1:] == [(450_000, 499_000)], "the tail is cached"
        file.seek(499_500)
        file.read()
        assert len(fetch.asked) == 2


def remote_dataset(tmp_path: Path, count: int, rows: int = 10) -> Dataset:
    """A dataset on a filesystem that is treated as remote."""
    (tmp_path / "events").mkdir()
    for number in range(count):
        pq.write_table(pa.table({"x": range(rows)}), tmp_path / "events" / f"{number}.parquet")
    return Dataset("events", "pyarrow", filesystem=DirFileSystem(str(tmp_path), fsspec.filesystem("file")))


def test_small_remote_files_are_cached_with_their_footers(tmp_path: Path) -> None:
    files = remote_dataset(tmp_path, 3).files()
    assert [file.tail for file in files] == [(tmp_path / file.path).read_bytes() for file in files]
    assert "tail" not in repr(files[0])
    copy = pickle.loads(pickle.dumps(files[0]))
    assert copy == files[0]
    assert copy.tail == b""


def test_only_the_tails_of_large_remote_files_are_cached(tmp_path: Path) -> None:
    (file,) = remote_dataset(tmp_path, 1, rows=500_000).files()
    content = (tmp_path / file.path).read_bytes()
    assert len(content) > 2**20 > len(file.tail) > 1_000
    assert content.endswith(file.tail)


def test_cached_bytes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = remote_dataset(tmp_path, 20)
    size = dataset.files()[0].size_bytes
    monkeypatch.setattr(footers, "_MAX_KEPT_BYTES", 4 * size)
    monkeypatch.setattr(dataset._store, "parallel_reads", 1)
    assert sum(len(file.tail) for file in dataset.files()) == 4 * size
    assert dataset.read().num_rows == 200


def test_local_files_are_not_cached(tmp_path: Path) -> None:
    remote_dataset(tmp_path, 2)
    assert {file.tail for file in Dataset(tmp_path / "events", "pyarrow").files()} == {b""}


def test_footers_are_read_without_a_listing(tmp_path: Path) -> None:
    dataset = remote_dataset(tmp_path, 4)
    paths = [file.path for file in dataset.files()]
    assert [file.num_rows for file in read_files(dataset._store, paths)] == [10] * 4
    local, root = open_store(tmp_path / "events")
    assert [file.num_rows for file in read_files(local, [f"{root}/0.parquet"])] == [10]
    for store in (dataset._store, local):
        with pytest.raises(FileNotFoundError):
            read_files(store, [*paths[:1], f"{root}/none.parquet"])
