"""A Parquet writer that says of columns what Arrow cannot say: that they are variants or geometries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.rowgroups.annotations import Annotation, annotated, is_variant


class AnnotatingWriter(pq.ParquetWriter):  # type: ignore[misc]
    """Arrow's writer; the footer gets annotations, where there are any, before it goes out."""

    def __init__(
        self, sink: IO[bytes], schema: pa.Schema, annotations: Sequence[Annotation] = (), **options: Any
    ) -> None:
        self._annotations = annotations
        self._tail = _Tail(sink) if annotations else None
        # The bytes of geometries are in no order: bounds of them would tell readers nothing.
        unordered = {b".".join(path).decode() for path, kind in annotations if not is_variant(kind)}
        if unordered:
            compliant = bool(options.get("use_compliant_nested_type", True))
            paths = _leaf_paths(schema, compliant=compliant)
            given = options.get("write_statistics", True)
            wanted = paths if given is True else given
            options["write_statistics"] = [path for path in wanted if path not in unordered]
        super().__init__(self._tail or sink, schema, **options)

    def close(self) -> None:
        """Write the footer."""
        if not self.is_open or self._tail is None:
            super().close()
            return
        self._tail.hold()
        super().close()
        self._tail.release(self._annotations)


class _Tail:
    """Passes bytes on to a file, and keeps the last ones back until they are complete."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._held: list[bytes] | None = None
        self.closed = False

    def write(self, data: Any) -> int:
        """Write, now or later."""
        if self._held is None:
            self._sink.write(data)
        else:
            self._held.append(bytes(data))
        return len(data)

    def tell(self) -> int:
        """How many bytes there are with those that are kept back."""
        return self._sink.tell() + sum(map(len, self._held or ()))

    def flush(self) -> None:
        """Nothing waits here but what is kept back."""

    def hold(self) -> None:
        """Keep back what comes from here on."""
        self._held = []

    def release(self, annotations: Sequence[Annotation]) -> None:
        """Write what was kept back, with the annotations in the footer at its end."""
        held, self._held = b"".join(self._held or ()), None
        self._sink.write(annotated(held, annotations))


def _leaf_paths(schema: pa.Schema, *, compliant: bool) -> list[str]:
    """What Parquet calls the leaf columns of a schema."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, use_compliant_nested_type=compliant).close()
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [parquet.column(at).path for at in range(len(parquet))]
