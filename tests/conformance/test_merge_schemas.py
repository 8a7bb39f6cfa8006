"""Merges whose source has other types or columns than the dataset: strict, cast or evolve."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import InvalidArgument
from parketto.engines.base import Engine

SCHEMA = pa.schema({"id": pa.int32(), "p": pa.string(), "x": pa.float32(), "n": pa.int64()})
ROWS = [(1, "a", 0.5, 2**40), (2, "a", None, None), (3, "b", 1.5, 3)]


def table(rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


@pytest.fixture
def data(local: Place) -> Place:
    local.write_files({"p=a/1.parquet": table(ROWS[:2]), "p=b/1.parquet": table(ROWS[2:])})
    return local


def rows(place: Place) -> list[dict[str, Any]]:
    found = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    return sorted((row for each in found for row in each.to_pylist()), key=lambda row: row["id"])


OTHER = pa.schema({"id": pa.int64(), "p": pa.large_string(), "x": pa.float64(), "n": pa.int32()})


def test_strict_refuses_other_types(data: Place, merge_engine: Engine) -> None:
    before = data.state()
    source = table([(1, "a", 0.25, 7)], OTHER)
    with pytest.raises(TypeError, match=r"'id' is int64 in the source and int32 in the target.*schema='cast'"):
        data.dataset(engine=merge_engine).merge(source, "id")
    with pytest.raises(ValueError, match="unknown schema 'loose'; valid choices: 'cast'"):
        data.dataset(engine=merge_engine).merge(source, "id", schema="loose")  # type: ignore[arg-type]
    assert data.state() == before


def test_cast_to_the_schema_of_the_dataset(data: Place, merge_engine: Engine) -> None:
    dataset = data.dataset(engine=merge_engine)
    source = table([(1, "a", 0.25, 7), (3, "a", 2.5, None), (9, "c", 0.5, 1)], OTHER)
    stats = dataset.merge(source, "id", schema="cast")
    assert stats == {"inserted": 1, "updated": 2, "deleted": 0, "total": 4}
    assert all(schema.equals(SCHEMA) for schema in oracle.schemas(data.root, data.fs))
    assert [tuple(row.values()) for row in rows(data)] == [
        (1, "a", 0.25, 7),
        (2, "a", None, None),
        (3, "a", 2.5, None),
        (9, "c", 0.5, 1),
    ]


@pytest.mark.parametrize("row", [(2**40, "a", 0.5, 1), (1, "a", 0.1, 1)], ids=["integer", "float"])
def test_values_that_do_not_fit_are_refused(data: Place, merge_engine: Engine, row: tuple[Any, ...]) -> None:
    before = data.state()
    with pytest.raises(TypeError, match="cannot hold without loss"):
        data.dataset(engine=merge_engine).merge(table([row], OTHER), "id", schema="cast")
    assert data.state() == before


def test_cast_adds_no_columns(data: Place, merge_engine: Engine) -> None:
    source = table([(1, "a", 0.5, 1)], OTHER).append_column("more", pa.array([1]))
    with pytest.raises(InvalidArgument, match="only the source has 'more'"):
        data.dataset(engine=merge_engine).merge(source, "id", schema="cast")
    with pytest.raises(InvalidArgument, match="only the target has 'n'"):
        data.dataset(engine=merge_engine).merge(source.drop_columns(["more", "n"]), "id", schema="cast")
    stats = data.dataset(engine=merge_engine).merge(
        source.drop_columns(["more", "n"]), "id", schema="cast", partial=True
    )
    assert stats["updated"] == 1
    assert rows(data)[0] == {"id": 1, "p": "a", "x": 0.5, "n": 2**40}


def test_evolve_widens_types_and_adds_columns(data: Place, merge_engine: Engine) -> None:
    dataset = data.dataset(engine=merge_engine)
    untouched = data.state()["/p=b/1.parquet"]
    source = table([(1, "a", 0.1, 7), (2**40, "c", 0.5, 1)], OTHER).append_column("more", pa.array(["m", None]))
    options: dict[str, Any] = {"schema": "evolve"}
    planned = dataset.merge(source, "id", **options, dry_run=True)
    stats = dataset.merge(source, "id", **options)
    assert stats == planned == {"inserted": 1, "updated": 1, "deleted": 0, "total": 4}
    assert data.state()["/p=b/1.parquet"] == untouched, "a file without changes keeps its schema"
    wide = pa.schema({"id": pa.int64(), "p": pa.string(), "x": pa.float64(), "n": pa.int64(), "more": pa.string()})
    schemas = oracle.schemas(data.root, data.fs)
    assert sorted(schema.equals(wide) for schema in schemas) == [False, True, True]
    assert [tuple(row.values()) for row in rows(data)] == [
        (1, "a", 0.1, 7, "m"),
        (2, "a", None, None, None),
        (3, "b", 1.5, 3),
        (2**40, "c", 0.5, 1, None),
    ]
    state = data.state()
    assert dataset.merge(source, "id", **options)["updated"] == 2
    assert data.state() == state, "a repeated merge changes nothing"


def test_evolve_refuses_types_without_a_common_one(data: Place, merge_engine: Engine) -> None:
    before = data.state()
    source = table([(1, "a", 0.5, 1)]).set_column(3, "n", pa.array(["seven"]))
    with pytest.raises(TypeError, match=r"'n' is string in the source and int64 in the target. No type holds"):
        data.dataset(engine=merge_engine).merge(source, "id", schema="evolve")
    assert data.state() == before


def test_evolve_with_conditions(data: Place, merge_engine: Engine) -> None:
    """A column that conditions mention is not added."""
    source = table([(1, "a", 0.5, 7), (2, "a", 0.5, 7)], OTHER).append_column("op", pa.array(["U", "D"]))
    source = source.append_column("more", pa.array([1, 2]))
    dataset = data.dataset(engine=merge_engine)
    stats = dataset.merge(source, "id", schema="evolve", delete_when="source.op = 'D'")
    assert stats == {"inserted": 0, "updated": 1, "deleted": 1, "total": 2}
    assert rows(data)[0] == {"id": 1, "p": "a", "x": 0.5, "n": 7, "more": 1}
