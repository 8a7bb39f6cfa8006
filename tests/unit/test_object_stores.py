"""How the S3 store handles responses, tested without a server."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import fsspec
import pytest

from parketto import AccessDenied, AuthenticationFailed, Dataset, InvalidArgument
from parketto.storage import objects
from parketto.storage.opening import store_for
from parketto.storage.store import Store

s3fs = pytest.importorskip("s3fs")

from botocore.exceptions import ClientError  # noqa: E402 - comes with s3fs
from s3fs.errors import translate_boto_error  # noqa: E402

from parketto.storage.s3 import S3Store  # noqa: E402

Answer = Callable[..., Any]
_numbers = itertools.count()


class Scripted:
    """A filesystem whose requests are answered by a function, and recorded."""

    def __init__(self, answer: Answer) -> None:
        # Each has its own options, and so its own cache key: results for one server do not apply to another.
        endpoint = f"http://127.0.0.1:1/{next(_numbers)}"
        self.fs = s3fs.S3FileSystem(key="k", secret="s", endpoint_url=endpoint, skip_instance_cache=True)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answer = answer
        self.fs.call_s3 = self.call
        self.fs._call_s3 = self.call_later

    def call(self, method: str, *more: dict[str, Any], **request: Any) -> Any:
        for each in more:
            request |= each
        self.calls.append((method, request))
        return self._answer(method, request)

    async def call_later(self, method: str, *more: dict[str, Any], **request: Any) -> Any:
        return self.call(method, *more, **request)

    @property
    def store(self) -> S3Store:
        return S3Store(self.fs)

    def counted(self) -> Counter[str]:
        return Counter(method for method, _ in self.calls)


def refusal(status: int, code: str, **more: str) -> Exception:
    said = {"Error": {"Code": code, "Message": "no", **more}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error: Exception = translate_boto_error(ClientError(said, "PutObject"))
    return error


def one_after_the_other(*answers: Any) -> Answer:
    """Return or raise the answers in turn, and repeat the last one."""
    waiting = iter(itertools.chain(answers, itertools.repeat(answers[-1])))

    def answer(method: str, request: dict[str, Any]) -> Any:
        found = next(waiting)
        if isinstance(found, Exception):
            raise found
        return found

    return answer


TAKEN = refusal(412, "PreconditionFailed")
NAMED = refusal(412, "PreconditionFailed", Condition="If-None-Match")
RACED = refusal(409, "ConditionalRequestConflict")


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(objects.time, "sleep", found.append)
    return found


@pytest.mark.parametrize("answer", [TAKEN, NAMED], ids=["unnamed", "named"])
def test_create_fails_if_the_object_exists(answer: Exception, pauses: list[float]) -> None:
    s3 = Scripted(one_after_the_other(answer))
    with pytest.raises(FileExistsError):
        s3.store.create("lake/log/1.json", b"mine")
    ((method, request),) = s3.calls
    assert (method, request["IfNoneMatch"], pauses) == ("put_object", "*", [])


def test_conflicting_conditional_puts_are_retried(pauses: list[float]) -> None:
    s3 = Scripted(one_after_the_other(RACED, RACED, {"ETag": "1"}))
    s3.store.create("lake/log/1.json", b"mine")
    assert s3.counted() == {"put_object": 3}
    assert len(pauses) == 2
    assert all(pause > 0 for pause in pauses)


def test_create_fails_if_another_writer_won_the_conflict() -> None:
    with pytest.raises(FileExistsError):
        Scripted(one_after_the_other(RACED, TAKEN)).store.create("lake/log/1.json", b"mine")


def test_repeated_conflicts_do_not_raise_file_exists() -> None:
    s3 = Scripted(one_after_the_other(RACED))
    with pytest.raises(OSError, match="ConditionalRequestConflict") as caught:
        s3.store.create("lake/log/1.json", b"mine")
    assert not isinstance(caught.value, FileExistsError)
    assert 3 <= len(s3.calls) <= 10


def test_exclusive_creation_of_empty_objects_is_refused() -> None:
    s3 = Scripted(one_after_the_other({}))
    with pytest.raises(ValueError, match="must not be empty"):
        s3.store.create("lake/log/1.json", b"")
    assert s3.calls == []


def test_servers_that_ignore_if_none_match_are_detected() -> None:
    s3 = Scripted(one_after_the_other({"ETag": "1"}))
    assert not s3.store.creates_exclusively("lake/a/.events.parketto")
    assert s3.counted() == {"put_object": 2, "delete_object": 1}
    assert not s3.store.creates_exclusively("lake/b/.events.parketto"), "once per bucket"
    assert len(s3.calls) == 3
    assert not s3.store.creates_exclusively("pond/b/.events.parketto")
    assert len(s3.calls) == 6


def test_servers_that_honour_if_none_match_are_detected() -> None:
    s3 = Scripted(one_after_the_other({"ETag": "1"}, TAKEN, {}))
    assert s3.store.creates_exclusively("lake/a/.events.parketto")
    assert s3.counted() == {"put_object": 2, "delete_object": 1}
    (_, first), _, (_, removed) = s3.calls
    assert removed == {"Bucket": "lake", "Key": first["Key"]}
    assert first["Key"].startswith("a/.events.parketto/tx-")


def test_if_none_match_support_is_detected_after_a_lost_response() -> None:
    """The retried request finds the object that the first one created."""
    s3 = Scripted(one_after_the_other(TAKEN, {}))
    assert s3.store.creates_exclusively("lake/a/.events.parketto")
    assert s3.counted() == {"put_object": 1, "delete_object": 1}


def test_detection_of_if_none_match_is_repeated_after_access_was_denied() -> None:
    s3 = Scripted(one_after_the_other(refusal(403, "AccessDenied"), {}, {"ETag": "1"}, TAKEN, {}))
    assert s3.store.creates_exclusively("lake/a/.events.parketto")
    assert s3.store.creates_exclusively("lake/a/.events.parketto")
    assert s3.counted()["put_object"] == 3, "an unknown result is not cached"


def test_many_objects_are_deleted_in_batches() -> None:
    s3 = Scripted(one_after_the_other({}))
    s3.store.remove_many(f"lake/data/{number}" for number in range(2500))
    assert s3.counted() == {"delete_objects": 3}
    keys = [each["Key"] for _, request in s3.calls for each in request["Delete"]["Objects"]]
    assert sorted(keys) == sorted(f"data/{number}" for number in range(2500))
    s3.store.remove_many([])
    assert len(s3.calls) == 3


def test_failed_deletions_are_errors_unless_the_object_is_gone() -> None:
    said = {"Errors": [{"Key": "data/1", "Code": "AccessDenied", "Message": "Access Denied"}]}
    with pytest.raises(PermissionError, match="data/1"):
        Scripted(one_after_the_other(said)).store.remove_many(["lake/data/1", "lake/data/2"])
    gone = {"Errors": [{"Key": "data/1", "Code": "NoSuchKey", "Message": "gone"}]}
    Scripted(one_after_the_other(gone)).store.remove_many(["lake/data/1", "lake/data/2"])


def test_deletion_falls_back_to_single_requests() -> None:
    s3 = Scripted(one_after_the_other(refusal(501, "NotImplemented"), {}))
    s3.store.remove_many(["lake/data/1", "lake/data/2"])
    assert s3.counted() == {"delete_objects": 1, "delete_object": 2}


GIB = 2**30


@pytest.mark.parametrize("size", [1, GIB, 5 * GIB, None])
def test_copies_up_to_5_gib_are_one_request(size: int | None) -> None:
    s3 = Scripted(one_after_the_other({}))
    s3.store.copy("lake/a", "pond/b", size)
    source = {"Bucket": "lake", "Key": "a"}
    assert s3.calls == [("copy_object", {"Bucket": "pond", "Key": "b", "CopySource": source})]


def in_parts(method: str, request: dict[str, Any]) -> Any:
    if method == "copy_object":
        raise refusal(400, "InvalidRequest")
    etag = str(request.get("PartNumber"))
    return {"UploadId": "u", "CopyPartResult": {"ETag": etag}, "ContentLength": 2 * GIB, "ETag": "e"}


@pytest.mark.parametrize(("size", "heads"), [(6 * GIB + 1, 0), (2 * GIB, 0), (None, 1)])
def test_large_copies_are_made_in_parts(size: int | None, heads: int) -> None:
    s3 = Scripted(in_parts)
    s3.store.copy("lake/a", "lake/b", size)
    count, size = s3.counted(), size or 2 * GIB
    assert count["head_object"] == heads
    assert count["copy_object"] == (size <= 5 * GIB)
    parts = sorted(
        tuple(map(int, request["CopySourceRange"].removeprefix("bytes=").split("-")))
        for method, request in s3.calls
        if method == "upload_part_copy"
    )
    ends = [end + 1 for _, end in parts]
    assert [start for start, _ in parts] == [0, *ends[:-1]]
    assert ends[-1] == size
    method, request = s3.calls[-1]
    assert method == "complete_multipart_upload"
    named = [(part["PartNumber"], part["ETag"]) for part in request["MultipartUpload"]["Parts"]]
    assert named == [(number, str(number)) for number in range(1, len(parts) + 1)]


def test_failed_copy_aborts_its_multipart_upload() -> None:
    def answer(method: str, request: dict[str, Any]) -> Any:
        if method == "upload_part_copy":
            raise refusal(500, "InternalError")
        return in_parts(method, request)

    s3 = Scripted(answer)
    with pytest.raises(OSError, match="no"):
        s3.store.copy("lake/a", "lake/b", 6 * GIB)
    assert s3.calls[-1][0] == "abort_multipart_upload"
    small = Scripted(in_parts)
    with pytest.raises(OSError, match="no"):
        small.store.copy("lake/a", "lake/b", 1000)
    assert small.counted() == {"copy_object": 1}


def test_only_old_uploads_are_aborted() -> None:
    noon = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
    pages = [
        {
            "Uploads": [
                {"Key": "a/new/1", "UploadId": "1", "Initiated": noon - dt.timedelta(hours=2)},
                {"Key": "a/new/2", "UploadId": "2", "Initiated": noon},
            ],
            "IsTruncated": True,
            "NextKeyMarker": "a/new/2",
            "NextUploadIdMarker": "2",
        },
        {"Uploads": [{"Key": "a/new/3", "UploadId": "3", "Initiated": noon - dt.timedelta(hours=3)}]},
    ]

    def answer(method: str, request: dict[str, Any]) -> Any:
        if method == "list_multipart_uploads":
            assert request["Prefix"] == "a/"
            return pages["KeyMarker" in request]
        if request["UploadId"] == "3":
            raise refusal(404, "NoSuchUpload")
        return {}

    s3 = Scripted(answer)
    assert s3.store.abort_uploads("lake/a", (noon - dt.timedelta(hours=1)).timestamp()) == 1
    asked = [request["UploadId"] for method, request in s3.calls if method == "abort_multipart_upload"]
    assert asked == ["1", "3"]


def test_folders_need_no_requests() -> None:
    s3 = Scripted(one_after_the_other({}))
    store = s3.store
    store.make_dirs("nowhere/a/b")
    store.make_private_dirs("nowhere/a/b", like="nowhere/a")
    store.remove_empty_dir("nowhere/a/b")
    store.remove_empty_dir("nowhere")
    assert s3.calls == []


def denied_always(method: str, request: dict[str, Any]) -> Any:
    said = {"Error": {"Code": "AccessDenied", "Message": "Access Denied"}, "ResponseMetadata": {}}
    raise translate_boto_error(ClientError(said, method))


@pytest.mark.parametrize(
    "action",
    [
        lambda store: list(store.list_files("lake/x")),
        lambda store: store.is_dir("lake/x"),
        lambda store: store.stat("lake/x"),
        lambda store: store.read("lake/x"),
        lambda store: store.read_range("lake/x", 0, 10),
        lambda store: store.read_end("lake/x", 10),
        lambda store: store.write("lake/x", b"1"),
        lambda store: store.create("lake/x", b"1"),
        lambda store: store.copy("lake/y", "lake/x"),
        lambda store: store.remove("lake/x"),
        lambda store: store.remove_many(["lake/x", "lake/xy"]),
    ],
)
def test_denied_requests_raise_access_denied(action: Callable[[S3Store], Any]) -> None:
    s3 = Scripted(denied_always)
    with pytest.raises(AccessDenied, match="access denied: the credentials in use do not allow") as caught:
        action(s3.store)
    assert isinstance(caught.value, PermissionError)
    assert "s3://lake/" in str(caught.value)
    assert len(s3.calls) == 1


def test_denied_uploads_raise_access_denied() -> None:
    s3 = Scripted(denied_always)
    with (
        pytest.raises(AccessDenied, match="do not allow put_object on 's3://lake/x'"),
        s3.store.open_output("lake/x") as file,
    ):
        file.write(b"1")


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
def test_rejected_credentials_raise_authentication_failed(code: str) -> None:
    s3 = Scripted(one_after_the_other(refusal(403, code)))
    with pytest.raises(AuthenticationFailed, match=code):
        Dataset("s3://lake/events", "pyarrow", filesystem=s3.fs).read()


def test_invalid_bucket_names_are_refused() -> None:
    fs = s3fs.S3FileSystem(key="k", secret="s", endpoint_url="http://127.0.0.1:1", skip_instance_cache=True)
    with pytest.raises(InvalidArgument, match="Invalid bucket name"):
        Dataset("s3://no bucket!/events", "pyarrow", filesystem=fs).read()


def test_wrapped_filesystems_are_not_treated_as_object_stores() -> None:
    s3 = Scripted(one_after_the_other({}))
    assert type(store_for(s3.fs)) is S3Store
    assert type(store_for(fsspec.filesystem("dir", path="/lake", fs=s3.fs))) is Store
    cached = fsspec.filesystem("simplecache", fs=s3.fs)
    assert type(store_for(cached)) is Store
    assert not store_for(cached).creates_exclusively("lake")


def test_keys_with_empty_names_are_listed_and_filtered() -> None:
    """A folder without a name cannot be listed on its own: its path is that of its parent."""
    keys = [f"t//day=1/{n:04}.parquet" for n in range(1200)] + ["t/day=2/a.parquet"]

    def answer(_: str, request: dict[str, Any]) -> Any:
        if "Delimiter" in request:
            return {"CommonPrefixes": [{"Prefix": "t//"}, {"Prefix": "t/day=2/"}]}
        start = int(request.get("ContinuationToken", 0))
        found = [{"Key": key, "Size": 1, "ETag": '"e"'} for key in keys[start : start + 1000]]
        more = start + 1000 < len(keys)
        return {"Contents": found, "IsTruncated": more, "NextContinuationToken": str(start + 1000)}

    s3 = Scripted(answer)
    listed = [entry.path for entry in s3.store.list_files("lake/t", lambda folder: folder != "day=2")]
    assert listed == [f"lake/{key}" for key in keys[:1200]]
    assert len(s3.calls) == 3
