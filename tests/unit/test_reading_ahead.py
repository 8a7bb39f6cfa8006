"""Reading many small files at once must look like reading one after the other, and hold no more than it says."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from parketto.kernels.ahead import read_ahead
from parketto.storage.footers import FileInfo, RowGroupInfo


def files(count: int, decoded: int = 1000) -> list[FileInfo]:
    return [
        FileInfo(f"{number:04d}", size_bytes=decoded, num_rows=10, row_groups=(RowGroupInfo(10, decoded),))
        for number in range(count)
    ]


def rows_of(some: Sequence[FileInfo]) -> Iterator[pa.RecordBatch]:
    for file in some:
        first = 10 * int(file.path)
        yield pa.record_batch({"n": pa.array(range(first, first + 10))})


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("count", "limit"), [(0, 100), (1, 100), (7, 1), (200, 5_000), (200, 10**9)])
def test_rows_come_in_the_order_of_the_files(count: int, limit: int, threads: int) -> None:
    found = list(read_ahead(files(count), rows_of, limit, threads=threads))

    assert [value for batch in found for value in batch.column("n").to_pylist()] == list(range(10 * count))


def test_tiny_batches_are_put_together() -> None:
    found = list(read_ahead(files(64), rows_of, 10**6, threads=2))

    assert [batch.num_rows for batch in found] == [320, 320]


def test_a_file_that_expands_is_not_held_as_a_whole() -> None:
    """Footers do not say how large data becomes: threads stop at the limit and leave the rest to the caller."""
    produced, consumed, most = 0, 0, 0
    lock = threading.Lock()
    megabyte = pa.record_batch({"n": pa.array(range(2**17))})

    def expanding(some: Sequence[FileInfo]) -> Iterator[pa.RecordBatch]:
        nonlocal produced
        for _ in some:
            for _ in range(50):
                with lock:
                    produced += 1
                yield megabyte

    for _batch in read_ahead(files(6), expanding, 2000, threads=2):
        consumed += 1
        most = max(most, produced - consumed)

    assert consumed == 300
    assert most <= 6


def test_an_error_in_a_file_reaches_the_caller_and_ends_the_threads() -> None:
    def failing(some: Sequence[FileInfo]) -> Iterator[pa.RecordBatch]:
        for file in some:
            if file.path == "0050":
                raise OSError("unreadable")
            yield from rows_of([file])

    before = threading.active_count()
    with pytest.raises(OSError, match="unreadable"):
        list(read_ahead(files(200), failing, 5_000, threads=2))
    assert threading.active_count() == before


def test_whoever_stops_early_leaves_no_threads_behind() -> None:
    before = threading.active_count()
    reading = read_ahead(files(200), rows_of, 5_000, threads=2)
    next(reading)
    reading.close()  # type: ignore[attr-defined]

    assert threading.active_count() == before
