"""The operation of `Dataset` that changes the partition columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

from parketto.arguments import Thresholds, check_codec
from parketto.dataset.writing import WritableDataset
from parketto.operations.running import running
from parketto.progress import ProgressOption
from parketto.results import WritePlan, WriteStats

if TYPE_CHECKING:
    from parketto.operations.partition_form import PartitionForm


class RepartitionableDataset(WritableDataset):
    """The operation that changes the partition columns."""

    @overload
    def repartition(
        self,
        partition_by: str | Sequence[str] | None,
        *,
        partition_columns: PartitionForm = ...,
        target_mb_per_file: float | None = ...,
        compression: str | None = ...,
        dry_run: Literal[False] = ...,
        progress: ProgressOption = ...,
    ) -> WriteStats: ...

    @overload
    def repartition(
        self,
        partition_by: str | Sequence[str] | None,
        *,
        partition_columns: PartitionForm = ...,
        target_mb_per_file: float | None = ...,
        compression: str | None = ...,
        dry_run: Literal[True],
        progress: ProgressOption = ...,
    ) -> WritePlan: ...

    @overload
    def repartition(
        self,
        partition_by: str | Sequence[str] | None,
        *,
        partition_columns: PartitionForm = ...,
        target_mb_per_file: float | None = ...,
        compression: str | None = ...,
        dry_run: bool,
        progress: ProgressOption = ...,
    ) -> WriteStats | WritePlan: ...

    def repartition(
        self,
        partition_by: str | Sequence[str] | None,
        *,
        partition_columns: PartitionForm = "files",
        target_mb_per_file: float | None = None,
        compression: str | None = None,
        dry_run: bool = False,
        progress: ProgressOption = None,
    ) -> WriteStats | WritePlan:
        """Change the partition columns of the dataset, or where they are stored, in place and atomically.

        Rows, types and metadata are kept. Columns that existed only in the old paths are added to the files.

        Args:
            partition_by: The new partition columns; None removes all partition directories.
            partition_columns: `"files"` stores the partition columns in the files too, so that each file can be
                queried on its own. `"path"` stores them only in the path, as Hive and Spark do. Pass the current
                partition columns to convert a dataset from one form to the other.
            target_mb_per_file: The approximate maximum file size; 128 by default.
            compression: The codec of the new files; by default that of most of the data.
            dry_run: Check everything and report what would happen (`WritePlan`): nothing is written or removed.
            progress: True to show it, or a callback that gets a `Progress` as work completes.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> trades = Dataset("memory://repartition-example", engine="pyarrow")
            >>> _ = trades.write(pa.table({"day": [1, 1, 2], "side": ["ask", "bid", "ask"], "n": [1, 2, 3]}))
            >>> trades.repartition(["side"])["files_written"]
            2
            >>> sorted(file.partition for file in trades.files())
            [(('side', 'ask'),), (('side', 'bid'),)]
            >>> _ = trades.repartition(["side"], partition_columns="path")
            >>> trades.files()[0].schema.names  # the side is only in the path
            ['day', 'n']
        """
        from parketto.operations.partition_form import check_form
        from parketto.operations.repartition import plan_repartition, repartition

        thresholds = Thresholds.of(target_mb_per_file, None)
        form = check_form(partition_columns)
        codec = check_codec(compression)
        with running(self._context, "repartition", progress, dry_run=dry_run) as run:
            if dry_run:
                return run.done(plan_repartition(self._context, partition_by, form))
            return run.done(repartition(self._context, partition_by, thresholds, codec, run.progress, form))
