"""Apply change records to a dataset: the latest row of each key (SCD type 1), or all versions (SCD type 2).

It is a merge of the records that win. About two records per key are held in memory; with all versions all records
of one call, and the current versions of their keys.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from parketto.commit.tombstones import (
    OPERATION,
    STATISTIC,
    Tombstones,
    check_tombstones,
    read_tombstones,
    remove_tombstones,
    stage_tombstones,
)
from parketto.commit.transaction import Transaction
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import DatasetNotFound
from parketto.expressions.dispatch import predicate
from parketto.expressions.time_zones import Clock
from parketto.merge.change_rules import ChangeRules, CollectRecords, changed_target, collected, records_of
from parketto.merge.changes import AT, DELETES, Effect, Records, latest_rows, merged_tombstones, versions
from parketto.merge.enum_notes import files_without_enum_notes
from parketto.merge.key_rows import FindRows, KeyLookup
from parketto.merge.keys import may_share_key
from parketto.merge.rules import MergeRules
from parketto.merge.target import MergeOutcome, MergeTarget
from parketto.operations.context import Backups, DatasetContext, entries
from parketto.operations.delete_keys import prepared_keys, readable_rows
from parketto.operations.expectations import Expect, Inspection, begun, inspecting
from parketto.operations.merge import publish_merge
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_source import ArrowRows, RowSource
from parketto.results import ChangeStats
from parketto.storage.listing import refuse_foreign

_DAY = 24 * 60 * 60 * 1_000_000  # microseconds


def apply_changes(
    dataset: DatasetContext,
    source: RowSource,
    rules: ChangeRules,
    compression: str,
    partition_by: tuple[str, ...],
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
    backups: Backups | None = None,
    commit_id: str | None = None,
    expect: Expect | None = None,
    pack: bool = True,
) -> ChangeStats:
    """Discover → decide → merge → verify → commit → report."""
    refuse_foreign(dataset.store, dataset.root)
    clock, condition = dataset.clock(), None
    if rules.delete_when is not None:
        condition = predicate(rules.delete_when, source.schema, clock)
    rules.written(source.schema)  # raises before a stream is read
    bound = None if expect is None else expect.bound(source.schema, source.schema, clock)
    if not dry_run:
        commit_id = begun(bound, dataset, commit_id)
    known = None
    if isinstance(source, ArrowRows):  # a stream can be read only once
        if bound is None:
            known = collected(source.batches, rules, condition)
        else:
            source = ArrowRows(source.schema, list(source.batches))

    def attempt(transaction: Transaction) -> ChangeStats:
        with inspecting(bound, dataset, transaction, dry_run=dry_run) as inspection:
            return applied(transaction, inspection)

    def applied(transaction: Transaction, inspection: Inspection) -> ChangeStats:
        try:
            files: Sequence[FileInfo] = files_without_enum_notes(
                dataset.snapshot_in(transaction, stats_columns=None).files, source.schema
            )
        except DatasetNotFound:
            files = ()
        target = changed_target(dataset.root, files, rules, source.schema, condition, compression, partition_by)
        context = dataset.context(transaction, progress)
        with transaction.conflicts_over(entries(files)):
            found = known
            if found is None:
                rows = readable_rows(dataset, inspection.passed(dataset, source, context), context)
                if isinstance(rows, ArrowRows):
                    found = collected(rows.batches, rules, condition)
                else:
                    found = dataset.engine.run_here(CollectRecords(rows, rules, condition), context)
            records = records_of(found.batches, rules, condition, target)
            decision = _decide(dataset, records, found.total, rules, target, context)
            target = decision.merge_target(target, clock, dry_run=dry_run)
            target = replace(target, pack=pack, processes=dataset.engine.task_processes())
            merged = ArrowRows(decision.effect.rows.schema, decision.effect.rows.to_batches())
            outcome = dataset.engine.merge(merged, target, context)
        if not dry_run:
            always = commit_id is not None
            _publish(dataset, transaction, decision, merged, target, outcome, context, inspection, always=always)
        stats = decision.stats(target, outcome, inspection)
        return stats if backups is None else {**stats, "backup_path": transaction.backup_path}

    arguments = {
        "key_columns": list(rules.keys),
        "sequence_by": rules.sequence_by,
        "delete_when": None if rules.delete_when is None else str(rules.delete_when),
        "scd": rules.scd,
        **({} if expect is None else expect.arguments),
    }
    # The log keeps the last commit of each application, and with it the name of the tombstones.
    identity = commit_id if dry_run else commit_id or f"{OPERATION}:{uuid.uuid4().hex}"
    request = dataset.request(OPERATION, arguments, identity)
    return dataset.run(request, attempt, known=_logged, backups=backups, dry_run=dry_run)


def _logged(statistics: Mapping[str, Any]) -> ChangeStats:
    return cast("ChangeStats", {name: value for name, value in statistics.items() if name != STATISTIC})


@dataclass(frozen=True)
class _Decision:
    """The effect of the records on rows, and on tombstones."""

    effect: Effect
    num_records: int
    seen: Tombstones
    #: All tombstones from now on; None if they stay as they are.
    tombstones: pa.Table | None

    def merge_target(self, target: MergeTarget, clock: Clock, *, dry_run: bool) -> MergeTarget:
        """The target of the merge that has this effect."""
        effect = self.effect
        rules = MergeRules(
            "upsert",
            effect.keys,
            update_when=effect.update_when,
            delete_when=effect.delete_when,
            insert_when=f"NOT source.{DELETES}",
            null_keys_match=True,  # no record has one, so rows with NULL keys stay
        )
        return replace(target, rules=rules, source=effect.rows.schema, dry_run=dry_run).with_clauses(clock)

    def stats(self, target: MergeTarget, outcome: MergeOutcome, inspection: Inspection) -> ChangeStats:
        ignored = self.effect.ignored
        if ignored is None:
            ignored = max(0, self.num_records - outcome.inserted - outcome.updated - outcome.deleted)
        stats = ChangeStats(
            inserted=outcome.inserted,
            updated=outcome.updated,
            deleted=outcome.deleted,
            ignored=ignored,
            total=target.num_rows + outcome.inserted - outcome.deleted,
        )
        return inspection.report(stats)


def _decide(
    dataset: DatasetContext,
    records: Records,
    num_records: int,
    rules: ChangeRules,
    target: MergeTarget,
    context: Context,
) -> _Decision:
    """Decide which records are applied."""
    seen, at = read_tombstones(dataset.workspace), time.time_ns() // 1000
    old = _recent(seen, records.tombstones(at).slice(0, 0), at - int(rules.tombstone_days * _DAY))
    if rules.scd == 1:
        effect = latest_rows(records, rules.sequence_by, old)
    else:
        effect = versions(records, _current_versions(dataset, records, rules, target, context), old)
    tombstones = merged_tombstones(old, records.tombstones(at), latest_only=rules.scd == 1)
    return _Decision(effect, num_records, seen, None if tombstones.equals(old) else tombstones)


def _recent(seen: Tombstones, like: pa.Table, since: int) -> pa.Table:
    """The tombstones of the same keys that are not too old."""
    if seen.rows is None or set(seen.rows.column_names) != set(like.column_names):
        return like
    recent = seen.rows.filter(pa.array(seen.rows.column(AT).to_numpy() >= since))
    return recent.select(like.column_names).cast(like.schema)


def _current_versions(
    dataset: DatasetContext, records: Records, rules: ChangeRules, target: MergeTarget, context: Context
) -> pa.Table:
    """All versions of the keys, with all columns."""
    schema = target.row_schema
    if not target.files or not records.rows.num_rows:
        return schema.empty_table()
    keys = ArrowRows(records.keys.schema, records.keys.to_batches())
    prepared = prepared_keys(dataset, keys, rules.keys, target.files, context)
    tasks = [
        FindRows(KeyLookup(file, prepared, rules.keys, target.spec), tuple(schema.names))
        for file in target.files
        if may_share_key(file, rules.keys, prepared.ranges)
    ]
    found = dataset.engine.run(tasks, replace(context, progress=None))
    tables = [table.select(schema.names).cast(schema) for table in found if table is not None]
    return pa.concat_tables([schema.empty_table(), *tables])


def _publish(
    dataset: DatasetContext,
    transaction: Transaction,
    decision: _Decision,
    source: ArrowRows,
    target: MergeTarget,
    outcome: MergeOutcome,
    context: Context,
    inspection: Inspection,
    *,
    always: bool,
) -> None:
    """Commit the merged rows together with the tombstones."""
    workspace, seen = dataset.workspace, decision.seen
    name = seen.name
    if decision.tombstones is not None:
        name = stage_tombstones(workspace, decision.tombstones) if decision.tombstones.num_rows else None
    publish_merge(
        dataset,
        transaction,
        source,
        target,
        outcome,
        context,
        inspection,
        always=always or decision.tombstones is not None,
        statistics={**decision.stats(target, outcome, inspection), STATISTIC: name},
        validate=lambda: check_tombstones(workspace, seen),
    )
    remove_tombstones(workspace, seen.name, name)
