"""Edits that Polars streams leave the same rows, schema and bounds as edits by Arrow, and the same files alone."""

from __future__ import annotations

import math
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Place
from helpers.parquet_files import check_chunks, check_pages
from parketto import Dataset
from parketto.parquet.encoders import polars as streaming
from parketto.tasks import file_rewriter

ODD_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000001234))[0]
# Few values of each type, so that edits often give a row the value that it has.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, 127, None]),
    "u64": (pa.uint64(), [0, 2**64 - 1, None]),
    "f32": (pa.float32(), [0.5, -0.0, 0.0, None]),
    "f64": (pa.float64(), [0.0, -0.0, math.nan, ODD_NAN, -math.inf, None]),
    "flag": (pa.bool_(), [True, False, None]),
    "text": (pa.string(), ["", "ä", "a text that is not inlined", None]),
    "bytes": (pa.large_binary(), [b"", b"\xff" * 40, None]),
    "day": (pa.date32(), [0, -(10**6), None]),
    "ms": (pa.timestamp("ms"), [0, 2**40, None]),
    "ns": (pa.timestamp("ns", "Europe/Paris"), [0, 2**62, None]),
}


def column(name: str, picks: np.ndarray[Any, Any]) -> pa.Array:
    kind, values = VALUES[name]
    raw = {32: pa.int32(), 64: pa.int64()}[kind.bit_width] if name in ("day", "ms", "ns") else kind
    return pa.array(values, raw).take(pa.array(picks % len(values))).cast(kind)


def rows(names: list[str], ids: np.ndarray[Any, Any], seed: int) -> pa.Table:
    picks = np.random.default_rng(seed).integers(0, 1000, (len(names), len(ids)))
    return pa.table({"id": pa.array(ids), **{name: column(name, picks[at]) for at, name in enumerate(names)}})


@dataclass
class Case:
    """Files, the rows in each of their row groups, and an edit."""

    files: list[pa.Table]
    group_rows: int
    kind: str
    edit: Callable[[Dataset], Any] = field(repr=False)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Edits that touch all, some or no files, and change something or nothing."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True))
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    seed = draw(st.integers(0, 99))
    ids = np.random.default_rng(seed).permutation(sum(sizes))
    if draw(st.booleans()):
        ids.sort()
    starts = np.cumsum([0, *sizes])
    files = [
        rows(names, ids[start : start + size], seed + at)
        for at, (start, size) in enumerate(zip(starts.tolist(), sizes, strict=False))
    ]
    group_rows = draw(st.sampled_from([7, 30, 100]))
    wanted = draw(st.lists(st.integers(0, len(ids) + 5), min_size=1, max_size=40, unique=True))
    if draw(st.booleans()):  # something in each file
        wanted = sorted({*wanted, *(int(file["id"][0].as_py()) for file in files)})
    source = rows(names, np.array(wanted), draw(st.integers(100, 199)))
    if draw(st.booleans()):  # some new values are the old ones
        old = pa.concat_tables(files)
        source = pa.concat_tables([old.filter(pc.is_in(old["id"], pa.array(wanted[::2]))), source])
        source = source.take(pa.array(np.unique(source["id"].to_numpy(), return_index=True)[1]))
    kind = draw(st.sampled_from(["upsert", "update", "full_merge", "delete", "delete by keys", "one column"]))
    edits: dict[str, Callable[[Dataset], Any]] = {
        "upsert": lambda dataset: dataset.merge(source, ["id"], strategy="upsert"),
        "update": lambda dataset: dataset.merge(source, ["id"], strategy="update"),
        "full_merge": lambda dataset: dataset.merge(source, ["id"], strategy="full_merge"),
        "one column": lambda dataset: dataset.merge(source, ["id"], strategy="update", update_columns=[names[0]]),
        "delete": lambda dataset: dataset.delete(f"id % 5 = {seed % 5} OR id < 3"),
        "delete by keys": lambda dataset: dataset.delete(keys=source.select(["id"]), key_columns=["id"]),
    }
    return Case(files, group_rows, kind, edits[kind])


def bits(values: pa.ChunkedArray) -> Any:
    """The bits of all values, so that zeros of different signs differ. NaNs do not."""
    whole = values.combine_chunks()
    kind = {pa.float64(): pa.int64(), pa.float32(): pa.int32()}.get(whole.type)
    if kind is None:
        return whole
    numbers = pc.if_else(pc.is_nan(whole), pa.scalar(math.nan, whole.type), whole)
    return pc.if_else(whole.is_valid(), numbers.fill_null(0).view(kind), None)


def test_the_same_by_either_codec(local: Place) -> None:
    """Values, row order, schemas, and which files stay. At least a third of the edits are streamed."""
    attempts: list[bool] = []

    def counted(*args: Any) -> Any:
        staged = streaming.encode_changed_rows(*args)
        attempts.append(staged is not None)
        return staged

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(case=cases())
    def run(case: Case) -> None:
        both = [edited(Path(local.root), case, codec) for codec in ("arrow", "polars")]
        assert both[0].result == both[1].result
        assert both[0].stayed == both[1].stayed
        for one, other in zip(both[0].new, both[1].new, strict=True):
            found, expected = pq.read_table(pa.BufferReader(one)), pq.read_table(pa.BufferReader(other))
            assert found.schema.equals(expected.schema, check_metadata=True)
            for name in found.column_names:
                assert bits(found[name]).equals(bits(expected[name])), name
            assert check_pages(other) > 0 or not found.num_rows
            check_chunks(other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_rewriter, "encode_changed_rows", counted)
        run()
    assert sum(attempts) >= 30
    assert not all(attempts), "no edit had nothing to change in a file"


@dataclass
class Outcome:
    """What an edit returned, without new names, which files stayed, and the content of the new ones."""

    result: str
    stayed: set[str]
    new: list[bytes]


def edited(folder: Path, case: Case, codec: str) -> Outcome:
    """The outcome of the edit of a new dataset."""
    root = folder / codec
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for at, file in enumerate(case.files):
        pq.write_table(file, root / f"f{at}.parquet", row_group_size=case.group_rows)
    given = {path.name: path.read_bytes() for path in root.iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARKETTO_CODEC", codec)
        dataset = Dataset(str(root), engine="pyarrow")
        result = case.edit(dataset)
        assert dataset.check(deep=True)["healthy"]
    found = {path.name: path.read_bytes() for path in sorted(root.iterdir())}
    assert all(given[name] == content for name, content in found.items() if name in given)
    return Outcome(
        re.sub(r"[0-9a-f]{32}", "*", repr(dict(result))),
        set(given) & set(found),
        [content for name, content in found.items() if name not in given],
    )
