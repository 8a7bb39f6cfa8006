"""Upserts and change records from Spark streams, for `foreachBatch`: each micro-batch is one commit, exactly once.

Appends need no function: `writeStream.format("parketto")` does them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from parketto.dataset.dataset import Dataset
from parketto.engines.spark.session import is_connect
from parketto.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark sets it in the thread that runs a micro-batch; the checkpoint keeps it.
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class MicroBatches:
    """A function for `foreachBatch` that applies every micro-batch to a dataset, once."""

    path: str
    operation: Literal["merge", "apply_changes"]
    arguments: Mapping[str, Any]
    app_id: str | None = None
    dataset_options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Apply a micro-batch, unless the log shows that it was applied."""
        application = self.app_id or _query_id(batch)
        dataset = Dataset(self.path, "spark", spark=batch.sparkSession, **self.dataset_options)
        dataset = dataset._in_stream({"app_id": application, "batch_id": batch_id})
        getattr(dataset, self.operation)(batch, commit_id=f"{application}:{batch_id}", **self.arguments)


def merge(
    path: str,
    key_columns: str | Sequence[str],
    *,
    app_id: str | None = None,
    dataset_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> MicroBatches:
    """A function that merges each micro-batch into a dataset.

    A micro-batch that Spark replays after a crash is recognised by the id of the query and its number in the log,
    and has no effect.

    Args:
        path: The dataset.
        key_columns: As for `Dataset.merge`.
        app_id: The name of the stream in the log. By default the id of the query, which its checkpoint keeps. On
            Spark Connect it is required.
        dataset_options: Further arguments of `Dataset`, such as `storage_options`.
        options: Further arguments of `Dataset.merge`, such as `strategy`.

    Example:
        Upsert a stream of orders:

        ```python
        upsert = parketto.streaming.merge("/data/orders", ["id"])
        orders.writeStream.foreachBatch(upsert).option("checkpointLocation", "/data/checkpoints/orders").start()
        ```
    """
    arguments = {"key_columns": key_columns, **options}
    return MicroBatches(path, "merge", _checked(arguments), app_id, dataset_options or {})


def apply_changes(
    path: str,
    key_columns: str | Sequence[str],
    *,
    sequence_by: str,
    app_id: str | None = None,
    dataset_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> MicroBatches:
    """A function that applies the change records of each micro-batch to a dataset.

    Args:
        path: The dataset.
        key_columns: As for `Dataset.apply_changes`.
        sequence_by: As for `Dataset.apply_changes`.
        app_id: As for `merge`.
        dataset_options: As for `merge`.
        options: Further arguments of `Dataset.apply_changes`, such as `delete_when` and `scd`.
    """
    arguments = {"key_columns": key_columns, "sequence_by": sequence_by, **options}
    return MicroBatches(path, "apply_changes", _checked(arguments), app_id, dataset_options or {})


def _checked(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("commit_id", "dry_run"):
        if name in arguments:
            raise InvalidArgument(f"a stream sets {name} itself; leave it out")
    return arguments


def _query_id(batch: DataFrame) -> str:
    session = batch.sparkSession
    found = None if is_connect(session) else session.sparkContext.getLocalProperty(_QUERY_ID)
    if not found:
        raise InvalidArgument(
            "the id of the streaming query is not available here, and without it a replayed micro-batch could not "
            "be recognised; pass app_id='a name of this stream that never changes'. Nothing was changed"
        )
    return str(found)
