"""Count rows: from footers where these suffice, else from the columns of the condition."""

from __future__ import annotations

from typing import Any

from parketto.operations.context import DatasetContext
from parketto.operations.edit import edit
from parketto.operations.edit_run import EditRequest
from parketto.storage.hive import PartitionFilter


def count_rows(dataset: DatasetContext, where: Any, partition_filter: PartitionFilter) -> int:
    """The number of rows that match a condition, or of all rows."""
    if where is None:
        return dataset.snapshot(partition_filter, own_schemas=True).total_rows
    return edit(dataset, EditRequest("count", where), partition_filter, dry_run=True, progress=None)[
        "rows_matched"
    ]
