"""Concurrent writers: conflicts are found, no rows are lost or duplicated, no lock outlives its owner."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from conftest import Place
from helpers import oracle
from parketto import CommitConflict, CommitFailed, Dataset, LockTimeout
from parketto.commit.workspace import Workspace
from parketto.storage.local import LocalStore
from parketto.storage.locks import FileLock, LeaseLock
from parketto.storage.opening import open_store
from parketto.storage.store import Store

WORKER = str(Path(__file__).with_name("worker_compact.py"))


def small_files(place: Place, count: int, first: int = 0) -> None:
    place.write_files({f"f{first + n}.parquet": pa.table({"id": [first + n]}) for n in range(count)})


def ids(place: Place) -> list[int]:
    tables = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    return sorted(value for table in tables for value in table.column("id").to_pylist())


def start_compactors(place: Place, processes: int, attempts: int) -> list[subprocess.Popen[str]]:
    workers = [
        subprocess.Popen(
            [sys.executable, WORKER, place.root, str(attempts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    return workers


def go(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()


def outcomes(workers: list[subprocess.Popen[str]]) -> list[str]:
    said: list[str] = []
    for worker in workers:
        out, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        said += out.split()
    return said


def test_two_processes_compact_at_once(local: Place) -> None:
    for round_number in range(4):
        small_files(local, 40, first=100 * round_number)
        before = ids(local)
        workers = start_compactors(local, 2, attempts=1)
        go(workers)
        said = outcomes(workers)
        assert "done" in said, said
        assert set(said) <= {"done", "nothing", "conflict"}
        assert ids(local) == before
        assert local.left_behind() == []


def test_files_added_by_other_programs_survive_compactions(local: Place) -> None:
    """Other programs may add files to the directory at any time."""
    small_files(local, 30)
    workers = start_compactors(local, 2, attempts=12)
    go(workers)
    expected = list(range(30))
    for number in range(1000, 1060):
        temporary = f"{local.root}-tmp-{number}"
        pq.write_table(pa.table({"id": [number]}), temporary)
        os.rename(temporary, f"{local.root}/stranger-{number}.parquet")
        expected.append(number)
        time.sleep(0.01)
    outcomes(workers)
    assert ids(local) == expected


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_threads_append_at_once(kind: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(kind)

    def append(thread: int) -> None:
        for number in range(10):
            place.dataset().write(pa.table({"id": [thread * 10 + number]}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    assert ids(place) == list(range(40))
    assert place.left_behind() == []


def test_changed_input_is_a_conflict_and_the_other_change_is_kept(place: Place) -> None:
    small_files(place, 5)
    dataset = place.dataset()
    engine = dataset.engine
    rewrite = engine.rewrite

    def meanwhile(*arguments: Any) -> Any:
        results = rewrite(*arguments)
        time.sleep(0.01)
        oracle.write_files(place.root, {"f2.parquet": pa.table({"id": [2222]})}, place.fs)
        return results

    engine.rewrite = meanwhile  # type: ignore[method-assign]
    with pytest.raises(CommitConflict, match=r"f2\.parquet.*changed"):
        dataset.compact()
    assert ids(place) == [0, 1, 3, 4, 2222]
    assert place.left_behind() == []


def test_input_removed_during_the_operation_is_a_conflict(place: Place) -> None:
    small_files(place, 5)
    dataset = place.dataset()
    rewrite = dataset.engine.rewrite

    def meanwhile(*arguments: Any) -> Any:
        place.fs.rm(f"{place.root}/f3.parquet")
        return rewrite(*arguments)

    dataset.engine.rewrite = meanwhile  # type: ignore[method-assign]
    with pytest.raises(CommitConflict, match=r"f3\.parquet.*gone"):
        dataset.compact()
    assert ids(place) == [0, 1, 2, 4]
    assert place.left_behind() == []


def test_file_that_appears_during_an_overwrite_survives_it(place: Place) -> None:
    small_files(place, 3)
    dataset = place.dataset()
    write = dataset.engine.write

    def meanwhile(*arguments: Any) -> Any:
        oracle.write_files(place.root, {"late.parquet": pa.table({"id": [77]})}, place.fs)
        return write(*arguments)

    dataset.engine.write = meanwhile  # type: ignore[method-assign]
    dataset.write(pa.table({"id": [9]}), "overwrite")
    assert ids(place) == [9, 77]


def test_recovery_keeps_staged_files_of_running_operations(place: Place) -> None:
    """Recovery in another process removes only staged files of dead processes."""
    small_files(place, 5)
    dataset = place.dataset()
    rewrite = dataset.engine.rewrite

    def meanwhile(*arguments: Any) -> Any:
        results = rewrite(*arguments)
        assert not place.dataset().recover()
        place.dataset().write(pa.table({"id": [50]}))
        return results

    dataset.engine.rewrite = meanwhile  # type: ignore[method-assign]
    dataset.compact()
    assert ids(place) == [0, 1, 2, 3, 4, 50]
    assert place.left_behind() == []


def test_lock_of_a_dead_process_does_not_block(local: Place) -> None:
    small_files(local, 3)
    code = (
        "import sys, time\nfrom parketto.commit.workspace import Workspace\n"
        "from parketto.storage.opening import open_store\n"
        "store, root = open_store(sys.argv[1])\n"
        "with Workspace(store, root).locked():\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, local.root], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout:
        holder.stdout.readline()
        store, root = open_store(local.root)
        with pytest.raises(LockTimeout, match="another process"), Workspace(store, root).locked(timeout=0.1):
            pass
        holder.kill()
        holder.wait()
    assert local.dataset().compact()["after_file_count"] == 1
    assert local.left_behind() == []


def test_lock_timeout_is_a_commit_failed_error() -> None:
    assert issubclass(LockTimeout, CommitFailed)
    assert issubclass(LockTimeout, TimeoutError)


def test_lock_on_a_removed_lock_file_is_not_valid(local: Place) -> None:
    """A process that waits on a lock file which its holder removes must not assume that it has the lock."""
    os.makedirs(local.root)
    path = f"{local.root}/lock"
    first = FileLock.attempt(path)
    assert first is not None
    assert FileLock.attempt(path) is None
    os.unlink(path)
    second = FileLock.attempt(path)
    assert second is not None
    first.release()
    assert FileLock.attempt(path) is None
    second.release()
    second.release()


class TestOtherFilesystems:
    """Any fsspec filesystem: no atomic moves, no kernel locks, only leases."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place("bucket/events", DirFileSystem(str(tmp_path), fsspec.filesystem("file")))

    def test_all_operations_work(self, place: Place) -> None:
        place.fs.makedirs("bucket")
        small_files(place, 25)
        dataset = place.dataset()
        assert type(dataset._store) is Store
        assert dataset.compact()["compacted_file_count"] == 25
        dataset.write(pa.table({"id": [99]}))
        dataset.compact()
        assert dataset.optimize(["id"])["after_file_count"] == 1
        assert dataset.read().column("id").to_pylist() == [*range(25), 99]
        assert place.left_behind() == []

    def test_lease_excludes_others_and_expires(self, place: Place) -> None:
        store, _ = open_store("bucket", place.fs)
        store.make_dirs("bucket")
        first = LeaseLock.attempt(store, "bucket/lock", seconds=60)
        assert first is not None
        assert LeaseLock.attempt(store, "bucket/lock", seconds=60) is None
        first.release()
        first.release()
        store.write("bucket/lock", json.dumps({"owner": "dead", "expires": time.time() - 1}).encode())
        second = LeaseLock.attempt(store, "bucket/lock", seconds=60)
        assert second is not None, "the lease of a dead holder must expire"
        second.release()
        assert store.stat("bucket/lock") is None

    def test_lease_has_one_holder_even_without_exclusive_creates(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, _ = open_store("bucket", place.fs)
        store.make_dirs("bucket")
        late = itertools.count()

        def create(path: str, content: bytes) -> None:
            time.sleep(0.005 * next(late))  # all found no lease; they write one after another
            place.fs.pipe_file(path, content)

        monkeypatch.setattr(store, "create", create)
        with ThreadPoolExecutor(6) as pool:
            leases = list(pool.map(lambda _: LeaseLock.attempt(store, "bucket/lock"), range(6)))
        held = [lease for lease in leases if lease is not None]
        assert len(held) == 1
        assert held[0].is_held()
        held[0].release()

    def test_lease_is_renewed_while_its_holder_lives(self, place: Place) -> None:
        store, _ = open_store("bucket", place.fs)
        store.make_dirs("bucket")
        lease = LeaseLock.attempt(store, "bucket/lock", seconds=0.4)
        assert lease is not None
        time.sleep(1.0)
        assert LeaseLock.attempt(store, "bucket/lock", seconds=0.4) is None
        lease.release()

    def test_concurrent_appends(self, place: Place) -> None:
        place.fs.makedirs("bucket")
        errors: list[BaseException] = []

        def append(thread: int) -> None:
            try:
                for number in range(5):
                    Dataset(place.root, filesystem=place.fs).write(pa.table({"id": [thread * 5 + number]}))
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=append, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert ids(place) == list(range(15))


def test_local_store_is_chosen_for_local_paths(local: Place) -> None:
    assert type(open_store(local.root)[0]) is LocalStore
    assert type(open_store(f"file://{local.root}")[0]) is LocalStore
