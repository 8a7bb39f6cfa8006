"""Which files' row groups may stand in one file: those that every reader reads by the same rules.

A footer holds for all of its row groups. So whatever a reader takes from it must be the same in the files that
the row groups come from: the schema, the calendar of old dates, how much of a writer's work to believe.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from parketto import __version__
from parketto.errors import FooterError
from parketto.rowgroups.area import AREA, all_but_area
from parketto.rowgroups.compact import STRUCT, decode_list
from parketto.rowgroups.footer import Footer
from parketto.rowgroups.schema import INT96, difference, narrowed
from parketto.rowgroups.spark_note import SPARK_NOTE, only_noted

#: Says whether two `ARROW:schema` entries make Arrow read the same. Arrow's own notes are part of the entry.
SameArrowSchema = Callable[[bytes | None, bytes | None], bool]

_ARROW_SCHEMA = b"ARROW:schema"
SPARK_VERSION = b"org.apache.spark.version"
#: Marks of files whose dates and timestamps, or INT96 timestamps, are in the calendar of older versions of Spark.
LEGACY_DATES, LEGACY_INT96 = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
# Spark asks which calendar dates before 1582 are in, and in which time zone they were converted. Hive has its own.
_CALENDAR_KEYS = (
    LEGACY_DATES,
    LEGACY_INT96,
    b"org.apache.spark.timeZone",
    b"writer.time.zone",
    b"writer.date.proleptic",
    b"writer.zone.conversion.legacy",
)
# What changed how Spark writes them. It compares versions as texts.
SPARK_TURNS = (b"3.0.0", b"3.1.0")
#: What a file notes about how to read its own values, or whether to read it: these notes hold for no other file.
OWN_NOTES = frozenset({_ARROW_SCHEMA, SPARK_VERSION, SPARK_NOTE, AREA, *_CALENDAR_KEYS})
#: What files that are made of the row groups of several others say of who created them.
ASSEMBLED_BY = "parketto"
_WRITER = re.compile(rb"(.*?)\s+version\s*v?(\d+)\.(\d+)(?:\.(\d+))?")
# Readers work around what older versions of these did wrong: bounds of text and of unsigned numbers, delta encoded
# text, compressed pages said not to be.
_SOUND_SINCE = {b"parquet-mr": (1, 10, 0), b"parquet-cpp": (2, 0, 0)}
# Its column chunks are longer than they say; readers look behind them.
_SHORT_CHUNKS = (b"parquet-mr", (1, 2, 9))


def why_not_copied(footer: Footer) -> str | None:
    """Why no row group of the file can be copied, whatever file it goes to."""
    if has_short_chunks(footer):
        return "its writer did not count the headers of dictionaries"
    return footer.elsewhere


def has_short_chunks(footer: Footer) -> bool:
    """Whether column chunks are longer than the footer says, because of a bug of the writer."""
    writer = _writer(footer.created_by)
    return writer is not None and writer[0] == _SHORT_CHUNKS[0] and writer[1] < _SHORT_CHUNKS[1]


def why_not_together(
    first: Footer, other: Footer, *, same_arrow_schema: SameArrowSchema = operator.eq
) -> str | None:
    """Why row groups of two files cannot stand in one file, with the first one's schema and metadata.

    Args:
        first: The footer whose schema and metadata hold for all.
        other: The footer of a file whose row groups are to be added.
        same_arrow_schema: Whether Arrow reads the same with two `ARROW:schema` entries, None where there is none.
            Their bytes are compared unless the caller knows better.

    Returns:
        A reason in words, or None if they can.
    """
    return (
        why_not_copied(first)
        or why_not_copied(other)
        or difference(first.schema, other.schema)
        or _why_not_metadata(first, other, same_arrow_schema)
        or _why_not_writers(first, other)
    )


def why_not_exchanged(footer: Footer, patch: Footer, positions: Sequence[int]) -> str | None:
    """Why columns of one file cannot take the place of those of another, in a row group of that one.

    Args:
        footer: The footer of the file whose row group it is.
        patch: That of the file with the columns.
        positions: Where in a row group of the first file each of them goes.

    Returns:
        A reason in words, or None if they can.
    """
    names = frozenset(leaf.path[0] for leaf in patch.leaves)
    reason = (
        why_not_copied(patch)
        or difference(narrowed(footer.schema, names), patch.schema)
        or _why_not_writers(footer, patch)
    )
    if reason is not None or footer.column_orders is None:  # then nobody trusts bounds
        return reason
    orders = decode_list(footer.column_orders, STRUCT)
    if patch.column_orders is None or len(orders) != len(footer.leaves):
        return "bounds are in no declared order"
    same = decode_list(patch.column_orders, STRUCT) == [orders[position] for position in positions]
    return None if same else "their bounds are in different orders"


def places_of(footer: Footer, patch: Footer) -> set[int]:
    """Where the columns of a patch stand in a footer's schema: in the same order there, and not all of them."""
    reason = None if len(patch.row_groups) == 1 else "a patch has one row group"
    known = {leaf: place_of for place_of, leaf in enumerate(footer.leaves)}
    places = [known[leaf] for leaf in patch.leaves if leaf in known]
    sound = len(known) == len(footer.leaves) and len(places) == len(patch.leaves) > 0
    if reason is None and (not sound or places != sorted(set(places))):
        reason = "the columns of a patch are others"
    if reason is None and len(places) == len(footer.leaves):
        reason = "nothing is left of the row group"
    reason = reason or why_not_exchanged(footer, patch, places)
    if reason is not None:
        raise FooterError(f"columns cannot be exchanged: {reason}")
    return set(places)


def common_writer(first: Footer, texts: set[bytes | None], *, several: bool) -> bytes | None:
    """What a file says that it was created by, given what its row groups' files say.

    Who reads "parketto" knows that pages may differ in what their writers were told, such as to add checksums; so
    files of `several` others say that, even of one writer. Hive and Spark can be told to shift INT96 timestamps of
    all writers but parquet-mr, so its name stays on those; and so do names that readers work around.
    """
    if _has_int96(first) and _is_parquet_mr(first):
        return first.created_by
    if len(texts) == 1 and (not several or not _is_sound(first)):
        return first.created_by
    return f"{ASSEMBLED_BY} version {__version__} (build row-group-copy)".encode()


def _why_not_metadata(first: Footer, other: Footer, same_arrow_schema: SameArrowSchema) -> str | None:
    one, two = first.key_value_metadata, other.key_value_metadata
    if not same_arrow_schema(one.get(_ARROW_SCHEMA), two.get(_ARROW_SCHEMA)):
        return "Arrow's notes on the schema differ"
    temporal = any(leaf.temporal for leaf in first.leaves)
    mine, theirs = reading_rules(one, temporal=temporal), reading_rules(two, temporal=temporal)
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            return f"their notes on {name.decode()!r} differ, and with them how files are read"
    # Bounds without a declared order can be left out; those in another one could not even be told apart.
    if None not in (first.column_orders, other.column_orders) and first.column_orders != other.column_orders:
        return "their bounds are in different orders"
    return None


def _why_not_writers(first: Footer, other: Footer) -> str | None:
    if first.created_by == other.created_by:
        return None
    for footer in (first, other):
        if _writer(footer.created_by) is None:
            return "one of the writers does not tell its version, and readers trust it less for that"
        if not _is_sound(footer):
            return (
                f"readers treat files of {(footer.created_by or b'').decode(errors='replace')!r} in a special way"
            )
    if _has_int96(first) and _is_parquet_mr(first) != _is_parquet_mr(other):
        return "INT96 timestamps mean something else, depending on the writer"
    return None


def reading_rules(notes: Mapping[bytes, bytes | None], *, temporal: bool) -> dict[bytes, object]:
    """What notes of a file say about how it is read. Files in which that differs cannot become one file.

    Args:
        notes: The file's key-value metadata.
        temporal: Whether it has dates or timestamps; to others no calendar matters.

    >>> reading_rules({b"org.apache.spark.version": b"2.4.8", b"pandas": b"{}"}, temporal=True)
    {b'org.apache.spark.version': 0}
    """
    # An empty entry says something, too: Spark asks whether it is there.
    rules: dict[bytes, object] = {
        entry: notes[entry] for entry in (_CALENDAR_KEYS if temporal else ()) if entry in notes
    }
    if AREA in notes:  # areas can be united, if that is all in which they differ
        rules[AREA] = all_but_area(notes[AREA])
    if noted := only_noted(notes):
        rules[SPARK_NOTE] = tuple(sorted(noted.items()))
    version_text = notes.get(SPARK_VERSION) if temporal else None
    # Since the last turn Spark reads its own files as it reads those of everybody else.
    if version_text is not None and version_text < SPARK_TURNS[-1]:
        rules[SPARK_VERSION] = sum(version_text >= turn for turn in SPARK_TURNS)
    return rules


def _writer(created_by: bytes | None) -> tuple[bytes, tuple[int, int, int]] | None:
    found = _WRITER.match(created_by or b"")
    if found is None or max(map(len, found.groups(b"0")[1:])) > 9:
        return None
    name, major, minor, patch = found.groups(b"0")
    return name, (int(major), int(minor), int(patch))


def _is_sound(footer: Footer) -> bool:
    """Whether readers take a writer's files as they are."""
    writer = _writer(footer.created_by)
    return writer is not None and writer[1] >= _SOUND_SINCE.get(writer[0], ())


def _is_parquet_mr(footer: Footer) -> bool:
    return (footer.created_by or b"").startswith(b"parquet-mr")


def _has_int96(footer: Footer) -> bool:
    return any(leaf.physical_type == INT96 for leaf in footer.leaves)
