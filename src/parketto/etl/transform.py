"""A caller's function over Polars frames, as something that tasks apply to the rows that they read.

Its result has one schema, learnt from the function itself before any row is written; every batch is held to it.
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

from parketto.errors import EngineUnavailable, IncompatibleTypes, InvalidArgument, TransformFailed, quoted
from parketto.kernels.carrier import carrier_schema, carrier_type
from parketto.kernels.merge_source import as_target
from parketto.kernels.rows import FileRows, checked_columns
from parketto.kernels.sizes import runs
from parketto.kernels.work import Staging, Worker
from parketto.plan.limits import MEGABYTE
from parketto.rowgroups.area import without_area

TransformFunction = Callable[[Any], Any]

_PROBE_BYTES = 64 * MEGABYTE
# Says something about the table of one pandas frame, which the new rows are not.
_PANDAS = b"pandas"


@dataclass(frozen=True)
class PolarsTransform:
    """Applies a function to rows, a frame of at most `batch_rows` at a time, and checks what comes back."""

    function: TransformFunction
    takes: pa.Schema
    schema: pa.Schema
    #: The Polars types of the result, by name.
    kinds: Mapping[str, Any]
    batch_rows: int

    def __call__(self, batches: Iterator[pa.RecordBatch], limit_bytes: int) -> Iterator[pa.RecordBatch]:
        """The function's rows for those of one file."""
        carried = carrier_schema(self.schema).remove_metadata()
        for run in runs(batches, limit_bytes, self.batch_rows):
            frame = applied(self.function, run)
            self._check(frame)
            table = frame.select(self.schema.names).to_arrow()
            try:
                yield from as_target(table.to_batches(), carried)
            except (IncompatibleTypes, pa.ArrowNotImplementedError) as error:
                raise TransformFailed(
                    f"what transform_fn returned does not fit its own schema: {error}"
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
                f"transform_fn does not return the same columns for every batch: {'; '.join(differences)}. Let it "
                "name the types itself (cast, return_dtype)"
            )


def transformed_rows(rows: FileRows, function: TransformFunction, batch_rows: int) -> FileRows:
    """The rows of files as a function over Polars frames makes them."""
    _require_polars()
    if wide := [item.name for item in rows.schema if pat.is_decimal256(item.type)]:
        raise InvalidArgument(f"Polars has no decimals of more than 38 digits, so {quoted(wide)} cannot pass it")
    result = _sample(rows, function, batch_rows)
    schema = _result_schema(rows, result)
    transform = PolarsTransform(function, rows.schema, schema, dict(result.schema), batch_rows)
    return FileRows(schema, rows.store, rows.files, rows.form, transform)


def applied(function: TransformFunction, rows: pa.Table) -> Any:
    """The frame that the function makes of the rows."""
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
    """A result that shows the schema: of no rows if the function can do with none, else of the first ones."""
    nothing = carrier_schema(rows.schema).remove_metadata().empty_table()
    if not rows.num_rows:
        return applied(function, nothing)
    with contextlib.suppress(TransformFailed):
        result = applied(function, nothing)
        if not _unclear(result):
            return result
    with Worker(rows.store, Staging(""), _PROBE_BYTES) as worker:
        first = next(batch for batch in rows.read(worker) if batch.num_rows)
    return applied(function, pa.Table.from_batches([first.slice(0, batch_rows)]))


def _unclear(result: Any) -> bool:
    """Whether a result without rows leaves open what its columns will be."""
    import polars as pl

    return any(kind in (pl.Null, pl.Unknown, pl.Object) for kind in result.schema.values())


def _result_schema(rows: FileRows, result: Any) -> pa.Schema:
    """Columns whose type the function has left alone have exactly the type of the files; any may be NULL now."""
    import polars as pl

    if objects := [name for name, kind in result.schema.items() if kind == pl.Object]:
        raise TransformFailed(f"transform_fn returned columns of Python objects: {quoted(objects)}")
    before = pl.from_arrow(carrier_schema(rows.schema).remove_metadata().empty_table())
    assert isinstance(before, pl.DataFrame), "a table becomes a frame"
    fields = []
    for item in result.head(0).to_arrow().schema:
        if before.schema.get(item.name) == result.schema[item.name]:
            original = rows.schema.field(item.name)
            item = original if _can_become(item.type, original.type) else item
        fields.append(item.with_type(_storable(item.type)).with_nullable(True))
    kept = {key: value for key, value in without_area(rows.schema.metadata).items() if key != _PANDAS}
    return checked_columns(pa.schema(fields, metadata=kept or None))


def _can_become(kind: pa.DataType, wanted: pa.DataType) -> bool:
    try:
        pa.array([], kind).cast(carrier_type(wanted))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _storable(kind: pa.DataType) -> pa.DataType:
    if pat.is_dictionary(kind):
        return pa.dictionary(pa.int32(), carrier_type(kind.value_type), kind.ordered)
    return kind if pat.is_string_view(kind) or pat.is_binary_view(kind) else carrier_type(kind)


def _require_polars() -> None:
    if importlib.util.find_spec("polars") is None:
        raise EngineUnavailable("transform_fn needs Polars: pip install 'parketto[polars]'")


def wants_spark_frame(function: TransformFunction) -> bool:
    """Whether a function says that it takes or returns a Spark DataFrame.

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
    """What a text stands for; the text itself if only a type checker knows that."""
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
