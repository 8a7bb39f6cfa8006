"""Datasets in S3: a server in another process, accessed by s3fs only."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import oracle
from helpers.s3 import S3Place, kinds, recorded
from parketto import CommitConflict, Dataset
from parketto.commit import recovery
from parketto.commit.transaction import Transaction
from parketto.storage.opening import open_store

s3fs = pytest.importorskip("s3fs")

from s3_worker import DEATHS, Worker, batch  # noqa: E402


@pytest.fixture(params=["pyarrow", "duckdb"])
def local_engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def events(rows: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(rows) + seed * rows,
            "x": random.random(rows),
            "kind": pa.array(np.array(["a", "b", "c"])[random.integers(0, 3, rows)]),
        }
    )


def pylist(*tables: pa.Table) -> Counter[str]:
    return Counter(f" {row!r}" for table in tables for row in table.to_pylist())


def test_rows_written_are_read(s3: S3Place, local_engine: str) -> None:
    dataset = s3.dataset(local_engine)
    dataset.write(events(500, 0))
    dataset.write(events(500, 1), max_rows_per_file=200)
    assert len(s3.files()) == 4
    assert s3.rows() == pylist(events(500, 0), events(500, 1))
    assert dataset.read().sort_by("id").equals(pa.concat_tables([events(500, 0), events(500, 1)]))
    assert s3.left_behind() == []
    assert len(s3.marks()) == 1
    assert [commit["operation"] for commit in dataset.history()] == ["append", "append"]


@pytest.mark.parametrize(
    ("local_engine", "rewrite"),
    [("pyarrow", "copy"), ("pyarrow", "encode"), ("duckdb", "auto")],
)
def test_compaction(s3: S3Place, local_engine: str, rewrite: Any) -> None:
    # Row groups that are large enough to copy, and together more than one part of an upload.
    tables = {f"{number}.parquet": events(120_000, number) for number in range(4)}
    s3.write_files(tables, row_group_size=40_000)
    groups = s3.row_groups()
    dataset = s3.dataset(local_engine)
    with recorded(dataset._store.fs) as requests:
        stats = dataset.compact(target_mb_per_file=100, rewrite=rewrite)
    assert (stats["before_file_count"], stats["after_file_count"]) == (4, 1)
    (path,) = oracle.data_files(s3.root, s3.fs)
    assert s3.fs.size(path) > 5 * 2**20
    assert oracle.read_file(path, s3.fs).equals(pa.concat_tables(tables.values()))
    assert (s3.row_groups() == groups) == (rewrite != "encode")
    parts = [request for request in requests if request.method == "PUT" and "partNumber=" in request.query]
    assert len(parts) >= 2, "not uploaded in parts"
    whole = [request.path for request in requests if request.kind == "GET" and not request.ranged]
    assert not any(".parquet" in path for path in whole), "read as a whole"
    assert s3.left_behind() == []


def test_clustering(s3: S3Place, local_engine: str) -> None:
    tables = {f"{number}.parquet": events(20_000, number) for number in range(3)}
    s3.write_files(tables)
    stats = s3.dataset(local_engine).optimize(["x", "id"], target_mb_per_file=10, curve="hilbert")
    assert stats["after_file_count"] == len(s3.files())
    assert s3.rows() == pylist(*tables.values())
    with s3.fs.open(oracle.data_files(s3.root, s3.fs)[0]) as file:
        assert b"hilbert" in pq.ParquetFile(file).metadata.metadata[b"parketto.clustering"]
    assert s3.left_behind() == []


@pytest.mark.parametrize(("local_engine", "edit"), [("pyarrow", "delete"), ("duckdb", "update")])
def test_edits_keep_row_groups_without_affected_rows(s3: S3Place, local_engine: str, edit: str) -> None:
    table = events(8_000)
    s3.write_files({"one.parquet": table.slice(0, 4_000), "two.parquet": table.slice(4_000)}, row_group_size=1_000)
    groups = s3.row_groups()
    dataset, where, expected = s3.dataset(local_engine), "id BETWEEN 1500 AND 1599", table.to_pylist()
    if edit == "delete":
        dataset.delete(where)
        del expected[1500:1600]
    else:
        dataset.update(where, {"kind": "z"})
        expected[1500:1600] = [row | {"kind": "z"} for row in expected[1500:1600]]
    assert s3.rows() == Counter(f" {row!r}" for row in expected)
    assert sum((groups & s3.row_groups()).values()) == 7
    assert "two.parquet" in s3.files()
    assert s3.left_behind() == []


def test_upsert_and_repartition(s3: S3Place, local_engine: str) -> None:
    s3.write_files({f"{number}.parquet": events(1_000, number) for number in range(3)})
    dataset = s3.dataset(local_engine)
    fresh = events(500, 5)  # 2500 to 2999 exist already; as many again are new
    source = pa.concat_tables([fresh, events(500, 6)])
    dataset.merge(source, "id")
    kept = [events(1_000, 0), events(1_000, 1), events(1_000, 2).slice(0, 500)]
    assert s3.rows() == pylist(*kept, source)
    dataset.repartition("kind")
    assert {path.partition("/")[0] for path in s3.files()} == {"kind=a", "kind=b", "kind=c"}
    placed = [row for table in (*kept, source) for row in table.to_pylist()]
    assert s3.rows() == Counter(f"/kind={row['kind']} {row!r}" for row in placed)
    assert s3.left_behind() == []


def test_restore_brings_the_old_files_back(s3: S3Place) -> None:
    s3.write_files({f"{number}.parquet": events(100, number) for number in range(3)})
    state = s3.state()
    dataset = s3.dataset()
    backups = f"s3://{s3.server.bucket}/backups-{s3.root.split('/')[1]}"
    stats = dataset.delete("id < 150", backup=backups)
    assert sum(s3.rows().values()) == 150
    dataset.restore(stats["backup_path"])
    assert s3.state() == state
    assert s3.left_behind() == []


def test_files_of_other_writers_are_listed(s3: S3Place) -> None:
    """The listing cache of the filesystem must not be used."""
    s3.write_files({"one.parquet": events(100, 0)})
    dataset = s3.dataset()
    assert dataset.read().num_rows == 100
    s3.write_files({"two.parquet": events(100, 1)})
    s3.write_files({"one.parquet": events(50, 2)})
    assert dataset.read().num_rows == 150
    dataset.compact()
    assert s3.rows() == pylist(events(50, 2), events(100, 1))


def test_conflicting_writers(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.write_files({f"{number}.parquet": events(100, number) for number in range(3)})
    slow, other = (
        Dataset(s3.root, "pyarrow", filesystem=s3.server.filesystem(max_concurrency=number), retries=0)
        for number in (6, 7)
    )
    commit = Transaction.commit

    def overtaken(self: Transaction, *args: Any, **more: Any) -> None:
        monkeypatch.setattr(Transaction, "commit", commit)
        other.compact()
        commit(self, *args, **more)

    monkeypatch.setattr(Transaction, "commit", overtaken)
    with pytest.raises(CommitConflict, match="commit 1, a compact by"):
        slow.delete("id < 100")
    assert s3.rows() == pylist(*(events(100, number) for number in range(3)))
    assert s3.left_behind() == []


def test_lease_excludes_others(s3: S3Place) -> None:
    """Leases are for servers without conditional puts, or if they are requested."""
    path = f"{s3.root}/lock"
    mine, theirs = (open_store(path, s3.server.filesystem(max_concurrency=number))[0] for number in (3, 4))
    lock = mine.try_lock(path)
    assert lock is not None
    assert theirs.try_lock(path) is None
    with pytest.raises(FileExistsError):
        theirs.create(path, b"mine")
    assert lock.is_held()
    lock.release()
    lock = theirs.try_lock(path)
    assert lock is not None
    lock.release()
    assert s3.fs.find(s3.root) == []


def test_create_is_exclusive(s3: S3Place) -> None:
    """By conditional puts, one request each."""
    store, path = open_store(f"{s3.root}/lock", s3.server.filesystem())
    with recorded(store.fs) as requests:
        store.create(path, b"first")
        with pytest.raises(FileExistsError):
            store.create(path, b"second")
    assert kinds(requests) == {"PUT": 2}
    assert s3.fs.cat_file(path) == b"first"


def test_lease_is_held_if_its_response_was_lost(s3: S3Place) -> None:
    """The retried request finds the object that the first one created."""
    store, path = open_store(f"{s3.root}/lock", s3.server.filesystem(skip_instance_cache=True))
    pipe_file = store.fs.pipe_file

    def twice(path: str, content: bytes, **more: Any) -> None:
        pipe_file(path, content, **more)
        if more:
            pipe_file(path, content, **more)

    store.fs.pipe_file = twice
    lock = store.try_lock(path)
    assert lock is not None
    lock.release()
    assert s3.fs.find(s3.root) == []


def test_concurrent_processes(s3: S3Place) -> None:
    """Including the first commits of a dataset."""
    workers = [Worker(s3, "", "append", first, 3) for first in (0, 3)]
    dataset = s3.dataset()
    for number in (6, 7):
        dataset.write(batch(number))
    for worker in workers:
        assert worker.result() is None
    assert s3.rows() == pylist(*map(batch, range(8)))
    assert len(dataset.history()) == 8
    assert s3.left_behind() == []


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(("compact",), id="compact", marks=pytest.mark.sweep),
        pytest.param(("delete", "id < 125"), id="delete", marks=pytest.mark.sweep),
    ],
)
def test_killed_processes_lose_nothing(
    s3: S3Place, what: tuple[str, ...], count_crash_points: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {f"{number}.parquet": batch(number) for number in range(5)}
    before = pylist(*tables.values())
    after = before if what[0] == "compact" else pylist(pa.concat_tables(tables.values()).slice(125))
    monkeypatch.setattr(recovery, "DEAD_SECONDS", -60.0)
    for moment in DEATHS:
        place = S3Place.fresh(s3.server)
        place.write_files(tables)
        Worker(place, f"kill {moment}", *what).killed()
        happened, settled = moment not in ("staged", "before record"), moment == "after done"
        found = place.dataset().recover()
        assert found.action == ("completed" if happened and not settled else "none"), moment
        assert bool(found) == (not settled), moment
        assert place.rows() == (after if happened else before), moment
        assert place.left_behind() == [], moment
        assert not place.dataset().recover(), moment
        assert [commit["operation"] for commit in place.dataset().history()] == [what[0]] * happened, moment
    count_crash_points(len(DEATHS))


def test_uploads_of_dead_writers_are_aborted(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not they have staged a file; but only after the time when they count as dead."""
    s3.write_files({"one.parquet": batch(0)})
    Worker(s3, "kill staged", "append", 1).killed()
    workspace = s3.dataset()._context.workspace
    (dead,) = workspace.read_state().staging
    key = f"{workspace.path.partition('/')[2]}/{{}}/new/x".format
    for folder in (dead, "tx-without-files"):
        s3.fs.call_s3("create_multipart_upload", Bucket=s3.server.bucket, Key=key(folder))
    s3.dataset().write(batch(2))
    assert {key(dead), key("tx-without-files")} <= {*s3.left_behind()}, "their writers may be alive"
    monkeypatch.setattr(recovery, "DEAD_SECONDS", -60.0)
    s3.dataset().write(batch(3))
    assert s3.left_behind() == []
    assert s3.rows() == pylist(*map(batch, (0, 2, 3)))


def test_operations_on_spark(s3: S3Place, spark: Any) -> None:
    tables = {f"{number}.parquet": events(40_000, number) for number in range(3)}
    s3.write_files(tables)
    groups = s3.row_groups()
    dataset = s3.dataset("spark", spark=spark)
    dataset.compact(target_mb_per_file=100)
    assert len(s3.files()) == 1
    assert s3.row_groups() == groups
    dataset.delete("id >= 1000")
    dataset.merge(events(500, 1), "id")
    assert s3.rows() == pylist(events(40_000, 0).slice(0, 500), events(500, 1))
    assert dataset.read().num_rows == 1_000
    assert s3.left_behind() == []
