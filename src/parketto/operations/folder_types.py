"""The types of partition columns that only paths contain, inferred from the folders of all data files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from parketto.commit.committing import data_files
from parketto.commit.settled import Listing
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import path_types
from parketto.storage.hive import PartitionValues, is_data_path, partition_values
from parketto.storage.listing import directory_of, relative
from parketto.storage.store import FileEntry, Store


def partitions_of(everything: Sequence[FileEntry], root: str) -> set[PartitionValues]:
    """The partitions of all data files."""
    folders = {directory_of(entry, root) for entry in data_files(everything, root)}
    return {partition_values(folder) for folder in folders}


def partitions_without_rows(rows: Iterable[tuple[PartitionValues, int]]) -> Set[PartitionValues]:
    """The partitions of files, given with their numbers of rows, that have none."""
    known = set(rows)
    return {partition for partition, _ in known} - {partition for partition, count in known if count}


@dataclass(frozen=True)
class FolderTypes:
    """Infers the types from a listing, which may have left out folders.

    Attributes:
        store: Where the dataset is.
        root: Its path.
        listing: The listing.
        sample: Some files of the dataset. Their depth is known, even if nothing is listed.
    """

    store: Store
    root: str
    listing: Listing
    sample: Sequence[FileInfo] = ()

    def without(self, empty: Set[PartitionValues]) -> Mapping[str, pa.DataType]:
        """The types, without regard to partitions that have no rows, if others have any."""
        listed = partitions_of(self.listing.everything, self.root)
        seen = {partition_values(each) for folders in self.listing.seen.values() for each in folders}
        here = (listed - empty) | seen or listed
        types = path_types(here)
        depth = max((len(values) for values in (*here, *(file.partition for file in self.sample))), default=0)
        unseen = [folder for folder in self.listing.left_out if folder not in self.listing.seen]
        if not unseen or _are_texts(here, depth):
            return types
        others: dict[PartitionValues, list[str]] = {}
        for folder in self._folders_at(unseen, depth):
            others.setdefault(partition_values(folder), []).append(folder)
        if path_types([*here, *others]) == types:
            return types
        # Folders without data do not count.
        return path_types(
            [*here, *(values for values, folders in others.items() if any(map(self._has_data, folders)))]
        )

    def _folders_at(self, folders: Sequence[str], depth: int) -> Iterator[str]:
        """Folders, or those below them that have as many partition columns as the files."""
        for folder in folders:
            names = self.store.list_dirs(f"{self.root}/{folder}") if len(partition_values(folder)) < depth else ()
            below = [f"{folder}/{name}" for name in names if "=" in name]
            yield from self._folders_at(below, depth) if below else (folder,)

    def _has_data(self, folder: str) -> bool:
        found = self.store.list_files(f"{self.root}/{folder}")
        return any(is_data_path(relative(entry.path, self.root)) for entry in found)


def _are_texts(partitions: Iterable[PartitionValues], depth: int) -> bool:
    """Whether all columns are text, whatever values other folders have."""
    types = path_types(tuple(pair for pair in values if pair[1] is not None) for values in partitions)
    return len(types) >= depth and all(map(pat.is_string, types.values()))
