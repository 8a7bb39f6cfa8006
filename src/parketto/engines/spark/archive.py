"""Class data archives of Spark's classes, with which the JVM of an embedded session starts faster.

`python -m parketto.engines.spark.archive` creates one, `--remove` removes it. None is created automatically.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parketto.engines.spark.java import ARCHIVE_PREFIX, Java, cache_folder, find_java
from parketto.engines.spark.settings import spark_home, stated_settings
from parketto.errors import EngineUnavailable, ParkettoError

if TYPE_CHECKING:
    import pyarrow as pa

VARIABLE = "PARKETTO_SPARK_ARCHIVE"
"""Environment variable; if set to 0, sessions start without an archive."""

_COMMAND = f"{os.path.basename(sys.executable)} -m parketto.engines.spark.archive"
_SCRATCH_PREFIX = ".archive-"
_ABANDONED_SECONDS = 3600  # an older scratch folder was left by a killed process: no archive takes that long
_TIMEOUT_SECONDS = 1800  # for each process that is started
# Options that select or create an archive. With some of them and ours, the JVM does not start.
_CHOSEN_BY_USER = re.compile(r"-Xshare|-XX:[+-]?\w*(?:Archive|AOT|ClassList)")


def archive_options(java: Java, stated: Mapping[str, str]) -> list[str]:
    """JVM options to use the archive of this Java and this Spark; empty if there is none.

    A JVM that cannot use an archive silently starts without it.

    Args:
        java: The Java that the session will run on.
        stated: The user's configuration. An archive selected there, or in a variable for Java, is kept.
    """
    variables = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
    chosen = [stated.get("spark.driver.extraJavaOptions", ""), *(os.environ.get(name, "") for name in variables)]
    if os.environ.get(VARIABLE) == "0" or any(map(_CHOSEN_BY_USER.search, chosen)):
        return []
    with contextlib.suppress(OSError):
        path = archive_path(java)
        if path.is_file() and os.access(path, os.R_OK):
            return _options(path, java.version)
    return []


def archive_path(java: Java) -> Path:
    """The path of the archive for a Java and the installed Spark, whether or not it exists.

    Its name is a hash of both: after an upgrade of either, the old archive is no longer used.
    """
    executable = Path(os.path.realpath(java.executable))
    about: list[object] = [java.executable, str(executable), java.version, _stamp(executable)]
    with contextlib.suppress(OSError):  # not every Java has one
        about.append((executable.parent.parent / "release").read_text(errors="replace"))
    jars = Path(spark_home(), "jars")
    about += [str(jars), *sorted((jar.name, *_stamp(jar)) for jar in jars.iterdir())]
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return Path(cache_folder(), f"{ARCHIVE_PREFIX}{name}.jsa")


def make_archive() -> Path:
    """Create the archive for the installed Spark and the Java that it would run on; return its path.

    Processes may do so concurrently. An existing archive is replaced atomically.

    Raises:
        EngineUnavailable: pyspark or Java is missing, embedded sessions are not in use, the folder cannot be
            written, or this Java creates no archive. There is no new archive then.
    """
    stated = stated_settings()
    where = stated.get("spark.remote") or stated.get("spark.master")
    if where is not None:
        raise EngineUnavailable(
            f"an archive is for embedded sessions only, but Spark is configured to run on {where}"
        )
    java = find_java()
    path = archive_path(java)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=path.parent) as folder:
            made = Path(folder, path.name)
            _dump(java, made, _train(made))
            os.replace(made, path)
    except OSError as error:
        raise EngineUnavailable(
            f"the archive cannot be written: {error}. Nothing was changed. To fix it, set XDG_CACHE_HOME to a "
            "writable folder, here and where Parketto runs"
        ) from error
    return path


def remove_archives() -> list[tuple[Path, int]]:
    """Remove the archives of every Java and Spark; return their paths and sizes. Running sessions continue."""
    folder = Path(cache_folder())
    removed = []
    for path in sorted(folder.glob(f"{ARCHIVE_PREFIX}*.jsa")):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            removed.append((path, path.stat().st_size))
            path.unlink()
    for scratch in folder.glob(f"{_SCRATCH_PREFIX}*"):
        if time.time() - scratch.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(scratch, ignore_errors=True)
    return removed


def main(arguments: Sequence[str] | None = None) -> int:
    """Create or remove an archive, and print what was done."""
    parser = argparse.ArgumentParser(
        prog=_COMMAND,
        description="Create an archive of Spark's classes. Embedded sessions of this Java and this Spark start "
        "faster with it.",
    )
    parser.add_argument("--remove", action="store_true", help="remove all archives instead")
    parser.add_argument("--train", metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    try:
        if given.train:
            _run_training(Path(given.train))
        elif given.remove:
            removed = remove_archives()
            for path, size in removed:
                print(f"removed {path} ({_megabytes(size)})")
            if not removed:
                print(f"there is no archive in {cache_folder()}")
        else:
            java = find_java()
            print(
                f"making an archive for Java {java.version} ({java.executable}); this takes a minute or two …",
                flush=True,
            )
            path = make_archive()
            print(f"made {path} ({_megabytes(path.stat().st_size)})")
            print("Embedded Spark sessions now use it.")
            print(f"To start without it, set {VARIABLE}=0. To remove it, run: {_COMMAND} --remove")
    except (ParkettoError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _options(path: Path, version: int) -> list[str]:
    # Since 25, the JVM warns about archives under another log tag.
    silent = "-Xlog:cds*=off,aot*=off" if version >= 25 else "-Xlog:cds*=off"
    # Verify the archive: otherwise the JVM would run pages that a disk has lost.
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-XX:+VerifySharedSpaces", silent]


def _train(archive: Path) -> dict[str, Any]:
    """Start Spark in a separate process, and list the classes that it loads next to the future archive.

    Returns:
        The class path and the heap size of the JVM.
    """
    jvm_info = archive.with_name("notes.json")
    # Naming the future archive gives the JVM the class path that it will have with the archive.
    options = [f"-XX:SharedArchiveFile={archive}", f"-XX:DumpLoadedClassList={archive.with_name('classes')}"]
    options += ["-Xlog:cds*=off"]
    user_options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    environment = {**os.environ, VARIABLE: "0", "SPARK_SUBMIT_OPTS": f"{user_options} {shlex.join(options)}"}
    _run([sys.executable, "-m", __spec__.name, "--train", str(jvm_info)], "Spark did not start", environment)
    found: dict[str, Any] = json.loads(jvm_info.read_text())
    return found


def _run_training(jvm_info: Path) -> None:
    """Make Spark load the classes that operations use: for files, shuffles, joins, and Arrow batches."""
    import pyarrow as pa

    from parketto.engines.spark.session import get_session, stop_session

    spark, _ = get_session()
    gateway: Any = spark.sparkContext._gateway
    machine = gateway.jvm.java.lang
    about = {
        "class_path": machine.System.getProperty("java.class.path"),
        "heap_bytes": machine.Runtime.getRuntime().maxMemory(),
    }
    jvm_info.write_text(json.dumps(about))
    numbers = range(100)
    table = pa.table({"id": numbers, "name": [str(n % 7) for n in numbers], "part": [n % 2 for n in numbers]})
    folder = str(jvm_info.with_name("rows"))
    frame: Any = spark.createDataFrame(table)
    frame = frame.withColumn("part", frame["part"].cast("int"))
    frame.repartitionById(2, "part").mapInArrow(_same, frame.schema).write.parquet(folder)
    rows = spark.read.parquet(folder)
    rows.mapInArrow(_same, rows.schema).collect()
    rows.join(rows.groupBy("name").count(), "name").filter("id > 5").sort("id", "name").toArrow()
    stop_session(spark)
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_TIMEOUT_SECONDS)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _dump(java: Java, archive: Path, about: Mapping[str, Any]) -> None:
    """Write an archive of the listed classes, and check that a JVM accepts it."""
    # Another heap size may change the pointers, and make the archive useless.
    base = [java.executable, f"-Xmx{about['heap_bytes']}"]
    path = ["-cp", about["class_path"]]
    listed = f"-XX:SharedClassListFile={archive.with_name('classes')}"
    _run([*base, "-Xshare:dump", listed, f"-XX:SharedArchiveFile={archive}", *path], "Java created no archive")
    demanded = [*_options(archive, java.version), "-Xshare:on"]
    _run([*base, *demanded, *path, "-version"], "Java does not accept the archive that it created")


def _run(command: list[str], problem: str, environment: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - our own Python, and the user's own java
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineUnavailable(f"{problem} within {_TIMEOUT_SECONDS} s, so there is no new archive") from error
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "[warning]" not in line]
        raise EngineUnavailable(f"{problem}, so there is no new archive. Its output: {' / '.join(lines[-5:])}")


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


if __name__ == "__main__":
    sys.exit(main())
