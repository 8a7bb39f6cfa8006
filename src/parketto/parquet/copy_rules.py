"""Decides which row groups can be copied as bytes. The plan decides whether copying is worth it."""

from __future__ import annotations

from collections.abc import Collection
from typing import IO

import pyarrow as pa

from parketto.errors import FooterError
from parketto.parquet.dictionaries import small_dictionaries
from parketto.parquet.footer import Footer, MetaKeys, RowGroup, read_footer
from parketto.parquet.row_group_info import CODECS


def copyable_footer(source: IO[bytes], row_groups: int) -> Footer | None:
    """The footer of a file; None if it cannot be parsed, or does not match the listed file."""
    try:
        footer = read_footer(source)
    except FooterError:
        return None
    return footer if len(footer.row_groups) == row_groups else None


def copyable(footer: Footer, schema: pa.Schema, codec: str | None) -> list[bool]:
    """Whether the bytes of each row group may be copied.

    Args:
        footer: The footer of the file.
        schema: Its Arrow schema.
        codec: The codec that all columns must have; None accepts any.
    """
    small = {schema.names[position] for position in small_dictionaries(schema)}
    return [
        (codec is None or all(column.codec == CODECS.get(codec) for column in group.columns))
        and _has_dictionaries(group, footer, small)
        for group in footer.row_groups
    ]


def _has_dictionaries(group: RowGroup, footer: Footer, names: Collection[str]) -> bool:
    """Whether the column chunks of these columns have a dictionary page.

    Categorical columns with a small index type need one: without it, Arrow continues the numbering of earlier row
    groups until the index type overflows.
    """
    return not names or all(
        column.start < column.meta[MetaKeys.DATA_PAGE_OFFSET]
        for column, leaf in zip(group.columns, footer.leaves, strict=False)
        if leaf.path[0].decode() in names
    )


def codec_of(group: RowGroup, positions: Collection[int]) -> str | None:
    """The common codec of some columns of a row group; None if they differ, or if it cannot be written."""
    found = {column.codec for position, column in enumerate(group.columns) if position in positions}
    return next((name for name, number in CODECS.items() if found == {number}), None)
