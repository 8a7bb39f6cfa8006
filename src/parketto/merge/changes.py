"""What change records do to the rows of their keys: the latest row (SCD type 1), or all versions (SCD type 2).

Pure functions of records, current rows and tombstones. Every record has a place in the order of its key, so the
result does not depend on the order in which records arrive, nor on how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from parketto.merge.keys import KeyIndex
from parketto.runtime.arrays import Flags, Indices
from parketto.sorting.order import comparable

#: The columns of a version (SCD type 2).
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
#: Columns of tombstones, besides the keys: the sequence of the delete, and when it was applied (microseconds).
SEQUENCE, AT = "parketto:sequence", "parketto:at"
#: The column of merged rows that flags those that delete; a plain name in SQL.
DELETES = "parketto_deletes"
_KNOWN = np.int64(1) << 62  # a priority above all numbers of records: what is known already wins a tie


@dataclass(frozen=True)
class Records:
    """Change records in the columns of the target; `sequence` orders those of a key."""

    rows: pa.Table
    keys: pa.Table
    sequence: pa.ChunkedArray
    is_delete: Flags

    def tombstones(self, at: int) -> pa.Table:
        """A tombstone for each delete."""
        deletes = pa.array(np.flatnonzero(self.is_delete))
        found = self.keys.take(deletes).append_column(SEQUENCE, self.sequence.take(deletes))
        return found.append_column(AT, pa.repeat(pa.scalar(at, pa.int64()), len(deletes)))


@dataclass(frozen=True)
class Effect:
    """The rows to merge into the target, by `keys`, and the number of records without an effect, if known."""

    #: Rows in the columns of the target, and a flag (`DELETES`) of those that delete.
    rows: pa.Table
    keys: tuple[str, ...]
    update_when: str | None
    delete_when: str
    ignored: int | None = None


def latest_rows(records: Records, sequence_by: str, tombstones: pa.Table) -> Effect:
    """The effect on a table with one row per key: the record with the highest sequence wins.

    Of the same sequence, a delete wins over a row, and a current row over a record. Of several such records, the
    last one wins.

    Args:
        records: The change records.
        sequence_by: The column of records and target with the sequence.
        tombstones: The tombstones of any keys.
    """
    names, known = records.keys.column_names, tombstones.num_rows
    codes = _codes([tombstones.select(names), records.keys])
    rank = _ranks([tombstones.column(SEQUENCE), records.sequence])
    deletes = np.concatenate([np.ones(known, np.bool_), records.is_delete])
    winners = np.sort(_last_of_each([codes], (np.arange(len(codes)), deletes, rank, codes)))
    applied = winners[winners >= known]
    rows = records.rows.take(pa.array(applied - known)).append_column(DELETES, pa.array(deletes[applied]))
    mine, theirs = (f"{side}.{_quoted(sequence_by)}" for side in ("source", "target"))
    return Effect(
        rows,
        tuple(names),
        update_when=f"NOT source.{DELETES} AND ({theirs} IS NULL OR {mine} > {theirs})",
        delete_when=f"source.{DELETES} AND ({theirs} IS NULL OR {mine} >= {theirs})",
    )


def last_records(keys: pa.Table, sequence: pa.ChunkedArray, is_delete: Flags) -> Indices:
    """The positions of the last record and of the last delete of each key, and of a NULL sequence, if any."""
    codes, rank, position = _codes([keys]), _ranks([sequence]), np.arange(len(is_delete))
    deletes = np.flatnonzero(is_delete)
    last = _last_of_each([codes], (position, is_delete, rank, codes))
    of_deletes = _last_of_each([codes[deletes]], (deletes, rank[deletes], codes[deletes]))
    found: Indices = np.unique(np.concatenate([last, deletes[of_deletes], np.flatnonzero(rank == 0)[:1]]))
    return found


def _quoted(name: str) -> str:
    """A column name in SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def versions(records: Records, current: pa.Table, tombstones: pa.Table) -> Effect:
    """The effect on a table with all versions of each key, each valid from its own sequence to the next one.

    A delete ends a version and begins none. Ties are decided as by `latest_rows`.

    Args:
        records: The change records; their rows lack the columns of a version.
        current: All versions of their keys, with all columns.
        tombstones: The tombstones of any keys.
    """
    timeline = _Timeline.of(records, current, tombstones)
    count, first_record, winners = current.num_rows, timeline.first_record, timeline.winners()
    following = timeline.following(winners)
    begins = ~timeline.deletes[winners]
    kept, new = begins & (winners < count), begins & (winners >= first_record)
    changed = kept.copy()
    changed[kept] = timeline.end(following[kept]) != timeline.old_end(winners[kept])
    gone = timeline.replaced_by_deletes(winners)
    old_rows = current.drop_columns([VALID_FROM, VALID_TO, IS_CURRENT]).take(pa.array(winners[changed]))
    new_rows = records.rows.take(pa.array(winners[new] - first_record)).select(old_rows.column_names)
    begin, end = (np.concatenate([events[changed], events[new]]) for events in (winners, following))
    rows = pa.concat_tables([old_rows, new_rows])
    rows = rows.append_column(VALID_FROM, timeline.sequence.take(pa.array(begin)))
    rows = rows.append_column(VALID_TO, timeline.sequence.take(pa.array(end, mask=end < 0)))
    rows = rows.append_column(IS_CURRENT, pa.array(end < 0)).select(current.column_names)
    rows = pa.concat_tables([rows, current.take(pa.array(gone))])
    return Effect(
        rows.append_column(DELETES, pa.array(np.arange(rows.num_rows) >= len(begin))),
        (*records.keys.column_names, VALID_FROM),
        update_when=None,
        delete_when=f"source.{DELETES}",
        ignored=records.rows.num_rows - int(new.sum()) - timeline.count_new_deletes(winners),
    )


@dataclass(frozen=True)
class _Timeline:
    """The events of all keys, by number: beginnings and ends of known versions, tombstones, then records."""

    codes: Indices
    sequence: pa.ChunkedArray
    rank: Indices
    deletes: Flags
    #: The numbers of events that count: the end of a version does only if it was deleted.
    events: Indices
    versions: int
    first_record: int

    @classmethod
    def of(cls, records: Records, current: pa.Table, tombstones: pa.Table) -> _Timeline:
        names, count = records.keys.column_names, current.num_rows
        keys = current.select(names)
        codes = _codes([keys, keys, tombstones.select(names), records.keys])
        parts = [current.column(name) for name in (VALID_FROM, VALID_TO)]
        parts += [tombstones.column(SEQUENCE), records.sequence]
        sequence, rank = _joined(parts), _ranks(parts)
        first_record = 2 * count + tombstones.num_rows
        deletes = np.concatenate([np.arange(first_record) >= count, records.is_delete])
        ends = np.arange(count, 2 * count)
        is_event = np.ones(len(codes), np.bool_)
        # A version that ends where no other one begins was deleted.
        is_event[ends] = (rank[ends] > 0) & ~_is_in(codes, rank, ends, np.arange(count))
        return cls(codes, sequence, rank, deletes, np.flatnonzero(is_event), count, first_record)

    def winners(self) -> Indices:
        """The event that counts for each key and sequence, in their order."""
        codes, rank = self.codes[self.events], self.rank[self.events]
        priority = _priority(len(self.codes), self.first_record)[self.events]
        return self.events[_last_of_each([codes, rank], (priority, self.deletes[self.events], rank, codes))]

    def following(self, winners: Indices) -> Indices:
        """For each winner the next one of its key, or -1."""
        following = np.full(len(winners), -1)
        same_key = np.flatnonzero(self.codes[winners[1:]] == self.codes[winners[:-1]])
        following[same_key] = winners[same_key + 1]
        return following

    def end(self, following: Indices) -> Indices:
        """The rank at which a version ends; 0 if it does not."""
        ends: Indices = np.where(following < 0, 0, self.rank[following])
        return ends

    def old_end(self, known: Indices) -> Indices:
        """The rank at which known versions have ended so far; 0 if they have not."""
        return self.rank[known + self.versions]

    def replaced_by_deletes(self, winners: Indices) -> Indices:
        """The known versions that have the sequence of a delete, one of each."""
        known = np.arange(self.versions)
        found = known[_is_in(self.codes, self.rank, known, winners[self.deletes[winners]])]
        return found[_last_of_each([self.codes[found], self.rank[found]], (self.rank[found], self.codes[found]))]

    def count_new_deletes(self, winners: Indices) -> int:
        """The number of deletes that were not known."""
        new = winners[self.deletes[winners] & (winners >= self.first_record)]
        known = self.events[self.deletes[self.events] & (self.events < self.first_record)]
        return int((~_is_in(self.codes, self.rank, new, known)).sum())


def merged_tombstones(old: pa.Table, new: pa.Table, *, latest_only: bool) -> pa.Table:
    """Distinct tombstones; `latest_only`: only the one with the highest sequence of each key."""
    both = pa.concat_tables([old, new])
    names = [name for name in both.column_names if name not in (SEQUENCE, AT)]
    codes, rank = _codes([both.select(names)]), _ranks([both.column(SEQUENCE)])
    at = -np.arange(both.num_rows)  # of equal ones, the first
    groups = [codes] if latest_only else [codes, rank]
    return both.take(pa.array(np.sort(_last_of_each(groups, (at, rank, codes)))))


def _codes(keys: Sequence[pa.Table]) -> Indices:
    """A number for each row, which only rows with the same key share."""
    rows = pa.concat_tables(keys)
    return KeyIndex(rows, rows.column_names).codes


def _joined(parts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)


def _ranks(parts: Sequence[pa.ChunkedArray]) -> Indices:
    """The rank of each value among all of them; 0 for NULL."""
    values = comparable(_joined(parts))
    found = pc.rank(values.combine_chunks(), sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    ranks: Indices = np.where(pc.is_valid(values).to_numpy(), found, 0)
    return ranks


def _priority(count: int, known: int) -> Indices:
    """Priorities of equal events: what is known already first, then later records."""
    found = np.arange(count, dtype=np.int64)
    found[:known] += _KNOWN
    return found


def _last_of_each(groups: Sequence[Indices], order: tuple[npt.NDArray[np.generic], ...]) -> Indices:
    """The last element of each group; `order` are keys for `np.lexsort`, of which the last are the groups."""
    ordered: Indices = np.lexsort(order)
    differs = np.zeros(max(0, len(ordered) - 1), np.bool_)
    for group in groups:
        differs |= group[ordered][1:] != group[ordered][:-1]
    last: Indices = ordered[np.append(differs, True)[: len(ordered)]]
    return last


def _is_in(codes: Indices, rank: Indices, events: Indices, others: Indices) -> Flags:
    """Whether events have the key and the rank of any of the others."""
    width = int(rank.max(initial=0)) + 1
    found: Flags = np.isin(codes[events] * width + rank[events], codes[others] * width + rank[others])
    return found
