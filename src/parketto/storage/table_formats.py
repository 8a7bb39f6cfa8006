"""Table formats, recognised by their paths: their logs or catalogs define which files and rows are live."""

from __future__ import annotations

import re
from collections.abc import Iterable

from parketto.errors import NotPlainParquet

#: Folders that only a table format creates, and the name of that format.
MARKER_FOLDERS = {"_delta_log": "Delta Lake", ".hoodie": "Hudi", "_spark_metadata": "Spark Structured Streaming"}

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# DuckLake keeps its catalog in a database; in the directory, only the names of its files identify it.
_DUCKLAKE = re.compile(rf"ducklake-{_UUID}(_\d+)?(-deletes?)?\.(parquet|puffin)")
_PAIMON_DATA = re.compile(rf"bucket-(\d+|postpone)/(data|changelog)-{_UUID}-\d+(\.\w+)?\.parquet")
# Files without a suffix. One kind alone may be a coincidence; a table has a schema and another kind.
_PAIMON_FOLDERS = frozenset({"schema", "snapshot", "manifest"})
_PAIMON_LOG = re.compile(r"(\w+)/\1-[\w-]+")


def refuse_table_formats(paths: Iterable[str], root: str) -> None:
    """Raise NotPlainParquet if file paths, relative to the root, belong to a table format."""
    paimon: dict[str, set[str]] = {}
    for path in paths:
        *folders, name = path.split("/")
        for folder in folders:
            if folder in MARKER_FOLDERS:
                raise not_plain(root, MARKER_FOLDERS[folder], folder)
            if folder == "metadata" and name.endswith(".metadata.json"):
                raise not_plain(root, "Iceberg", folder)
        if name.startswith("ducklake-") and _DUCKLAKE.fullmatch(name):
            raise not_plain(root, "DuckLake", name)
        if folders:
            last = f"{folders[-1]}/{name}"
            if last.startswith("bucket-") and _PAIMON_DATA.fullmatch(last):
                raise not_plain(root, "Apache Paimon", last)
            if folders[-1] in _PAIMON_FOLDERS and _PAIMON_LOG.fullmatch(last):
                kinds = paimon.setdefault("/".join(folders[:-1]), set())
                kinds.add(folders[-1])
                if len(kinds) > 1 and "schema" in kinds:
                    raise not_plain(root, "Apache Paimon", last)


def not_plain(root: str, kind: str, found: str) -> NotPlainParquet:
    """The error for a directory of a table format, with the path that identifies it."""
    return NotPlainParquet(
        f"{root!r} is a table in {kind} format (found {found!r}): its log or catalog defines which files and rows "
        f"are live, so reading or changing the files directly would be wrong. Use the tools of {kind}"
    )
