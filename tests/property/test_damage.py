"""Checks of damaged files end with a report, and Arrow never crashes the process."""

from __future__ import annotations

import io
import os
import random
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from helpers.exotic import exotic
from helpers.processes import in_another_process
from parketto import Dataset
from property.test_footers import DAMAGES, WRITERS, base_file


def exotic_file(**options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(exotic(1), sink, **options)
    return sink.getvalue()


FILES = {writer: lambda writer=writer: base_file(writer) for writer in WRITERS} | {
    "exotic": exotic_file,
    "exotic, with checksums": lambda: exotic_file(write_page_checksum=True, data_page_version="2.0"),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: Arrow may crash the process")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(1, 100))])
@pytest.mark.parametrize("file", FILES)
def test_no_damage_crashes_the_process(tmp_path: Path, file: str, seed: int) -> None:
    sound = FILES[file]()
    outcomes = Counter[str]()
    for kind, damage in DAMAGES.items():
        for attempt in range(4):
            broken = damage(random.Random(f"{file} {kind} {seed} {attempt}"), sound)
            (tmp_path / "f.parquet").write_bytes(broken)
            outcomes[in_another_process(lambda: checked(tmp_path))] += 1
    assert set(outcomes) <= {"healthy", "damaged"}, outcomes
    assert outcomes["damaged"] > outcomes["healthy"]


def checked(path: Path) -> str:
    report = Dataset(path, engine="pyarrow", threads=1).check(deep=True)
    return "healthy" if report["healthy"] else "damaged"
