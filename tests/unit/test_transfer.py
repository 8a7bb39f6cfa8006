"""Copying byte ranges: by the kernel or in Python, at the right position, never fewer bytes than requested."""

from __future__ import annotations

import errno
import gzip
import io
import os

import pyarrow as pa
import pytest

from helpers.parquet_files import in_memory
from parketto.errors import FooterError
from parketto.parquet import transfer as moving
from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.footer import read_footer
from parketto.parquet.transfer import copy_range, read_ranges, write_fully

DATA = bytes(range(256)) * 100


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").write_bytes(DATA)
    with open(tmp_path / "source", "rb") as file:
        yield file


@pytest.mark.parametrize("code", [None, errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize("buffering", [-1, 0])
def test_copy_between_local_files_falls_back_if_the_kernel_refuses(
    source, tmp_path, monkeypatch, code, buffering
) -> None:
    asked = []
    real = os.copy_file_range

    def copy(*args):
        asked.append(args)
        # The first part is copied before the filesystem refuses.
        if code is not None and len(asked) > 1:
            raise OSError(code, "not here")
        return real(*args[:2], 10 if code is not None else args[2], *args[3:])

    monkeypatch.setattr(os, "copy_file_range", copy)
    with open(tmp_path / "sink", "wb", buffering=buffering) as sink:
        sink.write(b"head")
        source.read(77)  # the position of the source does not matter
        copy_range(source, 100, 1000, sink)
        sink.write(b"middle")
        copy_range(source, 5, 7, sink)
        assert sink.tell() == 4 + 1000 + 6 + 7
        sink.write(b"end")
    assert (tmp_path / "sink").read_bytes() == b"head" + DATA[100:1100] + b"middle" + DATA[5:12] + b"end"
    assert asked


def test_other_errors_of_the_kernel_copy_are_raised(source, tmp_path, monkeypatch) -> None:
    def full(*_args):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "copy_file_range", full)
    with open(tmp_path / "sink", "wb") as sink, pytest.raises(OSError, match="no space"):
        copy_range(source, 0, 10, sink)


def test_copy_into_a_file_in_append_mode(source, tmp_path) -> None:
    with open(tmp_path / "sink", "ab") as sink:
        sink.write(b"head")
        copy_range(source, 0, 500, sink)
    assert (tmp_path / "sink").read_bytes() == b"head" + DATA[:500]


def test_copy_reads_and_writes_through_wrapping_file_objects(source, tmp_path) -> None:
    with gzip.open(tmp_path / "sink", "wb") as sink:
        copy_range(source, 0, 500, sink)
    with gzip.open(tmp_path / "sink", "rb") as packed:
        assert packed.read() == DATA[:500]
    with gzip.open(tmp_path / "sink", "rb") as packed, open(tmp_path / "again", "wb") as sink:
        copy_range(packed, 100, 50, sink)
    assert (tmp_path / "again").read_bytes() == DATA[100:150]


def test_copy_handles_short_reads_and_writes(monkeypatch) -> None:
    monkeypatch.setattr(moving, "_CHUNK_BYTES", 100)

    class Slow(io.BytesIO):
        reads = 0

        def read(self, size=-1):
            assert size <= 100
            Slow.reads += 1
            return super().read(min(size, 30))

    class Lazy(io.BytesIO):
        def write(self, data):
            return super().write(data[:7])

    sink = Lazy()
    copy_range(Slow(DATA), 50, 999, sink)
    assert sink.getvalue() == DATA[50:1049]
    assert Slow.reads > 33


def test_truncated_source_is_an_error(tmp_path) -> None:
    for sink in (io.BytesIO(), open(tmp_path / "sink", "wb")):  # noqa: SIM115
        (tmp_path / "short").write_bytes(DATA)
        with sink, open(tmp_path / "short", "rb") as file:
            os.truncate(tmp_path / "short", 150)
            with pytest.raises(FooterError, match="ends at byte 150"):
                copy_range(file, 100, 1000, sink)


def test_source_changed_after_its_footer_was_read_is_refused(tmp_path) -> None:
    path = tmp_path / "a"
    path.write_bytes(in_memory(pa.table({"id": range(1000)})).getvalue())
    out = RowGroupAppender(io.BytesIO())
    with open(path, "rb") as file:
        footer = read_footer(file)
        path.write_bytes(path.read_bytes() + b"more")
        with pytest.raises(FooterError, match="changed"):
            out.append(file, footer)


def test_failed_copy_abandons_the_appender() -> None:
    class Failing(io.BytesIO):
        def write(self, data):
            if len(data) > 4:
                raise OSError(errno.ENOSPC, "no space left")
            return super().write(data)

    source = in_memory(pa.table({"id": range(1000)}))
    out = RowGroupAppender(Failing())
    with pytest.raises(OSError, match="no space"):
        out.append(source, read_footer(source))
    with pytest.raises(ValueError, match="abandoned after an error"):
        out.append(source, read_footer(source))


def test_nearby_ranges_are_read_in_one_request() -> None:
    class Counting(io.BytesIO):
        reads = 0

        def read(self, size=-1):
            Counting.reads += 1
            return super().read(size)

    large = Counting(bytes(10_000_000))
    ranges = [(5, 10), (100, 50), (120, 200), (9_000_000, 5), (9_000_001, 1), (5, 10)]
    found = read_ranges(large, ranges)
    assert {place: len(data) for place, data in found.items()} == {place: place[1] for place in ranges}
    assert Counting.reads == 2
    assert read_ranges(large, []) == {}


def test_sinks_that_return_no_count_are_supported() -> None:
    sink = pa.BufferOutputStream()
    write_fully(sink, b"all of it")
    assert sink.getvalue().to_pybytes() == b"all of it"
