"""The rules of applied changes, and change records in the columns of their target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from parketto.arguments import check_names
from parketto.errors import ColumnNotFound, InvalidArgument, quoted
from parketto.expressions.conditions import Predicate
from parketto.merge.changes import IS_CURRENT, VALID_FROM, VALID_TO, Records, last_records
from parketto.merge.rules import MergeRules, check_schemas, null_keys
from parketto.merge.source import as_target, prepared_schema
from parketto.merge.target import MergeTarget
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.row_source import FileRows
from parketto.runtime.arrays import Flags
from parketto.runtime.task import Worker
from parketto.sorting.order import check_orderable

_REDUCE_ROWS = 100_000  # records in memory before those without an effect are removed
VERSION_COLUMNS = (VALID_FROM, VALID_TO, IS_CURRENT)


@dataclass(frozen=True)
class ChangeRules:
    """How change records are applied, checked."""

    keys: tuple[str, ...]
    sequence_by: str
    #: The condition of records that delete; None if there are none.
    delete_when: Any = None
    #: The columns that are written; None: all.
    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] = ()
    #: 1: the latest row of each key; 2: all versions.
    scd: int = 1
    tombstone_days: float = 7

    @classmethod
    def of(
        cls,
        key_columns: str | Sequence[str] | None,
        sequence_by: Any,
        delete_when: Any,
        columns: str | Sequence[str] | None,
        except_columns: str | Sequence[str] | None,
        scd: int | str,
        tombstone_days: Any,
    ) -> ChangeRules:
        """Check what can be checked without any data.

        >>> ChangeRules.of(["id"], "at", None, None, None, 3, 7)
        Traceback (most recent call last):
            ...
        parketto.errors.InvalidArgument: unknown scd 3; valid choices: 1 (the latest row), 2 (all versions)
        """
        if key_columns is None:
            raise InvalidArgument("apply_changes needs key_columns: the columns that identify a row")
        if str(scd) not in ("1", "2"):
            raise InvalidArgument(f"unknown scd {scd!r}; valid choices: 1 (the latest row), 2 (all versions)")
        if not isinstance(sequence_by, str):
            raise InvalidArgument(f"sequence_by must be a column name, got {sequence_by!r}")
        if columns is not None and except_columns is not None:
            raise InvalidArgument("pass columns or except_columns, not both")
        if isinstance(tombstone_days, bool) or not isinstance(tombstone_days, int | float) or tombstone_days < 0:
            raise InvalidArgument(f"tombstone_days must be a number of at least 0, got {tombstone_days!r}")
        return cls(
            check_names("key_columns", _listed(key_columns)),
            sequence_by,
            delete_when,
            None if columns is None else check_names("columns", _listed(columns)),
            () if except_columns is None else check_names("except_columns", _listed(except_columns)),
            int(scd),
            tombstone_days,
        )

    def written(self, source: pa.Schema) -> list[str]:
        """The columns of the records that are written, in their order."""
        for argument, names in (
            ("key_columns", self.keys),
            ("sequence_by", (self.sequence_by,)),
            ("columns", self.columns or ()),
            ("except_columns", self.except_columns),
        ):
            if missing := [name for name in names if name not in source.names]:
                raise ColumnNotFound(missing, source.names, f"{argument} of the changes")
        check_orderable([*self.keys, self.sequence_by], source)
        chosen = source.names if self.columns is None else self.columns
        written = [name for name in source.names if name in chosen and name not in self.except_columns]
        needed = [*self.keys, *([self.sequence_by] if self.scd == 1 else [])]
        if missing := [name for name in needed if name not in written]:
            raise InvalidArgument(
                f"{quoted(missing)} must be written, but columns or except_columns exclude it: rows are found by "
                "their keys, and the sequence of a row shows which records are older"
            )
        if self.scd == 2 and (both := [name for name in VERSION_COLUMNS if name in written]):
            raise InvalidArgument(f"the changes must not have {quoted(both)}: with scd=2 these are computed")
        return written


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def changed_target(
    root: str,
    files: Sequence[FileInfo],
    rules: ChangeRules,
    source: pa.Schema,
    condition: Predicate | None,
    compression: str,
    partition_by: tuple[str, ...],
) -> MergeTarget:
    """The dataset that records are applied to; without files, one that is to be created."""
    written = rules.written(source)
    merge_rules = MergeRules("upsert", rules.keys)
    if not files:
        schema = _with_versions(source, written, rules)
        return MergeTarget(root, (), PartitionSpec(partition_by), schema, merge_rules, compression, schema)
    target = MergeTarget.of(root, files, merge_rules, compression, source, partition_by)
    used = () if condition is None else condition.columns
    # A column that only marks deletes need not be excluded.
    written = [name for name in written if name in target.schema.names or name not in used]
    if rules.scd == 2 and (missing := [name for name in VERSION_COLUMNS if name not in target.schema.names]):
        raise ColumnNotFound(missing, target.schema.names, "columns of versions (scd=2)")
    check_schemas(merge_rules, _with_versions(source, written, rules), target.schema, target.spec, may_cast=False)
    return target


def _with_versions(source: pa.Schema, written: Sequence[str], rules: ChangeRules) -> pa.Schema:
    fields = [source.field(name) for name in written]
    if rules.scd == 2:
        kind = source.field(rules.sequence_by).type
        fields += [pa.field(VALID_FROM, kind), pa.field(VALID_TO, kind), pa.field(IS_CURRENT, pa.bool_())]
    return pa.schema(fields, source.metadata)


def records_of(
    batches: Iterable[pa.RecordBatch], rules: ChangeRules, condition: Predicate | None, target: MergeTarget
) -> Records:
    """Change records in the columns and types of their target."""
    whole = prepared_schema(target.schema, target.spec)
    schema = pa.schema([item for item in whole if rules.scd == 1 or item.name not in VERSION_COLUMNS])
    sequence_field = whole.field(rules.sequence_by if rules.scd == 1 else VALID_FROM)
    sequence_schema = pa.schema([pa.field(rules.sequence_by, sequence_field.type)])
    rows: list[pa.RecordBatch] = []
    sequences: list[pa.RecordBatch] = []
    deletes = [np.empty(0, np.bool_)]
    for batch in batches:
        rows += as_target([batch], schema)
        sequences += as_target([batch], sequence_schema)
        deletes.append(_deletes(batch, condition))
    table = pa.Table.from_batches(rows, schema)
    sequence = pa.Table.from_batches(sequences, sequence_schema).column(0)
    for name in rules.keys:
        if table.column(name).null_count:
            raise null_keys(name, "changes")
    if sequence.null_count:
        raise InvalidArgument(
            f"NULL values in sequence_by {rules.sequence_by!r} of the changes: every record needs its place in "
            "the order. Filter these records out or fill the column first; nothing was changed"
        )
    return Records(table, table.select(list(rules.keys)), sequence, np.concatenate(deletes))


@dataclass(frozen=True)
class Collected:
    """Change records in memory, and how many the source has."""

    batches: list[pa.RecordBatch]
    total: int


def collected(batches: Iterable[pa.RecordBatch], rules: ChangeRules, condition: Predicate | None) -> Collected:
    """The records of a source. With `scd=1`, those that can have an effect: about two per key are held."""
    held: list[pa.RecordBatch] = []
    total, rows, limit = 0, 0, _REDUCE_ROWS
    for batch in batches:
        held.append(batch)
        total += batch.num_rows
        rows += batch.num_rows
        if rules.scd == 1 and rows >= limit:
            held = _latest(held, rules, condition)
            rows = sum(each.num_rows for each in held)
            limit = max(_REDUCE_ROWS, 2 * rows)
    return Collected(held, total)


def _latest(
    batches: Sequence[pa.RecordBatch], rules: ChangeRules, condition: Predicate | None
) -> list[pa.RecordBatch]:
    """The last record and the last delete of each key, which is a tombstone, in their order."""
    names = [*rules.keys, rules.sequence_by]
    used = prepared_schema(pa.schema([batches[0].schema.field(name) for name in names]), PartitionSpec())
    known = pa.Table.from_batches(list(as_target(batches, used)), used)
    deletes = np.concatenate([_deletes(batch, condition) for batch in batches])
    kept = last_records(known.select(list(rules.keys)), known.column(rules.sequence_by), deletes)
    return list(pa.Table.from_batches(batches).take(pa.array(kept)).combine_chunks().to_batches())


def _deletes(batch: pa.RecordBatch, condition: Predicate | None) -> Flags:
    """Which records delete."""
    if condition is None:
        return np.zeros(batch.num_rows, np.bool_)
    found: Flags = condition.matches(batch).to_numpy(zero_copy_only=False)
    return found


@dataclass(frozen=True)
class CollectRecords:
    """Read the change records of some files."""

    rows: FileRows
    rules: ChangeRules
    condition: Predicate | None

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return self.rows.size_bytes

    def run(self, worker: Worker) -> Collected:
        """Read the records."""
        return collected(self.rows.read(worker), self.rules, self.condition)
