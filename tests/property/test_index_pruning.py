"""Any sequence of operations, by Parketto and by others, gives the same with any footer index, and without one."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Place
from parketto import CannotUndo, Dataset, sql
from parketto.commit import footer_index, index_rows, index_update
from parketto.operations import context

_numbers = count()


@pytest.fixture(autouse=True)
def _small_datasets_have_an_index() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "MIN_FILES", 1)
        patch.setattr(index_update, "MIN_FILES", 1)
        patch.setattr(index_rows, "SETTLED_SECONDS", -60.0)
        patch.setattr(footer_index, "_FOLDED_AT", 2)
        yield


def _rows(seed: int) -> pa.Table:
    ids = [seed % 11, seed % 7 + 11, 25]
    name = [None if seed % 4 == 0 else f"n{seed % 9}", "x", f"y{seed}"]
    return pa.table({"id": ids, "n": [seed, -seed, None], "name": name, "day": [seed % 3, 1, 2]})


def _strange(place: Place, seed: int) -> None:
    """Another program adds, overwrites or removes a file, or adds one with other columns and types."""
    files = sorted(path for path in Path(place.root).rglob("*.parquet"))
    chosen = files[seed % len(files)]
    table = pq.ParquetFile(chosen).read()
    match seed % 4:
        case 0:
            shutil.copy(chosen, chosen.with_name(f"copy-{seed}.parquet"))
        case 1:
            pq.write_table(table.slice(0, max(0, table.num_rows - 1)), chosen)
        case 2 if len(files) > 1:
            chosen.unlink()
        case _:
            name = f"c{seed % 2}"
            if name not in table.column_names:
                table = table.append_column(name, pa.array([seed] * table.num_rows, pa.int32()))
            pq.write_table(table, chosen.with_name(f"wide-{seed}.parquet"))


def _undo(dataset: Dataset) -> None:
    """Undo the last commit, if it is not one of the first two, and nobody has changed its files."""
    last = dataset.history(1)[0]
    if last["number"] > 2:
        with contextlib.suppress(CannotUndo):
            dataset.undo(last["number"])


def _damage(place: Place, seed: int) -> None:
    """Segments are deleted, cut, changed, exchanged with older ones, or of another version."""
    folder = Path(place.root).parent / ".events.parketto" / "index"
    for number, segment in enumerate(sorted(folder.glob("*"))):
        content = segment.read_bytes()
        older = Path(place.root).parent / "older"
        match (seed + number) % 6:
            case 0:
                segment.unlink()
            case 1:
                segment.write_bytes(content[: seed % (len(content) + 1)])
            case 2:
                at = seed * 7919 % len(content)
                segment.write_bytes(content[:at] + bytes([content[at] ^ 1 << seed % 8]) + content[at + 1 :])
            case 3:
                segment.write_bytes(content.replace(b"version 1", b"version 9", 1))
            case 4:
                older.write_bytes(content)
            case 5 if older.exists():
                segment.write_bytes(older.read_bytes())


STEPS: dict[str, Callable[[Place, Dataset, int], Any]] = {
    "append": lambda _, dataset, seed: dataset.write(_rows(seed)),
    "delete": lambda _, dataset, seed: dataset.delete(f"id = {seed % 26}"),
    "delete in a partition": lambda _, dataset, seed: dataset.delete(f"day = {seed % 4} AND n > {seed}"),
    "delete by text": lambda _, dataset, seed: dataset.delete(f"name < 'n{seed % 9}'"),
    "update": lambda _, dataset, seed: dataset.update(f"id < {seed % 26}", {"n": sql("n + 1")}),
    "move": lambda _, dataset, seed: dataset.update(f"id = {seed % 26}", {"day": seed % 4}),
    "merge": lambda _, dataset, seed: dataset.merge(_rows(seed), ["id", "day"], partial=True),
    "compact": lambda _, dataset, seed: dataset.compact(),
    "undo": lambda _, dataset, seed: _undo(dataset),
    "purge": lambda _, dataset, seed: dataset.delete(f"id = {seed % 26}", purge=True),
    "strange": lambda place, _, seed: _strange(place, seed),
    "damage": lambda place, _, seed: _damage(place, seed),
}
Steps = st.lists(st.tuples(st.sampled_from([*STEPS]), st.integers(0, 60)), min_size=2, max_size=6)
CONDITIONS = [
    "id = 5",
    "id BETWEEN 3 AND 12 AND n > 0",
    "name = 'x'",
    "name IS NULL",
    "day = 1 AND id > 11",
    "n IS NULL OR n < -20",
]


@given(Steps, st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sequences(tmp_path: Path, steps: list[tuple[str, int]], stored: bool) -> None:
    place = Place(str(tmp_path / str(next(_numbers)) / "events"), fsspec.filesystem("file"))
    dataset = place.dataset()
    dataset.write(_rows(3), partition_by="day", partition_columns="files" if stored else "path")
    dataset.write(_rows(8))
    for name, seed in steps:
        STEPS[name](place, dataset, seed)
        found, files = _answers(dataset), _files(dataset)
        aside = Path(place.root).parent / ".events.parketto" / "index"
        if aside.exists():
            aside.rename(aside.with_name("aside"))
        assert _answers(dataset) == found, name
        assert _files(dataset) == files, name
        if aside.with_name("aside").exists():
            aside.with_name("aside").rename(aside)


def _files(dataset: Dataset) -> list[Any]:
    """What plans are made of: all that footers say of each file, with the bounds of some or all columns."""
    wanted: list[Any] = [(), ("id", "name"), None]
    snapshots = [dataset._context.snapshot(None, columns, own_schemas=True) for columns in wanted]
    return [(file, file.schema.metadata, file.tail) for each in snapshots for file in each.files]


def _answers(dataset: Dataset) -> list[Any]:
    """What reads and counts say, each judged by all rows."""
    everything = dataset.read()
    found: list[Any] = [dataset.count(), everything.num_rows]
    assert found[0] == found[1]
    for where in CONDITIONS:
        rows = dataset.read(where=where)
        assert dataset.count(where) == rows.num_rows
        found.append(sorted(map(repr, rows.select(["id", "n", "name", "day"]).to_pylist())))
    kept = everything.filter(pc.equal(everything["id"], 5)).select(["id", "n", "name", "day"])
    assert found[2] == sorted(map(repr, kept.to_pylist()))
    return found
