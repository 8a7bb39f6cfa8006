"""Arrow rows as opaque blocks of bytes for Spark's shuffle.

No row is converted to a JVM row and back, and types that Spark lacks need no special handling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

_BLOCK_BYTES = 2 * 1024 * 1024  # per block, before compression


def blocks(rows: pa.Table) -> Iterator[bytes]:
    """Rows as blocks of about two megabytes, before compression."""
    count = max(1, -(-rows.nbytes // _BLOCK_BYTES))
    step = max(1, -(-rows.num_rows // count))
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    for start in range(0, rows.num_rows, step):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            writer.write_table(rows.slice(start, step).combine_chunks())
        yield sink.getvalue().to_pybytes()


def unblocked(found: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """The rows of blocks, which are Arrow binary scalars."""
    return chain.from_iterable(pa.ipc.open_stream(block.as_buffer()) for block in found)
