"""Expectations on S3, where nothing locks: the quarantine and the write are committed together."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from helpers import oracle
from helpers.crash import DEATHS, mortal
from parketto import Dataset

RULES = {"positive price": "price > 0"}
ROWS = pa.table({"id": [1, 2, 3], "price": [1.0, -1.0, None]})


def ids(root: str, place: Any) -> list[int]:
    paths = oracle.data_files(root, place.fs)
    return sorted(row["id"] for path in paths for row in oracle.read_file(path, place.fs).to_pylist())


def test_both_datasets_get_their_rows(s3: Any) -> None:
    dataset: Dataset = s3.dataset()
    dataset.write(ROWS, expect=RULES, on_violation="quarantine")
    dataset.merge(ROWS, "id", expect=RULES, on_violation="quarantine")
    assert ids(s3.root, s3) == [1]
    assert ids(f"{s3.root}_quarantine", s3) == [2, 2, 3, 3]
    assert [commit["operation"] for commit in dataset.history()] == ["merge", "append"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_before_its_record(s3: Any, when: str) -> None:
    """The rows of the dead write stay in the quarantine while it may be alive."""
    s3.dataset().write(ROWS, expect=RULES, on_violation="quarantine")
    dataset: Dataset = s3.dataset()
    log = dataset._context.workspace.log.folder
    mortal(dataset, lambda name, path: name == "create" and str(path).startswith(log), when)
    with pytest.raises(DEATHS):
        dataset.write(ROWS, expect=RULES, on_violation="quarantine")
    s3.dataset().recover()
    assert ids(s3.root, s3) == ([1] if when == "before" else [1, 1])
    assert ids(f"{s3.root}_quarantine", s3) == [2, 2, 3, 3]
    s3.dataset().write(ROWS, expect=RULES, on_violation="quarantine")
    assert ids(f"{s3.root}_quarantine", s3) == [2, 2, 2, 3, 3, 3]
