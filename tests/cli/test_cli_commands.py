"""Every command as a user runs it: in a process of its own, on the PyArrow engine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from helpers import oracle
from helpers.cli import fails, fresh, lines, parketto, result, small_dataset, table_of
from parketto import Dataset
from parketto.cli import queries


@pytest.fixture
def events(tmp_path: Path) -> str:
    return small_dataset(tmp_path / "events")


def test_dry_run_shows_a_tree_and_changes_nothing(events: str) -> None:
    before = oracle.file_state(events)
    shown = lines("compact", events, "--dry-run")
    assert shown[0].startswith("compact would turn 8 files into 2, and rewrite ")
    assert shown[1].startswith("├── day=1: 4 files → 1 file, about ")
    assert shown[2] == "│   └── 4 row groups decoded and encoded"
    assert shown[-1] == "└── codec: snappy"
    assert oracle.file_state(events) == before
    stats = result("compact", events, "--dry-run")
    assert [(each["files_after"], each["rows"]) for each in stats["planned_rewrites"]] == [(1, 40), (1, 40)]


def test_compact_then_nothing_to_do(events: str) -> None:
    assert lines("compact", events)[0].startswith("compact: 8 files → 2, ")
    assert lines("compact", events)[0].startswith("nothing to compact: ")


def test_partitions_and_thresholds_limit_a_compaction(events: str) -> None:
    stats = result("compact", events, "--partition", "day=1", "--target-rows", 20, "--compression", "zstd")
    assert (stats["before_file_count"], stats["after_file_count"], stats["compression_codec"]) == (4, 2, "zstd")


def test_optimize_says_what_queries_gain(tmp_path: Path) -> None:
    root = str(tmp_path / "clicks")
    rows = {"user": [n * 7919 % 10_007 for n in range(20_000)], "at": list(range(20_000))}
    Dataset(root, engine="pyarrow").write(pa.table(rows), row_group_rows=500)
    shown = lines("optimize", root, "--columns", "user,at", "--target-rows", 1000, "--dry-run")
    gain = next(line for line in shown if "user:" in line)
    assert "a value over 99 % → 23 %, a range of 1 % 100 % → 24 %" in gain
    advice = result("suggest", root, "user = 7", "at BETWEEN 5 AND 9", "--target-mb", 0.01)
    assert sorted(advice["suggestions"][0]["columns"]) == ["at", "user"]
    assert "parketto optimize" in lines("suggest", root, "user = 7", "--target-mb", 0.01)[-1]
    stats = result("optimize", root, "--columns", "user", "--columns", "at", "--target-rows", 1000)
    assert stats["zorder_columns"] == ["user", "at"]


def test_replays_say_that_nothing_was_changed(events: str) -> None:
    request = ("delete", events, "--where", "id < 10", "--commit-id", "job:1", "--yes")
    assert lines(*request)[0].startswith("deleted 10 rows")
    number = Dataset(events).history()[0]["number"]
    for more in ((), ("--dry-run",)):
        assert lines(*request, *more) == [f"already done by commit {number}: nothing was changed"]
    assert result(*request)["repeated_commit"] == number
    said = fails(1, "delete", events, "--where", "id < 20", "--commit-id", "job:1", "--yes")
    assert f"'job:1' belongs to commit {number}" in said
    new = Path(events).with_name("new.csv")
    new.write_text("id,day,price,name\n1,1,2.5,x\n")
    for command in (("write", events, str(new)), ("merge", str(new), events, "--keys", "id")):
        lines(*command, "--commit-id", f"{command[0]}:1")
        (said,) = lines(*command, "--commit-id", f"{command[0]}:1")
        assert said.startswith("already done by commit ")


def test_a_dry_merge_of_equal_rows_says_that_files_may_stay(events: str) -> None:
    """A dry run does not compare values; the merge leaves files alone whose rows have them already."""
    same = Path(events).with_name("same.parquet")
    pq.write_table(Dataset(events, engine="pyarrow").read(where="id < 3"), same)
    request = ("merge", str(same), events, "--keys", "id")
    shown = lines(*request, "--dry-run")
    assert "files that would be rewritten, unless their rows have these values already" in shown[1]
    stats = result(*request)
    assert (stats["updated"], stats["rewritten_files"]) == (3, [])


def test_deletes_and_updates(events: str) -> None:
    stats = result("delete", events, "--where", "id < 3", "--yes")
    assert (stats["rows_matched"], stats["rows_after"]) == (3, 77)
    assert (
        lines("update", events, "--where", "id = 5", "--set", "name='x=y'", "--set", "price=price + 1", "-y")[0]
        == "updated 1 of 77 rows"
    )
    (row,) = table_of(events).filter(pa.compute.field("id") == 5).to_pylist()
    assert (row["name"], row["price"]) == ("x=y", 6.0)
    assert lines("delete", events, "--where", "id = 12345") == ["no rows to delete", "└── 0 of 8 files searched"]


def test_delete_by_keys_from_a_file(events: str, tmp_path: Path) -> None:
    (tmp_path / "keys.csv").write_text("id\n7\n8\n999\n")
    stats = result("delete", events, "--keys-from", tmp_path / "keys.csv", "--keys", "id", "--yes")
    assert stats["rows_matched"] == 2


def test_duplicates_are_removed(events: str, tmp_path: Path) -> None:
    result("write", events, os.path.join(events, "day=1"))
    assert lines("deduplicate", events, "--keys", "id", "--yes")[0] == "deleted 40 rows: 120 rows → 80"


def test_merge_of_a_csv_file(events: str, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("id,day,price,name\n1,1,9.5,new\n1000,2,1.5,more\n")
    options = ("--keys", "id", "--schema", "cast")
    planned = lines("merge", tmp_path / "new.csv", events, *options, "--dry-run")
    assert planned[0] == "merge would have: 1 inserted, 1 updated, 0 deleted; 81 rows afterwards"
    stats = result("merge", tmp_path / "new.csv", events, *options)
    assert (stats["inserted"], stats["updated"], stats["total"]) == (1, 1, 81)
    assert len(stats["rewritten_files"]) == 1


def test_a_full_merge_asks_because_it_deletes(events: str, tmp_path: Path) -> None:
    pq.write_table(table_of(events).slice(0, 79), tmp_path / "new.parquet")
    refused = fails(2, "merge", tmp_path / "new.parquet", events, "--keys", "id", "--strategy", "full_merge")
    assert "this would delete 1 row (0 inserted, 79 updated)" in refused
    stats = result("merge", tmp_path / "new.parquet", events, "--keys", "id", "--strategy", "full_merge", "--yes")
    assert stats["deleted"] == 1


@pytest.mark.parametrize("strategy", ["upsert", "update", "deduplicate"])
def test_a_merge_asks_before_it_deletes_duplicates_of_the_target(tmp_path: Path, strategy: str) -> None:
    (tmp_path / "old.csv").write_text("id,n\n1,1\n1,2\n2,3\n")
    (tmp_path / "new.csv").write_text("id,n\n1,9\n")
    result("write", tmp_path / "ds", tmp_path / "old.csv")
    merge = ("merge", tmp_path / "new.csv", tmp_path / "ds", "--keys", "id", "--strategy", strategy)
    assert "this would delete 1 row (0 inserted, 1 updated)" in fails(2, *merge)
    assert result(*merge, "--yes")["deleted"] == 1
    assert result(*merge)["updated"] == 1, "it does not ask if nothing would be deleted"


def test_change_records_ask_before_they_delete_duplicates_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("id,n\n1,1\n1,2\n2,3\n")
    (tmp_path / "new.csv").write_text("id,n\n1,9\n")
    result("write", tmp_path / "ds", tmp_path / "old.csv")
    apply = ("apply-changes", tmp_path / "new.csv", tmp_path / "ds", "--keys", "id", "--sequence-by", "n")
    assert "this would delete 1 row (0 inserted, 1 updated)" in fails(2, *apply)
    assert result(*apply, "--yes")["deleted"] == 1


def test_change_records(tmp_path: Path) -> None:
    records = '{"id": 1, "at": 1, "op": "u"}\n{"id": 2, "at": 2, "op": "u"}\n{"id": 1, "at": 3, "op": "d"}\n'
    (tmp_path / "changes.jsonl").write_text(records)
    command = (
        "apply-changes",
        tmp_path / "changes.jsonl",
        tmp_path / "users",
        "--keys",
        "id",
        "--sequence-by",
        "at",
    )
    stats = result(*command, "--delete-when", "op = 'd'", "--except-columns", "op")
    assert (stats["inserted"], stats["total"]) == (1, 1)


class TestWrite:
    """Sources of all kinds."""

    def test_several_files_are_one_commit(self, tmp_path: Path) -> None:
        for n in range(3):
            (tmp_path / f"{n}.csv").write_text(f"id,day\n{n},{n}\n")
        files = [tmp_path / f"{n}.csv" for n in range(3)]
        planned = lines("write", tmp_path / "new", *files, "--partition-by", "day", "--dry-run")
        assert planned[:2] == ["would write 3 rows", "├── 3 partitions"]
        assert not (tmp_path / "new").exists()
        stats = result("write", tmp_path / "new", *files, "--partition-by", "day")
        assert (stats["rows_written"], stats["files_written"]) == (3, 3)
        assert stats["source_files"] == [str(file) for file in files]
        assert len(result("history", tmp_path / "new")) == 1

    @pytest.mark.parametrize("form", ["csv", "json", "arrow"])
    def test_stdin(self, tmp_path: Path, form: str) -> None:
        table = pa.table({"id": [1, 2], "name": ["a", "b"]})
        stream = pa.BufferOutputStream()
        with ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        sent = {
            "csv": b"id,name\n1,a\n2,b\n",
            "json": b'{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n',
            "arrow": stream.getvalue().to_pybytes(),
        }[form]
        done = parketto("write", tmp_path / "new", "-", "--format", form, "--json", stdin=sent)
        assert json.loads(done.stdout)["source_files"] == ["-"]
        assert table_of(str(tmp_path / "new")).to_pylist() == table.to_pylist()

    def test_stdin_needs_a_format(self, tmp_path: Path) -> None:
        assert "pass --format csv, json, arrow or parquet" in fails(2, "write", tmp_path / "new", "-")

    def test_arrow_files_and_parquet_folders(self, events: str, tmp_path: Path) -> None:
        table = table_of(events)
        with ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
            writer.write_table(table)
        assert result("write", tmp_path / "new", tmp_path / "a.arrow")["rows_written"] == 80
        assert result("write", tmp_path / "new", events)["rows_written"] == 80
        assert table_of(str(tmp_path / "new")).num_rows == 160

    def test_an_overwrite_asks(self, events: str, tmp_path: Path) -> None:
        (tmp_path / "new.csv").write_text("id,day,price,name\n1,1,9.5,new\n")
        before = oracle.file_state(events)
        refused = fails(2, "write", events, tmp_path / "new.csv", "--mode", "overwrite")
        assert "this would replace the rows of 8 files by 1 row" in refused
        assert oracle.file_state(events) == before
        assert result("write", events, tmp_path / "new.csv", "--mode", "overwrite", "--yes")["files_replaced"] == 8

    def test_expectations(self, tmp_path: Path) -> None:
        (tmp_path / "new.csv").write_text("id,price\n1,1.5\n2,-1\n")
        failed = fails(1, "write", tmp_path / "new", tmp_path / "new.csv", "--expect", "price > 0")
        assert "1 of 2 rows break expectations" in failed
        assert "--on-violation drop" in failed
        stats = result(
            "write", tmp_path / "new", tmp_path / "new.csv", "--expect", "price > 0", "--on-violation", "drop"
        )
        assert (stats["rows_written"], stats["rows_violating"]) == (1, 1)


class TestRead:
    """Rows in all formats."""

    def test_columns_conditions_and_limits(self, events: str) -> None:
        done = parketto("read", events, "--columns", "id,name", "--where", "id >= 70", "--limit", 3, "--json")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(rows) == 3
        assert all(list(row) == ["id", "name"] and row["id"] >= 70 for row in rows)

    def test_csv_and_parquet_files(self, events: str, tmp_path: Path) -> None:
        assert parketto("read", events, "-o", tmp_path / "out.csv").stdout == ""
        assert (tmp_path / "out.csv").read_text().count("\n") == 81
        parketto("read", events, "-o", tmp_path / "out.parquet")
        assert pq.read_table(tmp_path / "out.parquet").sort_by("id") == table_of(events).sort_by("id")

    def test_parquet_to_a_pipe(self, events: str) -> None:
        sent = parketto("read", events, "--format", "parquet", binary=True).stdout
        assert pq.read_table(pa.BufferReader(sent)).num_rows == 80

    def test_a_failed_read_leaves_no_file(self, events: str, tmp_path: Path) -> None:
        (tmp_path / "out.csv").write_text("mine")
        (path, *_) = (path for path in oracle.data_files(events))
        Path(path).write_bytes(Path(path).read_bytes()[:200] + b"x" * 200)
        fails(1, "read", events, "-o", tmp_path / "out.csv")
        assert (tmp_path / "out.csv").read_text() == "mine"

    def test_tables_on_a_pipe_are_not_cut(self, tmp_path: Path) -> None:
        root = str(tmp_path / "wide")
        table = pa.table({f"a_rather_long_column_name_{n}": ["x" * 30] for n in range(20)})
        Dataset(root, engine="pyarrow").write(table)
        header, _, row = lines("head", root)
        assert len(row) > 600
        assert row.count("x" * 30) == 20
        assert header.split() == table.schema.names

    def test_values_of_all_types(self, tmp_path: Path) -> None:
        from helpers.exotic import exotic

        table = exotic(2)
        Dataset(str(tmp_path / "all"), engine="pyarrow").write(table)
        rows = parketto("read", tmp_path / "all", "--json").stdout.splitlines()
        assert [list(json.loads(row)) for row in rows] == [table.schema.names] * table.num_rows
        assert len(lines("read", tmp_path / "all", "--format", "csv")) == 1 + table.num_rows
        assert len(lines("head", tmp_path / "all")) == 2 + table.num_rows

    def test_a_reader_that_stops_early_is_no_error(self, events: str) -> None:
        done = fresh("read", events, "--json", pipe_to="head -n 1")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""

    def test_sql_joins_datasets(self, events: str, tmp_path: Path) -> None:
        (tmp_path / "days.csv").write_text("day,label\n1,mon\n2,tue\n")
        result("write", tmp_path / "days", tmp_path / "days.csv")
        query = "SELECT label, count(*) AS n FROM events JOIN days USING (day) GROUP BY label ORDER BY label"
        done = parketto("sql", query, f"events={events}", f"days={tmp_path / 'days'}", "--json")
        assert [json.loads(line) for line in done.stdout.splitlines()] == [
            {"label": "mon", "n": 40},
            {"label": "tue", "n": 40},
        ]

    @pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
    def test_sql_queries_files(self, events: str, tmp_path: Path, suffix: str) -> None:
        file = tmp_path / f"days.{suffix}"
        if suffix == "parquet":
            pq.write_table(pa.table({"day": [1, 2], "label": ["mon", "tue"]}), file)
        else:
            texts = {
                "csv": "day,label\n1,mon\n2,tue\n",
                "jsonl": '{"day":1,"label":"mon"}\n{"day":2,"label":"tue"}\n',
            }
            file.write_text(texts[suffix])
        query = "SELECT d.label, count(*) AS n FROM e JOIN d USING (day) JOIN d AS again USING (day) GROUP BY ALL"
        found = parketto("sql", query, f"e={events}", f"d={file}", "--json").stdout.splitlines()
        assert sorted(map(json.loads, found), key=str) == [{"label": "mon", "n": 40}, {"label": "tue", "n": 40}]
        assert "no dataset at" in fails(1, "sql", "SELECT 1", f"d={tmp_path / 'none.csv'}")

    def test_the_engine_of_sql(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable, given, engine in (
            ("spark", None, "spark"),
            ("spark", "duckdb", "duckdb"),
            ("pyarrow", None, "duckdb"),
        ):
            monkeypatch.setenv("PARKETTO_ENGINE", variable)
            assert queries._engine(given) == engine

    def test_bad_sql_is_one_sentence(self, events: str) -> None:
        assert "the query failed: Binder Error" in fails(1, "sql", "SELECT nope FROM e", f"e={events}")
        assert "is not of the form name=value" in fails(2, "sql", "SELECT 1", events)


class TestColumns:
    """Schemas."""

    def test_schema(self, events: str) -> None:
        found = result("schema", events)
        assert [(each["name"], each["type"], each["partition"]) for each in found["columns"]] == [
            ("id", "int64", False),
            ("day", "int64", True),
            ("price", "double", False),
            ("name", "string", False),
        ]
        assert "day      int64    partition" in lines("schema", events)

    def test_alter(self, events: str) -> None:
        assert "this would drop name, and rewrite 8 files" in fails(2, "alter", events, "--drop", "name")
        changes = ("--add", "note=string", "--rename", "price=cost", "--drop", "name", "--cast", "id=double")
        headline, *branches = lines("alter", events, *changes, "--dry-run")
        assert headline.startswith("alter: would rewrite 8 of 8 files")
        assert "├── rename price to cost" in branches
        assert "├── cast id to double" in branches
        assert "├── drop name" in branches
        assert "├── add note: string" in branches
        assert sum(".parquet" in branch for branch in branches) == 8
        assert result("alter", events, *changes, "--yes")["files_rewritten"] == 8
        assert sorted(table_of(events).schema.names) == ["cost", "day", "id", "note"]

    def test_unify_schema(self, tmp_path: Path) -> None:
        root = tmp_path / "mixed"
        root.mkdir()
        pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), root / "a.parquet")
        pq.write_table(pa.table({"id": pa.array([2], pa.int64())}), root / "b.parquet")
        headline, *branches = lines("unify-schema", root, "--dry-run")
        assert headline.startswith("unify-schema: would rewrite 1 of 2 files")
        assert branches == ["└── files", "    └── a.parquet"]
        assert result("unify-schema", root)["files_rewritten"] == 1
        assert lines("unify-schema", root) == ["nothing to do: all 2 files have the dataset's schema"]

    def test_repartition(self, events: str) -> None:
        assert "replace 8 files" in fails(2, "repartition", events, "--by", "name")
        plan = lines("repartition", events, "--by", "name", "--dry-run")
        folders = [line.split("name=")[1].split(":")[0] for line in plan if "name=" in line]
        assert folders == sorted(folders)
        assert not [line for line in plan if events in line], "paths are relative to the dataset"
        assert "pass the new partition columns" in fails(2, "repartition", events)
        assert result("repartition", events, "--no-partitions", "--yes")["rows_written"] == 80
        assert all("=" not in path[len(events) :] for path in oracle.data_files(events))


class TestState:
    """Checks, history and recovery."""

    def test_damage_has_an_exit_code(self, events: str) -> None:
        assert lines("check", events)[0].startswith("healthy: checked the footers of 8 files, 80 rows")
        assert lines("check", events, "--deep")[0].startswith("healthy: checked all pages of 8 files, 80 rows")
        (path, *_) = oracle.data_files(events)
        Path(path).write_bytes(b"broken")
        done = parketto("check", events, "--deep", "--json", check=False)
        assert done.returncode == 1
        assert [os.path.basename(each["path"]) for each in json.loads(done.stdout)["damaged"]] == [
            os.path.basename(path)
        ]

    def test_history(self, events: str) -> None:
        result("compact", events)
        commits = result("history", events, "--limit", 2)
        assert [each["operation"] for each in commits] == ["compact", "append"]
        header, _, newest, *_ = lines("history", events)
        assert header.split()[:4] == ["#", "at", "(UTC)", "operation"]
        assert "compact" in newest

    def test_recover(self, events: str) -> None:
        assert lines("recover", events) == ["nothing to recover"]
        assert result("recover", events)["action"] == "none"


def test_maintain(events: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yml"
    policy.write_text("datasets:\n  - path: events\n    engine: pyarrow\n    compact: {small_files: 3}\n")
    assert lines("maintain", policy, "--dry-run")[0].startswith("would run 2 operations in 1 dataset")
    assert len(result("maintain", policy)["actions"]) == 2
    assert lines("maintain", policy) == ["nothing to do in 1 dataset"]
    policy.write_text("datasets:\n  - path: nothing-here\n    engine: pyarrow\n    compact: {}\n")
    done = parketto("maintain", policy, "--json", check=False)
    assert (done.returncode, json.loads(done.stdout)["left"][0]["because"]) == (1, "error")
    policy.write_text("dataset: 3\n")
    assert "policy.yml, line 1" in fails(1, "maintain", policy)
