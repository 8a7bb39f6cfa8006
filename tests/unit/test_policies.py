"""Policies and policy files: what is valid, and errors that name line, key and choices."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from parketto import Dataset, InvalidArgument, MaintenanceRun, maintenance
from parketto.maintenance import Budget, Policy, load
from parketto.maintenance.documents import parse
from parketto.planning.due import Step, in_order

EXAMPLE = Path(__file__).parents[2] / "examples" / "maintenance.yml"


def refused(text: str, tmp_path: Path) -> list[str]:
    """The problems of a policy file, without its path."""
    file = tmp_path / "policy.yml"
    file.write_text(text)
    with pytest.raises(InvalidArgument) as error:
        load(file)
    return [line.removeprefix(f"{file}, ") for line in str(error.value).splitlines()]


def test_rules_have_defaults() -> None:
    policy = Policy.of({"compact": True, "cluster": {"columns": ["user"]}})
    assert policy.compact is not None
    assert policy.cluster is not None
    assert (policy.compact.small_files, policy.compact.target_mb_per_file) == (20, 128)
    assert (policy.cluster.curve, policy.cluster.expected_reads, policy.cluster_target_mb) == ("hilbert", 0.3, 128)
    assert Policy.of(policy) is policy
    assert (
        Policy.of({"compact": {"target_mb_per_file": 64}, "cluster": {"columns": ["a"]}}).cluster_target_mb == 64
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "policy: there is nothing to do: name compact, cluster, unify_schema or vacuum"),
        ({"compact": False}, "policy: there is nothing to do: name compact, cluster, unify_schema or vacuum"),
        ({"compct": {}}, "compct: unknown key; valid keys: 'compact', 'cluster', 'unify_schema', 'vacuum', "),
        ({"compact": {"small": 3}}, "compact.small: unknown key; valid keys: 'small_files', 'target_mb_per_file'"),
        ({"compact": {"small_files": 0}}, "compact.small_files: must be greater than or equal to 1, got 0"),
        ({"compact": {"small_files": "20"}}, "compact.small_files: must be a valid integer, got '20'"),
        ({"compact": {"small_files": True}}, "compact.small_files: must be a valid integer, got True"),
        ({"compact": 20}, "compact: must be a mapping of keys to values"),
        ({"compact": {"target_mb_per_file": float("inf")}}, "compact.target_mb_per_file: must be a finite number"),
        ({"cluster": {}}, "cluster.columns: is missing"),
        ({"cluster": {"columns": "user"}}, "cluster.columns: must be a valid list, got 'user'"),
        ({"cluster": {"columns": ["a", "a"]}}, "cluster: columns names a column twice: 'a', 'a'"),
        (
            {"cluster": {"columns": ["a"], "curve": "peano"}},
            "cluster.curve: must be 'hilbert', 'zorder' or 'linear', got 'peano'",
        ),
        (
            {"cluster": {"columns": ["a"], "expected_reads": 30}},
            "cluster.expected_reads: must be less than 1, got 30",
        ),
        ({"unify_schema": "yes"}, "unify_schema: must be a valid boolean, got 'yes'"),
        ({"compact": True, "budget": {}}, "budget: the budget is empty: name mb, minutes or both"),
        ({"compact": True, "budget": {"gb": 3}}, "budget.gb: unknown key; valid keys: 'mb', 'minutes'"),
        ({"vacuum": {"after_days": 7}}, "vacuum.after_days: unknown key; valid keys: 'days'"),
        ({"vacuum": True}, "vacuum.days: is missing"),
        ({"vacuum": {"days": 0}}, "vacuum.days: must be greater than 0, got 0"),
        (
            {"compact": True, "cluster": {"columns": ["a"], "target_mb_per_file": 32}},
            "policy: compact and cluster have different target_mb_per_file (128 and 32): each would undo the work",
        ),
        ([1], "policy must be a Policy or a mapping, got [1]"),
    ],
)
def test_invalid_policies_are_refused_with_the_choices(given: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        Policy.of(given)


def test_all_problems_of_a_file_are_listed_with_their_lines(tmp_path: Path) -> None:
    text = """\
budget: {hours: 3}
defaults:
  compact:
    small_fils: 5
  engine: sparc
datasets:
  - path: events
    cluster:
      columns: [user]
      curve: spiral
  - compact: {small_files: -1}
"""
    assert refused(text, tmp_path) == [
        "line 1, budget.hours: unknown key; valid keys: 'mb', 'minutes'",
        "line 4, defaults.compact.small_fils: unknown key; valid keys: 'small_files', 'target_mb_per_file'",
        "line 5, defaults.engine: must be 'spark', 'duckdb' or 'pyarrow', got 'sparc'",
        "line 10, datasets[0].cluster.curve: must be 'hilbert', 'zorder' or 'linear', got 'spiral'",
        "line 11, datasets[1].path: is missing",
        "line 11, datasets[1].compact.small_files: must be greater than or equal to 1, got -1",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("datasets: []", "line 1, datasets: list should have at least 1 item after validation, not 0, got []"),
        ("datasets:\n  - path: a\n    path: b", "line 3, datasets[0]: the key 'path' occurs twice"),
        ("datasets:\n  - path: [a", "line 2: not valid YAML: "),
        ("datasets:\n  - !!python/name:os.system x", "line 2: not valid YAML: could not determine a constructor"),
        ("datasets:\n  - 1: a", "line 2, datasets[0]: the key 1 is not a text; quote it"),
        ("datasets:\n  - &a [*a]", "line 2, datasets[0][0]: an alias that contains itself"),
        ("datasets:\n  - 7", "line 2, datasets[0]: must be a mapping of keys to values"),
        ("datasets:\n  - path: a", "line 2, datasets[0]: there is nothing to do: name compact, cluster, "),
        ("data:\n  - path: a", "line 1, data: unknown key; valid keys: 'datasets', 'defaults', 'budget'"),
        ("defaults: 5\ndatasets: [a]", "line 1, defaults: must be a mapping of keys to values"),
        (
            "defaults:\n  cluster: {expected_reads: 0.2}\ndatasets:\n  - path: a",
            "line 2, datasets[0].cluster.columns: is missing",
        ),
        (
            "datasets:\n  - path: a\n    leave_alone: 2026-01-01\n    compact: true",
            "line 3, datasets[0].leave_alone: must be a valid string, got 2026-01-01",
        ),
    ],
)
def test_problems_name_line_and_key(text: str, problem: str, tmp_path: Path) -> None:
    assert any(found.startswith(problem) for found in refused(text, tmp_path)), refused(text, tmp_path)


@pytest.mark.parametrize("text", ["", "just text", "- a"])
def test_a_file_of_another_kind_names_the_keys(text: str, tmp_path: Path) -> None:
    (problem,) = refused(text, tmp_path)
    assert problem.endswith("expected the keys 'datasets', 'defaults', 'budget'")


def test_datasets_take_what_they_lack_from_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "policy.yml"
    file.write_text(
        """
        defaults:
          engine: duckdb
          compact: {small_files: 50, target_mb_per_file: 256}
          storage_options: {anon: true}
          leave_alone: day >= CURRENT_DATE
        datasets:
          - s3://lake/one
          - path: two
            engine: pyarrow
            compact: {small_files: 5}
            leave_alone: null
          - path: /three
            compact: false
            unify_schema: true
            storage_options: {secret: hush}
        """
    )
    one, two, three = load(file).datasets
    assert (one.path, two.path, three.path) == ("s3://lake/one", str(tmp_path / "two"), "/three")
    assert (one.engine, two.engine) == ("duckdb", "pyarrow")
    assert one.compact is not None
    assert two.compact is not None
    assert (one.compact.small_files, one.compact.target_mb_per_file) == (50, 256)
    assert (two.compact.small_files, two.compact.target_mb_per_file) == (5, 256)
    assert (one.leave_alone, two.leave_alone) == ("day >= CURRENT_DATE", None)
    assert three.compact is None
    assert three.storage_options == {"anon": True, "secret": "hush"}
    assert "hush" not in repr(load(file))


def test_merge_keys_of_yaml_work() -> None:
    text = "base: &base {small_files: 5, target_mb_per_file: 64}\nown:\n  <<: *base\n  small_files: 7\n"
    document = parse(text, "policy.yml")
    assert document.value["own"] == {"small_files": 7, "target_mb_per_file": 64}
    assert document.line(("own", "small_files")) == 4


def test_a_missing_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        maintenance.run(tmp_path / "none.yml")


def test_a_used_up_file_budget_leaves_datasets_unexamined(tmp_path: Path) -> None:
    file = tmp_path / "policy.yml"
    file.write_text("datasets: [{path: a, compact: true}]")
    found = load(file).model_copy(update={"budget": Budget(minutes=1e-12)})
    run = maintenance.run(found)
    assert [(each["operation"], each["because"]) for each in run.left] == [(None, "budget")]


@pytest.mark.parametrize("missing", ["pydantic", "yaml"])
def test_a_missing_package_is_an_error_that_names_the_extra(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from parketto import Dataset, EngineUnavailable\n"
        "try: import parketto.maintenance\n"
        "except EngineUnavailable as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install 'parketto[maintenance]'" in found


def test_value_is_what_queries_save_per_byte_rewritten() -> None:
    """Opening a file counts like reading 4 MB, so removing many small files is worth more than some clustering."""
    files = Step("compact", "a", "", 100, 1, rewritten_bytes=10 * 2**20, saved_bytes=99 * 4 * 2**20)
    reads = Step("optimize", "b", "", 1, 1, rewritten_bytes=100 * 2**20, saved_bytes=0.8 * 100 * 2**20)
    same = Step("compact", "c", "", 100, 1, rewritten_bytes=10 * 2**20, saved_bytes=99 * 4 * 2**20)
    assert in_order([reads, same, files]) == [files, same, reads]


def test_long_reports_are_cut() -> None:
    left = [
        {"dataset": "t", "operation": "compact", "partition": f"n={n}", "because": "budget", "details": "none"}
        for n in range(50)
    ]
    run = MaintenanceRun(datasets=["t"], dry_run=True, actions=[], left=left, seconds=0.0)
    assert len(str(run).splitlines()) == 22
    assert str(run).endswith("… and 30 more")
    assert repr(run) == "<MaintenanceRun: nothing done in 1 dataset, 50 left>"


def test_the_example_file_runs(tmp_path: Path) -> None:
    file = Path(shutil.copy(EXAMPLE, tmp_path))
    days = [dt.date(2026, 1, 1), dt.date(2999, 1, 1)]
    events = Dataset(tmp_path / "lake" / "events", engine="pyarrow")
    for n in range(21):
        events.write(pa.table({"day": days, "user": [n, n], "at": [n, 0]}), partition_by="day")
    quotes = Dataset(tmp_path / "lake" / "quotes", engine="pyarrow")
    for n in range(6):
        quotes.write(pa.table({"id": [n], **({"note": ["x"]} if n else {})}), schema="evolve")
    run = maintenance.run(file)
    assert [(each["operation"], each["partition"]) for each in run.actions] == [
        ("compact", "day=2026-01-01"),
        ("unify_schema", None),
        ("compact", None),
    ]
    assert [(each["partition"], each["because"]) for each in run.left] == [("day=2999-01-01", "left alone")]
    assert events.count() == 42
    assert quotes.read("note").column("note").null_count == 1
    assert maintenance.run(file).actions == []
