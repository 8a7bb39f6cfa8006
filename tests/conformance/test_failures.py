"""Errors during operations: the dataset is unchanged, staging is cleaned, and the message says what happened."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import CommitFailed, CommitStateUnknown, Dataset, DatasetNotFound, UnreadableFile
from parketto.storage.store import MUTATIONS

OPERATIONS: dict[str, Callable[[Dataset], object]] = {
    "compact": lambda dataset: dataset.compact(),
    "optimize": lambda dataset: dataset.optimize(["id"]),
    "overwrite": lambda dataset: dataset.write(pa.table({"id": [1]}), "overwrite"),
}


def make(place: Place) -> None:
    if place.fs.exists(place.root):
        place.fs.rm(place.root, recursive=True)
    place.write_files({f"k={k}/f{n}.parquet": pa.table({"id": [k * 10 + n]}) for k in (1, 2) for n in range(3)})


def failing(dataset: Dataset, at: int, error: BaseException) -> Callable[[], int]:
    """Make the n-th mutating call fail once; the ones after it work again."""
    base = type(dataset._store)
    calls = 0

    def guarded(name: str) -> Callable[..., Any]:
        original = getattr(base, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise error
            return original(self, *args, **kwargs)

        return call

    dataset._store.__class__ = type("Failing", (base,), {name: guarded(name) for name in MUTATIONS})
    return lambda: calls


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", ["disk full", "Ctrl-C"])
def test_an_error_at_any_call_leaves_before_or_after(place: Place, operation: str, kind: str) -> None:
    """A full disk or Ctrl-C at any step: all or nothing, and the exception says which."""
    run = OPERATIONS[operation]
    make(place)
    dataset = place.dataset()
    total = failing(dataset, 0, Exception())
    run(dataset)
    rows_after, count = place.rows(), total()
    for at in range(1, count + 1):
        make(place)
        before, rows_before = place.state(), place.rows()
        dataset = place.dataset()
        error = OSError(errno.ENOSPC, "No space left on device") if kind == "disk full" else KeyboardInterrupt()
        failing(dataset, at, error)
        try:
            run(dataset)
        except CommitStateUnknown:
            place.dataset().recover()
            assert place.rows() in (rows_before, rows_after)
        except (OSError, CommitFailed, KeyboardInterrupt):
            # Either nothing happened, or (on the very last steps) all of it.
            if place.state() != before:
                assert place.rows() == rows_after
                assert kind == "Ctrl-C"
        else:
            assert place.rows() == rows_after
        place.dataset().recover()
        assert place.left_behind() == [], f"call {at}"


def test_commit_failed_means_nothing_changed(local: Place) -> None:
    make(local)
    before = local.state()
    dataset = local.dataset(publish="rename")
    original = type(dataset._store).move

    def move(self: Any, source: str, destination: str) -> None:
        if destination.endswith(".parquet") and "k=2" in destination and "/new/" in source:
            raise PermissionError(errno.EACCES, "Permission denied", destination)
        original(self, source, destination)

    dataset._store.__class__ = type("Denied", (type(dataset._store),), {"move": move})
    with pytest.raises(CommitFailed, match=r"nothing was changed.*Permission denied"):
        dataset.compact()
    assert local.state() == before
    assert local.left_behind() == []


def test_commit_state_unknown_is_finished_by_recovery(local: Place) -> None:
    """The disk fails after the record is written: the error says so, and recovery finishes the commit."""
    make(local)
    rows = local.rows()
    dataset = local.dataset(publish="rename")
    base = type(dataset._store)
    gone = False

    def guarded(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal gone
            gone = gone or (name == "move" and "k=2" in args[1])
            if gone:
                raise OSError(errno.EIO, "Input/output error")
            return getattr(base, name)(self, *args, **kwargs)

        return call

    dataset._store.__class__ = type("Gone", (base,), {name: guarded(name) for name in MUTATIONS})
    with pytest.raises(CommitStateUnknown, match=r"No row is lost.*recover\(\)"):
        dataset.compact()
    assert local.left_behind() != []
    recovery = local.dataset().recover()
    assert recovery.action == "completed"
    assert recovery.operation == "compact"
    assert "completed an interrupted compact (2 new files, 6 replaced)" in str(recovery)
    assert local.rows() == rows
    assert len(local.files()) == 2
    assert local.left_behind() == []


def test_damaged_log_record_is_never_applied(local: Place) -> None:
    make(local)
    workspace = f"{os.path.dirname(local.root)}/.events.parketto"
    os.makedirs(f"{workspace}/log")
    for content in (b"", b"{}", b'{"sha256": "wrong"}', b'{"sha256": "wrong", "format": "x"}', b"[]"):
        with open(f"{workspace}/log/00000000000000000001.json", "wb") as file:
            file.write(content)
        before = local.state()
        with pytest.raises(CommitStateUnknown, match=r"0001\.json.*cannot be used"):
            local.dataset().compact()
        assert local.state() == before


@pytest.mark.parametrize("operation", ["compact", "optimize", "read", "files"])
def test_missing_dataset_is_an_error(place: Place, operation: str) -> None:
    run: dict[str, Callable[[Dataset], object]] = {
        **OPERATIONS,
        "read": lambda dataset: dataset.read(),
        "files": lambda dataset: dataset.files(),
    }
    with pytest.raises(FileNotFoundError, match="does not exist"):
        run[operation](place.dataset())
    place.fs.makedirs(place.root)
    place.fs.pipe_file(f"{place.root}/readme.txt", b"")
    with pytest.raises(FileNotFoundError, match="no parquet files were found"):
        run[operation](place.dataset())
    assert place.left_behind() == []


def test_filter_that_matches_no_partition(place: Place) -> None:
    make(place)
    with pytest.raises(DatasetNotFound, match=r"excludes all 6 files; the dataset's partition columns: 'k'"):
        place.dataset().compact(partition_filter="k=3")
    assert place.left_behind() == []


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"not a parquet file at all", b"PAR1" + b"\xff" * 100 + b"PAR1"]
)
def test_unreadable_file_is_named_and_nothing_is_touched(place: Place, content: bytes) -> None:
    make(place)
    place.fs.pipe_file(f"{place.root}/k=1/broken.parquet", content)
    before = place.state()
    for run in (OPERATIONS["compact"], OPERATIONS["optimize"], lambda dataset: dataset.compact(dry_run=True)):
        with pytest.raises(UnreadableFile, match=r"broken\.parquet.*Nothing was changed"):
            run(place.dataset())
        assert place.state() == before
        assert place.left_behind() == []


def test_damaged_pages_are_found_before_anything_is_changed(place: Place) -> None:
    """The footer is valid; the error comes when the data is read."""
    make(place)
    path = f"{place.root}/k=1/f1.parquet"
    content = bytearray(place.fs.cat_file(path))
    content[4:60] = bytes(56)
    place.fs.pipe_file(path, bytes(content))
    before = place.state()
    with pytest.raises(UnreadableFile, match=r"f1\.parquet.*Nothing was changed"):
        place.dataset().compact()
    assert place.state() == before
    assert place.left_behind() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_mb_per_file": 0}, "target_mb_per_file must be greater than 0"),
        ({"target_rows_per_file": -5}, "target_rows_per_file must be greater than 0"),
        ({"target_mb_per_file": "big"}, "must be a number"),
        ({"compression": "lzo"}, "unknown compression 'lzo'; valid codecs: 'snappy', 'gzip'"),
        ({"partition_filter": ""}, "partition_filter"),
    ],
)
def test_bad_arguments_are_refused_before_any_read(
    tmp_path: Any, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Dataset(f"{tmp_path}/there/is/nothing").compact(**arguments)  # type: ignore[arg-type]


def test_unknown_engine_lists_the_engines() -> None:
    with pytest.raises(ValueError, match="unknown engine 'hadoop'; available engines: 'duckdb', 'pyarrow'"):
        Dataset("x", engine="hadoop")


@pytest.mark.parametrize("options", [{"memory_mb": 0}, {"threads": -1}, {"memory_mb": "all"}])
def test_bad_engine_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="whole number greater than 0"):
        Dataset("x", **options)


def test_filesystem_must_be_fsspec() -> None:
    with pytest.raises(ValueError, match="fsspec"):
        Dataset("x", filesystem="s3")  # type: ignore[arg-type]


def test_real_ctrl_c(local: Place) -> None:
    """SIGINT to a real process in the middle of an operation: it ends soon, the dataset is unchanged."""
    big = pa.table({"id": range(200_000), "text": [f"some text {n}" for n in range(200_000)]})
    local.write_files({f"f{n}.parquet": big for n in range(4)})
    before = local.state()
    code = (
        "import sys\nfrom parketto import Dataset\n"
        "dataset = Dataset(sys.argv[1], threads=2)\n"
        "rewrite = dataset.engine.rewrite\n"
        "def slow(plan, context):\n"
        "    print('working', flush=True)\n"
        "    for _ in range(1000):\n"
        "        rewrite(plan, context)\n"
        "dataset.engine.rewrite = slow\n"
        "dataset.compact()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, local.root], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in error
    assert local.state() == before
    assert local.left_behind() == []


def test_read_only_parent_is_explained(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    make(local)
    dataset = local.dataset()

    def make_dirs(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(dataset._store, "make_dirs", make_dirs)
    with pytest.raises(CommitFailed, match=r"no permission to keep a log.*workspace="):
        dataset.compact()


def test_workspace_can_be_kept_elsewhere(place: Place) -> None:
    make(place)
    parent = place.root.rpartition("/")[0]
    elsewhere = f"{parent}/workspaces"
    rows = place.rows()
    seen: list[list[str]] = []
    dataset = place.dataset(workspace=elsewhere)
    rewrite = dataset.engine.rewrite

    def looking(*arguments: Any) -> Any:
        results = rewrite(*arguments)
        seen.append([path for path in place.fs.find(parent) if path.endswith(".staged")])
        return results

    dataset.engine.rewrite = looking  # type: ignore[method-assign]
    dataset.compact()
    assert seen[0]
    assert all(path.startswith(f"{elsewhere}/.events-") for path in seen[0])
    assert place.rows() == rows
    with pytest.raises(ValueError, match="inside the dataset"):
        place.dataset(workspace=f"{place.root}/workspace")


def test_staged_files_are_never_matched_by_a_glob(local: Place) -> None:
    """Neither in the dataset nor in the parent folder, at any moment of an operation."""
    make(local)
    expected = oracle.data_files(local.root)
    dataset = local.dataset()
    rewrite = dataset.engine.rewrite

    def looking(*arguments: Any) -> Any:
        results = rewrite(*arguments)
        parent = os.path.dirname(local.root)
        found = [os.path.join(folder, name) for folder, _, names in os.walk(parent) for name in names]
        assert sorted(path for path in found if path.endswith(".parquet")) == expected
        return results

    dataset.engine.rewrite = looking  # type: ignore[method-assign]
    dataset.compact()


def test_dataset_is_usable_from_several_threads(local: Place) -> None:
    make(local)
    dataset = local.dataset()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            dataset.write(pa.table({"id": [number], "k": ["new"]}))
            dataset.files()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(n,)) for n in range(100, 106)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert dataset.read().num_rows == 12
