"""Broadcast merge: every task reads the whole source. For sources that fit into memory, on any engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parketto.merge.broadcast import AddRows, FileEdits, Matched, MatchFile, RewriteMatches
from parketto.merge.decision import FileMatches, MergeDecision, decide
from parketto.merge.file_edits import Rewritten
from parketto.merge.keys import may_share_key
from parketto.merge.source import FOLDER, Prepared, PrepareSource, SpooledSource
from parketto.merge.target import MergeOutcome, MergeTarget
from parketto.parquet.output import Replaced, Written
from parketto.parquet.row_source import ArrowRows, FileRows
from parketto.planning.edit_groups import EditGroup
from parketto.runtime.arrays import Indices
from parketto.runtime.task import AnyTask

if TYPE_CHECKING:
    from parketto.engines.base import Context, Engine


def broadcast_merge(
    engine: Engine, source: FileRows | ArrowRows, target: MergeTarget, context: Context
) -> MergeOutcome:
    """Match the keys of every file, decide, and write what changes."""
    prepared = _prepare(engine, source, target, context)
    # Tasks do not need to know which source rows are not inserted.
    prepared, refused = replace(prepared, refused=None), prepared.refused
    decision, matched, scanned = _decide(engine, prepared, refused, target, context)
    target.refuse_unfilled(decision.inserted)
    if target.dry_run:
        return _planned(prepared, decision, target, scanned, context)
    outcome = _write(engine, prepared, decision, matched, target, context)
    return replace(outcome, scanned=scanned)


def _prepare(engine: Engine, source: FileRows | ArrowRows, target: MergeTarget, context: Context) -> Prepared:
    path = context.staging.spool_path("source.arrow")
    context.store.make_dirs(path.rpartition("/")[0])
    task = PrepareSource(source, target.schema, target.spec, target.rules, path, target.clauses, target.scope)
    if isinstance(source, ArrowRows):
        return engine.run_here(task, context)
    return engine.run([task], replace(context, progress=None))[0]


def _decide(
    engine: Engine, prepared: Prepared, refused: Indices | None, target: MergeTarget, context: Context
) -> tuple[MergeDecision, dict[str, Matched], int]:
    """The decision, the matches by file path, and the number of scanned files."""
    rules = target.rules
    files = [file for file in target.files if may_share_key(file, rules.keys, prepared.ranges)]
    clauses = target.clauses if target.judges else None
    tasks = [
        MatchFile(file, prepared, rules, target.spec, target.folder_of(file), clauses, target.scope)
        for file in files
    ]
    results = engine.run(tasks, replace(context, operation="match"))
    matches = [
        FileMatches(file, found.sources, found.same_folder, found.num_rows, found.matched, found.untouched)
        for file, found in zip(files, results, strict=True)
    ]
    matched = {file.path: found for file, found in zip(files, results, strict=True)}
    decision = decide(target.rules, target.change, target.files, matches, prepared.num_rows, refused, target.scope)
    return decision, matched, len(files)


def _write(
    engine: Engine,
    prepared: Prepared,
    decision: MergeDecision,
    matched: Mapping[str, Matched],
    target: MergeTarget,
    context: Context,
) -> MergeOutcome:
    found = {each.file.path: each for each in decision.rewrites}
    tasks: list[AnyTask] = [
        RewriteMatches(
            tuple(
                FileEdits(
                    file,
                    found[file.path].in_place,
                    found[file.path].moves_out,
                    matched[file.path].row_groups if file.path in matched else frozenset(),
                    matched[file.path].matches if file.path in matched else None,
                )
                for file in group
            ),
            prepared,
            target.rules,
            target.rewriting,
            target.clauses if target.judges else None,
            target.scope,
        )
        for group in _groups(decision, target)
    ]
    rewriting = len(tasks)
    if len(decision.additions):
        tasks.append(AddRows(prepared, decision.additions, target.additions, target.rules))
    results = engine.run(tasks, context)
    rewritten = Rewritten.total(results[:rewriting])
    added: list[Written] = results[rewriting:]
    return MergeOutcome(
        rewritten=rewritten.files.replaced,
        removed=(*decision.removals, *rewritten.files.emptied),
        added=sum(added, rewritten.moved_out),
        inserted=decision.inserted,
        updated=decision.updated,
        deleted=decision.deleted,
        ranges=prepared.ranges,
    )


def _groups(decision: MergeDecision, target: MergeTarget) -> list[EditGroup]:
    return target.groups(
        {each.file.path: each.num_rows for each in decision.rewrites}, {file.path for file in decision.removals}
    )


def _planned(
    prepared: Prepared, decision: MergeDecision, target: MergeTarget, scanned: int, context: Context
) -> MergeOutcome:
    """The outcome of a dry run."""
    return MergeOutcome(
        rewritten=tuple(Replaced(group) for group in _groups(decision, target)),
        removed=decision.removals,
        added=Written(),
        inserted=decision.inserted,
        updated=decision.updated,
        deleted=decision.deleted,
        ranges=prepared.ranges,
        scanned=scanned,
        added_folders=_folders(prepared, decision, target, context),
    )


def _folders(
    prepared: Prepared, decision: MergeDecision, target: MergeTarget, context: Context
) -> tuple[str, ...]:
    added = np.concatenate([decision.additions, *(each.moves_out for each in decision.rewrites)])
    if not len(added) or not target.spec.partition_by:
        return ("",) * min(1, len(added))
    rows = SpooledSource(context.store, prepared, target.rules).rows
    return tuple(pc.unique(rows.column(FOLDER).take(pa.array(added))).to_pylist())
