"""Regressions: each of these cases once lost rows, changed values, hung or misled."""

from __future__ import annotations

import datetime as dt
import io
import os
import shutil
import stat
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from conftest import Place
from helpers import oracle
from helpers.crash import DEATHS, mortal
from parketto import CommitConflict, CommitFailed, CommitStateUnknown, Dataset, NotPlainParquet, UnreadableFile
from parketto.engines.base import Engine
from parketto.parquet.file_info import _logical_type
from parketto.storage import locks
from parketto.storage.local import LocalStore

UUID = "0198f3b2-7c11-7d3e-9a55-0c1d2e3f4a5b"
DUCKLAKE = f"ducklake-{UUID}"
DUCKLAKE_DATA = f"{DUCKLAKE}.parquet"
PAIMON_DATA = f"bucket-0/data-{UUID}-0.parquet"


def small_files(place: Place, count: int = 4, folder: str = "") -> None:
    place.write_files({f"{folder}f{n}.parquet": pa.table({"x": [n]}) for n in range(count)})


def values(place: Place, column: str = "x") -> list[Any]:
    tables = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    return sorted(value for table in tables for value in table.column(column).to_pylist())


Mounts = Callable[[str, str], None]


@pytest.fixture
def mounts(tmp_path: Any) -> Iterator[Mounts]:
    """Mounts of several kinds on a folder, removed after the test."""
    mounted: list[str] = []

    def mount(kind: str, folder: str) -> None:
        os.makedirs(origin := f"{tmp_path}/origin-{len(mounted)}")
        options = ["-t", "tmpfs", "none"] if kind == "tmpfs" else ["--bind", origin]
        done = subprocess.run(["mount", *options, folder], check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
        mounted.append(folder)

    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount")
    try:
        yield mount
    finally:
        for folder in reversed(mounted):
            subprocess.run(["umount", folder], check=True)


class TestCommit:
    @pytest.mark.parametrize("publish", ["auto", "rename"])
    def test_second_ctrl_c_during_the_rollback_of_the_first(self, local: Place, publish: Any) -> None:
        for first in range(1, 12):
            small_files(local)
            dataset = Dataset(local.root, publish=publish)
            base, calls = type(dataset._store), 0

            def move(self: Any, source: str, target: str, first: int = first, base: Any = base) -> None:
                nonlocal calls
                calls += 1
                if calls in (first, first + 1):
                    raise KeyboardInterrupt
                base.move(self, source, target)

            dataset._store.__class__ = type("Interrupted", (base,), {"move": move})
            try:
                dataset.compact()
            except (KeyboardInterrupt, CommitStateUnknown):
                local.dataset().recover()
            assert values(local) == [0, 1, 2, 3]
            assert local.left_behind() == []
            local.fs.rm(local.root, recursive=True)

    def test_file_removed_between_validation_and_record_is_a_conflict(self, place: Place) -> None:
        small_files(place)
        dataset = place.dataset()
        create = dataset._context.workspace.log.create

        def late(number: int, record: Any) -> None:
            place.fs.rm_file(f"{place.root}/f2.parquet")
            create(number, record)

        dataset._context.workspace.log.create = late  # type: ignore[method-assign]
        if isinstance(dataset._store, LocalStore):
            with pytest.raises(CommitConflict, match=r"f2\.parquet"):
                dataset.compact()
            assert values(place) == [0, 1, 3]
        else:  # deletes cannot be undone there, so recovery completes the commit
            with pytest.raises((CommitConflict, CommitStateUnknown)):
                dataset.compact()
            place.dataset().recover()
        assert place.left_behind() == []

    @pytest.mark.parametrize("killed_first", ["the partition", "the dataset"])
    def test_partition_used_as_a_dataset_of_its_own(self, local: Place, killed_first: str) -> None:
        inner = f"{local.root}/day=1"
        first, second = (inner, local.root) if killed_first == "the partition" else (local.root, inner)
        for publish in ("auto", "rename"):
            at = 0
            while True:
                at += 1
                small_files(local, 4, "day=1/")
                victim = Dataset(first, publish=publish)  # type: ignore[arg-type]
                mortal(victim, at, "after")
                try:
                    victim.compact()
                except DEATHS:
                    Dataset(second).compact()
                    assert values(local) == [0, 1, 2, 3]
                    Dataset(first).recover()
                    assert values(local) == [0, 1, 2, 3]
                    local.fs.rm(local.root, recursive=True)
                else:
                    local.fs.rm(local.root, recursive=True)
                    break
            assert at > 5

    def test_log_inside_of_another_dataset_is_not_applied_to_it(self, local: Place, tmp_path: Any) -> None:
        small_files(local, 3)
        other = Place(str(tmp_path / "other"), local.fs)
        small_files(other, 2)
        victim = Dataset(other.root, workspace=f"{local.root}/workspaces")
        calls = mortal(victim)
        victim.compact()
        for at in range(1, calls() + 1):
            other.fs.rm(other.root, recursive=True)
            other.fs.rm(f"{local.root}/workspaces", recursive=True)
            small_files(other, 2)
            victim = Dataset(other.root, workspace=f"{local.root}/workspaces")
            mortal(victim, at, "after")
            with pytest.raises(DEATHS):
                victim.compact()
            assert sorted(Dataset(local.root).read().column("x").to_pylist()) == [0, 1, 2]
            Dataset(other.root, workspace=f"{local.root}/workspaces").recover()
            assert values(other) == [0, 1]

    def test_log_of_another_dataset_is_set_aside(self, local: Place) -> None:
        workspace, others = "", Place(local.root.replace("events", "others"), local.fs)
        for at in range(1, 30):
            small_files(local)
            dataset = local.dataset()
            mortal(dataset, at, "after")
            with pytest.raises(DEATHS):
                dataset.compact()
            workspace = dataset._context.workspace.path
            if not dataset._context.workspace.read_state().log.done:
                break
            local.dataset().recover()
        small_files(others)
        os.rename(workspace, workspace.replace("events", "others"))
        others.dataset().compact()
        assert values(others) == [0, 1, 2, 3]
        (aside,) = [name for name in os.listdir(os.path.dirname(workspace)) if ".parketto." in name]
        # Beside its own dataset, the interrupted commit is finished.
        os.rename(f"{os.path.dirname(workspace)}/{aside}", workspace)
        assert local.dataset().recover().action == "completed"
        assert values(local) == [0, 1, 2, 3]

    @pytest.mark.parametrize("publish", ["auto", "rename"])
    def test_changes_of_other_programs_before_recovery_are_kept(self, local: Place, publish: Any) -> None:
        """After a kill and before recovery, one input is replaced and another one removed."""
        at = 0
        while True:
            at += 1
            small_files(local)
            victim = Dataset(local.root, publish=publish)
            mortal(victim, at, "after")
            try:
                victim.compact()
            except DEATHS:
                untouched = {"f0.parquet", "f1.parquet"} <= set(local.files())
                if untouched:
                    local.write_files({"f0.parquet": pa.table({"x": [50]})})
                    os.unlink(f"{local.root}/f1.parquet")
                local.dataset().recover()
                assert values(local) == ([2, 3, 50] if untouched else [0, 1, 2, 3])
                assert local.left_behind() == []
                local.fs.rm(local.root, recursive=True)
            else:
                break
        assert at > 5

    def test_forked_child_does_not_release_the_lock_of_its_parent(self, local: Place) -> None:
        os.makedirs(local.root)
        lock = locks.FileLock.attempt(f"{local.root}/lock")
        assert lock is not None
        lock._process = -1  # as it looks to a child
        lock_again = locks.FileLock(os.dup(lock._descriptor or 0))
        lock_again._process = -1
        lock_again.release()
        assert locks.FileLock.attempt(f"{local.root}/lock") is None
        lock._process = os.getpid()
        lock.release()

    def test_interrupt_between_acquiring_the_lock_and_using_it(
        self, local: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small_files(local)
        with monkeypatch.context() as patched:
            patched.setattr("parketto.commit.workspace.held", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                local.dataset().compact()
        monkeypatch.setattr("parketto.commit.workspace.LOCK_TIMEOUT_SECONDS", 2.0)
        assert local.dataset().compact()["after_file_count"] == 1

    def test_forked_child_does_not_hold_the_lock(self, local: Place) -> None:
        os.makedirs(local.root)
        lock = locks.FileLock.attempt(f"{local.root}/lock")
        assert lock is not None
        copy = os.dup(lock._descriptor or 0)  # what a child inherits: the same open file
        lock.release()
        again = locks.FileLock.attempt(f"{local.root}/lock")
        os.close(copy)
        assert again is not None
        again.release()

    def test_lost_lease_is_noticed_before_the_commit(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        fs = DirFileSystem(str(tmp_path))
        fs.makedirs("bucket")
        monkeypatch.setattr(locks.LeaseLock, "is_held", lambda self: False)
        with pytest.raises(CommitConflict, match="lock expired"):
            Dataset("bucket/events", filesystem=fs).write(pa.table({"x": [1]}))
        assert not fs.exists("bucket/events")

    def test_lease_survives_a_failed_renewal_and_is_not_retaken_once_lost(self, tmp_path: Any) -> None:
        fs = DirFileSystem(str(tmp_path))
        store = Dataset("bucket/events", filesystem=fs)._store
        store.make_dirs("bucket")
        lease = locks.LeaseLock.attempt(store, "bucket/lock", seconds=0.6)
        assert lease is not None
        write, failed = store.write, []

        def flaky(path: str, content: bytes) -> None:
            if not failed:
                failed.append(path)
                raise OSError("network is gone")
            write(path, content)

        store.write = flaky  # type: ignore[method-assign]
        time.sleep(1.0)
        assert failed
        assert lease.is_held()
        write("bucket/lock", b'{"owner": "another", "expires": 99999999999}')
        time.sleep(0.4)
        assert not lease.is_held()
        lease.release()
        assert b"another" in store.read("bucket/lock")


def _interrupt(_lock: object) -> None:
    raise KeyboardInterrupt


class TestListing:
    def test_symlink_to_a_folder_of_the_dataset_adds_no_rows(self, local: Place) -> None:
        small_files(local, 3, "day=1/")
        os.symlink(f"{local.root}/day=1", f"{local.root}/latest")
        os.symlink(local.root, f"{local.root}/day=1/loop")
        local.dataset().compact()
        assert [name for name in local.files() if name.startswith("day=1/c")]
        assert len(os.listdir(f"{local.root}/day=1")) == 2
        assert local.dataset().read().num_rows == 3

    def test_symlinked_folder_is_part_of_the_dataset(self, local: Place, tmp_path: Any) -> None:
        small_files(local, 2)
        elsewhere = Place(str(tmp_path / "elsewhere"), local.fs)
        small_files(elsewhere, 3)
        os.symlink(elsewhere.root, f"{local.root}/more")
        assert local.dataset().compact()["after_file_count"] == 2
        assert len(elsewhere.files()) == 1

    @pytest.mark.parametrize("folder", ["_delta_log", ".hoodie", "_spark_metadata", "metadata"])
    def test_table_formats_are_refused(self, place: Place, folder: str) -> None:
        small_files(place)
        place.fs.makedirs(f"{place.root}/{folder}")
        place.fs.pipe_file(f"{place.root}/{folder}/v1.metadata.json", b"{}")
        before = place.state()
        operations: list[Callable[[Dataset], object]] = [
            lambda dataset: dataset.compact(),
            lambda dataset: dataset.optimize(["x"]),
            lambda dataset: dataset.write(pa.table({"x": [1]})),
            lambda dataset: dataset.write(pa.table({"x": [1]}), "overwrite"),
        ]
        for operation in operations:
            with pytest.raises(NotPlainParquet, match="is a table in"):
                operation(place.dataset())
        assert place.state() == before
        assert place.left_behind() == []

    @pytest.mark.parametrize(
        "names",
        [
            (DUCKLAKE_DATA, f"{DUCKLAKE}-delete.parquet"),
            (f"day=1/{DUCKLAKE_DATA}", f"day=1/{DUCKLAKE}-deletes.parquet"),
            ("f0.parquet", f"{DUCKLAKE}-delete.puffin"),
            (DUCKLAKE_DATA,),
            (PAIMON_DATA, "snapshot/snapshot-1", "snapshot/LATEST", "schema/schema-0"),
            ("other-prefix.parquet", "schema/schema-0", "snapshot/snapshot-12"),
            ("other-prefix.parquet", "schema/schema-3", f"manifest/manifest-list-{UUID}-0"),
            (f"dt=1/{PAIMON_DATA}",),
            (f"dt=1/bucket-postpone/data-{UUID}-0.zstd.parquet",),
        ],
    )
    def test_table_formats_without_a_marker_folder_are_refused(self, place: Place, names: tuple[str, ...]) -> None:
        place.write_files({name: pa.table({"x": [1]}) for name in names})
        before = place.state()
        operations: list[Callable[[Dataset], object]] = [
            lambda dataset: dataset.read(),
            lambda dataset: dataset.compact(),
            lambda dataset: dataset.delete("x = 1"),
            lambda dataset: dataset.write(pa.table({"x": [1]})),
            lambda dataset: dataset.write(pa.table({"x": [1]}), "overwrite"),
            lambda dataset: dataset.merge(pa.table({"x": [1]}), "x"),
        ]
        for operation in operations:
            with pytest.raises(NotPlainParquet, match=r"is a table in (DuckLake|Apache Paimon)"):
                operation(place.dataset())
        assert place.state() == before
        assert place.left_behind() == []

    @pytest.mark.parametrize(
        "name",
        [
            "ducklake-1.parquet",
            "ducklake-deletes.parquet",
            f"x-{DUCKLAKE_DATA}",
            "snapshot/snapshot-1.parquet",
            "schema/schema-0",
            "snapshot/snapshot-1",
            f"data-{UUID}-0.parquet",
            "bucket-0/data-0.parquet",
            f"bucket-0/part-{UUID}-0.parquet",
        ],
    )
    def test_names_that_only_resemble_a_table_format_are_data(self, place: Place, name: str) -> None:
        place.write_files({file: pa.table({"x": [1]}) for file in (name, "f0.parquet", "f1.parquet")})
        expected = place.dataset().read().num_rows
        place.dataset().compact()
        assert place.dataset().read().num_rows == expected

    @pytest.mark.parametrize("publish", ["auto", "rename"])
    def test_symlinked_file_is_part_of_the_dataset(self, local: Place, tmp_path: Any, publish: Any) -> None:
        small_files(local, 3)
        pq.write_table(pa.table({"x": [99]}), tmp_path / "elsewhere.parquet")
        os.symlink(tmp_path / "elsewhere.parquet", f"{local.root}/linked.parquet")
        expected = sorted(local.dataset().read()["x"].to_pylist())
        Dataset(local.root, engine="pyarrow", publish=publish).compact()
        assert len(local.files()) == 1
        assert sorted(local.dataset().read()["x"].to_pylist()) == expected
        assert (tmp_path / "elsewhere.parquet").exists()
        assert local.left_behind() == []

    @pytest.mark.parametrize("publish", ["auto", "rename"])
    def test_relative_symlink_is_read_and_retired(self, local: Place, tmp_path: Any, publish: Any) -> None:
        """Once it is moved to the workspace, the link points elsewhere."""
        small_files(local, 3, "day=1/")
        pq.write_table(pa.table({"x": [99]}), tmp_path / "elsewhere.parquet")
        os.symlink("../../../elsewhere.parquet", f"{local.root}/day=1/linked.parquet")
        Dataset(local.root, engine="pyarrow", publish=publish).compact()
        assert len(local.files()) == 1
        assert values(local) == [0, 1, 2, 99]
        assert (tmp_path / "elsewhere.parquet").exists()
        assert local.left_behind() == []

    @pytest.mark.parametrize("publish", ["auto", "rename"])
    def test_relative_symlink_survives_a_rollback(self, local: Place, tmp_path: Any, publish: Any) -> None:
        small_files(local, 3)
        pq.write_table(pa.table({"x": [99]}), tmp_path / "elsewhere.parquet")
        os.symlink("../../elsewhere.parquet", f"{local.root}/a.parquet")
        dataset = Dataset(local.root, engine="pyarrow", publish=publish)
        base = type(dataset._store)

        def sync(self: Any, paths: Any) -> None:
            paths = list(paths)
            if paths == [local.root] and not os.path.lexists(f"{local.root}/a.parquet"):
                raise OSError("disk full")
            base.sync(self, paths)

        dataset._store.__class__ = type("Broken", (base,), {"sync": sync})
        with pytest.raises((CommitFailed, CommitStateUnknown)):
            dataset.compact()
        dataset._store.__class__ = base
        assert values(local) == [0, 1, 2, 99]

    def test_relative_symlink_whose_target_is_replaced_is_a_conflict(
        self, local: Place, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small_files(local, 3)
        pq.write_table(pa.table({"x": [99]}), tmp_path / "elsewhere.parquet")
        os.symlink("../../elsewhere.parquet", f"{local.root}/linked.parquet")
        dataset = Dataset(local.root, engine="pyarrow")
        run = dataset._context.engine.__class__.rewrite

        def late(self: Any, *args: Any, **options: Any) -> Any:
            found = run(self, *args, **options)
            pq.write_table(pa.table({"x": [100]}), tmp_path / "elsewhere.parquet")
            return found

        monkeypatch.setattr(dataset._context.engine.__class__, "rewrite", late)
        with pytest.raises(CommitConflict, match=r"linked\.parquet"):
            dataset.compact()
        assert values(local) == [0, 1, 2, 100]

    @pytest.mark.parametrize("name", ["n" * 244, "n" * 246, "n" * 250, "é" * 125, "n" * 255])
    @pytest.mark.parametrize("workspace", [None, "workspaces"])
    def test_dataset_name_may_have_the_maximum_length(
        self, tmp_path: Any, name: str, workspace: str | None
    ) -> None:
        location = None if workspace is None else str(tmp_path / workspace)
        dataset = Dataset(str(tmp_path / name), engine="pyarrow", workspace=location)
        for n in range(3):
            dataset.write(pa.table({"x": [n]}))
        dataset.compact()
        assert sorted(dataset.read()["x"].to_pylist()) == [0, 1, 2]
        beside = [found for found in os.listdir(tmp_path) if found not in (workspace, name)]
        assert len(beside) == (workspace is None)
        assert all(found.endswith(".parketto") for found in beside)

    @pytest.mark.parametrize("kind", ["tmpfs", "bind"])
    @pytest.mark.parametrize("publish", ["auto", "rename"])
    def test_mount_inside_of_a_dataset_is_named_in_the_error(
        self, local: Place, tmp_path: Any, mounts: Mounts, kind: str, publish: Any
    ) -> None:
        small_files(local, 2, "day=1/")
        os.makedirs(mounted := f"{local.root}/day=2")
        mounts(kind, mounted)
        small_files(local, 3, "day=2/")
        before = local.state()
        dataset = Dataset(local.root, engine="pyarrow", publish=publish)
        operations: list[Callable[[], object]] = [
            dataset.compact,
            lambda: dataset.delete("x = 2"),
            lambda: dataset.write(pa.table({"x": [9], "day": [2]})),
        ]
        for operation in operations:
            with pytest.raises(CommitFailed, match=r"day=2' is on another mount, '.*day=2'.*nothing was changed"):
                operation()
        assert local.state() == before
        assert local.left_behind() == []
        # Operations that do not concern the mount work, and so does the mount as a dataset of its own.
        dataset.compact(partition_filter="day=1")
        Dataset(mounted, engine="pyarrow", publish=publish).compact()
        assert len(local.files()) == 2
        assert values(local) == [0, 0, 1, 1, 2]

    def test_dangling_links_and_pipes_are_named(self, local: Place) -> None:
        small_files(local)
        os.symlink(f"{local.root}/nowhere", f"{local.root}/gone.parquet")
        with pytest.raises(UnreadableFile, match=r"gone\.parquet.*does not exist"):
            local.dataset().compact()
        os.unlink(f"{local.root}/gone.parquet")
        os.mkfifo(f"{local.root}/pipe.parquet")
        with pytest.raises(UnreadableFile, match=r"pipe\.parquet.*not a regular file"):
            local.dataset().compact()

    def test_reader_waits_for_a_commit_in_progress(self, local: Place) -> None:
        """In the middle of single renames a listing would show old and new files, so it waits."""
        small_files(local, 3)
        dataset = Dataset(local.root, publish="rename")
        seen: list[list[int]] = []
        base = type(dataset._store)

        def move(self: Any, source: str, target: str) -> None:
            base.move(self, source, target)
            if "/new/" in source:
                reader = Dataset(local.root)
                assert reader._context.workspace.exists()
                assert reader._context.workspace.store.try_lock(f"{reader._context.workspace.path}/lock") is None
                seen.append([])

        dataset._store.__class__ = type("Watched", (base,), {"move": move})
        dataset.compact()
        assert seen

    def test_folder_swapped_during_a_listing_is_listed_again(
        self, local: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small_files(local)
        scandir, swapped = os.scandir, []

        def late(path: Any) -> Any:
            entries = scandir(path)
            if path == local.root and not swapped:
                swapped.append(path)
                os.rename(path, f"{path}-old")
                small_files(local, 2)
            return entries

        monkeypatch.setattr("parketto.storage.local.os.scandir", late)
        found = [entry.path for entry in LocalStore(local.fs).list_files(local.root)]
        assert swapped
        assert len(found) == 2

    def test_commit_that_begins_and_ends_during_a_listing(self, local: Place) -> None:
        small_files(local, 3, "p=1/")
        small_files(local, 3, "p=2/")
        reader = local.dataset()
        base, meanwhile = type(reader._store), []

        def list_files(self: Any, root: str, *enter: Any) -> Any:
            found = list(base.list_files(self, root, *enter))
            if not meanwhile:
                meanwhile.append(True)
                time.sleep(0.02)
                Dataset(local.root).compact()
                return found[:1]  # what a listing may see of a dataset that changes at the same time
            return found

        reader._store.__class__ = type("Slow", (base,), {"list_files": list_files})
        assert sorted(reader.read().column("x").to_pylist()) == [0, 0, 1, 1, 2, 2]

    @pytest.mark.parametrize("name", ["gl[1]", "a*b", "what?", "a::b", "100% 'sure'; \"x\"", "ünï", "~x", "a#b"])
    def test_paths_with_any_characters(self, place: Place, name: str) -> None:
        odd = Place(f"{place.root}/{name}", place.fs)
        small_files(odd)
        dataset = Dataset(odd.root, filesystem=place.fs)
        dataset.compact()
        dataset.write(pa.table({"x": [9]}))
        dataset.optimize(["x"])
        assert values(odd) == [0, 1, 2, 3, 9]
        assert odd.left_behind() == []

    def test_local_path_with_colons_without_a_filesystem(self, local: Place) -> None:
        dataset = Dataset(f"{local.root}::x")
        dataset.write(pa.table({"x": [1]}))
        assert dataset.read().num_rows == 1

    def test_partition_values_that_only_resemble_numbers(self, local: Place) -> None:
        small_files(local, 2, "n=--5/")
        small_files(local, 2, "n=5/")
        assert local.dataset().compact(partition_filter={"n": 5})["before_file_count"] == 2


class TestValues:
    def test_timestamps_that_arrow_would_change_are_refused(self, place: Place, engine: Engine) -> None:
        far = pa.array([dt.datetime(9999, 12, 31), None], pa.timestamp("us"))  # noqa: DTZ001
        place.write_files(
            {f"f{n}.parquet": pa.table({"at": far}) for n in range(2)},
            use_deprecated_int96_timestamps=True,
            store_schema=False,
        )
        before = place.state()
        with pytest.raises(UnreadableFile, match="INT96 timestamps outside of the years 1677 to 2262"):
            place.dataset(engine=engine).compact()
        assert place.state() == before

    def test_pages_with_a_wrong_checksum_are_refused(self, place: Place, engine: Engine) -> None:
        small_files(place, 2)
        sink = pa.BufferOutputStream()
        table = pa.table({"x": pa.array(range(1000, 2000), pa.int64())})
        pq.write_table(table, sink, compression="none", use_dictionary=False, write_page_checksum=True)
        rotten = bytearray(sink.getvalue().to_pybytes())
        rotten[2000] ^= 0xFF
        place.fs.pipe_file(f"{place.root}/rotten.parquet", bytes(rotten))
        with pytest.raises(UnreadableFile, match=r"rotten\.parquet.*checksum"):
            place.dataset(engine=engine).compact()

    @pytest.mark.parametrize("index", [pa.int8(), pa.uint8(), pa.int16()])
    @pytest.mark.parametrize("operation", ["compact", "optimize"])
    def test_small_dictionary_indices_stay_readable(
        self, place: Place, engine: Engine, index: pa.DataType, operation: str
    ) -> None:
        """Files of few categories each, but many in total: every row group must still fit the index type."""
        kind = pa.dictionary(index, pa.string())
        for n in range(5):
            words = pa.array([f"w{n}-{i % 100}" for i in range(400)]).dictionary_encode().cast(kind)
            place.write_files({f"f{n}.parquet": pa.table({"word": words, "n": np.arange(400)})})
        before = place.rows()
        dataset = place.dataset(engine=engine)
        dataset.compact() if operation == "compact" else dataset.optimize(["n", "word"])
        assert place.rows() == before
        assert oracle.schemas(place.root, place.fs)[0].field("word").type == kind

    def test_dictionaries_of_many_files_are_unified(self, place: Place, engine: Engine) -> None:
        """Every file has its own dictionary; all of them together have few categories."""
        rng = np.random.default_rng(4)
        names = pa.array([f"category number {n} with a longer name" for n in range(20)])
        for n in range(30):
            chosen = pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, 20, 2000), pa.int32()), names)
            place.write_files({f"f{n:02d}.parquet": pa.table({"category": chosen})})
        for run in (lambda dataset: dataset.compact(), lambda dataset: dataset.optimize(["category"])):
            stats = run(place.dataset(engine=engine))
            assert stats["after_total_bytes"] < stats["before_total_bytes"]

    def test_dictionaries_inside_of_lists_and_structs(self, place: Place, engine: Engine) -> None:
        kind = pa.dictionary(pa.int32(), pa.string())
        words = pa.array(["a", "b", "a", "c"]).dictionary_encode()
        nested = pa.StructArray.from_arrays([words], fields=[pa.field("w", kind)])
        listed = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), words)
        place.write_files({f"f{n}.parquet": pa.table({"x": range(4), "s": nested, "l": listed}) for n in range(2)})
        before, schema = place.rows(), oracle.schemas(place.root, place.fs)[0]
        dataset = place.dataset(engine=engine)
        dataset.compact()
        dataset.optimize(["x"])
        assert place.rows() == before
        assert oracle.schemas(place.root, place.fs)[0].equals(schema, check_metadata=True)

    def test_dictionaries_do_not_inflate_files(self, place: Place, engine: Engine) -> None:
        words = pa.array([f"{n:06d}" * 12 for n in range(40_000)]).dictionary_encode()
        for n in range(3):
            place.write_files({f"f{n}.parquet": pa.table({"word": words.take(pa.array(np.arange(40_000)))})})
        stats = place.dataset(engine=engine).compact()
        assert stats["after_total_bytes"] < 1.2 * stats["before_total_bytes"]
        (path,) = oracle.data_files(place.root, place.fs)
        assert pq.read_metadata(io.BytesIO(place.fs.cat_file(path))).num_row_groups < 4

    def test_logical_types_of_parquet_survive(self, place: Place, engine: Engine) -> None:
        table = pa.table(
            {
                "id": pa.array([uuid.uuid4().bytes], pa.binary(16)).cast(pa.uuid()),
                "doc": pa.array(['{"a": 1}'], pa.json_()),
                "at": pa.array([1], pa.time64("us")),
            }
        )
        place.write_files(
            {f"f{n}.parquet": table for n in range(2)}, store_schema=False, write_time_adjusted_to_utc=True
        )
        before = place.dataset().files()[0].traits.leaves
        place.dataset(engine=engine).compact()
        assert place.dataset().files()[0].traits.leaves == before
        assert [leaf.split()[0] for leaf in before] == ["UUID", "JSON", "Time"]

    def test_redundant_logical_types_are_equal_to_none(self) -> None:
        """Some writers annotate plain integers; Arrow does not, and both mean the same."""
        assert _logical_type('{"Type": "Int", "bitWidth": 32, "isSigned": true}') == _logical_type(
            '{"Type": "None"}'
        )
        assert _logical_type('{"Type": "Int", "bitWidth": 8, "isSigned": true}') != _logical_type(
            '{"Type": "None"}'
        )

    def test_files_that_differ_in_the_metadata_of_a_field_are_kept_apart(
        self, place: Place, engine: Engine
    ) -> None:
        for unit in ("metres", "feet"):
            schema = pa.schema([pa.field("x", pa.int64(), metadata={"unit": unit})])
            place.write_files({f"{unit}{n}.parquet": pa.table({"x": [n]}, schema=schema) for n in range(2)})
        place.dataset(engine=engine).compact()
        units = [schema.field("x").metadata[b"unit"] for schema in oracle.schemas(place.root, place.fs)]
        assert sorted(units) == [b"feet", b"metres"]

    def test_files_with_and_without_an_arrow_schema(self, place: Place, engine: Engine) -> None:
        place.write_files({"a.parquet": pa.table({"x": [1]})}, store_schema=False)
        place.write_files({"b.parquet": pa.table({"x": [2]}).replace_schema_metadata({"k": "v"})})
        place.dataset(engine=engine).compact()
        assert values(place) == [1, 2]

    def test_bounds_of_every_kind_can_be_read(self, place: Place) -> None:
        table = pa.table(
            {
                "ns": pa.array([1, 2**62], pa.timestamp("ns")),
                "far": pa.array([-(2**60), 2**60], pa.timestamp("us")),
                "day": pa.array([-(2**31), 2**31 - 1], pa.date32()),
                "time": pa.array([1, 86_399_999_999_999], pa.time64("ns")),
                "big": pa.array([0, 2**64 - 1], pa.uint64()),
                "raw": pa.array([b"\xff", b"\x00"], pa.binary()),
                "text": pa.array(["z", "ä"]),
                "null": pa.array([None, None], pa.int32()),
            }
        )
        place.write_files({"f.parquet": table})
        (file,) = place.dataset().files()
        assert file.column_stats("ns")[:2] == (1, 2**62)
        assert file.column_stats("far")[:2] == (-(2**60), 2**60)
        assert file.column_stats("big")[:2] == (0, 2**64 - 1)
        assert file.column_stats("raw")[:2] == (b"\x00", b"\xff")
        assert file.column_stats("text")[:2] == ("z", "ä")
        assert file.column_stats("null") == (None, None, 2)
        assert file.column_stats("nope") == (None, None, None)
        place.dataset().optimize(["ns", "far", "day", "time", "big", "raw", "text", "null"])


class TestIdempotence:
    @pytest.mark.parametrize(
        "column",
        [
            pa.nulls(3),
            pa.array([float("nan")] * 3),
            pa.array(["x" * 5000, "y" * 5000, "z" * 5000]),
            pa.array([None, None, None], pa.int64()),
        ],
        ids=["nulls", "nan", "long strings", "only NULL"],
    )
    def test_columns_without_bounds_are_sorted_once(self, place: Place, engine: Engine, column: pa.Array) -> None:
        place.write_files({f"f{n}.parquet": pa.table({"x": column}) for n in range(2)})
        dataset = place.dataset(engine=engine)
        assert dataset.optimize(["x"], target_rows_per_file=4)["compacted_file_count"] == 2
        assert dataset.optimize(["x"], target_rows_per_file=4)["compacted_file_count"] == 0

    def test_size_and_row_targets_with_rows_of_uneven_width(self, place: Place, engine: Engine) -> None:
        rng = np.random.default_rng(2)
        text = [rng.bytes(10 if n < 9000 else 1200).hex() for n in range(12_000)]
        place.write_files({"f.parquet": pa.table({"n": range(12_000), "text": text})})
        dataset = place.dataset(engine=engine)
        dataset.optimize(["n"], target_mb_per_file=0.5, target_rows_per_file=4000)
        assert (
            dataset.optimize(["n"], target_mb_per_file=0.5, target_rows_per_file=4000)["compacted_file_count"] == 0
        )

    def test_planned_and_real_number_of_files_agree_when_a_file_is_split(
        self, place: Place, engine: Engine
    ) -> None:
        place.write_files({"f.parquet": pa.table({"x": range(7)})})
        planned = place.dataset(engine=engine).compact(target_rows_per_file=2, dry_run=True)
        done = place.dataset(engine=engine).compact(target_rows_per_file=2)
        assert planned["after_file_count"] == done["after_file_count"] == 4


class TestAccess:
    def test_rewritten_files_keep_private_permissions(self, local: Place) -> None:
        small_files(local)
        for name in local.files():
            os.chmod(f"{local.root}/{name}", 0o600)
        os.chmod(local.root, 0o700)
        dataset = local.dataset()
        rewrite, modes = dataset.engine.rewrite, []

        def looking(*arguments: Any) -> Any:
            modes.append(stat.S_IMODE(os.stat(dataset._context.workspace.path).st_mode))
            return rewrite(*arguments)

        dataset.engine.rewrite = looking  # type: ignore[method-assign]
        dataset.compact()
        assert modes == [0o700]
        (name,) = local.files()
        assert stat.S_IMODE(os.stat(f"{local.root}/{name}").st_mode) == 0o600

    def test_overwrite_keeps_private_permissions(self, local: Place) -> None:
        small_files(local, 2, "day=1/")
        for name in local.files():
            os.chmod(f"{local.root}/{name}", 0o600)
        local.dataset().write(pa.table({"x": [1]}), "overwrite")
        (name,) = local.files()
        assert stat.S_IMODE(os.stat(f"{local.root}/{name}").st_mode) == 0o600

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_rewritten_files_keep_their_owner(self, local: Place) -> None:
        small_files(local)
        for name in local.files():
            os.chown(f"{local.root}/{name}", 1234, 2345)
        local.dataset().compact()
        (name,) = local.files()
        found = os.stat(f"{local.root}/{name}")
        assert (found.st_uid, found.st_gid) == (1234, 2345)

    def test_errors_say_that_nothing_changed(self, local: Place) -> None:
        small_files(local)
        dataset = local.dataset()

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        dataset.engine.rewrite = full  # type: ignore[method-assign]
        with pytest.raises(OSError, match="No space left") as caught:
            dataset.compact()
        assert "the dataset is unchanged" in caught.value.__notes__[0]

    @pytest.mark.parametrize("rows", [1.7, 0.5])
    def test_row_limits_must_be_whole_numbers(self, place: Place, rows: Any) -> None:
        with pytest.raises(ValueError, match="whole number"):
            place.dataset().write(pa.table({"x": [1]}), max_rows_per_file=rows)

    def test_sort_by_a_duplicate_column_name_is_refused(self, place: Place) -> None:
        place.write_files({"f.parquet": pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])})
        with pytest.raises(ValueError, match="duplicate column names"):
            place.dataset().optimize(["x"])
