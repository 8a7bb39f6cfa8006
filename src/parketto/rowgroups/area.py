"""The area that a GeoParquet file says it covers: readers skip files by it, so it must hold for all rows."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

AREA = b"geo"
_COLUMNS, _BOX = "columns", "bbox"
# The lowest numbers in two or three dimensions, and then the highest ones.
_BOX_SIZES = (4, 6)


def without_area(
    metadata: Mapping[bytes, bytes] | None, columns: Collection[str] | None = None
) -> dict[bytes, bytes]:
    """Metadata for files that get other values: in these columns, None: in any.

    >>> without_area({AREA: b'{"columns": {"g": {"encoding": "WKB", "bbox": [0, 0, 1, 1]}}}'})
    {b'geo': b'{"columns": {"g": {"encoding": "WKB"}}}'}
    """
    kept = dict(metadata or {})
    notes = _parsed(kept.get(AREA, b"{}"))
    if notes is None:
        return kept  # somebody else's words
    found = notes[_COLUMNS]
    changed = [name for name, about in found.items() if _BOX in about and (columns is None or name in columns)]
    for name in changed:
        del found[name][_BOX]
    if changed:
        kept[AREA] = _written(notes)
    return kept


def all_but_area(text: bytes | None) -> object:
    """What notes on geometries say, boxes aside: files in which that is the same may become one file.

    >>> all_but_area(b'{"columns": {"g": {"bbox": [0, 0, 1, 1]}}}') == all_but_area(b'{"columns": {"g": {}}}')
    True
    """
    notes = _parsed(text)
    if notes is None:
        return text
    for about in notes[_COLUMNS].values():
        about.pop(_BOX, None)
    return json.dumps(notes, sort_keys=True)


def united_area(texts: Sequence[bytes]) -> bytes:
    """The notes on geometries that hold for all files with these ones, which differ in their boxes only.

    A box is optional: it is left out where a file has none, where they differ in dimensions, and where one crosses
    the antimeridian, because then it begins at a higher longitude than it ends.

    >>> one, two = (b'{"columns": {"g": {"bbox": [%d, 0, %d, 1]}}}' % (west, west + 1) for west in (3, 7))
    >>> united_area([one, two])
    b'{"columns": {"g": {"bbox": [3, 0, 8, 1]}}}'
    """
    parsed = [notes for notes in map(_parsed, dict.fromkeys(texts)) if notes is not None]
    if all(notes == parsed[0] for notes in parsed):
        return texts[0]
    for name, about in parsed[0][_COLUMNS].items():
        box = _around([notes[_COLUMNS][name].get(_BOX) for notes in parsed])
        if box is not None:
            about[_BOX] = box
        else:
            about.pop(_BOX, None)
    return _written(parsed[0])


def _around(boxes: Sequence[Any]) -> list[float] | None:
    """The box around boxes, if all of them are such."""
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
    """Notes on geometries, those on each column as a dictionary of its own; None if they are none."""
    try:
        notes = json.loads(text or b"")
        found = {name: dict(about) for name, about in dict(notes.get(_COLUMNS, {})).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return {**notes, _COLUMNS: found}


def _written(notes: Mapping[str, Any]) -> bytes:
    return json.dumps(notes, ensure_ascii=False).encode()
