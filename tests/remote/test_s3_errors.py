"""Errors of S3 are reported in one sentence, and nothing is created, above all no bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.s3 import S3Place, options
from parketto import AuthenticationFailed, BucketNotFound, Dataset, DatasetNotFound, NotADataset, NotPlainParquet

pytest.importorskip("s3fs")

ROWS = pa.table({"id": [1, 2, 3]})
OPERATIONS: dict[str, Callable[[Dataset], Any]] = {
    "read": lambda dataset: dataset.read(),
    "files": lambda dataset: dataset.files(),
    "append": lambda dataset: dataset.write(ROWS),
    "overwrite": lambda dataset: dataset.write(ROWS, mode="overwrite"),
    "compact": lambda dataset: dataset.compact(),
    "dry run": lambda dataset: dataset.compact(dry_run=True),
    "optimize": lambda dataset: dataset.optimize(["id"]),
    "delete": lambda dataset: dataset.delete("id = 1"),
    "merge": lambda dataset: dataset.merge(ROWS, "id"),
    "repartition": lambda dataset: dataset.repartition("id"),
}
READING = ("read", "files", "compact", "dry run", "optimize", "delete", "repartition")


@pytest.mark.parametrize("name", OPERATIONS)
def test_missing_bucket(s3: S3Place, name: str) -> None:
    before = s3.server.buckets()
    with pytest.raises(BucketNotFound, match=r"the bucket 'no-such-bucket' .* does not exist") as caught:
        OPERATIONS[name](
            Dataset("s3://no-such-bucket/x/events", "pyarrow", storage_options=options(s3.server.endpoint))
        )
    assert isinstance(caught.value, FileNotFoundError)
    assert "\n" not in str(caught.value)
    assert s3.server.buckets() == before


@pytest.mark.parametrize("name", READING)
def test_missing_dataset(s3: S3Place, name: str) -> None:
    with pytest.raises(DatasetNotFound, match=f"no dataset at 's3://{s3.root}': it does not exist"):
        OPERATIONS[name](s3.dataset())
    assert s3.left_behind() == []


@pytest.mark.parametrize("name", OPERATIONS)
def test_object_instead_of_a_dataset_is_refused(s3: S3Place, name: str) -> None:
    s3.fs.pipe_file(s3.root, b"something")
    with pytest.raises(NotADataset, match=f"'s3://{s3.root}' is a file"):
        OPERATIONS[name](s3.dataset())
    assert s3.fs.find(s3.root.rpartition("/")[0]) == [s3.root]


@pytest.mark.parametrize("name", OPERATIONS)
def test_table_formats_are_refused(s3: S3Place, name: str) -> None:
    s3.write_files({"one.parquet": ROWS})
    s3.fs.pipe_file(f"{s3.root}/_delta_log/00000000000000000000.json", b"{}")
    before = s3.fs.find(s3.root)
    with pytest.raises(NotPlainParquet, match="Delta Lake"):
        OPERATIONS[name](s3.dataset())
    assert s3.fs.find(s3.root) == before


def test_objects_that_are_not_data_are_ignored(s3: S3Place) -> None:
    s3.fs.pipe_file(f"{s3.root}/README.md", b"none")
    with pytest.raises(DatasetNotFound, match="no parquet files were found"):
        s3.dataset().read()
    s3.dataset().write(ROWS)
    assert s3.dataset().read().equals(ROWS)
    assert s3.fs.exists(f"{s3.root}/README.md")


@pytest.mark.parametrize("name", OPERATIONS)
def test_missing_credentials(s3: S3Place, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    plain = {"endpoint_url": s3.server.endpoint, "skip_instance_cache": True}
    with pytest.raises(AuthenticationFailed, match=f"no credentials found for 's3://{s3.server.bucket}") as caught:
        OPERATIONS[name](Dataset(f"s3://{s3.root}", "pyarrow", storage_options=plain))
    assert isinstance(caught.value, PermissionError)
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)


def test_unreachable_service(s3: S3Place) -> None:
    quick = {"retries": {"max_attempts": 0}, "connect_timeout": 1}
    there = options("http://127.0.0.1:1", config_kwargs=quick)
    with pytest.raises(ConnectionError, match=r"S3 cannot be reached for 's3://lake/\.?events"):
        Dataset("s3://lake/events", "pyarrow", storage_options=there).read()


def test_datasets_are_shown_with_their_urls(s3: S3Place) -> None:
    dataset = s3.dataset()
    assert dataset.path == f"s3://{s3.root}"
    assert repr(dataset) == f"Dataset('s3://{s3.root}', engine='pyarrow')"
    assert Dataset(f"s3://{s3.root}/", "pyarrow", filesystem=s3.fs).path == dataset.path
    assert Dataset(s3.root, "pyarrow", filesystem=s3.fs).path == dataset.path
