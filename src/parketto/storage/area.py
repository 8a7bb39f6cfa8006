"""The area that a GeoParquet file says it covers: readers skip files by it, so it must hold for all rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

AREA = b"geo"
_COLUMNS, _BOX = "columns", "bbox"


def without_area(
    metadata: Mapping[bytes, bytes] | None, columns: Collection[str] | None = None
) -> dict[bytes, bytes]:
    """Metadata for files that get other values: in these columns, None: in any.

    >>> without_area({AREA: b'{"columns": {"g": {"encoding": "WKB", "bbox": [0, 0, 1, 1]}}}'})
    {b'geo': b'{"columns": {"g": {"encoding": "WKB"}}}'}
    """
    kept = dict(metadata or {})
    try:
        notes = json.loads(kept.get(AREA, b"{}"))
        found = {name: dict(about) for name, about in dict(notes.get(_COLUMNS, {})).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return kept  # somebody else's words
    changed = [name for name, about in found.items() if _BOX in about and (columns is None or name in columns)]
    for name in changed:
        del found[name][_BOX]
    if changed:
        kept[AREA] = json.dumps({**notes, _COLUMNS: found}, ensure_ascii=False).encode()
    return kept
