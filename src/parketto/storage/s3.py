"""S3 as a store: as few requests per call as S3 allows, and none for what a listing already returned."""

from __future__ import annotations

import contextlib
import itertools
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from fsspec.asyn import sync
from s3fs import core

from parketto.storage.objects import ObjectStore
from parketto.storage.s3_errors import access_denied, response_error, translated_errors
from parketto.storage.store import HTTP_PRECONDITION_FAILED, FileEntry, http_status
from parketto.storage.walk import Enter, keeps

_PAGE = 1000  # objects per listing request (S3's limit)
_LISTED_APART = 16  # entered folders up to which each has a listing of its own
_MAX_DELETE_KEYS = 1000  # keys per DeleteObjects request (S3's limit)
_PARALLEL_REQUESTS = 8
_MAX_COPY_BYTES = 5 * 2**30  # per CopyObject request (S3's limit)
_SAFE_COPY_BYTES = 150 * 2**20  # any server finishes a CopyObject of this size before the client times out
_COPY_PART_BYTES = 512 * 2**20
_RANGE_NOT_SATISFIABLE = 416
# Error codes of servers without DeleteObjects.
_NO_BATCH_DELETE = frozenset({"NotImplemented", "MethodNotAllowed", "MissingContentMD5"})


class S3Store(ObjectStore):
    """Objects in S3 and S3-compatible services, through s3fs."""

    def list_files(self, root: str, enter: Enter | None = None) -> Iterator[FileEntry]:
        return self.list_files_after(root, "") if enter is None else self._list_entered(root, "", enter)

    def _list_entered(self, root: str, below: str, enter: Enter) -> Iterator[FileEntry]:
        """The files in entered folders; of a large folder, a few subfolders are listed one by one."""
        folder = f"{root}/{below}".rstrip("/")
        listed = self.list_files_after(folder, "")
        first = list(itertools.islice(listed, _PAGE))
        if len(first) == _PAGE:
            files, names = self._level(folder)
            entered = [name for name in (f"{below}/{name}".lstrip("/") for name in names) if enter(name)]
            if len(entered) <= _LISTED_APART and "" not in names:  # keys may contain "//"
                yield from files
                for name in entered:
                    yield from self._list_entered(root, name, enter)
                return
        for entry in itertools.chain(first, listed):
            if keeps(entry.path[len(root) :].lstrip("/"), enter):
                yield entry

    def _level(self, folder: str) -> tuple[list[FileEntry], list[str]]:
        """The files and the names of the folders directly inside a folder."""
        bucket, prefix = self._folder(folder)
        files, names = list[FileEntry](), list[str]()
        for page in self._pages("list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/"):
            files += [self._listed(f"{bucket}/{found['Key']}", found) for found in page.get("Contents", ())]
            names += [found["Prefix"][len(prefix) : -1] for found in page.get("CommonPrefixes", ())]
        return files, names

    def list_files_after(self, root: str, name: str) -> Iterator[FileEntry]:
        bucket, prefix = self._folder(root)
        after = {"StartAfter": f"{prefix}{name}"} if name else {}
        for page in self._pages("list_objects_v2", Bucket=bucket, Prefix=prefix, **after):
            for found in page.get("Contents", ()):
                yield self._listed(f"{bucket}/{found['Key']}", found)

    def list_dirs(self, path: str) -> list[str]:
        return sorted(name for name, is_dir in self._children(path) if is_dir)

    def list_names(self, path: str) -> list[str]:
        return [name for name, _ in self._children(path)]

    def stat(self, path: str) -> FileEntry | None:
        bucket, key = self._object(path)
        if not key:
            return None
        try:
            found = self._call("head_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            return None
        return self._listed(path, {**found, "Size": found["ContentLength"]})

    def is_dir(self, path: str) -> bool:
        bucket, prefix = self._folder(path)
        return bool(self._call("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1).get("Contents"))

    def read(self, path: str) -> bytes:
        return self._get(path)[1]

    def read_end(self, path: str, length: int) -> tuple[FileEntry, bytes]:
        try:
            answer, content = self._get(path, Range=f"bytes=-{length}")
        except OSError as error:
            if http_status(error) != _RANGE_NOT_SATISFIABLE:
                raise
            return super().read_end(path, length)  # an empty file has no last byte
        size = int(answer.get("ContentRange", "").rpartition("/")[2] or answer["ContentLength"])
        return self._listed(path, {**answer, "Size": size}), content

    def read_range(self, path: str, start: int, end: int, fingerprint: str = "") -> bytes:
        if end <= start:
            return b""
        condition = {"IfMatch": etag} if (etag := _etag(fingerprint)) else {}
        try:
            return self._get(path, Range=f"bytes={start}-{end - 1}", **condition)[1]
        except OSError as error:
            if http_status(error) != HTTP_PRECONDITION_FAILED:
                raise
            raise FileNotFoundError(f"{self.url(path)} was replaced by another file") from error

    def open_output(self, path: str) -> IO[bytes]:
        with translated_errors(path):
            return _Upload(self.fs.open(path, "wb"), path)  # type: ignore[return-value]

    def write(self, path: str, content: bytes) -> None:
        with translated_errors(path):
            super().write(path, content)

    def _put_new(self, path: str, content: bytes) -> None:
        with translated_errors(path):
            super()._put_new(path, content)

    def copy(self, source: str, destination: str, size_bytes: int | None = None, fingerprint: str = "") -> None:
        etag = _etag(fingerprint)
        request = {"CopySource": self._source(source), **({"CopySourceIfMatch": etag} if etag else {})}
        try:
            self._copy(source, destination, size_bytes, request)
        except OSError as error:
            if http_status(error) != HTTP_PRECONDITION_FAILED:
                raise
            raise FileNotFoundError(f"{self.url(source)} was replaced by another file") from error

    def _copy(self, source: str, destination: str, size_bytes: int | None, request: Mapping[str, Any]) -> None:
        if size_bytes is None or size_bytes <= _MAX_COPY_BYTES:
            bucket, key = self._object(destination)
            try:
                self._call("copy_object", Bucket=bucket, Key=key, **request)
            except (FileNotFoundError, PermissionError):
                raise
            except OSError as error:
                known = size_bytes is not None and size_bytes <= _SAFE_COPY_BYTES
                if known or http_status(error) == HTTP_PRECONDITION_FAILED:
                    raise
            else:
                return
        if size_bytes is None:
            entry = self.stat(source)
            if entry is None:
                raise FileNotFoundError(source)
            size_bytes = entry.size_bytes
        self._copy_in_parts(destination, size_bytes, request)

    def _copy_in_parts(self, destination: str, size_bytes: int, request: Mapping[str, Any]) -> None:
        bucket, key = self._object(destination)
        upload = self._call("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"]

        def copy(number: int) -> dict[str, Any]:
            start = (number - 1) * _COPY_PART_BYTES
            part = self._call(
                "upload_part_copy",
                Bucket=bucket,
                Key=key,
                UploadId=upload,
                PartNumber=number,
                CopySourceRange=f"bytes={start}-{min(start + _COPY_PART_BYTES, size_bytes) - 1}",
                **request,
            )
            return {"PartNumber": number, "ETag": part["CopyPartResult"]["ETag"]}

        try:
            with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="parketto-copy") as pool:
                parts = list(pool.map(copy, range(1, -(-size_bytes // _COPY_PART_BYTES) + 1)))
            self._call(
                "complete_multipart_upload",
                Bucket=bucket,
                Key=key,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
            )
        except BaseException:
            with contextlib.suppress(OSError):
                self._abort(bucket, key, upload)
            raise

    def remove(self, path: str) -> None:
        bucket, key = self._object(path)
        self._call("delete_object", Bucket=bucket, Key=key)

    def remove_many(self, paths: Iterable[str]) -> None:
        by_bucket: defaultdict[str, list[str]] = defaultdict(list)
        for bucket, key in map(self._object, paths):
            by_bucket[bucket].append(key)
        chunks = [
            (bucket, keys[start : start + _MAX_DELETE_KEYS])
            for bucket, keys in by_bucket.items()
            for start in range(0, len(keys), _MAX_DELETE_KEYS)
        ]
        if len(chunks) == 1:
            self._remove_chunk(*chunks[0])
        elif chunks:
            with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="parketto-remove") as pool:
                list(pool.map(lambda chunk: self._remove_chunk(*chunk), chunks))

    def _remove_chunk(self, bucket: str, keys: list[str]) -> None:
        if len(keys) == 1:
            self.remove(f"{bucket}/{keys[0]}")
            return
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            answer = self._call("delete_objects", Bucket=bucket, Delete=wanted)
        except OSError as error:
            if response_error(error).get("Code") not in _NO_BATCH_DELETE:
                raise
            super().remove_many(f"{bucket}/{key}" for key in keys)
            return
        failed = [found for found in answer.get("Errors", ()) if found.get("Code") != "NoSuchKey"]
        if failed:
            url, message = self.url(f"{bucket}/{failed[0].get('Key')}"), failed[0].get("Message")
            if failed[0].get("Code") == "AccessDenied":
                raise access_denied(url, message, "DeleteObjects")
            raise OSError(f"S3 did not remove {len(failed)} of {len(keys)} objects, such as {url!r}: {message}")

    def abort_uploads(self, folder: str, older_than: float, spare: Iterable[str] = ()) -> int:
        bucket, prefix = self._folder(folder)
        spared = tuple(self._folder(path)[1] for path in spare)
        aborted = 0
        for page in self._pages("list_multipart_uploads", Bucket=bucket, Prefix=prefix):
            for upload in page.get("Uploads", ()):
                if upload["Initiated"].timestamp() < older_than and not upload["Key"].startswith(spared):
                    aborted += self._abort(bucket, upload["Key"], upload["UploadId"])
        return aborted

    def abort_copies(self, destinations: Mapping[str, int]) -> None:
        # A smaller copy is a single request, which either finds its source or fails.
        large = [self._object(path) for path, size_bytes in destinations.items() if size_bytes > _SAFE_COPY_BYTES]
        for bucket in {bucket for bucket, _ in large}:
            keys = {key for each, key in large if each == bucket}
            for page in self._pages("list_multipart_uploads", Bucket=bucket, Prefix=posixpath.commonpath([*keys])):
                for upload in page.get("Uploads", ()):
                    if upload["Key"] in keys:
                        self._abort(bucket, upload["Key"], upload["UploadId"])

    def _abort(self, bucket: str, key: str, upload: str) -> bool:
        try:
            self._call("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload)
        except FileNotFoundError:  # finished or aborted meanwhile
            return False
        return True

    def _children(self, path: str) -> Iterator[tuple[str, bool]]:
        """The names directly below a folder, and whether each is a folder."""
        bucket, prefix = self._folder(path)
        for page in self._pages("list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/"):
            for folder in page.get("CommonPrefixes", ()):
                yield folder["Prefix"][len(prefix) : -1], True
            for found in page.get("Contents", ()):
                if name := found["Key"][len(prefix) :]:  # empty for the folder's own marker object
                    yield name, False

    def _pages(self, method: str, **request: Any) -> Iterator[Mapping[str, Any]]:
        for number in itertools.count():
            page = self._call(method, **request)
            yield page
            if not page.get("IsTruncated"):
                return
            assert number < 1_000_000, "listing does not end"
            if method == "list_objects_v2":
                request["ContinuationToken"] = page["NextContinuationToken"]
            else:
                request |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _listed(self, path: str, found: Mapping[str, Any]) -> FileEntry:
        return self._entry(path, {**found, "size": found["Size"]})

    def _call(self, method: str, **request: Any) -> Any:
        """The response to one request."""
        with translated_errors(f"{request['Bucket']}/{request.get('Key', request.get('Prefix', ''))}"):
            return self.fs.call_s3(method, **request)

    def _get(self, path: str, **more: str) -> tuple[Mapping[str, Any], bytes]:
        """S3's response for an object, and its bytes."""
        bucket, key = self._object(path)
        with translated_errors(path):
            answer, content = sync(self.fs.loop, _fetch, self.fs, {"Bucket": bucket, "Key": key, **more})
        return answer, content

    def _object(self, path: str) -> tuple[str, str]:
        bucket, key, _ = self.fs.split_path(path)
        return bucket, key

    def _folder(self, path: str) -> tuple[str, str]:
        """The bucket of a folder, and the key prefix of the objects in it."""
        bucket, key = self._object(path.rstrip("/"))
        return bucket, f"{key}/" if key else ""

    def _source(self, path: str) -> dict[str, str]:
        bucket, key = self._object(path)
        return {"Bucket": bucket, "Key": key}


def _etag(fingerprint: str) -> str:
    """The entity tag in a fingerprint; empty if there is none."""
    tag = fingerprint.partition(":")[2]
    return tag if tag.startswith('"') else ""


async def _fetch(fs: Any, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
    """Get an object or a range of it; retried if the connection breaks during the read."""
    for attempt in range(1, fs.retries + 1):
        answer = await fs._call_s3("get_object", **request)
        try:
            content = bytes(await answer["Body"].read())
        except core.S3_RETRYABLE_ERRORS:
            if attempt == fs.retries:
                raise
        else:
            return answer, content
        finally:
            answer["Body"].close()
    raise AssertionError("unreachable")


class _Upload:
    """A file that is being written to S3, with errors that explain what is wrong."""

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        with translated_errors(self._path):
            return int(self._file.write(data))

    def close(self) -> None:
        with translated_errors(self._path):
            self._file.close()

    def __enter__(self) -> _Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
