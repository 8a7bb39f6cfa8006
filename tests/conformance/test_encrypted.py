"""Encrypted files among others: operations that read them name the file in an error, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers.encrypted import FORMS, encrypted
from parketto import Dataset, UnreadableFile
from parketto.engines.base import Engine

ROWS = pa.table({"x": [1, 2], "y": [3, 4]})
OPERATIONS: dict[str, Callable[[Dataset], Any]] = {
    "compact": lambda dataset: dataset.compact(),
    "compact, copying": lambda dataset: dataset.compact(rewrite="copy"),
    "compact, encoding": lambda dataset: dataset.compact(rewrite="encode"),
    "compact, not really": lambda dataset: dataset.compact(dry_run=True),
    "optimize": lambda dataset: dataset.optimize(["x"]),
    "repartition": lambda dataset: dataset.repartition("y"),
    "delete": lambda dataset: dataset.delete("y = 3"),
    "update": lambda dataset: dataset.update("y = 3", {"y": 5}),
    "merge": lambda dataset: dataset.merge(ROWS, "x"),
    "read": lambda dataset: dataset.read(),
}


@pytest.fixture(params=FORMS)
def mixed(request: pytest.FixtureRequest, place: Place) -> Place:
    """A dataset of two plain files and an encrypted one between them."""
    place.write_files({"a.parquet": ROWS, "c.parquet": ROWS})
    place.fs.pipe_file(f"{place.root}/b.parquet", encrypted(ROWS, request.param))
    return place


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_refuse(mixed: Place, operation: str) -> None:
    state = mixed.state()
    with pytest.raises(UnreadableFile, match=r"b\.parquet.*encrypted"):
        OPERATIONS[operation](mixed.dataset(engine="pyarrow"))
    assert mixed.state() == state
    assert not mixed.left_behind()


@pytest.mark.parametrize("form", FORMS)
def test_every_engine_refuses(local: Place, engine: Engine, form: str) -> None:
    local.write_files({"a.parquet": ROWS})
    local.fs.pipe_file(f"{local.root}/b.parquet", encrypted(ROWS, form))
    state = local.state()
    with pytest.raises(UnreadableFile, match=r"b\.parquet.*encrypted"):
        local.dataset(engine=engine).compact(rewrite="copy")
    assert local.state() == state


def test_rows_can_be_appended_beside_encrypted_files(mixed: Place) -> None:
    """An append reads none of the encrypted files."""
    state = mixed.state()
    mixed.dataset(engine="pyarrow").write(ROWS)
    assert len(mixed.files()) == 4
    assert mixed.state().items() >= state.items()
