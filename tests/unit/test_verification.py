"""An engine that loses rows, changes columns or writes no file: nothing is committed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from parketto import CommitFailed, Dataset
from parketto.engines.base import Context, GroupResult
from parketto.engines.pyarrow.engine import PyArrowEngine
from parketto.merge.target import MergeOutcome, MergeTarget
from parketto.parquet.output import Output, Written
from parketto.parquet.row_source import RowSource
from parketto.planning.rewrite import RewritePlan
from parketto.runtime.staging import StagedFile
from parketto.tasks.edit import Edited

Fault = Callable[[str], None]


TIME = pa.timestamp("ns", "UTC")


def rows(first: int) -> pa.Table:
    ids = range(first, first + 4)
    return pa.table({"id": pa.array(ids, pa.int64()), "at": pa.array(ids, TIME)})


def rewrite(path: str, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    pq.write_table(change(pq.read_table(path)), path, **options)


def lose_a_row(path: str) -> None:
    rewrite(path, lambda table: table.slice(1))


def narrow_a_column(path: str) -> None:
    rewrite(path, lambda table: table.set_column(0, "id", table["id"].cast(pa.int32())))


def store_another_physical_type(path: str) -> None:
    """With the same Arrow schema."""
    rewrite(path, lambda table: table, use_deprecated_int96_timestamps=True)


def lose_a_column(path: str) -> None:
    rewrite(path, lambda table: table.drop_columns("at"))


class FaultyEngine(PyArrowEngine):
    """Runs tasks as ever, then damages the files that they have staged."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault

    def _damage(self, staged: Iterable[StagedFile]) -> None:
        for file in staged:
            self._fault(file.path)

    def run(self, tasks: Sequence[Any], context: Context) -> list[Any]:
        results = super().run(tasks, context)
        for result in results:
            if isinstance(result, Edited):
                self._damage(result.files.written.staged)
        return results

    def rewrite(self, plan: RewritePlan, context: Context) -> Sequence[GroupResult]:
        results = super().rewrite(plan, context)
        self._damage(file for result in results for file in result.staged)
        return results

    def write(self, source: RowSource, output: Output, context: Context) -> Written:
        written = super().write(source, output, context)
        self._damage(written.staged)
        return written

    def merge(self, source: RowSource, target: MergeTarget, context: Context) -> MergeOutcome:
        outcome = super().merge(source, target, context)
        self._damage(file for each in outcome.rewritten for file in each.written.staged)
        self._damage(outcome.added.staged)
        return outcome


class RemoteEngine(PyArrowEngine):
    """Runs tasks as if in other processes: they and their results are pickled."""

    def run(self, tasks: Sequence[Any], context: Context) -> list[Any]:
        results: list[Any] = pickle.loads(pickle.dumps(super().run(pickle.loads(pickle.dumps(tasks)), context)))
        return results


OPERATIONS: dict[str, Callable[[Dataset], object]] = {
    "compact": lambda dataset: dataset.compact(),
    "optimize": lambda dataset: dataset.optimize(["at"]),
    "append": lambda dataset: dataset.write(rows(8), mode="append"),
    "repartition": lambda dataset: dataset.repartition(["id"]),
    "delete": lambda dataset: dataset.delete("id = 1"),
    "packed delete": lambda dataset: dataset.delete("id IN (1, 5)"),
    "update": lambda dataset: dataset.update("id = 1", {"at": None}),
    "merge": lambda dataset: dataset.merge(rows(2).set_column(1, "at", pa.nulls(4, TIME)), ["id"]),
    "insert": lambda dataset: dataset.merge(rows(8), ["id"], strategy="insert"),
}
ROWS, SCHEMA, OTHER_TYPE = "row counts differ", "the schema of a file", "would become"
FAULTS: list[tuple[str, Fault, str]] = [
    *((name, lose_a_row, ROWS) for name in OPERATIONS),
    *((name, os.remove, "a staged file is missing") for name in OPERATIONS),
    *((name, narrow_a_column, SCHEMA) for name in OPERATIONS),
    *((name, lose_a_column, SCHEMA) for name in ("append", "repartition")),
    *((name, store_another_physical_type, OTHER_TYPE) for name in ("compact", "delete", "append", "insert")),
]


@pytest.mark.parametrize(
    ("operation", "fault", "problem"), FAULTS, ids=[f"{name}-{fault.__name__}" for name, fault, _ in FAULTS]
)
def test_faulty_files_are_never_committed(local: Place, operation: str, fault: Fault, problem: str) -> None:
    local.write_files({"0.parquet": rows(0), "1.parquet": rows(4)})
    state = local.state()
    with pytest.raises(CommitFailed, match=problem):
        OPERATIONS[operation](local.dataset(engine=FaultyEngine(fault)))
    assert local.state() == state
    assert local.left_behind() == []


class UncountedEngine(PyArrowEngine):
    """Reports one inserted row more than it writes."""

    def merge(self, source: RowSource, target: MergeTarget, context: Context) -> MergeOutcome:
        found = super().merge(source, target, context)
        return replace(found, inserted=found.inserted + 1)


def test_merge_with_an_unexpected_total_is_not_committed(local: Place) -> None:
    local.write_files({"0.parquet": rows(0)})
    state = local.state()
    with pytest.raises(CommitFailed, match="the merge would leave 6 rows, expected 7"):
        local.dataset(engine=UncountedEngine()).merge(rows(2), ["id"])
    assert local.state() == state


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: dataset.delete("id = 1 OR id = 5"),
        lambda dataset: dataset.update("id = 1", {"name": "x"}),
        lambda dataset: dataset.merge(dataset.read(where="id = 1").set_column(2, "name", [["x"]]), "id"),
    ],
    ids=["delete", "update", "merge"],
)
def test_tasks_of_other_processes_keep_the_schema(local: Place, change: Callable[[Dataset], object]) -> None:
    """Arrow names the entries of a map after its column if the file has no Arrow schema. Pickles drop that."""
    for first in (0, 4):
        ids = pa.array(range(first, first + 4), pa.int64())
        tags = pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64()))
        table = pa.table({"id": ids, "tags": tags, "name": ["n"] * 4})
        os.makedirs(local.root, exist_ok=True)
        pq.write_table(table, f"{local.root}/{first}.parquet", store_schema=False)
    schema = local.dataset().schema
    change(local.dataset(engine=RemoteEngine()))
    assert local.dataset().schema == schema
