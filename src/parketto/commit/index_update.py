"""What a commit writes to the footer index, once it is final."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from parketto.commit.footer_index import MAX_PUBLISHED, MIN_FILES, FooterIndex, best_effort
from parketto.commit.index_rows import MAX_COLUMNS, concatenated, entry_keys, index_rows, keys_of, path_text
from parketto.commit.record import Record
from parketto.commit.settled import Listing
from parketto.commit.workspace import Workspace
from parketto.parquet.bounded_columns import WithLeadingColumns
from parketto.parquet.snapshot import read_snapshot
from parketto.runtime.arrays import array_of
from parketto.storage.hive import is_data_path
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry


def update_index(
    workspace: Workspace, record: Record, listing: Listing, learned: pa.Table | None, last: int
) -> None:
    """Write rows for the footers that the operation has read, and for the files that it has published.

    Args:
        workspace: The dataset's workspace.
        record: The commit.
        listing: The files that the operation has listed.
        learned: The rows of files whose footers the operation has read because the index lacked them.
        last: The number of the commit before.
    """
    index = FooterIndex(workspace.store, workspace.path)
    with best_effort(index.folder):
        if record.arguments.get("purge"):
            index.clear()  # bounds are values of deleted rows
            return
        if len(listing.everything) < MIN_FILES and not listing.left_out:
            return
        retired = array_of([path_text(old.path, "") for old in record.retire], pa.string())
        rows = [_published(workspace, record)]
        if learned is not None and listing.number == last:  # else another commit may have purged some of it
            rows.append(learned.filter(pc.invert(pc.is_in(learned["path"], retired))))

        def current() -> pa.Table | None:
            if listing.left_out:
                return None
            there = [entry for entry in listing.everything if is_data_path(relative(entry.path, workspace.root))]
            keys = entry_keys(there, workspace.root)
            gone = pc.is_in(keys["path"], retired)
            return concatenated([keys.filter(pc.invert(gone)), rows[0].select(keys.schema.names)])

        found = concatenated(rows)
        index.add(found.filter(pc.invert(pc.is_null(keys_of(found)))), current)


def clear_index(workspace: Workspace) -> None:
    """Remove all rows, because bounds are values. No commit folds them into a new segment meanwhile."""
    index = FooterIndex(workspace.store, workspace.path)
    if not index.is_empty:
        with workspace.locked():
            index.clear()


def _published(workspace: Workspace, record: Record) -> pa.Table:
    """The rows of new files. Where files are copied, their fingerprints are not known yet."""
    root, store = workspace.root, workspace.store
    known = store.atomic_move and len(record.publish) <= MAX_PUBLISHED
    new = [FileEntry(f"{root}/{each.path}", each.size_bytes, each.fingerprint) for each in record.publish if known]
    return index_rows(read_snapshot(store, root, new, WithLeadingColumns((), MAX_COLUMNS)).files, root)
