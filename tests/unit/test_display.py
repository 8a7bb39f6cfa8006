"""Short forms of datasets, files, plans and results, as text and as HTML. Results are plain mappings."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import parketto
from parketto import Dataset
from parketto.arguments import Thresholds
from parketto.display import Result
from parketto.planning.rewrite import plan_compaction


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset with 150 files, and names that would be markup in HTML."""
    found = Dataset(tmp_path_factory.mktemp("display") / "<b>events", engine="pyarrow")
    rows = pa.table({"<i>id": list(range(150)), "text": ["x" * 50] * 150})
    found.write(rows, max_rows_per_file=1)
    return found


def test_a_dataset(events: Dataset) -> None:
    assert repr(events) == f"Dataset({events.path!r}, engine='pyarrow')"
    html = events._repr_html_()
    assert "&lt;b&gt;events" in html
    assert "<b>events" not in html


def test_a_dataset_that_does_not_exist_can_be_shown() -> None:
    assert "s3://bucket/none" in Dataset("s3://bucket/none", engine="pyarrow")._repr_html_()


def test_files(events: Dataset) -> None:
    file = events.files()[0]
    assert repr(file).startswith(f"<FileInfo {file.path!r}: 1 row, ")
    assert repr(file).endswith(", 1 row group>")
    assert len(repr(file.row_groups)) < 100
    assert "&lt;i&gt;id" in file._repr_html_()
    assert "<i>id" not in file._repr_html_()


def test_plans(events: Dataset) -> None:
    plan = plan_compaction(events.files(), Thresholds.of(None, None))
    assert repr(plan).startswith("<RewritePlan: compact: 150 files -> 1 in 1 group, ")
    assert repr(plan.groups[0]).startswith("<FileGroup: 150 files -> 1 in ")
    assert "&lt;b&gt;events" in plan._repr_html_()
    nothing = plan_compaction(events.files()[:1], Thresholds.of(None, None))
    assert repr(nothing) == "<RewritePlan: compact: nothing to rewrite in 1 file>"
    groups = parketto.plan_compaction_groups(events.files(), 128)
    assert len(repr(groups)) < 2000


def test_a_result_with_150_paths_is_short_and_complete(events: Dataset) -> None:
    stats = events.compact(dry_run=True)
    assert len(repr(stats)) < 1500
    assert "… 147 more" in repr(stats)
    assert stats["planned_groups"] is not None
    assert len(stats["planned_groups"][0]) == 150
    assert len(json.dumps(stats)) > 5000
    html = stats._repr_html_()  # type: ignore[attr-defined]
    assert "before_file_count" in html
    assert "&lt;b&gt;events" in html
    assert "<b>events" not in html


def test_results_are_dicts() -> None:
    plain = {"inserted": 1, "files": [f"{n}" for n in range(9)]}
    result = Result(plain)
    assert result == plain
    assert plain == result
    assert dict(result) == plain
    assert pickle.loads(pickle.dumps(result)) == plain
    assert json.loads(json.dumps(result)) == plain
    assert {**result} == plain


def test_short_results_print_as_dicts_do() -> None:
    plain: dict[str, Any] = {"z": 1, "a": [1, "b", None], "nested": {"y": {"x": [{"w": 1.5}]}}, "path": None}
    assert repr(Result(plain)) == repr(plain)


def test_long_texts_and_mappings_are_cut() -> None:
    shown = repr(Result(text="x" * 10_000, many=dict.fromkeys(range(10_000))))
    assert len(shown) < 1000
    assert "… 9,976 more" in shown


def test_lists_of_mappings_are_tables_in_html() -> None:
    html = Result(damaged=[{"path": f"{n}.parquet", "reason": "<script>"} for n in range(30)])._repr_html_()
    assert "<th>path</th><th>reason</th>" in html
    assert html.count("&lt;script&gt;") == 20
    assert "… 10 more" in html
    assert "<script>" not in html


def test_long_mappings_are_cut_in_html() -> None:
    html = Result(partitions=dict.fromkeys(range(1000), 7))._repr_html_()
    assert html.count("<td") == 1 + 20 + 1
    assert "… 980 more" in html


def test_every_result_is_json(tmp_path: Path) -> None:
    """Results of operations go into logs, queues and files of other programs."""
    rows = pa.table({"day": [1, 2], "id": [1, 2], "n": [1.5, None]})
    events = Dataset(tmp_path / "events", engine="pyarrow")
    more = pa.table({"day": [1], "id": [7], "n": [0.5]})
    results: list[Any] = [
        events.write(rows, dry_run=True),
        events.write(rows, partition_by="day", expect={"id": "id > 0"}),
        events.write(more, partition_by="day"),
        events.merge(more, "id", details=True, backup=tmp_path / "backups"),
        events.suggest(["id = 1", "n"]),
        events.optimize(["id", "n"]),
        events.compact(),
        events.maintain({"compact": {"small_files": 1}}),
        events.check(deep=True),
        events.update("id = 1", {"n": 2.5}),
        events.deduplicate("id"),
        events.repartition(None),
        events.alter(add={"note": "string"}),
        events.unify_schema(),
        backup := events.delete("id = 2", backup=tmp_path / "backups"),
        events.restore(str(backup["backup_path"])),
    ]
    for result in results:
        assert isinstance(result, dict), result
        assert json.loads(json.dumps(result)) == result
        assert len(repr(result)) < 1500
        assert result._repr_html_().startswith("<table>")  # type: ignore[attr-defined]


def test_what_shows_a_dataset_is_short_and_json(events: Dataset) -> None:
    """Also lists, and results with methods of their own."""
    events.delete("`<i>id` = 7")
    mappings: list[Any] = [events.health(), events.diff(1), events.recover()]
    lists: list[Any] = [events.history(), events.partitions()]
    for found in (*mappings, *lists):
        plain = dict(found) if isinstance(found, dict) else list(found)
        assert found == plain
        assert plain == found
        assert json.loads(json.dumps(found)) == plain
        assert len(repr(found)) < 2500
        assert "<table>" in found._repr_html_()
        assert "<b>events" not in found._repr_html_()
    assert pickle.loads(pickle.dumps(events.history())) == events.history()


def test_a_recovery_keeps_its_attributes(events: Dataset) -> None:
    found = events.recover()
    assert not found
    assert (found.action, found.operation, found.staging_removed) == ("none", None, 0)
    assert found["action"] == "none"
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = found.nothing_like_this
