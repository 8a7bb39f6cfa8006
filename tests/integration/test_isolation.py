"""Isolation of concurrent commits: serializable results, or an error that names the conflicting commit."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import CommitConflict, CommitFailed, Dataset, sql
from parketto.commit import transaction as transactions
from parketto.commit.apply import MovingApplier
from parketto.commit.log import Log
from parketto.commit.record import Record
from parketto.commit.request import Request
from parketto.commit.settled import list_settled
from parketto.commit.transaction import Transaction
from parketto.commit.workspace import Workspace
from parketto.engines.pyarrow.engine import PyArrowEngine
from parketto.storage.local import LocalStore
from parketto.storage.store import FileEntry

LOCAL_ENGINES = ["pyarrow", "duckdb"]
ME = getpass.getuser()


def table(**columns: list[int]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def rows(place: Place) -> list[tuple[int, ...]]:
    found = [
        row
        for path in oracle.data_files(place.root, place.fs)
        for row in oracle.read_file(path, place.fs).to_pylist()
    ]
    return sorted(tuple(row.values()) for row in found)


@contextlib.contextmanager
def before_the_commit(monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any]) -> Iterator[list[str]]:
    """Run another commit first, once; yields the operations of all attempts to commit."""
    commit, attempts = Transaction.commit, []

    def overtaken(self: Transaction, *arguments: Any, **named: Any) -> None:
        attempts.append(self.operation)
        if len(attempts) == 1:
            action()
        commit(self, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", overtaken)
        yield attempts


@pytest.mark.parametrize("chosen", LOCAL_ENGINES)
class TestWriteSkew:
    """Each of two updates creates rows that the condition of the other one matches."""

    def start(self, place: Place) -> None:
        place.write_files(
            {
                "f1.parquet": table(id=[1], x=[0], y=[1], n=[0], m=[0]),
                "f2.parquet": table(id=[2], x=[1], y=[0], n=[0], m=[0]),
            }
        )

    def at_once(self, place: Place, chosen: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[str]:
        self.start(place)

        def other() -> None:
            place.dataset(engine=chosen).update("x = 1", {"y": 1, "m": 1})

        with before_the_commit(monkeypatch, other) as attempts:
            place.dataset(engine=chosen, **options).update("y = 1", {"x": 1, "n": 1})
        return attempts

    def test_serializable_result_matches_a_serial_order(
        self, local: Place, chosen: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempts = self.at_once(local, chosen, monkeypatch, retries=3)
        assert attempts == ["update"] * 3, "one of the two was planned again"
        assert rows(local) == [(1, 1, 1, 1, 0), (2, 1, 1, 1, 1)], "as if the other one ran first"
        assert local.left_behind() == []

    def test_snapshot_isolation_allows_write_skew(
        self, local: Place, chosen: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempts = self.at_once(local, chosen, monkeypatch, isolation="snapshot")
        assert attempts == ["update"] * 2
        assert rows(local) == [(1, 1, 1, 1, 0), (2, 1, 1, 0, 1)], (
            "no serial order gives that result, and both updates were committed"
        )

    def test_conflict_names_the_other_commit(
        self, local: Place, chosen: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(CommitConflict, match=rf"commit 1, an update by {ME}@.*process {os.getpid()} at 20"):
            self.at_once(local, chosen, monkeypatch, retries=0)
        assert rows(local) == [(1, 0, 1, 0, 0), (2, 1, 1, 0, 1)], "the other update is kept"
        assert local.left_behind() == []

    def test_snapshot_isolation_loses_no_update(
        self, local: Place, chosen: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.start(local)

        def other() -> None:
            local.dataset(engine=chosen).update("id = 1", {"n": sql("n + 1")})

        with before_the_commit(monkeypatch, other):
            local.dataset(engine=chosen, isolation="snapshot", retries=1).update("id > 0", {"n": sql("n + 1")})
        assert rows(local) == [(1, 0, 1, 2, 0), (2, 1, 0, 1, 0)]


def deleted(dataset: Dataset) -> Any:
    return dataset.delete("id < 10 AND day = 1")


def updated(dataset: Dataset) -> Any:
    return dataset.update("id < 10 AND day = 1", {"n": 5})


def deleted_where(dataset: Dataset) -> Any:
    return dataset.delete("id = 5 OR day = 'xyz'")


def updated_where(dataset: Dataset) -> Any:
    return dataset.update("id = 5 OR day = 'xyz'", {"id": 50})


def merged(dataset: Dataset) -> Any:
    return dataset.merge(table(id=[2, 40, 60], day=[1, 1, 1], n=[9, 9, 9]), ["id"])


OUT_OF_SCOPE = {
    "another partition": (table(id=[5], day=[2], n=[7]), (deleted, updated)),
    "other bounds": (table(id=[700, 800], day=[1, 1], n=[7, 7]), (deleted, updated, merged)),
    "other keys within the same bounds": (table(id=[41, 59], day=[1, 1], n=[7, 7]), (merged,)),
}


@pytest.mark.parametrize("chosen", LOCAL_ENGINES)
@pytest.mark.parametrize(
    ("scope", "operation"),
    [(scope, operation) for scope, (_, operations) in OUT_OF_SCOPE.items() for operation in operations],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_appends_out_of_scope_never_conflict(
    local: Place, chosen: str, scope: str, operation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = local.dataset(engine=chosen, retries=0)
    dataset.write(table(id=[1, 2, 20, 21], day=[1, 1, 1, 2], n=[0, 0, 0, 0]), partition_by="day")
    late, _ = OUT_OF_SCOPE[scope]
    with before_the_commit(monkeypatch, lambda: local.dataset().write(late)) as attempts:
        operation(dataset)
    assert len(attempts) == 2
    assert {row["id"] for row in late.to_pylist()} <= {row[0] for row in rows(local)}


@pytest.mark.parametrize("chosen", LOCAL_ENGINES)
@pytest.mark.parametrize("operation", [deleted, updated, merged], ids=lambda each: str(each.__name__))
def test_appends_in_scope_are_seen(
    local: Place, chosen: str, operation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = table(id=[3, 40], day=[1, 1], n=[7, 7])
    for retries in (0, 1):
        shutil.rmtree(local.root, ignore_errors=True)
        dataset = local.dataset(engine=chosen, retries=retries)
        dataset.write(table(id=[1, 2, 20, 21], day=[1, 1, 1, 2], n=[0, 0, 0, 0]), partition_by="day")
        with before_the_commit(monkeypatch, lambda: local.dataset().write(late)):
            if not retries:
                with pytest.raises(CommitConflict, match=rf"was added by commit \d+, an append by {ME}@"):
                    operation(dataset)
            else:
                operation(dataset)
    expected = {
        "deleted": [(20, 1, 0), (21, 2, 0), (40, 1, 7)],
        "updated": [(1, 1, 5), (2, 1, 5), (3, 1, 5), (20, 1, 0), (21, 2, 0), (40, 1, 7)],
        "merged": [(1, 1, 0), (2, 1, 9), (3, 1, 7), (20, 1, 0), (21, 2, 0), (40, 1, 9), (60, 1, 9)],
    }
    assert rows(local) == expected[operation.__name__]


_MERGES = """
import sys, pyarrow as pa
from parketto import Dataset
root, first = sys.argv[1], int(sys.argv[2])
dataset = Dataset(root, "pyarrow")
print("ready", flush=True)
sys.stdin.readline()
for number in range(10):
    stats = dataset.merge(pa.table({"id": [first, first + 2], "n": [number, number]}), ["id"])
    assert stats["updated"] == 2, stats
"""


@pytest.mark.parametrize("operation", [deleted_where, updated_where])
def test_added_files_have_the_types_of_all_paths(
    local: Place, operation: Callable[[Dataset], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of an added file alone may look like a number, where others are text."""
    days = pa.table({"id": [1, 2, 5], "day": ["1", "abc", "xyz"]})
    local.dataset().write(days, partition_by="day", partition_columns="path")
    more = pa.table({"id": [5], "day": ["1"]})
    with before_the_commit(monkeypatch, lambda: local.dataset().write(more)):
        assert operation(local.dataset(retries=3))["rows_matched"] == 2


def test_two_writers_do_not_starve(local: Place) -> None:
    """Their keys differ but are in the same files, so every commit of one conflicts with the other."""
    local.write_files({f"{n}.parquet": table(id=list(range(n, 40, 4)), n=[-1] * 10) for n in range(4)})
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _MERGES, local.root, str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in (0, 8)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        _, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors
    found = dict(rows(local))
    assert {key for key, n in found.items() if n == 9} == {0, 2, 8, 10}
    assert len([commit for commit in local.dataset().history() if commit["operation"] == "merge"]) == 20
    assert local.left_behind() == []


@pytest.mark.parametrize("chosen", LOCAL_ENGINES)
def test_a_source_that_can_be_read_once_is_not_retried(
    local: Place, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.write_files({"one.parquet": table(id=[1, 2], n=[0, 0])})
    source = table(id=[1, 7], n=[5, 5])
    reader = pa.RecordBatchReader.from_batches(source.schema, iter(source.to_batches()))

    def other() -> None:
        local.dataset().update("id = 1", {"n": sql("n + 3")})

    with (
        before_the_commit(monkeypatch, other) as attempts,
        pytest.raises(CommitConflict, match=rf"commit 1, an update by {ME}@"),
    ):
        local.dataset(engine=chosen, retries=3).merge(reader, ["id"])
    assert attempts == ["merge", "update"], "the second one is that of the other writer"
    assert rows(local) == [(1, 3), (2, 0)]
    with before_the_commit(monkeypatch, other) as attempts:
        local.dataset(engine=chosen, retries=3).merge(source, ["id"])
    assert attempts == ["merge", "update", "merge"]
    assert rows(local) == [(1, 5), (2, 0), (7, 5)]


class TestLayouts:
    """A dataset has one partition spec, so files with another one must not be added."""

    @pytest.mark.parametrize("name", ["append", "insert"])
    def test_append_conflicts_with_a_concurrent_repartition(
        self, local: Place, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local.write_files({f"{n}.parquet": table(id=[n], day=[n % 2]) for n in range(4)})
        late = table(id=[9], day=[1])

        def add(dataset: Dataset) -> None:
            dataset.write(late) if name == "append" else dataset.merge(late, ["id"], isolation="snapshot")

        def other() -> None:
            local.dataset().repartition("day")

        with (
            before_the_commit(monkeypatch, other),
            pytest.raises(CommitConflict, match="commit 1, a repartition by"),
        ):
            add(local.dataset())
        with before_the_commit(monkeypatch, lambda: local.dataset().repartition(None)):
            add(local.dataset(retries=1))
        assert not any("/" in path for path in local.files())
        assert local.dataset().delete("id = 9")["rows_matched"] == 1

    @pytest.mark.parametrize("name", ["repartition", "overwrite"])
    def test_new_partition_spec_conflicts_with_a_concurrent_append(
        self, local: Place, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local.write_files({f"{n}.parquet": table(id=[n], day=[n % 2]) for n in range(4)})

        def work(dataset: Dataset) -> None:
            if name == "repartition":
                dataset.repartition("day")
            else:
                dataset.write(table(id=[5], day=[1]), "overwrite", partition_by="day")

        def other() -> None:
            local.dataset().write(table(id=[9], day=[1]))

        with before_the_commit(monkeypatch, other), pytest.raises(CommitConflict, match="commit 1, an append by"):
            work(local.dataset())
        with before_the_commit(monkeypatch, other):
            work(local.dataset(retries=1))
        assert all(path.startswith("day=") for path in local.files())
        assert local.dataset().delete("id >= 0")["rows_matched"] == (6 if name == "repartition" else 1)


def test_append_while_its_schema_file_is_replaced(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """New files take the schema of an existing file; if that is replaced concurrently, of another one."""
    local.write_files({f"{n}.parquet": table(id=[n]) for n in range(4)})
    listing, calls = Transaction.listing, []

    def late(self: Transaction, *arguments: Any) -> Any:
        found = listing(self, *arguments)
        calls.append(self.operation)
        if len(calls) == 1:
            local.dataset().compact()
        return found

    monkeypatch.setattr(Transaction, "listing", late)
    local.dataset(retries=0).write(table(id=[9]))
    assert calls == ["append", "compact", "append"]
    assert rows(local) == [(0,), (1,), (2,), (3,), (9,)]


class TestListings:
    """Operations list the state of the dataset after one commit, whatever others commit concurrently."""

    def half_way(self, monkeypatch: pytest.MonkeyPatch, place: Place, action: Callable[[], None]) -> None:
        """Run an action when half of the dataset is listed."""
        listing = LocalStore.list_files
        acting = threading.local()

        def list_files(store: LocalStore, root: str, *enter: Any) -> Iterator[FileEntry]:
            found = list(listing(store, root, *enter))
            if root != place.root or getattr(acting, "now", False) or threading.current_thread() is not main:
                yield from found
                return
            yield from sorted(found, key=lambda entry: entry.path)[:2]
            acting.now = True
            action()
            acting.now = False
            yield from sorted(listing(store, root, *enter), key=lambda entry: entry.path)[2:]

        main = threading.current_thread()
        monkeypatch.setattr(LocalStore, "list_files", list_files)

    def test_concurrent_commit_without_history(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = local.dataset(history="off")
        dataset.write(table(id=[0, 1, 2, 3], day=[0, 1, 2, 3]), partition_by="day")
        done: list[int] = []

        def once() -> None:
            if not done:
                done.append(1)
                time.sleep(0.02)  # modification times of folders have a resolution of milliseconds
                dataset.write(table(id=[10, 13], day=[0, 3]))

        self.half_way(monkeypatch, local, once)
        assert sorted(local.dataset().read().column("id").to_pylist()) == [0, 1, 2, 3, 10, 13]

    def test_listing_while_others_commit_continuously(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        local.dataset().write(table(id=[0, 1, 2, 3], day=[0, 1, 2, 3], n=[0] * 4), partition_by="day")
        others: list[threading.Thread] = []

        def another() -> None:
            values = {"n": len(others) + 1}
            others.append(threading.Thread(target=lambda: local.dataset().update("id >= 0", values)))
            others[-1].start()
            others[-1].join(timeout=2.0)

        self.half_way(monkeypatch, local, another)
        found = local.dataset().read().column("n").to_pylist()
        monkeypatch.undo()
        assert len(set(found)) == 1, found
        assert len(others) > 1
        for thread in others:
            thread.join()
        assert rows(local) == [(n, n, len(others)) for n in range(4)]

    def test_files_of_an_unfinished_commit_are_not_listed(
        self, memory: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On object stores readers do not wait for commits, so a listing may contain some of the new files."""
        memory.write_files({"one.parquet": table(id=[1], n=[0])})
        dataset = memory.dataset()
        dataset.write(table(id=[1, 2], n=[0, 0]), max_rows_per_file=1)
        workspace = dataset._context.workspace
        new = [path for path in memory.files() if path != "one.parquet"]
        dataset._store.remove(workspace.log.path(1, ".done"))
        dataset._store.remove(f"{memory.root}/{new[1]}")
        monkeypatch.setattr(Workspace, "locks", False)
        found = list_settled(workspace)
        names = {"one.parquet"}
        assert {os.path.basename(entry.path) for entry in found.files} == names
        assert {os.path.basename(entry.path) for entry in found.everything} == names, (
            "files of the unfinished commit are left out"
        )

    def test_files_that_are_missing_during_a_rollback(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """A rollback moves retired files back; until then they are missing."""
        local.write_files({"one.parquet": table(id=[1], n=[0]), "two.parquet": table(id=[2], n=[0])})
        dataset = local.dataset(engine=PyArrowEngine(), retries=1)
        run, calls = dataset.engine.run, []

        def missing(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) > 1:
                return run(*arguments)
            with monkeypatch.context() as patched:
                patched.setattr(MovingApplier, "clear", disk_full)
                patched.setattr(
                    MovingApplier, "irreversible", property(lambda _: False, lambda *_: None), raising=False
                )
                with pytest.raises(CommitFailed, match="disk is full"):
                    local.dataset().update("id = 1", {"n": 8})
            raise FileNotFoundError("one.parquet")

        dataset.engine.run = missing  # type: ignore[method-assign]
        dataset.update("id > 0", {"n": 5})
        assert len(calls) == 3, "the search failed; then the rows were found, and the files rewritten"
        assert rows(local) == [(1, 5), (2, 5)]


def disk_full(*_: Any) -> None:
    raise OSError("the disk is full")


_DIES = """
import os, sys, json
import pyarrow as pa
from parketto import Dataset
from parketto.commit.log import Log
Log.settle = lambda *_: os._exit(7)
dataset = Dataset(sys.argv[1], "pyarrow")
work = json.loads(sys.argv[2])
given = [pa.table(each) if isinstance(each, dict) else each for each in work[1]]
getattr(dataset, work[0])(*given, **work[2])
"""


def die_before_done(place: Place, *work: Any) -> None:
    """Run a process that dies after its record is written and applied, but before it is marked done."""
    ended = subprocess.run([sys.executable, "-c", _DIES, place.root, json.dumps(work)], check=False)
    assert ended.returncode == 7


def test_lock_holder_recovers_unfinished_commits(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last attempt holds the lock: it must not wait for itself to recover a commit of a dead process."""
    local.dataset().write(table(id=[1]))
    die_before_done(local, "write", [{"id": [2]}], {})
    dataset = local.dataset()
    workspace = dataset._context.workspace
    monkeypatch.setattr(
        transactions, "recover", lambda _: None
    )  # the other process died after recovery was attempted
    begun = time.monotonic()
    with Transaction(workspace, Request("delete"), alone=True) as transaction:
        assert len(transaction.list_files()) == 2
    assert time.monotonic() - begun < 60
    assert workspace.read_state().log.done


WORK: dict[str, Callable[[Dataset, str | None], Any]] = {
    "append": lambda dataset, name: dataset.write(table(id=[7], n=[7]), commit_id=name),
    "overwrite": lambda dataset, name: dataset.write(table(id=[8], n=[8]), "overwrite", commit_id=name),
    "merge": lambda dataset, name: dataset.merge(table(id=[1, 9], n=[9, 9]), ["id"], commit_id=name),
    "delete": lambda dataset, name: dataset.delete("id = 2", commit_id=name),
    "update": lambda dataset, name: dataset.update("id = 3", {"n": sql("n + 1")}, commit_id=name),
    "update of nothing": lambda dataset, name: dataset.update("id = 99", {"n": 1}, commit_id=name),
}
_REPLAY = """
import sys, json
import pyarrow as pa
from parketto import Dataset, sql
dataset = Dataset(sys.argv[1], "duckdb")
print(json.dumps(dataset.update("id = 3", {"n": sql("n + 1")}, commit_id="app:1")))
"""


class TestCommitIds:
    """An operation whose commit_id is in the log is not repeated."""

    def start(self, place: Place) -> None:
        place.write_files({"one.parquet": table(id=[1, 2], n=[0, 0]), "two.parquet": table(id=[3, 4], n=[0, 0])})

    @pytest.mark.parametrize("kind", ["local", "memory"])
    @pytest.mark.parametrize("name", WORK)
    def test_replays_do_nothing(self, kind: str, name: str, request: pytest.FixtureRequest) -> None:
        place: Place = request.getfixturevalue(kind)
        self.start(place)
        first = WORK[name](place.dataset(), "app:1")
        before = place.state()
        for chosen in LOCAL_ENGINES:
            assert WORK[name](place.dataset(engine=chosen), "app:1") == {**first, "repeated_commit": 1}
        assert place.state() == before
        assert [commit["commit_id"] for commit in place.dataset().history()] == ["app:1"]
        assert place.left_behind() == []

    @pytest.mark.parametrize("name", ["append", "merge", "delete", "update"])
    def test_concurrent_replays_commit_once(
        self, local: Place, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.start(local)
        results: list[Any] = []
        with before_the_commit(monkeypatch, lambda: results.append(WORK[name](local.dataset(), "app:1"))):
            results.append(WORK[name](local.dataset(), "app:1"))
        assert {**results[0], "repeated_commit": 1} == results[1]
        assert len(local.dataset().history()) == 1

    def test_another_process_finds_the_commit_id(self, local: Place) -> None:
        self.start(local)
        first = WORK["update"](local.dataset(), "app:1")
        said = subprocess.run(
            [sys.executable, "-c", _REPLAY, local.root], check=True, capture_output=True, text=True
        )
        assert json.loads(said.stdout) == {**first, "repeated_commit": 1}
        assert rows(local)[2] == (3, 1)

    def test_after_compaction(self, local: Place) -> None:
        self.start(local)
        first = WORK["update"](local.dataset(), "app:1")
        local.dataset().compact()
        local.dataset().repartition("n")
        assert WORK["update"](local.dataset(), "app:1") == {**first, "repeated_commit": 1}
        assert sum(n for _, n in rows(local)) == 1

    def test_after_old_records_are_gone(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 2)
        monkeypatch.setattr("parketto.commit.log._FOLDED_AT_ONCE", 3)
        self.start(local)
        results = {name: WORK["append"](local.dataset(), name) for name in ("app:1", "other:1", "app:2", "alone")}
        for _ in range(12):
            local.dataset().write(table(id=[50], n=[0]))
        log = Path(local.root).parent / ".events.parketto" / "log"
        assert len([path for path in log.glob("*.json") if path.stem.isdigit()]) < 6
        before = local.state()
        for number, (name, result) in enumerate(results.items(), 1):
            assert WORK["append"](local.dataset(), name) == {**result, "repeated_commit": number}
        assert local.state() == before
        assert len(local.dataset().history()) == 16
        assert local.left_behind() == []

    @pytest.mark.parametrize(
        ("name", "work"),
        [
            ("append", ("write", [{"id": [7], "n": [7]}], {"commit_id": "app:1"})),
            ("merge", ("merge", [{"id": [1, 9], "n": [9, 9]}, ["id"]], {"commit_id": "app:1"})),
            ("delete", ("delete", ["id = 2"], {"commit_id": "app:1"})),
        ],
    )
    def test_after_a_crash_before_the_record_is_done(self, local: Place, name: str, work: Any) -> None:
        self.start(local)
        die_before_done(local, *work)
        WORK[name](local.dataset(), "app:1")
        found = rows(local)
        WORK[name](local.dataset(), "app:1")
        assert rows(local) == found
        assert len(local.dataset().history()) == 1
        expected = {
            "append": [(1, 0), (2, 0), (3, 0), (4, 0), (7, 7)],
            "merge": [(1, 9), (2, 0), (3, 0), (4, 0), (9, 9)],
            "delete": [(1, 0), (3, 0), (4, 0)],
        }
        assert found == expected[name]
        assert local.left_behind() == []

    def test_failed_operation_can_be_repeated(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.start(local)

        def other() -> None:
            local.dataset().update("id = 3", {"n": 5})

        with before_the_commit(monkeypatch, other), pytest.raises(CommitConflict):
            WORK["update"](local.dataset(), "app:1")
        WORK["update"](local.dataset(), "app:1")
        assert rows(local)[2] == (3, 6)

    def test_recreated_dataset_does_not_inherit_commit_ids(self, local: Place) -> None:
        self.start(local)
        WORK["append"](local.dataset(), "app:1")
        shutil.rmtree(local.root)
        self.start(local)
        WORK["append"](local.dataset(), "app:1")
        assert (7, 7) in rows(local)
        assert len(local.dataset().history()) == 1

    def test_moved_dataset_keeps_commit_ids(self, local: Place) -> None:
        self.start(local)
        first = WORK["append"](local.dataset(), "app:1")
        parent = Path(local.root).parent
        (parent / "events").rename(parent / "visits")
        (parent / ".events.parketto").rename(parent / ".visits.parketto")
        assert WORK["append"](Dataset(parent / "visits"), "app:1") == {**first, "repeated_commit": 1}

    def test_after_other_records_have_expired(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last commit_id of each application is kept forever, even if the identity of the dataset changes."""
        monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 1)
        monkeypatch.setattr("parketto.commit.log._FOLDED_AT_ONCE", 2)
        monkeypatch.setattr("parketto.commit.log._MAX_RETAINED", 0)
        self.start(local)
        first = WORK["append"](local.dataset(), "app:1")
        second = WORK["append"](local.dataset(), "other:1")
        for n in range(8):
            local.dataset().update("id > 0", {"n": n})
        before = local.state()
        assert WORK["append"](local.dataset(), "app:1") == {**first, "repeated_commit": 1}
        assert WORK["append"](local.dataset(), "other:1") == {**second, "repeated_commit": 2}
        assert local.state() == before
        shutil.rmtree(local.root)
        self.start(local)
        for n in range(8):
            local.dataset().update("id > 0", {"n": n})
        WORK["append"](local.dataset(), "app:1")
        assert (7, 7) in rows(local), "that was another dataset"

    def test_records_are_removed_while_they_are_read(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 2)
        monkeypatch.setattr("parketto.commit.log._FOLDED_AT_ONCE", 3)
        self.start(local)
        first = WORK["append"](local.dataset(), "app:1")
        view, calls = Log.history, []

        def late(log: Log, *arguments: Any) -> Any:
            calls.append(1)
            if len(calls) % 2 == 1:
                for _ in range(6):
                    local.dataset().write(table(id=[50], n=[0]))
            return view(log, *arguments)

        monkeypatch.setattr(Log, "history", late)
        assert WORK["append"](local.dataset(), "app:1") == {**first, "repeated_commit": 1}
        assert len(local.dataset().history()) == 1 + 12
        assert len(calls) == 4

    def test_commit_ids_are_kept_without_history(self, local: Place) -> None:
        self.start(local)
        dataset = local.dataset(history="off")
        WORK["update"](dataset, None)
        log = Path(local.root).parent / ".events.parketto" / "log"
        assert not log.exists() or not list(log.iterdir())
        first = WORK["append"](dataset, "app:1")
        for name in ("delete", "update", "merge"):
            WORK[name](dataset, None)
        before = local.state()
        assert WORK["append"](dataset, "app:1") == {**first, "repeated_commit": 1}
        assert WORK["append"](local.dataset(), "app:1") == {**first, "repeated_commit": 1}
        assert local.state() == before
        assert not [path for path in log.iterdir() if path.stem.isdigit()], "no records"
        assert [commit["commit_id"] for commit in dataset.history()] == ["app:1"]


@pytest.mark.parametrize("history", ["on", "off"])
@pytest.mark.parametrize("taken", [False, True], ids=["its own", "another one's"])
def test_writer_that_stalls_while_records_are_removed(
    memory: Place, history: Any, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On object stores, without locks: its number may be free again, or its own record removed."""
    monkeypatch.setattr(Workspace, "locks", False)
    for module in ("log", "committing"):
        monkeypatch.setattr(f"parketto.commit.{module}.STALL_SECONDS", 0.0)
    monkeypatch.setattr("parketto.commit.log._FOLDED_AT_ONCE", 2)
    monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 2)
    memory.write_files({"one.parquet": table(id=[1], n=[0])})
    create, stalled = Log.create, []

    def slow(log: Log, number: int, record: Record) -> None:
        if stalled:
            create(log, number, record)
            return
        stalled.append(number)
        if not taken:
            create(log, number, record)
        for _ in range(8):
            memory.dataset(history=history).update("id = 1", {"n": sql("n + 1")}, retries=3)
        assert number <= memory.dataset()._context.workspace.read_state().log.checkpoint
        if taken:
            create(log, number, record)

    monkeypatch.setattr(Log, "create", slow)
    memory.dataset(history=history, retries=3).update("id = 1", {"n": sql("n * 10 + 5")})
    # Others applied its record; or its record came too late, and the update was planned again.
    assert rows(memory) == [(1, 85 if taken else 13)]
    assert len(memory.files()) == 1
