"""Runs Spark's own programs, `spark-pipelines` and `spark-submit`, on the Java that embedded sessions use."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from parketto.engines.spark.archive import archive_options
from parketto.engines.spark.forks import warehouse
from parketto.engines.spark.java import find_java
from parketto.engines.spark.session import launch_variables, set_environment, unstated
from parketto.engines.spark.settings import (
    SESSION_SETTINGS,
    SUBMIT_OPTIONS,
    embedded_settings,
    limited_settings,
    require_pyspark,
    spark_home,
    split_option,
    stated_settings,
)
from parketto.errors import EngineUnavailable

_WHERE = {"--master": "MASTER", "--remote": "SPARK_REMOTE"}
_SUBMIT_OPTIONS = {"--conf", "-c", "--properties-file", *SUBMIT_OPTIONS} - {"--name"}  # which `init` has
_CONNECT_PORT = "spark.connect.grpc.binding.port"


def run_pipelines(arguments: Sequence[str]) -> None:
    """Run PySpark's `spark-pipelines` in this process; its script starts one more JVM, only to parse options.

    It uses the Spark that the arguments or the environment configure, else an embedded one.

    Args:
        arguments: Those of `spark-pipelines`, and the most common ones of `spark-submit`, such as `--master`.

    Raises:
        EngineUnavailable: pyspark, a package that its pipelines need, or Java is missing; or `spark-submit` has
            started this process.
    """
    require_pyspark()
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        raise EngineUnavailable(
            "spark-pipelines starts a Spark of its own, but this process was started by spark-submit. "
            "To fix it, run it before, as a command of its own"
        )
    try:
        from pyspark.pipelines.cli import main
    except ImportError as error:
        raise EngineUnavailable(
            f'spark-pipelines cannot be imported ({error}). To fix it, run: pip install "parketto[pipelines]"'
        ) from error
    own = _configure(arguments)
    stated = stated_settings()
    where = stated.get("spark.remote") or stated.get("spark.master")
    if where is None or not where.startswith("sc://"):
        _prepare_server(stated, where)
    sys.argv = ["spark-pipelines", *own]
    main()


def submit(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by `spark-submit`. Driver and workers use this Python, unless PYSPARK_PYTHON is set."""
    environment: dict[str, str | None] = {**os.environ, **launch_variables(find_java(), local=True, quiet=True)}
    program = os.path.join(spark_home(), "bin", "spark-submit")
    given = {name: value for name, value in environment.items() if value is not None}
    os.execve(program, [program, *arguments], given)  # noqa: S606 - Spark's own script


def _configure(arguments: Sequence[str]) -> list[str]:
    """Move the options of `spark-submit` into the environment, and return the others."""
    own, submitted = [], []
    words = iter([part for word in arguments for part in split_option(word)])
    for word in words:
        if word in _WHERE:
            for variable in _WHERE.values():
                os.environ.pop(variable, None)
            os.environ[_WHERE[word]] = next(words, "")
        elif word in _SUBMIT_OPTIONS:
            submitted += [word, next(words, "")]
        else:
            own.append(word)
    _submit_with(submitted)
    return own


def _submit_with(options: Sequence[str]) -> None:
    given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(options)} {given}"


def _prepare_server(stated: Mapping[str, str], where: str | None) -> None:
    """Set the environment of the Connect server that `spark-pipelines` starts in this process."""
    java = find_java()
    variables = launch_variables(java, local=where is None or where.startswith("local"), quiet=True)
    settings = {**SESSION_SETTINGS, **limited_settings(stated)}
    if where is None:
        settings = {**embedded_settings(warehouse(), archive_options(java, stated)), **settings}
        where = settings["spark.master"]
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings.pop("spark.master", None)
    settings = unstated({**settings, _CONNECT_PORT: "0"}, stated)
    _submit_with([word for key, value in settings.items() for word in ("--conf", f"{key}={value}")])
    set_environment({**variables, "SPARK_API_MODE": "connect", "MASTER": where, "SPARK_REMOTE": None})
    if _CONNECT_PORT in settings:
        _use_any_port()


def _use_any_port() -> None:
    """Connect to the port that the server got: with PySpark's fixed one, a second pipeline on a machine fails."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    def port() -> int:
        session: Any = SparkSession._instantiatedSession
        service = getattr(session._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        return int(getattr(service, "MODULE$").localPort())

    DefaultChannelBuilder.default_port = staticmethod(port)  # type: ignore[method-assign]
