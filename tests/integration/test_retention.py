"""Retired files are kept for some time: for readers that hold a snapshot, and for a later undo."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import WAYS_TO_PUBLISH, Place, place_of
from helpers.crash import DEATHS, mortal
from helpers.kept import kept_contents, kept_files, sound_manifests
from parketto import Dataset, sql
from parketto.commit import retention
from parketto.commit.retention import KeptFiles, remove_kept
from parketto.errors import CommitFailed, InvalidArgument, UntrustedWorkspace

HOUR = 3600


@pytest.fixture(params=WAYS_TO_PUBLISH)
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that decides what is expired, as the only element."""
    now = [time.time()]
    monkeypatch.setattr(retention, "unix_time", lambda: now[0])
    return now


def table(first: int, rows: int = 10) -> pa.Table:
    return pa.table({"id": list(range(first, first + rows)), "n": [1] * rows, "day": [1] * rows})


def filled(place: Place, files: int = 4) -> Place:
    place.write_files({f"day=1/{number}.parquet": table(number * 10) for number in range(files)})
    return place


def ids(rows: Any) -> list[int]:
    return sorted(rows.column("id").to_pylist())


MOVING: dict[str, Callable[[Dataset], object]] = {
    "compact": lambda dataset: dataset.compact(),
    "optimize": lambda dataset: dataset.optimize(["id"]),
    "repartition": lambda dataset: dataset.repartition(None),
    "unify_schema": lambda dataset: dataset.unify_schema(cast={"n": "double"}),
}
CHANGING: dict[str, Callable[[Dataset], object]] = {
    "delete": lambda dataset: dataset.delete("id < 15"),
    "update": lambda dataset: dataset.update("id < 15", {"n": sql("n + 1")}),
    "merge": lambda dataset: dataset.merge(pa.table({"id": [3], "n": [7], "day": [1]}), "id"),
    "overwrite": lambda dataset: dataset.write(table(0), "overwrite"),
    "alter": lambda dataset: dataset.alter(add={"x": "string"}),
    "deduplicate": lambda dataset: dataset.deduplicate("n"),
    "apply_changes": lambda dataset: dataset.apply_changes(
        pa.table({"id": [3], "n": [7], "day": [1]}), keys="id", sequence_by="n"
    ),
}


@pytest.mark.parametrize("operation", [*MOVING, *CHANGING])
def test_retired_files_are_kept_for_the_time_of_the_operation(
    place: Place, operation: str, clock: list[float]
) -> None:
    before = filled(place).state()
    (MOVING | CHANGING)[operation](place.dataset())
    retired = {path: content for path, content in before.items() if path not in place.state()}
    assert retired
    (manifest,) = sound_manifests(place)
    assert kept_contents(place, manifest) == retired
    seconds = 15 * 60 if operation in MOVING else 24 * HOUR
    assert 0 <= manifest.kept_until - clock[0] - seconds < 2
    assert (manifest.operation, manifest.number) == (operation, 1)
    (commit,) = place.dataset().history()
    assert commit["kept_until"] is not None
    assert dt.datetime.fromisoformat(commit["kept_until"]).timestamp() == manifest.kept_until
    assert place.left_behind() == []


@pytest.mark.parametrize("publish", ["auto", "rename"])
def test_kept_files_are_moved_not_copied(local: Place, publish: Any) -> None:
    filled(local)
    inodes = {os.stat(path).st_ino for path in Path(local.root).rglob("*.parquet")}
    local.dataset(publish=publish).compact()
    (manifest,) = sound_manifests(local)
    folder = Path(kept_files(local).workspace) / manifest.folder
    assert {os.stat(folder / file.name).st_ino for file in manifest.files} == inodes
    assert not list(folder.glob("*.parquet"))


@pytest.mark.parametrize("setting", [0, 60, 90.5, dt.timedelta(hours=2)])
def test_setting_for_all_operations(place: Place, setting: Any, clock: list[float]) -> None:
    filled(place)
    dataset = place.dataset(retention=setting)
    dataset.compact()
    dataset.delete("id = 1")
    seconds = setting.total_seconds() if isinstance(setting, dt.timedelta) else setting
    found = [manifest.kept_until - clock[0] for manifest in sound_manifests(place)]
    assert found == pytest.approx([seconds] * 2 if seconds else [], abs=1)
    assert [commit["kept_until"] is None for commit in dataset.history()] == [not seconds] * 2


@pytest.mark.parametrize("setting", [-1, "a day", True, float("nan"), float("inf"), dt.timedelta(seconds=-1)])
def test_invalid_setting(memory: Place, setting: Any) -> None:
    with pytest.raises(InvalidArgument, match="retention must be None, a timedelta, or a number of seconds"):
        memory.dataset(retention=setting)


def test_nothing_is_kept_without_history(place: Place) -> None:
    filled(place)
    place.dataset(history="off").compact()
    assert sound_manifests(place) == []
    assert not place.fs.exists(kept_files(place).workspace)


def test_nothing_is_kept_in_a_partition(local: Place) -> None:
    """Its workspace is inside the dataset."""
    filled(local)
    Dataset(f"{local.root}/day=1", "pyarrow").compact()
    assert os.listdir(f"{local.root}/day=1") == [name for name in os.listdir(f"{local.root}/day=1") if "0" in name]
    assert len(local.files()) == 1


def test_later_commits_remove_what_is_expired_and_nothing_else(place: Place, clock: list[float]) -> None:
    filled(place)
    dataset = place.dataset()
    dataset.compact()
    dataset.delete("id = 1")
    clock[0] += 14 * 60
    dataset.write(table(100))
    assert [manifest.operation for manifest in sound_manifests(place)] == ["delete", "compact"]
    clock[0] += 2 * 60
    dataset.write(table(200))
    assert [manifest.operation for manifest in sound_manifests(place)] == ["delete"]
    clock[0] += 24 * HOUR
    dataset.write(table(300))
    assert sound_manifests(place) == []
    assert not place.fs.exists(f"{kept_files(place).workspace}/kept")
    assert place.left_behind() == []


def test_recover_removes_what_is_expired(place: Place, clock: list[float]) -> None:
    filled(place)
    dataset = place.dataset()
    dataset.compact()
    assert not dataset.recover()
    assert len(sound_manifests(place)) == 1
    clock[0] += HOUR
    assert not dataset.recover()
    assert sound_manifests(place) == []


def test_expired_files_of_an_interrupted_commit_are_not_removed_before_it_is_settled(
    local: Place, clock: list[float]
) -> None:
    """Undoing it needs them, however old they are."""
    before = filled(local).state()
    dataset = local.dataset(publish="rename")
    mortal(dataset, lambda name, path: name == "create" and path.endswith(".done.json"))
    with pytest.raises(DEATHS):
        dataset.compact()
    (new,) = local.files()
    os.remove(f"{local.root}/{new}")  # by another program: the commit must be undone
    clock[0] += HOUR
    assert local.dataset().recover().action == "rolled back"
    assert local.state() == before
    assert sound_manifests(local) == []


def test_process_that_settles_a_commit_keeps_the_files_of_its_owner(place: Place, clock: list[float]) -> None:
    before = filled(place).state()
    dataset = place.dataset()
    mortal(dataset, lambda name, path: name == "create" and path.endswith(".done.json"))
    with pytest.raises(DEATHS):
        dataset.compact()
    clock[0] += 60
    place.dataset(retention=0, history="off").recover()
    (manifest,) = sound_manifests(place)
    assert kept_contents(place, manifest) == before
    assert manifest.kept_until == pytest.approx(clock[0] - 60 + 15 * 60, abs=1)


def test_undone_commit_keeps_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = filled(place).state()
    dataset = place.dataset(publish="rename")
    store = type(dataset._store)
    step = "move" if dataset._store.atomic_move else "copy"
    original = getattr(store, step)
    monkeypatch.setattr(store, step, lambda *given: failing_at_third(original, monkeypatch, *given))
    with pytest.raises(CommitFailed, match="disk is full"):
        dataset.compact()
    assert place.state() == before
    assert sound_manifests(place) == []
    assert place.left_behind() == []


def failing_at_third(original: Any, monkeypatch: pytest.MonkeyPatch, store: Any, source: str, *more: Any) -> None:
    """Fails once, at the third file to retire."""
    if source.endswith("/2.parquet"):
        monkeypatch.undo()
        raise OSError("the disk is full")
    original(store, source, *more)


class TestFind:
    def test_a_retired_file_is_found_by_its_path_and_fingerprint(self, place: Place) -> None:
        filled(place)
        files = place.dataset().files()
        kept = kept_files(place)
        assert kept.find("day=1/0.parquet", files[0].fingerprint) is None, "it is still there"
        place.dataset().compact()
        for file in files:
            entry = pickle.loads(pickle.dumps(kept)).find(f"day=1/{os.path.basename(file.path)}", file.fingerprint)
            assert entry is not None
            assert entry.size_bytes == file.size_bytes
            assert place.fs.cat_file(entry.path)[-4:] == b"PAR1"
        assert kept.find("day=1/0.parquet", "another") is None
        assert kept.find("day=2/0.parquet", files[0].fingerprint) is None

    def test_file_of_a_commit_that_is_in_progress(self, local: Place) -> None:
        """A reader does not wait: a file is found in every state between the dataset and its place."""
        filled(local)
        files = local.dataset().files()
        seen = set()
        for at in range(1, 60):
            local.fs.rm(os.path.dirname(local.root), recursive=True)
            filled(local)
            files = local.dataset().files()
            dataset = local.dataset()
            mortal(dataset, at, "after")
            try:
                dataset.compact()
            except DEATHS:
                pass
            else:
                break
            for file in files:
                there = os.path.exists(file.path)
                entry = kept_files(local).find(f"day=1/{os.path.basename(file.path)}", file.fingerprint)
                assert there or entry is not None
                seen.add("live" if there else "kept" if "/kept/" in entry.path else "old tree")  # type: ignore[union-attr]
        assert seen == {"live", "kept", "old tree"}

    def test_folder_without_a_manifest_does_not_count(self, place: Place) -> None:
        filled(place)
        (file, *_) = place.dataset().files()
        place.dataset().compact()
        (manifest,) = sound_manifests(place)
        kept = kept_files(place)
        place.fs.rm_file(f"{kept.workspace}/{manifest.folder}/manifest.json")
        assert kept.find("day=1/0.parquet", file.fingerprint) is None
        remove_kept(kept.store, f"{kept.workspace}/{manifest.folder}")
        assert list(kept.manifests()) == []

    def test_damaged_manifest_does_not_count(self, place: Place) -> None:
        filled(place)
        place.dataset().compact()
        (manifest,) = sound_manifests(place)
        kept = kept_files(place)
        path = f"{kept.workspace}/{manifest.folder}/manifest.json"
        place.fs.pipe_file(path, place.fs.cat_file(path).replace(b'"compact"', b'"compacT"'))
        assert list(kept.manifests()) == []

    @pytest.mark.parametrize("name", ["../../events/day=1/x", "/etc/passwd", "a/../b"])
    def test_manifest_that_leads_out_of_its_folder_does_not_count(self, memory: Place, name: str) -> None:
        filled(memory)
        memory.dataset().compact()
        (manifest,) = sound_manifests(memory)
        files = tuple(dataclasses.replace(file, name=name) for file in manifest.files)
        kept = kept_files(memory)
        memory.fs.pipe_file(
            f"{kept.workspace}/{manifest.folder}/manifest.json",
            dataclasses.replace(manifest, files=files).to_bytes(),
        )
        assert list(kept.manifests()) == []


class TestReaders:
    """A reader that began before commits finishes with exactly the rows of its snapshot."""

    @pytest.fixture(autouse=True)
    def one_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Files are opened only when their rows are asked for."""
        monkeypatch.setattr("parketto.operations.read._THREADS", 1)
        monkeypatch.setattr("parketto.parquet.parallel_reader._MAX_PIECE_FILES", 1)

    def wide(self, place: Place, files: int = 6) -> list[int]:
        rows = 40_000
        place.write_files(
            {f"day=1/{number}.parquet": table(number * rows, rows) for number in range(files)},
            row_group_size=10_000,
        )
        return list(range(files * rows))

    def stream(self, dataset: Dataset, where: str | None) -> Iterator[int]:
        for batch in dataset.scan(where=where):
            yield from batch.column("id").to_pylist()

    @pytest.mark.parametrize("where", [None, "n = 1 AND id >= 0"])
    @pytest.mark.parametrize(
        "commits",
        [
            [lambda dataset: dataset.compact()],
            [lambda dataset: dataset.compact(target_rows_per_file=90_000), lambda dataset: dataset.compact()],
            [lambda dataset: dataset.delete("id % 3 = 0"), lambda dataset: dataset.compact()],
            [lambda dataset: dataset.write(table(0), "overwrite"), lambda dataset: dataset.delete("id > 0")],
        ],
        ids=["compact", "twice", "delete", "overwrite"],
    )
    def test_reader_during_commits(self, place: Place, commits: list[Any], where: str | None) -> None:
        expected = self.wide(place)
        rows = self.stream(place.dataset(), where)
        found = [next(rows)]
        for commit in commits:
            commit(place.dataset())
        found += rows
        assert sorted(found) == expected

    def test_file_of_the_same_name_is_not_taken_for_the_one_of_the_snapshot(self, place: Place) -> None:
        expected = self.wide(place)
        rows = self.stream(place.dataset(), None)
        found = [next(rows)]
        place.dataset().compact()
        place.write_files({f"day=1/{number}.parquet": table(-5, 4) for number in range(6)})
        found += rows
        assert sorted(found) == expected

    def test_file_that_was_only_touched_is_read(self, local: Place) -> None:
        expected = self.wide(local)
        rows = self.stream(local.dataset(), None)
        found = [next(rows)]
        for path in local.files():
            os.utime(f"{local.root}/{path}")
        found += rows
        assert sorted(found) == expected

    def test_without_retention_a_stream_fails_and_a_read_begins_again(
        self, local: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = self.wide(local)
        rows = self.stream(local.dataset(), None)
        next(rows)
        local.dataset(retention=0).compact(target_rows_per_file=90_000)
        with pytest.raises(FileNotFoundError):
            list(rows)
        assert ids(local.dataset().read()) == expected

    def test_reader_after_expiry_fails(self, place: Place, clock: list[float]) -> None:
        self.wide(place)
        rows = self.stream(place.dataset(), None)
        next(rows)
        place.dataset().compact(target_rows_per_file=90_000)
        clock[0] += HOUR
        place.dataset().recover()
        with pytest.raises(FileNotFoundError):
            list(rows)


class TestTrust:
    def test_linked_folder_is_refused(self, local: Place, tmp_path: Path) -> None:
        """Files of the dataset would be moved to where another user wants them."""
        filled(local)
        local.dataset().write(table(100))
        workspace = kept_files(local).workspace
        (tmp_path / "elsewhere").mkdir()
        os.symlink(tmp_path / "elsewhere", f"{workspace}/kept")
        with pytest.raises(UntrustedWorkspace, match="is a link or a file"):
            local.dataset().compact()
        assert os.listdir(tmp_path / "elsewhere") == []

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_folder_without_permission_is_refused_before_anything_is_changed(self, local: Place) -> None:
        before = filled(local).state()
        os.makedirs(f"{kept_files(local).workspace}/kept", mode=0o555)
        with pytest.raises(CommitFailed, match="no permission to write"):
            local.dataset().compact()
        assert local.state() == before

    def test_files_that_were_replaced_before_they_were_retired_are_not_kept(
        self, memory: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where files are copied, what is kept is what was listed, or nothing."""
        filled(memory)
        dataset = memory.dataset()
        copy = type(dataset._store).copy

        def replaced(store: Any, source: str, destination: str, *more: Any) -> None:
            if source.endswith("/1.parquet"):
                memory.write_files({"day=1/1.parquet": table(500)})
            copy(store, source, destination, *more)

        monkeypatch.setattr(type(dataset._store), "copy", replaced)
        with pytest.raises(CommitFailed):
            dataset.compact()
        assert sound_manifests(memory) == []
        assert 500 in ids(memory.dataset().read()), "the file of the other writer stays"


def test_kept_files_need_only_a_store_and_a_path(local: Place) -> None:
    """For a task on another machine."""
    filled(local)
    (file, *_) = local.dataset().files()
    local.dataset().compact()
    context = local.dataset()._context
    store, workspace = pickle.loads(pickle.dumps((context.store, context.workspace.path)))
    assert KeptFiles(store, workspace).find("day=1/0.parquet", file.fingerprint) is not None
