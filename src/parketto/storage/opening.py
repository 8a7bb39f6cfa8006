"""Open the store of a path or URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

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

_FILE_URL = "file:///"


def open_store(
    path: str | os.PathLike[str],
    filesystem: AbstractFileSystem | None = None,
    storage_options: GivenOptions = None,
) -> tuple[Store, str]:
    """The store of a path, and the path inside it."""
    location = path_text(path)
    if not location:
        raise InvalidArgument("the dataset path is empty")
    if filesystem is not None and not isinstance(filesystem, AbstractFileSystem):
        raise InvalidArgument(
            f"filesystem must be an fsspec filesystem, not {type(filesystem).__name__}; "
            "see fsspec.filesystem('file'), ('s3'), ('memory'), ..."
        )
    plain: Mapping[str, Any] = {}
    protocol, separator, _ = location.partition("://")
    # A URL with another protocol overrides the given filesystem.
    if filesystem is not None and separator and protocol not in _protocols(filesystem):
        filesystem = None
    if not isinstance(storage_options, AnyStorageOptions):
        plain = storage_options or {}
    elif filesystem is None and (not separator or storage_options.serves(protocol)):
        filesystem = storage_options.filesystem()
    if filesystem is None:
        # Only URLs are parsed: a local folder may have any name, even `a::b`.
        filesystem, stripped = (
            url_to_fs(location, **plain)
            if "://" in location
            else (LocalFileSystem(), LocalFileSystem._strip_protocol(location))
        )
    else:
        stripped = filesystem._strip_protocol(location)
    if location.startswith(_FILE_URL):
        stripped = unquote(stripped)  # as `Path.as_uri` encodes it
    store = store_for(filesystem)
    # Two spellings of one path must find the same log, so paths are normalized.
    return store, store.normalize(str(stripped))


def path_text(path: object) -> str:
    """A path or URL as text.

    >>> path_text(5)
    Traceback (most recent call last):
        ...
    parketto.errors.InvalidArgument: a path must be a string or a pathlib.Path, got 5 (int)
    """
    try:
        text: object = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if isinstance(text, bytes):
        raise InvalidArgument(f"the path {text!r} is bytes: pass text, for example os.fsdecode({text!r})")
    if not isinstance(text, str):
        raise InvalidArgument(f"a path must be a string or a pathlib.Path, got {path!r} ({type(path).__name__})")
    return text.replace("file://localhost/", _FILE_URL, 1) if text.startswith("file://localhost/") else text


def display_path(store: Store, root: str, given: str | os.PathLike[str]) -> str:
    """A dataset's path for display: plain if local, otherwise a URL."""
    url, text = store.url(root), path_text(given)
    # On less common filesystems, only the caller's URL contains the host.
    return text.rstrip("/") if url == root and "://" in text and store.local_path(root) is None else url


def _protocols(filesystem: AbstractFileSystem) -> set[str]:
    """The URL protocols of a filesystem; a cache also has that of the filesystem it caches."""
    own = filesystem.protocol
    return {*([own] if isinstance(own, str) else own), str(getattr(filesystem, "target_protocol", ""))}


def store_for(filesystem: AbstractFileSystem) -> Store:
    """The most capable store for a filesystem."""
    if isinstance(filesystem, LocalFileSystem):
        return LocalStore(filesystem)
    if isinstance(filesystem, MemoryFileSystem):
        return MemoryStore(filesystem)
    # By package name, because none of them has to be installed. Caches in front of one do not match.
    packages = {kind.__module__.partition(".")[0] for kind in type(filesystem).__mro__}
    if "s3fs" in packages:
        from parketto.storage.s3 import S3Store

        return S3Store(filesystem)
    return ObjectStore(filesystem) if packages & {"gcsfs", "adlfs"} else Store(filesystem)
