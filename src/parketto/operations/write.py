"""Writing rows into a dataset: as new files beside the others, or in their place."""

from __future__ import annotations

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_written
from parketto.engines.base import ProgressCallback
from parketto.kernels.rows import RowSource
from parketto.kernels.write import Output
from parketto.operations.place import Place
from parketto.plan.naming import Naming
from parketto.stats import WriteStats
from parketto.storage.snapshot import refuse_foreign
from parketto.storage.store import FileEntry


def write(
    place: Place,
    source: RowSource,
    output: Output,
    mode: str,
    naming: Naming,
    progress: ProgressCallback | None = None,
) -> WriteStats:
    """Write all rows, then publish their files together."""
    refuse_foreign(place.store, place.root)
    with place.transaction(mode) as transaction:
        replaced = place.existing(transaction) if mode == "overwrite" else []
        return publish(place, transaction, source, output, replaced, naming, progress)


def publish(
    place: Place,
    transaction: Transaction,
    source: RowSource,
    output: Output,
    replaced: list[FileEntry],
    naming: Naming,
    progress: ProgressCallback | None = None,
) -> WriteStats:
    """Write rows inside a transaction and commit them in the place of other files."""
    with transaction.conflicts_over(replaced):
        written = place.engine.write(source, output, place.context(transaction, progress))
    files = verify_written(place.store, written.staged, written.num_rows, output.format.schema.names)
    transaction.commit(written.staged, replaced, naming)
    return WriteStats(
        rows_written=written.num_rows,
        files_written=len(files),
        bytes_written=sum(file.size_bytes for file in files),
        files_replaced=len(replaced),
    )
