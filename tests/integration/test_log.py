"""The log: records belong to one dataset, are limited in number, and cannot change files outside of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers.crash import DEATHS, mortal
from helpers.processes import in_another_process
from parketto import Dataset
from parketto.commit import log as logs
from parketto.commit.record import sealed
from parketto.errors import CommitStateUnknown, InvalidArgument, UntrustedWorkspace

OTHER_USER = 65534


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)})


def ids(path: str) -> list[int]:
    return sorted(Dataset(path, "pyarrow").read().column("id").to_pylist())


def interrupted(path: str, operation: Callable[[Dataset], object], publish: Any = "auto") -> None:
    """Run an operation, and kill it as soon as its record is in the log."""
    dataset = Dataset(path, "pyarrow", publish=publish, retries=0)
    create = dataset._context.workspace.log.create

    def deadly(number: int, record: Any) -> None:
        create(number, record)
        mortal(dataset, 1)

    dataset._context.workspace.log.create = deadly  # type: ignore[method-assign]
    with pytest.raises(DEATHS):
        operation(dataset)


def append(dataset: Dataset) -> object:
    return dataset.write(rows(7, 8), max_rows_per_file=1)


def workspace_of(path: str) -> str:
    parent, name = os.path.split(path)
    return f"{parent}/.{name}.parketto"


@pytest.fixture
def events(tmp_path: Path) -> str:
    path = str(tmp_path / "events")
    dataset = Dataset(path, "pyarrow")
    dataset.write(rows(1, 2))
    dataset.write(rows(3))
    return path


class TestIdentity:
    """An interrupted commit belongs to one dataset, wherever it is moved."""

    @pytest.mark.parametrize("publish", ["auto", "rename"])
    def test_dataset_moved_away_and_created_again(self, events: str, publish: Any) -> None:
        interrupted(events, append, publish)
        os.rename(events, f"{events}2")
        Dataset(events, "pyarrow").write(rows(9))
        assert ids(events) == [9]
        assert ids(f"{events}2") == [1, 2, 3]
        # The workspace was kept: moved beside its dataset, the commit is finished.
        (aside,) = [name for name in os.listdir(os.path.dirname(events)) if ".parketto." in name]
        os.rename(f"{os.path.dirname(events)}/{aside}", workspace_of(f"{events}2"))
        assert Dataset(f"{events}2", "pyarrow").recover().action == "completed"
        assert ids(f"{events}2") == [1, 2, 3, 7, 8]
        assert ids(events) == [9]

    def test_moved_together_with_its_log(self, events: str, tmp_path: Path) -> None:
        interrupted(events, append)
        os.makedirs(tmp_path / "elsewhere")
        moved = str(tmp_path / "elsewhere" / "renamed")
        os.rename(events, moved)
        os.rename(workspace_of(events), workspace_of(moved))
        assert ids(moved) == [1, 2, 3, 7, 8]
        assert [commit["operation"] for commit in Dataset(moved, "pyarrow").history()] == ["append"] * 3

    @pytest.mark.parametrize("made_anew_by", ["parketto", "a stranger", "a copy"])
    def test_log_is_not_applied_to_a_new_dataset_at_the_same_path(
        self, events: str, tmp_path: Path, made_anew_by: str
    ) -> None:
        interrupted(events, append)
        shutil.copytree(events, tmp_path / "copy")
        shutil.rmtree(events)
        if made_anew_by == "parketto":
            Dataset(events, "pyarrow").write(rows(9))
        elif made_anew_by == "a copy":
            os.rename(tmp_path / "copy", events)
        else:
            Place(events, Dataset(events, "pyarrow")._store.fs).write_files({"f.parquet": rows(9)})
        assert ids(events) == ([1, 2, 3] if made_anew_by == "a copy" else [9])
        Dataset(events, "pyarrow").write(rows(10))
        assert 7 not in ids(events)
        assert Dataset(events, "pyarrow").history()[-1]["number"] == 1

    def test_recreated_dataset_starts_a_new_history(self, events: str) -> None:
        dataset = Dataset(events, "pyarrow")
        dataset.write(rows(5), commit_id="app:1")
        shutil.rmtree(events)
        assert dataset.write(rows(6), commit_id="app:1")["rows_written"] == 1
        assert ids(events) == [6]
        assert [commit["commit_id"] for commit in dataset.history()] == ["app:1"]

    def test_swap_of_the_root_keeps_the_history(self, events: str) -> None:
        dataset = Dataset(events, "pyarrow")
        before = os.stat(events).st_ino
        dataset.write(rows(4), commit_id="app:1")
        dataset.compact()
        assert os.stat(events).st_ino != before
        assert dataset.write(rows(4), commit_id="app:1") == {
            "rows_written": 1,
            "files_written": 1,
            "bytes_written": dataset.history()[1]["statistics"]["bytes_written"],
            "files_replaced": 0,
            "repeated_commit": 3,
        }
        assert ids(events) == [1, 2, 3, 4]
        assert [commit["number"] for commit in dataset.history()] == [4, 3, 2, 1]


class TestHistory:
    def test_fields_of_a_record(self, tmp_path: Path) -> None:
        dataset = Dataset(tmp_path / "events", "pyarrow", storage_options={"secret": "hidden"})
        dataset.write(rows(1, 2, 3))
        dataset.delete("id = 2", commit_id="clean-up:1")
        latest, first = dataset.history()
        assert (first["number"], first["operation"], first["commit_id"]) == (1, "append", None)
        assert (latest["number"], latest["operation"], latest["commit_id"]) == (2, "delete", "clean-up:1")
        assert latest["arguments"] == {"where": "id = 2"}
        assert latest["statistics"]["rows_matched"] == 1
        assert (latest["files_published"], latest["files_retired"]) == (1, 1)
        assert latest["engine"] == "pyarrow"
        assert latest["program"].startswith("parketto ")
        assert latest["user"]
        assert latest["at"] >= first["at"]
        assert json.loads(json.dumps(dataset.history())) == dataset.history()
        assert dataset.history(limit=1) == [latest]
        assert "hidden" not in Path(tmp_path / ".events.parketto/log/00000000000000000002.json").read_text()

    def test_history_off_keeps_no_records(self, tmp_path: Path) -> None:
        dataset = Dataset(tmp_path / "events", "pyarrow", history="off")
        for number in range(3):
            dataset.write(rows(number))
        dataset.compact()
        assert os.listdir(tmp_path) == ["events"]
        dataset.write(rows(3), commit_id="app:1")
        dataset.write(rows(3), commit_id="app:1")
        assert ids(dataset.path) == [0, 1, 2, 3]
        assert os.listdir(tmp_path / ".events.parketto/log") == ["checkpoint-00000000000000000001.json"]

    def test_workspace_can_be_deleted(self, events: str) -> None:
        shutil.rmtree(workspace_of(events))
        assert ids(events) == [1, 2, 3]
        Dataset(events, "pyarrow").write(rows(4))
        assert [commit["number"] for commit in Dataset(events, "pyarrow").history()] == [1]

    def test_old_records_are_folded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(logs, "_FOLDED_AT_ONCE", 5)
        monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 4)
        dataset = Dataset(tmp_path / "events", "pyarrow")
        longest = 0
        for number in range(40):
            dataset.write(rows(number), commit_id=f"app-{number % 3}:{number}")
            longest = max(longest, len(os.listdir(tmp_path / ".events.parketto/log")))
        assert longest <= 2 * (4 + 5) + 3
        assert [commit["number"] for commit in dataset.history()] == list(range(40, 0, -1))
        for number in range(40):
            dataset.write(rows(number), commit_id=f"app-{number % 3}:{number}")
        assert ids(dataset.path) == list(range(40))

    def test_last_commit_id_of_each_application_is_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "_FOLDED_AT_ONCE", 2)
        monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 1)
        monkeypatch.setattr(logs, "_RETENTION", -logs._RETENTION)  # all records are old
        dataset = Dataset(tmp_path / "events", "pyarrow")
        for number in range(4):
            dataset.write(rows(number), commit_id=f"a:{number}")
        for number in range(4, 12):
            dataset.write(rows(number), commit_id=f"b:{number}")
        dataset.write(rows(3), commit_id="a:3")
        assert ids(dataset.path) == list(range(12))
        assert dataset.write(rows(0), commit_id="a:0")["rows_written"] == 1  # forgotten

    def test_kill_while_records_are_folded(self, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(logs, "_FOLDED_AT_ONCE", 3)
        monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 2)
        for at in range(1, 40):
            if os.path.exists(os.path.dirname(local.root)):
                shutil.rmtree(os.path.dirname(local.root))
            for number in range(4):
                local.dataset().write(rows(number), commit_id=f"app:{number}")
            dataset = local.dataset()
            mortal(dataset, at, "after")
            with contextlib.suppress(*DEATHS):
                dataset.write(rows(4), commit_id="app:4")
                break
            local.dataset().recover()
            for number in range(7):
                local.dataset().write(rows(number), commit_id=f"app:{number}")
            assert ids(local.root) == list(range(7))
            assert local.left_behind() == []
        assert at > 10


class TestTrust:
    """A manipulated workspace beside a dataset must not make a process move files."""

    @staticmethod
    def planted(events: str, **changes: Any) -> str:
        """A record that would move a file out of the dataset."""
        interrupted(events, append)
        (path,) = [
            f"{workspace_of(events)}/log/{name}"
            for name in os.listdir(f"{workspace_of(events)}/log")
            if name.startswith("00000000000000000003.json")
        ]
        found = json.loads(Path(path).read_text())
        found.pop("sha256")
        for name, value in changes.items():
            if name in ("publish", "retire"):
                found[name] = [{**(found[name] or [value])[0], **value}]
            else:
                found[name] = value
        Path(path).write_bytes(sealed(found))
        return path

    @pytest.mark.parametrize(
        "changes",
        [
            {"publish": {"path": "../stolen.parquet"}},
            {"publish": {"path": "/tmp/stolen.parquet"}},
            {"publish": {"path": "day=1/../../stolen.parquet"}},
            {"publish": {"path": "day=1//x.parquet"}},
            {"publish": {"path": ""}},
            {"publish": {"staged": "../secret"}},
            {"publish": {"staged": "tx-other/new/x"}},
            {"retire": {"path": "../x", "fingerprint": "1", "parked": "tx-1/old/0"}},
            {"retire": {"path": "x", "fingerprint": "1", "parked": "../../x"}},
            {"id": "1/../../.."},
            {"sweeps": ["../../home"]},
            {"publish": 5},
        ],
    )
    def test_paths_outside_of_the_dataset_are_refused(self, events: str, changes: dict[str, Any]) -> None:
        if "publish" in changes and changes["publish"] == 5:
            path = self.planted(events)
            found = {**json.loads(Path(path).read_text()), "publish": 5}
            found.pop("sha256")
            Path(path).write_bytes(sealed(found))
        else:
            path = self.planted(events, **changes)
        before = sorted(os.listdir(events))
        for operation in (Dataset.read, Dataset.recover, Dataset.compact, append):
            with pytest.raises(CommitStateUnknown, match=r"0003\.json.*cannot be used.*Nothing was changed"):
                operation(Dataset(events, "pyarrow"))
        assert sorted(os.listdir(events)) == before

    def test_backups_with_paths_outside_of_the_dataset_are_refused(self, events: str, tmp_path: Path) -> None:
        dataset = Dataset(events, "pyarrow")
        backup = dataset.delete("id = 1", backup=tmp_path / "kept")["backup_path"]
        manifest = Path(f"{backup}/manifest.json")
        found = json.loads(manifest.read_text())
        found["retired"][0]["path"] = "../../stolen.parquet"
        manifest.write_text(json.dumps(found))
        with pytest.raises(InvalidArgument, match=r"not a normalized relative path|leads out"):
            dataset.restore(backup)
        assert ids(events) == [2, 3]

    @pytest.mark.parametrize("name", ["", "log", "lock"])
    def test_symlinks_are_not_followed(self, events: str, tmp_path: Path, name: str) -> None:
        workspace = workspace_of(events)
        target = tmp_path / "elsewhere"
        place = f"{workspace}/{name}".rstrip("/")
        os.rename(place, target)
        os.symlink(target, place)
        before = sorted(os.listdir(events)), sorted(path.name for path in tmp_path.glob("elsewhere/*"))
        with pytest.raises(UntrustedWorkspace, match=r"[Nn]othing was changed|link"):
            Dataset(events, "pyarrow").write(rows(9))
        assert (sorted(os.listdir(events)), sorted(path.name for path in tmp_path.glob("elsewhere/*"))) == before

    def test_symlinked_staging_folder_is_not_removed(self, events: str, tmp_path: Path) -> None:
        os.makedirs(tmp_path / "precious")
        (tmp_path / "precious" / "file").write_text("mine")
        os.symlink(tmp_path / "precious", f"{workspace_of(events)}/tx-1")
        assert Dataset(events, "pyarrow").recover().staging_removed == 1
        assert (tmp_path / "precious" / "file").read_text() == "mine"
        assert not os.path.lexists(f"{workspace_of(events)}/tx-1")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can act as other users")
class TestOtherUsers:
    @pytest.fixture
    def tmp_path(self) -> Iterator[Path]:
        """A folder that other users can reach: every pytest makes those of pytest private again."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            yield Path(folder)

    @pytest.fixture
    def shared(self, tmp_path: Path) -> Path:
        """A sticky, world-writable folder like /tmp."""
        # Other users may lack permission to import the packages.
        loaded = Dataset(tmp_path / "loaded", "pyarrow")
        for number in range(2):
            loaded.write(rows(number))
        loaded.compact()
        folder = tmp_path / "shared"
        folder.mkdir()
        folder.chmod(0o1777)
        return folder

    @pytest.mark.parametrize("operation", ["read", "write", "recover"])
    def test_workspace_of_another_user_is_refused(self, shared: Path, operation: str) -> None:
        events = str(shared / "events")
        Dataset(events, "pyarrow", history="off").write(rows(1))
        os.makedirs(f"{workspace_of(events)}/log")
        for folder in (workspace_of(events), f"{workspace_of(events)}/log"):
            os.chown(folder, OTHER_USER, OTHER_USER)
        dataset = Dataset(events, "pyarrow")
        with pytest.raises(UntrustedWorkspace, match=r"belongs to user 65534.*nothing was changed"):
            {"read": dataset.read, "write": lambda: dataset.write(rows(2)), "recover": dataset.recover}[
                operation
            ]()
        assert len(os.listdir(events)) == 1

    def test_world_writable_workspace_is_refused(self, shared: Path) -> None:
        events = str(shared / "events")
        Dataset(events, "pyarrow").write(rows(1))
        os.chmod(workspace_of(events), 0o777)
        with pytest.raises(UntrustedWorkspace, match="is world-writable"):
            Dataset(events, "pyarrow").read()

    def test_root_may_work_on_a_users_dataset(self, shared: Path) -> None:
        events = str(shared / "events")
        as_user(OTHER_USER, OTHER_USER, lambda: Dataset(events, "pyarrow").write(rows(1)))
        Dataset(events, "pyarrow").write(rows(2))
        as_user(OTHER_USER, OTHER_USER, lambda: Dataset(events, "pyarrow").write(rows(3)))
        assert ids(events) == [1, 2, 3]

    def test_dataset_shared_by_a_group(self, tmp_path: Path, shared: Path) -> None:
        del shared  # only for what it imports
        project = tmp_path / "project"
        project.mkdir()
        os.chown(project, 0, 4242)
        project.chmod(0o2775)  # new files get the group
        events = str(project / "events")
        for user in (5001, 5002, 5001):
            as_user(user, 4242, lambda user=user: Dataset(events, "pyarrow").write(rows(user)))  # type: ignore[misc]
        as_user(5002, 4242, lambda: Dataset(events, "pyarrow").compact())
        assert ids(events) == [5001, 5001, 5002]


def as_user(user: int, group: int, work: Callable[[], object]) -> None:
    """Run as another user in a forked process, which has already imported everything it needs."""

    def demoted() -> str:
        os.umask(0o002)
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
        work()
        return "done"

    assert in_another_process(demoted) == "done"


def test_interrupted_commit_of_another_user_is_not_applied_through_a_link(
    local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link may lead to files that its author may not write, but this user may."""
    local.write_files({f"part=a/{n}.parquet": pa.table({"id": [n]}) for n in range(2)})
    interrupted(local.root, lambda dataset: dataset.compact())
    folder, elsewhere = Path(local.root, "part=a"), tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    owner = os.geteuid()
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: owner + 1)
        with pytest.raises(CommitStateUnknown, match=r"through a symbolic link, .*part=a'. Nothing was changed"):
            local.dataset().recover()
    assert sorted(path.name for path in elsewhere.iterdir()) == ["0.parquet", "1.parquet"]
    folder.unlink()
    elsewhere.rename(folder)
    assert local.dataset().recover().action == "completed"
    assert len(local.files()) == 1
