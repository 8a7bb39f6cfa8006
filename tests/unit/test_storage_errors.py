"""Rare errors of storage: other systems, other services, names that are taken, files that others leave."""

from __future__ import annotations

import errno
import getpass
import io
import logging
import os
import stat
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from parketto.commit import heartbeat
from parketto.commit.heartbeat import Heartbeat
from parketto.commit.recovery import author
from parketto.storage import birth, exchange, locks, mounts
from parketto.storage.exchange import exchange_problem, rename_to_free_name
from parketto.storage.local import LocalStore
from parketto.storage.mounts import mount_point, same_mount
from parketto.storage.opening import store_for
from parketto.storage.options import StorageOptions
from parketto.storage.ranged import RangedFile
from parketto.storage.store import Store, http_status
from parketto.storage.trust import distrust


@pytest.fixture
def without_renameat2(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems other than Linux, or with another C library."""
    monkeypatch.setattr(exchange, "_renameat2", lambda: None)


def test_names_that_are_taken_stay(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).write_text(name)
    with pytest.raises(FileExistsError):
        rename_to_free_name(str(tmp_path / "new"), str(tmp_path / "old"))
    assert (tmp_path / "old").read_text() == "old"
    with pytest.raises(FileNotFoundError):
        rename_to_free_name(str(tmp_path / "gone"), str(tmp_path / "free"))


def test_names_that_are_taken_stay_without_renameat2(tmp_path: Path, without_renameat2: None) -> None:
    test_names_that_are_taken_stay(tmp_path)
    rename_to_free_name(str(tmp_path / "new"), str(tmp_path / "free"))
    assert (tmp_path / "free").read_text() == "new"


def test_directories_are_not_swapped_without_renameat2(tmp_path: Path, without_renameat2: None) -> None:
    assert exchange_problem(str(tmp_path)) == "this system cannot swap directories"


def test_links_are_not_swapped(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert exchange_problem(str(tmp_path / "link")) == f"{str(tmp_path / 'link')!r} is a symbolic link"
    assert exchange_problem(str(tmp_path)) is None


def test_mount_points(tmp_path: Path) -> None:
    found = mount_point(str(tmp_path))
    assert str(tmp_path).startswith(found)
    assert found == "/" or not same_mount(found, os.path.dirname(found))


def test_mounts_are_compared_by_device_where_the_kernel_does_not_number_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_PATH")
    assert mounts._mount(str(tmp_path)) == (os.stat(tmp_path).st_dev, None)


def test_folders_have_an_identity_where_the_system_reports_no_birth_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(birth, "_statx", lambda: None)
    first = birth.birth(str(tmp_path))
    assert first
    assert birth.birth(str(tmp_path)) == first


@pytest.mark.parametrize("name", ["code", "status_code", "status"])
def test_errors_of_every_service_tell_their_status(name: str) -> None:
    error = OSError("refused")
    setattr(error, name, 412)
    assert http_status(error) == 412
    outer = OSError("wrapped")
    outer.__cause__ = error
    assert http_status(outer) == 412
    assert http_status(OSError("no status")) is None


def test_files_are_created_once_on_a_filesystem_that_reports_it_by_status() -> None:
    class Service(type(fsspec.filesystem("memory"))):  # type: ignore[misc]
        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
            error = OSError("refused")
            error.code = 412 if path.endswith("taken") else 500  # type: ignore[attr-defined]
            raise error

    store = Store(Service(skip_instance_cache=True))
    with pytest.raises(FileExistsError):
        store.create("/test-service/taken", b"x")
    with pytest.raises(OSError, match="refused"):
        store.create("/test-service/broken", b"x")
    assert store.list_dirs("/test-service/nowhere") == []


def test_ranged_files_are_files_to_other_libraries() -> None:
    content = bytes(range(256)) * 100
    for tail in (b"", content[-100:]):
        with io.BufferedReader(RangedFile(lambda start, end: content[start:end], len(content), tail)) as file:
            assert file.seekable()
            assert file.seek(-5, io.SEEK_END) == len(content) - 5
            assert file.read(3) == content[-5:-2]
            file.seek(7)
            assert file.read() == content[7:]


def test_file_that_has_the_name_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        locks.make_dirs(str(tmp_path / "file"))


def test_lease_that_a_crash_left_unreadable_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_POLL_SECONDS", 0.0)
    store = Store(fsspec.filesystem("memory"))
    store.write("/test-lease/lock", b'{"owner": "half')
    try:
        lease = locks._read_lease(store, "/test-lease/lock")
        assert lease is not None
        assert lease["expires"] < time.time()
    finally:
        store.remove_tree("/test-lease")


def test_errors_other_than_absence_are_raised(tmp_path: Path) -> None:
    """A path that cannot be followed is not the path of an absent file."""
    store = LocalStore(fsspec.filesystem("file"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for ask in (store.stat, store.identity, store.list_names):
        with pytest.raises(OSError) as caught:
            ask(str(tmp_path / "loop" / "x"))
        assert caught.value.errno == errno.ELOOP


def test_heartbeat_goes_on_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)
    store = store_for(fsspec.filesystem("memory"))
    write, failed = store.write, [OSError("no network")]

    def once(path: str, content: bytes) -> None:
        if failed:
            raise failed.pop()
        write(path, content)

    monkeypatch.setattr(store, "write", once)
    with caplog.at_level(logging.WARNING):
        beating = Heartbeat(store, "/test-beat/alive")
        deadline = time.monotonic() + 30
        while store.stat("/test-beat/alive") is None and time.monotonic() < deadline:
            time.sleep(0.01)
        beating.stop()
    assert store.read("/test-beat/alive") == b"alive\n"
    assert "could not touch /test-beat/alive: no network" in caplog.text
    store.remove_tree("/test-beat")


def test_author_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user is not in its password file."""

    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert author().user == str(os.getuid())


def test_folder_that_another_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    folder.chmod(0o775)
    (tmp_path / "data").mkdir(mode=stat.S_IRWXU)
    own = os.stat(folder)
    monkeypatch.setattr(os, "geteuid", lambda: own.st_uid or 1000)
    monkeypatch.setattr(os, "getegid", lambda: own.st_gid)
    assert distrust(str(folder), str(tmp_path / "data")) is None
    monkeypatch.setattr(os, "getegid", lambda: own.st_gid + 1)
    assert distrust(str(folder), str(tmp_path / "data")) == (
        f"group {own.st_gid} may write to {str(folder)!r}, but not to the dataset"
    )


def test_storage_options_serve_urls_of_their_protocol() -> None:
    from parketto.storage.opening import open_store

    store, path = open_store("memory://test-options/data", storage_options=StorageOptions("memory"))
    assert (type(store).__name__, path) == ("MemoryStore", "/test-options/data")
