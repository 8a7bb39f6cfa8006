"""Retired files on S3 are copied before they are deleted, and kept for some time."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from helpers.crash import DEATHS, mortal
from helpers.kept import kept_contents, kept_files, sound_manifests
from helpers.s3 import S3Place, kinds, recorded
from parketto.commit import retention
from parketto.storage.s3 import S3Store

pytest.importorskip("s3fs")

ROWS = 250_000  # more than is read along with the footer


def table(number: int, rows: int = 100) -> pa.Table:
    return pa.table({"id": range(number * rows, number * rows + rows)})


@pytest.fixture
def filled(s3: S3Place) -> S3Place:
    s3.write_files({f"{number}.parquet": table(number) for number in range(4)})
    return s3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [time.time()]
    monkeypatch.setattr(retention, "unix_time", lambda: now[0])
    return now


def test_retired_files_are_kept_and_removed_when_they_expire(filled: S3Place, clock: list[float]) -> None:
    before = filled.state()
    filled.dataset().compact()
    (manifest,) = sound_manifests(filled)
    assert kept_contents(filled, manifest) == before
    assert filled.left_behind() == []
    clock[0] += 16 * 60
    filled.dataset().delete("id = 1")
    assert [each.operation for each in sound_manifests(filled)] == ["delete"]
    clock[0] += 25 * 3600
    filled.dataset().recover()
    assert sound_manifests(filled) == []


def test_appends_remove_expired_files_from_time_to_time(filled: S3Place, clock: list[float]) -> None:
    """Not every append pays for a listing."""
    filled.dataset().compact()
    clock[0] += 16 * 60
    for number in range(10):
        filled.dataset().write(table(100 + number))
    assert sound_manifests(filled) == []


def test_nothing_is_copied_without_retention(filled: S3Place) -> None:
    dataset = filled.dataset(retention=0)
    with recorded(dataset._store.fs) as requests:
        dataset.compact()
    assert not [request for request in requests if "/kept/" in request.path]
    assert sound_manifests(filled) == []


@pytest.mark.parametrize("where", [None, "id % 2 = 0"])
def test_reader_goes_on_in_the_middle_of_a_file(s3: S3Place, where: str | None, monkeypatch: Any) -> None:
    monkeypatch.setattr("parketto.operations.read._THREADS", 1)
    s3.write_files({f"{number}.parquet": table(number, ROWS) for number in range(3)}, row_group_size=50_000)
    reader = s3.dataset().scan(where=where)
    first = reader.read_next_batch()
    assert 0 < first.num_rows < ROWS
    s3.dataset().compact()
    s3.dataset().delete("id < 10")
    found = pa.concat_tables([pa.Table.from_batches([first]), reader.read_all()])
    step = 1 if where is None else 2
    assert sorted(found.column("id").to_pylist()) == list(range(0, 3 * ROWS, step))


def test_kept_files_do_not_lengthen_the_listing_of_the_log(filled: S3Place) -> None:
    dataset = filled.dataset()
    dataset.compact()
    store, workspace = dataset._store, kept_files(filled).workspace
    with recorded(store.fs) as requests:
        found = [entry.path for entry in store.list_files_after(workspace, "kept0")]
    assert kinds(requests) == {"LIST": 1}
    assert found
    assert not [path for path in found if "/kept/" in path]
    assert [path for path in filled.fs.find(workspace) if "/kept/" in path]


def test_two_processes_keep_the_files_of_one_commit(filled: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has copied them and stalls; another one settles the commit and deletes them; the first one resumes."""
    before = filled.state()
    remove_many, waiting = S3Store.remove_many, [True]

    def stalls(store: Any, paths: Any) -> None:
        if waiting:
            waiting.clear()
            filled.dataset().recover()
            filled.write_files({"1.parquet": table(7)})  # a file of the same name comes back
        remove_many(store, paths)

    monkeypatch.setattr(S3Store, "remove_many", stalls)
    filled.dataset().compact()
    (manifest,) = sound_manifests(filled)
    assert kept_contents(filled, manifest) == before


def test_manifest_of_the_first_process_stays(filled: S3Place) -> None:
    """A process that died while it deleted files has kept all of them; the next one finds only some."""
    before = filled.state()
    dataset = filled.dataset()
    mortal(dataset, lambda name, path: name == "remove_many" and any("parquet" in each for each in path), "half")
    with pytest.raises(DEATHS):
        dataset.compact()
    assert len(filled.files()) < 5
    filled.dataset().recover()
    (manifest,) = sound_manifests(filled)
    assert kept_contents(filled, manifest) == before


def test_copy_requires_the_listed_version(filled: S3Place) -> None:
    """The condition is part of the request; a server that ignores it is not detected."""
    store = filled.dataset()._store
    entry = store.stat(f"{filled.root}/1.parquet")
    assert entry is not None
    asked = []
    call = store._call  # type: ignore[attr-defined]
    store._call = lambda method, **request: (asked.append(request), call(method, **request))[1]  # type: ignore[attr-defined]
    store.copy(entry.path, f"{filled.root}/copy", entry.size_bytes, entry.fingerprint)
    (request,) = asked
    assert request["CopySourceIfMatch"] == entry.fingerprint.partition(":")[2]
    with pytest.raises(FileNotFoundError):
        store.copy(f"{filled.root}/gone.parquet", f"{filled.root}/copy", 1, entry.fingerprint)
