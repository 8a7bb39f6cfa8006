"""Files combined row group by row group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.footer import read_footer


def append_files(sources: Iterable[IO[bytes]], sink: IO[bytes]) -> int:
    """Concatenate the row groups of compatible files into one file; return its size."""
    with RowGroupAppender(sink) as out:
        for source in sources:
            out.append(source, read_footer(source))
        return out.finish()
