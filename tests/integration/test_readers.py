"""Plain readers see the old or the new files, and concurrent changes of other programs are kept."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from conftest import Place
from helpers import oracle
from parketto import Dataset
from parketto.commit import external_changes
from parketto.storage.exchange import exchange_problem
from parketto.storage.local import LocalStore

ROWS = 300


def make(place: Place, folder: str = "") -> None:
    place.write_files({f"{folder}f{n}.parquet": pa.table({"a": [n], "b": [ROWS - n]}) for n in range(ROWS)})
    place.fs.pipe_file(f"{place.root}/{folder}notes.txt", b"mine")


def supported(place: Place) -> bool:
    os.makedirs(place.root, exist_ok=True)
    return exchange_problem(place.root) is None


def count_rows(directory: str) -> int | None:
    """The rows that a plain reader finds; None if the files, or all names, are gone before it gets to them."""
    try:
        names = [name for name in os.listdir(directory) if name.endswith(".parquet")]
        # A folder that was opened before the swap may be empty by the time it is listed.
        return sum(pq.read_metadata(f"{directory}/{name}").num_rows for name in names) if names else None
    except FileNotFoundError:
        return None


def test_a_reader_sees_the_old_files_or_the_new_ones(local: Place) -> None:
    make(local)
    if not supported(local):
        pytest.skip("directories cannot be swapped here")
    seen: set[int | None] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(count_rows(local.root))

    reader = threading.Thread(target=read)
    reader.start()
    dataset = Dataset(local.root)
    dataset.compact(target_rows_per_file=40)
    for _ in range(6):
        dataset.optimize(["a"], target_rows_per_file=3)
        dataset.optimize(["b"], target_rows_per_file=7)
    stop.set()
    reader.join()
    assert seen - {None} == {ROWS}


def during_commit(dataset: Dataset, before: str, action: Callable[[], object]) -> None:
    """Run an action right before the first call of a method of the store."""
    base = type(dataset._store)
    original = getattr(base, before)
    done = False

    def call(self: Any, *args: Any) -> Any:
        nonlocal done
        if not done:
            done = True
            action()
        return original(self, *args)

    dataset._store.__class__ = type("Watched", (base,), {before: call})


@pytest.mark.parametrize("folder", ["", "day=1/"])
def test_changes_of_other_programs_just_before_the_swap_are_kept(local: Place, folder: str) -> None:
    make(local, folder)
    if not supported(local):
        pytest.skip("directories cannot be swapped here")
    local.write_files({f"{folder}good.parquet": pa.table({"a": range(5000), "b": range(5000)})})
    local.write_files({f"{folder}going.parquet": pa.table({"a": range(4900), "b": range(4900)})})
    directory = f"{local.root}/{folder}"
    dataset = Dataset(local.root)

    def other_program() -> None:
        pq.write_table(pa.table({"a": [77], "b": [77]}), f"{directory}late.parquet")
        pq.write_table(pa.table({"a": range(4444), "b": range(4444)}), f"{directory}.tmp")
        os.rename(f"{directory}.tmp", f"{directory}good.parquet")
        os.unlink(f"{directory}going.parquet")
        os.makedirs(f"{directory}_temporary/0")

    during_commit(dataset, "swap", other_program)
    dataset.compact(target_rows_per_file=5000)
    tables = {os.path.basename(path): oracle.read_file(path) for path in oracle.data_files(local.root)}
    assert tables["late.parquet"].column("a").to_pylist() == [77]
    assert tables["good.parquet"].num_rows == 4444
    assert "going.parquet" not in tables
    assert sum(table.num_rows for table in tables.values()) == ROWS + 1 + 4444
    assert os.path.isdir(f"{directory}_temporary/0")
    assert local.left_behind() == []


def test_file_written_to_the_old_directory_after_the_swap_is_kept(
    local: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that was resolved before the swap leads to the old directory: its new files must be carried over."""
    make(local)
    if not supported(local):
        pytest.skip("directories cannot be swapped here")
    found = os.open(local.root, os.O_RDONLY)
    original = external_changes._OldTree.apply_external_changes

    def late(tree: Any) -> None:
        original(tree)
        pq.write_table(pa.table({"a": [77], "b": [77]}), f"{local.root}-tmp")
        os.rename(f"{local.root}-tmp", "late.parquet", dst_dir_fd=found)

    monkeypatch.setattr(external_changes._OldTree, "apply_external_changes", late)
    Dataset(local.root).compact(target_rows_per_file=5000)
    os.close(found)
    assert oracle.read_file(f"{local.root}/late.parquet").column("a").to_pylist() == [77]
    assert local.left_behind() == []


@pytest.mark.parametrize("publish", ["auto", "rename"])
def test_files_written_under_a_temporary_name_and_renamed_are_kept(local: Place, publish: Any) -> None:
    """A common way to append. The rename may fail during a swap, and must succeed when it is repeated."""
    make(local)
    dataset = Dataset(local.root, publish=publish)
    stop = threading.Event()
    appended: list[int] = []
    failures: list[OSError] = []

    def append() -> None:
        for number in range(1000, 1400):
            if stop.is_set():
                return
            pq.write_table(pa.table({"a": [number], "b": [number]}), f"{local.root}/tmp_{number}")
            for attempt in range(2):
                try:
                    os.rename(f"{local.root}/tmp_{number}", f"{local.root}/stranger-{number}.parquet")
                    break
                except FileNotFoundError as error:
                    failures.append(error)
                    assert attempt == 0, "the second attempt finds the file"
                    time.sleep(0.2)
            appended.append(number)
            time.sleep(0.003)

    writer = threading.Thread(target=append)
    writer.start()
    for _ in range(8):
        dataset.optimize(["a"], target_rows_per_file=50)
        dataset.optimize(["b"], target_rows_per_file=60)
    stop.set()
    writer.join()
    assert publish == "auto" or failures == [], "publishing by single renames never disturbs other writers"
    found = sorted(v for p in oracle.data_files(local.root) for v in oracle.read_file(p).column("a").to_pylist())
    assert found == [*range(ROWS), *appended]


def test_the_directory_keeps_its_owner_and_permissions(local: Place) -> None:
    make(local)
    os.chmod(local.root, 0o2750)
    if os.geteuid() == 0:
        os.chown(local.root, 1234, 2345)
    before = os.stat(local.root)
    Dataset(local.root).compact()
    after = os.stat(local.root)
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_working_directory_of_a_process_is_not_swapped(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    make(local)
    monkeypatch.chdir(local.root)
    assert "working directory" in str(exchange_problem(local.root))
    Dataset(".").compact()
    assert len([name for name in os.listdir(".") if name.endswith(".parquet")]) == 1
    assert os.getcwd() == local.root


def test_swapping_can_be_turned_off(local: Place) -> None:
    make(local)
    before = os.stat(local.root).st_ino
    Dataset(local.root, publish="rename").compact()
    assert os.stat(local.root).st_ino == before
    assert len(local.files()) == 1
    with pytest.raises(ValueError, match="'auto', 'rename'"):
        Dataset(local.root, publish="copy")  # type: ignore[arg-type]


def test_a_filesystem_without_swaps_or_links_gets_single_renames(local: Place) -> None:
    make(local)
    rows = local.rows()
    for method in ("swap", "link"):
        dataset = Dataset(local.root)

        def refuse(*_: Any) -> None:
            raise OSError(22, "Invalid argument")

        dataset._store.__class__ = type("Plain", (type(dataset._store),), {method: refuse})
        dataset.optimize(["a"] if method == "swap" else ["b"])
        assert local.rows() == rows
        assert local.left_behind() == []


def test_file_renamed_during_a_listing_is_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listed file that cannot be found was probably renamed, so the folder is listed again."""
    (tmp_path / "tmp_1").touch()
    scandir, looks = os.scandir, []

    def renaming(path: str) -> Any:
        entries = list(scandir(path))
        if not looks:
            os.rename(tmp_path / "tmp_1", tmp_path / "stranger.parquet")
        looks.append(path)
        return contextlib.nullcontext(iter(entries))

    store = LocalStore(LocalFileSystem())
    monkeypatch.setattr(os, "scandir", renaming)
    assert list(store.tree(str(tmp_path))[""]) == ["stranger.parquet"]
    with pytest.raises(FileNotFoundError):
        store.tree(str(tmp_path / "nothing"))
