"""Real Spark servers on loopback, each in its own processes: Spark Connect, and a standalone cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parketto.engines.spark.java import find_java
from parketto.engines.spark.settings import spark_home

START_TIMEOUT = 120.0  # seconds; a start takes about ten, and several times that on a busy machine
# Short-lived JVMs: less compilation makes them faster.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Variables that would make a server's launcher use another Spark.
_FOREIGN = (
    "MASTER",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_API_MODE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_LOCAL_REMOTE",
    "SPARK_REMOTE",
)


@dataclass
class StandaloneCluster:
    """A running master and its workers. `url` is the value for `spark.master`."""

    url: str
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def executor_pids(self) -> list[int]:
        """The executors that run right now, on all workers."""
        children = [pid for worker in self.workers for pid in descendants(worker.pid)]
        return [pid for pid in children if "CoarseGrainedExecutorBackend" in _command_line(pid)]


@contextlib.contextmanager
def connect_server(*, cores: int = 2, memory: str = "1g") -> Iterator[str]:
    """A Spark Connect server; yields its `sc://127.0.0.1:port`."""
    with _folder() as folder:
        port = free_port()
        settings = {
            "spark.master": f"local[{cores}]",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(cores),
            "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
            "spark.ui.enabled": "false",
        }
        command = ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        with _process("connect", command, folder, lambda _: _listens(port), memory):
            yield f"sc://127.0.0.1:{port}"


@contextlib.contextmanager
def standalone_cluster(workers: int = 2, *, memory: str = "1g") -> Iterator[StandaloneCluster]:
    """A master and workers of one core each; yields its URL and its processes."""
    with contextlib.ExitStack() as running:
        folder = running.enter_context(_folder())
        port = free_port()
        cluster = StandaloneCluster(f"spark://127.0.0.1:{port}")
        master = ["spark-class", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
        master += ["--webui-port", "0", "--port", str(port)]
        running.enter_context(_process("master", master, folder, lambda _: _listens(port)))
        for number in range(workers):
            # Each has an address of its own: Spark speculates on other hosts only.
            host = f"127.0.0.{number + 1}"
            worker = ["spark-class", "org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0"]
            worker += [
                "--cores",
                "1",
                "--memory",
                memory,
                "--work-dir",
                str(folder / f"work-{number}"),
                cluster.url,
            ]
            process = running.enter_context(
                _process(f"worker-{number}", worker, folder, _is_registered, host=host)
            )
            cluster.workers.append(process)
        yield cluster


#: Packages that Spark requires on executors, and their dependencies.
_SPARKS_OWN = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "dateutil", "pytz", "tzdata", "six")


def bare_python(folder: Path) -> str:
    """A Python with the packages that Spark needs and those in the folder's `site`; returns its executable.

    The folder can be packed and unpacked elsewhere on the same machine: libraries are links.
    """
    packages = folder / "packages"
    packages.mkdir(parents=True)
    for name in _SPARKS_OWN:
        module = importlib.util.find_spec(name)
        if module is not None and module.origin is not None:
            origin = Path(module.origin)
            found = origin.parent if origin.name == "__init__.py" else origin
            for path in (found, found.with_name(f"{name}.libs")):
                if path.exists():
                    (packages / path.name).symlink_to(path)
    executable = folder / "bin" / "python"
    executable.parent.mkdir()
    executable.write_text(
        '#!/bin/sh\nhere=$(cd "$(dirname "$0")/.." && pwd)\n'
        f'export PYTHONPATH="$here/site:$here/packages"\nexec {sys.executable} -S "$@"\n'
    )
    executable.chmod(0o755)
    return str(executable)


def free_port() -> int:
    """An unused port of the loopback interface."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """All direct and indirect child processes of a process, according to /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            after_name = entry.read_text().rpartition(")")[2].split()
            parents.setdefault(int(after_name[1]), []).append(int(entry.parent.name))
    found = list(parents.get(pid, []))
    for child in found:  # grows as it goes
        found += parents.get(child, [])
    return found


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    # Files that are written while the processes die must not fail a test.
    with tempfile.TemporaryDirectory(prefix="parketto-cluster-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextlib.contextmanager
def _process(
    name: str,
    command: list[str],
    folder: Path,
    ready: Callable[[Path], bool],
    memory: str = "256m",
    host: str = "127.0.0.1",
) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of Spark's scripts, wait until it is ready, and end it with all its child processes."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(Path(spark_home(), "bin", command[0])), *command[1:]],
            cwd=folder,
            env=_environment(folder, memory, host),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only the tests, which then end this process
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while not ready(log):
            if process.poll() is not None or time.monotonic() > deadline:
                state = "did not get ready" if process.returncode is None else f"ended with {process.returncode}"
                raise RuntimeError(f"{name} {state}; its log ends with:\n{log.read_text()[-20_000:]}")
            time.sleep(0.1)
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all its child processes, including Python workers in their own process groups.

    All are stopped first: a worker that loses its executor might start another one.
    """
    if process.poll() is not None:
        return
    family: list[int] = []
    found = [process.pid]
    while found:
        family += found
        for pid in found:
            _signal(pid, signal.SIGSTOP)
        found = [pid for pid in descendants(process.pid) if pid not in family]
    for pid in family:
        _signal(pid, signal.SIGKILL)
    process.wait()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _is_registered(log: Path) -> bool:
    return "Successfully registered with master" in log.read_text()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _environment(folder: Path, memory: str, host: str) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
    home = find_java().home()
    environment.pop("JAVA_HOME", None)
    if home is not None:
        environment["JAVA_HOME"] = home
    # Executors use the interpreter that the driver names: "python3" by default.
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment.get("PATH", os.defpath)])
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONNECT_MODE": "0",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "SPARK_DAEMON_MEMORY": memory,  # a Connect server counts as a daemon too, whatever its driver memory
        "SPARK_HOME": spark_home(),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOCAL_IP": host,
        "SPARK_LOG_DIR": str(folder),
    }
    return environment
