"""The environments of the peers, made with `uv` on first use: what they need may clash with what we need."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys

from harness.contestants import OWN, PEERS, PEERS_OLD

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROJECT = os.path.dirname(HERE)
_ENVIRONMENTS = {
    PEERS: (".venv-bench", "requirements.txt"),
    PEERS_OLD: (".venv-bench-old", "requirements-old.txt"),
}


@functools.cache
def python_of(environment: str) -> str:
    """The Python of an environment, which is made if it is not there, or not of these requirements.

    Raises:
        RuntimeError: It cannot be made; the message says why.
    """
    if environment == OWN:
        return sys.executable
    folder, requirements = _ENVIRONMENTS[environment]
    folder, requirements = os.path.join(PROJECT, folder), os.path.join(HERE, requirements)
    python, ready = os.path.join(folder, "bin", "python"), os.path.join(folder, ".ready")
    with open(requirements) as wanted:
        text = wanted.read()
    if os.path.exists(ready):
        with open(ready) as there:
            if there.read() == text:
                return python
    print(f"making {os.path.basename(folder)} …", file=sys.stderr)
    uv = _uv()
    constraints = os.path.join(PROJECT, "constraints.txt")
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder],
        [uv, "pip", "install", "--quiet", "--python", python, "-c", constraints, "-r", requirements],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    with open(ready, "w") as there:
        there.write(text)
    return python


def _uv() -> str:
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    found = beside if os.path.exists(beside) else shutil.which("uv")
    if not found:
        raise RuntimeError("uv is not installed: pip install uv")
    return found
