"""Logical types that Arrow ignores on read and cannot write: variant, geometry and geography.

They are kept as raw Thrift bytes, by field path, and added to the footers that Arrow writes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from parketto.parquet.footer import MAGIC, FileKeys
from parketto.parquet.schema import CHILDREN, LOGICAL, NAME
from parketto.parquet.thrift import (
    BINARY,
    I8,
    I32,
    LIST,
    STRUCT,
    Fields,
    decode,
    decode_list,
    encode,
    encode_structs,
    find_field,
    key,
    skip,
)

#: The path of a field, and its logical type as raw Thrift bytes.
Annotation = tuple[tuple[bytes, ...], bytes]

_VARIANT, _GEOMETRY, _GEOGRAPHY = key(16, STRUCT), key(17, STRUCT), key(18, STRUCT)
_ANNOTATED_TYPES = frozenset({_VARIANT, _GEOMETRY, _GEOGRAPHY})
_ALGORITHMS = {name: at for at, name in enumerate(("SPHERICAL", "VINCENTY", "THOMAS", "ANDOYER", "KARNEY"))}


def variant() -> bytes:
    """The annotation of a variant, in version 1 of its encoding."""
    return encode({_VARIANT: {key(1, I8): b"\x01"}})


def geometry(crs: str) -> bytes:
    """The annotation of a geometry column in a coordinate reference system."""
    return encode({_GEOMETRY: {key(1, BINARY): crs.encode()}})


def geography(crs: str, algorithm: str) -> bytes:
    """The annotation of a geography column: its coordinate reference system and edge interpolation algorithm."""
    return encode({_GEOGRAPHY: {key(1, BINARY): crs.encode(), key(2, I32): _ALGORITHMS[algorithm]}})


def is_variant(logical_type: bytes) -> bool:
    """Whether an annotation marks a group as a variant."""
    return _VARIANT in decode(logical_type)


def read_annotations(footer: bytes) -> tuple[Annotation, ...]:
    """The annotations in a footer, which may be cut off after its schema."""
    start = find_field(footer, 0, FileKeys.SCHEMA)
    elements = [decode(raw) for raw in decode_list(footer[start : skip(footer, start, LIST)], STRUCT)]
    return tuple(
        (path, element[LOGICAL])
        for path, element in zip(_paths(elements), elements, strict=True)
        if LOGICAL in element and not _ANNOTATED_TYPES.isdisjoint(decode(element[LOGICAL]))
    )


def annotated(tail: bytes, wanted: Sequence[Annotation]) -> bytes:
    """The end of a Parquet file, whole footer included, with the annotations added."""
    (length,) = struct.unpack("<I", tail[-8:-4])
    data, footer = tail[: -8 - length], tail[-8 - length : -8]
    start = find_field(footer, 0, FileKeys.SCHEMA)
    end = skip(footer, start, LIST)
    raw = decode_list(footer[start:end], STRUCT)
    elements = [decode(each) for each in raw]
    by_path = dict(wanted)
    for at, path in enumerate(_paths(elements)):
        if path in by_path:
            raw[at] = encode({**elements[at], LOGICAL: by_path[path]})
    footer = footer[:start] + encode_structs(raw) + footer[end:]
    return data + footer + struct.pack("<I", len(footer)) + MAGIC


def _paths(elements: Sequence[Fields]) -> list[tuple[bytes, ...]]:
    """The path of each schema element; the root's is empty."""
    found: list[tuple[bytes, ...]] = []
    open_groups: list[tuple[int, tuple[bytes, ...]]] = []
    for number, element in enumerate(elements):
        while open_groups and not open_groups[-1][0]:
            open_groups.pop()
        path: tuple[bytes, ...] = ()
        if number and open_groups:
            remaining, parent = open_groups[-1]
            open_groups[-1] = (remaining - 1, parent)
            path = (*parent, bytes(element.get(NAME, b"")))
        found.append(path)
        if children := element.get(CHILDREN, 0):
            open_groups.append((children, path))
    return found
