"""Bounding boxes in GeoParquet metadata. Readers skip files by them, so a box must cover all rows."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

GEO_KEY = b"geo"
_COLUMNS, _BOX = "columns", "bbox"
_BOX_SIZES = (4, 6)  # the minima, then the maxima, of two or three dimensions


def without_bbox(
    metadata: Mapping[bytes, bytes] | None, columns: Collection[str] | None = None
) -> dict[bytes, bytes]:
    """Metadata without the bounding boxes of `columns`, whose values change; None: of all columns.

    >>> without_bbox({GEO_KEY: b'{"columns": {"g": {"encoding": "WKB", "bbox": [0, 0, 1, 1]}}}'})
    {b'geo': b'{"columns": {"g": {"encoding": "WKB"}}}'}
    """
    kept = dict(metadata or {})
    geo = _parsed(kept.get(GEO_KEY, b"{}"))
    if geo is None:
        return kept  # not GeoParquet metadata
    found = geo[_COLUMNS]
    changed = [name for name, column in found.items() if _BOX in column and (columns is None or name in columns)]
    for name in changed:
        del found[name][_BOX]
    if changed:
        kept[GEO_KEY] = _encoded(geo)
    return kept


def without_any_bbox(text: bytes | None) -> object:
    """GeoParquet metadata without bounding boxes: files that are equal in it can be merged into one.

    >>> without_any_bbox(b'{"columns": {"g": {"bbox": [0, 0, 1, 1]}}}')
    '{"columns": {"g": {}}}'
    """
    geo = _parsed(text)
    if geo is None:
        return text
    for column in geo[_COLUMNS].values():
        column.pop(_BOX, None)
    return json.dumps(geo, sort_keys=True)


def merged_geo(texts: Sequence[bytes]) -> bytes:
    """GeoParquet metadata that is valid for the rows of all files; the files differ only in bounding boxes.

    A bounding box is optional. It is omitted where a file has none, where dimensions differ, and where one crosses
    the antimeridian (then its western bound is greater than its eastern one).

    >>> one, two = (b'{"columns": {"g": {"bbox": [%d, 0, %d, 1]}}}' % (west, west + 1) for west in (3, 7))
    >>> merged_geo([one, two])
    b'{"columns": {"g": {"bbox": [3, 0, 8, 1]}}}'
    """
    parsed = [geo for geo in map(_parsed, dict.fromkeys(texts)) if geo is not None]
    if all(geo == parsed[0] for geo in parsed):
        return texts[0]
    for name, column in parsed[0][_COLUMNS].items():
        box = _union([geo[_COLUMNS][name].get(_BOX) for geo in parsed])
        if box is not None:
            column[_BOX] = box
        else:
            column.pop(_BOX, None)
    return _encoded(parsed[0])


def _union(boxes: Sequence[Any]) -> list[float] | None:
    """The union of bounding boxes; None if one is invalid or their dimensions differ."""
    if not all(_is_box(box) for box in boxes) or len({len(box) for box in boxes}) > 1:
        return None
    half = len(boxes[0]) // 2
    return [(min if at < half else max)(side) for at, side in enumerate(zip(*boxes, strict=True))]


def _is_box(box: Any) -> bool:
    if not isinstance(box, list) or len(box) not in _BOX_SIZES:
        return False
    if not all(type(number) in (int, float) and -math.inf < number < math.inf for number in box):
        return False
    half = len(box) // 2
    return all(low <= high for low, high in zip(box[:half], box[half:], strict=True))


def _parsed(text: bytes | None) -> dict[str, Any] | None:
    """GeoParquet metadata, with a dictionary per column; None if it is invalid."""
    try:
        geo = json.loads(text or b"")
        found = {name: dict(column) for name, column in dict(geo.get(_COLUMNS, {})).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return {**geo, _COLUMNS: found}


def _encoded(geo: Mapping[str, Any]) -> bytes:
    return json.dumps(geo, ensure_ascii=False).encode()
