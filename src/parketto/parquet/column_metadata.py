"""Encodes footer metadata of copied row groups: key-value metadata, bounds, column chunks."""

from __future__ import annotations

from parketto.parquet.footer import ChunkKeys, GroupKeys, MetaKeys
from parketto.parquet.offsets import MovedChunk, MovedRowGroup
from parketto.parquet.thrift import BINARY, FALSE, TRUE, Fields, decode, encode, encode_structs, key

# max_value, min_value, and their exactness flags.
_ORDERED_BOUNDS = (key(5, BINARY), key(6, BINARY), key(7, TRUE), key(7, FALSE), key(8, TRUE), key(8, FALSE))
#: Bytes. Shorter bounds are never truncated: writers cut at 64 or more, or just before a 4-byte character there.
MIN_TRUNCATED_BYTES = 61


def encoded_key_value(name: bytes, value: bytes | None) -> bytes:
    """An encoded entry of the key-value metadata."""
    return encode({key(1, BINARY): name} | ({} if value is None else {key(2, BINARY): value}))


def without_bounds(chunk: MovedChunk) -> MovedChunk:
    """A column chunk without min/max bounds and without a column index."""
    meta = decode(chunk.meta)
    if MetaKeys.STATISTICS in meta:
        statistics = decode(meta[MetaKeys.STATISTICS])
        for bound in _ORDERED_BOUNDS:
            statistics.pop(bound, None)
        meta[MetaKeys.STATISTICS] = statistics
    return MovedChunk(encode(meta), chunk.fields, b"", chunk.offset_index)


def mark_truncated_bounds(meta: Fields) -> None:
    """Mark long bounds as inexact: writers truncate them, and not all declare it."""
    raw = meta.get(MetaKeys.STATISTICS, b"")
    if len(raw) < MIN_TRUNCATED_BYTES:
        return
    statistics = decode(raw)
    for number in (5, 6):
        if len(statistics.get(key(number, BINARY), b"")) >= MIN_TRUNCATED_BYTES:
            # Fields 7 and 8 are the exactness flags of 5 and 6.
            statistics.pop(key(number + 2, TRUE), None)
            statistics[key(number + 2, FALSE)] = b""
    meta[MetaKeys.STATISTICS] = encode(statistics)


def encoded_group(group: MovedRowGroup, ordinal: int | None) -> bytes:
    """A row group, encoded for a footer; with its ordinal, if it had one."""
    fields = dict(group.fields)
    had_ordinal = fields.pop(GroupKeys.ORDINAL, None) is not None
    if had_ordinal and ordinal is not None:
        fields[GroupKeys.ORDINAL] = ordinal
    chunks = [encode(chunk.fields | {ChunkKeys.META_DATA: chunk.meta}) for chunk in group.chunks]
    fields[GroupKeys.COLUMNS] = encode_structs(chunks)
    return encode(fields)
