"""A Parquet writer that adds logical types Arrow cannot write: variant, geometry and geography."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.parquet.annotations import Annotation, annotated, is_variant


class AnnotatingWriter(pq.ParquetWriter):  # type: ignore[misc]
    """Arrow's writer, with annotations added to the footer before it is written."""

    def __init__(
        self, sink: IO[bytes], schema: pa.Schema, annotations: Sequence[Annotation] = (), **options: Any
    ) -> None:
        self._annotations = annotations
        self._footer_buffer = _FooterBuffer(sink) if annotations else None
        # Geometry bytes have no meaningful order: min/max statistics would be useless to readers.
        unordered = {b".".join(path).decode() for path, kind in annotations if not is_variant(kind)}
        if unordered:
            compliant = bool(options.get("use_compliant_nested_type", True))
            paths = _leaf_paths(schema, compliant=compliant)
            requested = options.get("write_statistics", True)
            wanted = paths if requested is True else requested
            options["write_statistics"] = [path for path in wanted if path not in unordered]
        super().__init__(self._footer_buffer or sink, schema, **options)

    def close(self) -> None:
        """Write the footer."""
        if not self.is_open or self._footer_buffer is None:
            super().close()
            return
        self._footer_buffer.hold()
        super().close()
        self._footer_buffer.release(self._annotations)


class _FooterBuffer:
    """Passes writes through to a file, and buffers the footer until it is complete."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._buffered: list[bytes] | None = None
        self.closed = False

    def write(self, data: Any) -> int:
        """Write or buffer bytes."""
        if self._buffered is None:
            self._sink.write(data)
        else:
            self._buffered.append(bytes(data))
        return len(data)

    def tell(self) -> int:
        """The position in the file, buffered bytes included."""
        return self._sink.tell() + sum(map(len, self._buffered or ()))

    def flush(self) -> None:
        """Do nothing: only the footer is buffered, until `release`."""

    def hold(self) -> None:
        """Buffer all writes from now on."""
        self._buffered = []

    def release(self, annotations: Sequence[Annotation]) -> None:
        """Write the buffered bytes, with the annotations added to the footer at their end."""
        buffered, self._buffered = b"".join(self._buffered or ()), None
        self._sink.write(annotated(buffered, annotations))


def _leaf_paths(schema: pa.Schema, *, compliant: bool) -> list[str]:
    """The Parquet paths of a schema's leaf columns."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, use_compliant_nested_type=compliant).close()
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [parquet.column(at).path for at in range(len(parquet))]
