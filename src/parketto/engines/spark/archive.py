"""Archives of Spark's classes, with which the JVM of an embedded session starts in less time.

`python -m parketto.engines.spark.archive` makes one, `--remove` removes it. None is made unless asked for.
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
"""The environment variable that, set to 0, makes sessions start without an archive."""

_COMMAND = f"{os.path.basename(sys.executable)} -m parketto.engines.spark.archive"
_SCRATCH_PREFIX = ".archive-"
_ABANDONED_SECONDS = 3600  # no archive takes as long to make; an older scratch folder was left by a killed process
_TIMEOUT_SECONDS = 1800
# Options that choose an archive, or make one. Some do not start together with ours.
_CHOSEN_BY_USER = re.compile(r"-Xshare|-XX:[+-]?\w*(?:Archive|AOT|ClassList)")


def archive_options(java: Java, stated: Mapping[str, str]) -> list[str]:
    """Options with which the JVM of a session uses the archive of this Java and this Spark; none if there is none.

    A JVM that cannot use an archive starts without it, and says nothing.

    Args:
        java: The Java that the session will run on.
        stated: What the user has configured. An archive that is chosen there, or in a variable for Java, is kept.
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
    """Where the archive of a Java and the installed Spark is, or would be.

    Its name is a hash of both: after an upgrade of either, the archive is not found any more.
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
    """Make the archive of the Java that Spark would run on, and of the installed Spark; returns its path.

    Processes may do so at the same time. One that is there already is replaced in one step.

    Raises:
        EngineUnavailable: pyspark or Java is missing, embedded sessions are not in use, the folder cannot be
            written, or this Java makes no archive. There is no new archive then.
    """
    stated = stated_settings()
    where = stated.get("spark.remote") or stated.get("spark.master")
    if where is not None:
        raise EngineUnavailable(
            f"an archive is of use to embedded sessions only, and Spark is configured to run on {where}"
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
            "folder that can be written, here and where Parketto runs"
        ) from error
    return path


def remove_archives() -> list[tuple[Path, int]]:
    """Remove the archives of every Java and Spark; returns their paths and sizes. Running sessions go on."""
    folder = Path(cache_folder())
    removed = []
    for path in sorted(folder.glob(f"{ARCHIVE_PREFIX}*.jsa")):
        with contextlib.suppress(FileNotFoundError):  # somebody else was faster
            removed.append((path, path.stat().st_size))
            path.unlink()
    for scratch in folder.glob(f"{_SCRATCH_PREFIX}*"):
        if time.time() - scratch.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(scratch, ignore_errors=True)
    return removed


def main(arguments: Sequence[str] | None = None) -> int:
    """Make or remove an archive, and say what was done."""
    parser = argparse.ArgumentParser(
        prog=_COMMAND,
        description="Make an archive of Spark's classes. Embedded sessions of this Java and this Spark start "
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
    # From 25 on, the JVM warns about archives under another name.
    silent = "-Xlog:cds*=off,aot*=off" if version >= 25 else "-Xlog:cds*=off"
    # Verified: pages that a disk has lost would otherwise be run.
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-XX:+VerifySharedSpaces", silent]


def _train(archive: Path) -> dict[str, Any]:
    """Start Spark in a process of its own, and note beside the archive-to-be which classes it loads.

    Returns:
        What the JVM was started with: its class path, and the size of its heap.
    """
    notes = archive.with_name("notes.json")
    # With the name of an archive, though there is none yet, the JVM gets the class path that it will get with one.
    options = [f"-XX:SharedArchiveFile={archive}", f"-XX:DumpLoadedClassList={archive.with_name('classes')}"]
    options += ["-Xlog:cds*=off"]
    said = os.environ.get("SPARK_SUBMIT_OPTS", "")
    environment = {**os.environ, VARIABLE: "0", "SPARK_SUBMIT_OPTS": f"{said} {shlex.join(options)}"}
    _run([sys.executable, "-m", __spec__.name, "--train", str(notes)], "Spark did not start", environment)
    found: dict[str, Any] = json.loads(notes.read_text())
    return found


def _run_training(notes: Path) -> None:
    """Let Spark load the classes that operations use: of files, shuffles, joins, and exchanged Arrow batches."""
    import pyarrow as pa

    from parketto.engines.spark.session import get_session, stop_session

    spark, _ = get_session()
    gateway: Any = spark.sparkContext._gateway
    machine = gateway.jvm.java.lang
    about = {
        "class_path": machine.System.getProperty("java.class.path"),
        "heap_bytes": machine.Runtime.getRuntime().maxMemory(),
    }
    notes.write_text(json.dumps(about))
    numbers = range(100)
    table = pa.table({"id": numbers, "name": [str(n % 7) for n in numbers], "part": [n % 2 for n in numbers]})
    folder = str(notes.with_name("rows"))
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
    """Write an archive of the classes that were noted, and see whether a JVM takes it."""
    # A heap of another size may mean other pointers, and an archive of no use.
    base = [java.executable, f"-Xmx{about['heap_bytes']}"]
    path = ["-cp", about["class_path"]]
    listed = f"-XX:SharedClassListFile={archive.with_name('classes')}"
    _run([*base, "-Xshare:dump", listed, f"-XX:SharedArchiveFile={archive}", *path], "Java made no archive")
    demanded = [*_options(archive, java.version), "-Xshare:on"]
    _run([*base, *demanded, *path, "-version"], "Java does not take the archive that it made")


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
        raise EngineUnavailable(f"{problem}, so there is no new archive. It said: {' / '.join(lines[-5:])}")


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


if __name__ == "__main__":
    sys.exit(main())
