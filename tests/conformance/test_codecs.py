"""All operations with either codec forced: the same rows, whichever library decodes and encodes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from parketto import Dataset, sql
from parketto.parquet.decoders import polars as decode
from parketto.parquet.encoders import row_groups as encode

ROWS = 6000
CODECS = ["arrow", "polars"]


def given_rows() -> pa.Table:
    """Types that both codecs write, and some that only Arrow does, in turns."""
    ids = np.arange(ROWS)
    return pa.table(
        {
            "id": ids,
            "pair": pa.array([{"a": int(n)} for n in ids]),
            "word": pa.array([None if n % 9 == 0 else f"wörd {n % 50}" for n in ids]),
            "amount": pa.array(ids).cast(pa.decimal128(20, 0)),
            "real": np.where(ids % 7 == 0, -0.0, ids / 8),
            "at": pa.array(ids * 10**9, pa.timestamp("us", "UTC")),
            "kind": pa.array([f"k{n % 3}" for n in ids]).dictionary_encode(),
            "flag": ids % 2 == 0,
            "part": ids % 4,
        }
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["pyarrow", "duckdb"])
def test_a_chain_of_all_operations(local: Place, codec: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARKETTO_CODEC", codec)
    frames: list[str] = []
    monkeypatch.setattr(decode, "_frame", watched("decoded", frames, decode._frame))
    monkeypatch.setattr(encode, "take_over", watched("encoded", frames, encode.take_over))
    given = given_rows()
    dataset = Dataset(local.root, engine=name)
    for start in range(0, ROWS, 1500):
        dataset.write(given.slice(start, 1500), max_rows_per_file=500)
    dataset.delete("id % 10 = 3 AND word IS NOT NULL")
    dataset.update("id % 10 = 4", {"real": sql("real + 1"), "flag": True})
    source = given.slice(0, 300).set_column(0, "id", pa.array(np.arange(300) * 25))
    dataset.merge(source, key_columns=["id"], strategy="upsert")
    expected = oracle_rows(given, source)
    assert by_id(dataset.read()) == expected
    dataset.optimize(["word", "id"], target_rows_per_file=2000)
    assert by_id(dataset.read()) == expected
    dataset.repartition(["part"])
    assert by_id(dataset.read()) == expected
    dataset.compact(rewrite="encode")
    assert by_id(dataset.read()) == expected
    assert dataset.check(deep=True)["healthy"]
    assert dataset.schema.equals(given.schema)
    assert set(frames) == ({"decoded", "encoded"} if codec == "polars" else set())
    for path in oracle.data_files(local.root, local.fs):
        assert pq.ParquetFile(path).schema_arrow.equals(given.schema)


def watched(what: str, found: list[str], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which then notes that it has succeeded."""

    def watching(*args: Any) -> Any:
        result = function(*args)
        found.append(what)
        return result

    return watching


def oracle_rows(given: pa.Table, source: pa.Table) -> list[dict[str, object]]:
    rows = {row["id"]: row for row in given.to_pylist() if row["id"] % 10 != 3 or row["word"] is None}
    for row in rows.values():
        if row["id"] % 10 == 4:
            row |= {"real": row["real"] + 1, "flag": True}
    rows |= {row["id"]: row for row in source.to_pylist()}
    return [rows[number] for number in sorted(rows)]


def by_id(rows: pa.Table) -> list[dict[str, object]]:
    found: list[dict[str, object]] = rows.select(given_rows().column_names).sort_by("id").to_pylist()
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "path",
    [
        *(
            f"conformance/test_{name}.py"
            for name in ("edit", "column_edits", "merge", "read", "drift", "optimize")
        ),
        *(f"property/test_{name}.py" for name in ("datasets", "merges", "drifting_files", "page_pruning")),
        "crash/test_sweep.py",
    ],
)
def test_other_suites_pass_with_a_codec_forced(path: str, codec: str) -> None:
    folder = Path(__file__).parent.parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "not spark",
        str(folder / path),
    ]
    done = subprocess.run(
        command, env={**os.environ, "PARKETTO_CODEC": codec}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
