"""The view of a plain reader after every single step of an operation: the old rows or the new ones.

The reader does not use Parketto: it walks the folders and reads every Parquet file that is not hidden.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers.crash import DEATHS, mortal
from parketto import Dataset, sql
from parketto.storage.exchange import exchange_problem
from parketto.storage.store import MUTATIONS

Rows = Counter[str]
Operation = Callable[[Dataset], object]

COLUMNS = ("id", "n", "day", "kind")
DAYS = range(1, 5)
# Some keys keep their partition, some move to another one, some are new, some of these in a new partition.
SOURCE = pa.table({"id": [2, 13, 31, 500, 501], "n": [1, 2, 3, 4, 5], "day": [1, 3, 4, 2, 9], "kind": [*"aabbc"]})
NEW = pa.table({"id": [700, 701, 702, 703], "n": [1, 2, 3, 4], "day": [1, 2, 3, 9], "kind": [*"abab"]})

OPERATIONS: dict[str, Operation] = {
    "append": lambda dataset: dataset.write(NEW, max_rows_per_file=2, **like(dataset)),
    "overwrite": lambda dataset: dataset.write(NEW, "overwrite", max_rows_per_file=2, **like(dataset)),
    "overwrite, partitioned": lambda dataset: dataset.write(NEW, "overwrite", partition_by=["kind", "day"]),
    "overwrite, flat": lambda dataset: dataset.write(NEW, "overwrite", max_rows_per_file=3),
    "compact": lambda dataset: dataset.compact(target_rows_per_file=40),
    "optimize": lambda dataset: dataset.optimize(["n", "id"], target_rows_per_file=8),
    "delete": lambda dataset: dataset.delete("id % 5 = 1"),
    "delete of whole files": lambda dataset: dataset.delete("id < 16 AND id % 8 < 4 OR day = 3"),
    "update": lambda dataset: dataset.update("id % 3 = 0", {"n": sql("n + 1000")}),
    "update that moves rows": lambda dataset: dataset.update("id % 4 = 0", {"day": sql("day + id % 3")}),
    "upsert": lambda dataset: dataset.merge(SOURCE, ["id"]),
    "insert": lambda dataset: dataset.merge(SOURCE, ["id"], strategy="insert"),
    "full merge": lambda dataset: dataset.merge(SOURCE, ["id"], strategy="full_merge"),
    "repartition by day": lambda dataset: dataset.repartition("day"),
    "repartition by other columns": lambda dataset: dataset.repartition(["kind", "day"]),
    "repartition to one folder": lambda dataset: dataset.repartition(None),
}
LAYOUTS = ("flat", "partitioned")
NOTHING_TO_DO = {("repartition by day", "partitioned"), ("repartition to one folder", "flat")}


def like(dataset: Dataset) -> dict[str, Any]:
    partitioned = any("=" in name for name in os.listdir(dataset.path))
    return {"partition_by": "day"} if partitioned else {}


def make(place: Place, layout: str) -> None:
    parent = place.root.rpartition("/")[0]
    if place.fs.exists(parent):
        place.fs.rm(parent, recursive=True)
    for day in DAYS:
        for name, first in (("a", 0), ("b", 4)):
            ids = [8 * (day - 1) + first + number for number in range(4)]
            columns = {"id": ids, "n": [7 * i % 10 for i in ids], "day": [day] * 4, "kind": [*"abab"]}
            folder = f"day={day}/" if layout == "partitioned" else f"d{day}"
            place.write_files({f"{folder}{name}.parquet": pa.table(columns)})
    place.fs.pipe_file(f"{place.root}/_SUCCESS", b"")
    place.fs.pipe_file(f"{place.root}/.hidden.parquet", b"mine")


class View:
    """Reads files as they are found, each of them once."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._known: dict[tuple[str, int, int], Rows] = {}

    def __call__(self) -> tuple[frozenset[str], Rows]:
        paths, rows = [], Rows()
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            for name in names:
                if name.endswith(".parquet") and not name.startswith((".", "_")):
                    path = os.path.join(folder, name)
                    paths.append(path)
                    rows += self._read(path)
        return frozenset(paths), rows

    def _read(self, path: str) -> Rows:
        status = os.stat(path)
        key = path, status.st_ino, status.st_mtime_ns
        if key not in self._known:
            segments = [part.partition("=") for part in path[len(self.root) :].split("/")[:-1]]
            values = {column: unquote(value) for column, equals, value in segments if equals}
            self._known[key] = Rows(
                repr([str({**values, **row}.get(column)) for column in COLUMNS])
                for row in pq.ParquetFile(path).read().to_pylist()
            )
        return self._known[key]


def watch(dataset: Dataset, look: Callable[[], object]) -> None:
    """Look at the dataset after every call of its store that changes something."""
    base = type(dataset._store)

    def watched(name: str) -> Callable[..., Any]:
        original = getattr(base, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            look()
            return result

        return call

    dataset._store.__class__ = type("Watched", (base,), {name: watched(name) for name in MUTATIONS})


def skip_unless_swapped(place: Place) -> None:
    if os.path.isdir(place.root) and exchange_problem(place.root) is not None:
        pytest.skip("directories cannot be swapped here")


def check_swapped(place: Place, dataset: Dataset, operation: Operation) -> None:
    """At every step exactly the files from before, or exactly the files from after."""
    skip_unless_swapped(place)
    view, seen = View(place.root), []
    before = view()
    watch(dataset, lambda: seen.append(view()))
    operation(dataset)
    after = view()
    assert before != after, "nothing has changed, so nothing was tested"
    assert len(seen) > 3
    torn = [state for state in seen if state not in (before, after)]
    assert torn == []
    assert place.left_behind() == []


def check_renamed(place: Place, dataset: Dataset, operation: Operation) -> None:
    """At every step all rows from before, or all rows from after; never fewer than their intersection."""
    view, seen = View(place.root), []
    _, before = view()
    watch(dataset, lambda: seen.append(view()[1]))
    operation(dataset)
    _, after = view()
    missing = [rows for rows in seen if not (before <= rows or after <= rows)]
    assert missing == []
    assert place.left_behind() == []


CHECKS = {"auto": check_swapped, "rename": check_renamed}


@pytest.mark.parametrize("publish", CHECKS)
@pytest.mark.parametrize(
    ("operation", "layout"),
    [(name, layout) for name in OPERATIONS for layout in LAYOUTS if (name, layout) not in NOTHING_TO_DO],
)
def test_every_step(local: Place, operation: str, layout: str, publish: Any) -> None:
    make(local, layout)
    CHECKS[publish](local, local.dataset(publish=publish), OPERATIONS[operation])


@pytest.mark.parametrize("publish", CHECKS)
@pytest.mark.parametrize("operation", ["upsert", "update that moves rows", "repartition to one folder"])
def test_every_step_on_duckdb(local: Place, operation: str, publish: Any) -> None:
    make(local, "partitioned")
    CHECKS[publish](local, local.dataset(publish=publish, engine="duckdb"), OPERATIONS[operation])


@pytest.mark.parametrize("operation", ["overwrite, flat", "update that moves rows", "upsert"])
def test_every_step_where_files_are_copied(memory: Place, operation: str) -> None:
    """Like object stores: new files are copied, old ones are deleted."""
    make(memory, "partitioned")
    dataset, seen = memory.dataset(), []
    before = memory.rows()
    watch(dataset, lambda: seen.append(memory.rows()))
    OPERATIONS[operation](dataset)
    after = memory.rows()
    assert before != after
    assert [rows for rows in seen if not (before <= rows or after <= rows)] == []
    assert memory.left_behind() == []


@pytest.mark.parametrize("publish", CHECKS)
@pytest.mark.parametrize("operation", ["delete", "delete of whole files", "update that moves rows", "upsert"])
def test_every_step_of_a_restore(local: Place, tmp_path: Any, operation: str, publish: Any) -> None:
    make(local, "partitioned")
    dataset, folder = local.dataset(publish=publish), str(tmp_path / "kept")
    if operation == "upsert":
        dataset.merge(SOURCE, ["id"], backup=folder)
    elif operation == "delete":
        dataset.delete("id % 5 = 1", backup=folder)
    elif operation == "delete of whole files":
        dataset.delete("id < 16", backup=folder)
    else:
        dataset.update("id % 4 = 0", {"day": sql("day + id % 3")}, backup=folder)
    (backup,) = os.listdir(folder)
    CHECKS[publish](local, dataset, lambda dataset: dataset.restore(f"{folder}/{backup}"))


@pytest.mark.parametrize("publish", CHECKS)
@pytest.mark.parametrize(
    "options", [{"max_rows_per_file": 2}, {"partition_by": "day"}, {"partition_by": ["kind", "day"]}]
)
def test_every_step_of_a_first_write(local: Place, options: dict[str, Any], publish: Any) -> None:
    """There is no dataset, then the complete one."""
    CHECKS[publish](local, local.dataset(publish=publish), lambda dataset: dataset.write(NEW, **options))


def test_every_step_of_a_write_of_one_new_partition(local: Place) -> None:
    make(local, "partitioned")
    root = os.stat(local.root).st_ino
    rows = pa.table({"id": [900, 901, 902], "n": [1, 2, 3], "day": [7] * 3, "kind": [*"aba"]})
    check_swapped(
        local, local.dataset(), lambda dataset: dataset.write(rows, partition_by="day", max_rows_per_file=1)
    )
    assert len(os.listdir(f"{local.root}/day=7")) == 3
    assert os.stat(local.root).st_ino == root, "nothing but the new folder had to change"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", ["append", "upsert", "repartition by other columns", "overwrite, flat"])
def test_every_step_of_recovery(local: Place, operation: str, layout: str, count_crash_points: Any) -> None:
    """Recovery of a killed operation shows readers only the states that the operation itself shows."""
    run = OPERATIONS[operation]
    make(local, layout)
    skip_unless_swapped(local)
    view = View(local.root)
    _, before = view()
    dataset = local.dataset()
    calls = mortal(dataset)
    run(dataset)
    _, after = view()
    total = calls()
    for at in range(1, total + 1):
        make(local, layout)
        dataset = local.dataset()
        mortal(dataset, at, "after")
        with pytest.raises(DEATHS):
            run(dataset)
        view, seen = View(local.root), []
        seen.append(view()[1])
        dataset = local.dataset()
        watch(dataset, lambda: seen.append(view()[1]))  # noqa: B023 - gone before the next round
        dataset.recover()
        assert all(rows in (before, after) for rows in seen), f"killed after call {at}"
    count_crash_points(total)
