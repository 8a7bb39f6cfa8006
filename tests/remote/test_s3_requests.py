"""The number of S3 requests per operation. Each costs money, and some tens of milliseconds."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.s3 import Request, S3Place, kinds, recorded
from parketto import Dataset
from parketto.commit import index_rows
from parketto.storage.opening import open_store

pytest.importorskip("s3fs")

FILES = 11


def table(rows: int, number: int = 0, columns: int = 2) -> pa.Table:
    random = np.random.default_rng(number)
    values = {f"c{at}": random.random(rows) for at in range(columns)}
    return pa.table({"id": np.arange(rows) + number * rows, **values})


@pytest.fixture
def filled(s3: S3Place) -> S3Place:
    s3.write_files({f"{number:02}.parquet": table(100, number) for number in range(FILES)})
    return s3


def asked(place: S3Place, operation: Callable[[Dataset], Any], **options: Any) -> list[Request]:
    dataset = place.dataset(**options)
    with recorded(dataset._store.fs) as requests:
        operation(dataset)
    return requests


def of_data(requests: list[Request]) -> Counter[str]:
    """The requests for existing data files: without those for staged files and the log."""
    return kinds([request for request in requests if request.path.endswith(".parquet")])


OPERATIONS: dict[str, tuple[Callable[[Dataset], Any], int]] = {
    "read": (lambda dataset: dataset.read(), FILES + 4),
    "files": (lambda dataset: dataset.files(), FILES + 4),
    "append": (lambda dataset: dataset.write(table(100, 50)), 10),
    "delete that footers rule out": (lambda dataset: dataset.delete("id < 0"), FILES + 6),
    "delete that matches nothing": (lambda dataset: dataset.delete("c0 + c1 < 0"), FILES + 6),
    "compaction": (lambda dataset: dataset.compact(), 3 * FILES + 10),  # each retired file is copied
    "compaction by encoding": (lambda dataset: dataset.compact(rewrite="encode"), 3 * FILES + 10),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_small_files_are_read_by_one_request_each(filled: S3Place, name: str) -> None:
    operation, _ = OPERATIONS[name]
    found = of_data(asked(filled, operation))
    assert found["GET"] == (1 if name == "append" else FILES)


@pytest.mark.parametrize("commits", [0, 1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_of_whole_operations(filled: S3Place, name: str, commits: int) -> None:
    """Independent of the number of commits. The first one also creates the identity object of the dataset."""
    operation, most = OPERATIONS[name]
    filled.dataset()._store.creates_exclusively(filled.root)  # found out once per process
    for number in range(commits):
        filled.dataset().delete(f"id = {number}")  # as many files as before
    requests = asked(filled, operation)
    print(f"{name} after {commits} commits: {len(requests)} requests, {dict(kinds(requests))}")
    assert len(requests) <= most, kinds(requests)


def test_requests_of_the_first_write(s3: S3Place) -> None:
    s3.dataset()._store.creates_exclusively(s3.root)
    requests = asked(s3, lambda dataset: dataset.write(table(100)))
    print(f"{len(requests)} requests, {dict(kinds(requests))}")
    assert len(requests) <= 10, kinds(requests)


def test_footers_of_large_files_are_read_by_range(s3: S3Place) -> None:
    s3.write_files({"one.parquet": table(400_000)}, row_group_size=100_000)
    assert s3.fs.size(f"{s3.root}/one.parquet") > 5 * 2**20
    dataset = s3.dataset()
    read: list[int] = []
    read_range = dataset._store.read_range

    def noted(path: str, start: int, end: int, *more: Any) -> bytes:
        read.append(end - start)
        return read_range(path, start, end, *more)

    dataset._store.read_range = noted  # type: ignore[method-assign]
    (file,) = dataset.files()
    assert file.num_rows == 400_000
    assert 0 < sum(read) < 2**20


def test_adjacent_column_chunks_are_read_by_one_request(s3: S3Place) -> None:
    rows = table(400_000, columns=5)
    s3.write_files({"one.parquet": rows}, row_group_size=100_000)
    footer = 1
    read = of_data(asked(s3, lambda dataset: dataset.read()))
    assert read == {"GET": footer + 2}, "all columns are adjacent: 16 MB are read at a time"
    read = of_data(asked(s3, lambda dataset: dataset.read(columns=["c1"])))
    assert read == {"GET": footer + 4}, "a column of four row groups"
    read = of_data(asked(s3, lambda dataset: dataset.delete("c1 + c2 < 0", dry_run=True)))
    assert read["GET"] <= footer + 4, "two columns side by side, row group by row group"
    assert "HEAD" not in read


@pytest.mark.parametrize("rewrite", ["copy", "encode"])
def test_requests_of_a_compaction_of_large_files(s3: S3Place, rewrite: Any) -> None:
    s3.write_files({f"{number}.parquet": table(200_000, number) for number in range(3)}, row_group_size=50_000)
    read = of_data(asked(s3, lambda dataset: dataset.compact(target_mb_per_file=100, rewrite=rewrite)))
    # The footer, and the rest in a few pieces.
    assert read["GET"] <= 3 * (1 + 2), read
    assert len(s3.files()) == 1


def test_rows_of_a_large_row_group_are_read_piece_by_piece(s3: S3Place) -> None:
    rows = table(1_500_000, columns=1)
    s3.write_files({"one.parquet": rows}, row_group_size=1_500_000, use_dictionary=False, compression="none")
    assert s3.fs.size(f"{s3.root}/one.parquet") > 20 * 2**20
    dataset = s3.dataset()
    with recorded(dataset._store.fs) as requests:
        stats = dataset.delete("c0 + id < 0", dry_run=True)
    assert stats["rows_matched"] == 0
    assert 2 <= of_data(requests)["GET"] <= 8
    dataset.compact(target_rows_per_file=400_000)
    assert dataset.read().sort_by("id").equals(rows)


def test_files_replaced_while_they_are_read(s3: S3Place) -> None:
    """Bytes of two versions are never mixed: the dataset is listed again."""
    s3.write_files({"one.parquet": table(100)})
    dataset = s3.dataset()
    read_range, replaced = dataset._store.read_range, table(5000, 7)

    def overtaken(*arguments: Any) -> bytes:
        dataset._store.read_range = read_range  # type: ignore[method-assign]
        s3.write_files({"one.parquet": replaced})
        return read_range(*arguments)

    dataset._store.read_range = overtaken  # type: ignore[method-assign]
    assert dataset.read().equals(replaced)


def test_listings_take_one_request_for_a_thousand_objects(s3: S3Place) -> None:
    store, root = open_store(s3.root, s3.server.filesystem())
    for number in range(3):
        store.write(f"{root}/a/{number}", b"x" * number)
    store.write(f"{root}-beside", b"y")
    with recorded(store.fs) as requests:
        listed = list(store.list_files(root))
        nothing = list(store.list_files(f"{root}/b"))
        folders = store.list_dirs(root), store.list_names(root), store.list_names(f"{root}/a")
        there = store.is_dir(f"{root}/a"), store.is_dir(f"{root}-beside"), store.is_dir(f"{root}/a/1")
    assert kinds(requests) == {"LIST": 8}
    assert [(entry.path, entry.size_bytes) for entry in listed] == [(f"{root}/a/{at}", at) for at in range(3)]
    assert (nothing, folders, there) == ([], (["a"], ["a"], ["0", "1", "2"]), (True, False, False))
    with recorded(store.fs) as requests:
        looked = [store.stat(entry.path) for entry in listed]
        assert store.stat(f"{root}/a") is None
    assert kinds(requests) == {"HEAD": 4}
    assert looked == listed
    assert [entry.modified for entry in looked if entry] == pytest.approx(
        [entry.modified for entry in listed], abs=1
    )
    assert all(entry.modified and abs(entry.modified - listed[0].modified) < 60 for entry in listed)  # type: ignore[operator]


def test_pages_of_listings(s3: S3Place) -> None:
    store, root = open_store(s3.root, s3.server.filesystem(skip_instance_cache=True))
    for number in range(5):
        store.write(f"{root}/{number}", b"x")
    call = store.fs.call_s3
    store.fs.call_s3 = lambda method, **request: call(
        method, **request, **({"MaxKeys": 2} if method == "list_objects_v2" else {})
    )
    with recorded(store.fs) as requests:
        assert [entry.path[len(root) + 1 :] for entry in store.list_files(root)] == ["0", "1", "2", "3", "4"]
    assert kinds(requests) == {"LIST": 3}


def test_objects_are_copied_and_removed_by_one_request(s3: S3Place) -> None:
    store, root = open_store(s3.root, s3.server.filesystem())
    content = bytes(range(256)) * 1000
    names = [f"{root}/x/{number} [a]?b=ü%2F" for number in range(5)]
    for name in names:
        store.write(name, content)
    with recorded(store.fs) as requests:
        store.copy(names[0], f"{root}/copy", len(content))
        store.remove_many([*names, f"{root}/never there"])
    assert kinds(requests) == {"PUT": 1, "POST": 1}
    assert [entry.path for entry in store.list_files(root)] == [f"{root}/copy"]
    assert store.read(f"{root}/copy") == content
    with recorded(store.fs) as requests:
        store.remove_tree(root)
    assert len(requests) == 2
    with pytest.raises(FileNotFoundError):
        store.copy(names[0], f"{root}/copy")


def test_unfinished_uploads_are_aborted(s3: S3Place) -> None:
    store, root = open_store(s3.root, s3.server.filesystem())
    key = f"{root.partition('/')[2]}/new/1"
    store.fs.call_s3("create_multipart_upload", Bucket=s3.server.bucket, Key=key)
    store.write(f"{root}/clock", b"x")
    entry = store.stat(f"{root}/clock")
    assert entry is not None
    assert entry.modified is not None
    assert store.abort_uploads(root, 0.0) == 0
    assert store.abort_uploads(f"{root}/elsewhere", entry.modified + 3600) == 0
    assert store.abort_uploads(root, entry.modified + 3600) == 1
    assert store.abort_uploads(root, entry.modified + 3600) == 0


def test_conditional_puts_are_supported(s3: S3Place) -> None:
    store, root = open_store(s3.root, s3.server.filesystem())
    assert store.creates_exclusively(f"{root}/.log")
    assert list(store.list_files(root)) == []


def test_one_of_many_concurrent_creates_succeeds(s3: S3Place) -> None:
    store, root = open_store(s3.root, s3.server.filesystem())

    def make(number: int) -> bytes | None:
        content = b"%d" % number
        try:
            store.create(f"{root}/1.json", content)
        except FileExistsError:
            return None
        return content

    with ThreadPoolExecutor(8) as pool:
        (made,) = [content for content in pool.map(make, range(24)) if content is not None]
    assert store.read(f"{root}/1.json") == made


def test_every_way_to_read_returns_the_same_bytes(s3: S3Place) -> None:
    """With and without a known entry and tail of the file."""
    content = np.random.default_rng(0).bytes(300_000)
    store, root = open_store(s3.root, s3.server.filesystem())
    store.write(f"{root}/x", content)
    entry = store.stat(f"{root}/x")
    for known, tail in ((None, b""), (entry, b""), (entry, content[-1000:]), (entry, content)):
        with recorded(store.fs) as requests, store.open_input(f"{root}/x", known, tail) as file:
            assert file.read() == content
            file.seek(-1500, io.SEEK_END)
            assert file.read(700) == content[-1500:-800]
            assert file.read(10_000) == content[-800:]
        assert kinds(requests)["HEAD"] == (known is None)
        assert kinds(requests)["GET"] <= 2
        if tail == content:
            assert requests == []
    assert store.read(f"{root}/x") == content
    assert store.read_range(f"{root}/x", 10, 10) == b""
    pq.write_table(table(10), sink := io.BytesIO())
    with store.open_output(f"{root}/y.parquet") as out:
        out.write(sink.getvalue())
    assert store.read(f"{root}/y.parquet") == sink.getvalue()


def test_the_footer_index_replaces_requests(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Footers are read of files that an operation needs, and of one that shows the schema."""
    monkeypatch.setattr(index_rows, "SETTLED_SECONDS", -60.0)
    s3.write_files({f"{number:03}.parquet": table(10, number) for number in range(80)})
    s3.dataset()._store.creates_exclusively(s3.root)
    assert of_data(asked(s3, lambda dataset: dataset.delete("id = 5")))["GET"] >= 80
    for operation, most in (
        (lambda dataset: dataset.delete("id = 405"), 24),
        (lambda dataset: dataset.count("id = 505"), 10),
        (lambda dataset: dataset.count(), 7),
        (lambda dataset: dataset.merge(table(1, 605), ["id"]), 40),
        (lambda dataset: dataset.compact(dry_run=True), 10),
    ):
        requests = asked(s3, operation)
        print(len(requests), kinds(requests), of_data(requests))
        assert len(requests) <= most, kinds(requests)
    assert s3.dataset().count() == 798


def test_one_partition_of_many(s3: S3Place) -> None:
    """Beyond one page of a listing, only the folders of the condition are listed."""
    with ThreadPoolExecutor(8) as pool:
        sink = io.BytesIO()
        pq.write_table(pa.table({"id": [1]}), sink)
        paths = [f"{s3.root}/day={number % 30}/{number}.parquet" for number in range(1020)]
        list(pool.map(lambda path: s3.fs.pipe_file(path, sink.getvalue()), paths))
    requests = asked(s3, lambda dataset: dataset.count("day = 7 AND id = 1", partition_filter="day=7"))
    print(len(requests), kinds(requests))
    assert len(requests) <= 50
    assert of_data(requests)["GET"] <= 36
    assert s3.dataset().count("day = 7") == 34
