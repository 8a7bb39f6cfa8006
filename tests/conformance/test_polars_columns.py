"""What Polars notes about its categories: files without the note are merged with them, and no value gets lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from conftest import Place
from parketto import Dataset
from parketto.engines.base import Engine

ENUM = pl.Enum(["a", "b"])


def write(place: Place, name: str, kind: Any) -> None:
    place.fs.makedirs(place.root, exist_ok=True)
    frame = pl.DataFrame({"id": [1, 2], "v": pl.Series(["a", "b"], dtype=kind)})
    frame.write_parquet(f"{place.root}/{name}.parquet")


def texts(place: Place) -> list[str]:
    """The values as Polars reads each file."""
    found = [pl.read_parquet(f"{place.root}/{path}")["v"].cast(pl.String).to_list() for path in place.files()]
    return sorted(text for each in found for text in each)


@pytest.mark.parametrize("kind", [pl.Categorical, ENUM], ids=["categories", "enum"])
@pytest.mark.parametrize("other", [pa.string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_categories_are_merged_with_text(
    local: Place, engine: Engine | str, kind: Any, other: pa.DataType
) -> None:
    """Polars notes in its files that a column has categories. Files of other programs lack that note."""
    write(local, "a", kind)
    local.write_files({"b.parquet": pa.table({"id": [3], "v": pa.array(["c"], other)})})
    assert local.dataset(engine=engine).compact()["after_file_count"] == 1
    assert texts(local) == ["a", "b", "c"]


def test_columns_that_are_no_categories_any_more_have_no_note(local: Place) -> None:
    write(local, "a", pl.Categorical)
    local.dataset(engine="pyarrow").alter(cast={"v": "string"})
    (schema,) = [file.schema for file in local.dataset(engine="pyarrow").files()]
    assert schema is not None
    assert not schema.field("v").metadata


def test_categories_of_one_kind_stay(local: Place, engine: Engine | str) -> None:
    for name in ("a", "b"):
        write(local, name, ENUM)
    dataset = local.dataset(engine=engine)
    dataset.compact()
    dataset.write(pl.DataFrame({"id": [3], "v": pl.Series(["b"], dtype=ENUM)}))
    assert [pl.read_parquet(f"{local.root}/{path}").schema["v"] for path in local.files()] == [ENUM, ENUM]


APPENDS: dict[str, Callable[[Dataset, pa.Table], Any]] = {
    "append": lambda dataset, rows: dataset.write(rows),
    "replace": lambda dataset, rows: dataset.write(rows, mode="overwrite", replace_where="id > 2"),
    "merge": lambda dataset, rows: dataset.merge(rows, ["id"]),
    "apply changes": lambda dataset, rows: dataset.apply_changes(rows, ["id"], sequence_by="id"),
    "update": lambda dataset, _rows: dataset.update("id = 2", {"v": "new"}),
}


@pytest.mark.parametrize("operation", APPENDS)
def test_values_that_an_enum_lacks(local: Place, engine: Engine | str, operation: str) -> None:
    """Polars reads a value that the note does not list as NULL."""
    write(local, "a", ENUM)
    APPENDS[operation](local.dataset(engine=engine), pa.table({"id": [3], "v": ["new"]}))
    assert texts(local) == (["a", "new"] if operation == "update" else ["a", "b", "new"])
