"""A merge whose source every task has at hand: the way for sources that fit into memory, on any engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parketto.kernels.keys import may_share_key
from parketto.kernels.merge import AddRows, MatchFile, RewriteMatches
from parketto.kernels.merge_source import Prepared, PrepareSource
from parketto.kernels.merge_target import MergeOutcome, MergeTarget
from parketto.kernels.rows import ArrowRows, FileRows
from parketto.kernels.work import AnyTask
from parketto.kernels.write import Written
from parketto.plan.merge import FileMatches, MergeDecision, decide

if TYPE_CHECKING:
    from parketto.engines.base import Context, Engine


def merge_small(
    engine: Engine, source: FileRows | ArrowRows, target: MergeTarget, context: Context
) -> MergeOutcome:
    """Match the keys of every file, decide, and write what changes."""
    prepared = _prepare(engine, source, target, context)
    decision = _decide(engine, prepared, target, context)
    return _write(engine, prepared, decision, target, context)


def _prepare(engine: Engine, source: FileRows | ArrowRows, target: MergeTarget, context: Context) -> Prepared:
    path = context.staging.spool_path("source.arrow")
    context.store.make_dirs(path.rpartition("/")[0])
    task = PrepareSource(source, target.schema, target.form, target.rules, path)
    if isinstance(source, ArrowRows):
        return engine.run_here(task, context)
    return engine.run([task], replace(context, progress=None))[0]


def _decide(engine: Engine, prepared: Prepared, target: MergeTarget, context: Context) -> MergeDecision:
    keys = target.rules.keys
    files = [file for file in target.files if may_share_key(file, keys, prepared.ranges)]
    tasks = [MatchFile(file, prepared, keys, target.form) for file in files]
    results = engine.run(tasks, replace(context, operation="match"))
    matches = [
        FileMatches(file, found.sources, found.at_home, found.num_rows)
        for file, found in zip(files, results, strict=True)
    ]
    return decide(target.rules, target.files, matches, prepared.num_rows)


def _write(
    engine: Engine, prepared: Prepared, decision: MergeDecision, target: MergeTarget, context: Context
) -> MergeOutcome:
    rules = target.rules
    tasks: list[AnyTask] = [
        RewriteMatches(file, prepared, rules.keys, target.form, homes, rules.removes_missing, target.compression)
        for file, homes in decision.rewrites
    ]
    if len(decision.additions):
        tasks.append(AddRows(prepared, decision.additions, target.additions, rules.keys))
    results: list[Written] = engine.run(tasks, context)
    rewritten = [file for file, _ in decision.rewrites]
    return MergeOutcome(
        rewritten=tuple(zip(rewritten, results, strict=False)),
        removed=decision.removals,
        added=sum(results[len(rewritten) :], Written()),
        inserted=decision.inserted,
        updated=decision.updated,
        deleted=decision.deleted,
        ranges=prepared.ranges,
    )
