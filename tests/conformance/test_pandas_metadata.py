"""pandas restores index, labels and types after the schema of its files has changed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from parketto.engines.base import Engine

pd = pytest.importorskip("pandas")


def frame(first: int = 0) -> Any:
    """A frame with a named index, and types that only its metadata describes."""
    return pd.DataFrame(
        {
            "count": pd.array([1, None, 3], dtype="Int32"),
            "word": pd.array(["a", None, "c"], dtype="string"),
            "side": pd.Categorical(["x", "y", "x"]),
            "at": pd.date_range("2026-11-04", periods=3, tz="Europe/Berlin", unit="us"),
            "plain": [0.5, 1.5, 2.5],
        },
        index=pd.Index([f"k{n}" for n in range(first, first + 3)], name="key"),
    )


def written(place: Place, *frames: Any) -> None:
    place.fs.makedirs(place.root, exist_ok=True)
    for number, each in enumerate(frames):
        each.to_parquet(f"{place.root}/{number}.parquet")


def found(place: Place) -> list[Any]:
    return [pd.read_parquet(f"{place.root}/{name}") for name in place.files()]


def test_alter_keeps_what_is_still_true(local: Place, engine: Engine) -> None:
    written(local, frame())
    local.dataset(engine=engine).alter(
        rename={"word": "text", "key": "id"},
        drop="side",
        cast={"count": "bigint", "plain": "float"},
        add={"new": "string"},
    )
    expected = frame().rename(columns={"word": "text"}).rename_axis("id").drop(columns="side")
    expected = expected.astype({"count": "Int64", "plain": "float32"}).assign(new=None)
    (got,) = found(local)
    pd.testing.assert_frame_equal(got, expected, check_column_type=False)
    assert got["text"].dtype == frame()["word"].dtype


def test_a_dropped_index_leaves_the_numbers_of_rows(local: Place) -> None:
    written(local, frame())
    local.dataset(engine="pyarrow").alter(drop="key")
    (got,) = found(local)
    pd.testing.assert_frame_equal(got, frame().reset_index(drop=True))


def test_an_unnamed_index_stays_one(local: Place) -> None:
    written(local, frame().rename_axis(None))
    local.dataset(engine="pyarrow").alter(drop="side", cast={"count": "smallint"})
    (got,) = found(local)
    pd.testing.assert_frame_equal(got, frame().rename_axis(None).drop(columns="side").astype({"count": "Int16"}))


def test_index_with_another_type(local: Place) -> None:
    written(local, pd.DataFrame({"n": [1, 2]}, index=pd.Index([7, 8], name="key")))
    local.dataset(engine="pyarrow").alter(cast={"key": "double"})
    (got,) = found(local)
    pd.testing.assert_frame_equal(got, pd.DataFrame({"n": [1, 2]}, index=pd.Index([7.0, 8.0], name="key")))


@pytest.mark.parametrize(
    "labels", [pd.Index([1, 2]), pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])], ids=["numbers", "tuples"]
)
def test_labels_that_are_no_texts(local: Place, labels: Any) -> None:
    table = pd.DataFrame([[1, 2], [3, 4]], columns=labels)
    written(local, table)
    first = local.dataset(engine="pyarrow").schema.names[0]
    local.dataset(engine="pyarrow").alter(cast={first: "smallint"})
    (got,) = found(local)
    pd.testing.assert_frame_equal(got, table.astype({labels[0]: "int16"}))
    local.dataset(engine="pyarrow").alter(rename={first: "one"})
    (got,) = found(local)
    assert list(got.columns) == ["one", "2" if labels.nlevels == 1 else "('b', '2')"], (
        "a new name is a text, so all are"
    )


@pytest.mark.parametrize("operation", ["unify_schema", "compact", "delete"])
def test_files_that_differ(local: Place, engine: Engine, operation: str) -> None:
    other = frame(3).astype({"count": "Int64"}).assign(more=[1, 2, 3])
    written(local, frame(), other)
    dataset = local.dataset(engine=engine)
    if operation == "delete":
        dataset.delete("key = 'none' OR plain < 0 OR key IN ('k0', 'k3')")
    else:
        getattr(dataset, operation)()
    expected = pd.concat([frame().astype({"count": "Int64"}), other])
    if operation == "delete":
        expected = expected.drop(["k0", "k3"])
    got = pd.concat(found(local))
    pd.testing.assert_frame_equal(got.sort_index(), expected, check_categorical=False, check_dtype=False)
    for each in found(local):
        assert (each.index.name, str(each["count"].dtype), str(each["word"].dtype)) == ("key", "Int64", "string")
        assert str(each["at"].dtype) == "datetime64[us, Europe/Berlin]"


@pytest.mark.parametrize("entry", [b"no JSON", b"[]", b'{"columns": 3}', b'{"columns": [], "index_columns": {}}'])
def test_an_entry_that_is_not_of_pandas_is_no_error(local: Place, entry: bytes) -> None:
    table = pa.table({"n": [1], "m": [2]}).replace_schema_metadata({b"pandas": entry, b"owner": b"me"})
    local.write_files({"a.parquet": table})
    dataset = local.dataset(engine="pyarrow")
    dataset.alter(drop="m")
    (path,) = local.files()
    assert pq.read_schema(f"{local.root}/{path}").metadata[b"owner"] == b"me"
