"""The operations of `Dataset` that examine it: its health, and a report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parketto.arguments import DEFAULT_TARGET_MB
from parketto.dataset.base import BaseDataset
from parketto.display import typed_result
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store, path_text

if TYPE_CHECKING:
    from parketto.health.results import Health


class ExaminableDataset(BaseDataset):
    """The operations that examine a dataset."""

    def health(
        self,
        partition_filter: PartitionFilter = None,
        columns: Sequence[str] | None = None,
        target_mb_per_file: float = DEFAULT_TARGET_MB,
    ) -> Health:
        """How healthy the dataset is, and what would improve it. No data is read, and nothing is written.

        All numbers come from the listing, the footers and the log. No engine is started, and memory does not grow
        with the rows. Files with a damaged footer are reported, and do not stop the examination.

        Args:
            partition_filter: The partitions to examine.
            columns: The columns that queries filter by: it is a problem if queries on them cannot skip row groups.
                By default up to 16 columns are examined, those of the clustering first.
            target_mb_per_file: The target file size, as for `compact`.

        Returns:
            A `Health`: the `verdict` (`"healthy"`, `"attention"` or `"damaged"`), a `summary`, the `problems`,
            each with its `name`, `severity`, `summary` and `remedies`, and all numbers behind them: `files`,
            `row_groups`, `partitions`, `codecs`, `schema`, `columns`, `clustering` and `history`.

        Raises:
            ValueError: An argument is invalid, or a column is unknown.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> orders = Dataset("memory://health-example", engine="pyarrow")
            >>> for n in range(30):
            ...     _ = orders.write(pa.table({"id": [n], "price": [n / 4]}))
            >>> health = orders.health()
            >>> [(problem["name"], problem["summary"]) for problem in health["problems"]]
            [('small-files', '30 of 30 files are below 96 MB; compaction would leave 1')]
            >>> health["problems"][0]["remedies"][0]["python"]
            "Dataset('memory://health-example').compact()"
            >>> _ = orders.compact()
            >>> orders.health()["verdict"]
            'healthy'
        """
        from parketto.health.examine import examine

        found = examine(self._context, self.path, partition_filter, columns, target_mb_per_file).health
        return typed_result(found)

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        partition_filter: PartitionFilter = None,
        columns: Sequence[str] | None = None,
        target_mb_per_file: float = DEFAULT_TARGET_MB,
    ) -> str:
        """The health of the dataset as one HTML page that needs no network: charts, tables, and commands to copy.

        It shows the verdict and the problems of `health`, the sizes of files, partitions and row groups, what
        queries read, the clustering, schema drift, the history, and what the last operations changed. The page has
        aggregates only, so it stays small. Needs the extra `parketto[report]`.

        Args:
            path: Where to write the page, local or a URL; an existing file is replaced.
            partition_filter: The partitions to examine.
            columns: The columns that queries filter by, as for `health`.
            target_mb_per_file: The target file size, as for `compact`.

        Returns:
            The page.

        Raises:
            ValueError: An argument is invalid, or a column is unknown.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            ImportError: The packages of the extra are not installed.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> orders = Dataset("memory://report-example", engine="pyarrow")
            >>> _ = orders.write(pa.table({"id": [1, 2], "price": [2.5, 4.0]}))
            >>> page = orders.report("memory://report-example.html")
            >>> "<title>Healthy: memory://report-example</title>" in page
            True
        """
        from parketto.health.examine import examine
        from parketto.report.page import render  # here, because it needs altair and jinja2

        output = None
        if path is not None:
            is_url = "://" in path_text(path)  # else it is a local path, wherever the dataset is
            output = open_store(path, *((self._store.fs, self._storage_options) if is_url else ()))
        page = render(examine(self._context, self.path, partition_filter, columns, target_mb_per_file))
        if output is not None:
            output[0].write(output[1], page.encode())
        return page
