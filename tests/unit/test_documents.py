"""The programs in `examples/` run, and `make help` lists the commands of the README."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.own_spark

ROOT = Path(__file__).parents[2]


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
