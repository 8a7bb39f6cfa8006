"""Listing caches of filesystems, which Parketto does not use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def disable_listing_cache(fs: AbstractFileSystem) -> None:
    """Disable a filesystem's listing cache: cached listings hide what other writers change.

    This affects every user of the filesystem: the cache would miss changes by engines and other processes, too.
    """
    from fsspec import AbstractFileSystem
    from fsspec.dircache import DirCache

    cache, inner = getattr(fs, "dircache", None), getattr(fs, "fs", None)
    if isinstance(cache, DirCache) and cache.use_listings_cache:
        cache.use_listings_cache = False
        cache.clear()
    if isinstance(inner, AbstractFileSystem):  # a wrapper around another one, such as a cache
        disable_listing_cache(inner)
