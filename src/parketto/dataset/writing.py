"""The operations of `Dataset` that write rows."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from parketto.arguments import check_codec, check_positive_integer
from parketto.dataset.changes import ChangeableDataset
from parketto.display import typed_result
from parketto.errors import InvalidArgument, quoted
from parketto.operations.running import running
from parketto.progress import ProgressOption
from parketto.results import WritePlan, WriteStats

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import Column

    from parketto.engines.base import FileFormatName
    from parketto.merge.append_schema import SchemaMode
    from parketto.operations.derive import PartitionBy
    from parketto.operations.expectations import Condition, OnViolation
    from parketto.operations.partition_form import PartitionForm
    from parketto.operations.source_files import SourcePaths
    from parketto.operations.staged_write import StagedWrite
    from parketto.operations.write_output import WriteRequest
    from parketto.parquet.output import Output
    from parketto.planning.naming import NamingScheme

WriteMode = Literal["append", "overwrite", "overwrite_partitions"]
WRITE_MODES: tuple[WriteMode, ...] = ("append", "overwrite", "overwrite_partitions")


class WriteOptions(TypedDict, total=False):
    """The options of `Dataset.write`."""

    replace_where: str | pc.Expression | pl.Expr | Column | None
    max_rows_per_file: int | None
    target_rows_per_file: int | None
    target_mb_per_file: float | None
    row_group_rows: int | None
    sort_by: str | Sequence[str] | None
    compression: str
    partition_by: PartitionBy | None
    partition_columns: PartitionForm | None
    naming: NamingScheme | None
    basename_template: str | None
    schema: SchemaMode
    expect: Mapping[str, Condition] | None
    on_violation: OnViolation
    quarantine: str | os.PathLike[str] | None
    commit_id: str | None
    retries: int | None
    retention: float | dt.timedelta | None
    progress: ProgressOption


class WritableDataset(ChangeableDataset):
    """The operations that write rows."""

    @overload
    def write(
        self, rows: Any, mode: WriteMode = ..., *, dry_run: Literal[False] = ..., **options: Unpack[WriteOptions]
    ) -> WriteStats: ...

    @overload
    def write(
        self, rows: Any, mode: WriteMode = ..., *, dry_run: Literal[True], **options: Unpack[WriteOptions]
    ) -> WritePlan: ...

    @overload
    def write(
        self, rows: Any, mode: WriteMode = ..., *, dry_run: bool, **options: Unpack[WriteOptions]
    ) -> WriteStats | WritePlan: ...

    def write(
        self,
        rows: Any,
        mode: WriteMode = "append",
        *,
        replace_where: str | pc.Expression | pl.Expr | Column | None = None,
        max_rows_per_file: int | None = None,
        target_rows_per_file: int | None = None,
        target_mb_per_file: float | None = None,
        row_group_rows: int | None = None,
        sort_by: str | Sequence[str] | None = None,
        compression: str = "snappy",
        partition_by: PartitionBy | None = None,
        partition_columns: PartitionForm | None = None,
        naming: NamingScheme | None = None,
        basename_template: str | None = None,
        schema: SchemaMode = "cast",
        expect: Mapping[str, Condition] | None = None,
        on_violation: OnViolation = "fail",
        quarantine: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        commit_id: str | None = None,
        retries: int | None = None,
        retention: float | dt.timedelta | None = None,
        progress: ProgressOption = None,
    ) -> WriteStats | WritePlan:
        """Append rows as new files, or replace all rows, or whole partitions, by them.

        All files appear together or not at all. Overwriting replaces Parquet files only and keeps all other files
        in the directory; files that other writers add concurrently are kept too.

        Appended rows get the columns and types of the dataset; `schema` says how far they may differ. Values that
        do not fit are an error.

        Args:
            rows: A PyArrow table, record batch, reader, dataset or scanner; an iterable of batches or tables; a
                pandas or Polars frame; a DuckDB relation; a Spark DataFrame (on Spark); or the path of a Parquet
                file or dataset. Readers, iterables, datasets and relations are streamed.
            mode: `"append"`; `"overwrite"`, which replaces all rows; or `"overwrite_partitions"`, which replaces
                the partitions that occur in the rows and touches no other file. Without rows, the first and the
                last leave a dataset with files as it is.
            replace_where: With `mode="overwrite"`: a condition as for `delete`. Only the rows that match it are
                replaced, in one commit, and files without such rows stay as they are. All new rows must match it
                too. Conflicts are those of a `delete` and an append.
            max_rows_per_file: The maximum number of rows per file.
            target_rows_per_file: The same, by the name that `compact` has for it.
            target_mb_per_file: The approximate maximum file size; by default unlimited.
            row_group_rows: The maximum number of rows per row group; by default as many as fit into memory.
            sort_by: The columns by which the rows of each file are sorted, ascending, NULLs last. The files
                declare this order. Rows that do not fit into memory are spilled to disk.
            compression: snappy, gzip, lz4, zstd, brotli or none.
            partition_by: The partition columns (`day=1/…`). Rows that are written to a partitioned dataset follow
                its partition spec; an empty list overwrites it without partitions. A mapping derives new columns
                from SQL expressions over the rows:
                `{"day": "CAST(ts AS DATE)", "hour": "hour(ts)"}`; a list may contain names and mappings. Rows that
                lack these columns need the mapping for every write.
            partition_columns: Whether the files contain the partition columns too (`"files"`), or only the path
                does (`"path"`, as Hive and Spark write it). A path has no types, and one name for NULL and the
                empty string. By default `"files"`, or the form of the dataset that rows are added to.
            naming: `"uuid"` (the default), `"timestamp"` or `"sequential"`.
            basename_template: Such as `"data_{}.parquet"`; without `naming` files are numbered, from 000 or
                after the highest existing number.
            schema: How appended rows meet the dataset's schema. `"cast"` (the default): columns in any order, cast
                to its types where no value changes; nullable columns may be missing. `"evolve"`: new columns and
                wider types are welcome. `"strict"`: the same columns and types; encodings of the same values
                (strings of any width, dictionaries, timestamps of any unit) are one type.
            expect: Rules by name: conditions as for `delete`, over the columns of `rows`, such as
                `{"positive price": "price > 0"}`. A row breaks a rule if the condition is not true. So NULL breaks
                it, as in Delta's CHECK constraints; `"price > 0 OR price IS NULL"` allows it.
            on_violation: What happens to rows that break a rule. `"fail"` (the default): nothing is changed.
                `"drop"`: they are left out. `"quarantine"`: they are added to another dataset, which has them if,
                and only if, this write happens. Their further columns are `broken_rules` (a list of names),
                `quarantined_at` and `quarantine_id` (one for each write).
            quarantine: The path of that dataset, on the same filesystem; by default beside this one, with
                `_quarantine` after its name. Its schema is extended where rows need that.
            dry_run: Check everything and report what would happen (`WritePlan`): nothing is written or removed.
                All rows are read, except those that can be read only once. Rows that break rules are counted,
                and no error.
            commit_id: An idempotency key such as `"orders:17"` (an application, a colon, a number). If the log
                contains it, nothing is done, and the first result is returned with `repeated_commit`, the number
                of that commit: a batch can be replayed. Another request with this id is an error. Kept for
                30 days; the last one of each application is kept for ever.
            retries: How often this operation is planned again after a conflict; by default the dataset's setting.
            retention: How long the replaced files of this operation are kept, in seconds or as a `timedelta`; by
                default the dataset's setting.
            progress: True to show it, or a callback that gets a `Progress` as work completes.

        Raises:
            ValueError: An argument is invalid, appended rows have missing or additional columns, or rows do not
                match `replace_where`. Nothing was changed.
            TypeError: A column of appended rows has another type than in the dataset, or values that do not fit
                that type. Nothing was changed.
            ExpectationFailed: Rows break rules of `expect`. It is a ValueError, and names each broken rule with
                the number of rows and one of them. Nothing was changed.

        Example:
            >>> from parketto import Dataset
            >>> ticks = Dataset("memory://ticks-example", engine="pyarrow")
            >>> import pyarrow as pa
            >>> rows = pa.table({"day": [1, 2, 1], "price": [1.0, 2.0, 3.0]})
            >>> _ = ticks.write(rows, partition_by="day", basename_template="data_{}.parquet")
            >>> [file.path for file in ticks.files()]
            ['/ticks-example/day=1/data_000.parquet', '/ticks-example/day=2/data_000.parquet']
            >>> import datetime as dt
            >>> visits = Dataset("memory://visits-by-day-example", engine="pyarrow")
            >>> rows = pa.table({"at": [dt.datetime(2026, 1, 1, 12), dt.datetime(2026, 1, 2, 7)], "n": [1, 2]})
            >>> _ = visits.write(rows, partition_by={"day": "CAST(at AS DATE)"})
            >>> [file.partition for file in visits.files()]
            [(('day', '2026-01-01'),), (('day', '2026-01-02'),)]
            >>> corrected = pa.table({"day": [2], "price": [2.5]})
            >>> ticks.write(corrected, mode="overwrite_partitions")["files_replaced"]
            1
            >>> sorted(ticks.read().column("price").to_pylist())
            [1.0, 2.5, 3.0]
            >>> ticks.write(corrected, mode="overwrite_partitions", dry_run=True)["partitions"]
            {'day=2': 1}
            >>> cheap = pa.table({"day": [1], "price": [1.5]})
            >>> stats = ticks.write(cheap, mode="overwrite", replace_where="day = 1 AND price < 2")
            >>> stats["rows_written"], stats["rows_deleted"], stats["files_replaced"]
            (1, 1, 1)
            >>> more = pa.table({"day": [3, 3], "price": [7.0, None]})
            >>> rules = {"positive price": "price > 0", "has day": "day IS NOT NULL"}
            >>> stats = ticks.write(more, expect=rules, on_violation="quarantine")
            >>> stats["expectations"]["positive price"], stats["quarantine"]
            ({'passed': 1, 'violations': 1}, 'memory://ticks-example_quarantine')
            >>> Dataset(stats["quarantine"], engine="pyarrow").read(columns=["day", "broken_rules"]).to_pylist()
            [{'day': 3, 'broken_rules': ['positive price']}]
        """
        from parketto.operations.derive import with_derived_columns
        from parketto.operations.replace import replace_matching
        from parketto.operations.write import write
        from parketto.operations.write_plan import plan_write

        given = self._rows(rows)
        source, names = with_derived_columns(given, partition_by, self.engine, self._context.clock)
        output, request = self._specified(
            given.schema,
            source.schema,
            mode,
            names,
            replace_where=replace_where,
            max_rows_per_file=max_rows_per_file,
            target_rows_per_file=target_rows_per_file,
            target_mb_per_file=target_mb_per_file,
            row_group_rows=row_group_rows,
            sort_by=sort_by,
            compression=compression,
            partition_by=partition_by,
            partition_columns=partition_columns,
            naming=naming,
            basename_template=basename_template,
            schema=schema,
            commit_id=commit_id,
            expect=expect,
            on_violation=on_violation,
            quarantine=quarantine,
        )
        context = self._context_for(None, retries, retention)
        operation = write if replace_where is None else replace_matching
        with running(context, "write", progress, dry_run=dry_run) as run:
            if dry_run:
                return run.done(plan_write(context, source, output, request, run.progress))
            return run.done(operation(context, source, output, request, run.progress))

    def _specified(
        self,
        given: pa.Schema,
        rows: pa.Schema,
        mode: WriteMode,
        partition_names: str | Sequence[str] | None,
        **options: Unpack[WriteOptions],
    ) -> tuple[Output, WriteRequest]:
        """The validated options of a write of rows with these columns, given and derived."""
        from parketto.merge.append_schema import check_schema_mode
        from parketto.operations.layout import check_sort_columns, file_limits
        from parketto.operations.partition_form import check_form
        from parketto.operations.write_output import WriteRequest
        from parketto.parquet.file_format import FileFormat
        from parketto.parquet.output import Output
        from parketto.planning.naming import Naming
        from parketto.planning.rewrite import check_partition_columns

        if mode not in WRITE_MODES:
            raise InvalidArgument(f"unknown mode {mode!r}; valid modes: {quoted(WRITE_MODES)}")
        replace_where, partition_by = options.get("replace_where"), options.get("partition_by")
        if replace_where is not None and mode != "overwrite":
            raise InvalidArgument(f"replace_where needs mode='overwrite', got {mode!r}")
        row_group_rows = options.get("row_group_rows")
        check_positive_integer("row_group_rows", row_group_rows)
        limits = file_limits(
            options.get("max_rows_per_file"),
            options.get("target_rows_per_file"),
            options.get("target_mb_per_file"),
        )
        codec = check_codec(options.get("compression", "snappy"))
        naming = Naming.of(options.get("naming"), options.get("basename_template"))
        unpartitioned = mode == "overwrite" and replace_where is None and partition_by in ([], ())
        output = Output(
            self._context.root,
            FileFormat(rows, codec or "none"),
            rows,
            check_partition_columns(None if unpartitioned else partition_names, rows),
            limits.target_rows,
            limits.target_bytes,
            row_group_rows,
            sort_by=check_sort_columns(options.get("sort_by"), rows),
        )
        request = WriteRequest(
            mode,
            naming,
            options.get("commit_id"),
            replace_where,
            check_form(options.get("partition_columns")),
            check_schema_mode(options.get("schema", "cast")),
            keeps_partitions=partition_by is None,
            expect=self._expect(
                options.get("expect"), options.get("on_violation", "fail"), options.get("quarantine")
            ),
            given=given,
        )
        return output, request

    def begin_write(
        self,
        row_schema: pa.Schema,
        mode: WriteMode = "append",
        *,
        application: str = "",
        **options: Unpack[WriteOptions],
    ) -> StagedWrite:
        """Begin a write whose rows are staged by several processes, and committed by one.

        For connectors, such as Spark's data sources, whose planning, tasks and commit run in different processes.
        Send the result, which can be pickled, to each of them. Staged files are removed 15 minutes after the last
        process has stopped working on them.

        Args:
            row_schema: The schema of the rows.
            mode: As for `write`. An overwrite replaces the files that exist now; it conflicts if one of them
                changes before the commit.
            application: A name. Beginning a write removes what earlier writes of the same application have staged.
            options: All other arguments of `write`, except `progress`, `retries` and `commit_id`.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import Dataset
            >>> rows = pa.table({"price": [1.0, 2.0]})
            >>> quotes = Dataset("memory://begin-write-example", engine="pyarrow")
            >>> write = quotes.begin_write(rows.schema)
            >>> parts = [write.stage(rows.to_batches(), attempt=name) for name in ("task-1", "task-2")]
            >>> write.commit(parts, commit_id="quotes:1")["rows_written"]
            4
            >>> quotes.count()
            4
        """
        from parketto.operations.derive import derived_columns
        from parketto.operations.staged_write import StagedWrite

        derived, names = derived_columns(options.get("partition_by"), row_schema, self._context.clock)
        rows = row_schema if derived is None else derived.schema
        output, request = self._specified(row_schema, rows, mode, names, **options)
        context = self._context_for(retention=options.get("retention"))
        return StagedWrite.begin(context, row_schema, derived, output, request, application)

    @overload
    def write_from(
        self,
        path: SourcePaths,
        mode: WriteMode = ...,
        *,
        format: FileFormatName | None = ...,
        dry_run: Literal[False] = ...,
        **options: Unpack[WriteOptions],
    ) -> WriteStats: ...

    @overload
    def write_from(
        self,
        path: SourcePaths,
        mode: WriteMode = ...,
        *,
        format: FileFormatName | None = ...,
        dry_run: Literal[True],
        **options: Unpack[WriteOptions],
    ) -> WritePlan: ...

    @overload
    def write_from(
        self,
        path: SourcePaths,
        mode: WriteMode = ...,
        *,
        format: FileFormatName | None = ...,
        dry_run: bool,
        **options: Unpack[WriteOptions],
    ) -> WriteStats | WritePlan: ...

    def write_from(
        self,
        path: SourcePaths,
        mode: WriteMode = "append",
        *,
        format: FileFormatName | None = None,  # noqa: A002 - the name that readers use
        dry_run: bool = False,
        **options: Unpack[WriteOptions],
    ) -> WriteStats | WritePlan:
        """Write the rows of files: CSV with a header, JSON with one object per line, Parquet, or Arrow.

        Columns of CSV and JSON files that the dataset has are parsed as its types. A value that is none of its
        type is an error that names it. Whole numbers may have a fraction of zero; times with a zone are converted
        to UTC in columns without one. With `schema="evolve"`, inferred types that fit widen columns.

        For other columns, and with `mode="overwrite"`, the engine's own reader finds the types, so they can differ
        between engines:

        * PyArrow infers them from the first 4 MB of each file. A later value that does not fit is an error.
          Timestamps in JSON are read without a zone; those with one are converted to UTC.
        * DuckDB samples all files. It also reads JSON arrays, and detects the delimiter and header of CSV files.
        * Spark reads all files to infer them. Columns of JSON are in alphabetical order, timestamps in JSON are
          strings, and small integers in CSV have 32 bits.

        Empty CSV fields are NULL on every engine; no other text is.

        DuckDB and Spark read files on the local disk, and PyArrow those of other filesystems. Parquet files keep
        their types on every engine, and get the partition columns of their paths. Arrow files and streams are read
        by PyArrow on every engine.

        Args:
            path: A file, a folder, or a glob pattern (`"landing/*.jsonl"`, `"landing/**/*.csv"`); a URL for other
                filesystems; or a list of these. Files and folders that begin with `_` or `.` are ignored.
            mode: As for `write`.
            format: `"csv"`, `"json"`, `"parquet"` or `"arrow"`; by default by suffix (`.csv`, `.json`, `.jsonl`,
                `.ndjson`, `.parquet`, `.arrow`, `.arrows`, `.feather`; text also with `.gz`).
            dry_run: As for `write`.
            options: All other arguments of `write`.

        Returns:
            As `write`, and the files that were read (`source_files`).

        Raises:
            FileNotFoundError: No file matches.
            ValueError: The format is unknown, or a file cannot be read. Nothing was changed.

        Example:
            >>> import fsspec
            >>> from parketto import Dataset
            >>> fsspec.filesystem("memory").pipe_file("/landing/1.jsonl", b'{"id": 1, "name": "Ada"}')
            >>> people = Dataset("memory://people-example", engine="pyarrow")
            >>> people.write_from("memory://landing/*.jsonl")["source_files"]
            ['memory://landing/1.jsonl']
            >>> people.read().to_pylist()
            [{'id': 1, 'name': 'Ada'}]
        """
        from parketto.engines.text_types import KnownTypes
        from parketto.operations.source_files import check_format, find_all_source_files, known_types, source_of

        files = find_all_source_files(path, check_format(format), self._store.fs, self._storage_options)
        replaces = mode == "overwrite" and options.get("replace_where") is None

        def known() -> KnownTypes:
            evolve = options.get("schema") == "evolve"
            return KnownTypes() if replaces else known_types(self._context, evolve=evolve)

        source, paths = source_of(files, self.engine, self._storage_options, known)
        stats: Any = self.write(source, mode, dry_run=dry_run, **options)
        return typed_result({**stats, "source_files": paths})  # type: ignore[return-value]
