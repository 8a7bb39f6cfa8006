"""Exclusive creation of files: exactly one of many writers succeeds, and readers never see a partial file."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import Place
from parketto.storage.opening import open_store


def test_exactly_one_of_many_writers_creates_a_file(place: Place) -> None:
    store, folder = open_store(place.root, place.fs)
    store.make_dirs(folder)
    path = f"{folder}/1.json"
    assert store.creates_exclusively(folder)

    def make(number: int) -> bytes | None:
        content = b"%d" % number * 1000
        try:
            store.create(path, content)
        except FileExistsError:
            return None
        return content

    with ThreadPoolExecutor(8) as pool:
        (made,) = [content for content in pool.map(make, range(32)) if content is not None]
    assert store.read(path) == made
    assert store.list_names(folder) == ["1.json"]
    with pytest.raises(ValueError, match="must not be empty"):
        store.create(f"{folder}/2.json", b"")


def test_created_file_appears_complete_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, folder = open_store(tmp_path)
    synced: list[str] = []
    fsync = os.fsync

    def look(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    if Path("/proc/self/fd").exists():
        monkeypatch.setattr(os, "fsync", look)
    link = os.link

    def linked(temporary: str, path: str, **more: Any) -> None:
        assert not os.path.exists(path)
        assert Path(temporary).read_bytes() == b"content"
        link(temporary, path, **more)

    monkeypatch.setattr(os, "link", linked)
    store.create(f"{folder}/1.json", b"content")
    assert os.listdir(folder) == ["1.json"]
    if synced:
        assert synced[0].startswith(f"{folder}/1.json.")
        assert synced[1:] == [folder]


def test_dangling_symlink_counts_as_an_existing_file(tmp_path: Path) -> None:
    store, folder = open_store(tmp_path)
    os.symlink(tmp_path / "nowhere", tmp_path / "1.json")
    with pytest.raises(FileExistsError):
        store.create(f"{folder}/1.json", b"content")
    assert os.listdir(folder) == ["1.json"]


def test_creation_is_exclusive_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    store, folder = open_store(tmp_path)
    store.create(f"{folder}/1.json", b"first")
    with pytest.raises(FileExistsError):
        store.create(f"{folder}/1.json", b"second")
    assert (tmp_path / "1.json").read_bytes() == b"first"
    assert os.listdir(folder) == ["1.json"]


def test_creation_in_a_missing_folder_fails(tmp_path: Path) -> None:
    store, folder = open_store(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        store.create(f"{folder}/1.json", b"content")
