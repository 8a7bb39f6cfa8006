"""Suggest clustering columns: try layouts on a sample, and estimate what the queries would read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parketto.arguments import Thresholds
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import ColumnNotFound, InvalidArgument
from parketto.expressions.conditions import Predicate
from parketto.expressions.dispatch import predicate
from parketto.expressions.pruning import row_groups_may_match
from parketto.expressions.time_zones import Clock
from parketto.operations.context import DatasetContext
from parketto.parquet.clustering_metadata import LINEAR
from parketto.parquet.file_info import FileInfo, describe
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.planning.clustering import DEFAULT_CURVE, row_group_rows
from parketto.planning.skipping import column_reads
from parketto.runtime.staging import Staging
from parketto.sorting.buckets import cut_buckets
from parketto.sorting.order import is_orderable, order_indices, order_keys
from parketto.storage.hive import PartitionFilter
from parketto.tasks.cluster import SampleFiles, combined

_SAMPLE_ROWS = 256 * 1024  # target size of the sample
_SAMPLE_ROWS_PER_ROW_GROUP = 64  # minimum in a trial layout
_MAX_ROW_GROUPS = 1024  # maximum in a trial layout
_FILES_PER_TASK = 16  # sampled files per task
_MIN_IMPROVEMENT = 0.05  # a further column is suggested only if it reduces the reads by this share


class Suggestion(TypedDict):
    """Clustering columns, and the share of row groups that the queries would then read."""

    columns: list[str]
    curve: str
    #: The weighted average over the queries.
    reads: float
    reads_by_query: dict[str, float]


class Advice(TypedDict):
    """Suggested clustering columns, best first; none if nothing would help."""

    suggestions: list[Suggestion]
    #: The share of row groups that the queries read with the current layout.
    reads_now: float
    reads_now_by_query: dict[str, float]
    #: The estimated distinct count of each column.
    distinct_values: dict[str, int]


@dataclass(frozen=True)
class Query:
    """A condition, or a column that is queried by ranges of 1 % of the rows."""

    text: str
    weight: float
    condition: Predicate | None
    columns: tuple[str, ...]

    def reads(self, files: Sequence[FileInfo], spec: PartitionSpec) -> float:
        """The share of the row groups of files that it reads."""
        groups = [group for file in files for group in file.row_groups if group.num_rows]
        if not groups:
            return 0.0
        if self.condition is None:
            return column_reads(groups, self.columns[0])["range"]
        read = sum(sum(row_groups_may_match(self.condition, file, spec.path_only)) for file in files)
        return read / len(groups)


def suggest(
    dataset: DatasetContext,
    queries: Sequence[Any] | Mapping[Any, float],
    thresholds: Thresholds,
    max_columns: int,
    partition_filter: PartitionFilter,
    progress: ProgressCallback | None,
) -> Advice:
    """Discover → sample → try layouts → report. Nothing is written."""
    clock = dataset.clock()
    files = dataset.snapshot(partition_filter, stats_columns=None).files
    spec = partition_spec_of(files)
    parsed = _queries(queries, files, spec, clock)
    candidates = _candidates(parsed, files)
    if not candidates:
        raise InvalidArgument(
            "none of the queries has a column to cluster by: it must be in the files, not only in their paths, "
            "and have a type that can be ordered"
        )
    if not any(file.num_rows for file in files):
        nothing = {query.text: 0.0 for query in parsed}
        distinct = dict.fromkeys(candidates, 0)
        return Advice(suggestions=[], reads_now=0.0, reads_now_by_query=nothing, distinct_values=distinct)
    sample = _sample(dataset, files, candidates, progress)
    rows, size = sum(file.num_rows for file in files), sum(file.size_bytes for file in files)
    count = math.ceil(rows / max(1, row_group_rows(rows, size, rows, thresholds.target_bytes)))
    trial = _Trial(
        sample, parsed, spec, min(count, _MAX_ROW_GROUPS, sample.num_rows // _SAMPLE_ROWS_PER_ROW_GROUP)
    )
    now = {query.text: query.reads(files, spec) for query in parsed}
    return Advice(
        suggestions=_greedy(trial, candidates, max_columns),
        reads_now=_average(parsed, now),
        reads_now_by_query=now,
        distinct_values={name: _distinct(sample.column(name), rows) for name in candidates},
    )


def _queries(queries: Any, files: Sequence[FileInfo], spec: PartitionSpec, clock: Clock) -> list[Query]:
    if isinstance(queries, str) or not isinstance(queries, Sequence | Mapping) or not queries:
        raise InvalidArgument(
            "queries must be a list of conditions or column names, or a mapping of them to weights"
        )
    schema = spec.row_schema(files[0].schema)
    weights = dict(queries) if isinstance(queries, Mapping) else dict.fromkeys(queries, 1.0)
    return [_query(given, weight, schema, clock) for given, weight in weights.items()]


def _query(given: Any, weight: Any, schema: pa.Schema, clock: Clock) -> Query:
    if not (isinstance(weight, int | float) and math.isfinite(weight) and weight > 0):
        raise InvalidArgument(f"the weight of {given!r} must be a number greater than 0, got {weight!r}")
    if isinstance(given, str) and given in schema.names:
        return Query(given, weight, None, (given,))
    if isinstance(given, str) and given.isidentifier():
        raise ColumnNotFound([given], schema.names, "columns")
    condition = predicate(given, schema, clock)
    return Query(condition.formula.text, weight, condition, condition.columns)


def _candidates(queries: Sequence[Query], files: Sequence[FileInfo]) -> list[str]:
    """The queried columns that all files have in a type that can be ordered; the most used first."""
    weights: dict[str, float] = {}
    for query in queries:
        for column in query.columns:
            weights[column] = weights.get(column, 0.0) + query.weight
    schemas = {id(file.schema): file.schema for file in files if file.schema is not None}.values()
    usable = [
        name
        for name in weights
        if all(schema.names.count(name) == 1 and is_orderable(schema.field(name).type) for schema in schemas)
    ]
    return sorted(usable, key=lambda name: -weights[name])


def _sample(
    dataset: DatasetContext, files: Sequence[FileInfo], columns: Sequence[str], progress: ProgressCallback | None
) -> pa.Table:
    dataset.engine.check_store(dataset.store)
    share = min(1.0, _SAMPLE_ROWS / max(1, sum(file.num_rows for file in files)))
    filled = [file for file in files if file.num_rows]
    tasks = [
        SampleFiles(tuple(filled[start : start + _FILES_PER_TASK]), tuple(columns), share, seed=start)
        for start in range(0, len(filled), _FILES_PER_TASK)
    ]
    return combined(dataset.engine.run(tasks, Context(dataset.store, Staging(""), "suggest", progress))).rows


@dataclass(frozen=True)
class _Trial:
    """Clusters the sample by columns, as the dataset would be, and measures what the queries read of it."""

    sample: pa.Table
    queries: Sequence[Query]
    spec: PartitionSpec
    row_groups: int

    def of(self, columns: Sequence[str]) -> Suggestion:
        count = max(1, self.row_groups)
        ordered = self.sample.take(pa.array(order_indices(order_keys(self.sample, columns))))
        if len(columns) > 1:
            buckets = cut_buckets(ordered, columns, DEFAULT_CURVE, count)
            arrays = [ordered.column(name).combine_chunks() for name in columns]
            numbers = buckets.of(arrays)
            order = np.argsort(numbers, kind="stable")
            ordered = ordered.take(pa.array(order))
            borders = np.flatnonzero(np.diff(numbers[order])) + 1
        else:
            borders = np.unique(np.linspace(0, ordered.num_rows, count + 1).astype(int)[1:-1])
        laid_out = _as_file(ordered, [int(border) for border in borders])
        found = {query.text: query.reads([laid_out], self.spec) for query in self.queries}
        return Suggestion(
            columns=list(columns),
            curve=DEFAULT_CURVE if len(columns) > 1 else LINEAR,
            reads=_average(self.queries, found),
            reads_by_query=found,
        )


def _as_file(rows: pa.Table, borders: Sequence[int]) -> FileInfo:
    """The footer metadata of a file with these rows, in row groups that begin at the borders."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, compression="none", use_dictionary=False) as writer:
        for start, end in zip([0, *borders], [*borders, rows.num_rows], strict=True):
            if end > start:
                writer.write_table(rows.slice(start, end - start))
    return describe(sink.getvalue())


def _greedy(trial: _Trial, candidates: Sequence[str], max_columns: int) -> list[Suggestion]:
    """The best single column, then one more at a time as long as it helps."""
    found: list[Suggestion] = []
    while len(found) < min(max_columns, len(candidates)):
        chosen = found[-1]["columns"] if found else []
        tries = [trial.of([*chosen, name]) for name in candidates if name not in chosen]
        best = min(tries, key=lambda suggestion: suggestion["reads"])
        if found and best["reads"] > found[-1]["reads"] * (1 - _MIN_IMPROVEMENT):
            break
        found.append(best)
    return sorted(found, key=lambda suggestion: suggestion["reads"])


def _average(queries: Sequence[Query], reads: Mapping[str, float]) -> float:
    return sum(query.weight * reads[query.text] for query in queries) / sum(query.weight for query in queries)


def _distinct(column: pa.ChunkedArray, rows: int) -> int:
    """The distinct count, estimated from a sample: the more values occur only once, the more are unseen."""
    counts = np.asarray(column.combine_chunks().dictionary_encode().drop_null().indices)
    if not len(counts):
        return 0
    frequencies = np.bincount(counts)
    once, twice = int((frequencies == 1).sum()), int((frequencies == 2).sum())
    unseen = once * once / (2 * twice) if twice else once * (once - 1) / 2
    return int(min(rows, len(frequencies) + (unseen if len(column) < rows else 0)))
