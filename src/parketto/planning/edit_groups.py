"""Groups of files that an edit rewrites: small neighbours are packed into one file of the target size."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence

from parketto.arguments import MEGABYTE, Thresholds
from parketto.parquet.clustering_metadata import RECORD
from parketto.parquet.compatible import FILE_SPECIFIC_KEYS
from parketto.parquet.file_info import FileInfo
from parketto.planning.packing import is_small, pack_neighbours
from parketto.planning.rewrite import CellKeys

#: Files that are rewritten together, in the order of their names.
EditGroup = tuple[FileInfo, ...]

_TARGET = Thresholds.of(None, None)  # that of a compaction
# With fewer groups than processes, cores would wait, so groups may be smaller than the target.
_MIN_GROUP_BYTES = 16 * MEGABYTE  # smaller ones would leave small files


def edit_groups(
    files: Sequence[FileInfo],
    edited: Mapping[str, int],
    removed: Collection[str] = (),
    *,
    paths: Iterable[str] | None = None,
    same_codec: bool,
    pack: bool,
    processes: int = 1,
) -> list[EditGroup]:
    """The groups of edited files, in path order. Edited files are neighbours if no file between them stays.

    Args:
        files: The files that were read, with those to rewrite.
        edited: The paths of the files to rewrite, each with the number of rows that are left.
        removed: The paths of the files that are removed as a whole.
        paths: The paths of all files of the dataset, if not all were read.
        same_codec: Whether only files of one codec may share a group, because new files keep it.
        pack: Whether groups may have more than one file.
        processes: How many processes rewrite groups at once: if there are fewer groups, they are smaller.
    """
    if not pack:
        return [(file,) for file in files if file.path in edited]
    # Only the folders of edited files matter: a narrow edit of a large dataset must not sort all of it.
    folders = {posixpath.dirname(path) for path in edited}
    rewritten = {file.path: file for file in files if file.path in edited}
    everything = (file.path for file in files) if paths is None else paths
    stay = [path for path in everything if posixpath.dirname(path) in folders and path not in removed]
    weights = {path: _weight(file, edited[path]) for path, file in rewritten.items()}
    fair = sum(weight for weight in weights.values() if is_small(weight, _TARGET)) // max(1, processes)
    capacity = min(max(fair + 1, _MIN_GROUP_BYTES), _TARGET.capacity)
    keys = CellKeys()
    groups: list[EditGroup] = []
    for run in _runs(sorted(stay, key=posixpath.split), rewritten):
        small: list[FileInfo] = []
        last: object = None
        for file in run:
            weight = weights[file.path]
            cell = (keys(file), file.codec if same_codec else None, _kept_keys(file))
            if small and (cell != last or not is_small(weight, _TARGET)):
                groups += _packed(small, weights, capacity)
                small = []
            if is_small(weight, _TARGET):
                small.append(file)
                last = cell
            else:
                groups.append((file,))
        groups += _packed(small, weights, capacity)
    return groups


def _weight(file: FileInfo, rows: int) -> int:
    """The estimated size of the rows that are left."""
    return file.size_bytes * rows // max(1, file.num_rows)


def _kept_keys(file: FileInfo) -> frozenset[bytes]:
    """The metadata keys that a new file gets from all of its inputs: they must be the same in each."""
    return frozenset(file.metadata or ()) - FILE_SPECIFIC_KEYS - {RECORD}


def _packed(files: Sequence[FileInfo], weights: Mapping[str, int], capacity: int) -> list[EditGroup]:
    found = pack_neighbours([weights[file.path] for file in files], Thresholds(capacity, None))
    return [tuple(files[start:stop]) for start, stop in found]


def _runs(paths: Sequence[str], edited: Mapping[str, FileInfo]) -> list[list[FileInfo]]:
    """Runs of edited files of one directory, between which no file stays."""
    runs: list[list[FileInfo]] = []
    folder: str | None = None
    for path in paths:
        if path not in edited:
            folder = None
            continue
        here = posixpath.dirname(path)
        if here != folder:
            runs.append([])
            folder = here
        runs[-1].append(edited[path])
    return runs
