"""The command line beyond a healthy local disk: S3, Spark's SQL, reports, and commits that were interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest

from helpers import oracle
from helpers.cli import closed_schema, environment, fails, fresh, lines, parketto, result, small_dataset
from parketto import Dataset

FAILING = str(Path(__file__).parents[1] / "helpers" / "failing_cli.py")


@pytest.fixture
def events(tmp_path: Path) -> str:
    return small_dataset(tmp_path / "events")


class TestS3:
    """Any command takes a URL, and the options of its filesystem."""

    @pytest.fixture
    def bucket(self, s3: Any) -> Any:
        dataset = s3.dataset()
        for n in range(3):
            dataset.write(pa.table({"id": [n, n + 10], "name": ["a", "b"]}))
        return s3

    @staticmethod
    def run(bucket: Any, command: str, *arguments: object, code: int = 0, json_output: bool = True) -> Any:
        from helpers.s3 import LOGIN

        options = {"endpoint_url": bucket.server.endpoint, "client_kwargs": '{"region_name": "us-east-1"}'}
        given = [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
        login = dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), LOGIN, strict=True))
        words = [command, f"s3://{bucket.root}", *arguments, *given, *(["--json"] if json_output else [])]
        done = fresh(*words, check=False, env=environment(**login))
        assert done.returncode == code, done.stderr
        if not json_output or code:
            return done
        assert done.stderr == ""
        document = json.loads(done.stdout)
        jsonschema.validate(document, closed_schema(command))
        return document

    def test_health_compact_history_undo(self, bucket: Any) -> None:
        health = self.run(bucket, "health")
        assert (health["files"]["count"], health["path"]) == (3, f"s3://{bucket.root}")
        assert self.run(bucket, "compact")["after_file_count"] == 1
        assert [commit["operation"] for commit in self.run(bucket, "history")] == ["compact", *["append"] * 3]
        assert "pass --yes" in self.run(bucket, "undo", code=2).stderr
        assert self.run(bucket, "undo", "--yes")["undone"] == [4]
        assert self.run(bucket, "health")["files"]["count"] == 3
        assert self.run(bucket, "head", json_output=False).stdout.count("\n") > 6

    def test_a_report_is_written_to_the_local_disk_or_to_a_url(self, bucket: Any, tmp_path: Path) -> None:
        page = tmp_path / "report.html"
        self.run(bucket, "report", "-o", page)
        assert f"s3://{bucket.root}" in page.read_text()
        url = f"s3://{bucket.root}-report.html"
        self.run(bucket, "report", "-o", url)
        assert bucket.fs.cat_file(url).startswith(b"<!doctype html>")

    def test_errors_of_s3_are_one_sentence(self, bucket: Any) -> None:
        done = self.run(bucket, "health", "--workspace", "s3://no-such-bucket/workspace", code=1)
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.own_spark
def test_sql_of_spark(events: str, tmp_path: Path) -> None:
    """Spark's own dialect, over a dataset and a file; a wrong query is one sentence, without the JVM's trace."""
    query = (
        "SELECT day, collect_list(name)[0] AS first, count(*) AS n FROM e JOIN d USING (day) WHERE id < 4 "
        "GROUP BY day ORDER BY day"
    )
    (tmp_path / "days.csv").write_text("day\n1\n2\n")
    spark = environment(PARKETTO_ENGINE="spark")
    done = fresh("sql", query, f"e={events}", f"d={tmp_path / 'days.csv'}", "--json", check=False, env=spark)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"day": 1, "first": "n0", "n": 2},
        {"day": 2, "first": "n1", "n": 2},
    ]
    wrong = fresh("sql", "SELECT nope FROM e", f"e={events}", "--engine", "spark", check=False)
    assert wrong.returncode == 1
    assert "nope" in wrong.stderr.splitlines()[-1]
    assert "org.apache.spark" not in wrong.stderr


class TestReport:
    def test_page_and_document(self, tmp_path: Path) -> None:
        events = small_dataset(tmp_path / "events", files=16)
        page = tmp_path / "out" / "health report.html"
        page.parent.mkdir()
        document = result("report", events, "-o", page, "--columns", "id", "--target-mb", 1)
        assert (document["report"], document["bytes"]) == (str(page), page.stat().st_size)
        text = page.read_text()
        assert f"parketto compact {events} --target-mb-per-file 1" in text, "the commands have the same target"

    def test_default_name(self, events: str, tmp_path: Path) -> None:
        shown = parketto("report", events, cwd=tmp_path).stdout
        assert shown.startswith("wrote report.html, ")
        assert (tmp_path / "report.html").exists()

    def test_errors(self, events: str, tmp_path: Path) -> None:
        assert "nope" in fails(1, "report", events, "--columns", "nope", "-o", tmp_path / "a.html")
        page = tmp_path / "no" / "folder" / "a.html"
        refused = fails(2, "report", events, "-o", page)
        assert refused == f"error: cannot write {str(page)!r}: the folder {str(page.parent)!r} does not exist"
        assert sorted(os.listdir(tmp_path)) == [".events.parketto", "events"]


class TestInterruptedCommits:
    """The disk fails, or the process is killed, right after the commit has become final."""

    @staticmethod
    def interrupted(events: str, then: str) -> Any:
        return subprocess.run(
            [sys.executable, FAILING, "compact", events, "--json"],
            env=environment(PARKETTO_TEST_THEN=then),
            capture_output=True,
            text=True,
            check=False,
        )

    def test_a_failing_disk_has_an_exit_code(self, events: str) -> None:
        rows = oracle.rows(events)
        done = self.interrupted(events, "fail")
        assert (done.returncode, done.stdout) == (4, "")
        document = json.loads(done.stderr.splitlines()[-1])
        jsonschema.validate(document, closed_schema("error"))
        assert (document["error"]["type"], document["error"]["exit_code"]) == ("CommitStateUnknown", 4)
        assert document["error"]["message"].endswith("Run: parketto recover PATH")
        done = parketto("recover", events, "--json", check=False)
        assert (done.returncode, json.loads(done.stdout)["action"]) == (0, "completed")
        assert oracle.rows(events) == rows
        assert result("health", events)["files"]["count"] == 2

    def test_recover_finishes_what_was_killed(self, events: str) -> None:
        rows = oracle.rows(events)
        assert self.interrupted(events, "die").returncode == -signal.SIGKILL
        planned = result("recover", events, "--dry-run")
        assert (planned["action"], planned["operation"], planned["dry_run"]) == ("completed", "compact", True)
        assert "would complete an interrupted compact" in lines("recover", events, "--dry-run")[0]
        done = parketto("recover", events, check=False)
        assert done.returncode == 0
        assert "completed an interrupted compact" in done.stdout
        assert oracle.rows(events) == rows
        assert [commit["operation"] for commit in result("history", events, "--limit", 1)] == ["compact"]
        assert lines("recover", events) == ["nothing to recover"]

    def test_any_command_finishes_it_first_and_says_so(self, events: str) -> None:
        self.interrupted(events, "die")
        done = parketto("delete", events, "--where", "id = 7", "--yes", "--json", check=False)
        assert json.loads(done.stdout)["files_before"] == 2
        assert "completed an interrupted compact" in done.stderr
        assert Dataset(events, engine="pyarrow").count() == 79
