"""Spilled runs: rows by the number of their partition, in one file for any number of partitions."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parketto.sorting.spill import compression_of


class SpillRuns:
    """Rows that are spilled in batches into one file, and read by the number of their partition.

    One open file per number would be too many. Only the number and the place of each batch are in memory.

    Args:
        scratch: The local folder to write to.
        schema: The schema of the rows, without dictionaries.
    """

    def __init__(self, scratch: str, schema: pa.Schema) -> None:
        self._schema = schema
        self._path = os.path.join(scratch, f"spill-{uuid.uuid4().hex}.arrows")
        self._out: pa.NativeFile | None = None
        self._codec: pa.Codec | None = None
        self._new: list[tuple[int, int, int, int]] = []  # number, offset, size, decompressed size or 0
        self._places: list[npt.NDArray[np.int64]] = []

    def __enter__(self) -> SpillRuns:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._out is not None:
            self._out.close()
            os.unlink(self._path)
            self._out = None

    def write(self, pieces: Iterable[tuple[int, pa.Table]]) -> None:
        """Append the rows of some numbers."""
        for number, rows in pieces:
            if self._out is None:
                self._out = pa.OSFile(self._path, "wb")
                codec = compression_of(rows)
                self._codec = None if codec is None else pa.Codec(codec)
            for batch in rows.combine_chunks().to_batches():
                content, size = batch.serialize(), 0
                if self._codec is not None:
                    content, size = self._codec.compress(content), content.size
                self._new.append((number, self._out.tell(), content.size, size))
                self._out.write(content)
        if self._new:
            self._places.append(np.array(self._new, np.int64))
            self._new.clear()

    def read_all(self) -> dict[int, Iterator[pa.RecordBatch]]:
        """The rows of each number, in the order in which they were written. Threads may read different numbers."""
        if self._out is None:
            return {}
        self._out.flush()
        places = np.concatenate(self._places)
        places = places[np.argsort(places[:, 0], kind="stable")]
        numbers, firsts = np.unique(places[:, 0], return_index=True)
        edges = [*firsts.tolist(), len(places)]
        source = pa.OSFile(self._path, "rb")
        return {
            number: self._read(source, places[start:end])
            for number, (start, end) in zip(numbers.tolist(), pairwise(edges), strict=True)
        }

    def _read(self, source: pa.NativeFile, places: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        for _, offset, size, decompressed in places.tolist():
            content = pa.py_buffer(source.read_at(size, offset))
            if self._codec is not None:
                content = self._codec.decompress(content, decompressed)
            yield pa.ipc.read_record_batch(content, self._schema)
