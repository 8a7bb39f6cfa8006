"""Processes that are stopped in the middle of a commit (SIGSTOP), and resume after others have finished it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from helpers.s3 import S3Place
from parketto import Dataset
from parketto.commit import recovery

pytest.importorskip("s3fs")

from s3_worker import Worker, batch


@pytest.fixture
def filled(s3: S3Place) -> S3Place:
    for number in (0, 1):
        s3.dataset().write(batch(number))
    return s3


def ids(place: S3Place) -> list[int]:
    """The ids in the dataset."""
    return sorted(place.dataset().read()["id"].to_pylist()) if place.files() else []


def numbers(*batches: int) -> list[int]:
    return [number * 50 + at for number in batches for at in range(50)]


def check(place: S3Place, expected: list[int]) -> None:
    """Exactly these rows, for Parketto and for plain readers, and nothing left behind."""
    place.dataset().recover()
    assert sum(place.rows().values()) == len(expected)
    assert ids(place) == sorted(expected)
    assert [path for path in place.staged() if ".parketto/tx-" in path] == []


#: What others do while a writer is stopped, and the batches that they add.
OTHERS: dict[str, tuple[Any, list[int]]] = {
    "recover": (lambda dataset: dataset.recover(), []),
    "read": (lambda dataset: dataset.read(), []),
    "commit": (lambda dataset: dataset.write(batch(8)), [8]),
    "compact": (lambda dataset: dataset.compact(), []),
}


@pytest.mark.parametrize(
    ("moment", "other"), [*(("after record", other) for other in OTHERS), ("before clear", "compact")]
)
def test_append_that_others_settle_is_reported_as_committed(filled: S3Place, other: str, moment: str) -> None:
    """Even if others have already compacted the file of the append."""
    act, added = OTHERS[other]
    worker = Worker(filled, f"stop {moment}", "append", 2, 1, 2).stopped()
    act(filled.dataset())
    assert ids(filled) in (numbers(0, 1), numbers(0, 1, 2, *added)), "readers settle nothing"
    assert worker.resumed() is None
    check(filled, numbers(0, 1, 2, *added))
    assert [commit["operation"] for commit in filled.dataset().history()].count("append") == 3 + len(added)


@pytest.mark.parametrize(
    ("moment", "other"),
    [
        *(("after record", other) for other in OTHERS),
        ("after copy", "recover"),
        ("before retire", "compact"),
        ("before done", "commit"),
    ],
)
def test_delete_that_others_settle_is_reported_as_committed(filled: S3Place, other: str, moment: str) -> None:
    act, added = OTHERS[other]
    worker = Worker(filled, f"stop {moment}", "delete", "id < 10 OR id >= 90").stopped()
    act(filled.dataset())
    assert worker.resumed() == 20
    check(filled, [*range(10, 90), *numbers(*added)])


@pytest.mark.parametrize(
    "what", [("delete", "id < 10"), ("compact",), ("append", 3, 1, 2)], ids=lambda what: what[0]
)
def test_writer_never_settles_the_commit_of_another_one_as_its_own(filled: S3Place, what: tuple[Any, ...]) -> None:
    """A stops before it marks its record done; B does that, and dies in its own commit; A resumes."""
    first = Worker(filled, "stop before done", "append", 2).stopped()
    Worker(filled, "kill after copy", *what).killed()
    assert first.resumed() is None
    expected = numbers(0, 1, 2)
    if what[0] == "delete":
        expected = expected[10:]
    if what[0] == "append":
        expected += numbers(3)
    check(filled, expected)
    operations = [commit["operation"] for commit in filled.dataset().history()]
    assert operations == [what[0], "append", "append", "append"]


@pytest.mark.parametrize("moment", ["staged", "before record"])
@pytest.mark.parametrize("what", [("append", 2), ("delete", "id < 10"), ("compact",)], ids=lambda what: what[0])
def test_writer_that_was_taken_for_dead_fails_without_changes(
    filled: S3Place, moment: str, what: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(filled, f"stop {moment}", *what).stopped()
    before = filled.state()
    assert filled.staged() != []
    assert not filled.dataset().recover(), "the writer does not count as dead yet"
    monkeypatch.setattr(recovery, "DEAD_SECONDS", -60.0)
    assert filled.dataset().recover().staging_removed == 1
    assert filled.staged() == []
    answer = worker.resumed()
    assert answer.startswith("CommitFailed: "), answer
    assert "other writers took it for dead" in answer
    assert "Nothing was changed" in answer
    assert filled.state() == before
    check(filled, numbers(0, 1))


def test_append_after_concurrent_commits(filled: S3Place) -> None:
    worker = Worker(filled, "stop before record", "append", 2).stopped()
    filled.dataset().write(batch(3))
    filled.dataset().compact()
    filled.dataset().delete("id < 10")
    assert worker.resumed() is None
    check(filled, numbers(0, 1, 2, 3)[10:])


@pytest.mark.parametrize("moment", ["staged", "before record"])
def test_delete_is_planned_again_after_concurrent_commits(filled: S3Place, moment: str) -> None:
    """It finds the rows in their new files, and the rows that were added."""
    worker = Worker(filled, f"stop {moment}", "delete", "id < 10 OR batch >= 3").stopped()
    filled.dataset().compact()
    filled.dataset().write(batch(3))
    filled.dataset().update("id = 70", {"batch": 9})
    assert worker.resumed() == 10 + 50 + 1
    check(filled, [number for number in range(10, 100) if number != 70])


def test_merge_is_planned_again_after_a_concurrent_update(filled: S3Place) -> None:
    worker = Worker(filled, "stop before record", "merge", 1, 77).stopped()
    filled.dataset().update("id < 100", {"batch": 5})
    assert worker.resumed() is None
    check(filled, numbers(0, 1))
    counted = Counter(filled.dataset().read()["batch"].to_pylist())
    assert counted == {5: 50, 77: 50}, "the merge came after the update"


@pytest.mark.parametrize("look", [1, 2])
def test_reader_that_is_stopped(filled: S3Place, look: int) -> None:
    """Before it reads the log, and after its listing."""
    worker = Worker(filled, f"stop look #{look}", "read")
    worker.stopped()
    filled.dataset().update("id < 60", {"batch": 4})
    filled.dataset().write(batch(2), max_rows_per_file=10)
    filled.dataset().compact()
    assert worker.resumed() in (numbers(0, 1), numbers(0, 1, 2))


@pytest.mark.parametrize("moment", ["after record", "after copy", "half retire", "before done"])
def test_readers_do_not_wait_for_a_stopped_writer(s3: S3Place, moment: str) -> None:
    """They read the state before or after its commit."""
    s3.write_files({f"{number}.parquet": batch(number) for number in range(4)})
    worker = Worker(s3, f"stop {moment}", "delete", "id % 2 = 0").stopped()
    before = numbers(0, 1, 2, 3)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recovery, "settle", lambda *_: pytest.fail("a reader must not settle commits"))
        assert ids(s3) in (before, before[1::2])
    assert worker.resumed() == 100
    check(s3, before[1::2])


def test_readers_during_concurrent_commits(s3: S3Place) -> None:
    s3.write_files({f"{number}.parquet": batch(number) for number in range(2)})
    writers = [Worker(s3, "", "append", 2, 5, 3), Worker(s3, "", "merge", 0, 9), Worker(s3, "", "compact")]
    dataset, seen = s3.dataset(), set()
    while not all(writer.is_over() for writer in writers):
        table: pa.Table = dataset.read()
        found = sorted(table["id"].to_pylist())
        assert found == numbers(*range(len(found) // 50))
        first = {row["batch"] for row in table.to_pylist() if row["id"] < 50}
        assert first in ({0}, {9})
        seen.add(len(found))
    print(f"states that were read: {sorted(seen)}")
    for writer in writers:
        answer = writer.result()
        assert not isinstance(answer, str), answer
    check(s3, numbers(*range(7)))


def test_dataset_created_again_while_a_writer_is_stopped(filled: S3Place) -> None:
    """Rows for the old dataset do not appear in the new one."""
    worker = Worker(filled, "stop after record", "append", 2).stopped()
    filled.fs.rm(filled.root, recursive=True)
    filled.dataset().write(batch(5))
    answer = worker.resumed()
    assert answer.startswith("CommitFailed: "), answer
    assert "was moved or removed meanwhile" in answer
    check(filled, numbers(5))
    assert len(filled.dataset().history()) == 1


def test_dataset_moved_while_a_writer_is_stopped(filled: S3Place) -> None:
    """The workspace with its commit is kept, and can be moved to the dataset."""
    worker = Worker(filled, "stop after copy #2", "append", 2, 1, 4).stopped()
    place = S3Place.fresh(filled.server)
    filled.fs.cp(f"{filled.root}/", f"{place.root}/", recursive=True)
    filled.fs.rm(filled.root, recursive=True)
    filled.dataset().write(batch(5))
    assert worker.resumed().startswith("CommitFailed: ")
    check(filled, numbers(5))
    workspace, other = (
        Dataset(f"s3://{each.root}", filesystem=each.fs)._context.workspace for each in (filled, place)
    )
    (aside,) = [
        path for path in filled.fs.ls(workspace.path.rpartition("/")[0]) if path.startswith(workspace.path + ".")
    ]
    filled.fs.cp(f"{aside}/", f"{other.path}/", recursive=True)
    assert place.dataset().recover().action == "completed"
    check(place, numbers(0, 1, 2))
