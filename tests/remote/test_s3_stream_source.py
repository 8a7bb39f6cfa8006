"""Streams of datasets on S3: commits without locks, published copies, and files of other programs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from helpers.s3 import S3Place
from helpers.stream import Stream

pytest.importorskip("s3fs")


def table(first: int, rows: int = 3) -> pa.Table:
    return pa.table({"id": range(first, first + rows)})


def test_rows_are_delivered_once(s3: S3Place) -> None:
    dataset = s3.dataset()
    dataset.write(table(0))
    s3.write_files({"other.parquet": table(40, 1)})
    stream = Stream(s3)
    assert stream.ids() == [0, 1, 2, 40]
    dataset.write(table(10))
    s3.write_files({"another.parquet": table(50, 1)})
    dataset.compact()
    dataset.write(table(20))
    assert stream.ids() == [10, 11, 12, 20, 21, 22, 50]
    dataset.compact()
    stream.restart()
    assert stream.ids() is None
    replayed = [sorted(stream.replay(*batch).column("id").to_pylist()) for batch in stream.batches]
    assert replayed == [[0, 1, 2, 40], [10, 11, 12, 20, 21, 22, 50]]


def test_writers_and_two_readers_at_once(s3: S3Place) -> None:
    s3.dataset().write(table(0))
    streams = [Stream(s3), Stream(s3)]
    delivered: list[list[int]] = [[], []]

    def write(first: int) -> None:
        for number in range(4):
            s3.dataset(retries=20).write(table(first + 10 * number))

    def other() -> None:
        for number in range(4):
            s3.write_files({f"other-{number}.parquet": table(1000 + number, 1)})
            s3.dataset(retries=20).compact()

    def read(at: int) -> None:
        for _ in range(4):
            delivered[at] += streams[at].ids() or []

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(write, 100), pool.submit(write, 500), pool.submit(other)]
        jobs += [pool.submit(read, 0), pool.submit(read, 1)]
        for job in jobs:
            job.result()
    for at in range(2):
        while found := streams[at].ids():
            delivered[at] += found
        assert sorted(delivered[at]) == sorted(s3.dataset().read().column("id").to_pylist())
