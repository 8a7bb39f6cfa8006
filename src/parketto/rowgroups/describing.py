"""How what was placed is described in a footer: notes, bounds, and row groups."""

from __future__ import annotations

from parketto.rowgroups.compact import BINARY, FALSE, TRUE, Fields, decode, encode, encode_structs, key
from parketto.rowgroups.footer import ChunkKeys, GroupKeys, MetaKeys
from parketto.rowgroups.placing import PlacedChunk, PlacedGroup

# min_value and max_value, and whether they are exact.
_ORDERED_BOUNDS = (key(5, BINARY), key(6, BINARY), key(7, TRUE), key(7, FALSE), key(8, TRUE), key(8, FALSE))
# Bounds of fewer bytes are whole: no writer cuts below 64, but perhaps in front of a character of four.
_MAY_BE_CUT = 61


def note(name: bytes, value: bytes | None) -> bytes:
    """A note beside the schema, encoded."""
    return encode({key(1, BINARY): name} | ({} if value is None else {key(2, BINARY): value}))


def without_bounds(chunk: PlacedChunk) -> PlacedChunk:
    """A chunk whose bounds nobody is to trust."""
    meta = decode(chunk.meta)
    if MetaKeys.STATISTICS in meta:
        statistics = decode(meta[MetaKeys.STATISTICS])
        for bound in _ORDERED_BOUNDS:
            statistics.pop(bound, None)
        meta[MetaKeys.STATISTICS] = statistics
    return PlacedChunk(encode(meta), chunk.fields, b"", chunk.offset_index)


def mark_cut_bounds(meta: Fields) -> None:
    """Writers cut long bounds, and not all say so: then they are no longer said to be exact."""
    raw = meta.get(MetaKeys.STATISTICS, b"")
    if len(raw) < _MAY_BE_CUT:
        return
    statistics = decode(raw)
    for number in (5, 6):
        if len(statistics.get(key(number, BINARY), b"")) >= _MAY_BE_CUT:
            # The flag of each bound comes two fields after it.
            statistics.pop(key(number + 2, TRUE), None)
            statistics[key(number + 2, FALSE)] = b""
    meta[MetaKeys.STATISTICS] = encode(statistics)


def encoded_group(group: PlacedGroup, ordinal: int | None) -> bytes:
    """A row group as it stands in a footer; with its number, if it had one."""
    fields = dict(group.fields)
    had_ordinal = fields.pop(GroupKeys.ORDINAL, None) is not None
    if had_ordinal and ordinal is not None:
        fields[GroupKeys.ORDINAL] = ordinal
    chunks = [encode(chunk.fields | {ChunkKeys.META_DATA: chunk.meta}) for chunk in group.chunks]
    fields[GroupKeys.COLUMNS] = encode_structs(chunks)
    return encode(fields)
