"""Files that are sent to the disk while they are written must hold what was written, whoever wrote it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from parketto.parquet.transfer import copy_range
from parketto.storage import writeback
from parketto.storage.writeback import WritebackFile


def test_what_is_written_and_what_the_kernel_copies_is_all_there(
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


def test_the_kernel_is_told_of_every_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(writeback, "_WRITEBACK_BYTES", 10_000)
    monkeypatch.setattr(
        writeback, "_sync_file_range", lambda: lambda _file, start, size, _flags: told.append((start, size))
    )
    with WritebackFile(str(tmp_path / "new")) as file:
        for _ in range(9):
            file.write(b"y" * 3_000)

    assert [start for start, _ in told] == [sum(size for _, size in told[:number]) for number in range(len(told))]
    assert len(told) > 1
    assert sum(size for _, size in told) == 27_000


def test_a_file_is_closed_even_if_its_last_bytes_find_no_room(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no device that is always full")
    file = WritebackFile("/dev/full")
    file.write(b"z")
    with pytest.raises(OSError) as error:
        file.close()

    assert error.value.errno == errno.ENOSPC
    assert file.closed
