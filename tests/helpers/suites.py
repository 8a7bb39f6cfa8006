"""Running a part of this suite in a separate process, against another Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
_TIMEOUT = 3600.0


def run_suite(variables: dict[str, str], *arguments: str) -> int:
    """Run tests on the Spark that the environment names; all must pass. Returns the number of passed tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    result = subprocess.run(
        command,
        cwd=TESTS.parent,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    tail = "\n".join(result.stdout.splitlines()[-60:])
    assert result.returncode == 0, f"{tail}\n{result.stderr[-3000:]}"
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed, tail
    return int(passed[1])
