"""Appended rows are cast to the schema of the dataset, or are refused before anything is written."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from parketto.engines.base import Engine
from parketto.errors import IncompatibleTypes, InvalidArgument

NOW = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
        pa.field("text", pa.large_string()),
        pa.field("at", pa.timestamp("ms", "UTC")),
        pa.field("pair", pa.struct([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())])),
        pa.field("many", pa.list_(pa.int32())),
    ]
)
ROW = {"id": 1, "kind": "a", "text": "b", "at": NOW, "pair": {"n": 1, "s": "c"}, "many": [1, None]}


def with_type(name: str, kind: pa.DataType) -> pa.Schema:
    return SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, kind))


@pytest.fixture
def filled(place: Place) -> Place:
    place.write_files({"a.parquet": pa.Table.from_pylist([ROW], SCHEMA)})
    return place


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        pa.schema(list(reversed(list(SCHEMA)))),
        pa.schema([item.with_nullable(True) for item in SCHEMA]),
        with_type("kind", pa.string()),
        with_type("text", pa.dictionary(pa.int8(), pa.string())),
        with_type("at", pa.timestamp("ns", "Europe/Berlin")),
        with_type("pair", pa.struct({"n": pa.int64(), "s": pa.large_string()})),
        with_type("many", pa.large_list(pa.field("element", pa.int32()))),
        with_type("text", pa.null()),
    ],
    ids=str,
)
def test_lossless_casts_to_the_types_of_the_dataset(filled: Place, engine: Engine, schema: pa.Schema) -> None:
    row = {**ROW, "text": None if pa.types.is_null(schema.field("text").type) else "b"}
    filled.dataset(engine=engine).write(pa.Table.from_pylist([row], schema))
    for found in oracle.schemas(filled.root, filled.fs):
        assert found.equals(SCHEMA)
    assert sorted(filled.dataset().read().to_pylist(), key=repr) == sorted([ROW, row], key=repr)
    filled.dataset(engine=engine).merge(pa.Table.from_pylist([row], schema), "id")


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        (pa.Table.from_pylist([ROW], SCHEMA).drop(["text"]), InvalidArgument, "only the dataset has 'text'"),
        (
            pa.Table.from_pylist([ROW], SCHEMA).append_column("x", pa.array([1])),
            InvalidArgument,
            "only the rows have 'x'.*mode='overwrite'",
        ),
        (
            pa.Table.from_pylist([ROW], with_type("id", pa.int32())),
            IncompatibleTypes,
            "'id' is int32 in the rows and int64 in the dataset. Cast these columns first",
        ),
        (
            pa.Table.from_pylist([{**ROW, "at": NOW.replace(tzinfo=None)}], with_type("at", pa.timestamp("ms"))),
            IncompatibleTypes,
            r"'at' is timestamp\[ms\] in the rows and timestamp\[ms, tz=UTC\] in the dataset",
        ),
        (
            pa.Table.from_pylist(
                [{**ROW, "at": NOW.replace(microsecond=1)}], with_type("at", pa.timestamp("us", "UTC"))
            ),
            IncompatibleTypes,
            "'at' has values of type .* nothing was changed",
        ),
        (
            pa.Table.from_pylist([{**ROW, "id": None}], with_type("id", pa.int64())),
            InvalidArgument,
            "NULL values in 'id', which is declared not null; nothing was changed",
        ),
        (
            pa.Table.from_pylist(
                [{**ROW, "pair": {"n": None, "s": ""}}],
                with_type("pair", pa.struct({"n": pa.int64(), "s": pa.string()})),
            ),
            IncompatibleTypes,
            "'pair' has values .* NULLs in a nested field that is declared not null",
        ),
    ],
    ids=["missing", "unknown", "number", "zone", "microseconds", "null", "nested null"],
)
def test_incompatible_schemas_and_values_are_refused(
    filled: Place, engine: Engine, rows: pa.Table, error: type[Exception], match: str
) -> None:
    before = filled.state()
    with pytest.raises(error, match=match):
        filled.dataset(engine=engine).write(rows, schema="strict")
    assert filled.state() == before
    assert filled.left_behind() == []
    filled.dataset(engine=engine).write(rows, "overwrite")
    assert filled.rows().total() == 1


class TestSchemaModes:
    """How rows with other columns and types meet a dataset of int32, float and required text."""

    SCHEMA = pa.schema(
        [pa.field("id", pa.int32()), pa.field("x", pa.float32()), pa.field("s", pa.string(), nullable=False)]
    )

    @pytest.fixture
    def typed(self, place: Place) -> Place:
        place.write_files({"a.parquet": pa.table({"id": [1], "x": [0.5], "s": ["a"]}, schema=self.SCHEMA)})
        return place

    def test_values_that_fit_are_cast(self, typed: Place, engine: Engine) -> None:
        rows = pa.table({"s": pa.array(["b"], pa.large_string()), "id": pa.array([2], pa.int64())})
        typed.dataset(engine=engine).write(rows)
        found = sorted(typed.dataset(engine=engine).read().to_pylist(), key=lambda row: row["id"])
        assert found == [{"id": 1, "x": 0.5, "s": "a"}, {"id": 2, "x": None, "s": "b"}]
        assert typed.dataset(engine=engine).schema == self.SCHEMA

    @pytest.mark.parametrize(
        ("columns", "error", "match"),
        [
            (
                {"id": [2**40], "s": ["b"]},
                IncompatibleTypes,
                "'id' has values of type int64 that int32 cannot hold",
            ),
            ({"x": [0.1], "s": ["b"]}, IncompatibleTypes, "'x' has values .* 0.1 would be rounded"),
            (
                {"id": ["2"], "s": ["b"]},
                IncompatibleTypes,
                "'id' is string in the rows and int32 .*schema='evolve'",
            ),
            ({"id": [2]}, InvalidArgument, "the rows lack 's', which cannot be NULL"),
            ({"id": [2], "s": ["b"], "new": [1]}, InvalidArgument, "only the rows have 'new'.*schema='evolve'"),
        ],
        ids=["large", "rounded", "text", "required", "new"],
    )
    def test_rows_that_do_not_fit_are_refused(
        self, typed: Place, engine: Engine, columns: dict[str, list[object]], error: type[Exception], match: str
    ) -> None:
        before = typed.state()
        with pytest.raises(error, match=match):
            typed.dataset(engine=engine).write(pa.table(columns))
        assert typed.state() == before
        assert typed.left_behind() == []

    def test_schema_evolves(self, typed: Place, engine: Engine) -> None:
        dataset = typed.dataset(engine=engine)
        dataset.write(pa.table({"id": [2**40], "x": [0.1], "new": ["n"]}), schema="evolve")
        schema = dataset.schema
        assert [(item.name, item.type) for item in schema] == [
            ("id", pa.int64()),
            ("x", pa.float64()),
            ("s", pa.string()),
            ("new", pa.string()),
        ]
        rows = sorted(dataset.read().to_pylist(), key=lambda row: row["id"])
        assert rows == [
            {"id": 1, "x": 0.5, "s": "a", "new": None},
            {"id": 2**40, "x": 0.1, "s": None, "new": "n"},
        ]
        with pytest.raises(IncompatibleTypes, match="No type holds the values of both"):
            dataset.write(pa.table({"id": ["text"]}), schema="evolve")

    def test_units_become_finer(self, place: Place, engine: Engine) -> None:
        place.write_files({"a.parquet": pa.table({"at": pa.array([1], pa.timestamp("ms"))})})
        dataset = place.dataset(engine=engine)
        dataset.write(pa.table({"at": pa.array([3], pa.timestamp("us"))}), schema="evolve")
        assert dataset.schema.field("at").type == pa.timestamp("us")
        assert sorted(dataset.read().column("at").cast(pa.int64()).to_pylist()) == [3, 1000]

    def test_floats_inside_of_structs_are_not_rounded(self, place: Place, engine: Engine) -> None:
        place.write_files({"a.parquet": pa.table({"s": pa.array([{"x": 0.5}], pa.struct({"x": pa.float32()}))})})
        with pytest.raises(IncompatibleTypes, match="'s' is struct<x: double> in the rows"):
            place.dataset(engine=engine).write(pa.table({"s": [{"x": 0.1}]}))

    def test_columns_of_any_file_are_known(self, typed: Place, engine: Engine) -> None:
        """An append reads one footer; before it refuses rows, it reads all of them."""
        typed.write_files({"b.parquet": pa.table({"id": [2], "s": ["b"], "y": [2.5]})})
        dataset = typed.dataset(engine=engine)
        dataset.write(pa.table({"id": [3], "s": ["c"], "y": [3.5]}))
        assert sorted(dataset.read(["y"]).column("y").drop_null().to_pylist()) == [2.5, 3.5]

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("values", [(pa.timestamp("ms"), 1_000_001), (pa.timestamp("us"), None)], ids=str)
    def test_values_that_only_other_files_can_have(
        self, place: Place, engine: Engine, values: tuple[pa.DataType, Any], stream: bool
    ) -> None:
        """The first file has a coarser unit, or requires values: the dataset's type decides."""
        kind, value = values
        required = pa.schema([pa.field("at", kind, nullable=value is not None)])
        place.write_files(
            {
                "a.parquet": pa.table({"at": pa.array([0], kind)}, schema=required),
                "b.parquet": pa.table({"at": pa.array([None], pa.timestamp("us"))}),
            }
        )
        rows = pa.table({"at": pa.array([value], pa.timestamp("us"))})
        dataset = place.dataset(engine=engine)
        dataset.write(rows.to_reader() if stream else rows)
        assert dataset.read().column("at").cast(pa.int64()).to_pylist().count(value) == (1 if value else 2)

    def test_unknown_mode(self, typed: Place, engine: Engine) -> None:
        with pytest.raises(
            InvalidArgument, match="unknown schema 'loose'; valid choices: 'cast', 'evolve', 'strict'"
        ):
            typed.dataset(engine=engine).write(pa.table({"id": [1]}), schema="loose")


@pytest.mark.parametrize("inside", [True, False])
def test_partitions(place: Place, engine: Engine, inside: bool) -> None:
    """Columns that exist only in paths are text; columns that the files contain keep the file's type."""
    rows = pa.table({"n": pa.array([1], pa.int64()), "day": pa.array([7], pa.int64())})
    place.write_files({"day=7/a.parquet": rows if inside else rows.drop(["day"])})
    texts = pa.table({"day": ["8"], "n": pa.array([2], pa.int64())})
    dataset = place.dataset(engine=engine)
    if inside:
        with pytest.raises(IncompatibleTypes, match="'day' is string in the rows and int64 in the dataset"):
            dataset.write(texts)
        texts = texts.set_column(0, "day", pa.array([8], pa.int64()))
    dataset.write(texts)
    assert {path.split("/")[0] for path in place.files()} == {"day=7", "day=8"}
    assert dataset.delete("day = 8")["rows_matched"] == 1


def test_partition_values_are_cast_before_paths_are_built(place: Place, engine: Engine) -> None:
    when = pa.array([NOW], pa.timestamp("ms", "UTC"))
    dataset = place.dataset(engine=engine)
    dataset.write(pa.table({"at": when, "n": [1]}), partition_by="at")
    dataset.write(pa.table({"n": [2], "at": when.cast(pa.timestamp("us", "UTC"))}))
    assert len({path.split("/")[0] for path in place.files()}) == 1


def test_physical_types_are_kept(place: Place, engine: Engine) -> None:
    """Decimals stored as integers and INT96 timestamps: Arrow types do not tell, but files must not mix them."""
    kinds: dict[str, Any] = {"d": pa.array([Decimal("1.25")], pa.decimal128(9, 2)), "at": pa.array([NOW])}
    options = {"use_deprecated_int96_timestamps": True, "store_decimal_as_integer": True}
    place.write_files({"a.parquet": pa.table(kinds)}, **options)
    place.dataset(engine=engine).write(pa.table(kinds))
    found = []
    for path in place.files():
        with place.fs.open(f"{place.root}/{path}") as source:
            schema = pq.read_metadata(source).schema
        found.append([schema.column(at).physical_type for at in range(2)])
    assert found == [["INT32", "INT96"]] * 2
    assert place.dataset(engine=engine).compact()["after_file_count"] == 1
