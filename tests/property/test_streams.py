"""Any sequence of writes, maintenance, files of other programs and restarts: each added row is delivered once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import fsspec
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Place
from helpers.stream import Stream
from parketto.commit import log

STEPS = (
    "append",
    "insert",
    "compact",
    "repartition",
    "other",
    "other and compact",
    "read",
    "read one",
    "restart",
    "replay",
)


class Run:
    """A dataset, two streams of it, and the ids that each must deliver."""

    def __init__(self, place: Place) -> None:
        self.place, self.added = place, 0
        place.dataset().write(self.rows(), partition_by="day")
        self.streams = [Stream(place), Stream(place)]
        self.delivered: list[list[list[int]]] = [[], []]

    def rows(self) -> pa.Table:
        self.added += 2
        return pa.table({"id": [self.added - 2, self.added - 1], "day": [self.added % 3] * 2})

    def take(self, step: str, stream: int) -> None:
        dataset, reader = self.place.dataset(), self.streams[stream]
        actions: dict[str, Callable[[], Any]] = {
            "append": lambda: dataset.write(self.rows()),
            "insert": lambda: dataset.merge(self.rows(), "id"),
            "compact": dataset.compact,
            "repartition": lambda: dataset.repartition("day"),
            "other": self.other,
            "other and compact": lambda: (self.other(), dataset.compact()),
            "read": lambda: self.read(stream, None),
            "read one": lambda: self.read(stream, 1),
            "restart": reader.restart,
            "replay": lambda: self.replay(stream),
        }
        actions[step]()

    def other(self) -> None:
        rows = self.rows()
        day = rows.column("day")[0].as_py()
        self.place.write_files({f"day={day}/other-{self.added}.parquet": rows})

    def read(self, stream: int, limit: int | None) -> bool:
        found = self.streams[stream].ids(limit)
        if found is not None:
            self.delivered[stream].append(found)
        return found is not None

    def replay(self, stream: int) -> None:
        reader = self.streams[stream]
        if reader.batches:
            reader.restart()
            again = reader.replay(*reader.batches[-1])
            assert sorted(again.column("id").to_pylist()) == self.delivered[stream][-1]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1)), max_size=14),
    on_disk=st.booleans(),
)
def test_each_added_row_is_delivered_once(
    steps: list[tuple[str, int]], on_disk: bool, tmp_path_factory: Any
) -> None:
    folder = str(tmp_path_factory.mktemp("streams")) if on_disk else f"/streams-{id(steps)}"
    place = Place(f"{folder}/events", fsspec.filesystem("file" if on_disk else "memory"))
    # Records are folded early. The streams never lag behind that far.
    with patch.object(log, "_FOLDED_AT_ONCE", 3), patch("parketto.commit.committing.KEPT_RECORDS", 34):
        run = Run(place)
        for step, stream in steps:
            run.take(step, stream)
        for stream in range(2):
            while run.read(stream, 3):
                pass
    for delivered in run.delivered:
        assert sorted(number for batch in delivered for number in batch) == list(range(run.added))
    if not on_disk:
        place.fs.rm(folder, recursive=True)
