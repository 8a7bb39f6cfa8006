"""Arrow rows as packets of bytes: what Spark shuffles without looking inside.

No row becomes a row of the JVM and back, and types that Spark does not have need no care.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

_PACKET_BYTES = 2 * 1024 * 1024


def packets(rows: pa.Table) -> Iterator[bytes]:
    """Rows as packets of about two megabytes, before compression."""
    count = max(1, -(-rows.nbytes // _PACKET_BYTES))
    step = max(1, -(-rows.num_rows // count))
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    for start in range(0, rows.num_rows, step):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            writer.write_table(rows.slice(start, step).combine_chunks())
        yield sink.getvalue().to_pybytes()


def unpacked(found: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """The rows of packets, which come as Arrow's binary scalars."""
    return chain.from_iterable(pa.ipc.open_stream(packet.as_buffer()) for packet in found)
