"""What a dataset keeps of the files that its commits have retired."""

from __future__ import annotations

import hashlib
import posixpath
from typing import Any

from parketto.commit.retention import KeptFiles, Manifest


def kept_files(place: Any) -> KeptFiles:
    context = place.dataset()._context
    return KeptFiles(context.store, context.workspace.path)


def sound_manifests(place: Any) -> list[Manifest]:
    """The manifests of all kept files, newest first; each folder must have one, and exactly the files in it."""
    kept = kept_files(place)
    found = list(kept.manifests())
    folder = f"{kept.workspace}/kept"
    assert sorted(kept.store.list_dirs(folder)) == sorted(posixpath.basename(each.folder) for each in found)
    for manifest in found:
        names = kept.store.list_names(f"{kept.workspace}/{manifest.folder}")
        assert sorted(names) == sorted(["manifest.json", *(file.name for file in manifest.files)])
        for file in manifest.files:
            entry = kept.store.stat(f"{kept.workspace}/{manifest.folder}/{file.name}")
            assert entry is not None
            assert entry.size_bytes == file.size_bytes
            if kept.store.is_local_disk:
                assert entry.fingerprint == file.fingerprint, "it was moved, not copied"
    return found


def kept_contents(place: Any, manifest: Manifest) -> dict[str, str]:
    """The kept files of a commit, as `Place.state` describes the files of a dataset."""
    workspace = kept_files(place).workspace
    return {
        f"/{file.path}": hashlib.sha256(
            place.fs.cat_file(f"{workspace}/{manifest.folder}/{file.name}")
        ).hexdigest()
        for file in manifest.files
    }
