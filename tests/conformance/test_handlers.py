"""Features that DuckDBParquetHandler and SparkParquetHandler share: each test runs on both.

How merging, compacting and ordering behave is tested in depth elsewhere; here, only that handlers pass
arguments and results on. Features of one handler are in `test_duckdb_handler.py` and `test_spark_handler.py`.
"""

from __future__ import annotations

import datetime as dt
import inspect
import os
import re
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from pyspark.errors import AnalysisException, ParseException, PySparkException

from conftest import Place
from helpers import oracle
from helpers.handlers import (
    CODECS,
    NULL_FOLDER,
    SOURCES,
    SQL_VALUES,
    TABLE,
    Handler,
    ReadOnly,
    by_id,
    codecs,
    failing,
    pairs,
    read_both_ways,
    sorted_rows,
    stored_codec,
    table_of,
    touched,
    tuples,
    written,
)
from parketto import DuckDBParquetHandler, SparkParquetHandler
from parketto.errors import ColumnNotFound, CommitFailed, InvalidArgument


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of a place also run in memory, but not on Spark, whose tasks run in other processes."""
    if "place" in metafunc.fixturenames:
        cases = [("duckdb", "local"), ("duckdb", "memory"), ("spark", "local")]
        metafunc.parametrize(("handler", "place"), cases, indirect=True)
    elif "handler" in metafunc.fixturenames:
        metafunc.parametrize("handler", ["duckdb", "spark"], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    chosen: Place = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def handler(request: pytest.FixtureRequest) -> Iterator[Handler]:
    if request.param == "spark":
        made: Handler = SparkParquetHandler(spark=request.getfixturevalue("spark"))
    elif "place" in request.fixturenames:
        made = DuckDBParquetHandler(filesystem=request.getfixturevalue("place").fs)
    else:
        made = DuckDBParquetHandler()
    with made:
        yield made


def on_spark(handler: Handler) -> bool:
    return isinstance(handler, SparkParquetHandler)


def another(handler: Handler, **options: Any) -> Handler:
    """A new handler of the same class, on Spark with the same session."""
    return type(handler)(**({"spark": handler.spark} if on_spark(handler) else {}), **options)


def frame_of(handler: Handler, table: pa.Table) -> Any:
    """Rows in the engine's own class; on Spark in several partitions."""
    if on_spark(handler):
        return handler.spark.createDataFrame(table).repartition(3)
    return duckdb.connect().from_arrow(table)


def read(handler: Handler, path: Any, **options: Any) -> pa.Table:
    """What a handler reads; on Spark, both readers must agree."""
    return read_both_ways(handler, path, **options) if on_spark(handler) else handler.read_parquet(path, **options)


def scan(handler: Handler, path: str) -> str:
    """Parquet files in a FROM clause."""
    return f"parquet.`{path}`" if on_spark(handler) else f"parquet_scan('{path}')"


def named(handler: Handler, name: str) -> str:
    """A named parameter in a query."""
    return f":{name}" if on_spark(handler) else f"${name}"


class TestFilesystems:
    def test_local_paths_need_no_filesystem(self, handler: Handler, local: Place) -> None:
        local.write_files({"a.parquet": TABLE})
        assert table_of(handler.read_parquet(local.root)).equals(TABLE)

    def test_given_filesystem_is_used_for_every_path(self, handler: Handler, local: Place) -> None:
        """The engine itself knows nothing of this filesystem, as with remote storage."""
        fs = DirFileSystem(local.root, fsspec.filesystem("file"))
        with another(handler, filesystem=fs) as inside:
            inside.write_parquet_dataset(TABLE, "inside")
            inside.write_parquet(TABLE, "single/one.parquet")
            assert sorted(path.split("/")[0] for path in local.files()) == ["inside", "single"]
            assert by_id(inside.read_parquet("inside")) == TABLE.to_pylist()
            ids = by_id(inside.read_parquet("single/one.parquet", columns=["id"]))
            assert ids == [{"id": n} for n in range(10)]
            found = inside.execute_sql("SELECT max(id) AS top FROM t", tables={"t": "inside"})
            assert table_of(found).to_pylist() == [{"top": 9}]

    def test_storage_options_reach_the_filesystem_of_a_url(self, handler: Handler, local: Place) -> None:
        local.write_files({"a.parquet": TABLE})
        options = {"path": os.path.dirname(local.root), "target_protocol": "file"}
        with another(handler, storage_options=options) as inside:
            assert table_of(inside.read_parquet("dir://events")).equals(TABLE)
            inside.write_parquet_dataset(TABLE, "dir://events")
        assert len(local.files()) == 2

    def test_missing_write_access_is_reported_and_nothing_is_created(self, handler: Handler, local: Place) -> None:
        fs = ReadOnly(os.path.dirname(local.root), fsspec.filesystem("file"))
        with another(handler, filesystem=fs) as shut:
            with pytest.raises(CommitFailed, match=r"no permission.*Make 'events' writable") as caught:
                shut.write_parquet_dataset(TABLE, "events")
            assert isinstance(caught.value.__cause__, PermissionError)
            with pytest.raises(PermissionError, match="no write access"):
                shut.write_parquet(TABLE, "events/one.parquet")
        assert not os.path.exists(os.path.dirname(local.root))


class TestWriteDataset:
    def test_every_append_adds_a_file_with_a_new_name(self, handler: Handler, place: Place) -> None:
        for _ in range(3):
            stats = handler.write_parquet_dataset(TABLE, place.root)
        assert (stats["rows_written"], stats["files_written"], stats["files_replaced"]) == (10, 1, 0)
        assert len(set(place.files())) == 3
        assert all(re.fullmatch(r"part-[0-9a-f-]{8,}\.parquet", name) for name in place.files())
        for path in oracle.data_files(place.root, place.fs):
            assert oracle.read_file(path, place.fs).equals(TABLE, check_metadata=True)

    def test_max_rows_per_file_splits_and_loses_no_row(self, handler: Handler, place: Place) -> None:
        stats = handler.write_parquet_dataset(TABLE, place.root, max_rows_per_file=4, compression="gzip")
        files = oracle.data_files(place.root, place.fs)
        assert sorted(oracle.read_file(path, place.fs).num_rows for path in files) == [2, 4, 4]
        assert stats["files_written"] == len(set(files)) == 3
        assert stats["bytes_written"] == sum(place.fs.size(path) for path in files)
        assert codecs(place) == {"GZIP"}
        assert by_id(handler.read_parquet(place.root)) == TABLE.to_pylist()

    def test_name_template_continues_its_numbering(self, handler: Handler, place: Place) -> None:
        for _ in range(2):
            handler.write_parquet_dataset(
                TABLE, place.root, max_rows_per_file=5, basename_template="data_{}.parquet"
            )
        assert place.files() == [f"data_00{n}.parquet" for n in range(4)]
        assert written(place).equals(pa.concat_tables([TABLE, TABLE]))

    def test_timestamp_names_sort_by_time(self, handler: Handler, place: Place) -> None:
        for number in range(4):
            handler.write_parquet_dataset(pairs((number, "x")), place.root, naming="timestamp")
        assert written(place).column("id").to_pylist() == [0, 1, 2, 3]
        assert all(re.fullmatch(r"part-[0-9T.Z_-]{16,}\w*\.parquet", name) for name in place.files())

    def test_empty_table_keeps_its_columns(self, handler: Handler, place: Place) -> None:
        handler.write_parquet_dataset(TABLE.slice(0, 0), place.root)
        assert len(place.files()) == 1
        assert written(place).equals(TABLE.slice(0, 0))
        assert table_of(handler.read_parquet(place.root)).equals(TABLE.slice(0, 0))

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    @pytest.mark.parametrize("exists", [False, True])
    def test_both_modes_start_a_dataset(self, handler: Handler, place: Place, mode: Any, exists: bool) -> None:
        if exists:
            place.fs.makedirs(place.root)
        handler.write_parquet_dataset(TABLE, place.root, mode=mode)
        assert written(place).equals(TABLE)
        assert len(place.files()) == 1

    def test_overwrite_keeps_files_that_are_not_parquet(self, handler: Handler, place: Place) -> None:
        place.write_files({"old.parquet": TABLE, "day=1/old.parquet": TABLE})
        for name in ("_metadata", "notes.txt"):
            place.fs.pipe_file(f"{place.root}/{name}", b"mine")
        stats = handler.write_parquet_dataset(pairs((1, "new")), place.root, mode="overwrite")
        assert stats["files_replaced"] == 2
        assert written(place).to_pylist() == [{"id": 1, "v": "new"}]
        assert len(place.files()) == 1
        assert place.fs.cat_file(f"{place.root}/_metadata") == b"mine"
        assert place.fs.cat_file(f"{place.root}/notes.txt") == b"mine"

    def test_append_does_not_touch_existing_files(self, handler: Handler, place: Place) -> None:
        place.write_files({"old.parquet": TABLE})
        before = touched(place)
        for added in range(1, 4):
            handler.write_parquet_dataset(TABLE, place.root, **({"mode": "append"} if added > 1 else {}))
            assert len(place.files()) == 1 + added
        assert before.items() < touched(place).items()
        assert by_id(handler.read_parquet(place.root)) == by_id(pa.concat_tables([TABLE] * 4))

    @pytest.mark.parametrize("options", [{}, {"basename_template": "data_{}.parquet"}, {"naming": "timestamp"}])
    def test_concurrent_appends_keep_every_row(self, handler: Handler, local: Place, options: Any) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(
                pool.map(
                    lambda at: handler.write_parquet_dataset(pairs((at, "x")), local.root, **options), range(6)
                )
            )
        assert len(local.files()) == 6
        assert sorted(written(local)["id"].to_pylist()) == list(range(6))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"mode": "replace"}, "'append', 'overwrite'"),
            ({"max_rows_per_file": 0}, "greater than 0"),
            ({"max_rows_per_file": -1}, "greater than 0"),
            ({"compression": "zip"}, "'snappy', 'gzip', 'lz4', 'zstd', 'brotli'"),
            ({"partition_by": ["nope"]}, "nope"),
        ],
    )
    def test_invalid_arguments_create_nothing(
        self, handler: Handler, place: Place, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            handler.write_parquet_dataset(TABLE, place.root, **arguments)
        assert not place.fs.exists(place.root)

    def test_a_file_is_not_replaced_by_a_dataset(self, handler: Handler, place: Place) -> None:
        place.fs.makedirs(os.path.dirname(place.root))
        place.fs.pipe_file(place.root, b"mine")
        with pytest.raises(NotADirectoryError, match="directory"):
            handler.write_parquet_dataset(TABLE, place.root)
        assert place.fs.cat_file(place.root) == b"mine"


class TestSources:
    @pytest.mark.parametrize("kind", ["own frame", *SOURCES])
    def test_every_kind_of_source_is_written_and_merged(self, handler: Handler, place: Place, kind: str) -> None:
        folder, file = f"{place.root}-source", f"{place.root}-file/one.parquet"

        def source() -> Any:
            return frame_of(handler, TABLE) if kind == "own frame" else SOURCES[kind](folder)

        oracle.write_files(folder, {"a.parquet": TABLE}, place.fs)
        handler.write_parquet_dataset(source(), place.root)
        assert by_id(written(place)) == TABLE.to_pylist()
        handler.write_parquet(source(), file)
        assert by_id(oracle.read_file(file, place.fs)) == TABLE.to_pylist()
        for strategy in ("upsert", "full_merge"):
            stats = handler.merge_parquet_dataset(source(), place.root, ["id"], strategy)
            assert stats == {"inserted": 0, "updated": 10, "deleted": 0, "total": 10}
            assert by_id(written(place)) == TABLE.to_pylist()

    def test_path_objects_are_paths(self, handler: Handler, local: Place) -> None:
        first, second, third = (Path(f"{local.root}{end}") for end in ("", "-2", "-3"))
        handler.write_parquet_dataset(TABLE, first)
        handler.write_parquet_dataset(first, second)
        handler.merge_parquet_dataset(second, third, "id")
        assert table_of(handler.read_parquet(third)).equals(TABLE)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (7, "not int"),
            (pa.table({}), "without any column"),
            (pa.table([[1], [2]], ["a", "a"]), "distinct"),
            ([{"id": 1}], "item 0 of the rows is of type dict; expected a PyArrow RecordBatch or Table"),
        ],
    )
    def test_sources_without_rows_or_columns_are_refused(
        self, handler: Handler, place: Place, given: Any, message: str
    ) -> None:
        for call in (
            lambda: handler.write_parquet_dataset(given, place.root),
            lambda: handler.write_parquet(given, place.root),
            lambda: handler.merge_parquet_dataset(given, place.root, "id"),
        ):
            with pytest.raises(InvalidArgument, match=message):
                call()
        assert not place.fs.exists(place.root)


class TestWriteFile:
    @pytest.mark.parametrize("source", ["table", "empty table", "frame", "empty frame", "path"])
    def test_missing_folders_are_created_and_get_one_file(
        self, handler: Handler, place: Place, source: str
    ) -> None:
        path, folder = f"{place.root}/deep/down/one.parquet", f"{place.root}-2"
        oracle.write_files(folder, {"a.parquet": TABLE, "b.parquet": TABLE.slice(0, 0)}, place.fs)
        given = {"table": TABLE, "empty table": TABLE.slice(0, 0), "path": folder}.get(source)
        if given is None:
            frame = frame_of(handler, TABLE)
            given = frame.limit(0) if source == "empty frame" else frame
        handler.write_parquet(given, path)
        found, expected = oracle.read_file(path, place.fs), TABLE.slice(0, 0) if "empty" in source else TABLE
        assert by_id(found) == expected.to_pylist()
        assert found.schema.names == TABLE.schema.names
        if "table" in source:
            assert found.equals(expected, check_metadata=True)
        assert [os.path.basename(name) for name in place.fs.find(place.root, withdirs=False)] == ["one.parquet"]
        assert place.fs.ls(os.path.dirname(path), detail=False) == [path]
        assert codecs(place) <= {"SNAPPY"}

    @pytest.mark.parametrize("codec", CODECS)
    def test_every_codec_is_written_and_read(self, handler: Handler, place: Place, codec: str) -> None:
        dataset = Place(f"{place.root}-2", place.fs)
        path = f"{place.root}/{codec}.parquet"
        handler.write_parquet(TABLE, path, compression=codec)
        handler.write_parquet_dataset(TABLE, dataset.root, compression=codec, max_rows_per_file=3)
        assert codecs(place) == codecs(dataset) == {stored_codec(codec)}
        assert len(dataset.files()) == 4
        assert table_of(handler.read_parquet(path)).equals(TABLE)
        assert by_id(handler.read_parquet(dataset.root)) == TABLE.to_pylist()

    def test_a_file_is_replaced_by_rows_read_from_it(self, handler: Handler, place: Place) -> None:
        path = f"{place.root}/one.parquet"
        handler.write_parquet(TABLE, path)
        handler.write_parquet(handler.read_parquet(path), path)
        assert oracle.read_file(path, place.fs).equals(TABLE)
        handler.write_parquet(handler.execute_sql("SELECT * FROM t WHERE id > 6", tables={"t": path}), path)
        assert oracle.read_file(path, place.fs).equals(TABLE.slice(7))
        handler.write_parquet(path, path, compression="zstd")
        assert oracle.read_file(path, place.fs).equals(TABLE.slice(7))
        assert codecs(place) == {"ZSTD"}

    def test_a_failing_source_keeps_the_old_file(self, handler: Handler, place: Place) -> None:
        path = f"{place.root}/one.parquet"
        handler.write_parquet(TABLE, path)
        before = touched(place)
        with pytest.raises(RuntimeError, match="boom"):
            handler.write_parquet(failing(TABLE), path)
        assert touched(place) == before
        assert place.fs.ls(place.root, detail=False) == [path]

    def test_a_directory_is_not_replaced_by_a_file(self, handler: Handler, place: Place) -> None:
        place.fs.makedirs(place.root)
        with pytest.raises(NotADirectoryError, match="is a directory; expected the path of a file"):
            handler.write_parquet(TABLE, place.root)
        assert place.fs.ls(place.root) == []

    def test_unknown_codec_creates_nothing(self, handler: Handler, place: Place) -> None:
        with pytest.raises(ValueError, match="'snappy', 'gzip', 'lz4', 'zstd', 'brotli', 'none'"):
            handler.write_parquet(TABLE, f"{place.root}/one.parquet", compression="zip")
        assert not place.fs.exists(place.root)

    def test_a_private_file_stays_private(self, handler: Handler, local: Place) -> None:
        path = f"{local.root}/one.parquet"
        handler.write_parquet(TABLE, path)
        os.chmod(path, 0o600)
        handler.write_parquet(TABLE, path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


class TestRead:
    @pytest.mark.parametrize(
        "name",
        [
            *("a b", "a'b", 'a"b', "a[x]", "a[b]", "a{b,c}", "a;b", "a*b", "a?", "a%20b", "%", "a:b", "a#b", "é"),
            *("k=v", "_x", ".x", "a\\b", "a\nb", "~", "$HOME", "--", "a::b"),
        ],
    )
    def test_paths_are_not_glob_patterns(self, handler: Handler, tmp_path: Path, name: str) -> None:
        """A directory and a file of that name, beside others that would match it as a pattern."""
        folder, file = str(tmp_path / name), str(tmp_path / "files" / f"{name}.parquet")
        for decoy in ("ax", "ab", "a b", "a", "b", "axb"):
            oracle.write_files(str(tmp_path / "files"), {f"{decoy}.parquet": pairs((66, "decoy"))})
            oracle.write_files(str(tmp_path / decoy), {"decoy.parquet": pairs((66, "decoy"))})
        handler.write_parquet_dataset(pairs((1, "x"), (2, "x")), folder, mode="overwrite")
        handler.write_parquet(pairs((2, "y"), (3, "y")), file)
        assert table_of(handler.read_parquet(file)).equals(pairs((2, "y"), (3, "y")))
        query = "SELECT * FROM a UNION ALL SELECT * FROM b"
        found = handler.execute_sql(query, tables={"a": folder, "b": file})
        assert sorted_rows(found) == sorted_rows(pairs((1, "x"), (2, "x"), (2, "y"), (3, "y")))
        stats = handler.merge_parquet_dataset(file, folder, "id")
        assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}
        assert by_id(handler.read_parquet(folder)) == pairs((1, "x"), (2, "y"), (3, "y")).to_pylist()

    def test_files_of_all_subfolders_are_read(self, handler: Handler, place: Place) -> None:
        place.write_files({"a.parquet": pairs((1, "a")), "deep/down/b.parquet": pairs((2, "b"))})
        place.fs.pipe_file(f"{place.root}/notes.txt", b"no data")
        assert by_id(handler.read_parquet(place.root)) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]

    def test_a_file_has_no_partition_columns(self, handler: Handler, place: Place) -> None:
        place.write_files({"k=1/a.parquet": TABLE})
        assert table_of(handler.read_parquet(f"{place.root}/k=1/a.parquet")).equals(TABLE)

    def test_columns_are_matched_by_name(self, handler: Handler, place: Place) -> None:
        place.write_files({"a.parquet": pairs((1, "a")), "b.parquet": pairs((2, "b")).select(["v", "id"])})
        assert read(handler, place.root).sort_by("id").equals(pairs((1, "a"), (2, "b")))

    @pytest.mark.parametrize(
        ("columns", "error", "message"),
        [
            (["id", "nope"], ColumnNotFound, "'nope'; available columns: 'id', 'name', 'k'"),
            (["ID"], ColumnNotFound, "'ID'"),
            (["id", "id"], InvalidArgument, "twice"),
            ([], InvalidArgument, "at least one"),
            ("id", InvalidArgument, "list of column names"),
        ],
    )
    def test_invalid_columns_are_refused(
        self, handler: Handler, place: Place, columns: Any, error: type[Exception], message: str
    ) -> None:
        place.write_files({"k=1/a.parquet": TABLE})
        with pytest.raises(error, match=message):
            handler.read_parquet(place.root, columns=columns)

    def test_missing_files_are_named(self, handler: Handler, place: Place) -> None:
        with pytest.raises(FileNotFoundError, match=f"{place.root}.*does not exist"):
            handler.read_parquet(place.root)
        with pytest.raises(FileNotFoundError, match=r"one\.parquet"):
            handler.read_parquet(f"{place.root}/one.parquet")
        with pytest.raises(FileNotFoundError, match="events"):
            handler.execute_sql("SELECT 1", tables={"t": place.root})
        place.fs.makedirs(place.root)
        with pytest.raises(FileNotFoundError, match="no parquet files"):
            handler.read_parquet(place.root)


class TestPartitions:
    @pytest.mark.parametrize(
        ("folders", "kind", "values"),
        [
            (["k=1", "k=-2", f"k={NULL_FOLDER}"], pa.int64(), [1, -2, None]),
            (["k=2024-01-31", f"k={NULL_FOLDER}"], pa.date32(), [dt.date(2024, 1, 31), None]),
            (["k=a", "k=b%2Fc", "k=d e", f"k={NULL_FOLDER}"], pa.string(), ["a", "b/c", "d e", None]),
            (["k=01", "k=2"], pa.string(), ["01", "2"]),
            (["k=caf%C3%A9", "k=tè"], pa.string(), ["café", "tè"]),
            (["k=", "k=a"], pa.string(), ["", "a"]),
            (["raw/k=1", "more/k=2"], pa.int64(), [1, 2]),
            (["k=1/raw", "k=2/raw"], pa.int64(), [1, 2]),
        ],
    )
    def test_columns_of_the_path_get_their_types(
        self, handler: Handler, place: Place, folders: list[str], kind: pa.DataType, values: list[Any]
    ) -> None:
        place.write_files({f"{folder}/a.parquet": pa.table({"n": [at]}) for at, folder in enumerate(folders)})
        expected = [{"n": at, "k": value} for at, value in enumerate(values)]
        found = read(handler, place.root)
        assert found.schema.equals(pa.schema({"n": pa.int64(), "k": kind}))
        assert sorted(found.to_pylist(), key=lambda row: row["n"]) == expected
        found = handler.execute_sql("SELECT k, n FROM t ORDER BY n", tables={"t": place.root})
        assert table_of(found).to_pylist() == expected

    def test_a_column_of_the_file_hides_that_of_the_path(self, handler: Handler, place: Place) -> None:
        expected = pa.table({"n": [3], "k": ["one"]})
        place.write_files({"k=1/a.parquet": expected})
        assert read(handler, place.root).equals(expected)
        assert table_of(handler.execute_sql("SELECT * FROM t", tables={"t": place.root})).equals(expected)

    @pytest.mark.parametrize(
        "columns", [["n"], ["k"], ["j"], ["k", "j"], ["j", "k"], ["j", "n"], ["m", "k", "n"], ["n", "m", "k", "j"]]
    )
    def test_selected_columns_come_in_the_given_order(
        self, handler: Handler, place: Place, columns: list[str]
    ) -> None:
        row = {"n": 3, "m": "x", "k": 1, "j": "a"}
        place.write_files({"k=1/j=a/a.parquet": pa.table({"n": [3], "m": ["x"]})})
        found = read(handler, place.root, columns=columns)
        assert found.schema.names == columns
        assert found.to_pylist() == [{name: row[name] for name in columns}]

    def test_a_filter_reads_only_its_partitions(self, handler: Handler, place: Place) -> None:
        place.write_files({f"k={n}/a.parquet": pa.table({"n": [n]}) for n in range(3)})
        assert sorted(tuples(read(handler, place.root, partition_filter={"k": [0, 2]}))) == [(0, 0), (2, 2)]
        assert read(handler, place.root, partition_filter="k=1", columns=["n"]).to_pylist() == [{"n": 1}]
        assert table_of(handler.read_parquet(place.root, ["n"], "k=1")).to_pylist() == [{"n": 1}]
        with pytest.raises(FileNotFoundError):
            handler.read_parquet(place.root, partition_filter="k=9")


class TestSql:
    def test_parameters_are_bound_and_not_interpolated(self, handler: Handler) -> None:
        found = handler.execute_sql("SELECT ? AS a, ? AS b, ? AS c, ? AS d", SQL_VALUES[:4])
        assert tuples(found) == [tuple(SQL_VALUES[:4])]
        values = {f"p{at}": value for at, value in enumerate(SQL_VALUES)}
        marks = ", ".join(f"{named(handler, name)} AS {name}" for name in values)
        assert table_of(handler.execute_sql(f"SELECT {marks}", parameters=values)).to_pylist() == [values]

    @pytest.mark.parametrize("parameters", [[1], {"a": 1}], ids=["by position", "by name"])
    def test_missing_parameters_are_an_error(self, handler: Handler, parameters: Any) -> None:
        marks = ["?", "?"] if isinstance(parameters, list) else [named(handler, "a"), named(handler, "b")]
        error, message = (duckdb.Error, "(?i)parameter")
        if on_spark(handler):
            error, message = (AnalysisException, "UNBOUND_SQL_PARAMETER")
        with pytest.raises(error, match=message):
            handler.execute_sql(f"SELECT {', '.join(marks)}", parameters)

    def test_parquet_files_can_be_named_in_the_query(self, handler: Handler, local: Place) -> None:
        local.write_files({"a.parquet": TABLE, "b.parquet": TABLE})
        query = f"SELECT name FROM {scan(handler, f'{local.root}/a.parquet')} WHERE id > ?"
        assert table_of(handler.execute_sql(query, (8,))).equals(pa.table({"name": ["n9"]}))
        query = f"SELECT count(*) AS n FROM {scan(handler, f'{local.root}/*.parquet')}"
        assert table_of(handler.execute_sql(query)).to_pylist() == [{"n": 20}]

    def test_datasets_and_frames_are_joined(self, handler: Handler, place: Place) -> None:
        place.write_files({"k=a/a.parquet": TABLE, "k=b/a.parquet": TABLE.slice(5)})
        query = f"""
            SELECT k, count(*) AS n, max(CAST(sum(id) AS BIGINT)) OVER (ORDER BY k) AS top
            FROM events JOIN wanted USING (id) GROUP BY k HAVING count(*) > {named(handler, "least")} ORDER BY k
        """
        wanted = frame_of(handler, pa.table({"id": [1, 6, 7]}))
        found = table_of(handler.execute_sql(query, {"least": 1}, {"events": place.root, "wanted": wanted}))
        assert found.schema.types == [pa.string(), pa.int64(), pa.int64()]
        assert tuples(found) == [("a", 3, 14), ("b", 2, 14)]

    @pytest.mark.parametrize(
        ("query", "in_duckdb", "in_spark"),
        [
            (
                "SELEC 1",
                (duckdb.ParserException, 'syntax error at or near "SELEC"'),
                (ParseException, "PARSE_SYNTAX_ERROR"),
            ),
            (
                "SELECT nope FROM t",
                (duckdb.BinderException, '"nope" not found.*Candidate bindings'),
                (AnalysisException, "UNRESOLVED_COLUMN.*`nope`"),
            ),
            (
                "SELECT * FROM nope",
                (duckdb.CatalogException, "nope does not exist"),
                (AnalysisException, "TABLE_OR_VIEW_NOT_FOUND.*`nope`"),
            ),
            (
                "SELECT CAST(name AS INT) AS n FROM t",
                (duckdb.ConversionException, "Could not convert string 'n0'"),
                (PySparkException, "CAST_INVALID_INPUT.*'n0'"),
            ),
            (
                "SELECT {error}('boom' || id) AS n FROM t",
                (duckdb.Error, "boom0"),
                (PySparkException, "boom0"),
            ),
        ],
    )
    def test_errors_are_those_of_the_engine(
        self, handler: Handler, place: Place, query: str, in_duckdb: Any, in_spark: Any
    ) -> None:
        place.write_files({"a.parquet": TABLE})
        error, message = in_spark if on_spark(handler) else in_duckdb
        query = query.format(error="raise_error" if on_spark(handler) else "error")
        frame = frame_of(handler, TABLE.slice(0, 1)) if on_spark(handler) else TABLE
        for given in (place.root, frame):
            with pytest.raises(error, match=re.compile(message, re.DOTALL)):
                table_of(handler.execute_sql(query, tables={"t": given}))
            assert table_of(handler.execute_sql("SELECT 1 AS a")).to_pylist() == [{"a": 1}]


class TestMerge:
    TARGET: ClassVar[pa.Table] = pairs((1, "a"), (2, "b"), (9, "z"))

    @pytest.mark.parametrize(
        ("strategy", "source", "stats", "expected"),
        [
            ("upsert", [(1, "A"), (2, "B"), (3, "C")], (1, 2, 0), [(1, "A"), (2, "B"), (3, "C"), (9, "z")]),
            ("insert", [(1, "A"), (2, "B"), (3, "C")], (1, 0, 0), [(1, "a"), (2, "b"), (3, "C"), (9, "z")]),
            ("insert", [(1, "A"), (2, "B")], (0, 0, 0), [(1, "a"), (2, "b"), (9, "z")]),
            ("insert", [(3, "C")], (1, 0, 0), [(1, "a"), (2, "b"), (3, "C"), (9, "z")]),
            ("insert", [(3, "C"), (4, "D")], (2, 0, 0), [(1, "a"), (2, "b"), (3, "C"), (4, "D"), (9, "z")]),
            ("update", [(1, "A"), (2, "B"), (3, "C")], (0, 2, 0), [(1, "A"), (2, "B"), (9, "z")]),
            ("update", [(3, "C")], (0, 0, 0), [(1, "a"), (2, "b"), (9, "z")]),
            ("update", [(1, "A"), (2, "B"), (9, "Z")], (0, 3, 0), [(1, "A"), (2, "B"), (9, "Z")]),
            ("update", [(1, None)], (0, 1, 0), [(1, None), (2, "b"), (9, "z")]),
            ("full_merge", [(2, "B"), (9, "Z"), (4, "D")], (1, 2, 1), [(2, "B"), (4, "D"), (9, "Z")]),
            ("full_merge", [(7, "x")], (1, 0, 3), [(7, "x")]),
            ("full_merge", [], (0, 0, 3), []),
            ("deduplicate", [(1, "x"), (1, "A"), (3, "C")], (1, 1, 0), [(1, "A"), (2, "b"), (3, "C"), (9, "z")]),
            ("deduplicate", [(1, "A"), (3, "C")], (1, 1, 0), [(1, "A"), (2, "b"), (3, "C"), (9, "z")]),
            ("upsert", [], (0, 0, 0), [(1, "a"), (2, "b"), (9, "z")]),
        ],
    )
    def test_each_strategy_changes_only_its_rows(
        self, handler: Handler, place: Place, strategy: Any, source: Any, stats: Any, expected: Any
    ) -> None:
        place.write_files({"a.parquet": self.TARGET})
        before = touched(place)
        found = handler.merge_parquet_dataset(pairs(*source), place.root, ["id"], strategy)
        counts = dict(zip(("inserted", "updated", "deleted"), stats, strict=True))
        assert found == counts | {"total": len(expected)}
        assert found["total"] == 3 + found["inserted"] - found["deleted"]
        assert [(row["id"], row["v"]) for row in by_id(written(place))] == expected
        assert written(place).schema.equals(self.TARGET.schema)
        if stats[1:] == (0, 0):
            assert before.items() <= touched(place).items(), "files are only added"
        if stats == (0, 0, 0):
            assert before == touched(place)
        assert place.left_behind() == []

    def test_all_columns_of_a_composite_key_count(self, handler: Handler, place: Place) -> None:
        day = [dt.date(2025, 1, 1), dt.date(2025, 1, 2)]
        columns = {"customer_id": [1, 1, 2], "order_date": [day[0], day[1], day[0]], "v": ["a", "b", "c"]}
        place.write_files({"a.parquet": pa.table(columns)})
        source = pa.table(
            {"customer_id": [1, 2, 3], "order_date": [day[1], day[1], day[0]], "v": ["B", "new", "newer"]}
        )
        stats = handler.merge_parquet_dataset(source, place.root, key_columns=["customer_id", "order_date"])
        assert stats == {"inserted": 2, "updated": 1, "deleted": 0, "total": 5}
        assert sorted(tuples(written(place))) == [
            (1, day[0], "a"),
            (1, day[1], "B"),
            (2, day[0], "c"),
            (2, day[1], "new"),
            (3, day[0], "newer"),
        ]

    @pytest.mark.parametrize(
        ("order_by", "expected"), [(["at"], "c"), ("at", "c"), (["rank", "at"], "b"), (None, "a")]
    )
    def test_highest_duplicate_wins(self, handler: Handler, place: Place, order_by: Any, expected: str) -> None:
        source = pa.table(
            {"id": [1, 1, 1, 1], "at": [2, 3, None, 1], "rank": [9, 1, 1, 9], "v": ["b", "c", "n", "a"]}
        )
        stats = handler.merge_parquet_dataset(source, place.root, "id", "deduplicate", dedup_order_by=order_by)
        assert stats == {"inserted": 1, "updated": 0, "deleted": 0, "total": 1}
        assert written(place).to_pylist() == [row for row in source.to_pylist() if row["v"] == expected]

    @pytest.mark.parametrize(
        ("strategy", "total"), [("upsert", 1), ("insert", 1), ("update", 0), ("full_merge", 1), ("deduplicate", 1)]
    )
    def test_a_missing_or_empty_target_is_a_dataset_without_rows(
        self, handler: Handler, place: Place, strategy: Any, total: int
    ) -> None:
        missing, empty = (Place(f"{place.root}-{at}", place.fs) for at in range(2))
        empty.fs.makedirs(empty.root)
        for target in (missing, empty):
            stats = handler.merge_parquet_dataset(pairs((1, "a")), target.root, "id", strategy)
            assert stats == {"inserted": total, "updated": 0, "deleted": 0, "total": total}
            tables = [oracle.read_file(path, target.fs) for path in oracle.data_files(target.root, target.fs)]
            assert [row for table in tables for row in table.to_pylist()] == [{"id": 1, "v": "a"}][:total]

    def test_files_get_the_given_codec(self, handler: Handler, place: Place) -> None:
        upper = pa.table({"id": self.TARGET["id"], "v": pc.utf8_upper(self.TARGET["v"])})
        cases: list[tuple[pa.Table, dict[str, Any], str]] = [
            (self.TARGET, {}, "SNAPPY"),
            (upper, {"compression": "gzip"}, "GZIP"),
        ]
        for source, options, expected in cases:
            handler.merge_parquet_dataset(source, place.root, "id", **options)
            assert len(place.files()) == 1
            assert codecs(place) == {expected}

    @pytest.mark.parametrize(
        ("source", "options", "error", "message"),
        [
            (pa.table({"v": ["x"]}), {}, ValueError, "'id'"),
            (pa.table({"id": [1], "v": ["x"], "k": [1]}), {"key_columns": ["k"]}, ValueError, "'k'"),
            (pairs((None, "x")), {}, ValueError, "NULL.*(filter|fill)"),
            (pairs((1, "x"), (1, "y")), {}, ValueError, "1"),
            (pa.table({"id": [1], "v": ["x"], "more": [1]}), {}, ValueError, "more"),
            (pa.table({"id": [1]}), {}, ValueError, "'v'"),
            (pa.table({"id": [1], "v": [1]}), {}, TypeError, "'v'.*(string.*int64|int64.*string)"),
            (pa.table({"id": ["1"], "v": ["x"]}), {}, TypeError, "'id'.*(string.*int64|int64.*string)"),
            (pairs((1, "x")), {"strategy": "replace"}, ValueError, "'upsert', 'insert', 'update', 'full_merge'"),
            (pairs((1, "x")), {"compression": "zip"}, ValueError, "snappy"),
            (pairs((1, "x")), {"key_columns": []}, ValueError, "key_columns"),
            (pairs((1, "x")), {"dedup_order_by": ["nope"], "strategy": "deduplicate"}, ValueError, "nope"),
        ],
    )
    def test_invalid_merges_change_nothing(
        self, handler: Handler, place: Place, source: Any, options: Any, error: Any, message: str
    ) -> None:
        place.write_files({"a.parquet": self.TARGET})
        before = touched(place)
        with pytest.raises(error, match=message):
            handler.merge_parquet_dataset(source, place.root, **{"key_columns": ["id"], **options})
        assert (touched(place), place.left_behind()) == (before, [])


class TestMaintenance:
    @pytest.fixture
    def parts(self, place: Place) -> Place:
        """Two partitions of three small files each."""
        place.write_files({f"day={n % 2}/{n}.parquet": pairs((9 - n, "x"), (n, "y")) for n in range(6)})
        return place

    @pytest.mark.parametrize(
        ("options", "files"),
        [
            ({"target_mb_per_file": 128}, 2),
            ({"target_rows_per_file": 4}, 4),
            ({"target_mb_per_file": 128, "compression": "zstd"}, 2),
            ({"partition_filter": ["day=0"]}, 4),
        ],
    )
    def test_compact_merges_files_as_planned_and_only_once(
        self, handler: Handler, parts: Place, options: Any, files: int
    ) -> None:
        rows, before = parts.rows(), touched(parts)
        planned = handler.compact_parquet_dataset(parts.root, **options, dry_run=True)
        assert (touched(parts), parts.rows()) == (before, rows)
        stats = handler.compact_parquet_dataset(parts.root, **options)
        in_partitions = 1 if "partition_filter" in options else files
        assert planned["after_file_count"] == stats["after_file_count"] == in_partitions
        assert planned["planned_groups"]
        assert (planned["dry_run"], stats["dry_run"]) == (True, False)
        assert len(parts.files()) == files < 6
        assert parts.rows() == rows
        assert all(schema.equals(pairs().schema) for schema in oracle.schemas(parts.root, parts.fs))
        sizes = [oracle.read_file(path, parts.fs).num_rows for path in oracle.data_files(parts.root, parts.fs)]
        assert max(sizes) <= options.get("target_rows_per_file", 12)
        if "partition_filter" in options:
            other = {name: state for name, state in before.items() if "day=1" in name}
            assert other.items() <= touched(parts).items()
        assert stats.keys() >= {
            *("before_file_count", "after_file_count", "before_total_bytes", "after_total_bytes"),
            *("compacted_file_count", "rewritten_bytes", "compression_codec"),
        }
        codec = options.get("compression", "snappy")
        assert codecs(parts) == {stored_codec(codec)}
        assert {file.codec for file in parts.dataset().files()} == {codec}
        settled = touched(parts)
        again = handler.compact_parquet_dataset(parts.root, **options)
        assert (again["compacted_file_count"], again["rewritten_bytes"]) == (0, 0)
        assert touched(parts) == settled

    def test_optimize_sorts_rows_as_planned_and_only_once(self, handler: Handler, parts: Place) -> None:
        rows, before = parts.rows(), touched(parts)
        planned = handler.optimize_parquet_dataset(parts.root, ["id", "v"], target_mb_per_file=64, dry_run=True)
        assert touched(parts) == before
        stats = handler.optimize_parquet_dataset(parts.root, ["id", "v"], target_mb_per_file=64)
        assert planned["after_file_count"] == stats["after_file_count"] == len(parts.files()) == 2
        assert (stats["before_file_count"], stats["zorder_columns"]) == (6, ["id", "v"])
        assert stats.keys() >= {"compacted_file_count", "dry_run", "compression_codec"}
        assert parts.rows() == rows
        for path in oracle.data_files(parts.root, parts.fs):
            found = [(row["id"], row["v"]) for row in oracle.read_file(path, parts.fs).to_pylist()]
            assert found == sorted(found)
        settled = touched(parts)
        again = handler.optimize_parquet_dataset(parts.root, ["id", "v"], target_mb_per_file=64)
        assert (again["compacted_file_count"], touched(parts)) == (0, settled)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda h, path: h.compact_parquet_dataset(path, target_mb_per_file=0), "greater than 0"),
            (lambda h, path: h.compact_parquet_dataset(path, target_rows_per_file=-1), "greater than 0"),
            (lambda h, path: h.optimize_parquet_dataset(path, ["nope"]), "available columns: 'id', 'v'"),
            (lambda h, path: h.optimize_parquet_dataset(path, ["id"], target_mb_per_file=-1), "greater than 0"),
            (lambda h, path: h.optimize_parquet_dataset(path, ["id"], target_rows_per_file=0), "greater than 0"),
        ],
    )
    def test_invalid_arguments_change_nothing(
        self, handler: Handler, parts: Place, call: Any, message: str
    ) -> None:
        before = touched(parts)
        with pytest.raises(ValueError, match=message):
            call(handler, parts.root)
        assert touched(parts) == before

    def test_a_missing_dataset_is_an_error(self, handler: Handler, place: Place) -> None:
        with pytest.raises(FileNotFoundError, match="no dataset"):
            handler.compact_parquet_dataset(place.root)
        with pytest.raises(FileNotFoundError, match="no dataset"):
            handler.optimize_parquet_dataset(place.root, ["id"])


def test_a_closed_handler_refuses_every_call(handler: Handler, local: Place) -> None:
    handler.write_parquet_dataset(TABLE, local.root)
    handler.close()
    for use in (
        lambda: handler.spark if on_spark(handler) else handler.connection,
        lambda: handler.execute_sql("SELECT 1 AS a"),
        lambda: handler.read_parquet(local.root),
        lambda: handler.write_parquet(TABLE, f"{local.root}.parquet"),
        lambda: handler.write_parquet_dataset(TABLE, local.root),
        lambda: handler.merge_parquet_dataset(TABLE, local.root, "id"),
    ):
        with pytest.raises(InvalidArgument, match=f"{type(handler).__name__} is closed; make a new one"):
            use()
    assert len(local.files()) == 1
    assert local.left_behind() == []


@pytest.mark.parametrize(
    "method",
    {
        method.__qualname__: method
        for owner in (DuckDBParquetHandler, SparkParquetHandler)
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_")
    }.values(),
    ids=lambda method: method.__qualname__,
)
def test_every_parameter_of_a_method_is_typed_and_explained(method: Any) -> None:
    signature, text = inspect.signature(method), inspect.getdoc(method)
    assert signature.return_annotation is not inspect.Signature.empty
    for name, parameter in list(signature.parameters.items())[1:]:
        assert parameter.annotation is not inspect.Parameter.empty, name
        assert re.search(rf"^    {name}: \S", text, re.MULTILINE), f"{name} is not explained"
    assert ">>> " in text or method is SparkParquetHandler.close
