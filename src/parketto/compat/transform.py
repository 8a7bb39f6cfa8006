"""User functions over Polars DataFrames, applied by tasks to the rows that they read.

Calling the function before any row is written determines the schema of the result. Every batch must match it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.arguments import MEGABYTE
from parketto.errors import EngineUnavailable, IncompatibleTypes, InvalidArgument, TransformFailed, quoted
from parketto.merge.source import as_target
from parketto.parquet.decoded_types import decoded_schema, decoded_type
from parketto.parquet.geo_area import without_bbox
from parketto.parquet.pandas_schema import PANDAS_KEY
from parketto.parquet.row_source import FileRows, checked_columns
from parketto.runtime.batches import runs
from parketto.runtime.staging import Staging
from parketto.runtime.task import Worker

TransformFunction = Callable[[Any], Any]

_PROBE_BYTES = 64 * MEGABYTE  # memory for reading the first batch, if the schema depends on rows


@dataclass(frozen=True)
class PolarsTransform:
    """Applies a function to DataFrames of at most `batch_rows` rows, and checks the results."""

    function: TransformFunction
    takes: pa.Schema
    schema: pa.Schema
    #: The Polars types of the result, by name.
    kinds: Mapping[str, Any]
    batch_rows: int

    def __call__(self, batches: Iterator[pa.RecordBatch], limit_bytes: int) -> Iterator[pa.RecordBatch]:
        """The result of the function for the rows of one file."""
        expected = decoded_schema(self.schema).remove_metadata()
        for run in runs(batches, limit_bytes, self.batch_rows):
            frame = apply_function(self.function, run)
            self._check(frame)
            table = frame.select(self.schema.names).to_arrow()
            try:
                yield from as_target(table.to_batches(), expected)
            except (IncompatibleTypes, pa.ArrowNotImplementedError) as error:
                raise TransformFailed(
                    f"the result of transform_fn does not fit its own schema: {error}"
                ) from error

    def _check(self, frame: Any) -> None:
        found = dict(frame.schema)
        differences = [
            *(f"{name!r} is missing" for name in self.kinds if name not in found),
            *(f"{name!r} is new" for name in found if name not in self.kinds),
            *(
                f"{name!r} is {found[name]} instead of {kind}"
                for name, kind in self.kinds.items()
                if name in found and found[name] != kind
            ),
        ]
        if differences:
            raise TransformFailed(
                f"transform_fn does not return the same columns for every batch: {'; '.join(differences)}. Set "
                "the types explicitly in transform_fn (cast, return_dtype)"
            )


def transformed_rows(rows: FileRows, function: TransformFunction, batch_rows: int) -> FileRows:
    """The rows of files, transformed by a function over Polars DataFrames."""
    _require_polars()
    if wide := [item.name for item in rows.schema if pat.is_decimal256(item.type)]:
        raise InvalidArgument(f"transform_fn cannot get {quoted(wide)}: Polars has no decimals above 38 digits")
    result = _sample(rows, function, batch_rows)
    schema = _result_schema(rows, result)
    transform = PolarsTransform(function, rows.schema, schema, dict(result.schema), batch_rows)
    return FileRows(schema, rows.store, rows.files, rows.spec, transform)


def apply_function(function: TransformFunction, rows: pa.Table) -> Any:
    """The DataFrame that the function returns for the rows."""
    import polars as pl

    try:
        result = function(pl.from_arrow(rows))
        if isinstance(result, pl.LazyFrame):
            result = result.collect()
    except Exception as error:
        raise TransformFailed(
            f"transform_fn failed on a batch of {rows.num_rows} rows: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(result, pl.DataFrame):
        raise TransformFailed(f"transform_fn must return a Polars DataFrame, not {type(result).__name__}")
    return result


def _sample(rows: FileRows, function: TransformFunction, batch_rows: int) -> Any:
    """A result with the final schema: for no rows if the function supports that, else for the first rows."""
    empty = decoded_schema(rows.schema).remove_metadata().empty_table()
    if not rows.num_rows:
        return apply_function(function, empty)
    with contextlib.suppress(TransformFailed):
        result = apply_function(function, empty)
        if not _undetermined(result):
            return result
    with Worker(rows.store, Staging(""), _PROBE_BYTES) as worker:
        first = next(batch for batch in rows.read(worker) if batch.num_rows)
    return apply_function(function, pa.Table.from_batches([first.slice(0, batch_rows)]))


def _undetermined(result: Any) -> bool:
    """Whether the column types of a result without rows are undetermined."""
    import polars as pl

    return any(kind in (pl.Null, pl.Unknown, pl.Object) for kind in result.schema.values())


def _result_schema(rows: FileRows, result: Any) -> pa.Schema:
    """The schema of the result: columns with unchanged types keep those of the files; all become nullable."""
    import polars as pl

    if objects := [name for name, kind in result.schema.items() if kind == pl.Object]:
        raise TransformFailed(f"transform_fn returned columns of Python objects: {quoted(objects)}")
    before = pl.from_arrow(decoded_schema(rows.schema).remove_metadata().empty_table())
    assert isinstance(before, pl.DataFrame), "a table becomes a DataFrame"
    fields = []
    for item in result.head(0).to_arrow().schema:
        if before.schema.get(item.name) == result.schema[item.name]:
            original = rows.schema.field(item.name)
            item = original if _can_cast(item.type, original.type) else item
        fields.append(item.with_type(_storable(item.type)).with_nullable(True))
    kept = {key: value for key, value in without_bbox(rows.schema.metadata).items() if key != PANDAS_KEY}
    return checked_columns(pa.schema(fields, metadata=kept or None))


def _can_cast(kind: pa.DataType, wanted: pa.DataType) -> bool:
    try:
        pa.array([], kind).cast(decoded_type(wanted))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _storable(kind: pa.DataType) -> pa.DataType:
    if pat.is_dictionary(kind):
        return pa.dictionary(pa.int32(), decoded_type(kind.value_type), kind.ordered)
    return kind if pat.is_string_view(kind) or pat.is_binary_view(kind) else decoded_type(kind)


def _require_polars() -> None:
    if importlib.util.find_spec("polars") is None:
        raise EngineUnavailable("transform_fn needs Polars: pip install 'polars>=2.1,<3'")


def wants_spark_frame(function: TransformFunction) -> bool:
    """Whether a function is annotated with a Spark DataFrame.

    >>> def plain(frame): ...
    >>> def annotated(frame: "pyspark.sql.DataFrame"): ...
    >>> wants_spark_frame(plain), wants_spark_frame(annotated)
    (False, True)
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = getattr(function, "__call__", function)  # noqa: B004 - its annotations are wanted
    known = getattr(inspect.unwrap(function), "__globals__", {})
    return any(_is_spark_frame(_resolved(hint, known)) for hint in inspect.get_annotations(function).values())


def _resolved(hint: object, known: dict[str, Any]) -> object:
    """The annotation evaluated; the string itself if only a type checker can resolve it."""
    if isinstance(hint, str):
        with contextlib.suppress(Exception):
            return eval(hint, known)  # noqa: S307 - the function's own annotation, as `typing` reads it
    return hint


def _is_spark_frame(hint: object) -> bool:
    if isinstance(hint, str):
        return "pyspark" in hint or "SparkDataFrame" in hint
    if getattr(hint, "__name__", "") == "DataFrame":
        return str(getattr(hint, "__module__", "")).startswith("pyspark.")
    return any(_is_spark_frame(part) for part in typing.get_args(hint))
