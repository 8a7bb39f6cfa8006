"""What a stream of a dataset delivers: every row that is added, once, whichever program adds it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers.crash import DEATHS, mortal
from helpers.stream import Stream
from parketto import Dataset, sql
from parketto.commit import log, retention
from parketto.errors import CommitError, InvalidArgument, StreamStopped
from parketto.operations.added_files import AddedFiles


def table(first: int, rows: int = 3) -> pa.Table:
    numbers = list(range(first, first + rows))
    return pa.table({"id": numbers, "n": [1] * rows, "day": [number % 2 for number in numbers]})


@pytest.fixture
def filled(place: Place) -> Place:
    place.dataset().write(table(0), partition_by="day")
    return place


def operations(place: Place) -> list[str]:
    return [commit["operation"] for commit in place.dataset().history()][::-1]


def add_file(place: Place, name: str, rows: pa.Table) -> None:
    place.write_files({name: rows})


def test_rows_are_delivered_when_they_are_added(filled: Place) -> None:
    stream, dataset = Stream(filled), filled.dataset()
    assert stream.ids() == [0, 1, 2]
    assert stream.ids() is None
    dataset.write(table(10))
    dataset.compact()
    dataset.write(table(20))
    dataset.merge(table(30), "id")  # only inserts
    dataset.optimize(["id"])
    dataset.repartition(None)
    dataset.unify_schema(cast={"n": "double"})
    assert stream.ids() == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    stream.restart()
    dataset.compact()
    assert stream.ids() is None
    assert [batch[1].commit for batch in stream.batches] == [2, 6]


def test_micro_batches_are_limited_by_commits(filled: Place) -> None:
    stream, dataset = Stream(filled), filled.dataset()
    assert stream.ids(1) == [0, 1, 2]
    for first in (10, 20, 30):
        dataset.write(table(first, 1))
        dataset.compact()
    assert [stream.ids(2), stream.ids(2), stream.ids(2)] == [[10, 20], [30], None]


def test_micro_batches_can_be_replayed(filled: Place) -> None:
    """Spark replays the last micro-batch after a crash, whatever was committed since."""
    stream, dataset = Stream(filled, on_change="skip"), filled.dataset()
    add_file(filled, "day=1/other.parquet", table(41, 1))
    expected = [stream.ids(), None]
    dataset.write(table(10))
    add_file(filled, "day=1/another.parquet", table(51, 1))
    expected[1] = stream.ids()
    assert expected == [[0, 1, 2, 41], [10, 11, 12, 51]]
    dataset.compact()
    dataset.write(table(20))
    dataset.delete("id < 11")
    dataset.write(table(70), "overwrite")
    add_file(filled, "day=1/third.parquet", table(61, 1))
    stream.restart()
    replayed = [sorted(stream.replay(*batch).column("id").to_pylist()) for batch in stream.batches]
    assert replayed == expected
    assert stream.ids() == [20, 21, 22, 61]


def test_a_stream_begins_where_it_is_told_to(filled: Place) -> None:
    dataset = filled.dataset()
    dataset.write(table(10))
    latest, second = Stream(filled, "latest"), Stream(filled, 2)
    dataset.write(table(20))
    assert latest.ids() == [20, 21, 22]
    assert second.ids() == [10, 11, 12, 20, 21, 22]
    with pytest.raises(InvalidArgument, match="has the commits 1 to 4"):
        Stream(filled, 6)


def test_a_stream_can_begin_before_its_dataset(place: Place) -> None:
    streams = [Stream(place), Stream(place, "latest")]
    assert [stream.ids() for stream in streams] == [None, None]
    assert not place.left_behind()
    place.dataset().write(table(0))
    assert [stream.ids() for stream in streams] == [[0, 1, 2]] * 2


CHANGES: dict[str, tuple[Callable[[Dataset], Any], list[int] | None]] = {
    "update": (lambda dataset: dataset.update("id = 1", {"n": sql("n + 1")}), [1]),
    "delete": (lambda dataset: dataset.delete("id = 0"), [2]),
    "merge": (lambda dataset: dataset.merge(pa.table({"id": [1, 5], "n": [7, 7], "day": [1, 1]}), "id"), [1, 5]),
    "overwrite": (lambda dataset: dataset.write(table(60), "overwrite"), [60, 61, 62]),
    "alter": (lambda dataset: dataset.alter(add={"x": "string"}), [0, 1, 2]),
}


@pytest.mark.parametrize("operation", CHANGES)
def test_changes_of_rows(filled: Place, operation: str) -> None:
    change, redelivered = CHANGES[operation]
    streams = {rule: Stream(filled, on_change=rule) for rule in ("fail", "skip", "redeliver")}
    for stream in streams.values():
        assert stream.ids() == [0, 1, 2]
    filled.dataset().write(table(10, 1))
    change(filled.dataset())
    filled.dataset().write(table(20, 1))
    assert streams["fail"].ids() == [10], "what was added before the change is delivered"
    for _ in range(2):
        with pytest.raises(StreamStopped, match=rf"commit 4, {operation} by .* at 2.*on_change='skip'.*=5"):
            streams["fail"].ids()
    streams["fail"].restart("skip")
    assert streams["fail"].ids() == [20]
    assert streams["skip"].ids() == [10, 20]
    assert redelivered is not None
    assert streams["redeliver"].ids() == sorted([10, *redelivered, *([10] if operation == "alter" else []), 20])


def test_files_of_other_programs_are_found_once(filled: Place) -> None:
    streams = [Stream(filled), Stream(filled)]
    add_file(filled, "day=1/other.parquet", table(41, 1))
    assert [stream.ids() for stream in streams] == [[0, 1, 2, 41]] * 2
    add_file(filled, "day=1/another.parquet", table(51, 1))
    streams.append(Stream(filled, "latest"))
    assert [stream.ids() for stream in streams] == [[51], [51], None]
    for stream in streams:
        stream.restart()
    filled.dataset().compact()
    assert [stream.ids() for stream in streams] == [None, None, None]
    assert operations(filled) == ["append", "baseline", "found", "compact"]
    found = filled.dataset().history()[1]
    assert found["statistics"] == {"files_added": 1, "files_replaced": 0, "files_moved": 0, "files_gone": 0}
    assert found["arguments"] == {}


def test_files_of_other_programs_that_commits_retire_before_a_reader_finds_them(filled: Place) -> None:
    """The record of the commit shows that they were there; their rows are read where they are kept."""
    streams = {rule: Stream(filled, on_change=rule) for rule in ("fail", "skip", "redeliver")}
    assert [stream.ids() for stream in streams.values()] == [[0, 1, 2]] * 3
    add_file(filled, "day=1/other.parquet", table(41, 1))
    filled.dataset().compact()
    assert [stream.ids() for stream in streams.values()] == [[41]] * 3
    add_file(filled, "day=1/another.parquet", table(51, 1))
    filled.dataset().update("id > 45", {"n": sql("n + 1")})
    with pytest.raises(StreamStopped, match="update"):
        streams["fail"].ids()
    assert streams["skip"].ids() == [51]
    assert streams["redeliver"].ids() == [51]


def test_a_dataset_of_other_programs(place: Place) -> None:
    place.write_files({"day=1/a.parquet": table(1, 1), "day=3/b.parquet": table(3, 1)})
    stream = Stream(place)
    assert stream.ids() == [1, 3]
    place.write_files({"day=5/c.parquet": table(5, 1)})
    assert stream.ids() == [5]


def test_files_that_are_being_written_are_left_for_later(local: Place) -> None:
    local.dataset().write(table(0))
    stream = Stream(local)
    assert stream.ids() == [0, 1, 2]
    path = Path(local.root) / "slow.parquet"
    with pq.ParquetWriter(path, table(0).schema) as writer:
        writer.write_table(table(40, 2))
        assert stream.ids() is None
    assert stream.ids() == [40, 41]
    path = Path(local.root) / "broken.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    assert stream.ids() is None
    os.utime(path, (1e9, 1e9))
    with pytest.raises(ValueError, match=r"broken\.parquet"):
        stream.ids()


def test_files_that_other_programs_move_replace_and_remove(local: Place) -> None:
    local.dataset().write(table(0), partition_by="day")
    local.write_files({"day=1/a.parquet": table(41, 1), "day=1/b.parquet": table(51, 1)})
    streams = {rule: Stream(local, on_change=rule) for rule in ("fail", "skip", "redeliver")}
    assert [stream.ids() for stream in streams.values()] == [[0, 1, 2, 41, 51]] * 3
    root = Path(local.root)
    (root / "day=1/a.parquet").rename(root / "day=1/moved.parquet")
    (root / "day=1/b.parquet").unlink()
    assert [stream.ids() for stream in streams.values()] == [None] * 3
    local.write_files({"day=1/moved.parquet": table(61, 1), "day=1/c.parquet": table(71, 1)})
    with pytest.raises(StreamStopped, match=r"replaced 'day=1/moved\.parquet', as commit 4"):
        streams["fail"].ids()
    assert streams["skip"].ids() == [71]
    assert streams["redeliver"].ids() == [61, 71]


def test_rows_that_are_no_longer_kept_stop_the_stream(filled: Place) -> None:
    stream = Stream(filled)
    assert stream.ids() == [0, 1, 2]
    filled.dataset().write(table(10))
    filled.dataset(retention=0).compact()
    with pytest.raises(StreamStopped, match=r"commit 4 retired it .* commit 3\. .*retention="):
        stream.ids()


def test_records_that_are_folded_stop_the_stream(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    late, stream = Stream(filled), Stream(filled)
    assert late.ids() == stream.ids() == [0, 1, 2]
    monkeypatch.setattr(log, "_FOLDED_AT_ONCE", 4)
    monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 3)
    delivered: list[int] = []
    for first in range(10, 22):
        filled.dataset().write(table(first, 1))
        if first % 5 == 0:
            add_file(filled, f"day={first % 2}/{first}.parquet", table(first + 100, 1))
        filled.dataset().compact()
        delivered += stream.ids() or []
        stream.restart()
    assert sorted(delivered) == [*range(10, 22), 110, 115, 120]
    with pytest.raises(StreamStopped, match=r"commit 3 was folded into a checkpoint.*starting_commit"):
        late.ids()
    with pytest.raises(StreamStopped, match="folded into a checkpoint"):
        late.replay(*late.batches[0])
    assert len(Stream(filled).ids() or ()) == 18


def test_only_datasets_with_streams_list_files_in_checkpoints(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_FOLDED_AT_ONCE", 2)
    monkeypatch.setattr("parketto.commit.committing.KEPT_RECORDS", 1)

    def checkpoint() -> bytes:
        workspace = place.dataset()._context.workspace
        (name,) = [
            name for name in workspace.store.list_names(workspace.log.folder) if name.startswith("checkpoint")
        ]
        return workspace.store.read(f"{workspace.log.folder}/{name}")

    for first in range(4):
        place.dataset().write(table(first, 1))
    assert b".parquet" not in checkpoint()
    stream = Stream(place)
    assert stream.ids() == [0, 1, 2, 3]
    for first in range(10, 14):
        place.dataset().write(table(first, 1))
        assert stream.ids() == [first]
    assert b".parquet" in checkpoint()


def test_a_stream_notices_another_log_and_another_dataset(local: Place) -> None:
    stream = Stream(local)
    local.dataset().write(table(0))
    assert stream.ids() == [0, 1, 2]
    shutil.rmtree(local.root)
    local.dataset().write(table(10))
    with pytest.raises(StreamStopped, match="another dataset is at the path"):
        stream.ids()
    again = Stream(local)
    assert again.ids() == [10, 11, 12]
    shutil.rmtree(local.dataset()._context.workspace.path)
    with pytest.raises(StreamStopped, match="its log was removed"):
        again.ids()


def test_undone_commits_deliver_nothing(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from parketto.commit.apply import MovingApplier

    local.dataset().write(table(0))
    stream = Stream(local)
    assert stream.ids() == [0, 1, 2]

    def fail(_: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(MovingApplier, "_sync", fail)
        with pytest.raises(CommitError, match="disk full"):
            local.dataset().write(table(10))
    assert stream.ids() is None
    local.dataset().write(table(20))
    assert stream.ids() == [20, 21, 22]


def test_files_with_other_columns_and_partitions(filled: Place) -> None:
    stream = Stream(filled, columns=["id", "n", "day"], where="n IS NULL OR n < 10")
    assert stream.ids() == [0, 1, 2]
    filled.dataset().write(pa.table({"id": [10], "day": [1], "x": ["new"]}), schema="evolve")
    filled.dataset().repartition("n")
    filled.dataset().write(pa.table({"id": [11, 12], "n": [2, 20], "day": [1, 1], "x": ["a", "b"]}))
    found = stream.next()
    assert found is not None
    assert found.sort_by("id").to_pydict() == {"id": [10, 11], "n": [None, 2], "day": [1, 1]}


def test_partition_columns_in_paths(place: Place) -> None:
    place.dataset().write(table(0), partition_by="day", partition_columns="path")
    stream = Stream(place, where="day = 1")
    assert stream.ids() == [1]
    place.dataset().write(table(10))
    assert stream.next().to_pydict() == {"id": [11], "n": [1], "day": [1]}  # type: ignore[union-attr]


def test_registering_files_is_no_conflict(filled: Place) -> None:
    """A delete that has read all files commits, although a reader has registered another program's file."""
    stream = Stream(filled, on_change="skip")
    assert stream.ids() == [0, 1, 2]
    add_file(filled, "day=1/other.parquet", table(41, 1))
    context = filled.dataset()._context
    seen: list[list[int] | None] = []
    original = context.workspace.locked

    class Between:
        """Registers the file after the delete has planned and staged, before it takes the lock."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not seen:
                seen.append(None)
                seen[0] = stream.ids()
            return original(*args, **kwargs)

    dataset = filled.dataset()
    dataset._context.workspace.locked = Between()  # type: ignore[method-assign]
    dataset.delete("id = 0")
    assert seen == [[41]]
    assert operations(filled) == ["append", "baseline", "found", "delete"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reader_may_be_killed_while_it_registers_files(place: Place, when: str) -> None:
    for call in range(1, 100):
        here = dataclasses.replace(place, root=f"{place.root}-{call}/data")
        here.dataset().write(table(0), partition_by="day")
        stream = Stream(here)
        assert stream.ids() == [0, 1, 2]
        add_file(here, "day=1/other.parquet", table(41, 1))
        dataset = here.dataset()
        mortal(dataset, call, when)
        try:
            AddedFiles(dataset._context).latest(stream.start)
        except DEATHS:
            pass
        else:
            break
        add_file(here, "day=1/another.parquet", table(51, 1))
        stream.restart()
        assert stream.ids() == [41, 51]
        here.dataset().recover()
        assert not here.left_behind()
    assert call > 3


def test_streams_need_a_history(local: Place) -> None:
    local.dataset().write(table(0), partition_by="day")
    for place in (
        dataclasses.replace(local, options={"history": "off"}),
        dataclasses.replace(local, root=f"{local.root}/day=1"),
    ):
        with pytest.raises(InvalidArgument, match="needs its log"):
            Stream(place)


def test_old_records_have_no_found_files(local: Place) -> None:
    from parketto.commit.record import Record

    local.dataset().write(table(0))
    record = local.dataset()._context.workspace.log.read(1)
    assert b'"found"' not in record.to_bytes()
    assert Record.from_bytes(record.to_bytes(), "x") == record


def test_expired_files_are_found_by_their_manifest_only(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not removed yet counts, whatever its time."""
    stream = Stream(filled)
    assert stream.ids() == [0, 1, 2]
    filled.dataset().write(table(10))
    filled.dataset().compact()
    later = retention.unix_time() + 10**6
    monkeypatch.setattr(retention, "unix_time", lambda: later)
    assert stream.ids() == [10, 11, 12]
