"""Change records in any order, repeated, and split into any batches, have the result of the ordered ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import fsspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from parketto import Dataset
from parketto.merge import change_rules
from parketto.merge.change_rules import ChangeRules, collected

_numbers = itertools.count()
#: Key, sequence, and whether it deletes.
Record = tuple[int, int, bool]
records = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8), st.booleans()), min_size=1, max_size=14)


def ordered(given: Sequence[Record]) -> dict[int, dict[int, bool]]:
    """Keys with their sequences in order; a delete wins."""
    found: dict[int, dict[int, bool]] = {}
    for key, sequence, deletes in sorted(given):
        found.setdefault(key, {})[sequence] = found.get(key, {}).get(sequence, False) or deletes
    return found


def latest(given: Sequence[Record]) -> list[tuple[Any, ...]]:
    last = {key: list(events.items())[-1] for key, events in ordered(given).items()}
    return sorted((key, f"{key} {at}", at) for key, (at, deletes) in last.items() if not deletes)


def history(given: Sequence[Record]) -> list[tuple[Any, ...]]:
    found = []
    for key, events in ordered(given).items():
        ends = [*list(events)[1:], None]
        for (at, deletes), end in zip(events.items(), ends, strict=True):
            if not deletes:
                found.append((key, f"{key} {at}", at, end, end is None))
    return sorted(found)


def shuffled(given: Sequence[Record], seed: int) -> list[list[Record]]:
    """Some of the records twice, in any order, in batches."""
    chance = random.Random(seed)
    everything = [*given, *chance.choices(given, k=len(given) // 2)]
    chance.shuffle(everything)
    batches: list[list[Record]] = [[]]
    for record in everything:
        if batches[-1] and chance.random() < 0.3:
            batches.append([])
        batches[-1].append(record)
    return batches


def applied(batches: Sequence[Sequence[Record]], scd: Any) -> Dataset:
    dataset = Dataset(f"memory://changes-{next(_numbers)}", engine="pyarrow")
    for batch in batches:
        rows = {
            "id": [key for key, _, _ in batch],
            "name": [f"{key} {at}" for key, at, _ in batch],
            "at": [at for _, at, _ in batch],
            "deleted": [deletes for _, _, deletes in batch],
        }
        dataset.apply_changes(
            pa.table(rows), "id", sequence_by="at", delete_when="deleted", except_columns="deleted", scd=scd
        )
    return dataset


@settings(deadline=None, max_examples=30)
@given(records, records, st.integers(0, 1000))
def test_records_without_an_effect_need_no_memory(first: list[Record], second: list[Record], seed: int) -> None:
    """Records are reduced while they are read: rows, counts and later calls do not depend on it."""
    stored = [record for batch in shuffled(first, seed) for record in batch]
    outcomes = []
    for reduce_rows in (1, 5, 100_000):
        dataset = Dataset(f"memory://changes-{next(_numbers)}", engine="pyarrow")
        with patch.object(change_rules, "_REDUCE_ROWS", reduce_rows):
            stats = [apply_stream(dataset, each) for each in (stored, second)]
        outcomes.append((stats, contents(dataset, ["id", "name", "at"])))
        remove(dataset)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert outcomes[0][1] == latest([*first, *second])


def apply_stream(dataset: Dataset, given: Sequence[Record]) -> Any:
    """Apply records as a stream of batches of two."""
    rows = pa.table(
        {
            "id": [key for key, _, _ in given],
            "name": [f"{key} {at}" for key, at, _ in given],
            "at": [at for _, at, _ in given],
            "deleted": [deletes for _, _, deletes in given],
        }
    )
    stream = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=2))
    return dataset.apply_changes(stream, "id", sequence_by="at", delete_when="deleted", except_columns="deleted")


def test_memory_depends_on_the_number_of_keys() -> None:
    rules = ChangeRules.of("id", "at", None, None, None, 1, 7)
    batches = (pa.record_batch({"id": [n % 7 for n in range(1000)], "at": [call] * 1000}) for call in range(300))
    found = collected(batches, rules, None)
    assert found.total == 300_000
    assert sum(batch.num_rows for batch in found.batches) <= 100_000, "not all of them"
    assert set(pa.Table.from_batches(found.batches)["id"].to_pylist()) == set(range(7))


def contents(dataset: Dataset, names: Sequence[str]) -> list[tuple[Any, ...]]:
    found = dataset.read()
    return sorted(zip(*(found[name].to_pylist() for name in names), strict=True))


def remove(dataset: Dataset) -> None:
    memory = fsspec.filesystem("memory")
    memory.rm(dataset.path.removeprefix("memory:/"), recursive=True)


@settings(deadline=None, max_examples=30)
@given(records, st.integers(0, 1000))
def test_the_latest_rows_do_not_depend_on_the_order(given: list[Record], seed: int) -> None:
    dataset = applied(shuffled(given, seed), scd=1)
    assert contents(dataset, ["id", "name", "at"]) == latest(given)
    remove(dataset)


@settings(deadline=None, max_examples=30)
@given(records, st.integers(0, 1000))
def test_the_history_does_not_depend_on_the_order(given: list[Record], seed: int) -> None:
    dataset = applied(shuffled(given, seed), scd=2)
    assert contents(dataset, ["id", "name", "valid_from", "valid_to", "is_current"]) == history(given)
    remove(dataset)
