"""The examples in the documents run, and `make help` lists the commands of the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import beside

pytestmark = pytest.mark.own_spark

ROOT = Path(__file__).parents[2]


def test_readme_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a user runs them: on Spark, which is the default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARKETTO_ENGINE")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 11
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    output = capsys.readouterr().out
    assert "3 -> 1" in output
    assert "{'inserted': 1, 'updated': 1, 'deleted': 0, 'total': 10}" in output
    assert "['id', 'item', 'price'] 1" in output
    assert "[2, 5, 5, 7, 7, 10, 14, 18]\n[]\n" in output
    assert "['at', 'user']" in output
    assert "a range of 1 % reads 100% of the row groups, now 1" in output
    assert "already laid out by these columns" in output
    assert "1 operation in 1 dataset: 5 files -> 2" in output
    assert "nothing to do in 1 dataset" in output
    assert "[Row(n=510)]" in output
    assert "{'n': 2, 'top': 12.5}" in output
    assert "deleted 1, restored 1" in output
    assert "{'positive amount': {'passed': 2, 'violations': 1}, 'has id': {'passed': 2" in output
    made = [
        "backups",
        "events",
        "numbers",
        "orders",
        "orders_quarantine",
        "payments",
        "quotes",
        "quotes_by_side",
        "sales",
        "ticks",
        "trades",
        "visits",
    ]
    assert beside(tmp_path) == made


@pytest.mark.parametrize("page", ["reading", "schemas", "history", "health"])
def test_pages_show_what_their_examples_print(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The comment after a `print` is its output, up to an ellipsis."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))
    exec(compile(code, f"{page}.md", "exec"), {})
    shown = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.M)
    printed = capsys.readouterr().out.splitlines()
    assert len(shown) == len(printed) > 5
    for expected, line in zip(shown, printed, strict=True):
        start, ellipsis, _ = expected.partition("…")
        assert line.startswith(start) if ellipsis else line == start


@pytest.mark.parametrize("name", ["demo", pytest.param("tour", marks=pytest.mark.sweep)])
def test_demo_runs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Everything checked" in done.stdout


EXAMPLES = {
    "merging": ["all checked"],
    "corrections": ["all checked: 3,993 rows"],
    "healing": ["healed: 100 files -> 1", "all checked: 5,000 rows"],
    "cdc": [
        "Paris was deleted before it arrived:    {1: 'Berlin', 3: 'Oslo'}",
        "1  30 to now  Munich (current)",
        "all checked",
    ],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str) -> None:
    """With the engine of the tests: the same operations run on Spark elsewhere."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for text in EXAMPLES[name]:
        assert text in done.stdout


@pytest.mark.sweep
def test_repartitioning_example_runs() -> None:
    """As a user runs it: on Spark, with functions of the script that is run."""
    environment = {name: value for name, value in os.environ.items() if name != "PARKETTO_ENGINE"}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "repartitioning.py"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "refused: Row count mismatch after repartition" in done.stdout
    assert "all checked" in done.stdout


def test_make_help_lists_the_commands_of_the_readme() -> None:
    text = subprocess.run(["make", "-C", ROOT, "help"], capture_output=True, text=True, check=True).stdout
    for target in ("demo", "test", "test-all", "lint", "bench", "docs"):
        assert f"make {target} " in text
