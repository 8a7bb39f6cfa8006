"""Features of DuckDBParquetHandler only: its connection, exact types, SQL, credentials, other readers.

Features that SparkParquetHandler shares are tested in `test_handlers.py`.
"""

from __future__ import annotations

import datetime as dt
import http.server
import inspect
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from conftest import Place
from helpers import oracle
from helpers.handlers import (
    CODECS,
    NULL_FOLDER,
    SOURCES,
    SQL_VALUES,
    TABLE,
    by_id,
    codecs,
    counted,
    failing,
    nested,
    pairs,
    sorted_rows,
    stored_codec,
    touched,
    written,
)
from helpers.merge_oracle import merged
from parketto import (
    AuthenticationFailed,
    AwsStorageOptions,
    Dataset,
    DuckDBParquetHandler,
    LocalStorageOptions,
    StorageOptions,
)
from parketto.engines.duckdb import queries
from parketto.errors import CommitFailed, InvalidArgument, UnreadableFile

UTC = dt.timezone.utc  # noqa: UP017 - shorter beside the values
HOSTILE = ['a"b', "'; DROP TABLE x; --", "select", "a.b", "", "é\n", "x y", "c0", "seq", "$1", "?"]
SECRETS = ["AKIAOPEN", "sesame-secret", "token-hush", "extra-hush"]


@pytest.fixture
def handler() -> Iterator[DuckDBParquetHandler]:
    with DuckDBParquetHandler() as made:
        yield made


def handler_of(place: Place) -> DuckDBParquetHandler:
    return DuckDBParquetHandler(filesystem=place.fs)


class Vault(MemoryFileSystem):  # type: ignore[misc]
    """Stands for remote storage that only this object, with its key, can open: its protocol is not registered."""

    protocol = "vault"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, key: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.key = key

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        text = path.removeprefix("vault://").strip("/")
        return f"/{text}" if text else ""

    def _open(self, path: str, mode: str = "rb", *given: Any, **options: Any) -> Any:
        if self.key != "right":
            raise PermissionError("403: the vault is shut")
        return super()._open(path, mode, *given, **options)


@pytest.fixture
def vault() -> Iterator[Vault]:
    yield Vault("right")
    Vault.store.clear()
    Vault.pseudo_dirs[:] = [""]


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without AWS credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")


class TestInitialisation:
    def test_default_filesystem_is_registered(self) -> None:
        with DuckDBParquetHandler() as handler:
            assert handler.connection.list_filesystems() == ["file"]

    @pytest.mark.parametrize(
        ("options", "names"),
        [
            (LocalStorageOptions(), ["file"]),
            (StorageOptions("file"), ["file"]),
            (StorageOptions("memory"), ["memory"]),
            (AwsStorageOptions("AKIA", "hush", region="eu-central-1"), ["s3"]),
            (AwsStorageOptions(anonymous=True), ["s3"]),
        ],
        ids=repr,
    )
    def test_filesystem_of_storage_options_is_registered(self, no_aws: None, options: Any, names: Any) -> None:
        with DuckDBParquetHandler(storage_options=options) as handler:
            assert handler.connection.list_filesystems() == names

    def test_given_filesystem_is_registered_and_used(self, vault: Vault) -> None:
        with DuckDBParquetHandler(filesystem=vault) as handler:
            assert handler.connection.list_filesystems() == ["vault"]
            handler.write_parquet_dataset(TABLE, "/bucket/events", max_rows_per_file=4)
            assert len(oracle.data_files("/bucket/events", vault)) == 3
            assert by_id(handler.read_parquet("/bucket/events")) == TABLE.to_pylist()

    def test_given_filesystem_serves_urls_too(self, vault: Vault) -> None:
        """fsspec does not know the protocol."""
        with DuckDBParquetHandler(filesystem=vault) as handler:
            handler.write_parquet(TABLE, "vault://bucket/one.parquet")
            handler.write_parquet_dataset(TABLE, "vault://bucket/events")
            assert handler.read_parquet("vault://bucket/one.parquet").equals(TABLE)
            assert handler.read_parquet("vault://bucket/events").equals(TABLE)
            stats = handler.merge_parquet_dataset("vault://bucket/one.parquet", "vault://bucket/events", "id")
            assert stats == {"inserted": 0, "updated": 10, "deleted": 0, "total": 10}
            query = "SELECT max(id) AS top FROM "
            for found in (
                handler.execute_sql(f"{query} t", tables={"t": "vault://bucket/events"}),
                handler.execute_sql(f"{query} parquet_scan('vault://bucket/one.parquet')"),
                handler.execute_sql(f"{query} 'vault://bucket/events/*.parquet'"),
            ):
                assert found.to_pylist() == [{"top": 9}]

    @pytest.mark.parametrize("options", [{"storage_options": LocalStorageOptions()}, {"filesystem": "file"}])
    def test_urls_of_other_storage_open_that_storage(
        self, memory: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
    ) -> None:
        monkeypatch.chdir(tmp_path)
        if "filesystem" in options:
            options = {"filesystem": fsspec.filesystem("file")}
        with DuckDBParquetHandler(**options) as handler:
            handler.write_parquet_dataset(TABLE, f"memory:/{memory.root}")
            handler.write_parquet(TABLE, f"memory:/{memory.root}-file/one.parquet")
            assert written(memory).equals(TABLE)
            assert handler.read_parquet(f"memory:/{memory.root}-file/one.parquet").equals(TABLE)
            handler.merge_parquet_dataset(pairs((1, "x")), f"memory:/{memory.root}-2", "id")
            assert handler.compact_parquet_dataset(f"memory:/{memory.root}-2")["before_file_count"] == 1
        assert os.listdir(tmp_path) == []

    def test_invalid_filesystems_are_refused(self, local: Place) -> None:
        with pytest.raises(InvalidArgument, match="fsspec filesystem, not str"):
            DuckDBParquetHandler(filesystem="file").write_parquet_dataset(TABLE, local.root)
        with pytest.raises(ValueError, match=r"unknown protocol 'nope'.*'memory'"):
            DuckDBParquetHandler(StorageOptions("nope"))


@pytest.mark.usefixtures("no_aws")
class TestCredentials:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({}, "no credentials were given or found.*access_key_id.*anonymous=True"),
            ({"session_token": SECRETS[2]}, "no credentials were given or found"),
            ({"profile": "nobody"}, "nobody"),
            ({"access_key_id": SECRETS[0]}, "incomplete: secret_access_key is missing"),
            ({"secret_access_key": SECRETS[1]}, "incomplete: access_key_id is missing"),
            ({"access_key_id": SECRETS[0], "secret_access_key": ""}, "incomplete: secret_access_key is missing"),
            ({"access_key_id": "", "secret_access_key": SECRETS[1]}, "incomplete: access_key_id is missing"),
            ({"access_key_id": "", "secret_access_key": ""}, "no credentials were given or found"),
        ],
    )
    def test_missing_credentials(
        self, given: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            caplog.at_level(logging.DEBUG),
            pytest.raises(AuthenticationFailed, match=f"authentication.*{message}") as caught,
        ):
            DuckDBParquetHandler(storage_options=AwsStorageOptions(**given))
        assert isinstance(caught.value, PermissionError)
        assert not any(secret in f"{caught.value!r} {caplog.text}" for secret in SECRETS)

    def test_credentials_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRETS[0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[1])
        with DuckDBParquetHandler(AwsStorageOptions()) as handler:
            assert handler.connection.list_filesystems() == ["s3"]

    def test_options_reach_the_filesystem(self) -> None:
        options = AwsStorageOptions(
            *SECRETS[:3],
            region="eu-central-1",
            endpoint_url="http://localhost:9000",
            extra={"client_kwargs": {"verify": False}, "use_ssl": False},
        )
        fs = options.filesystem()
        assert (fs.key, fs.secret, fs.token, fs.endpoint_url, fs.use_ssl) == (
            *SECRETS[:3],
            "http://localhost:9000",
            False,
        )
        assert fs.client_kwargs == {"region_name": "eu-central-1", "verify": False}

    @pytest.mark.parametrize(
        "options",
        [
            AwsStorageOptions(*SECRETS[:3], region="eu-central-1", extra={"password": SECRETS[3]}),
            AwsStorageOptions(*SECRETS[:2], endpoint_url=f"https://me:{SECRETS[3]}@minio:9000/"),
            StorageOptions("sftp", {"host": SECRETS[1], "password": SECRETS[3]}),
        ],
        ids=["aws", "endpoint", "any"],
    )
    def test_secrets_are_never_shown(self, options: Any) -> None:
        shown = [repr(options), str(options), f"{options}", "%r" % (options,), repr([options])]  # noqa: UP031
        assert not [secret for secret in SECRETS for text in shown if secret in text]
        assert type(options).__name__ in shown[0]
        assert "eu-central-1" in shown[0] or "minio:9000" in shown[0] or "sftp" in shown[0]

    @pytest.mark.parametrize("way", ["read", "write", "write file", "merge", "sql", "tables"])
    def test_denied_access_is_reported_without_secrets(
        self, way: str, forbidding: str, caplog: pytest.LogCaptureFixture, local: Place
    ) -> None:
        """The service denies access: the error says so, and shows no secrets."""
        options = AwsStorageOptions(*SECRETS[:3], endpoint_url=forbidding, region="us-east-1")
        url = "s3://bucket/events"
        calls: dict[str, Callable[[DuckDBParquetHandler], Any]] = {
            "read": lambda handler: handler.read_parquet(f"{url}/a.parquet"),
            "write": lambda handler: handler.write_parquet_dataset(TABLE, url),
            "write file": lambda handler: handler.write_parquet(TABLE, f"{url}/a.parquet"),
            "merge": lambda handler: handler.merge_parquet_dataset(TABLE, url, "id"),
            "sql": lambda handler: handler.execute_sql(f"SELECT * FROM '{url}/a.parquet'"),
            "tables": lambda handler: handler.execute_sql("SELECT * FROM t", tables={"t": url}),
        }
        with (
            caplog.at_level(logging.DEBUG, "parketto"),
            DuckDBParquetHandler(storage_options=options) as handler,
            pytest.raises((PermissionError, CommitFailed, duckdb.Error)) as caught,
        ):
            calls[way](handler)
        chain: list[BaseException] = [caught.value]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
        said = " ".join(f"{error!r} {error}" for error in chain)
        assert re.search("(?i)forbidden|access denied|permission", str(caught.value))
        mine = "".join(record.getMessage() for record in caplog.records if record.name.startswith("parketto"))
        assert not [secret for secret in SECRETS if secret in f"{said} {mine} {handler!r}"]


@pytest.fixture(scope="module")
def forbidding() -> Iterator[str]:
    """An S3 service that denies every request."""
    denied = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(403)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(denied)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(denied)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - names of the library

        def log_message(self, *_args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class TestWriteDataset:
    def test_splitting_streams_the_rows(self, handler: DuckDBParquetHandler, local: Place) -> None:
        """Rows are written as they arrive: only a small part of them is in memory at any time."""
        values, most, batches = np.arange(100_000), 0, 100
        schema = pa.schema({"id": pa.int64()})
        start = pa.total_allocated_bytes()

        def stream() -> Iterator[pa.RecordBatch]:
            nonlocal most
            for number in range(batches):
                batch = pa.record_batch([pa.array(values + number).take(pa.array(values))], schema=schema)
                yield batch
                most = max(most, pa.total_allocated_bytes() - start)

        reader = pa.RecordBatchReader.from_batches(schema, stream())
        stats = handler.write_parquet_dataset(reader, local.root, max_rows_per_file=200_000)
        assert (stats["rows_written"], len(local.files())) == (10_000_000, 50)
        assert most < batches * values.nbytes / 2

    def test_a_dataset_can_overwrite_itself(self, place: Place) -> None:
        handler = handler_of(place)
        handler.write_parquet_dataset(TABLE, place.root, max_rows_per_file=2)
        handler.write_parquet_dataset(place.root, place.root, mode="overwrite")
        assert by_id(written(place)) == TABLE.to_pylist()
        assert len(place.files()) == 1

    def test_a_failed_overwrite_keeps_every_file(self, place: Place) -> None:
        place.write_files({"old.parquet": TABLE})
        before = touched(place)
        with pytest.raises(RuntimeError, match="boom"):
            handler_of(place).write_parquet_dataset(failing(TABLE), place.root, mode="overwrite")
        assert (touched(place), place.left_behind()) == (before, [])

    def test_partitions_are_written_and_read(self, place: Place) -> None:
        table = pa.table(
            {"id": range(6), "day": [1, 2, 1, None, 2, 1], "kind": ["a/b", "c", "a/b", "c", "c", "é"]}
        )
        handler = handler_of(place)
        handler.write_parquet_dataset(table, place.root, partition_by=["day", "kind"])
        folders = {os.path.dirname(name): name for name in place.files()}
        assert set(folders) == {
            "day=1/kind=a%2Fb",
            "day=2/kind=c",
            f"day={NULL_FOLDER}/kind=c",
            "day=1/kind=é",
        }
        assert sorted_rows(handler.read_parquet(place.root)) == sorted_rows(table)
        assert handler.read_parquet(place.root).schema.equals(table.schema)
        found = handler.read_parquet(place.root, columns=["id"], partition_filter={"day": 2})
        assert found.to_pylist() == [{"id": 1}, {"id": 4}]


EXTREMES = [-(2**63), -(2**63) + 1, 2**63 - 1]
COLUMNS: dict[str, pa.Array] = {
    **{
        str(kind): pa.array([-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1, None], kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    **{
        str(kind): pa.array([0, 2**kind.bit_width - 1, None], kind)
        for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    },
    "float16": pa.array(np.array([1.5, -0.0, np.nan], np.float16)),
    "float32": pa.array([float("inf"), -0.0, None], pa.float32()),
    "float64": pa.array([float("-inf"), float("nan"), None]),
    "bool": pa.array([True, False, None]),
    **{
        f"timestamp {unit} {zone}": counted([-1, 1, None], pa.timestamp(unit, zone))
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Asia/Tokyo")
    },
    "timestamp ms offset": counted([-1, 1, None], pa.timestamp("ms", "+05:30")),
    "timestamp us extremes": counted(EXTREMES, pa.timestamp("us")),
    "timestamp us extremes utc": counted(EXTREMES, pa.timestamp("us", "UTC")),
    "timestamp ns extremes": counted(EXTREMES, pa.timestamp("ns")),
    "date32": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None], pa.date32()),
    "date32 extremes": pa.array([-(2**31), -(2**31) + 1, 2**31 - 1], pa.int32()).cast(pa.date32()),
    "date64": pa.array([dt.date(1969, 12, 31), dt.date(2024, 2, 29), None], pa.date64()),
    "time32 s": pa.array([0, 86399, None], pa.int32()).cast(pa.time32("s")),
    "time32 ms": pa.array([1, 86399999, None], pa.int32()).cast(pa.time32("ms")),
    "time64 us": counted([1, 86399999999, None], pa.time64("us")),
    "time64 ns": counted([1, 86399999999999, None], pa.time64("ns")),
    "duration": counted([-1, 1, None], pa.duration("ms")),
    "decimal small": pa.array([Decimal("-1.5"), Decimal("9.9"), None], pa.decimal128(2, 1)),
    "decimal wide": pa.array([Decimal(10**38 - 1), Decimal(-1), None], pa.decimal128(38, 0)),
    "decimal fractions": pa.array([Decimal("0." + "1" * 38), Decimal(0), None], pa.decimal128(38, 38)),
    "decimal256 small": pa.array([Decimal("1.50"), Decimal("-2.25"), None], pa.decimal256(10, 2)),
    "decimal256 wide": pa.array([Decimal(10**75), Decimal(-1), None], pa.decimal256(76, 0)),
    "string": pa.array(["é\0", "", None]),
    "large string": pa.array(["x" * 1000, "", None], pa.large_string()),
    "binary": pa.array([b"\x00\xff", b"", None]),
    "large binary": pa.array([b"x", b"", None], pa.large_binary()),
    "fixed binary": pa.array([b"ab", b"\x00\xff", None], pa.binary(2)),
    "null": pa.nulls(3),
    "uuid": pa.array([b"u" * 16, b"\xff" * 16, None], pa.uuid()),
    "dictionary": pa.array(["x", "y", None]).dictionary_encode(),
    "dictionary int8": pa.array(["x", "y", None]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
    "dictionary ints": pa.array([5, 6, None], pa.int64()).dictionary_encode(),
    "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
    "large list": pa.array([["x"], [], None], pa.large_list(pa.large_string())),
    "fixed list": pa.array([[1, 2], [3, None], None], pa.list_(pa.uint16(), 2)),
    "list of ns": nested([[-1, None], [], None], pa.list_(pa.int64()), pa.list_(pa.timestamp("ns", "UTC"))),
    "list of dictionaries": pa.ListArray.from_arrays(
        pa.array([0, 2, 2, 3]), pa.array(["x", "y", "x"]).dictionary_encode()
    ),
    "struct": pa.array([{"a": 1, "A": "x"}, {"a": None, "A": None}, None]),
    "struct of odd names": pa.array([{'"': 1, "a b;": 2}, None, None]),
    "struct of a dictionary": pa.StructArray.from_arrays([pa.array(["x", "y", "x"]).dictionary_encode()], ["d"]),
    "map": pa.array([[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.uint64())),
    "map of categories": pa.MapArray.from_arrays(
        pa.array([0, 1, 1, 1]), pa.array(["k"]), pa.array(["v"]).dictionary_encode()
    ),
    "deep": pa.array(
        [[{"x": [("k", [1.5])]}], [], None],
        pa.list_(pa.struct({"x": pa.map_(pa.string(), pa.list_(pa.float32()))})),
    ),
}


def same(found: pa.Table, expected: pa.Table) -> bool:
    """Equal in schema, metadata and every bit of every value: NaNs and zeros too."""
    found.validate(full=True)
    assert found.schema.equals(expected.schema, check_metadata=True), (
        f"{found.schema}\n-- is not --\n{expected.schema}"
    )
    return all(map(_same_column, found.columns, expected.columns))


def _same_column(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    floats = pa.types.is_floating(one.type)
    return (not floats and one.equals(other)) or repr(one.to_pylist()) == repr(other.to_pylist())


class TestTypes:
    @pytest.mark.parametrize("name", list(COLUMNS))
    def test_every_type_is_read_as_written(self, handler: DuckDBParquetHandler, local: Place, name: str) -> None:
        table = pa.table({"id": [0, 1, 2], name: COLUMNS[name]})
        local.write_files({"a.parquet": table})
        expected = oracle.read_file(f"{local.root}/a.parquet")
        assert same(handler.read_parquet(local.root), expected)
        assert same(handler.read_parquet(f"{local.root}/a.parquet", columns=[name]), expected.select([name]))
        handler.write_parquet_dataset(table, f"{local.root}-2", partition_by="id")
        assert same(written(Place(f"{local.root}-2", local.fs)), expected)

    @pytest.mark.parametrize("name", list(COLUMNS))
    def test_every_type_is_merged(self, handler: DuckDBParquetHandler, local: Place, name: str) -> None:
        """Every type that can be written can be merged, including those that Parquet stores as other types."""
        table = pa.table({"id": [0, 1, 2], name: COLUMNS[name]})
        oracle.write_files(f"{local.root}-2", {"a.parquet": table})
        local.write_files({"a.parquet": table.slice(0, 2)})
        stats = handler.merge_parquet_dataset(table.slice(1), local.root, "id")
        assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}
        assert same(written(local).sort_by("id"), oracle.read_file(f"{local.root}-2/a.parquet"))

    def test_all_types_in_one_file_are_read_as_written(self, place: Place) -> None:
        table = pa.table({"id": [0, 1, 2], **COLUMNS})
        place.write_files({f"{n}.parquet": table for n in range(2)})
        expected, handler = oracle.read_file(f"{place.root}/0.parquet", place.fs), handler_of(place)
        assert same(handler.read_parquet(place.root), pa.concat_tables([expected, expected]))
        handler.write_parquet(table, f"{place.root}-2/one.parquet")
        assert same(oracle.read_file(f"{place.root}-2/one.parquet", place.fs), expected)
        stats = handler.merge_parquet_dataset(table, f"{place.root}-2", "id")
        assert stats == {"inserted": 0, "updated": 3, "deleted": 0, "total": 3}
        assert same(handler.read_parquet(f"{place.root}-2"), expected)

    def test_schema_is_exact(self, place: Place) -> None:
        schema = pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False, metadata={"unit": "piece"}),
                pa.field("s", pa.struct([pa.field("x", pa.int8(), nullable=False)]), nullable=False),
                pa.field("v", pa.large_string(), metadata={b"\xff": b"\x00"}),
            ],
            metadata={"owner": "me", "pandas": '{"columns": []}'},
        )
        table = pa.table([[1], [{"x": 2}], ["y"]], schema=schema)
        place.write_files({"a.parquet": table})
        expected = oracle.read_file(f"{place.root}/a.parquet", place.fs).schema
        assert expected.equals(schema, check_metadata=True)
        handler = handler_of(place)
        for columns in (None, ["id", "v"]):
            found = handler.read_parquet(place.root, columns=columns).schema
            wanted = pa.schema([schema.field(name) for name in columns or schema.names], schema.metadata)
            assert found.equals(wanted, check_metadata=True)
        handler.merge_parquet_dataset(table, place.root, "id")
        handler.write_parquet(table, f"{place.root}/b.parquet")
        for found in oracle.schemas(place.root, place.fs):
            assert found.equals(schema, check_metadata=True)

    def test_int96_timestamps_keep_nanoseconds(self, place: Place) -> None:
        table = pa.table({"id": [1, 2], "t": counted([-1001, None], pa.timestamp("ns"))})
        place.write_files({"a.parquet": table}, use_deprecated_int96_timestamps=True)
        instants = table.set_column(1, "t", table["t"].cast(pa.timestamp("ns", "UTC")))
        assert handler_of(place).read_parquet(place.root).equals(instants)

    @pytest.mark.parametrize(
        "options", [{"version": "1.0"}, {"data_page_version": "2.0"}, {"use_dictionary": False}]
    )
    def test_files_of_other_format_versions_are_read(
        self, handler: DuckDBParquetHandler, local: Place, options: Any
    ) -> None:
        table = pa.table(
            {
                "u": pa.array([2**32 - 1, None], pa.uint32()),
                "s": ["x", None],
                "t": counted([5, None], pa.timestamp("us")),
            }
        )
        local.write_files({"a.parquet": table}, store_schema=False, **options)
        assert same(handler.read_parquet(local.root), oracle.read_file(f"{local.root}/a.parquet"))

    def test_files_with_different_categories_are_read_together(self, place: Place) -> None:
        tables = [pa.table({"c": pa.array(values).dictionary_encode()}) for values in (["x"], ["y", "x"])]
        place.write_files({f"{at}.parquet": table for at, table in enumerate(tables)})
        found = handler_of(place).read_parquet(place.root)
        assert found.schema.equals(tables[0].schema)
        assert found["c"].to_pylist() == ["x", "y", "x"]


class TestRead:
    def test_rows_come_in_the_order_of_files(self, place: Place) -> None:
        tables = [pa.table({"id": range(at * 5000, (at + 1) * 5000)}) for at in range(4)]
        place.write_files({f"{at}.parquet": table for at, table in enumerate(tables)}, row_group_size=1000)
        assert handler_of(place).read_parquet(place.root).equals(pa.concat_tables(tables))

    def test_files_with_another_column_order_are_read_in_path_order(self, place: Place) -> None:
        place.write_files({"a.parquet": pairs((1, "a")), "b.parquet": pairs((2, "b")).select(["v", "id"])})
        assert handler_of(place).read_parquet(place.root).equals(pairs((1, "a"), (2, "b")))

    def test_selected_columns(self, place: Place) -> None:
        place.write_files({"a.parquet": TABLE})
        handler = handler_of(place)
        for path in (place.root, f"{place.root}/a.parquet"):
            assert handler.read_parquet(path, columns=["name"]).equals(TABLE.select(["name"]))
            assert handler.read_parquet(path, columns=["name", "id"]).equals(TABLE.select(["name", "id"]))

    def test_only_selected_columns_are_read(self, place: Place) -> None:
        """Damaged pages of a column do not matter unless it is selected."""
        place.write_files({"a.parquet": pa.table({"id": [1, 2], "v": ["damaged", "goods"]})})
        path = f"{place.root}/a.parquet"
        content = bytearray(place.fs.cat_file(path))
        chunk = pq.ParquetFile(pa.BufferReader(bytes(content))).metadata.row_group(0).column(1)
        start = chunk.dictionary_page_offset
        content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
        place.fs.pipe_file(path, bytes(content))
        handler = handler_of(place)
        assert handler.read_parquet(path, columns=["id"]).to_pylist() == [{"id": 1}, {"id": 2}]
        with pytest.raises(UnreadableFile, match=rf"cannot read '{path}'"):
            handler.read_parquet(path)

    @pytest.mark.parametrize(
        "names",
        [
            HOSTILE,
            ["a", "A", "b"],
            ["id", "filename", "file_row_number"],
            ["FileName", "File_Row_Number", "file_index"],
            ["row", "file", "in_place", "folder"],
        ],
        ids=["hostile", "case", "filename", "Filename", "ours"],
    )
    @pytest.mark.parametrize("partition", ["", "k=7/"])
    def test_columns_of_any_name_are_read_merged_and_sorted(
        self, place: Place, names: list[str], partition: str
    ) -> None:
        table = pa.table({name: [at, at + 100] for at, name in enumerate(names)})
        place.write_files({f"{partition}a.parquet": table})
        handler, folder = handler_of(place), {"k": [7, 7]} if partition else {}
        expected = pa.table(table.to_pydict() | folder)
        assert handler.read_parquet(place.root).equals(expected)
        some = [names[-1], names[0], *folder]
        assert handler.read_parquet(place.root, columns=some).equals(expected.select(some))
        source = pa.table({name: [at, at + 200] for at, name in enumerate(expected.schema.names)} | {"k": [7, 7]})
        source = source.select(expected.schema.names)
        stats = handler.merge_parquet_dataset(source, place.root, names)
        assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}
        rows = [list(row.values()) for row in handler.read_parquet(place.root).to_pylist()]
        first = list(range(len(names)))
        tail = [7] * len(folder)
        assert sorted(rows) == [[n + add for n in first] + tail for add in (0, 100, 200)]
        handler.optimize_parquet_dataset(place.root, names[::-1], compression="zstd")
        assert sorted(list(row.values()) for row in handler.read_parquet(place.root).to_pylist()) == sorted(rows)

    def test_a_file_that_is_not_parquet_is_named(self, place: Place) -> None:
        place.fs.makedirs(place.root)
        place.fs.pipe_file(f"{place.root}/a.parquet", b"not Parquet at all")
        with pytest.raises(ValueError, match=r"a\.parquet"):
            handler_of(place).read_parquet(place.root)


class TestSql:
    VALUES: ClassVar[list[Any]] = [
        *SQL_VALUES,
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
        2**64 - 1,
        {"a": 1},
    ]

    def test_parameters_of_every_type_are_bound(self, handler: DuckDBParquetHandler) -> None:
        marks = ", ".join(f"? AS c{at}" for at in range(len(self.VALUES)))
        for given in (self.VALUES, tuple(self.VALUES)):
            found = handler.execute_sql(f"SELECT {marks}", given)
            assert list(found.to_pylist()[0].values()) == self.VALUES
        named = {f"p{at}": value for at, value in enumerate(self.VALUES)}
        marks = ", ".join(f"${name} AS {name}" for name in named)
        assert handler.execute_sql(f"SELECT {marks}", parameters=named).to_pylist() == [named]

    @pytest.mark.parametrize("codec", CODECS)
    def test_files_of_every_codec_can_be_named_in_the_query(self, local: Place, codec: str) -> None:
        handler, path = handler_of(local), f"{local.root}/{codec}.parquet"
        handler.write_parquet(TABLE, path, compression=codec)
        assert codecs(local) == {stored_codec(codec)}
        assert handler.execute_sql(f"FROM '{path}'").equals(TABLE)
        found = handler.execute_sql(f"SELECT count(*) AS n FROM '{local.root}/*.parquet'")
        assert found.to_pylist() == [{"n": 10}]

    @pytest.mark.parametrize("value", ["x' OR '1'='1", "n1'; DELETE FROM mine; --", "n1"])
    def test_parameters_cannot_inject_sql(self, handler: DuckDBParquetHandler, value: str) -> None:
        handler.connection.execute("CREATE TABLE mine AS SELECT 1 AS a")
        for query, bound in (("name = ?", [value]), ("name = $wanted", {"wanted": value})):
            found = handler.execute_sql(f"SELECT id FROM t WHERE {query}", bound, {"t": TABLE})
            assert found.to_pylist() == ([{"id": 1}] if value == "n1" else [])
        assert handler.connection.execute("SELECT * FROM mine").fetchall() == [(1,)]

    @pytest.mark.parametrize(
        ("query", "parameters"),
        [("SELECT ?", [1, 2]), ("SELECT $a", {"a": 1, "b": 2})],
    )
    def test_unused_parameters_are_an_error(
        self, handler: DuckDBParquetHandler, query: str, parameters: Any
    ) -> None:
        with pytest.raises(duckdb.Error, match=r"(?i)parameter"):
            handler.execute_sql(query, parameters)

    def test_urls_of_the_registered_filesystem(self, memory: Place) -> None:
        memory.write_files({"k=1/a.parquet": TABLE, "k=2/a.parquet": TABLE.slice(3)})
        with DuckDBParquetHandler(StorageOptions("memory")) as handler:
            url = f"memory:/{memory.root}"
            found = handler.execute_sql(f"SELECT id, name FROM parquet_scan('{url}/k=1/a.parquet') WHERE id > 8")
            assert found.equals(TABLE.slice(9))
            query = f"SELECT k, count(*) AS n FROM read_parquet('{url}/*/*.parquet', hive_partitioning = true)"
            found = handler.execute_sql(f"{query} GROUP BY k ORDER BY k")
            assert found.to_pylist() == [{"k": 1, "n": 10}, {"k": 2, "n": 7}]
            with pytest.raises((duckdb.Error, FileNotFoundError), match="nothing"):
                handler.execute_sql(f"FROM parquet_scan('{url}/nothing.parquet')")

    def test_window_functions_can_be_filtered(self, place: Place) -> None:
        query = "SELECT id, lag(id, 1, -1) OVER (ORDER BY id DESC) AS before FROM t QUALIFY before > 7 ORDER BY id"
        found = handler_of(place).execute_sql(query, tables={"t": TABLE})
        assert found.to_pylist() == [{"id": 7, "before": 8}, {"id": 8, "before": 9}]

    TABLES: ClassVar[dict[str, Callable[[str], Any]]] = {
        **SOURCES,
        "relation": lambda _: duckdb.connect().from_arrow(TABLE),
    }

    @pytest.mark.parametrize("kind", list(TABLES))
    def test_tables_of_every_kind(self, place: Place, kind: str) -> None:
        """They can be used more than once in a query."""
        folder = f"{place.root}-source"
        oracle.write_files(folder, {"a.parquet": TABLE}, place.fs)
        query = "SELECT t.id, other.name FROM t JOIN t AS other ON t.id = other.id + 1 ORDER BY t.id LIMIT 2"
        found = handler_of(place).execute_sql(query, tables={"t": self.TABLES[kind](folder)})
        assert found.to_pylist() == [{"id": 1, "name": "n0"}, {"id": 2, "name": "n1"}]

    @pytest.mark.parametrize("inside", [True, False])
    def test_partitioned_datasets(self, place: Place, inside: bool) -> None:
        place.write_files(
            {f"k={k}/a.parquet": pa.table({"n": [1]} | ({"k": [k]} if inside else {})) for k in "abc"}
        )
        found = handler_of(place).execute_sql(
            "SELECT sum(n)::INT AS n, string_agg(k, '' ORDER BY k) AS k FROM t WHERE k >= ?",
            ["b"],
            {"t": place.root},
        )
        assert found.to_pylist() == [{"n": 2, "k": "bc"}]

    @pytest.mark.parametrize("name", [*HOSTILE[:4], "T", "é", "a b", "table", "tables", "query", "rows"])
    def test_any_name_of_a_table(self, place: Place, name: str) -> None:
        place.write_files({"a.parquet": TABLE})
        quoted = '"' + name.replace('"', '""') + '"'
        for given in (place.root, TABLE):
            found = handler_of(place).execute_sql(f"SELECT count(*) AS n FROM {quoted}", tables={name: given})
            assert found.to_pylist() == [{"n": 10}]

    @pytest.mark.parametrize("names", [HOSTILE, ["id", "filename"], ["file_row_number", "n"]])
    def test_any_name_of_a_column(self, place: Place, names: list[str]) -> None:
        place.write_files({"a.parquet": pa.table({name: [at] for at, name in enumerate(names)})})
        found = handler_of(place).execute_sql("FROM t", tables={"t": place.root})
        if "" not in names:
            assert found.schema.names == names
        assert list(found.to_pylist()[0].values()) == list(range(len(names)))

    @pytest.mark.parametrize("name", [name for name in COLUMNS if name != "decimal256 wide"])
    def test_every_type_can_be_queried(self, handler: DuckDBParquetHandler, local: Place, name: str) -> None:
        """As a path and as a table, with the same result."""
        local.write_files({"a.parquet": pa.table({"id": [0, 1, 2], "v": COLUMNS[name]})})
        stored = oracle.read_file(f"{local.root}/a.parquet")
        results = [
            handler.execute_sql("SELECT *, v IS NULL AS empty FROM t ORDER BY id", tables={"t": given})
            for given in (local.root, stored)
        ]
        assert same(*results)
        assert results[0]["empty"].to_pylist() == stored["v"].is_null().to_pylist()

    def test_tables_are_unregistered_after_a_query(self, handler: DuckDBParquetHandler, local: Place) -> None:
        local.write_files({"a.parquet": TABLE})
        tables = {"one": TABLE, "two": local.root, "three": TABLE.to_pandas()}
        handler.execute_sql("SELECT 1", tables=tables)
        with pytest.raises(duckdb.Error):
            handler.execute_sql("SELECT nope FROM one", tables=tables)
        shown = "SELECT table_name FROM information_schema.tables"
        assert handler.connection.execute(shown).fetchall() == []
        assert handler.execute_sql(shown).num_rows == 0
        for name in tables:
            with pytest.raises(duckdb.CatalogException, match=name):
                handler.execute_sql(f"FROM {name}")

    @pytest.mark.parametrize("kind", ["table", "path"])
    def test_existing_tables_are_hidden_but_not_changed(
        self, handler: DuckDBParquetHandler, local: Place, kind: str
    ) -> None:
        local.write_files({"a.parquet": TABLE})
        handler.connection.execute("CREATE TABLE mine AS SELECT 42 AS id")
        handler.connection.execute("CREATE VIEW seen AS SELECT 43 AS id")
        given = {"table": TABLE, "path": local.root}[kind]
        for name in ("mine", "Mine", "seen"):
            found = handler.execute_sql("SELECT max(id) AS top FROM mine", tables={name: given})
            assert found.to_pylist() == [{"top": 42 if name == "seen" else 9}]
        assert handler.execute_sql("SELECT m.id, s.id AS s FROM mine AS m, seen AS s").to_pylist() == [
            {"id": 42, "s": 43}
        ]
        names = handler.connection.execute(
            "SELECT table_name FROM information_schema.tables ORDER BY 1"
        ).fetchall()
        assert names == [("mine",), ("seen",)]

    def test_tables_created_by_queries_are_kept(self, handler: DuckDBParquetHandler) -> None:
        handler.execute_sql("CREATE TABLE kept AS SELECT * FROM t WHERE id > ?", [7], {"t": TABLE})
        handler.execute_sql("INSERT INTO kept VALUES (99, 'new')")
        assert [row["id"] for row in by_id(handler.execute_sql("FROM kept"))] == [8, 9, 99]
        assert isinstance(handler.execute_sql("DROP TABLE kept"), pa.Table)

    @pytest.mark.parametrize(
        "name", ["query", "parameters", "tables", "connection", "rows", "self", "engine", "TABLE"]
    )
    def test_python_variables_are_not_tables(self, handler: DuckDBParquetHandler, name: str) -> None:
        """DuckDB would find the variables of its caller, which is Parketto and not the user."""
        with pytest.raises(duckdb.CatalogException, match=f"(?i){name}.* does not exist"):
            handler.execute_sql(f'FROM "{name}"', tables={"t": TABLE})

    def test_invalid_and_failing_tables_are_errors(self, handler: DuckDBParquetHandler) -> None:
        with pytest.raises(InvalidArgument, match="not int"):
            handler.execute_sql("SELECT 1", tables={"t": 7})
        with pytest.raises(RuntimeError, match="boom"):
            handler.execute_sql("FROM t", tables={"t": failing(TABLE)})

    def test_empty_results_keep_their_columns(self, handler: DuckDBParquetHandler) -> None:
        assert handler.execute_sql("FROM t WHERE id < 0", tables={"t": TABLE}).equals(TABLE.slice(0, 0))


class TestMerge:
    """The scenarios of each strategy, once through the handler."""

    TARGET: ClassVar[pa.Table] = pairs((1, "a"), (2, "b"), (9, "z"))

    @pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge", "deduplicate"])
    @pytest.mark.parametrize("form", ["plain", "inside", "path"])
    def test_every_strategy_merges_partitioned_datasets(self, place: Place, strategy: Any, form: str) -> None:
        """Partition columns are in the files or only in the paths; rows move between partitions."""
        names = ["id", "k", "v"]
        target = [{"id": n, "k": n % 3, "v": f"old {n}"} for n in range(300)]
        source = [{"id": n, "k": n % 3 if n % 5 else 2, "v": f"new {n}"} for n in range(150, 450)]
        if strategy == "deduplicate":
            source += [row | {"v": "newest"} for row in source[::7]]
        handler, rows = handler_of(place), pa.Table.from_pylist(target)
        if form != "plain":
            place.write_files(
                {
                    f"k={k}/{part}.parquet": pa.Table.from_pylist(
                        [row for row in target if row["k"] == k][part * 50 : part * 50 + 50]
                    ).select(names if form == "inside" else ["id", "v"])
                    for k in range(3)
                    for part in range(2)
                }
            )
        else:
            place.write_files({f"{at}.parquet": rows.slice(at * 100, 100) for at in range(3)})
        stats = handler.merge_parquet_dataset(
            pa.Table.from_pylist(source).select(names), place.root, "id", strategy
        )
        expected, wanted = merged(target, source, ["id"], strategy)
        assert stats == wanted
        found = []
        for path in oracle.data_files(place.root, place.fs):
            table = oracle.read_file(path, place.fs)
            assert table.schema.names == (["id", "v"] if form == "path" else names)
            folder = re.search("k=([0-9])/", path)
            for row in table.to_pylist():
                assert not folder or row.setdefault("k", int(folder[1])) == int(folder[1])
                found.append(row)
        assert by_id(pa.Table.from_pylist(found).select(names)) == by_id(
            pa.Table.from_pylist(expected).select(names)
        )
        assert by_id(handler.read_parquet(place.root, names)) == by_id(
            pa.Table.from_pylist(expected).select(names)
        )

    @pytest.mark.parametrize("strategy", ["upsert", "insert", "update"])
    def test_files_without_a_matching_key_are_not_rewritten(self, place: Place, strategy: Any) -> None:
        place.write_files({f"{n}.parquet": pairs((n * 10, "x"), (n * 10 + 5, "y")) for n in range(4)})
        before = touched(place)
        handler_of(place).merge_parquet_dataset(pairs((15, "Y"), (100, "new")), place.root, "id", strategy)
        after = touched(place)
        kept = {name for name, state in before.items() if after.get(name) == state}
        assert kept == set(before) - (set() if strategy == "insert" else {"/1.parquet"})

    KEYS: ClassVar[dict[str, pa.Array]] = {
        # Distinct keys: the last one is only in the source, the one before it in target and source.
        "int8": pa.array([-128, 0, 127, 1], pa.int8()),
        "uint8": pa.array([0, 127, 255, 128], pa.uint8()),
        "uint64": pa.array([0, 2**63, 2**64 - 1, 2**63 - 1], pa.uint64()),
        "int64": pa.array([-(2**63), 0, 2**63 - 1, 2**53 + 1], pa.int64()),
        "float16": pa.array(np.array([1.5, -2, 0.5, 3], np.float16)),
        "float32": pa.array([0.1, -2, 0.25, 3], pa.float32()),
        "float64": pa.array([0.1, float("-inf"), float("nan"), 3]),
        "bool": pa.array([True, False]),
        "date32": pa.array([dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29)]),
        "date64": pa.array(
            [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(2000, 1, 1)], pa.date64()
        ),
        **{
            f"timestamp {unit} {zone}": counted([-1, 0, 1, 10**9], pa.timestamp(unit, zone))
            for unit in ("s", "ms", "us", "ns")
            for zone in (None, "Asia/Tokyo")
        },
        "time32": pa.array([0, 1, 86399999, 5], pa.int32()).cast(pa.time32("ms")),
        "time64": counted([0, 1, 86399999999999, 5], pa.time64("ns")),
        "duration": counted([-1, 0, 1, 10**9], pa.duration("us")),
        "decimal": pa.array([Decimal("-1.50"), Decimal(0), Decimal("1.5"), Decimal("15")], pa.decimal128(10, 2)),
        "decimal 38": pa.array(
            [Decimal(10**37), Decimal(-(10**37)), Decimal(10**37 + 1), Decimal(1)], pa.decimal128(38, 0)
        ),
        "decimal256": pa.array(
            [Decimal(10**70), Decimal(-(10**70)), Decimal(10**70 + 1), Decimal(1)], pa.decimal256(76, 0)
        ),
        "string": pa.array(["", "é", "e\u0301", "É"]),
        "string nul": pa.array(["a", "a\0", "a\0b", "A"]),
        "large string": pa.array(["x" * 300, "x" * 300 + "y", "x" * 299, "X"], pa.large_string()),
        "binary": pa.array([b"", b"\x00", b"\xff", b"\x00\xff"]),
        "fixed binary": pa.array([b"ab", b"\x00\x00", b"\xff\xff", b"aB"], pa.binary(2)),
        "dictionary": pa.array(["x", "y", "z", "w"]).dictionary_encode(),
    }

    @pytest.mark.parametrize("kind", list(KEYS))
    def test_keys_of_every_type(self, place: Place, kind: str) -> None:
        keys = self.KEYS[kind]
        last = len(keys) - 1
        table = pa.table({"key": keys, "v": [f"old {n}" for n in range(len(keys))]})
        source = pa.table({"key": keys.slice(last - 1), "v": ["new", "newer"]})
        place.write_files({"a.parquet": table.slice(0, last)})
        kept = oracle.schemas(place.root, place.fs)
        stats = handler_of(place).merge_parquet_dataset(source, place.root, ["key"])
        assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": last + 1}
        values = [*table["v"].to_pylist()[: last - 1], "new", "newer"]
        expected = pa.table({"key": keys.cast(kept[0].field("key").type), "v": values})
        assert sorted_rows(written(place)) == sorted_rows(expected)
        assert all(schema.equals(kept[0]) for schema in oracle.schemas(place.root, place.fs))

    @pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
    def test_nan_and_zero_keys(self, place: Place, kind: pa.DataType) -> None:
        def table(*rows: tuple[float, str]) -> pa.Table:
            return pa.table(
                {
                    "key": pa.array(np.array([key for key, _ in rows], kind.to_pandas_dtype())),
                    "v": [v for _, v in rows],
                }
            )

        handler = handler_of(place)
        place.write_files({"a.parquet": table((float("nan"), "nan"), (0.0, "zero"), (1.5, "x"))})
        source = table((float("nan"), "NAN"), (-0.0, "ZERO"), (2.5, "new"))
        stats = handler.merge_parquet_dataset(source, place.root, "key")
        assert stats == {"inserted": 1, "updated": 2, "deleted": 0, "total": 4}
        assert sorted(written(place)["v"].to_pylist()) == ["NAN", "ZERO", "new", "x"]
        for twice in (table((0.0, "a"), (-0.0, "b")), table((float("nan"), "a"), (-float("nan"), "b"))):
            with pytest.raises(ValueError, match="more than once"):
                handler.merge_parquet_dataset(twice, place.root, "key")

    def test_composite_key_of_several_types(self, place: Place) -> None:
        names = ["string", "uint64", "float64", "date32", "timestamp us None", "decimal", "binary"]
        table = pa.table({name: self.KEYS[name] for name in names} | {"v": ["a", "b", "c", "d"]})
        place.write_files({"a.parquet": table.slice(0, 3)})
        stats = handler_of(place).merge_parquet_dataset(table.slice(1), place.root, names)
        assert stats == {"inserted": 1, "updated": 2, "deleted": 0, "total": 4}
        assert sorted_rows(written(place)) == sorted_rows(table)

    def test_a_path_as_source(self, place: Place) -> None:
        handler, source = handler_of(place), f"{place.root}-source"
        oracle.write_files(source, {"a.parquet": pairs((1, "A")), "deep/b.parquet": pairs((3, "C"))}, place.fs)
        place.write_files({"a.parquet": self.TARGET})
        stats = handler.merge_parquet_dataset(source, place.root, key_columns=["id"], strategy="upsert")
        assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 4}
        assert [row["v"] for row in by_id(written(place))] == ["A", "b", "C", "z"]

    def test_several_rows_with_one_key_in_the_target(self, place: Place) -> None:
        place.write_files({"a.parquet": pairs((1, "a"), (1, "b")), "b.parquet": pairs((1, "c"), (2, "d"))})
        stats = handler_of(place).merge_parquet_dataset(pairs((1, "new")), place.root, "id")
        assert stats == {"inserted": 0, "updated": 1, "deleted": 2, "total": 2}
        assert by_id(written(place)) == [{"id": 1, "v": "new"}, {"id": 2, "v": "d"}]

    def test_last_of_tied_duplicates_wins(self, place: Place) -> None:
        source = pa.table({"id": [1, 1, 1], "at": [5, 5, 4], "v": ["a", "b", "c"]})
        handler_of(place).merge_parquet_dataset(source, place.root, "id", "deduplicate", dedup_order_by="at")
        assert written(place)["v"].to_pylist() == ["b"]

    def test_new_target_with_partitions(self, place: Place) -> None:
        source = pa.table({"id": [1, 2], "k": ["a", "b"]})
        handler_of(place).merge_parquet_dataset(source, place.root, "id", partition_by="k")
        assert sorted(map(os.path.dirname, place.files())) == ["k=a", "k=b"]
        assert by_id(written(place)) == source.to_pylist()

    @pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge", "deduplicate"])
    def test_null_keys_in_the_target(self, place: Place, strategy: Any) -> None:
        place.write_files({"a.parquet": pairs((1, "a"), (None, "b"))})
        before = touched(place)
        with pytest.raises(ValueError, match="NULL"):
            handler_of(place).merge_parquet_dataset(pairs((1, "x")), place.root, "id", strategy)
        assert (touched(place), place.left_behind()) == (before, [])

    @pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge", "deduplicate"])
    def test_failure_of_the_source_changes_nothing(self, place: Place, strategy: Any) -> None:
        place.write_files({"a.parquet": self.TARGET})
        before = touched(place)
        with pytest.raises(RuntimeError, match="boom"):
            handler_of(place).merge_parquet_dataset(failing(self.TARGET), place.root, "id", strategy)
        assert (touched(place), place.left_behind()) == (before, [])

    @pytest.mark.parametrize("at", [1, 2])
    def test_failure_of_the_disk_changes_nothing(self, local: Place, at: int) -> None:
        class Full(DirFileSystem):  # type: ignore[misc]
            opened = 0

            def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
                if "w" in mode and "/new/" in path:
                    type(self).opened += 1
                    if self.opened == at:
                        raise OSError("no space left on device")
                return super().open(path, mode, **options)

        local.write_files({"a.parquet": self.TARGET, "b.parquet": pairs((5, "e"))})
        before = touched(local)
        handler = DuckDBParquetHandler(filesystem=Full(os.path.dirname(local.root), fsspec.filesystem("file")))
        with pytest.raises(Exception, match="no space left"):
            handler.merge_parquet_dataset(pairs((1, "A"), (5, "E"), (6, "F")), "events", "id")
        assert Full.opened >= at
        Dataset(local.root, engine="pyarrow").recover()
        assert (touched(local), local.left_behind()) == (before, [])

    def test_large_merge_within_little_memory(self, local: Place) -> None:
        """Half a million rows, by a join instead of row by row."""
        rows = 500_000
        ids = np.arange(rows)
        with DuckDBParquetHandler(memory_mb=64) as handler:
            target = pa.table({"id": ids, "v": ids})
            handler.write_parquet_dataset(target, local.root, max_rows_per_file=rows // 4)
            source = pa.table({"id": np.roll(ids + rows // 2, 7), "v": np.roll(-ids, 7)})
            start = time.monotonic()
            stats = handler.merge_parquet_dataset(source, local.root, "id")
            assert time.monotonic() - start < 20
        half = rows // 2
        assert stats == {"inserted": half, "updated": half, "deleted": 0, "total": rows + half}
        found = written(local).sort_by("id")
        assert found["id"].to_numpy().tolist() == list(range(rows + half))
        assert found["v"].to_numpy().tolist() == [*range(half), *range(0, -rows, -1)]


class TestLife:
    def test_with_statement_closes_the_connection(self) -> None:
        with DuckDBParquetHandler() as handler:
            connection = handler.connection
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
            assert handler.connection is connection
        with pytest.raises(duckdb.ConnectionException, match=r"(?i)closed"):
            connection.execute("SELECT 1")

    def test_closed_even_after_an_error(self) -> None:
        handler = DuckDBParquetHandler()
        connection = handler.connection
        with pytest.raises(duckdb.ParserException), handler:
            handler.execute_sql("SELEC 1")
        with pytest.raises(duckdb.ConnectionException):
            connection.execute("SELECT 1")

    def test_without_a_with_statement(self, local: Place) -> None:
        handler = DuckDBParquetHandler()
        handler.write_parquet_dataset(TABLE, local.root)
        assert handler.execute_sql("SELECT count(*) AS n FROM t", tables={"t": local.root}).to_pylist() == [
            {"n": 10}
        ]
        connection = handler.connection
        handler.close()
        handler.close()
        with pytest.raises(duckdb.ConnectionException):
            connection.execute("SELECT 1")

    def test_closing_what_was_never_used(self) -> None:
        handler = DuckDBParquetHandler()
        handler.close()
        handler.close()

    def test_nothing_is_left_on_disk(self, tmp_path: Path, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(scratch))
        with DuckDBParquetHandler() as handler:
            handler.write_parquet_dataset(TABLE, local.root, partition_by="name")
            handler.merge_parquet_dataset(TABLE, local.root, "id")
            handler.optimize_parquet_dataset(local.root, ["id"])
            assert handler.read_parquet(local.root).num_rows == 10
            handler.execute_sql("SELECT 1")
        forgotten = DuckDBParquetHandler()
        forgotten.execute_sql("SELECT 1")
        del forgotten
        assert os.listdir(scratch) == []
        assert local.left_behind() == []

    def test_two_threads_open_one_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = queries.connect

        def slow(*given: Any, **options: Any) -> Any:
            time.sleep(0.05)
            return original(*given, **options)

        monkeypatch.setattr(queries, "connect", slow)
        with DuckDBParquetHandler() as handler, ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: id(handler.connection), range(4)))
        assert len(set(found)) == 1

    def test_threads_work_on_different_datasets(self, handler: DuckDBParquetHandler, local: Place) -> None:
        def work(number: int) -> list[dict[str, Any]]:
            path = f"{local.root}-{number}"
            for at in range(3):
                handler.write_parquet_dataset(pairs((at, f"{number}")), path)
            handler.merge_parquet_dataset(pairs((1, f"{number} again"), (7, "x")), path, "id")
            handler.compact_parquet_dataset(path)
            read = handler.read_parquet(path)
            found = handler.execute_sql("FROM t", tables={"t": path if number % 2 else read})
            assert found.num_rows == read.num_rows == 4
            assert handler.execute_sql("SELECT ? AS n", [number]).to_pylist() == [{"n": number}]
            return by_id(found)

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(work, range(8)))
        for number, found in enumerate(results):
            assert [row["v"] for row in found] == [f"{number}", f"{number} again", f"{number}", "x"]


class TestOtherReaders:
    """Files of one library are read back equal by all others."""

    TABLE: ClassVar[pa.Table] = pa.table(
        {
            "id": pa.array(range(6), pa.uint32()),
            "f": [0.5, None, float("inf"), -0.0, 1e300, 5e-324],
            "s": ["é", "", None, "x\0", "y", "z"],
            "b": [b"\xff", b"", None, b"x", b"y", b"z"],
            "d": pa.array([dt.date(1960, 1, 1)] * 5 + [None], pa.date32()),
            "t": counted([-1, 1, None, 10**15, 0, 5], pa.timestamp("us", "UTC")),
            "n": counted([-1, 1, None, 10**15, 0, 5], pa.timestamp("ns")),
            "m": pa.array(
                [Decimal("1.50"), None, Decimal("-2.25"), Decimal(0), Decimal(1), Decimal(2)], pa.decimal128(20, 2)
            ),
            "l": [[1, None], [], None, [2], [3], [4]],
            "q": [{"x": 1, "y": "a"}, {"x": None, "y": None}] + [{"x": n, "y": "b"} for n in range(4)],
        }
    )

    @pytest.mark.parametrize("codec", CODECS)
    def test_written_by_the_handler(self, handler: DuckDBParquetHandler, local: Place, codec: str) -> None:
        handler.write_parquet_dataset(self.TABLE, local.root, max_rows_per_file=4, compression=codec)
        handler.merge_parquet_dataset(self.TABLE.slice(3, 2), local.root, "id", compression=codec)
        expected = self.TABLE.to_pylist()
        assert by_id(Dataset(local.root, engine="pyarrow").read()) == expected
        assert Dataset(local.root, engine="pyarrow").read().schema.equals(self.TABLE.schema)
        assert by_id(pq.read_table(local.root)) == expected
        frame = pl.read_parquet(f"{local.root}/*.parquet").sort("id")
        assert frame.to_arrow().cast(self.TABLE.schema).to_pylist() == expected
        found = duckdb.connect().execute(f"SELECT id, s, m FROM '{local.root}/*.parquet' ORDER BY id").fetchall()
        assert found == [(row["id"], row["s"], row["m"]) for row in expected]
        assert pd.read_parquet(local.root).sort_values("id")["s"].tolist() == [row["s"] for row in expected]

    @pytest.mark.parametrize("writer", ["pyarrow", "parketto", "polars", "duckdb", "pandas"])
    def test_read_and_merged_by_the_handler(
        self, handler: DuckDBParquetHandler, local: Place, writer: str
    ) -> None:
        os.makedirs(local.root)
        path = f"{local.root}/a.parquet"
        table = self.TABLE
        if writer == "pyarrow":
            pq.write_table(table, path)
        elif writer == "parketto":
            Dataset(local.root, engine="pyarrow").write(table)
        elif writer == "polars":
            pl.from_arrow(table).write_parquet(path)
        elif writer == "duckdb":
            duckdb.connect().from_arrow(table).write_parquet(path)
        else:
            table = table.drop_columns(["l", "q"])
            table.to_pandas().to_parquet(path)
        expected = oracle.read_file(oracle.data_files(local.root)[0])
        assert same(handler.read_parquet(local.root), expected)
        assert repr(by_id(expected.select(["id", "s", "b", "m"]))) == repr(
            by_id(table.select(["id", "s", "b", "m"]))
        )
        stats = handler.merge_parquet_dataset(expected.slice(4), local.root, "id")
        assert stats == {"inserted": 0, "updated": 2, "deleted": 0, "total": 6}
        assert same(handler.read_parquet(local.root).sort_by("id"), expected)

    def test_partitions_are_hive_partitions(self, handler: DuckDBParquetHandler, local: Place) -> None:
        table = TABLE.append_column("k", pa.array([n % 3 for n in range(10)], pa.int64()))
        handler.write_parquet_dataset(table, local.root, partition_by="k")
        assert by_id(Dataset(local.root, engine="pyarrow").read()) == table.to_pylist()
        frame = pl.read_parquet(f"{local.root}/**/*.parquet", hive_partitioning=True).sort("id")
        assert frame.select(table.schema.names).rows() == [tuple(row.values()) for row in table.to_pylist()]
        files = f"read_parquet('{local.root}/**/*.parquet', hive_partitioning = true)"
        found = handler.execute_sql(f"SELECT count(*) AS n FROM {files} WHERE k = 1")
        assert found.to_pylist() == [{"n": 3}]


class TestDocumentation:
    METHODS: ClassVar[list[Any]] = [
        method
        for name, method in inspect.getmembers(DuckDBParquetHandler, inspect.isfunction)
        if not name.startswith("_")
    ]

    @pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
    def test_every_result_is_explained_and_has_an_example(self, method: Any) -> None:
        text = inspect.getdoc(method)
        assert ">>> " in text
        assert inspect.signature(method).return_annotation == "None" or "\nReturns:\n" in text

    def test_every_strategy_has_an_example(self) -> None:
        text = inspect.getdoc(DuckDBParquetHandler.merge_parquet_dataset)
        examples = text[text.index("Example:") :]
        for strategy in ("insert", "update", "full_merge", "deduplicate"):
            assert f"* `{strategy}`: " in text
            assert f'"{strategy}"' in examples
        assert "* `upsert`: " in text

    def test_types_hold_in_a_users_program(self, tmp_path: Path) -> None:
        program = tmp_path / "program.py"
        program.write_text(
            textwrap.dedent(
                """
                from pathlib import Path

                from parketto import AwsStorageOptions, DuckDBParquetHandler, LocalStorageOptions, StorageOptions
                from parketto import MaintenanceStats, MergeStats, WriteStats


                def maintain(folder: Path, rows: object) -> int:
                    with DuckDBParquetHandler(storage_options=LocalStorageOptions(), memory_mb=256) as handler:
                        written: WriteStats = handler.write_parquet_dataset(rows, folder, mode="overwrite")
                        handler.write_parquet(rows, "one.parquet", compression="zstd")
                        merged: MergeStats = handler.merge_parquet_dataset(rows, folder, ["id"], strategy="update")
                        packed: MaintenanceStats = handler.compact_parquet_dataset(folder, target_mb_per_file=64)
                        handler.optimize_parquet_dataset(str(folder), ["id"], dry_run=True)
                        found = handler.execute_sql("SELECT ?", [1], tables={"t": folder})
                        handler.execute_sql("SELECT $a", {"a": found.num_rows})
                        handler.read_parquet(folder, columns=("id",), partition_filter={"day": [1, 2]})
                        names: list[str] = handler.connection.list_filesystems()
                    handler = DuckDBParquetHandler(AwsStorageOptions(profile="me", region="eu-central-1"))
                    handler = DuckDBParquetHandler(StorageOptions("memory", {"x": 1}))
                    handler = DuckDBParquetHandler({"key": "value"})
                    return written["rows_written"] + merged["total"] + packed["after_file_count"] + len(names)


                def mistaken(handler: DuckDBParquetHandler) -> None:
                    handler.merge_parquet_dataset(1, "x", ["id"], strategy="replace")  # type: ignore[arg-type]
                    handler.write_parquet_dataset(1, "x", mode="replace")  # type: ignore[arg-type]
                    handler.read_parquet(7)  # type: ignore[arg-type]
                    handler.compact_parquet_dataset("x", target_rows_per_file="many")  # type: ignore[arg-type]
                """
            )
        )
        command = [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-incremental",
            "--no-error-summary",
            str(program),
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (0, ""), result.stdout + result.stderr
