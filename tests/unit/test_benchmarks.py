"""The parts of the benchmarks that determine their results: hashes, ratios, gates, shares."""

from __future__ import annotations

import argparse
import doctest
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import compare
import run
from harness import boxes, checks, data, planning, queries, report, request, skipping, targets
from harness.checks import Reader
from harness.contestants import contestants
from harness.request import Request
from harness.targets import TARGETS, Target
from harness.work import ALL_JOBS, JOBS, request_for


def rows_of(*given: tuple[str, float, str]) -> list[dict[str, object]]:
    measured = dict.fromkeys(report.MEASURED, 1)
    return [
        {
            "job": "update",
            "scale": 1,
            "contestant": name,
            "outcome": outcome,
            "error": "",
            **measured,
            "seconds": s,
        }
        for name, s, outcome in given
    ]


def result_of(*given: tuple[str, float, str]) -> dict[str, object]:
    return {"summary": report.summarise(rows_of(*given), contestants())}


@pytest.mark.parametrize("module", [checks, queries, report, request])
def test_doctests_pass(module: object) -> None:
    assert doctest.testmod(module).failed == 0


def test_ratio_compares_medians_with_the_closest_engine() -> None:
    found = report.summarise(
        rows_of(
            ("parketto/pyarrow", 9.0, "ok"),
            *[("parketto/duckdb", seconds, "ok") for seconds in (1.0, 2.0, 50.0)],
            ("duckdb", 3.0, "ok"),
        ),
        contestants(),
    )
    assert found[-1]["against"] == "parketto/duckdb"
    assert found[-1]["ratio"] == 1.5


def test_one_wrong_round_makes_a_row_wrong() -> None:
    [row] = report.summarise(rows_of(("duckdb", 1.0, "ok"), ("duckdb", 1.0, "WRONG")), contestants())
    assert row["outcome"] == "WRONG"
    assert "WRONG" in report.lines([row])[0][2]


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(1.0, "ok"), (1.6, "ok"), (1.7, "SLOWER"), (0.1, "too fast to count")]
)
def test_gate_fails_only_if_the_ratio_fell_beyond_the_tolerance(seconds: float, verdict: str) -> None:
    before = result_of(("parketto/duckdb", 1.0, "ok"), ("duckdb", 2.0, "ok"))
    now = result_of(("parketto/duckdb", seconds, "ok"), ("duckdb", 2.0, "ok"))
    [line] = compare.compare(before, now, tolerance=0.4, floor=0.15)
    assert line[-1] == verdict


def test_the_baseline_can_be_compared_with_itself() -> None:
    with open(compare.BASELINE) as file:
        baseline = json.load(file)
    lines = compare.compare(baseline, baseline, compare.TOLERANCE, compare.FLOOR_SECONDS)
    assert {line[-1] for line in lines} >= {"ok"}
    assert not any(line[-1] == "SLOWER" for line in lines)


@pytest.mark.parametrize("job", ALL_JOBS)
def test_requests_round_trip_through_json(job: str, tmp_path: Path) -> None:
    made = data.write(data.KINDS[ALL_JOBS[job].kind], str(tmp_path / "data"), 1_000, 4)
    request = request_for(ALL_JOBS[job], made, str(tmp_path))
    assert Request.of(json.loads(json.dumps(request.plain()))) == request
    files = data.parquet_files(made.root)
    found = Reader(files).digest(files, request.query())
    assert found.rows <= (2_000 if request.operation == "append" else 1_050)


def test_digests_depend_on_rows_and_not_on_their_order(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, 3], "t": pa.array([1, 2, 3], pa.timestamp("us", "UTC")), "s": ["x", None, "z"]})
    paths = []
    for name, rows in {"a": table, "b": table.take([2, 0, 1]), "c": table.take([0, 1, 1])}.items():
        paths.append(str(tmp_path / f"{name}.parquet"))
        pq.write_table(rows, paths[-1])
    reader = Reader(paths[:1])
    first, turned, other = (reader.digest([path]) for path in paths)
    assert first == turned
    assert first != other


def test_generated_data_is_deterministic(tmp_path: Path) -> None:
    first, second = (data.write(data.KINDS["wide"], str(tmp_path / name), 50, 2) for name in "ab")
    assert pq.read_table(first.root).equals(pq.read_table(second.root))


def test_fingerprint_detects_writes_through_hard_links(tmp_path: Path) -> None:
    made = data.write(data.KINDS["narrow"], str(tmp_path / "data"), 10, 2)
    before = data.fingerprint(made.root)
    data.link_fresh(made.root, str(tmp_path / "linked"))
    (tmp_path / "linked" / "part-00000.parquet").unlink()
    assert data.fingerprint(made.root) == before
    with open(tmp_path / "linked" / "part-00001.parquet", "ab") as file:
        file.write(b"!")
    assert data.fingerprint(made.root) != before


def test_share_of_row_groups_read_for_a_sorted_and_a_shuffled_column(tmp_path: Path) -> None:
    """Sorted by `a`: a range of 1 % needs one or two of ten row groups by `a`, and all of them by `b`."""
    rng = np.random.default_rng(1)
    table = pa.table({"a": np.arange(10_000), "b": rng.permutation(10_000)})
    path = str(tmp_path / "one.parquet")
    pq.write_table(table, path, row_group_size=1_000)
    groups = skipping.row_groups([path], ["a", "b"])
    by_a, by_b = (skipping.predicates(table, [name], 50)["range"] for name in "ab")
    assert 0.1 <= skipping.shares(groups, by_a)[0] <= 0.2
    assert skipping.shares(groups, by_b) == (1.0, 1.0)


def test_box_bounds_are_values_of_the_data() -> None:
    table = pa.table({"a": [1, 5, 9, 2], "b": ["w", "x", "y", "z"]})
    rows = list(zip(*(table.column(name).to_pylist() for name in "ab"), strict=True))
    for box in skipping.predicates(table, ["a", "b"], 20)["box"]:
        low_a, high_a = box["a"]
        assert low_a <= high_a
        assert {row[0] for row in rows} >= {low_a, high_a}


def test_the_drawing_is_small() -> None:
    side = [((0.0, 0.5), (0.0, 1.0)), ((0.5, 1.0), (0.0, 1.0))] * 128
    drawing = boxes.draw({"linear": side, "z-order": side, "hilbert": side})
    assert drawing.count("<rect") == 3 * 256 + 1
    assert len(drawing) < 200_000


def test_runs_of_different_contestants_are_combined(tmp_path: Path) -> None:
    """Spark and the other engines are measured separately; tables and ratios cover both."""
    paths = []
    for number, given in enumerate(
        ([("parketto/duckdb", 1.0, "ok")], [("duckdb", 3.0, "ok"), ("duckdb", 5.0, "ok")])
    ):
        paths.append(str(tmp_path / f"{number}.json"))
        Path(paths[-1]).write_text(json.dumps({"base_rows": 10, "rounds": 1, "runs": rows_of(*given)}))

    found = run.together(paths, contestants())

    assert [(row["contestant"], row["rounds"], row["ratio"]) for row in found["summary"]] == [
        ("parketto/duckdb", 1, 1.0),
        ("duckdb", 2, 4.0),
    ]


def test_runs_of_different_sizes_are_not_combined(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.json").write_text(json.dumps({"base_rows": number, "rounds": 1, "runs": []}))

    with pytest.raises(SystemExit, match="different numbers of rows"):
        run.together([str(tmp_path / "1.json"), str(tmp_path / "2.json")], contestants())


def test_untouched_files_count_with_what_they_had(tmp_path: Path) -> None:
    """Results of 100,000 files are checked by reading those that are new; a lost file and a lost row both show."""
    made = data.write(data.KINDS["partitioned"], str(tmp_path / "data"), 400, 4)
    files = data.parquet_files(made.root)
    reader = Reader(files)
    everything = reader.digest(files)
    assert reader.digest_of_result([], files) == everything
    assert reader.digest_of_result(files[:3], files[3:]) == everything
    assert reader.digest_of_result(files[:3], files[4:]) != everything
    shorter = str(Path(files[0]).with_name("shorter.parquet"))
    table = pq.read_table(files[0], partitioning=None)
    pq.write_table(table.slice(1), shorter)
    assert reader.digest_of_result([shorter], files[1:]) != everything


def test_repeated_files_have_rows_that_differ_by_their_folder(tmp_path: Path) -> None:
    made = data.write(data.KINDS["days"], str(tmp_path / "data"), 2_000, 4)
    assert (made.files, made.rows, data.days(made)) == (200, 2_000, 2)
    assert len({path.stat().st_ino for path in (tmp_path / "data").rglob("*.parquet")}) == 200
    request = request_for(JOBS["delete-day"], made, str(tmp_path))
    files = data.parquet_files(made.root)
    reader = Reader(files)
    assert reader.digest(files, request.query()).rows == 1_999
    one, other = (reader.digest([path for path in files if f"day={day}" in path]) for day in (0, 1))
    assert one != other


def arguments_of(*given: str) -> argparse.Namespace:
    return run.parse(given)


@pytest.mark.parametrize("mode", [["--targets"], ["--quick"], []])
def test_every_target_is_measured(mode: list[str]) -> None:
    """By `--targets`, by a quick run and by a full one: the job, its scale, Parketto and the peer."""
    arguments, known = arguments_of(*mode), contestants()
    for target in TARGETS:
        assert target.job in arguments.jobs
        assert target.scale in JOBS[target.job].scales
        names = {contestant.name for contestant in run.takes_part(target.job, known, arguments)}
        assert target.contestants <= names, (target.job, mode)


def test_variants_take_part_only_where_they_mean_something() -> None:
    names = {contestant.name for contestant in run.takes_part("delete-scattered", contestants(), arguments_of())}
    assert names >= {"parketto/duckdb", "delta"}
    assert not any(name.endswith(("alone", "indexed")) for name in names)


def judged(target: Target, **rows: tuple[float, float]) -> list[str]:
    """The verdicts on seconds and peak memory, `ours` and `peer`."""
    names = {"ours": target.ours[0], "peer": target.peer, "first": target.ours[0]}
    measured = [
        {
            "job": target.job,
            "scale": 1 if name == "first" else target.scale,
            "contestant": names[name],
            "outcome": "ok",
            "seconds": seconds,
            "peak_mb": peak,
        }
        for name, (seconds, peak) in rows.items()
    ]
    found = {(row["job"], row["scale"], row["contestant"]): row for row in measured}
    return [str(targets._judge(target, target.ours[0], names["peer"], found)["verdict"])]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "rows", "verdict"),
    [
        (Target("update", "delta", 1.5), {"ours": (1, 9), "peer": (1.5, 9)}, "met"),
        (Target("update", "delta", 1.5), {"ours": (1, 9), "peer": (1.4, 9)}, "missed: time"),
        (Target("update", "delta", most=2), {"ours": (2, 9), "peer": (1, 9)}, "met"),
        (Target("update", "delta", most=2), {"ours": (2.1, 9), "peer": (1, 9)}, "missed: time"),
        (Target("update", "delta", 1, peak_mb=8), {"ours": (1, 9), "peer": (1, 1)}, "missed: memory"),
        (Target("update", "delta", 2, peak_mb=8), {"ours": (1, 9), "peer": (1, 1)}, "missed: time, memory"),
        (Target("update", "delta", 1), {"ours": (1, 9)}, "not measured"),
        (Target("plan", None, scale=10, most_growth=1.5), {"first": (1, 9), "ours": (14, 9)}, "met"),
        (Target("plan", None, scale=10, most_growth=1.5), {"first": (1, 9), "ours": (16, 9)}, "missed: growth"),
    ],
)
def test_verdicts(target: Target, rows: dict[str, tuple[float, float]], verdict: str) -> None:
    assert judged(target, **rows) == [verdict]


def test_failures_are_verdicts_too() -> None:
    rows = report.summarise(rows_of(("parketto/duckdb", 1.0, "ok"), ("delta", 1.0, "FAILED")), contestants())
    target = Target("update", "delta", 1, ours=("parketto/duckdb",))
    found = {(row["job"], row["scale"], row["contestant"]): row for row in rows}
    assert targets._judge(target, "parketto/duckdb", "delta", found)["verdict"] == "delta: FAILED"


def test_growth_has_a_table_for_jobs_of_the_same_scales() -> None:
    rows = [
        {**row, "job": job, "scale": scale}
        for job, scales in {
            "plan": (1, 10),
            "small-upsert": (1, 4),
            "small-delete": (1, 4),
            "update": (1,),
        }.items()
        for scale in scales
        for row in report.summarise(rows_of(("parketto/pyarrow", 1.0, "ok")), contestants())
    ]
    assert [(len(headings), len(cells)) for headings, cells in report.growth(rows)] == [(6, 1), (6, 2)]
    assert {row["job"] for row in report.at_one_scale(rows)} == {"update"}


def test_made_up_footers_become_a_plan_with_all_files() -> None:
    snapshot = planning.described(1_000)
    plan = planning.planned(snapshot)
    planning.check(plan, snapshot)
    with pytest.raises(AssertionError, match="lost files"):
        planning.check(plan, planning.described(1_001))
