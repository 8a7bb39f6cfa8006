"""Races between the requests of a commit on S3: lost responses, and faster writers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from helpers.crash import DEATHS, mortal
from helpers.s3 import LOGIN, S3Place, kinds, recorded
from parketto import AccessDenied, CommitConflict, CommitFailed, CommitStateUnknown, Dataset
from parketto.commit import identity, log, recovery
from parketto.commit.recovery import settle
from parketto.commit.workspace import Workspace
from parketto.storage import objects, s3

pytest.importorskip("s3fs")

from s3_worker import CALLS, batch


@pytest.fixture
def filled(s3: S3Place) -> S3Place:
    s3.write_files({f"z{number}.parquet": batch(number) for number in range(4)})
    return s3


def ids(place: S3Place) -> list[int]:
    """The ids in all files."""
    return sorted(int(row.partition("'id': ")[2].partition(",")[0]) for row in place.rows().elements())


def numbers(*batches: int) -> list[int]:
    return [number * 50 + at for number in batches for at in range(50)]


def workspace_of(place: S3Place) -> Workspace:
    return place.dataset()._context.workspace


def hooked(place: S3Place, moment: str, act: Callable[..., Any], **options: Any) -> Dataset:
    """A dataset with a hook that runs once, before, after or instead of a call, such as "instead of record"."""
    dataset = place.dataset(**options)
    store = dataset._store
    side, _, call = moment.rpartition(" ")
    name, matches = CALLS[call]
    base, waiting = type(store), [True]

    def method(self: Any, path: str | Iterable[str], *rest: Any, **more: Any) -> Any:
        path = path if isinstance(path, str) else list(path)
        if not (path and matches(path) and waiting):
            return getattr(base, name)(self, path, *rest, **more)
        waiting.clear()
        if side == "instead of":
            return act(self, path, *rest, **more)
        if side == "before":
            act()
        result = getattr(base, name)(self, path, *rest, **more)
        if side == "after":
            act()
        return result

    store.__class__ = type(f"Hooked{base.__name__}", (base,), {name: method, "parallel_copies": False})
    return dataset


def killed(place: S3Place, moment: str, work: Callable[[Dataset], Any]) -> None:
    """Run an operation that dies at a moment, as if its process was killed."""
    dataset = place.dataset()
    dataset._store.creates_exclusively(place.root)
    dataset._store.parallel_copies = False
    side, _, call = moment.partition(" ")
    wanted, matches = CALLS[call]
    mortal(dataset, lambda name, first: name == wanted and matches(first), side)
    with pytest.raises(DEATHS):
        work(dataset)


class TestFirstCommits:
    """Concurrent first commits may each put an object with the identity of the dataset into it."""

    @pytest.fixture(params=["the first one's is less", "the second one's is less"])
    def order(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        names = itertools.count() if "first" in request.param else itertools.count(100, -1)
        named = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(names):032x}"))
        monkeypatch.setattr(identity, "uuid", named)

    @pytest.mark.usefixtures("order")
    def test_concurrent_first_commits_share_the_history(self, s3: S3Place) -> None:
        slow = hooked(s3, "before stage", lambda: s3.dataset().write(batch(1), commit_id="job:1"))
        slow.write(batch(2), commit_id="job:2")
        assert ids(s3) == numbers(1, 2)
        assert len(s3.dataset().history()) == 2
        for number in (1, 2):
            s3.dataset().write(batch(number), commit_id=f"job:{number}")
        assert ids(s3) == numbers(1, 2)
        assert len(s3.marks()) == 2

    @pytest.mark.usefixtures("order")
    def test_concurrent_first_commits_belong_to_one_dataset(self, s3: S3Place) -> None:
        slow = hooked(
            s3, "before stage", lambda: killed(s3, "after record", lambda dataset: dataset.write(batch(1)))
        )
        slow.write(batch(2))
        assert ids(s3) == numbers(1, 2)
        killed(s3, "after record", lambda dataset: dataset.write(batch(3)))
        assert s3.dataset().recover().action == "completed"
        assert ids(s3) == numbers(1, 2, 3)
        assert len(s3.dataset().history()) == 3

    def test_other_readers_ignore_the_identity_object(self, s3: S3Place) -> None:
        s3.dataset().write(batch(0))
        (mark,) = s3.marks()
        assert s3.fs.size(mark) == 0, "Polars reads hidden objects that are not empty"
        key, secret = LOGIN
        options = {"aws_access_key_id": key, "aws_secret_access_key": secret, "aws_region": "us-east-1"}
        options |= {"aws_endpoint_url": s3.server.endpoint, "aws_allow_http": "true"}
        assert pl.scan_parquet(f"s3://{s3.root}/", storage_options=options).collect().height == 50


class TestRecords:
    """Either it is certain whether a record is in the log, or the error says that it is unknown."""

    @pytest.mark.parametrize("error", [ConnectionError("lost"), KeyboardInterrupt()], ids=["lost", "ctrl-c"])
    def test_record_request_that_arrives_late(self, filled: S3Place, error: BaseException) -> None:
        """It arrives after its writer has given up: it must not cause a commit without files."""
        sent: list[tuple[str, bytes]] = []

        def lost(store: Any, path: str, content: bytes) -> None:
            sent.append((path, content))
            raise error

        with pytest.raises((CommitFailed, KeyboardInterrupt)):
            hooked(filled, "instead of record", lost).compact()
        ((path, content),) = sent
        with pytest.raises(FileExistsError):
            filled.dataset()._store.create(path, content)
        filled.dataset().recover()
        assert ids(filled) == numbers(0, 1, 2, 3)
        assert filled.left_behind() == []
        filled.dataset().compact()
        assert ids(filled) == numbers(0, 1, 2, 3)
        assert [commit["operation"] for commit in filled.dataset().history()] == ["compact"]

    @pytest.mark.parametrize("error", [ConnectionError("lost"), KeyboardInterrupt()], ids=["lost", "ctrl-c"])
    def test_record_request_whose_response_was_lost(self, filled: S3Place, error: BaseException) -> None:
        def answer_lost(store: Any, path: str, content: bytes) -> None:
            s3.S3Store.create(store, path, content)
            raise error

        with pytest.raises(CommitStateUnknown, match="was interrupted while it was committed"):
            hooked(filled, "instead of record", answer_lost).compact()
        assert filled.dataset().recover().action == "completed"
        assert ids(filled) == numbers(0, 1, 2, 3)
        assert len(filled.files()) == 1
        assert filled.left_behind() == []

    @pytest.mark.parametrize("call", ["record", "done"])
    def test_retried_request_recognizes_its_own_object(self, filled: S3Place, call: str) -> None:
        """The first response was lost, so the retry fails because the object exists."""

        def twice(store: Any, path: str, content: bytes) -> None:
            s3.S3Store.create(store, path, content)
            s3.S3Store.create(store, path, content)

        hooked(filled, f"instead of {call}", twice).compact()
        assert ids(filled) == numbers(0, 1, 2, 3)
        assert len(filled.files()) == 1
        assert filled.left_behind() == []

    def test_unreachable_log(self, filled: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """Staged files are kept, because the record may exist."""
        create = s3.S3Store.create

        def unreachable(store: Any, path: str, content: bytes) -> None:
            if "/log/" in path:
                raise ConnectionError("lost")
            create(store, path, content)

        monkeypatch.setattr(s3.S3Store, "create", unreachable)
        with pytest.raises(CommitStateUnknown, match="it is unknown whether the compact was committed"):
            filled.dataset().compact()
        assert filled.staged() != []
        monkeypatch.undo()
        filled.dataset().recover()
        assert ids(filled) == numbers(0, 1, 2, 3)

    def test_denied_record_request_is_a_definite_failure(
        self, filled: S3Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create = s3.S3Store.create

        def denied(store: Any, path: str, content: bytes) -> None:
            if "/log/" in path:
                raise AccessDenied("no PutObject for you")
            create(store, path, content)

        monkeypatch.setattr(s3.S3Store, "create", denied)
        with pytest.raises(CommitFailed, match="nothing was changed: no PutObject for you"):
            filled.dataset().compact()
        assert filled.left_behind() == []


class TestLateSteps:
    """A writer that stalls while others settle its commit does not undo later commits."""

    @pytest.mark.parametrize("where", ["id < 70", "id < 50"], ids=["rewritten", "removed"])
    def test_restored_files_are_not_retired_again(self, filled: S3Place, where: str) -> None:
        backups = f"s3://{filled.server.bucket}/backups-{filled.root.split('/')[1]}"
        killed(filled, "after record", lambda dataset: dataset.delete(where, backup=backups))
        workspace = workspace_of(filled)
        view = workspace.read_state().log
        assert not view.done
        filled.dataset().recover()
        (backup,) = filled.fs.ls(backups, detail=False)
        filled.dataset().restore(f"s3://{backup}")
        settle(workspace, view)
        assert ids(filled) == numbers(0, 1, 2, 3)

    def test_multipart_copy_that_completes_late(self, filled: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its target was retired meanwhile, and must not reappear."""
        monkeypatch.setattr(s3, "_SAFE_COPY_BYTES", 100)
        monkeypatch.setattr(s3, "_MAX_COPY_BYTES", 100)
        dataset = filled.dataset()
        call, waiting = dataset._store.fs.call_s3, [True]
        store = dataset._store

        def late(method: str, **request: Any) -> Any:
            if method == "complete_multipart_upload" and waiting:
                waiting.clear()
                assert filled.dataset().recover().action == "completed"
                filled.dataset().compact()
            return call(method, **request)

        monkeypatch.setattr(store, "_call", late)
        dataset.write(batch(4))
        assert not waiting
        assert ids(filled) == numbers(0, 1, 2, 3, 4)
        assert len(filled.files()) == 1
        assert filled.left_behind() == []

    def test_old_files_are_kept_if_staged_files_are_missing(self, filled: S3Place) -> None:
        """For example because of a lifecycle rule of the bucket, or a late request."""
        killed(filled, "after record", lambda dataset: dataset.compact())
        for path in filled.staged():
            filled.fs.rm_file(path)
        filled.dataset().recover()
        assert ids(filled) == numbers(0, 1, 2, 3)


class TestLayouts:
    @pytest.mark.parametrize("commits", [0, 1])
    @pytest.mark.parametrize("moment", ["before stage", "before record"])
    def test_append_conflicts_with_a_concurrent_repartition(
        self, filled: S3Place, moment: str, commits: int
    ) -> None:
        """A dataset has one partition spec, so the append is refused."""
        for number in range(commits):
            filled.dataset().write(batch(4 + number))
        before = ids(filled)
        busy = hooked(filled, moment, lambda: filled.dataset().repartition("batch"))
        with pytest.raises(CommitConflict, match=f"commit {commits + 1}, a repartition by"):
            busy.write(batch(9))
        assert ids(filled) == before
        assert filled.left_behind() == []


class TestSweeps:
    @pytest.fixture(autouse=True)
    def dead_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recovery, "DEAD_SECONDS", -60.0)

    def test_sweep_does_not_skip_an_unsettled_commit(self, filled: S3Place) -> None:
        """Another writer creates a record between a commit and its sweep."""
        filled.dataset()._store.write(f"{workspace_of(filled).path}/tx-dead/new/1", b"x")
        busy = hooked(filled, "after done", lambda: killed(filled, "after copy", lambda other: other.compact()))
        busy.write(batch(4))
        filled.dataset().recover()
        assert ids(filled) == numbers(0, 1, 2, 3, 4)
        assert len(filled.files()) in (1, 2)
        filled.dataset().recover()
        assert filled.left_behind() == []

    @pytest.mark.parametrize("call", ["abort_uploads", "remove_tree"])
    def test_commit_succeeds_even_if_the_sweep_fails(
        self, filled: S3Place, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled.dataset()._store.write(f"{workspace_of(filled).path}/tx-dead/new/1", b"x")

        def denied(*_: Any, **__: Any) -> None:
            raise AccessDenied("no s3:ListBucketMultipartUploads for you")

        monkeypatch.setattr(s3.S3Store, call, denied)
        filled.dataset().write(batch(4))
        monkeypatch.undo()
        assert ids(filled) == numbers(0, 1, 2, 3, 4)

    @pytest.mark.parametrize("when", ["recover", "fold"])
    def test_upload_of_a_writer_that_has_staged_nothing_yet(
        self, filled: S3Place, when: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A dead writer leaves no other trace; uploads of a live writer are kept."""
        store, work = filled.dataset()._store, workspace_of(filled).path
        for folder in ("tx-dead", "tx-alive"):
            key = f"{work}/{folder}/new/1".partition("/")[2]
            store.fs.call_s3("create_multipart_upload", Bucket=filled.server.bucket, Key=key)
        store.write(f"{work}/tx-alive/alive", b"alive")
        monkeypatch.setattr(recovery, "dead_among", lambda _: [])
        if when == "fold":
            monkeypatch.setattr(log.Log, "is_long", lambda *_: True)
            monkeypatch.setattr(log.Log, "fold", lambda *_, **__: True)
            filled.dataset().write(batch(4))
        else:
            filled.dataset().recover()
        answer = store.fs.call_s3("list_multipart_uploads", Bucket=filled.server.bucket)
        uploads = [found["Key"] for found in answer.get("Uploads", ()) if work.partition("/")[2] in found["Key"]]
        assert [key.rpartition("/tx-")[2] for key in uploads] == ["alive/new/1"]

    def test_recovery_without_the_permission_to_list_uploads(
        self, filled: S3Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def denied(*_: Any, **__: Any) -> None:
            raise AccessDenied("no s3:ListBucketMultipartUploads for you")

        monkeypatch.setattr(s3.S3Store, "abort_uploads", denied)
        assert not filled.dataset().recover()
        assert "cannot look for unfinished uploads" in caplog.text

    def test_writer_whose_staged_files_are_swept_before_its_commit(self, filled: S3Place) -> None:
        """It settles the sweep of its own staged files, and fails with an error that says so."""

        def sweep_and_die() -> None:
            killed(filled, "after record", lambda dataset: dataset.recover())

        with pytest.raises(CommitFailed, match="other writers took it for dead"):
            hooked(filled, "before record", sweep_and_die).compact()
        assert ids(filled) == numbers(0, 1, 2, 3)
        filled.dataset().compact()
        assert filled.left_behind() == []


class TestReaders:
    def test_listing_of_several_pages_during_a_commit(self, filled: S3Place) -> None:
        """The new file is on an earlier page, and some old files are already removed."""
        killed(filled, "after record", lambda dataset: dataset.compact())

        def retire_some(store: Any, paths: list[str]) -> None:
            s3.S3Store.remove_many(store, sorted(paths)[2:])
            raise ConnectionError("lost")

        def go_on() -> None:
            with pytest.raises(ConnectionError):
                hooked(filled, "instead of retire", retire_some).recover()

        dataset = paged(filled, go_on)
        assert sorted(dataset.read()["id"].to_pylist()) == numbers(0, 1, 2, 3)
        assert len(ids(filled)) == 300, "the new file, and two of the old ones"

    def test_read_while_others_commit_during_every_listing(self, filled: S3Place) -> None:
        """Every listing is outdated before it ends."""
        values = itertools.count(10)

        def rewrite() -> None:
            filled.dataset().update("id >= 0", {"batch": next(values)})
            filled.dataset().compact()

        table = paged(filled, rewrite, every=True).read()
        assert sorted(table["id"].to_pylist()) == numbers(0, 1, 2, 3)
        assert len(set(table["batch"].to_pylist())) == 1

    def test_delete_during_a_partly_published_append(self, filled: S3Place) -> None:
        """The delete lists the first file of the append, which is not part of its snapshot."""
        source = pa.concat_tables([batch(0).slice(0, 25), batch(9).slice(0, 25)])
        killed(filled, "after copy", lambda dataset: dataset.write(source, max_rows_per_file=25))
        assert sum(filled.rows().values()) == 225
        filled.dataset(retries=3).delete("id < 30")
        assert ids(filled) == [*range(30, 200), *numbers(9)[:25]]

    def test_read_without_write_permission(self, filled: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
        killed(filled, "after record", lambda dataset: dataset.compact())

        def denied(*_: Any, **__: Any) -> None:
            raise AccessDenied("no PutObject for you")

        monkeypatch.setattr(objects, "_exclusive", {})
        monkeypatch.setattr(s3.S3Store, "_put_new", denied)
        assert filled.dataset().read().num_rows == 200


def paged(place: S3Place, act: Callable[[], Any], *, every: bool = False) -> Dataset:
    """A dataset with a hook that runs between two pages of a listing."""
    dataset = place.dataset()
    base, waiting = type(dataset._store), [True]

    def pages(self: Any, method: str, **request: Any) -> Iterator[Any]:
        whole = request.get("Prefix") == f"{place.root.partition('/')[2]}/" and "Delimiter" not in request
        if not (whole and (waiting or every)):
            yield from base._pages(self, method, **request)
            return
        waiting.clear()
        first = self._call(method, **request, MaxKeys=3)
        yield first
        act()
        yield from base._pages(self, method, **request, StartAfter=first["Contents"][-1]["Key"])

    dataset._store.__class__ = type("Paged", (base,), {"_pages": pages})
    return dataset


class TestIdentity:
    def test_dataset_that_was_removed_and_created_again(self, s3: S3Place) -> None:
        s3.dataset().write(batch(0), commit_id="job:1")
        s3.dataset().write(batch(0), commit_id="job:1")
        assert ids(s3) == numbers(0)
        s3.fs.rm(s3.root, recursive=True)
        s3.dataset().write(batch(0), commit_id="job:1")
        s3.dataset().write(batch(0), commit_id="job:1")
        assert ids(s3) == numbers(0)
        assert len(s3.dataset().history()) == 1

    @pytest.mark.parametrize("moment", ["after record", "after copy"])
    def test_interrupted_commit_of_a_removed_dataset(self, filled: S3Place, moment: str) -> None:
        killed(filled, moment, lambda dataset: dataset.write(batch(4), max_rows_per_file=25))
        filled.fs.rm(filled.root, recursive=True)
        filled.write_files({"z0.parquet": batch(7)})
        assert sorted(filled.dataset().read()["id"].to_pylist()) == numbers(7)
        filled.dataset().write(batch(8))
        assert ids(filled) == numbers(7, 8)
        assert len(filled.dataset().history()) == 1

    def test_copy_of_a_dataset_has_its_own_log(self, filled: S3Place) -> None:
        filled.dataset().compact()
        other = S3Place.fresh(filled.server)
        filled.fs.cp(f"{filled.root}/", f"{other.root}/", recursive=True)
        killed(filled, "after record", lambda dataset: dataset.delete("id < 100"))
        killed(other, "after record", lambda dataset: dataset.write(batch(4)))
        assert other.dataset().recover().operation == "append"
        assert filled.dataset().recover().operation == "delete"
        assert (ids(filled), ids(other)) == (numbers(2, 3), numbers(0, 1, 2, 3, 4))
        assert len(other.dataset().history()) == 1

    def test_dataset_moved_together_with_its_log(self, filled: S3Place) -> None:
        killed(filled, "after copy", lambda dataset: dataset.compact())
        other = S3Place.fresh(filled.server)
        filled.fs.cp(f"{filled.root}/", f"{other.root}/", recursive=True)
        filled.fs.cp(f"{workspace_of(filled).path}/", f"{workspace_of(other).path}/", recursive=True)
        assert other.dataset().recover().action == "completed"
        assert ids(other) == numbers(0, 1, 2, 3)
        assert filled.dataset().recover().action == "completed"
        assert ids(filled) == numbers(0, 1, 2, 3)

    def test_empty_datasets(self, s3: S3Place) -> None:
        s3.dataset().write(batch(0))
        s3.dataset().delete("id >= 0")
        assert ids(s3) == []
        assert s3.dataset().read().num_rows == 0
        s3.dataset().write(batch(1))
        assert ids(s3) == numbers(1)
        assert len(s3.marks()) == 1
        assert len(s3.dataset().history()) == 3


class TestLongLogs:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from parketto.commit import committing

        monkeypatch.setattr(log, "_FOLDED_AT_ONCE", 4)
        monkeypatch.setattr(committing, "KEPT_RECORDS", 4)

    @pytest.mark.parametrize("history", ["on", "off"])
    def test_recent_records_are_not_read_at_every_commit(self, s3: S3Place, history: str) -> None:
        for number in range(12):
            dataset = s3.dataset(history=history)
            with recorded(dataset._store.fs) as requests:
                dataset.write(batch(number))
        print(f"{len(requests)} requests")
        assert len(requests) <= 12, kinds(requests)

    def test_commit_ids_are_looked_up_in_cached_records(
        self, s3: S3Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log, "_FOLDED_AT_ONCE", 100)
        for number in range(8):
            dataset = s3.dataset()
            with recorded(dataset._store.fs) as requests:
                dataset.write(batch(number), commit_id=f"job:{number}")
        print(f"{len(requests)} requests")
        assert len(requests) <= 16, kinds(requests)
        dataset = s3.dataset()
        with recorded(dataset._store.fs) as requests:
            for number in range(8):
                dataset.write(batch(number), commit_id=f"job:{number}")
        assert len(requests) <= 8 * 2 + 2, kinds(requests)
        assert ids(s3) == numbers(*range(8))

    def test_writer_that_stalls_for_longer_than_records_are_kept(
        self, s3: S3Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its commit number is free again but was used by others: it must read the log again."""
        s3.dataset().write(batch(0))

        def others() -> None:
            monkeypatch.setattr(log, "STALL_SECONDS", -60.0)
            monkeypatch.setattr("parketto.commit.committing.STALL_SECONDS", -60.0)
            for number in range(1, 9):
                s3.dataset().write(batch(number))
            s3.dataset().compact()

        slow = hooked(s3, "before record", others, retries=3)
        slow.delete("id < 10")
        assert ids(s3) == numbers(*range(9))[10:]
        assert not s3.dataset().recover()
        s3.dataset().write(batch(9))
        assert ids(s3) == numbers(*range(10))[10:]
        assert len(s3.dataset().history()) == 12
