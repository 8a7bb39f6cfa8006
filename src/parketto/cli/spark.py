"""Spark's own programs. On a machine without Java, they run on that of the `jdk` extra."""

from __future__ import annotations

import typer

# All arguments belong to Spark's program, its --help too.
_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("spark-pipelines", context_settings=_PASSED_ON)(spark_pipelines)
    app.command("spark-submit", context_settings=_PASSED_ON)(spark_submit)


def spark_pipelines(context: typer.Context) -> None:
    """Run PySpark's spark-pipelines, also without Java."""
    from parketto.engines.spark.programs import run_pipelines

    run_pipelines(context.args)


def spark_submit(context: typer.Context) -> None:
    """Run Spark's spark-submit, also without Java."""
    from parketto.engines.spark.programs import submit

    submit(context.args)
