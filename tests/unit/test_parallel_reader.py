"""Parallel reads return the same rows as sequential reads, in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
import pytest

from parketto.parquet.file_info import FileInfo
from parketto.parquet.parallel_reader import read_parallel
from parketto.parquet.row_group_info import RowGroupInfo
from parketto.runtime.prefetch import prefetch


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
    found = list(read_parallel(files(count), rows_of, limit, threads=threads))

    assert [value for batch in found for value in batch.column("n").to_pylist()] == list(range(10 * count))


def test_small_batches_are_combined() -> None:
    found = list(read_parallel(files(64), rows_of, 10**6, threads=2))

    assert [batch.num_rows for batch in found] == [320, 320]


def test_file_that_decodes_larger_than_expected_is_not_buffered_whole() -> None:
    """Footers do not predict the decoded size: threads stop at the limit and leave the rest to the caller."""
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

    for _batch in read_parallel(files(6), expanding, 2000, threads=2):
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
        list(read_parallel(files(200), failing, 5_000, threads=2))
    assert threading.active_count() == before


def test_closing_the_reader_early_ends_its_threads() -> None:
    before = threading.active_count()
    reading = read_parallel(files(200), rows_of, 5_000, threads=2)
    next(reading)
    reading.close()  # type: ignore[attr-defined]

    assert threading.active_count() == before


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_prefetch_computes_at_most_one_item_in_advance(threads: int) -> None:
    made: list[int] = []
    second = threading.Event()

    def making() -> Iterator[int]:
        for number in range(5):
            made.append(number)
            if number == 1:
                second.set()
            yield number

    with closing(prefetch(making(), threads)) as items:
        assert next(items) == 0
        # With one thread items are computed on request, with more threads one item in advance, never two.
        assert second.wait(0 if threads == 1 else 30) == (threads > 1)
        assert made == ([0] if threads == 1 else [0, 1])
        assert list(items) == [1, 2, 3, 4]


def test_prefetch_raises_errors_in_order() -> None:
    def failing() -> Iterator[int]:
        yield 0
        raise OSError("unreadable")

    before = threading.active_count()
    items = prefetch(failing(), 2)
    assert next(items) == 0
    with pytest.raises(OSError, match="unreadable"):
        next(items)
    assert threading.active_count() == before


def test_closed_prefetch_computes_no_more_items() -> None:
    before = threading.active_count()
    made: list[int] = []

    def making() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    with closing(prefetch(making(), 2)) as items:
        next(items)
    assert threading.active_count() == before
    assert len(made) <= 2
