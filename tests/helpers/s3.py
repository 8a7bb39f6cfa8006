"""An S3 server for tests, and a recorder of the requests to it."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from conftest import Place, is_log
from helpers import oracle
from parketto import AwsStorageOptions, Dataset

#: The address of a running server; without it a moto server is started.
ENDPOINT = "PARKETTO_S3_ENDPOINT"
LOGIN = (os.environ.get("PARKETTO_S3_KEY", "testing"), os.environ.get("PARKETTO_S3_SECRET", "testing"))
_numbers = itertools.count()


def options(endpoint: str, **more: Any) -> AwsStorageOptions:
    # Parts as small as S3 allows, so that a few megabytes are uploaded in several.
    return AwsStorageOptions(
        *LOGIN, endpoint_url=endpoint, region="us-east-1", extra={"default_block_size": 5 * 2**20, **more}
    )


@dataclass(frozen=True)
class Server:
    """An S3 server, and a bucket in it."""

    endpoint: str
    bucket: str

    def filesystem(self, **more: Any) -> Any:
        import s3fs

        return s3fs.S3FileSystem(
            key=LOGIN[0],
            secret=LOGIN[1],
            endpoint_url=self.endpoint,
            client_kwargs={"region_name": "us-east-1"},
            **more,
        )

    def make_bucket(self) -> None:
        self.filesystem().call_s3("create_bucket", Bucket=self.bucket)

    def buckets(self) -> set[str]:
        found = self.filesystem().call_s3("list_buckets")["Buckets"]
        return {bucket["Name"] for bucket in found}


@contextlib.contextmanager
def started_server(folder: Path) -> Iterator[Server]:
    """The server that the environment names, or a moto server in another process."""
    bucket = f"lake-{uuid.uuid4().hex[:8]}"
    if endpoint := os.environ.get(ENDPOINT):
        server = Server(endpoint, bucket)
        server.make_bucket()
        yield server
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "moto.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=sink, stderr=sink
        )
    server = Server(f"http://127.0.0.1:{port}", bucket)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{server.endpoint}/moto-api/", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.1)
        server.make_bucket()
        yield server
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Request:
    """A request as it left this process."""

    method: str
    path: str
    query: str
    ranged: bool

    @property
    def kind(self) -> str:
        """The method, and LIST for listings."""
        return "LIST" if "list-type=2" in self.query else self.method


@contextlib.contextmanager
def recorded(fs: Any) -> Iterator[list[Request]]:
    """All requests that a filesystem sends meanwhile, repeated ones included."""
    found: list[Request] = []

    def note(request: Any, **_: object) -> None:
        url = urlsplit(request.url)
        found.append(Request(request.method, unquote(url.path), url.query, "Range" in request.headers))

    events = fs.s3.meta.events
    events.register("before-send.s3", note)
    try:
        yield found
    finally:
        events.unregister("before-send.s3", note)


def kinds(requests: list[Request]) -> Counter[str]:
    return Counter(request.kind for request in requests)


@dataclass
class S3Place(Place):
    """A dataset in S3, inspected through a filesystem without a cache."""

    server: Any = None

    @classmethod
    def fresh(cls, server: Server) -> S3Place:
        fs = server.filesystem(use_listings_cache=False)
        return cls(f"{server.bucket}/test-{next(_numbers)}/events", fs, server=server)

    def dataset(self, engine: Any = "pyarrow", **more: Any) -> Dataset:
        storage = options(self.server.endpoint)
        return Dataset(f"s3://{self.root}", engine, storage_options=storage, **{"retries": 0, **more})

    def state(self) -> dict[str, str]:
        """Every object of the dataset except its identity markers."""
        found = oracle.file_state(self.root, self.fs)
        return {path: content for path, content in found.items() if not path.startswith("/.parketto-")}

    def marks(self) -> list[str]:
        """The identity markers of the dataset."""
        return [path for path in self.fs.find(self.root) if path.startswith(f"{self.root}/.parketto-")]

    def staged(self) -> list[str]:
        """Staged objects next to the dataset."""
        return [path for path in self.left_behind() if "/tx-" in path]

    def left_behind(self) -> list[str]:
        """Objects next to the dataset other than log records, and unfinished uploads."""
        parent = self.root.rpartition("/")[0]
        beside = [path for path in self.fs.find(parent) if not (path.startswith(f"{self.root}/") or is_log(path))]
        uploads = self.fs.call_s3(
            "list_multipart_uploads", Bucket=self.server.bucket, Prefix=f"{parent.partition('/')[2]}/"
        )
        return beside + [upload["Key"] for upload in uploads.get("Uploads", [])]

    def row_groups(self) -> Counter[tuple[int, str]]:
        """The number of rows and a hash of the bytes of every row group."""
        return Counter(
            group
            for path in oracle.data_files(self.root, self.fs)
            for group in oracle.row_groups(self.fs.cat_file(path))
        )
