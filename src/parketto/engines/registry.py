"""Engines by name. An engine's library is imported when the engine is first requested."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from parketto.engines.base import Engine
from parketto.errors import InvalidArgument, quoted

DEFAULT_ENGINE = "spark"


def _pyarrow(**options: Any) -> Engine:
    from parketto.engines.pyarrow.engine import PyArrowEngine

    return PyArrowEngine(**options)


def _duckdb(**options: Any) -> Engine:
    from parketto.engines.duckdb.engine import DuckDBEngine

    return DuckDBEngine(**options)


def _spark(**options: Any) -> Engine:
    from parketto.engines.spark.engine import SparkEngine

    return SparkEngine(**options)


_ENGINES: dict[str, Callable[..., Engine]] = {"duckdb": _duckdb, "pyarrow": _pyarrow, "spark": _spark}
_OPTIONS = {
    "duckdb": ("memory_mb", "threads"),
    "pyarrow": ("memory_mb", "threads"),
    "spark": ("memory_mb", "spark"),
}


def get_engine(engine: str | Engine | None = None, **options: Any) -> Engine:
    """The engine by name, or the given instance; by default the one in PARKETTO_ENGINE, or Spark."""
    if engine is None:
        engine = os.environ.get("PARKETTO_ENGINE") or DEFAULT_ENGINE
    if not isinstance(engine, str):
        if options:
            raise InvalidArgument(
                f"{quoted(options)} cannot be combined with an engine instance; pass options to its constructor"
            )
        return engine
    if engine not in _ENGINES:
        raise InvalidArgument(f"unknown engine {engine!r}; available engines: {quoted(sorted(_ENGINES))}")
    if unsupported := [name for name in options if name not in _OPTIONS[engine]]:
        raise InvalidArgument(
            f"the {engine} engine has no {quoted(unsupported)}; its options: {quoted(_OPTIONS[engine])}"
        )
    return _ENGINES[engine](**options)
