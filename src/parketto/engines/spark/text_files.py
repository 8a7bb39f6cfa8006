"""Reads CSV and JSON files with Spark's own readers."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from parketto.engines.text_files import TextFormat
from parketto.errors import InvalidArgument, ParkettoError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def text_frame(
    spark: SparkSession,
    paths: Sequence[str],
    format_name: TextFormat,
    inferred: StructType | None = None,
    texts: Collection[str] = (),
) -> DataFrame:
    """A DataFrame of local CSV files with a header, or of files with one JSON object per line.

    Spark reads all files once to find their types. A malformed row is an error. With a schema that was inferred
    before, it does not; the columns in `texts` are read as texts.
    """
    urls = [f"file://{path}" for path in paths]
    reader = spark.read.option("mode", "FAILFAST")
    if inferred is not None:
        from pyspark.sql.types import StringType, StructField, StructType

        fields = [StructField(each.name, StringType()) if each.name in texts else each for each in inferred]
        reader = reader.schema(StructType(fields))
        return reader.json(urls) if format_name == "json" else reader.csv(urls, header=True)
    if format_name == "json":
        return reader.json(urls)
    return reader.csv(urls, header=True, inferSchema=True)


@contextlib.contextmanager
def reading_text(paths: Sequence[str], format_name: TextFormat) -> Iterator[None]:
    """Name the files in errors of Spark."""
    from pyspark.errors import PySparkException

    try:
        yield
    except ParkettoError as error:
        if not isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"cannot read {_named(paths)} as {format_name}: {error}") from error
    except PySparkException as error:
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(
            f"cannot read {_named(paths)} as {format_name}: {reason}. Nothing was changed"
        ) from error


def _named(paths: Sequence[str]) -> str:
    return repr(paths[0]) if len(paths) == 1 else f"{len(paths)} files such as {paths[0]!r}"
