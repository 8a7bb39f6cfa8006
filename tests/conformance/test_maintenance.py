"""Maintenance policies: what is due is done, in order, within the budget, and reported."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from parketto import ColumnNotFound, CommitFailed, DatasetNotFound, InvalidArgument, MaintenanceRun, maintenance
from parketto.commit import retention
from parketto.commit.transaction import Transaction
from parketto.engines.base import Progress

COMPACT = {"compact": {"small_files": 3}}


def add_files(place: Place, partition: str, count: int, rows: int = 1, first: int = 0, **columns: Any) -> None:
    """Small files in a partition; the partition column is only in the path."""
    table = {"n": list(range(rows)), **columns}
    prefix = f"{partition}/" if partition else ""
    place.write_files({f"{prefix}f{first + n}.parquet": pa.table(table) for n in range(count)})


def add_scattered(place: Place, partition: str, rows: int = 80_000) -> None:
    """Two files whose rows are in no order, with several row groups each."""
    chance = np.random.default_rng(1)
    place.fs.makedirs(f"{place.root}/{partition}", exist_ok=True)
    for n in range(2):
        table = pa.table({"user": chance.integers(0, 10**6, rows), "at": chance.integers(0, 10**6, rows)})
        path = f"{place.root}/{partition}/s{n}.parquet"
        pq.write_table(table, path, filesystem=place.fs, row_group_size=rows // 2)


def done(run: MaintenanceRun) -> list[tuple[str, str | None, int, int]]:
    return [
        (each["operation"], each["partition"], each["files_before"], each["files_after"]) for each in run.actions
    ]


def left(run: MaintenanceRun) -> list[tuple[str | None, str | None, str]]:
    return [(each["operation"], each["partition"], each["because"]) for each in run.left]


def test_only_partitions_with_many_small_files_are_compacted_once(place: Place, engine: Any) -> None:
    add_files(place, "day=1", 5)
    add_files(place, "day=2", 3)
    before, few = place.rows(), [path for path in place.files() if path.startswith("day=2/")]
    dataset = place.dataset(engine=engine)
    planned = dataset.maintain(COMPACT, dry_run=True)
    assert len(place.files()) == 8
    run = dataset.maintain(COMPACT)
    assert done(run) == done(planned) == [("compact", "day=1", 5, 1)]
    assert run.actions[0]["reason"] == "5 files below 96 MB, more than 3"
    assert run.actions[0]["rewritten_bytes"] == planned.actions[0]["rewritten_bytes"] > 0
    assert run.left == planned.left == []
    assert set(few) < set(place.files())
    assert place.rows() == before
    assert str(dataset.maintain(COMPACT)) == "nothing to do in 1 dataset"
    assert [commit["operation"] for commit in dataset.history()] == ["compact"]


def test_partitions_that_queries_cannot_skip_are_clustered_once(place: Place, engine: Any) -> None:
    add_scattered(place, "day=1")
    add_scattered(place, "day=2", rows=10)  # one row group: nothing to skip
    before = place.rows()
    dataset = place.dataset(engine=engine)
    policy = {"cluster": {"columns": ["user", "at"], "expected_reads": 0.5}, **COMPACT}
    planned = dataset.maintain(policy, dry_run=True)
    run = dataset.maintain(policy)
    assert [(each["operation"], each["partition"]) for each in run.actions] == [("optimize", "day=1")]
    assert [each["reason"] for each in run.actions] == [each["reason"] for each in planned.actions]
    assert run.actions[0]["reason"].startswith(
        "a range of 1 % of user, at reads 100% of the row groups, more than"
    )
    assert place.rows() == before
    assert str(dataset.maintain(policy)) == "nothing to do in 1 dataset"


def test_a_step_that_makes_another_one_due_is_followed_by_it(memory: Place) -> None:
    """Small files can be skipped by their ranges; compaction merges them into one row group."""
    memory.write_files({f"f{n:02}.parquet": pa.table({"at": range(n * 4000, n * 4000 + 4000)}) for n in range(12)})
    dataset = memory.dataset(engine="pyarrow")
    policy = {"cluster": {"columns": ["at"], "expected_reads": 0.5}, **COMPACT}
    assert done(dataset.maintain(policy, dry_run=True)) == [("compact", None, 12, 1)]
    assert [each["operation"] for each in dataset.maintain(policy).actions] == ["compact", "optimize"]
    assert str(dataset.maintain(policy)) == "nothing to do in 1 dataset"


def test_files_that_differ_get_one_schema(place: Place, engine: Any) -> None:
    add_files(place, "day=1", 2)
    add_files(place, "day=2", 1, note=["x"])
    dataset = place.dataset(engine=engine)
    policy = {"unify_schema": True}
    planned = dataset.maintain(policy, dry_run=True)
    run = dataset.maintain(policy)
    assert done(run) == done(planned) == [("unify_schema", None, 2, 2)]
    assert "2 files in 1 partition do not have the dataset's schema; columns that differ: 'note'" in str(run)
    assert {tuple(file.schema.names) for file in dataset.files() if file.schema is not None} == {("n", "note")}
    assert dataset.maintain(policy).actions == []


def test_the_most_valuable_partitions_come_first_and_the_rest_next_time(memory: Place) -> None:
    add_files(memory, "day=1", 5, rows=40_000)
    add_files(memory, "day=2", 30, rows=10)
    add_files(memory, "day=3", 5, rows=10)
    dataset = memory.dataset(engine="pyarrow")
    sizes = {each["values"]["day"]: each["bytes"] for each in dataset.partitions()}
    budget = {"mb": (sizes[1] + sizes[2]) / 1024**2}
    everything = dataset.maintain(COMPACT, dry_run=True)
    assert [each["partition"] for each in everything.actions] == ["day=2", "day=3", "day=1"]
    first = dataset.maintain({**COMPACT, "budget": budget})
    assert [each["partition"] for each in first.actions] == ["day=2", "day=3"]
    assert left(first) == [("compact", "day=1", "budget")]
    assert "exceed what remains of the budget" in first.left[0]["details"]
    second = dataset.maintain({**COMPACT, "budget": budget})
    assert [each["partition"] for each in second.actions] == ["day=1"]
    assert second.left == []


def test_a_dry_run_spends_the_same_budget(memory: Place) -> None:
    for day in range(4):
        add_files(memory, f"day={day}", 5)
    dataset = memory.dataset(engine="pyarrow")
    size = dataset.partitions()[0]["bytes"]
    policy = {**COMPACT, "budget": {"mb": 2.5 * size / 1024**2}}
    planned, run = dataset.maintain(policy, dry_run=True), dataset.maintain(policy)
    assert done(run) == done(planned)
    assert left(run) == left(planned)
    assert len(run.actions) == len(run.left) == 2


def test_a_partition_larger_than_the_whole_budget_is_named(memory: Place) -> None:
    add_files(memory, "", 5)
    run = memory.dataset(engine="pyarrow").maintain({**COMPACT, "budget": {"mb": 0.0001}})
    assert left(run) == [("compact", None, "budget")]
    assert "more than the whole budget of 0.0001 MB: raise it" in run.left[0]["details"]


def test_minutes_limit_a_run(memory: Place) -> None:
    add_files(memory, "", 5)
    dataset = memory.dataset(engine="pyarrow")
    run = dataset.maintain({**COMPACT, "budget": {"minutes": 1e-9}})
    assert left(run) == [("compact", None, "budget")]
    assert run.left[0]["details"] == "the budget of 1e-09 minutes is used up"
    assert len(dataset.maintain({**COMPACT, "budget": {"minutes": 60}}).actions) == 1


@pytest.mark.parametrize("stored", [True, False])
def test_partitions_that_are_still_written_are_left_alone(place: Place, engine: Any, stored: bool) -> None:
    today = dt.datetime.now(dt.UTC).date()
    days = [today - dt.timedelta(10), today + dt.timedelta(10)]
    dataset = place.dataset(engine=engine)
    for n in range(5):
        dataset.write(
            pa.table({"day": days, "n": [n, n]}),
            partition_by="day",
            partition_columns="files" if stored else "path",
        )
    policy = {**COMPACT, "unify_schema": True, "leave_alone": "day >= CURRENT_DATE"}
    run = dataset.maintain(policy)
    assert done(run) == [("compact", f"day={days[0]}", 5, 1)]
    assert left(run) == [("compact", f"day={days[1]}", "left alone")]
    assert run.left[0]["details"] == "day >= CURRENT_DATE"
    assert str(dataset.maintain(policy)).startswith("nothing done in 1 dataset, 1 left")


def test_the_current_date_is_that_of_the_datasets_time_zone(memory: Place) -> None:
    """These two zones never have the same date."""
    now = dt.datetime.now(dt.UTC)
    west = (now - dt.timedelta(hours=12)).date()
    add_files(memory, f"day={west}", 5)
    policy = {**COMPACT, "leave_alone": "day >= CURRENT_DATE"}
    zones = {"+14:00": [], "-12:00": ["left alone"]}
    for zone, expected in zones.items():
        run = memory.dataset(engine="pyarrow", timezone=zone).maintain(policy, dry_run=True)
        assert [each["because"] for each in run.left] == expected


def test_left_alone_partitions_keep_their_schema(memory: Place) -> None:
    add_files(memory, "day=1", 1)
    add_files(memory, "day=2", 1, note=["x"])
    add_files(memory, "day=3", 1)
    dataset = memory.dataset(engine="pyarrow")
    policy = {"unify_schema": True, "leave_alone": "day = 3"}
    run = dataset.maintain(policy)
    assert done(run) == [("unify_schema", None, 1, 1)]
    assert left(run) == [("unify_schema", None, "left alone")]
    assert [len(file.schema.names) for file in dataset.files() if file.schema is not None] == [2, 2, 1]
    assert left(dataset.maintain(policy)) == [("unify_schema", None, "left alone")]


def test_a_conflict_on_one_partition_does_not_stop_the_others(local: Place) -> None:
    """Another program replaces a file while its partition is compacted."""
    add_files(local, "day=1", 8)
    add_files(local, "day=2", 5)
    table = pa.table({"n": [99]})
    dataset = local.dataset(engine="pyarrow")
    interfered = []

    def interfere(progress: Progress) -> None:
        if not interfered:
            interfered.append(progress)
            pq.write_table(table, f"{local.root}/day=1/f0.parquet")

    run = dataset.maintain(COMPACT, progress=interfere)
    assert done(run) == [("compact", "day=2", 5, 1)]
    assert left(run) == [("compact", "day=1", "conflict")]
    assert "has changed since this operation read it" in run.left[0]["details"]
    assert sorted(dataset.read("n").column("n").to_pylist()) == [0] * 12 + [99]
    again = dataset.maintain(COMPACT)
    assert done(again) == [("compact", "day=1", 8, 1)]
    assert again.left == []


def test_an_error_in_one_partition_does_not_stop_the_others(memory: Place) -> None:
    add_files(memory, "day=1", 5)
    add_files(memory, "day=2", 5)
    memory.write_files({"day=2/text.parquet": pa.table({"n": ["text"]})})
    run = memory.dataset(engine="pyarrow").maintain({**COMPACT, "unify_schema": True})
    assert done(run) == [("compact", "day=1", 5, 1)]
    assert left(run) == [("unify_schema", None, "error"), ("compact", "day=2", "error")]
    assert all("'n'" in each["details"] for each in run.left), run.left[0]["details"]


def test_a_damaged_file_stops_only_its_partition(memory: Place) -> None:
    for day in range(3):
        add_files(memory, f"day={day}", 5)
    memory.fs.pipe_file(f"{memory.root}/day=1/f0.parquet", b"PAR1 damaged")
    dataset = memory.dataset(engine="pyarrow")
    run = dataset.maintain({**COMPACT, "leave_alone": "day = 2"})
    assert done(run) == [("compact", "day=0", 5, 1)]
    assert left(run) == [(None, "day=1", "error"), ("compact", "day=2", "left alone")]
    assert "day=1/f0.parquet" in run.left[0]["details"]


def test_an_interrupted_run_keeps_its_commits(memory: Place) -> None:
    for day in range(3):
        add_files(memory, f"day={day}", 5)
    dataset = memory.dataset(engine="pyarrow")
    seen = []

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dataset.maintain(COMPACT, progress=interrupt)
    assert done(dataset.maintain(COMPACT)) == [("compact", "day=1", 5, 1), ("compact", "day=2", 5, 1)]


def test_files_beside_partition_folders_are_a_partition_of_their_own(memory: Place) -> None:
    add_files(memory, "", 5)
    add_files(memory, "old", 5)
    add_files(memory, "old/older", 2)
    dataset = memory.dataset(engine="pyarrow")
    before = memory.rows()
    run = dataset.maintain(COMPACT)
    assert done(run) == [("compact", None, 5, 1), ("compact", "old", 5, 1)]
    assert memory.rows() == before
    assert dataset.maintain(COMPACT).actions == []


def test_small_files_that_cannot_be_merged_are_not_due(memory: Place) -> None:
    """Two files of 60 % of the target do not fit into one."""
    table = pa.table({"n": np.random.default_rng(1).integers(0, 2**60, 10_000)})
    memory.write_files({f"f{n}.parquet": table for n in range(5)})
    dataset = memory.dataset(engine="pyarrow")
    target = dataset.files()[0].size_bytes / 0.6 / 1024**2
    run = dataset.maintain({"compact": {"small_files": 3, "target_mb_per_file": target}})
    assert str(run) == "nothing to do in 1 dataset"


def test_a_report_is_json(memory: Place) -> None:
    add_files(memory, "day=1", 5)
    add_files(memory, "day=2", 5)
    run = memory.dataset(engine="pyarrow").maintain({**COMPACT, "leave_alone": "day = 2"})
    assert json.loads(json.dumps(run)) == run
    lines = str(run).splitlines()
    assert re.match(r"1 operation in 1 dataset: 5 files -> 1, \d\.\d KB rewritten, ", lines[0])
    assert lines[0].endswith(", 1 left")
    assert re.search(r"/day=1: 5 files -> 1, \d\.\d KB: 5 files below 96 MB, more than 3$", lines[1])
    assert lines[2].endswith("/day=2: left alone: day = 2")


def test_wrong_policies_change_nothing(memory: Place) -> None:
    add_files(memory, "day=1", 5)
    dataset = memory.dataset(engine="pyarrow")
    state = memory.state()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**COMPACT, "leave_alone": "n > 3"}, "leave_alone: columns not found: 'n'; available columns: 'day'"),
        ({**COMPACT, "leave_alone": "day >"}, "leave_alone: "),
        ({"cluster": {"columns": ["usr"]}}, "cluster.columns not found: 'usr'; available columns: 'n'"),
        ({"cluster": {"columns": ["day"]}}, "a partition column that exists only in the path"),
    ]
    for policy, message in wrong:
        with pytest.raises(InvalidArgument, match=message.replace("(", r"\(")):
            dataset.maintain(policy)
    assert memory.state() == state
    with pytest.raises(DatasetNotFound):
        Place(f"{memory.root}-none", memory.fs).dataset(engine="pyarrow").maintain(COMPACT)


def test_a_condition_needs_partition_columns(memory: Place) -> None:
    add_files(memory, "", 5)
    with pytest.raises(InvalidArgument, match=r"is a condition over partition columns, and .* has none"):
        memory.dataset(engine="pyarrow").maintain({**COMPACT, "leave_alone": "n = 1"})


def test_partitions_without_the_clustering_columns_are_reported(memory: Place) -> None:
    add_scattered(memory, "day=1")
    add_files(memory, "day=2", 2)
    run = memory.dataset(engine="pyarrow").maintain(
        {"cluster": {"columns": ["user", "at"], "expected_reads": 0.5}}
    )
    assert [each["partition"] for each in run.actions] == ["day=1"]
    assert left(run) == [("optimize", "day=2", "error")]
    assert "not found: 'user', 'at'" in run.left[0]["details"]


def test_datasets_of_a_file_share_its_budget_and_none_stops_the_others(local: Place, tmp_path: Path) -> None:
    add_files(local, "", 5)
    second = Place(str(tmp_path / "data" / "second"), local.fs)
    add_files(second, "", 5)
    size = sum(file.size_bytes for file in local.dataset(engine="pyarrow").files())
    file = tmp_path / "policy.yml"
    file.write_text(
        f"""
        budget: {{mb: {1.5 * size / 1024**2}}}
        defaults:
          engine: pyarrow
          compact: {{small_files: 3}}
        datasets:
          - data/none
          - path: data/events
          - path: data/second
        """
    )
    planned, run = maintenance.run(file, dry_run=True), maintenance.run(file)
    assert [each["dataset"] for each in run.actions] == [local.root]
    assert [(each["dataset"], each["because"]) for each in run.left] == [
        (str(tmp_path / "data" / "none"), "error"),
        (second.root, "budget"),
    ]
    assert done(planned) == done(run)
    again = maintenance.run(maintenance.load(file))
    assert [each["dataset"] for each in again.actions] == [second.root]


def test_a_typed_error_names_missing_columns(memory: Place) -> None:
    add_files(memory, "day=1", 5)
    with pytest.raises(ColumnNotFound):
        memory.dataset(engine="pyarrow").maintain({"cluster": {"columns": ["nothing"]}})


def test_vacuum_after_some_days(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By age, whatever the retention; nothing that is younger."""
    add_files(memory, "day=1", 2, rows=3)
    dataset = memory.dataset(engine="pyarrow", retention=30 * 86400)
    now = time.time()
    dataset.delete("n = 0")
    policy = {"vacuum": {"days": 7}}
    assert done(dataset.maintain(policy)) == []
    monkeypatch.setattr(retention, "unix_time", lambda: now + 8 * 86400)
    planned = dataset.maintain(policy, dry_run=True)
    assert dataset.history(1)[0]["can_undo"]
    run = dataset.maintain(policy)
    kept = run.actions[0]["files_before"]
    assert done(run) == done(planned) == [("vacuum", None, kept, 0)]
    assert kept > 0
    assert run.actions[0]["reason"] == "files were replaced more than 7 days ago"
    assert not dataset.history(1)[0]["can_undo"]
    assert done(dataset.maintain(policy)) == []


def test_ctrl_c_in_the_middle_of_a_commit_ends_the_run(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on with the next partition otherwise."""
    for day in (1, 2):
        add_files(local, f"day={day}", 5)
    tried = []

    def interrupted(*_: Any, **__: Any) -> None:
        tried.append(True)
        raise CommitFailed("interrupted") from KeyboardInterrupt()

    monkeypatch.setattr(Transaction, "commit", interrupted)
    with pytest.raises(CommitFailed, match="interrupted"):
        local.dataset().maintain(COMPACT)
    assert len(tried) == 1
