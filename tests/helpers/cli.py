"""Runs the command line in processes of its own, and checks JSON documents against the published schemas."""

from __future__ import annotations

import atexit
import copy
import json
import os
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq

from parketto import Dataset
from parketto.cli import json_schemas

_OTHERS = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONDONTWRITEBYTECODE"}
# Modules are compiled once, as in an installation, and not in every process.
_BYTECODE = os.path.join(tempfile.gettempdir(), "parketto-test-bytecode")
COMMAND = [sys.executable, "-m", "parketto.cli"]


def environment(**more: str) -> dict[str, str]:
    """The environment of a user with a plain terminal, whose default engine starts at once."""
    kept = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    return {
        **kept,
        "PARKETTO_ENGINE": "pyarrow",
        "TERM": "xterm-256color",
        "PYTHONPYCACHEPREFIX": _BYTECODE,
        **more,
    }


def parketto(
    *arguments: object,
    stdin: bytes = b"",
    check: bool = True,
    binary: bool = False,
    cwd: str | Path = ".",
    env: dict[str, str] | None = None,
) -> Any:
    """Run a command in a process of its own. With `check`, it must be done, and silent on stderr."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [os.path.join(folder, name) for name in ("stdin", "stdout", "stderr")]
        Path(streams[0]).write_bytes(stdin)
        request = {
            "arguments": [str(argument) for argument in arguments],
            "streams": streams,
            "environment": env or environment(),
            "folder": os.path.abspath(cwd),
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(f"{json.dumps(request)}\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = (Path(path).read_bytes() for path in streams[1:])
    return _done(subprocess.CompletedProcess(request["arguments"], code, out, err), check=check, binary=binary)


def fresh(
    *arguments: object, check: bool = True, env: dict[str, str] | None = None, pipe_to: str | None = None
) -> Any:
    """Run a command in a new interpreter, also at the beginning of a pipe."""
    command = [*COMMAND, *map(str, arguments)]
    if pipe_to is not None:
        command = ["bash", "-o", "pipefail", "-c", f"{shlex.join(command)} | {pipe_to}"]
    done = subprocess.run(command, capture_output=True, check=False, env=env or environment())
    return _done(done, check=check)


def _done(done: Any, *, check: bool, binary: bool = False) -> Any:
    done.stderr = done.stderr.decode()
    if not binary:
        done.stdout = done.stdout.decode()
    if check:
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    return done


@cache
def _server() -> subprocess.Popen[str]:
    """The process whose forks run commands."""
    script = Path(__file__).with_name("cli_server.py")
    server = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )

    def stop() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()

    atexit.register(stop)
    return server


def lines(*arguments: object) -> list[str]:
    """The lines that people see."""
    found: list[str] = parketto(*arguments).stdout.splitlines()
    return found


def result(command: str, *arguments: object) -> Any:
    """The JSON document, valid by the published schema."""
    document = json.loads(parketto(command, *arguments, "--json").stdout)
    jsonschema.validate(document, closed_schema(command))
    return document


def fails(code: int, *arguments: object) -> str:
    """The one line on stderr of a command that fails with this exit code, and writes no result."""
    done = parketto(*arguments, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return str(line)


@cache
def closed_schema(command: str) -> Any:
    """A published schema that allows no further keys: every key must be documented."""
    document = copy.deepcopy(json_schemas.read(command))
    for definition in document.get("$defs", {}).values():
        definition["additionalProperties"] = False
    return document


def small_dataset(root: str | Path, files: int = 4) -> str:
    """80 rows in some files of each of two partitions."""
    dataset = Dataset(str(root), engine="pyarrow")
    for n in range(files):
        ids = list(range(n * 80 // files, (n + 1) * 80 // files))
        rows = {"id": ids, "day": [each % 2 + 1 for each in ids], "price": [float(each) for each in ids]}
        dataset.write(pa.table({**rows, "name": [f"n{each}" for each in ids]}), partition_by="day")
    return str(root)


def table_of(root: str) -> pa.Table:
    """The rows of a dataset, as PyArrow reads them."""
    return pq.read_table(root, partitioning=None)
