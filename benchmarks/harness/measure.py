"""One contestant, once: a fresh dataset, a process of its own, and a look at what came out."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness import data, peers
from harness.checks import Digest, Reader
from harness.contestants import Contestant
from harness.request import Request

MOST_FILES_SCANNED = 20_000


@dataclass(frozen=True)
class Measurement:
    """What was seen of one run.

    Attributes:
        outcome: `ok`, `WRONG` (other rows came out than must), or `FAILED`, and then `error` says why.
        written: Bytes of the files that are new.
        size: Bytes of the whole result.
        scan_seconds: How long a fixed reader needs for all values of the result; 0 if there are too many files.
        jobs: How many Spark jobs it took.
        tasks: Their tasks.
        returned: The bytes that these returned to the driver.
        cpu_seconds: Processor time of all of its processes.
    """

    outcome: str
    error: str = ""
    seconds: float = 0.0
    peak_mb: float = 0.0
    python_mb: float = 0.0
    jvm_mb: float = 0.0
    workers_mb: float = 0.0
    written: int = 0
    size: int = 0
    files: int = 0
    scan_seconds: float = 0.0
    jobs: int = 0
    tasks: int = 0
    returned: int = 0
    cpu_seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


class Setting:
    """Where runs happen, and what holds for all of them."""

    def __init__(
        self,
        work: str,
        *,
        timeout: float = 3600,
        profile: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.work = work
        self.timeout = timeout
        self.profile = profile
        self.options = dict(options or {})

    def measure(
        self, contestant: Contestant, request: Request, warm: Request, reader: Reader, expected: Digest
    ) -> Measurement:
        """One run, checked."""
        with self.run(contestant, request, warm) as (found, root, before):
            if "error" in found:
                return Measurement("FAILED", found["error"])
            files = found.pop("result_files", None) or data.parquet_files(root)
            sizes = {path: os.stat(path) for path in files}
            names = {path: os.path.relpath(path, root) for path in files}
            same = {path for path, about in sizes.items() if before.get(names[path]) == data.identity(about)}
            kept = [os.path.join(request.root, names[path]) for path in same]
            correct = reader.digest_of_result([path for path in files if path not in same], kept) == expected
            given = {inode for inode, *_ in before.values()}
            if data.fingerprint(request.root) != before:
                return Measurement("WRONG", "wrote into files that were given", found["seconds"])
            return Measurement(
                "ok" if correct else "WRONG",
                "" if correct else "other rows than asked for",
                written=sum(about.st_size for about in sizes.values() if about.st_ino not in given),
                size=sum(about.st_size for about in sizes.values()),
                files=len(files),
                scan_seconds=reader.scan_seconds(files) if len(files) <= MOST_FILES_SCANNED else 0.0,
                **found,
            )

    @contextlib.contextmanager
    def run(
        self, contestant: Contestant, request: Request, warm: Request
    ) -> Iterator[tuple[dict[str, Any], str, dict[str, tuple[int, int, int]]]]:
        """Run it on fresh links to the data; what its process said, where the result is, and what was given."""
        before = data.fingerprint(request.root)
        with tempfile.TemporaryDirectory(dir=self.work, prefix="run-", ignore_cleanup_errors=True) as folder:
            root, warm_root = os.path.join(folder, "data"), os.path.join(folder, "warm")
            data.link_fresh(request.root, root)
            data.link_fresh(warm.root, warm_root)
            os.sync()  # what others left to be written is not to be paid by whoever syncs next
            options = {**self.options, **request.options, **contestant.options}
            spec = {
                "module": contestant.module,
                "request": replace(request, root=root, options=options).plain(),
                "warm": replace(warm, root=warm_root, options=options).plain(),
                "profile": self._profile_path(contestant, request),
            }
            found = in_process(contestant.environment, "harness.child", spec, folder, self.timeout)
            yield found, root, before
            shutil.rmtree(root, ignore_errors=True)

    def _profile_path(self, contestant: Contestant, request: Request) -> str | None:
        if self.profile is None or not contestant.is_parketto:
            return None
        os.makedirs(self.profile, exist_ok=True)
        name = f"{request.operation}-{os.path.basename(request.root)}-{contestant.name}".replace("/", "-")
        return os.path.abspath(os.path.join(self.profile, f"{name}.txt"))


def in_process(environment: str, module: str, spec: Any, folder: str, timeout: float) -> dict[str, Any]:
    """Run a module of the harness in a Python of its own, with plain data in and out."""
    given, answer = os.path.join(folder, "spec.json"), os.path.join(folder, "answer.json")
    with open(given, "w") as file:
        json.dump(spec, file)
    ours = [peers.HERE, os.path.join(peers.PROJECT, "src")]  # what lies beside, not what is installed
    path = os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # libraries are compiled once, as in an installation
    command = [peers.python_of(environment), "-m", module, given, answer]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=variables, cwd=folder, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {timeout:.0f} s"}
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return {"error": lines[-1][:300] if lines else f"exit code {done.returncode}"}
    with open(answer) as file:
        found: dict[str, Any] = json.load(file)
    return found
