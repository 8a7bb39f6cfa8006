"""Logs of operations: one line at the start and one at the end, below the logger `parketto`."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from parketto import Dataset, ParquetCRUD


@pytest.fixture
def events(tmp_path: Path) -> Dataset:
    found = Dataset(tmp_path / "events", engine="pyarrow")
    for n in range(3):
        found.write(pa.table({"id": [n]}))
    return found


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "parketto"):
        yield


def test_the_start_and_the_result(events: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    events.compact()
    start, end = caplog.messages
    assert start == f"compact {events.path} on pyarrow: started"
    assert re.fullmatch(
        rf"compact {events.path}: done in \d+\.\d s: before_file_count=3, after_file_count=1, "
        r"before_total_bytes=\d+, after_total_bytes=\d+, compacted_file_count=3, rewritten_bytes=\d+",
        end,
    )
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert all(record.name.startswith("parketto.") for record in caplog.records)


def test_the_start_is_logged_before_the_work(events: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    seen: list[str] = []
    events.compact(progress=lambda _state: seen.extend(caplog.messages))
    assert seen == [f"compact {events.path} on pyarrow: started"]


def test_a_dry_run_says_so(events: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    events.delete("id = 1", dry_run=True)
    assert caplog.messages[0].startswith(f"delete (dry run) {events.path}")
    assert "rows_matched=1" in caplog.messages[1]


def test_a_failure_ends_with_its_name(events: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with pytest.raises(ValueError, match="nope"):
        events.delete("nope = 1")
    assert re.fullmatch(rf"delete {events.path}: ColumnNotFound after \d+\.\d s", caplog.messages[-1])


def test_refused_arguments_are_not_logged(events: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with pytest.raises(ValueError, match="compression"):
        events.compact(compression="lzo")
    assert caplog.messages == []


def test_other_ways_to_the_same_operations_are_logged_once(
    events: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    ParquetCRUD(events.path, engine="pyarrow").delete("id = 1", create_backup=False)
    assert [message.split()[0] for message in caplog.messages] == ["delete", "delete"]


def test_the_library_adds_no_output_of_its_own(tmp_path: Path) -> None:
    """Without a configuration, INFO goes nowhere; the only handler is the NullHandler."""
    code = (
        "import logging, sys, pyarrow as pa, parketto\n"
        "parketto.Dataset(sys.argv[1], engine='pyarrow').write(pa.table({'id': [1]}))\n"
        "assert [type(h).__name__ for h in logging.getLogger('parketto').handlers] == ['NullHandler']\n"
        "assert not logging.getLogger().handlers\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "events")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
