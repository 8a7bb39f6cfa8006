"""Count rows: from footers where these suffice, else from the columns of the condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parketto.expressions.dispatch import predicate
from parketto.expressions.pruning import may_match
from parketto.expressions.time_zones import Clock
from parketto.operations.context import DatasetContext
from parketto.operations.edit_run import Editor, EditRequest
from parketto.operations.read import RowQuery, planned_scan
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import partition_spec_of
from parketto.storage.hive import PartitionFilter


def count_rows(dataset: DatasetContext, where: Any, partition_filter: PartitionFilter) -> int:
    """The number of rows that match a condition, or of all rows."""
    if where is None:
        return dataset.total_rows(partition_filter)
    if dataset.past is not None:
        # The engine's tasks read files where they are in the dataset.
        rows = planned_scan(dataset, RowQuery(where=where, partition_filter=partition_filter))
        return sum(batch.num_rows for batch in rows.of_condition().batches())
    dataset.engine.check_store(dataset.store)
    editor = Editor(dataset, EditRequest("count", where), dataset.clock(), partition_filter)
    found = dataset.snapshot(partition_filter, editor.stats_columns, rows=editor.rows)
    # The files that are read are some of these, whose paths may imply other types.
    files = found.with_path_types(partition_spec_of(found.files).path_only).files
    uncertain = _with_possible_mismatches(files, where, editor.clock)
    known = sum(file.num_rows for file in files) - sum(file.num_rows for file in uncertain)
    return known + (editor.dry_run(uncertain, None).matched if uncertain else 0)


def _with_possible_mismatches(files: Sequence[FileInfo], where: Any, clock: Clock) -> Sequence[FileInfo]:
    """The files that may have rows that do not match, judged by paths and footers."""
    if not isinstance(where, str):
        return files
    spec = partition_spec_of(files)
    assert files[0].schema is not None, "files to read come from a snapshot"
    schema = spec.row_schema(files[0].schema)
    predicate(where, schema, clock)  # its errors quote the condition as it was given
    opposite = predicate(f"({where}\n) IS NOT TRUE", schema, clock)
    possible = may_match(opposite, files, spec.path_only)
    return [file for file, mismatches in zip(files, possible, strict=True) if mismatches]
