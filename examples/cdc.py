"""Change data capture: late, repeated and out-of-order records of a customer table, with and without history.

Run it with `python examples/cdc.py` (on Spark), or with another engine:
`PARKETTO_ENGINE=duckdb python examples/cdc.py`. What to do with one's own data:

* Order by what the source orders by: a log position or a version, not the time of arrival.
* Pass a `commit_id` per batch: a batch that is delivered twice is applied once.
* Repeat a batch whenever in doubt: records that were applied before have no effect.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Sequence

import pyarrow as pa

from parketto import ChangeStats, Dataset

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string(), "lsn": pa.int64(), "op": pa.string()})
Record = tuple[int, str | None, int, str]

#: In the order of the source, by log sequence number.
LOG: list[Record] = [
    (1, "Berlin", 10, "insert"),
    (2, "Paris", 11, "insert"),
    (3, "Oslo", 12, "insert"),
    (1, "Hamburg", 20, "update"),
    (2, None, 21, "delete"),
    (3, "Bergen", 22, "update"),
    (1, "Munich", 30, "update"),
]


def apply(dataset: Dataset, records: Sequence[Record], scd: int = 1, commit_id: str | None = None) -> ChangeStats:
    """Apply some records in one atomic commit."""
    rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, record, strict=True)) for record in records], SCHEMA)
    return dataset.apply_changes(
        rows,
        keys=["id"],
        sequence_by="lsn",
        apply_as_deletes="op = 'delete'",
        except_column_list=["op"],
        stored_as_scd_type=scd,
        commit_id=commit_id,
    )


def cities(dataset: Dataset) -> dict[int, str]:
    """The current city of each customer."""
    found = dataset.read(columns=["id", "city"]).to_pydict()
    return dict(sorted(zip(found["id"], found["city"], strict=True)))


def late_records(customers: Dataset) -> None:
    """A delete overtakes the insert; a batch comes twice."""
    apply(customers, [LOG[0], LOG[2], LOG[4]], commit_id="customers:1")
    print(f"Paris was deleted before it arrived:    {cities(customers)}")
    stats = apply(customers, [LOG[1], LOG[6], LOG[3]], commit_id="customers:2")
    assert (stats["updated"], stats["ignored"]) == (1, 2)
    print(f"The insert of Paris came too late:      {cities(customers)}")
    assert apply(customers, [LOG[1], LOG[6], LOG[3]], commit_id="customers:2") == {**stats, "repeated_commit": 2}
    apply(customers, [LOG[5]], commit_id="customers:3")
    print(f"All seven records, one batch twice:     {cities(customers)}")
    assert cities(customers) == {1: "Munich", 3: "Bergen"}
    assert apply(customers, LOG)["ignored"] == len(LOG)
    print("The whole log again changes nothing")


def whole_history(history: Dataset) -> None:
    """The same records one by one, in any order: the versions are the same."""
    shuffled = [*LOG, *LOG[:3]]
    random.Random(7).shuffle(shuffled)
    for record in shuffled:
        apply(history, [record], scd=2)
    names = ["id", "valid_from", "valid_to", "city", "is_current"]
    found = history.read(columns=names).to_pydict()
    print("Every version, from records in random order:")
    for number, start, end, city, is_current in sorted(zip(*(found[name] for name in names), strict=True)):
        print(f"  {number}  {start} to {end or 'now':<4} {city}{' (current)' if is_current else ''}")
    assert len(found["id"]) == 6
    assert sum(found["is_current"]) == 2


def main() -> None:
    """All of it, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        late_records(Dataset(os.path.join(folder, "customers")))
        whole_history(Dataset(os.path.join(folder, "history")))
        print("all checked")


if __name__ == "__main__":
    main()
