"""The operations of `Dataset` that read rows: read, scan, count, and views for other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from parketto.dataset.examining import ExaminableDataset
from parketto.display import Results
from parketto.errors import DatasetNotFound
from parketto.results import PartitionInfo
from parketto.storage.hive import PartitionFilter

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    from pyspark.sql import Column, DataFrame, SparkSession

    from parketto.operations.past_states import StateLike

    Condition: TypeAlias = str | pc.Expression | pl.Expr | Column


class ReadableDataset(ExaminableDataset):
    """The operations that read rows."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the dataset: the columns of all files, then those that only paths contain.

        Where files differ, a column has the narrowest type that holds the values of all files exactly: the wider
        integer, the finer unit, the larger decimal. Columns that a file lacks are NULL there. The order is that of
        the first file by path.

        Raises:
            IncompatibleTypes: A column has types without a common one, such as text and numbers.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> events = Dataset("memory://schema-example", engine="pyarrow")
            >>> _ = events.write(pa.table({"id": pa.array([1], pa.int64()), "day": ["mon"]}), partition_by="day")
            >>> events.schema.names
            ['id', 'day']
        """
        from parketto.operations.read import row_schema
        from parketto.storage.listing import retry_on_vanished_files

        return retry_on_vanished_files(self.path, lambda: row_schema(self._context.snapshot()))

    def exists(self) -> bool:
        """Whether there is a dataset: a directory with at least one Parquet file.

        Example:
            >>> from parketto import Dataset
            >>> Dataset("memory://nothing-here", engine="pyarrow").exists()
            False
        """
        try:
            return bool(self._context.listed())
        except DatasetNotFound:
            return False

    def read(
        self,
        columns: str | Sequence[str] | None = None,
        *,
        where: Condition | None = None,
        limit: int | None = None,
        partition_filter: PartitionFilter = None,
        as_of: StateLike | None = None,
    ) -> pa.Table:
        """The rows as one PyArrow table in the dataset's schema, files ordered by path.

        Args:
            columns: The columns to read; by default all, also those that only paths contain.
            where: A condition: everything that `delete` takes. Partitions, files, row groups and pages that cannot
                match are not read. Rows for which it is NULL are not returned.
            limit: The maximum number of rows.
            partition_filter: The partitions to read.
            as_of: An earlier state: the number of a commit (after which it was there, see `history()`), a
                `datetime`, or a time as ISO text (UTC without a zone). It can be read while the files are kept
                that later commits have replaced (`Dataset(retention=)`).

        Raises:
            ColumnNotFound: A column is not in the dataset.
            IncompatibleTypes: Files have types without a common one.
            StateUnavailable: The state is no longer kept. The message lists those that are.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> trades = Dataset("memory://read-example", engine="pyarrow")
            >>> _ = trades.write(pa.table({"id": [1, 2], "price": [1.5, 250.0]}))
            >>> _ = trades.write(pa.table({"id": [3], "price": [99.0]}))
            >>> sorted(trades.read(["id"], where="price > 50").column("id").to_pylist())
            [2, 3]
            >>> trades.count(), trades.count(as_of=1), trades.read("id", as_of=1).num_rows
            (3, 2, 2)
        """
        from parketto.operations.past_states import context_at
        from parketto.operations.read import RowQuery, scan
        from parketto.storage.listing import retry_on_vanished_files

        query = RowQuery(columns, where, limit, partition_filter)
        return retry_on_vanished_files(self.path, lambda: scan(context_at(self._context, as_of), query).read_all())

    def scan(
        self,
        columns: str | Sequence[str] | None = None,
        *,
        where: Condition | None = None,
        limit: int | None = None,
        partition_filter: PartitionFilter = None,
        as_of: StateLike | None = None,
    ) -> pa.RecordBatchReader:
        """The rows as a stream of batches, in bounded memory. Arguments as in `read`.

        All batches come from the files of one snapshot. Files that another writer replaces while the stream is
        read are read from where they are kept (`Dataset(retention=)`). Files that are gone raise
        FileNotFoundError.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> ticks = Dataset("memory://scan-example", engine="pyarrow")
            >>> _ = ticks.write(pa.table({"n": list(range(1000))}))
            >>> sum(batch.num_rows for batch in ticks.scan(where="n % 2 = 0"))
            500
        """
        from parketto.operations.past_states import context_at
        from parketto.operations.read import RowQuery, scan
        from parketto.storage.listing import retry_on_vanished_files

        query = RowQuery(columns, where, limit, partition_filter)
        return retry_on_vanished_files(self.path, lambda: scan(context_at(self._context, as_of), query))

    def count(
        self,
        where: Condition | None = None,
        *,
        partition_filter: PartitionFilter = None,
        as_of: StateLike | None = None,
    ) -> int:
        """The number of rows, or of those that match a condition; with `as_of` in an earlier state, as in `read`.

        Without a condition, only footers are read. With one, only its columns are read, in row groups that footers
        neither exclude nor include as a whole.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> sales = Dataset("memory://count-example", engine="pyarrow")
            >>> _ = sales.write(pa.table({"amount": [5, 50, 500]}))
            >>> sales.count(), sales.count("amount > 10")
            (3, 2)
        """
        from parketto.operations.count import count_rows
        from parketto.operations.past_states import context_at
        from parketto.storage.listing import retry_on_vanished_files

        return retry_on_vanished_files(
            self.path, lambda: count_rows(context_at(self._context, as_of), where, partition_filter)
        )

    def partitions(self, partition_filter: PartitionFilter = None) -> list[PartitionInfo]:
        """The partitions in path order, each with `values`, `files`, `rows` and `bytes`.

        A dataset without partitions has one entry, with empty `values`.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> visits = Dataset("memory://partitions-example", engine="pyarrow")
            >>> _ = visits.write(pa.table({"day": [1, 1, 2], "n": [1, 2, 3]}), partition_by="day")
            >>> [(each["values"], each["rows"]) for each in visits.partitions()]
            [({'day': 1}, 2), ({'day': 2}, 1)]
        """
        from parketto.operations.partitions import list_partitions
        from parketto.storage.listing import retry_on_vanished_files

        found = retry_on_vanished_files(self.path, lambda: list_partitions(self._context, partition_filter))
        return Results(found)

    def to_pyarrow(self, *, partition_filter: PartitionFilter = None) -> ds.Dataset:
        """A `pyarrow.dataset.Dataset` over the files of one snapshot, in the dataset's schema.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> events = Dataset("memory://to-pyarrow-example", engine="pyarrow")
            >>> _ = events.write(pa.table({"n": [1, 2]}))
            >>> events.to_pyarrow().count_rows()
            2
        """
        from parketto.operations.views import pyarrow_view

        return pyarrow_view(self._context, partition_filter)

    def to_polars(self, *, partition_filter: PartitionFilter = None) -> pl.LazyFrame:
        """A Polars LazyFrame over the files of one snapshot, in the dataset's schema.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> events = Dataset("memory://to-polars-example", engine="pyarrow")
            >>> _ = events.write(pa.table({"n": [1, 2]}))
            >>> events.to_polars().collect().height
            2
        """
        from parketto.operations.views import polars_view

        return polars_view(self._context, partition_filter)

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None, *, partition_filter: PartitionFilter = None
    ) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation over the files of one snapshot, in the dataset's schema.

        Args:
            connection: The connection; by default DuckDB's own default connection.
            partition_filter: The partitions.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> events = Dataset("memory://to-duckdb-example", engine="pyarrow")
            >>> _ = events.write(pa.table({"n": [1, 2]}))
            >>> events.to_duckdb().aggregate("sum(n)").fetchall()
            [(3,)]
        """
        from parketto.operations.views import duckdb_view

        return duckdb_view(self._context, connection, partition_filter)

    def to_spark(
        self, session: SparkSession | None = None, *, partition_filter: PartitionFilter = None
    ) -> DataFrame:
        """A Spark DataFrame over the files of one snapshot, in the dataset's schema.

        Spark's own reader reads files that have this schema; others are read by Arrow in Spark's tasks.

        Args:
            session: The session; by default the engine's, or the active one.
            partition_filter: The partitions.
        """
        from parketto.operations.views import spark_view

        return spark_view(self._context, session, partition_filter)
