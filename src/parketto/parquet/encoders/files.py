"""Encoders: each re-encodes the rows of files as one file, or declines. Arrow accepts everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from parketto.parquet.encoders import arrow, polars
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker


class Encoder(Protocol):
    """A module that encodes."""

    def encode_files(self, files: Sequence[FileInfo], output: Output, worker: Worker) -> StagedFile | None:
        """Write all rows of the files as one staged file; None if another encoder must do it.

        The files have the schema and the physical types of the output.
        """


#: The fastest first.
ENCODERS: tuple[Encoder, ...] = (polars, arrow)


def encode_files(files: Sequence[FileInfo], output: Output, worker: Worker) -> StagedFile:
    """Write all rows of the files as one staged file, with the first encoder that accepts them."""
    found = (encoder.encode_files(files, output, worker) for encoder in ENCODERS)
    return next(staged for staged in found if staged is not None)
