"""A directory is swapped with all its folders, or not at all; files of other programs are carried over."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from parketto import CommitConflict, CommitStateUnknown, Dataset
from parketto.commit import twin
from parketto.commit.swap import Swap, build_twin
from parketto.commit.transaction import Transaction
from parketto.runtime.staging import StagedFile
from parketto.storage import exchange
from parketto.storage.exchange import exchange_problem
from parketto.storage.local import LocalStore


@pytest.fixture
def tree(local: Place) -> Place:
    """Three partitions of two files each, one with subfolders, and files of other programs."""
    local.write_files(
        {
            f"{folder}/{name}.parquet": pa.table({"id": [number, number + 1]})
            for folder, name, number in (
                ("p=1", "a", 0),
                ("p=1", "b", 10),
                ("p=2", "a", 20),
                ("p=2", "b", 30),
                ("p=3/q=1", "a", 40),
                ("p=3/q=2", "a", 50),
            )
        }
    )
    if exchange_problem(local.root) is not None:
        pytest.skip("directories cannot be swapped here")
    return local


def compact(place: Place) -> bool:
    """Change two partitions; whether the dataset's folder was swapped."""
    before, inode = place.rows(), os.stat(place.root).st_ino
    place.dataset().compact()
    assert place.rows() == before
    assert {"q=1", "q=2"} <= {*os.listdir(f"{place.root}/p=3")}
    assert len(place.files()) == 4
    assert place.left_behind() == []
    return os.stat(place.root).st_ino != inode


def before_swap(dataset: Dataset, action: Callable[[], object]) -> None:
    base = type(dataset._store)

    def swap(self: Any, *args: Any) -> None:
        action()
        base.swap(self, *args)

    dataset._store.__class__ = type("Watched", (base,), {"swap": swap})


class TestCarriedOver:
    def test_files_of_every_kind_keep_their_inodes(self, tree: Place) -> None:
        root = Path(tree.root)
        (root / "_SUCCESS").touch()
        (root / "p=1/.hidden.crc").write_bytes(b"mine")
        (root / "p=3/notes.txt").write_text("mine")
        (root / "p=3/broken").symlink_to("../nowhere")
        (root / "p=3/link.txt").symlink_to("notes.txt")
        os.mkfifo(root / "p=2/pipe")
        kept = {path: path.lstat().st_ino for path in root.rglob("*") if not path.is_dir()}
        kept = {path: inode for path, inode in kept.items() if path.suffix != ".parquet" or "p=3" in str(path)}
        assert compact(tree)
        assert {path: path.lstat().st_ino for path in kept} == kept
        assert os.readlink(root / "p=3/broken") == "../nowhere"

    def test_symlinked_folder_stays_a_symlink(self, tree: Place, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        pq.write_table(pa.table({"id": [1]}), tmp_path / "elsewhere/x.parquet")
        os.symlink(tmp_path / "elsewhere", f"{tree.root}/p=9")
        tree.dataset().compact()
        assert os.readlink(f"{tree.root}/p=9") == str(tmp_path / "elsewhere")
        assert os.listdir(tmp_path / "elsewhere") == ["x.parquet"]

    def test_folders_keep_permissions_owners_and_attributes(self, tree: Place) -> None:
        os.chmod(f"{tree.root}/p=3", 0o2750)
        os.chmod(f"{tree.root}/p=3/q=1", 0o700)
        marked = True
        try:
            os.setxattr(f"{tree.root}/p=3/q=2", "user.note", b"mine")
        except OSError:
            marked = False
        if os.geteuid() == 0:
            os.chown(f"{tree.root}/p=2", 1234, 2345)
        folders = [folder for folder, _, _ in os.walk(tree.root)]

        def access() -> list[tuple[int, int, int]]:
            found = [os.stat(folder) for folder in folders]
            return [(status.st_mode, status.st_uid, status.st_gid) for status in found]

        before = access()
        assert compact(tree)
        assert access() == before
        if marked:
            assert os.getxattr(f"{tree.root}/p=3/q=2", "user.note") == b"mine"

    def test_empty_folders_are_kept_and_emptied_ones_removed(self, local: Place) -> None:
        local.write_files(
            {f"p={p}/q={q}/a.parquet": pa.table({"id": [10 * p + q]}) for p in (1, 2) for q in (1, 2, 3)}
        )
        if exchange_problem(local.root) is not None:
            pytest.skip("directories cannot be swapped here")
        os.makedirs(f"{local.root}/empty/too")
        Path(local.root, "p=2/q=1/notes.txt").touch()
        local.dataset().delete("id < 23")
        folders = sorted(os.path.relpath(folder, local.root) for folder, _, _ in os.walk(local.root))
        assert folders == [".", "empty", "empty/too", "p=2", "p=2/q=1", "p=2/q=3"]

    @pytest.mark.parametrize("whole", [True, False], ids=["new dataset", "new partition"])
    def test_new_folders_inherit_from_their_parent(self, local: Place, whole: bool) -> None:
        parent = os.path.dirname(local.root) if whole else local.root
        os.makedirs(parent)
        os.chmod(parent, 0o2775)
        if os.geteuid() == 0:
            os.chown(parent, -1, 2345)
        rows = pa.table({"id": range(4), "p": [1] * 4})
        local.dataset().write(rows, partition_by="p", max_rows_per_file=1)
        made = os.stat(f"{local.root}/p=1")
        mask = os.umask(0)
        os.umask(mask)
        assert made.st_mode & stat.S_ISGID
        assert stat.S_IMODE(made.st_mode) & 0o777 == 0o777 & ~mask
        assert made.st_gid == os.stat(parent).st_gid
        assert len(local.files()) == 4


class TestOtherPrograms:
    def test_changes_anywhere_in_the_tree_just_before_the_swap_are_kept(self, tree: Place) -> None:
        root = tree.root
        tree.write_files(
            {"p=3/q=3/going.parquet": pa.table({"id": [60]}), "p=4/x.parquet": pa.table({"id": [70]})}
        )

        def other_programs() -> None:
            tree.write_files({"p=3/late.parquet": pa.table({"id": [100]})})
            tree.write_files({"p=8/q=8/late.parquet": pa.table({"id": [101]})})
            os.makedirs(f"{root}/_temporary/0")
            os.rename(f"{root}/p=3/q=1/a.parquet", f"{root}/p=3/q=2/moved.parquet")
            os.unlink(f"{root}/p=3/q=3/going.parquet")
            os.rmdir(f"{root}/p=3/q=3")
            os.rename(f"{root}/p=4", f"{root}/p=5")

        dataset = tree.dataset()
        before_swap(dataset, other_programs)
        dataset.compact()
        assert os.path.isdir(f"{root}/_temporary/0")
        assert not os.path.exists(f"{root}/p=3/q=3")
        assert not os.path.exists(f"{root}/p=4")
        found = {name: oracle.read_file(f"{root}/{name}").column("id").to_pylist() for name in tree.files()}
        assert {name: ids for name, ids in found.items() if not name.startswith(("p=1/", "p=2/"))} == {
            "p=3/late.parquet": [100],
            "p=8/q=8/late.parquet": [101],
            "p=3/q=2/a.parquet": [50, 51],
            "p=3/q=2/moved.parquet": [40, 41],
            "p=5/x.parquet": [70],
        }
        before = [number + more for number in range(0, 60, 10) for more in (0, 1)]
        assert sorted(row for ids in found.values() for row in ids) == [*before, 70, 100, 101]
        assert tree.left_behind() == []

    def test_continuous_writes_into_the_old_tree(self, tree: Place) -> None:
        """Through a folder that was opened before the swap. The commit stays unfinished until the writes stop."""
        found = os.open(f"{tree.root}/p=3", os.O_RDONLY)
        dataset, numbers = tree.dataset(), iter(range(1000))
        base = type(dataset._store)

        def write_and_try(self: Any, paths: Any) -> None:
            name = f"late{next(numbers)}.parquet"
            pq.write_table(pa.table({"id": [1000]}), f"{tree.root}-tmp")
            os.rename(f"{tree.root}-tmp", name, dst_dir_fd=found)
            base.remove_empty_dirs(self, paths)

        dataset._store.__class__ = type("Busy", (base,), {"remove_empty_dirs": write_and_try})
        with pytest.raises(CommitStateUnknown):
            dataset.compact()
        os.close(found)
        written = next(numbers)
        tree.dataset().recover()
        names = [name for name in tree.files() if "late" in name]
        assert len(names) == written > 100
        assert len(tree.files()) - written in (4, 6)
        assert tree.left_behind() == []

    def test_replaced_input_is_a_conflict(self, tree: Place) -> None:
        """The replacement and all other rows are kept."""

        def replace() -> None:
            tree.write_files({"new/x.parquet": pa.table({"id": [99]})})
            os.rename(f"{tree.root}/new/x.parquet", f"{tree.root}/p=2/a.parquet")
            os.rmdir(f"{tree.root}/new")

        dataset = tree.dataset()
        before_swap(dataset, replace)
        with pytest.raises(CommitConflict, match=r"p=2/a\.parquet"):
            dataset.compact()
        assert oracle.read_file(f"{tree.root}/p=2/a.parquet").column("id").to_pylist() == [99]
        assert len(tree.files()) == 6
        assert tree.left_behind() == []

    def test_file_with_the_name_of_a_published_file_is_kept_under_another_name(self, tree: Place) -> None:
        rows = pa.table({"id": [7, 8], "p": [1, 2]})
        dataset = tree.dataset()
        taken: list[str] = []

        def same_name() -> None:
            (path,) = Path(os.path.dirname(tree.root)).glob(".events.parketto/tx-*/twin/tree/p=1/part*.parquet")
            taken.append(path.name)
            tree.write_files({f"p=1/{path.name}": pa.table({"id": [99]})})

        before_swap(dataset, same_name)
        dataset.write(rows, partition_by="p", naming="sequential")
        ours = f"p=1/{taken[0]}"
        theirs = ours.replace(".parquet", "-1.parquet")
        assert oracle.read_file(f"{tree.root}/{ours}").column("id").to_pylist() == [7]
        assert oracle.read_file(f"{tree.root}/{theirs}").column("id").to_pylist() == [99]


class TestNotSwapped:
    """Files are moved one by one instead, with the same result."""

    @pytest.mark.parametrize("limit", ["MAX_LINKS", "MAX_FOLDERS"])
    def test_large_trees(self, tree: Place, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(twin, limit, 5)
        assert not compact(tree)

    def test_working_directory_of_a_process(self, tree: Place) -> None:
        code = "import sys; print('here', flush=True); sys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=f"{tree.root}/p=3/q=2",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with process:
            assert process.stdout is not None
            process.stdout.readline()
            assert not compact(tree)
        assert compact_again(tree)

    def test_mount_point_in_the_tree(self, tree: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also a bind mount of the same filesystem, whose device number is the same."""
        os.makedirs(f"{tree.root}/with blank")
        mounts = tmp_path / "mounts"
        point = f"{tree.root}/with\\040blank"
        mounts.write_text(f"1 2 3:4 / / rw - ext4 /dev/x rw\n5 1 3:4 /x {point} rw - ext4 /dev/x rw\n")
        monkeypatch.setattr(exchange, "_MOUNTS", str(mounts))
        assert "mount point" in str(exchange_problem(tree.root))
        assert exchange_problem(f"{tree.root}/p=1") is None
        assert not compact(tree)

    def test_partition_used_as_a_dataset_of_its_own(self, tree: Place) -> None:
        inner = Dataset(f"{tree.root}/p=3", engine="pyarrow")

        def meanwhile(_: Transaction) -> None:
            before, inode = tree.rows(), os.stat(tree.root).st_ino
            tree.dataset().compact()
            assert tree.rows() == before
            assert os.stat(tree.root).st_ino == inode
            assert os.path.isdir(f"{tree.root}/.p=3.parketto")

        inner._context.run(inner._context.request("test"), meanwhile)
        inner.compact()
        assert not os.path.exists(f"{tree.root}/.p=3.parketto")

    def test_files_in_a_symlinked_folder(self, tree: Place, tmp_path: Path) -> None:
        os.makedirs(tmp_path / "elsewhere")
        for name in "ab":
            pq.write_table(pa.table({"id": [1]}), tmp_path / f"elsewhere/{name}.parquet")
        os.symlink(tmp_path / "elsewhere", f"{tree.root}/p=9")
        inode = os.stat(tree.root).st_ino
        tree.dataset().compact()
        assert os.stat(tree.root).st_ino == inode
        assert len(os.listdir(tmp_path / "elsewhere")) == 1
        assert os.path.islink(f"{tree.root}/p=9")

    def test_a_dataset_with_its_workspace_inside(self, tree: Place, tmp_path: Path) -> None:
        store, work = LocalStore(tree.fs), f"{tree.root}/.parketto"
        staged = tmp_path / "staged"
        staged.touch()
        publish = [StagedFile(str(staged), f"{tree.root}/p={number}/new.parquet") for number in (1, 2)]
        assert build_twin(store, tree.root, work, f"{work}/tx-1/twin", publish, []) is None
        assert not os.path.exists(work)

    def test_single_rename(self, tree: Place) -> None:
        store, work = LocalStore(tree.fs), f"{tree.root}-work"
        os.makedirs(work)
        retire = [store.stat(f"{tree.root}/p={number}/a.parquet") for number in (1, 2)]
        assert build_twin(store, tree.root, work, f"{work}/twin", [], retire[:1]) is None  # type: ignore[arg-type]
        assert build_twin(store, tree.root, work, f"{work}/twin", [], retire) is not None  # type: ignore[arg-type]


def compact_again(place: Place) -> bool:
    for number in (1, 2):
        place.write_files({f"p={number}/again.parquet": pa.table({"id": [900 + number]})})
    return compact(place)


class TestRecord:
    def swap(self, tree: Place) -> Swap:
        store, work = LocalStore(tree.fs), f"{tree.root}-work"
        os.makedirs(f"{work}/tx")
        retire = [store.stat(f"{tree.root}/p={number}/a.parquet") for number in (1, 2)]
        found = build_twin(store, tree.root, work, f"{work}/tx/twin", [], retire)  # type: ignore[arg-type]
        assert found is not None
        return found

    def test_json_round_trip_with_any_name(self, tree: Place) -> None:
        Path(os.fsdecode(os.fsencode(tree.root) + b"/p=3/\xff\xfe")).touch()
        swap = self.swap(tree)
        swap.check()
        assert Swap(**json.loads(json.dumps(asdict(swap)))) == swap
        assert (swap.directory, swap.twin) == ("", "tx/twin/tree")
        assert swap.kept.keys() == {"", "p=1", "p=2", "p=3", "p=3/q=1", "p=3/q=2"}
        assert swap.kept["p=1"].keys() == {"b.parquet"}

    @pytest.mark.parametrize("bad", ["/etc", "..", "a/../b", "a//b", "a/", ".", "./a", "a\0b"])
    @pytest.mark.parametrize("where", ["directory", "twin", "folder", "name"])
    def test_paths_outside_of_the_dataset_are_refused(self, bad: str, where: str) -> None:
        fields: dict[str, Any] = {"directory": "p=1", "twin": "tx/twin/tree", "kept": {"q=1": {"x": "1:2:3"}}}
        Swap(identity="1", twin_identity="2", **fields).check()
        if where == "folder":
            fields["kept"] = {bad: {}}
        elif where == "name":
            fields["kept"] = {"q=1": {bad: "1:2:3"}}
        else:
            fields[where] = bad
        with pytest.raises(ValueError, match="is not"):
            Swap(identity="1", twin_identity="2", **fields).check()

    @pytest.mark.parametrize("name", ["", "q=2/x"])
    def test_invalid_names_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="is not"):
            Swap("", "tx/twin/tree", "1", "2", {"": {name: "1:2:3"}}).check()
