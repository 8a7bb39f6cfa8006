"""Paths and filters as people write them: URLs of local files work, and what cannot work has a clear error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from parketto import Dataset, InvalidArgument


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "my events, 100 % ä#?"


@pytest.fixture
def events(folder: Path) -> Dataset:
    found = Dataset(folder, engine="pyarrow")
    found.write(pa.table({"day": [1, 2], "id": [1, 2]}), partition_by="day")
    return found


def test_the_url_of_a_path_is_that_path(events: Dataset, folder: Path) -> None:
    again = Dataset(folder.as_uri(), engine="pyarrow")
    assert again.path == str(folder)
    assert again.count() == 2
    local = folder.as_uri().replace("file:///", "file://localhost/")
    assert Dataset(local, engine="pyarrow").count() == 2


def test_a_plain_path_is_not_decoded(tmp_path: Path) -> None:
    Dataset(tmp_path / "a%20b", engine="pyarrow").write(pa.table({"id": [1]}))
    assert (tmp_path / "a%20b").is_dir()


def test_backups_and_sources_may_be_urls(events: Dataset, folder: Path) -> None:
    backups = folder.parent / "old files"
    stats = events.delete("id = 1", backup=backups.as_uri())
    assert backups.is_dir()
    assert events.restore(str(stats["backup_path"]))["rows_restored"] == 1
    copy = Dataset(folder.parent / "copy", engine="pyarrow")
    assert copy.write_from(folder.as_uri())["rows_written"] == 2
    assert copy.write(folder.as_uri())["rows_written"] == 2


def test_a_url_of_a_local_file_is_local_whatever_the_filesystem_is(events: Dataset, folder: Path) -> None:
    remote = Dataset("memory://local-url", engine="pyarrow")
    remote.write(pa.table({"id": [1, 2]}))
    backups = folder.parent / "backups of the memory"
    stats = remote.delete("id = 1", backup=backups.as_uri())
    assert backups.is_dir()
    assert remote.restore(str(stats["backup_path"]))["rows_restored"] == 2
    given = Dataset(folder.as_uri(), engine="pyarrow", filesystem=fsspec.filesystem("memory"))
    assert given.path == str(folder)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (b"/data/events", r"the path b'/data/events' is bytes: pass text, for example os\.fsdecode"),
        (5, r"must be a string or a pathlib\.Path, got 5 \(int\)"),
        (None, r"got None \(NoneType\)"),
        ("", "the dataset path is empty"),
        ("/", "'/' is the root of a filesystem, not a dataset: name a directory below it"),
        ("file:///", "root of a filesystem"),
        ("memory://", "root of a filesystem"),
    ],
)
def test_paths_that_cannot_be_a_dataset(path: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Dataset(path, engine="pyarrow")


def test_bytes_are_refused_wherever_a_path_is_given(events: Dataset) -> None:
    for options in ({"workspace": b"/tmp/w"},):
        with pytest.raises(InvalidArgument, match="is bytes"):
            Dataset(events.path, engine="pyarrow", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="is bytes"):
        events.delete("id = 1", backup=b"/tmp/b")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [5, 1.5, True, b"day=1"])
def test_partition_filters_of_other_types(events: Dataset, given: Any) -> None:
    expected = "partition_filter must be a partition such as 'date=2025-11-04', a list of them, or a mapping"
    with pytest.raises(InvalidArgument, match=re.escape(expected)):
        events.read(partition_filter=given)


def test_one_column_needs_no_list(events: Dataset) -> None:
    assert sorted(events.read(columns="id").column("id").to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    ("missing", "said", "not_said"),
    [
        (["pyspark"], "or use another engine: engine='duckdb', or engine='pyarrow', which is always", "nothing"),
        (
            ["pyspark", "duckdb"],
            "or use another engine: engine='pyarrow', which is always available",
            "engine='duckdb'",
        ),
    ],
)
def test_the_default_engine_names_the_others_if_it_is_missing(
    events: Dataset, missing: list[str], said: str, not_said: str
) -> None:
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n"
        "from parketto import Dataset\nDataset(sys.argv[1]).delete('id = 1')"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PARKETTO_ENGINE"}
    done = subprocess.run(
        [sys.executable, "-c", code, events.path], capture_output=True, text=True, check=False, env=environment
    )
    assert said in done.stderr
    assert not_said not in done.stderr
