"""What imports cost, each in a fresh process: of Parketto, and of the libraries that it cannot do without."""

from __future__ import annotations

import statistics
import subprocess
import sys

from harness.request import Request

_PROCESSES = 15
_CODE = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
NEEDED = "numpy, pyarrow"


def seconds_of(modules: str) -> dict[str, float]:
    """The median over fresh processes, of processor time; the start of Python itself does not count."""
    command = [sys.executable, "-c", _CODE.format(modules)]
    found = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(_PROCESSES)]
    return {"seconds": statistics.median(float(done.stdout) for done in found)}


def prepare(_request: Request) -> None:
    """Nothing."""


def imported(_request: Request, _: None) -> dict[str, float]:
    """NumPy and PyArrow."""
    return seconds_of(NEEDED)


OPERATIONS = {"import": imported}
