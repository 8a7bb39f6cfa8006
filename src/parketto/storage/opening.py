"""From a path or URL to the store that it lives in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from parketto.errors import InvalidArgument
from parketto.storage.local import LocalStore
from parketto.storage.memory import MemoryStore
from parketto.storage.objects import ObjectStore
from parketto.storage.options import AnyStorageOptions, GivenOptions
from parketto.storage.store import Store


def open_store(
    path: str | os.PathLike[str],
    filesystem: AbstractFileSystem | None = None,
    storage_options: GivenOptions = None,
) -> tuple[Store, str]:
    """The store that a path lives in, and the path inside of it."""
    location = os.fspath(path)
    if not location:
        raise InvalidArgument("the dataset path is empty")
    if filesystem is not None and not isinstance(filesystem, AbstractFileSystem):
        raise InvalidArgument(
            f"filesystem must be an fsspec filesystem, not {type(filesystem).__name__}; "
            "see fsspec.filesystem('file'), ('s3'), ('memory'), ..."
        )
    plain: Mapping[str, Any] = {}
    protocol, separator, _ = location.partition("://")
    # A URL of another kind than what was given speaks for itself.
    if filesystem is not None and separator and protocol not in _protocols(filesystem):
        filesystem = None
    if not isinstance(storage_options, AnyStorageOptions):
        plain = storage_options or {}
    elif filesystem is None and (not separator or storage_options.serves(protocol)):
        filesystem = storage_options.filesystem()
    if filesystem is None:
        # Only URLs are taken apart: a local folder may have any name, `a::b` too.
        filesystem, stripped = (
            url_to_fs(location, **plain)
            if "://" in location
            else (LocalFileSystem(), LocalFileSystem._strip_protocol(location))
        )
    else:
        stripped = filesystem._strip_protocol(location)
    store = store_over(filesystem)
    # Two names of one folder must find the same log, hence one form of the path.
    return store, store.normalize(str(stripped))


def shown_path(store: Store, root: str, given: str | os.PathLike[str]) -> str:
    """A dataset's path as people know it: local ones plain, all others as URLs."""
    url, text = store.url(root), os.fspath(given)
    # Of other filesystems than the common ones, only the caller's URL names the host.
    return text.rstrip("/") if url == root and "://" in text and store.local_path(root) is None else url


def _protocols(filesystem: AbstractFileSystem) -> set[str]:
    """The protocols of the URLs that are on a filesystem; a cache has those of what it keeps copies of."""
    own = filesystem.protocol
    return {*([own] if isinstance(own, str) else own), str(getattr(filesystem, "target_protocol", ""))}


def store_over(filesystem: AbstractFileSystem) -> Store:
    """The kind of store that makes the most of a filesystem."""
    if isinstance(filesystem, LocalFileSystem):
        return LocalStore(filesystem)
    if isinstance(filesystem, MemoryFileSystem):
        return MemoryStore(filesystem)
    # By name, because none of these packages need be installed. Caches in front of one are something else.
    packages = {kind.__module__.partition(".")[0] for kind in type(filesystem).__mro__}
    if "s3fs" in packages:
        from parketto.storage.s3 import S3Store

        return S3Store(filesystem)
    return ObjectStore(filesystem) if packages & {"gcsfs", "adlfs"} else Store(filesystem)
