"""Files with early writeback contain all bytes, written by Python or copied by the kernel."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from parketto.parquet.transfer import copy_range
from parketto.storage import writeback
from parketto.storage.writeback import WritebackFile


def test_writeback_file_contains_written_and_kernel_copied_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writeback, "_WRITEBACK_BYTES", 10_000)
    other = tmp_path / "other"
    other.write_bytes(os.urandom(50_000))
    expected = b""
    with WritebackFile(str(tmp_path / "new")) as file, other.open("rb") as source:
        for start in range(0, 40_000, 7_000):
            file.write(b"x" * start)
            copy_range(source, start, 5_000, file)
            expected += b"x" * start + other.read_bytes()[start : start + 5_000]

    assert (tmp_path / "new").read_bytes() == expected


def test_every_byte_is_passed_to_sync_file_range_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(writeback, "_WRITEBACK_BYTES", 10_000)
    monkeypatch.setattr(
        writeback, "_sync_file_range", lambda: lambda _file, start, size, _flags: synced.append((start, size))
    )
    with WritebackFile(str(tmp_path / "new")) as file:
        for _ in range(9):
            file.write(b"y" * 3_000)

    assert [start for start, _ in synced] == [
        sum(size for _, size in synced[:number]) for number in range(len(synced))
    ]
    assert len(synced) > 1
    assert sum(size for _, size in synced) == 27_000


def test_file_is_closed_even_if_the_disk_is_full(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no device that is always full")
    file = WritebackFile("/dev/full")
    file.write(b"z")
    with pytest.raises(OSError) as error:
        file.close()

    assert error.value.errno == errno.ENOSPC
    assert file.closed
