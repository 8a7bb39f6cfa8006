"""Decides which files' row groups may share one file: those that every reader reads by the same rules.

A footer applies to all of its row groups. So whatever readers take from it must be equal in all source files: the
schema, the calendar of old dates, how far to trust the writer.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from parketto import __version__
from parketto.errors import FooterError
from parketto.parquet.footer import Footer
from parketto.parquet.geo_area import GEO_KEY, without_any_bbox
from parketto.parquet.schema import INT96, difference, narrowed
from parketto.parquet.spark_schema import SPARK_SCHEMA_KEY, spark_only_types
from parketto.parquet.thrift import STRUCT, decode_list

#: Whether Arrow reads the same with two `ARROW:schema` entries. Arrow's own metadata is part of the entry.
SameArrowSchema = Callable[[bytes | None, bytes | None], bool]

_ARROW_SCHEMA = b"ARROW:schema"
SPARK_VERSION = b"org.apache.spark.version"
#: Markers of files whose dates and timestamps, or INT96 timestamps, are in Spark's legacy calendar.
LEGACY_DATES, LEGACY_INT96 = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
# Spark's keys for the calendar of dates before 1582 and the time zone of their conversion, and Hive's.
_CALENDAR_KEYS = (
    LEGACY_DATES,
    LEGACY_INT96,
    b"org.apache.spark.timeZone",
    b"writer.time.zone",
    b"writer.date.proleptic",
    b"writer.zone.conversion.legacy",
)
# The versions in which Spark changed the calendar: of dates, of INT96. Spark compares versions as strings.
SPARK_CALENDAR_CHANGES = (b"3.0.0", b"3.1.0")
#: Metadata keys that control how or whether a file is read: their values are valid for this file only.
FILE_SPECIFIC_KEYS = frozenset({_ARROW_SCHEMA, SPARK_VERSION, SPARK_SCHEMA_KEY, GEO_KEY, *_CALENDAR_KEYS})
#: The name in `created_by` of files that are assembled from row groups of several others.
ASSEMBLED_BY = "parketto"
_WRITER = re.compile(rb"(.*?)\s+version\s*v?(\d+)\.(\d+)(?:\.(\d+))?")
# Readers work around bugs of older versions: in bounds of strings and unsigned integers, in delta-encoded strings,
# and in compressed pages flagged as uncompressed.
_TRUSTED_SINCE = {b"parquet-mr": (1, 10, 0), b"parquet-cpp": (2, 0, 0)}
# Its column chunks are longer than declared; readers read past their end.
_SHORT_CHUNKS = (b"parquet-mr", (1, 2, 9))


def why_not_copied(footer: Footer) -> str | None:
    """Why no row group of the file can be copied into any file; None if they can."""
    if has_short_chunks(footer):
        return "its writer left dictionary page headers out of the column chunk sizes"
    return footer.elsewhere


def has_short_chunks(footer: Footer) -> bool:
    """Whether column chunks are longer than the footer declares, because of a writer bug."""
    writer = _writer(footer.created_by)
    return writer is not None and writer[0] == _SHORT_CHUNKS[0] and writer[1] < _SHORT_CHUNKS[1]


def why_not_combinable(
    first: Footer, other: Footer, *, same_arrow_schema: SameArrowSchema = operator.eq
) -> str | None:
    """Why row groups of two files cannot share a file with the first one's schema and metadata.

    Args:
        first: The footer whose schema and metadata apply to all.
        other: The footer of a file whose row groups are added.
        same_arrow_schema: Whether Arrow reads the same with two `ARROW:schema` entries; a missing one is None. By
            default their bytes are compared.

    Returns:
        The reason, or None if they can.
    """
    return (
        why_not_copied(first)
        or why_not_copied(other)
        or difference(first.schema, other.schema)
        or _why_not_metadata(first, other, same_arrow_schema)
        or _why_not_writers(first, other)
    )


def why_not_replaceable(footer: Footer, patch: Footer, positions: Sequence[int]) -> str | None:
    """Why columns of one file cannot replace those of another in a row group.

    Args:
        footer: The footer of the file that has the row group.
        patch: The footer of the file with the replacement columns.
        positions: Their leaf positions in the first file.

    Returns:
        The reason, or None if they can.
    """
    names = frozenset(leaf.path[0] for leaf in patch.leaves)
    reason = (
        why_not_copied(patch)
        or difference(narrowed(footer.schema, names), patch.schema)
        or _why_not_writers(footer, patch)
    )
    if reason is not None or footer.column_orders is None:  # then readers do not trust bounds
        return reason
    orders = decode_list(footer.column_orders, STRUCT)
    if patch.column_orders is None or len(orders) != len(footer.leaves):
        return "column orders are missing or incomplete"
    same = decode_list(patch.column_orders, STRUCT) == [orders[position] for position in positions]
    return None if same else "their column orders differ"


def why_not_woven(whole: Footer, footer: Footer, leaves: Mapping[int, int]) -> str | None:
    """Why leaf columns of a file cannot be in one row group with encoded ones.

    Args:
        whole: The footer that the new file gets.
        footer: The footer of the file that has the columns.
        leaves: Their leaf positions in it, mapped to those in the new file.

    Returns:
        The reason, or None if they can.
    """
    reason = why_not_copied(footer) or _why_not_writers(whole, footer)
    if reason is not None:
        return reason
    if footer.column_orders is None or whole.column_orders is None:
        return "column orders are missing, so readers do not trust bounds"
    mine, others = (decode_list(orders, STRUCT) for orders in (footer.column_orders, whole.column_orders))
    if len(mine) != len(footer.leaves) or len(others) != len(whole.leaves):
        return "column orders are incomplete"
    return None if all(mine[at] == others[to] for at, to in leaves.items()) else "their column orders differ"


def leaf_positions(footer: Footer, patch: Footer) -> set[int]:
    """The leaf positions of a patch's columns in a footer. It must have some but not all, in the same order."""
    reason = None if len(patch.row_groups) == 1 else "a patch must have one row group"
    known = {leaf: position for position, leaf in enumerate(footer.leaves)}
    positions = [known[leaf] for leaf in patch.leaves if leaf in known]
    sound = len(known) == len(footer.leaves) and len(positions) == len(patch.leaves) > 0
    if reason is None and (not sound or positions != sorted(set(positions))):
        reason = "the patch must have columns of the file, in the same order"
    if reason is None and len(positions) == len(footer.leaves):
        reason = "the patch has all columns of the row group"
    reason = reason or why_not_replaceable(footer, patch, positions)
    if reason is not None:
        raise FooterError(f"columns cannot be replaced: {reason}")
    return set(positions)


def common_writer(first: Footer, texts: set[bytes | None], *, several: bool) -> bytes | None:
    """The `created_by` of a file, given those of its row groups' source files.

    "parketto" signals that pages may differ in writer options such as checksums. So files assembled from `several`
    others get it, even if one writer wrote them all. Hive and Spark can be configured to shift INT96 timestamps of
    all writers but parquet-mr, so files with INT96 keep that name. Names that readers work around are kept, too.
    """
    if _has_int96(first) and _is_parquet_mr(first):
        return first.created_by
    if len(texts) == 1 and (not several or not _is_trusted(first)):
        return first.created_by
    return f"{ASSEMBLED_BY} version {__version__} (build row-group-copy)".encode()


def _why_not_metadata(first: Footer, other: Footer, same_arrow_schema: SameArrowSchema) -> str | None:
    one, two = first.key_value_metadata, other.key_value_metadata
    if not same_arrow_schema(one.get(_ARROW_SCHEMA), two.get(_ARROW_SCHEMA)):
        return "their Arrow schemas (ARROW:schema) differ"
    temporal = any(leaf.temporal for leaf in first.leaves)
    mine, theirs = reading_rules(one, temporal=temporal), reading_rules(two, temporal=temporal)
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            return f"their metadata differs in {name.decode()!r}, which controls how files are read"
    # Bounds without a declared order can be dropped; those in a different order could not be distinguished.
    if None not in (first.column_orders, other.column_orders) and first.column_orders != other.column_orders:
        return "their column orders differ"
    return None


def _why_not_writers(first: Footer, other: Footer) -> str | None:
    if first.created_by == other.created_by:
        return None
    for footer in (first, other):
        if _writer(footer.created_by) is None:
            return "one of the writers does not declare its version, so readers trust it less"
        if not _is_trusted(footer):
            return f"readers apply workarounds to files of {(footer.created_by or b'').decode(errors='replace')!r}"
    if _has_int96(first) and _is_parquet_mr(first) != _is_parquet_mr(other):
        return "the meaning of INT96 timestamps depends on the writer"
    return None


def reading_rules(notes: Mapping[bytes, bytes | None], *, temporal: bool) -> dict[bytes, object]:
    """The metadata that controls how a file is read. Files in which it differs cannot be combined.

    Args:
        notes: The file's key-value metadata.
        temporal: Whether it has dates or timestamps; without them calendars do not matter.

    >>> reading_rules({b"org.apache.spark.version": b"2.4.8", b"pandas": b"{}"}, temporal=True)
    {b'org.apache.spark.version': 0}
    """
    # Empty entries count, too: Spark checks only that the key exists.
    rules: dict[bytes, object] = {
        entry: notes[entry] for entry in (_CALENDAR_KEYS if temporal else ()) if entry in notes
    }
    if GEO_KEY in notes:  # bounding boxes can be merged if nothing else differs
        rules[GEO_KEY] = without_any_bbox(notes[GEO_KEY])
    if spark_only := spark_only_types(notes):
        rules[SPARK_SCHEMA_KEY] = tuple(sorted(spark_only.items()))
    version_text = notes.get(SPARK_VERSION) if temporal else None
    # Since the last change, Spark reads its own files like those of other writers.
    if version_text is not None and version_text < SPARK_CALENDAR_CHANGES[-1]:
        rules[SPARK_VERSION] = sum(version_text >= turn for turn in SPARK_CALENDAR_CHANGES)
    return rules


def _writer(created_by: bytes | None) -> tuple[bytes, tuple[int, int, int]] | None:
    found = _WRITER.match(created_by or b"")
    if found is None or max(map(len, found.groups(b"0")[1:])) > 9:
        return None
    name, major, minor, patch = found.groups(b"0")
    return name, (int(major), int(minor), int(patch))


def _is_trusted(footer: Footer) -> bool:
    """Whether readers need no workarounds for the writer."""
    writer = _writer(footer.created_by)
    return writer is not None and writer[1] >= _TRUSTED_SINCE.get(writer[0], ())


def _is_parquet_mr(footer: Footer) -> bool:
    return (footer.created_by or b"").startswith(b"parquet-mr")


def _has_int96(footer: Footer) -> bool:
    return any(leaf.physical_type == INT96 for leaf in footer.leaves)
