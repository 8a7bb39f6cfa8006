"""Files that are sent to the disk while they are written must hold what was written, whoever wrote it."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from parketto.rowgroups.transfer import copy_range
from parketto.storage import writing_out
from parketto.storage.writing_out import EagerFile, sent_while_written


def test_what_is_written_and_what_the_kernel_copies_is_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing_out, "_WORTH_TELLING", 10_000)
    other = tmp_path / "other"
    other.write_bytes(os.urandom(50_000))
    expected = b""
    with EagerFile(str(tmp_path / "new")) as file, other.open("rb") as source:
        for start in range(0, 40_000, 7_000):
            file.write(b"x" * start)
            copy_range(source, start, 5_000, file)
            expected += b"x" * start + other.read_bytes()[start : start + 5_000]

    assert (tmp_path / "new").read_bytes() == expected


def test_the_kernel_is_told_of_every_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(writing_out, "_WORTH_TELLING", 10_000)
    monkeypatch.setattr(
        writing_out, "_sync_file_range", lambda: lambda _file, start, size, _flags: told.append((start, size))
    )
    with EagerFile(str(tmp_path / "new")) as file:
        for _ in range(9):
            file.write(b"y" * 3_000)

    assert [start for start, _ in told] == [sum(size for _, size in told[:number]) for number in range(len(told))]
    assert len(told) > 1
    assert sum(size for _, size in told) == 27_000


def test_the_kernel_is_told_of_what_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(writing_out, "_WORTH_TELLING", 10_000)
    monkeypatch.setattr(writing_out, "_LOOK_EVERY_SECONDS", 0.001)
    monkeypatch.setattr(
        writing_out, "_sync_file_range", lambda: lambda _file, start, size, _flags: told.append((start, size))
    )
    before = threading.active_count()
    with sent_while_written(str(tmp_path / "new")), (tmp_path / "new").open("wb", buffering=0) as file:
        for _ in range(3):
            written = len(told)
            file.write(b"y" * 12_000)
            while len(told) == written:
                time.sleep(0.001)

    assert told == [(0, 12_000), (12_000, 12_000), (24_000, 12_000)]
    assert threading.active_count() == before


def test_nothing_is_told_of_a_file_that_is_never_written(tmp_path: Path) -> None:
    before = threading.active_count()
    with sent_while_written(str(tmp_path / "nothing")):
        time.sleep(0.12)
    assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_closed_even_if_its_last_bytes_find_no_room(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no device that is always full")
    file = EagerFile("/dev/full")
    file.write(b"z")
    with pytest.raises(OSError) as error:
        file.close()

    assert error.value.errno == errno.ENOSPC
    assert file.closed
