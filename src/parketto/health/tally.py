"""What the files of a dataset add up to, one footer after another, in bounded memory."""

from __future__ import annotations

import heapq
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from parketto.arguments import Thresholds
from parketto.errors import UnreadableFile
from parketto.health.distribution import Distribution
from parketto.health.results import (
    ClusteringShare,
    CodecShare,
    DamagedFile,
    PartitionHealth,
    PartitionSize,
    RowGroupHealth,
)
from parketto.parquet.clustering_metadata import Clustering
from parketto.parquet.dataset_schema import layout_key
from parketto.parquet.file_info import FileInfo
from parketto.planning.clustering import row_group_rows
from parketto.planning.copy_policy import is_worth_copying
from parketto.planning.packing import pack
from parketto.storage.listing import relative

SMALL = 0.75  # of the target size: compaction merges files below it
_LARGE = 1.8  # of the target size
_LARGE_ROW_GROUP_BYTES = 1024**3  # before compression; a reader needs a multiple of its columns in memory
SHOWN_PATHS = 20
_LARGEST_PARTITIONS, _MOST_SMALL_FILES = 30, 10
_MAX_SAMPLED_ROW_GROUPS = 20_000  # whose bounds are compared; with fewer than all of them, reads are estimates
_MAX_LAYOUTS = 1000  # schemas that are compared with the dataset's; further ones count as different
_MAX_KNOWN = 4096  # schema objects whose layout is remembered


class _Sized(NamedTuple):
    size_bytes: int
    num_rows: int


@dataclass(slots=True)
class Folder:
    """The sizes and row counts of the files in one folder that may be merged with each other."""

    sizes: array[int] = field(default_factory=lambda: array("q"))
    rows: array[int] = field(default_factory=lambda: array("q"))

    def outputs(self, thresholds: Thresholds) -> int:
        """The number of files that a compaction would leave."""
        if len(self.sizes) < 2:
            return len(self.sizes)
        bins = pack(list(map(_Sized, self.sizes, self.rows)), thresholds)
        return len(self.sizes) + sum(each.outputs - len(each.items) for each in bins)


@dataclass(slots=True)
class Layout:
    """A schema, and how many files have it."""

    schema: pa.Schema
    files: int = 0


class Sample:
    """An evenly distributed sample of files, chosen by their names, with a limited number of row groups."""

    def __init__(self, limit: int = _MAX_SAMPLED_ROW_GROUPS) -> None:
        self.files: list[FileInfo] = []
        self._limit, self._row_groups, self._bits = limit, 0, 0

    @property
    def share(self) -> float:
        """The share of files that are in it."""
        return 1 / (1 << self._bits)

    def add(self, file: FileInfo) -> None:
        """Add a file, unless the sample is large enough without it."""
        if not self._chosen(file):
            return
        self.files.append(file)
        self._row_groups += len(file.row_groups)
        while self._row_groups > self._limit and len(self.files) > 1:
            self._bits += 1
            self.files = [each for each in self.files if self._chosen(each)] or self.files[:1]
            self._row_groups = sum(len(each.row_groups) for each in self.files)

    def _chosen(self, file: FileInfo) -> bool:
        return not zlib.crc32(file.path.encode(errors="surrogateescape")) & ((1 << self._bits) - 1)


class Tally:
    """Counts and sizes of the files of a dataset.

    Args:
        root: The dataset.
        thresholds: The target size.
    """

    def __init__(self, root: str, thresholds: Thresholds) -> None:
        assert thresholds.target_bytes is not None, "there is a target size"
        self._root, self._thresholds, self.target_bytes = root, thresholds, thresholds.target_bytes
        self.files = self.rows = self.bytes = 0
        self.small = self.small_bytes = self.large = self.empty = 0
        self.sizes, self._group_rows, self._group_sizes = Distribution(), Distribution(), Distribution()
        self.row_groups = self._small_row_groups = self._large_row_groups = 0
        self.damaged: list[DamagedFile] = []
        self.damaged_count = 0
        self.layouts: dict[object, Layout] = {}
        self.other_layouts = 0
        self.sample = Sample()
        self._known: dict[tuple[int, int], tuple[FileInfo, Layout]] = {}
        self._codecs: Counter[str] = Counter()
        self._codec_bytes: Counter[str] = Counter()
        self._clusterings: Counter[Clustering] = Counter()
        self._cells: defaultdict[tuple[str, Clustering | None], Folder] = defaultdict(Folder)

    def add_all(self, found: Iterable[FileInfo | UnreadableFile]) -> None:
        """Add files, or why they cannot be read."""
        for each in found:
            if isinstance(each, UnreadableFile):
                self.damaged_count += 1
                if len(self.damaged) < SHOWN_PATHS:
                    self.damaged.append(DamagedFile(path=relative(each.path, self._root), reason=each.reason))
            else:
                self.add(each)

    def add(self, file: FileInfo) -> None:
        """Add a file."""
        size = file.size_bytes
        self.files += 1
        self.rows += file.num_rows
        self.bytes += size
        self.sizes.add(size)
        self.empty += not file.num_rows
        if self._is_small(size):
            self.small += 1
            self.small_bytes += size
        self.large += size > _LARGE * self.target_bytes
        clustering = file.clustering
        if clustering is not None:
            self._clusterings[clustering] += 1
        cell = self._cells[relative(file.directory, self._root), clustering]
        cell.sizes.append(size)
        cell.rows.append(file.num_rows)
        self._add_row_groups(file, clustering)
        self._add_layout(file)
        self.sample.add(file)

    def _is_small(self, size: int) -> bool:
        return size < SMALL * self.target_bytes

    def _add_row_groups(self, file: FileInfo, clustering: Clustering | None) -> None:
        columns = len(file.traits.leaves)
        small = []
        for group in file.row_groups:
            self.row_groups += 1
            self._group_rows.add(group.num_rows)
            self._group_sizes.add(group.total_byte_size)
            self._codecs[group.codec or "none"] += 1
            self._codec_bytes[group.codec or "none"] += group.total_byte_size
            self._large_row_groups += group.total_byte_size > _LARGE_ROW_GROUP_BYTES
            small.append(not is_worth_copying(group, columns))
        # Clustered files have small row groups on purpose. Elsewhere, neighbours would be merged.
        if clustering is None:
            pairs = [one and other for one, other in pairwise(small)]
            self._small_row_groups += sum(map(max, zip([False, *pairs], [*pairs, False], strict=True)))

    def _add_layout(self, file: FileInfo) -> None:
        key = (id(file.schema), id(file.traits))
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            name = layout_key(file)
            if name not in self.layouts and len(self.layouts) >= _MAX_LAYOUTS:
                self.other_layouts += 1
                return
            # The entry keeps the file, so that no other object gets the same id.
            self._known[key] = (file, self.layouts.setdefault(name, Layout(file.schema)))
        self._known[key][1].files += 1

    @property
    def after_compaction(self) -> int:
        """The number of files that a compaction would leave."""
        return sum(cell.outputs(self._thresholds) for cell in self._cells.values())

    @property
    def clusterings(self) -> list[ClusteringShare]:
        """By which columns files are clustered, the most used first."""
        return [
            ClusteringShare(columns=list(each.columns), curve=each.curve, files=files)
            for each, files in self._clusterings.most_common()
        ]

    @property
    def codecs(self) -> list[CodecShare]:
        """The codecs, the most used first."""
        return [
            CodecShare(codec=codec, row_groups=self._codecs[codec], bytes=size)
            for codec, size in self._codec_bytes.most_common()
        ]

    def row_group_health(self) -> RowGroupHealth:
        """The row groups."""
        return RowGroupHealth(
            count=self.row_groups,
            rows=self._group_rows.summary(),
            sizes=self._group_sizes.summary(),
            small=self._small_row_groups,
            large=self._large_row_groups,
        )

    def partition_health(self, columns: list[str]) -> PartitionHealth:
        """The partitions."""
        folders = self._partitions()
        sizes = [each["bytes"] for each in folders.values()]
        median = float(np.median(sizes)) if sizes else 0.0
        return PartitionHealth(
            columns=columns,
            count=len(folders),
            median_bytes=median,
            skew=max(sizes, default=0) / max(1.0, median),
            small=sum(self._is_small(size) for size in sizes) if len(sizes) > 1 else 0,
            largest=heapq.nlargest(_LARGEST_PARTITIONS, folders.values(), key=lambda each: each["bytes"]),
            most_small_files=[
                each
                for each in heapq.nlargest(
                    _MOST_SMALL_FILES, folders.values(), key=lambda each: each["small_files"]
                )
                if each["small_files"] > 1
            ],
        )

    def _partitions(self) -> Mapping[str, PartitionSize]:
        found: dict[str, PartitionSize] = {}
        for (folder, _), cell in self._cells.items():
            each = found.setdefault(folder, PartitionSize(folder=folder, files=0, rows=0, bytes=0, small_files=0))
            each["files"] += len(cell.sizes)
            each["rows"] += sum(cell.rows)
            each["bytes"] += sum(cell.sizes)
            each["small_files"] += sum(map(self._is_small, cell.sizes))
        return found

    def sorted_row_groups(self) -> Iterator[int]:
        """For each partition, the number of row groups that `optimize` would write."""
        for each in self._partitions().values():
            rows = each["rows"]
            if rows:
                yield -(-rows // (row_group_rows(rows, each["bytes"], rows, self.target_bytes)))
