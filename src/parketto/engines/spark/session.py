"""Finds the Spark session to use: the user's, the active one, or a new one."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from parketto.engines.spark.archive import archive_options
from parketto.engines.spark.forks import is_inherited, refuse_inherited, warehouse
from parketto.engines.spark.java import Java, find_java
from parketto.engines.spark.settings import (
    SESSION_SETTINGS,
    embedded_settings,
    limited_settings,
    require_pyspark,
    stated_settings,
)
from parketto.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)
_SILENT_SECONDS = 1.0  # a start of Spark that takes longer is announced on a terminal

_lock = threading.RLock()
_started: list[Any] = []  # the session that Parketto started, if any


def get_session(spark: SparkSession | None = None) -> tuple[SparkSession, bool]:
    """A live session, and whether Parketto started it (only then may Parketto stop it).

    In order of preference: the given one; the active one, classic or Connect; one on the Spark that the user has
    configured (SPARK_REMOTE, MASTER, spark-defaults.conf, PYSPARK_SUBMIT_ARGS, spark-submit); one embedded in this
    process. Concurrent threads get the same session.

    Args:
        spark: The user's own session. Its settings are not changed, and it is not stopped.

    Raises:
        InvalidArgument: `spark` is not a session, or has been stopped.
        EngineUnavailable: pyspark or Java is missing, or the session belongs to the process that this one was
            forked from. The message says what to do.
    """
    refuse_inherited()
    with _lock:
        if spark is not None:
            _check_given(spark)
            return spark, _is_ours(spark)
        found = active_session()
        if found is None:
            with _announced():
                found = _start()
            _started[:] = [found]
            _quiet_query_errors()
        return found, _is_ours(found)


def stop_session(spark: SparkSession) -> bool:
    """Stop a session if Parketto started it in this process; return whether it did."""
    if is_inherited():
        return False
    with _lock:
        if not _is_ours(spark):
            return False
        _started.clear()
        if not is_stopped(spark):
            spark.stop()
        return True


def active_session() -> SparkSession | None:
    """The live session of this process, if there is one. Starts nothing."""
    refuse_inherited()
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql.utils import is_remote

    if is_remote():
        # With SPARK_LOCAL_REMOTE the classic session belongs to the Connect server.
        return _connect_session() or (None if "SPARK_LOCAL_REMOTE" in os.environ else _classic_session())
    return _classic_session() or _connect_session()


def is_local(session: SparkSession) -> bool:
    """Whether all tasks run in one process of this machine."""
    return not is_connect(session) and (session.sparkContext.master or "").startswith("local")


def is_connect(spark: SparkSession) -> bool:
    """Whether a session talks to a Spark Connect server, so that it has no JVM and no `sparkContext`."""
    return any(base.__module__.startswith("pyspark.sql.connect.") for base in type(spark).__mro__)


def worker_memory_mb(spark: SparkSession) -> float | None:
    """The memory limit of each Python worker in MB, as Spark computes it; None if there is none."""
    setting = spark.conf.get("spark.executor.pyspark.memory", None)
    if not setting:
        return None
    number, unit = re.fullmatch(r"([0-9]+)([a-z]*)", setting.strip().lower()).groups()  # type: ignore[union-attr]
    bytes_of = {"": 2**20, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
    size = int(number) * bytes_of[unit[:1] if unit != "b" else "b"]
    return size / 2**20 / max(1, int(spark.conf.get("spark.executor.cores", "1") or 1))


def is_stopped(spark: SparkSession) -> bool:
    """Whether a session has been stopped, or its JVM is gone. A Connect server is not asked."""
    refuse_inherited()
    if is_connect(spark):
        return bool(spark.is_stopped)  # type: ignore[attr-defined]
    return not _alive(spark._sc)


def _is_ours(spark: SparkSession) -> bool:
    return any(spark is ours for ours in _started)


def _check_given(spark: SparkSession) -> None:
    if not any(base.__module__.startswith("pyspark.sql.") for base in type(spark).__mro__):
        raise InvalidArgument(f"spark must be a SparkSession, not {type(spark).__name__}")
    if is_stopped(spark):
        raise InvalidArgument(
            "the given Spark session has been stopped; give a live one, or none to get a new one"
        )


def _classic_session() -> SparkSession | None:
    from pyspark.core.context import SparkContext
    from pyspark.sql.session import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        return None
    if not _alive(context):
        _forget(context)
        return None
    # The active session is per thread; the process has a default one as well.
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    return session if session is not None else SparkSession(context)


def _connect_session() -> SparkSession | None:
    module = sys.modules.get("pyspark.sql.connect.session")
    if module is None:
        return None
    session: SparkSession | None = module.SparkSession.getActiveSession()
    return session or module.SparkSession._get_default_session()


def _alive(context: SparkContext) -> bool:
    if context._jsc is None:
        return False
    process = getattr(context._gateway, "proc", None)
    return (process is None or process.poll() is None) and not context._jsc.sc().isStopped()


def _forget(context: SparkContext) -> None:
    """Clear pyspark's references to a dead context, so that a new one can be started."""
    from pyspark.core.context import SparkContext
    from pyspark.sql.session import SparkSession

    process = getattr(context._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        # A proper stop would call a JVM that is gone.
        context._jsc = None
        gateway: Any = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = None
        with contextlib.suppress(Exception):  # the connection may be broken in any way
            gateway.shutdown()
            process.stdin.close()
    context.stop()
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


@contextlib.contextmanager
def _announced() -> Iterator[None]:
    """Log the start of Spark; print a line on a terminal if it takes a while and logs are not shown."""
    logger.info("starting Spark …")
    started = time.monotonic()
    timer = threading.Timer(_SILENT_SECONDS, _announce)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    logger.info("Spark started in %.1f s", time.monotonic() - started)


def _announce() -> None:
    """A redirected standard error stays clean."""
    if not logger.isEnabledFor(logging.INFO) and sys.stderr is not None and sys.stderr.isatty():
        print("parketto: starting Spark, which takes some seconds ...", file=sys.stderr, flush=True)


def _quiet_query_errors() -> None:
    """Keep pyspark from printing the JVM's trace of an invalid query. Its exceptions have the sentence."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _start() -> SparkSession:
    require_pyspark()
    stated = stated_settings()
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # run by spark-submit, which has configured everything
        return _build({})
    where = stated.get("spark.remote") or stated.get("spark.master")
    if where is None and os.environ.get("SPARK_API_MODE", "").lower() != "connect":
        return _start_embedded(stated)
    if where is not None and where.startswith("sc://"):
        return _build(unstated(SESSION_SETTINGS, stated))
    with _environment(launch_variables(find_java(), local=where is None or where.startswith("local"))):
        return _build(unstated({**SESSION_SETTINGS, **limited_settings(stated)}, stated))


def unstated(settings: Mapping[str, str], stated: Mapping[str, str]) -> dict[str, str]:
    """Parketto's settings, except those that the user has set."""
    return {key: value for key, value in settings.items() if key not in stated}


def _start_embedded(stated: Mapping[str, str]) -> SparkSession:
    # Left behind by a finished Connect session; with it pyspark would refuse to start a classic one.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    java = find_java()
    ours = {**embedded_settings(warehouse(), archive_options(java, stated)), **limited_settings(stated)}
    settings = unstated(ours, stated)
    variables = launch_variables(java, local=True, quiet=True)
    with _environment({**variables, "SPARK_LOCAL_IP": "127.0.0.1"}):
        return _build(settings)


def _build(settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def launch_variables(java: Java, *, local: bool, quiet: bool = False) -> dict[str, str | None]:
    """The environment variables to start the JVM, and with it the Python workers, with."""
    variables: dict[str, str | None] = {"JAVA_HOME": java.home(quiet=quiet)}
    if local and not os.environ.get("PYSPARK_PYTHON"):
        # Workers would use any python3 on PATH. On a cluster, only the user knows the right one.
        variables["PYSPARK_PYTHON"] = sys.executable
    return variables


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Change the environment while a JVM starts and inherits it. None unsets a variable."""
    before = {name: os.environ.get(name) for name in variables}
    set_environment(variables)
    try:
        yield
    finally:
        set_environment(before)


def set_environment(variables: Mapping[str, str | None]) -> None:
    """Set environment variables. None unsets one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
