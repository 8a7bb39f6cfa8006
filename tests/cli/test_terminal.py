"""The command line on a terminal: progress, questions, colours, Ctrl-C. Each test has a pseudo-terminal."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pyarrow as pa
import pytest

from conftest import beside
from helpers import oracle
from helpers.cli import COMMAND, environment, small_dataset
from parketto import Dataset

SLOW = str(Path(__file__).parents[1] / "helpers" / "slow_cli.py")


def terminal(*arguments: object, script: str | None = None, **more: str) -> Any:
    """A command on a terminal of 100 columns."""
    program, *first = [sys.executable, script] if script else COMMAND
    words = [*first, *map(str, arguments)]
    return pexpect.spawn(
        program, words, env=environment(**more), encoding="utf-8", timeout=60, dimensions=(40, 100)
    )


def ended(child: Any) -> tuple[int, str]:
    """The exit code, and what was shown since the last expectation."""
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus, child.before


@pytest.fixture
def events(tmp_path: Path) -> str:
    return small_dataset(tmp_path / "data" / "events")


def test_questions_say_what_would_happen(events: str) -> None:
    before = oracle.file_state(events)
    child = terminal("delete", events, "--where", "id < 40")
    child.expect(r"This would delete 40 rows of 80, and remove 4 files\. Continue\? \[y/N\]")
    child.sendline("n")
    code, shown = ended(child)
    assert (code, oracle.file_state(events)) == (1, before)
    assert shown.splitlines()[-1] == "nothing was changed"

    child = terminal("delete", events, "--where", "id < 40")
    child.expect("Continue")
    child.sendline("y")
    code, shown = ended(child)
    assert code == 0
    assert "deleted 40 rows: 80 rows → 40" in shown


def test_ctrl_c_at_a_question(events: str) -> None:
    before = oracle.file_state(events)
    child = terminal("delete", events, "--where", "id < 40")
    child.expect("Continue")
    child.sendintr()
    code, shown = ended(child)
    assert (code, oracle.file_state(events)) == (130, before)
    assert shown.strip().splitlines()[-1] == "interrupted: the dataset is as it was"


@pytest.mark.parametrize("colours", [True, False])
def test_progress_has_a_rate_and_the_time_left(tmp_path: Path, colours: bool) -> None:
    """And colours, unless NO_COLOR forbids them."""
    root = slow_dataset(tmp_path)
    code, shown = ended(terminal("compact", root, script=SLOW, **({} if colours else {"NO_COLOR": "1"})))
    assert code == 0
    assert ("\x1b[38;5;" in shown) == colours
    assert re.search(r"\d+ of \d+", shown), "files done"
    assert re.search(r"B/s|bytes/s", shown), "a rate"
    assert re.search(r"\d:\d\d:\d\d", shown), "times"


def test_ctrl_c_leaves_the_dataset_as_it_was(tmp_path: Path) -> None:
    root = slow_dataset(tmp_path)
    before = oracle.file_state(root)
    child = terminal("compact", root, script=SLOW, PARKETTO_TEST_SECONDS="30")
    child.expect("compact")  # the bar
    wait_until(child, lambda: bool(list(Path(tmp_path).glob("**/new/*"))))
    child.sendintr()
    code, shown = ended(child)
    assert (code, oracle.file_state(root)) == (130, before)
    assert "interrupted: the dataset is as it was" in shown
    assert "Traceback" not in shown, shown
    assert beside(tmp_path) == ["events"]


def test_ctrl_c_during_imports(tmp_path: Path) -> None:
    """It ends the command without a traceback."""
    (tmp_path / "pyarrow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    child = pexpect.spawn(
        sys.executable,
        ["-c", "from parketto_start import main; main()"],
        env=environment(PYTHONPATH=str(tmp_path)),
        encoding="utf-8",
        timeout=60,
    )
    child.expect("importing")
    child.sendintr()
    code, shown = ended(child)
    assert (code, shown.replace("^C", "").strip()) == (130, "")


def test_ctrl_c_of_a_maintenance_run_names_the_commits_that_stay(tmp_path: Path) -> None:
    roots = [slow_dataset(tmp_path / name) for name in ("one", "two")]
    listed = "".join(f"  - path: {root}\n    engine: pyarrow\n    compact: {{small_files: 2}}\n" for root in roots)
    (tmp_path / "policy.yml").write_text(f"datasets:\n{listed}")
    before = len(Dataset(roots[0], engine="pyarrow").history())
    child = terminal("maintain", tmp_path / "policy.yml", script=SLOW, PARKETTO_TEST_SECONDS="0.5")
    wait_until(child, lambda: len(Dataset(roots[0], engine="pyarrow").history()) > before)
    child.sendintr()
    code, shown = ended(child)
    commits = sum(len(Dataset(root, engine="pyarrow").history()) - before for root in roots)
    assert (code, commits > 0) == (130, True)
    which = (
        "commit 13 (compact) of" if commits == 1 else f"{commits} commits were done, which stay; the last one is"
    )
    assert f"interrupted, after {which}" in " ".join(shown.split())
    assert "Traceback" not in shown, shown


def wait_until(child: Any, done: Callable[[], bool]) -> None:
    """Wait for a command to begin its work; Spark takes its time on a busy machine.

    A terminal shows what is written to it: a bar that nobody reads would stop the command.
    """
    deadline = time.monotonic() + 180
    while not done():
        assert time.monotonic() < deadline, "it did not begin"
        with contextlib.suppress(pexpect.TIMEOUT):
            child.read_nonblocking(100_000, timeout=0.05)


def slow_dataset(folder: Path) -> str:
    root = str(folder / "events")
    for day in range(4):
        for _ in range(3):
            Dataset(root, engine="pyarrow").write(
                pa.table({"day": [day] * 1000, "n": list(range(1000))}), partition_by="day"
            )
    return root


def test_narrow_terminals_shorten_cells(tmp_path: Path) -> None:
    root = str(tmp_path / "wide")
    Dataset(root, engine="pyarrow").write(pa.table({f"column_{n}": ["x" * 30] for n in range(6)}))
    code, shown = ended(terminal("head", root))
    assert code == 0
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in shown.splitlines()) <= 100
    assert "…" in shown


@pytest.mark.parametrize("columns", [100, 80, 60])
def test_narrow_terminals_keep_the_times_of_the_history(events: str, columns: int) -> None:
    dataset = Dataset(events, engine="pyarrow")
    dataset.delete("id = 7", commit_id="a-rather-long-application-name:123456789")
    dataset.undo()
    child = terminal("history", events)
    child.setwinsize(40, columns)
    code, shown = ended(child)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert (code, len(lines)) == (0, 2 + 6), shown
    assert max(map(len, lines)) <= columns
    assert all(
        re.match(r" *\d  +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  +(append|delete|undo) ", line) for line in lines[2:]
    )


@pytest.mark.own_spark
def test_ctrl_c_on_spark(tmp_path: Path) -> None:
    """The jobs are cancelled, and the dataset is as it was."""
    root = slow_dataset(tmp_path)
    before = oracle.file_state(root)
    child = terminal("compact", root, script=SLOW, PARKETTO_TEST_SECONDS="60", PARKETTO_ENGINE="spark")
    wait_until(child, lambda: bool(list(Path(tmp_path).glob("**/new/*"))))
    child.sendintr()
    code, shown = ended(child)
    assert (code, oracle.file_state(root)) == (130, before), shown
    assert "interrupted: the dataset is as it was" in shown
    assert "Traceback" not in shown, shown
    assert beside(tmp_path) == ["events"]
    assert os.path.isdir(root)
