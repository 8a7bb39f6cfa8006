"""Views of a dataset for other libraries: lazy, over the files of one snapshot, in the dataset's schema."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import EngineUnavailable
from parketto.expressions.pruning import partition_value
from parketto.operations.context import DatasetContext
from parketto.parquet.bounds import typed_bounds
from parketto.parquet.file_info import FileInfo
from parketto.parquet.reader import promoted_column
from parketto.parquet.row_source import FileRows
from parketto.storage.hive import PartitionFilter

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession


def pyarrow_view(dataset: DatasetContext, partition_filter: PartitionFilter) -> ds.Dataset:
    """A `pyarrow.dataset.Dataset`. It converts what it reads to the dataset's schema."""
    import pyarrow.dataset as ds  # here, because it imports pandas if installed
    import pyarrow.fs as pafs

    rows = _rows(dataset, partition_filter)
    local = dataset.store.local_path("/") is not None
    filesystem = pafs.LocalFileSystem() if local else pafs.PyFileSystem(pafs.FSSpecHandler(dataset.store.fs))
    units = {file.stored.int96_unit for file in rows.files if file.stored.traits.int96_timestamps}
    file_format = ds.ParquetFileFormat(
        read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us" if units == {"us"} else "ns")
    )
    fragments = [
        file_format.make_fragment(
            dataset.store.local_path(file.path) or file.path, filesystem, _path_values(file, rows)
        )
        for file in rows.files
    ]
    schema = rows.schema.remove_metadata()
    return ds.FileSystemDataset(fragments, schema, file_format, filesystem)


def _rows(dataset: DatasetContext, partition_filter: PartitionFilter) -> FileRows:
    files = dataset.snapshot(partition_filter).files
    if names := _columns_of_other_units(files):
        files = dataset.snapshot(partition_filter, names).files
        _refuse_overflows(files, names)
    return FileRows.of(dataset.store, files)


def _columns_of_other_units(files: Sequence[FileInfo]) -> set[str]:
    """The timestamps and durations whose values may not fit the finer unit of the dataset."""
    layouts = {id(file.stored.schema): file for file in files if file.own is not None}
    return {
        item.name
        for file in layouts.values()
        if file.schema is not None and file.stored.schema is not None
        for item in file.stored.schema
        if pat.is_temporal(item.type) and item.type != file.schema.field(item.name).type
    }


def _refuse_overflows(files: Sequence[FileInfo], names: AbstractSet[str]) -> None:
    """Refuse values that footers show: where other libraries read them, errors name no file and no column."""
    for file in files:
        stored = file.stored
        assert stored.schema is not None, "files to read come from a snapshot"
        assert file.schema is not None, "files to read come from a snapshot"
        for name in sorted(names & set(stored.schema.names)):
            stats = stored.column_stats(name)
            values = typed_bounds(stored, name, [stats.min, stats.max])
            if values is not None:
                promoted_column(values, file.schema.field(name), file)


def _path_values(file: FileInfo, rows: FileRows) -> pc.Expression:
    """What Arrow takes the columns from that a file lacks: an expression that holds for all of its rows."""
    found = pc.scalar(True)
    stored = file.stored.schema
    assert stored is not None, "files to read come from a snapshot"
    types = {name: rows.schema.field(name).type for name in rows.spec.partition_by if name not in stored.names}
    for name, text in file.partition:
        if name in types:
            value = partition_value(text, types[name])
            found = found & (pc.field(name) == value if value.is_valid else pc.field(name).is_null())
    return found


def polars_view(dataset: DatasetContext, partition_filter: PartitionFilter) -> pl.LazyFrame:
    """A Polars LazyFrame."""
    try:
        import polars as pl
    except ImportError as error:
        raise EngineUnavailable("to_polars() needs Polars: pip install 'polars>=2.1,<3'") from error
    return pl.scan_pyarrow_dataset(pyarrow_view(dataset, partition_filter))


def duckdb_view(
    dataset: DatasetContext, connection: duckdb.DuckDBPyConnection | None, partition_filter: PartitionFilter
) -> duckdb.DuckDBPyRelation:
    """A DuckDB relation."""
    from parketto.engines.duckdb.session import relation_of

    return relation_of(pyarrow_view(dataset, partition_filter), connection)


def spark_view(
    dataset: DatasetContext, session: SparkSession | None, partition_filter: PartitionFilter
) -> DataFrame:
    """A Spark DataFrame."""
    from parketto.engines.spark.engine import SparkEngine

    engine = dataset.engine if session is None else SparkEngine(spark=session)
    if not isinstance(engine, SparkEngine):
        engine = SparkEngine()
    engine.check_store(dataset.store)
    return engine.frame(_rows(dataset, partition_filter), dataset.root)
