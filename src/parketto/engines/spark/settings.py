"""Settings of the Spark sessions that Parketto starts, and the settings that the user has configured."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from parketto.allocator import ALLOCATOR_VARIABLE, preferred_allocator
from parketto.errors import EngineUnavailable
from parketto.runtime.task import cores

SESSION_SETTINGS = {
    # Timestamps mean the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    # Rows cross between the JVM and Python as Arrow batches, here as in `mapInArrow`.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Large enough for Arrow to be efficient; the byte limit bounds memory with wide rows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    # Merges small shuffle partitions and splits skewed ones.
    "spark.sql.adaptive.enabled": "true",
    # An error of Spark Connect is its sentence, as elsewhere, without the trace of the server's JVM.
    "spark.sql.connect.serverStacktrace.enabled": "false",
}
"""Settings of every session that Parketto starts, on a cluster too. An existing session is never changed."""

EMBEDDED_SETTINGS = {
    **SESSION_SETTINGS,
    "spark.app.name": "parketto",
    # A failed task is retried, as on a cluster.
    "spark.master": "local[*,4]",
    # Nothing listens on the network.
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Reuse Python workers: starting one means importing PyArrow.
    "spark.python.worker.reuse": "true",
    # Standard error belongs to the caller's program.
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of the session that Parketto starts in this process if no Spark is configured.

`embedded_settings` adds those that depend on the machine: `spark.driver.memory` (a quarter of the memory, between
1 and 8 GB), `spark.sql.shuffle.partitions` (four per core, at least 8), the logging configuration and the class
archive, if there is one (`spark.driver.defaultJavaOptions`), a temporary `spark.sql.warehouse.dir`, and the
allocator of Arrow in Python workers (`spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL`; see also
`limited_settings`).
"""

_ALLOCATOR = f"spark.executorEnv.{ALLOCATOR_VARIABLE}"
SUBMIT_OPTIONS = {
    "--master": "spark.master",
    "--remote": "spark.remote",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}


def embedded_settings(warehouse: str, java_options: Sequence[str] = ()) -> dict[str, str]:
    """All settings of the embedded session, on this machine.

    Args:
        warehouse: The folder for managed tables, which would otherwise be created in the working directory.
        java_options: Options for its JVM.
    """
    settings = {
        **EMBEDDED_SETTINGS,
        "spark.driver.memory": f"{max(1024, min(8192, _memory() // 4 >> 20))}m",
        "spark.sql.shuffle.partitions": str(max(8, 4 * cores())),
        "spark.sql.warehouse.dir": Path(warehouse).as_uri(),
    }
    if (allocator := preferred_allocator()) is not None:
        settings[_ALLOCATOR] = allocator
    options = [*java_options]
    logging = Path(__file__).with_name("log4j2.properties")
    if logging.is_file() and not any(configuration_folder().glob("log4j2.*")):
        options.append(f"-Dlog4j2.configurationFile={logging.as_uri()}")
    if options:
        # The default options, because the extra ones belong to the user.
        settings["spark.driver.defaultJavaOptions"] = shlex.join(options)
    return settings


def limited_settings(stated: Mapping[str, str]) -> dict[str, str]:
    """Settings for Python workers whose address space the user has limited.

    Arrow's default allocator reserves 128 MB of it and more before there is any data, and the one that Parketto
    otherwise prefers never returns any.
    """
    limited = "spark.executor.pyspark.memory" in stated and ALLOCATOR_VARIABLE not in os.environ
    return {_ALLOCATOR: "system"} if limited else {}


def stated_settings() -> dict[str, str]:
    """The user's own Spark configuration, which takes precedence over Parketto's.

    Read from `spark-defaults.conf`, PYSPARK_SUBMIT_ARGS, and the variables MASTER and SPARK_REMOTE.
    """
    arguments = _submit_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    file = arguments.pop("properties-file", None) or str(configuration_folder() / "spark-defaults.conf")
    stated = {**_properties(file), **arguments}
    if os.environ.get("MASTER"):
        stated.setdefault("spark.master", os.environ["MASTER"])
    if os.environ.get("SPARK_REMOTE"):
        stated["spark.remote"] = os.environ["SPARK_REMOTE"]
    return stated


def configuration_folder() -> Path:
    """The folder of Spark's configuration; it may not exist."""
    if os.environ.get("SPARK_CONF_DIR"):
        return Path(os.environ["SPARK_CONF_DIR"])
    return Path(spark_home(), "conf")


def spark_home() -> str:
    """Where Spark is installed: SPARK_HOME, or the pyspark package itself."""
    if os.environ.get("SPARK_HOME"):
        return os.environ["SPARK_HOME"]
    return os.path.dirname(require_pyspark())


def require_pyspark() -> str:
    """The path of the pyspark package's `__init__.py`.

    Raises:
        EngineUnavailable: It is not installed. The message says how to install it.
    """
    try:
        import pyspark
    except ImportError as error:
        raise EngineUnavailable(
            f"the Spark engine needs pyspark, which cannot be imported ({error}). To fix it, run: "
            f'pip install "parketto[spark]"; {other_engines()}'
        ) from error
    return str(pyspark.__file__)


def other_engines() -> str:
    """The end of a message: which engines work without Spark."""
    duckdb = "engine='duckdb', or " if importlib.util.find_spec("duckdb") is not None else ""
    return f"or use another engine: {duckdb}engine='pyarrow', which is always available"


def _submit_arguments(text: str) -> dict[str, str]:
    """The settings in arguments of `spark-submit`.

    >>> _submit_arguments("--master=local[2] --conf spark.a=b=c --driver-memory 2g pyspark-shell")
    {'spark.master': 'local[2]', 'spark.a': 'b=c', 'spark.driver.memory': '2g'}
    """
    words = [part for word in shlex.split(text) for part in split_option(word)]
    found: dict[str, str] = {}
    for option, value in itertools.pairwise(words):
        if option in {"--conf", "-c"} and "=" in value:
            key, _, setting = value.partition("=")
            found[key.strip()] = setting.strip()
        elif option in SUBMIT_OPTIONS:
            found[SUBMIT_OPTIONS[option]] = value
        elif option == "--properties-file":
            found["properties-file"] = value
    return found


def split_option(word: str) -> list[str]:
    """An option and its value, if both are one word."""
    return word.split("=", 1) if word.startswith("--") and "=" in word else [word]


def _properties(path: str) -> dict[str, str]:
    """The entries of a Java properties file, as far as Spark's configuration uses that format."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
            entry = re.match(r"\s*([^\s=:#!]+)(?:\s*[=:]\s*|\s+)(\S.*?)\s*$", line)
            if entry:
                found[entry[1]] = entry[2]
    return found


def _memory() -> int:
    """Bytes of memory that this process may use, as far as the system reports it cheaply."""
    amounts = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        amounts.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max" means no limit
            amounts.append(int(Path(limit).read_text()))
    return min(amounts, default=4 << 30)
