"""Datasets whose files differ: every operation sees one schema, on every engine, whoever wrote the files."""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from parketto import IncompatibleTypes, InvalidArgument
from parketto.engines.base import Engine

ROWS = 6
IDS = {"old": [1, 2, 3, 4, 5, 6], "new": [7, 8, 9, 10, 11, 12]}
Row = dict[str, Any]


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


TEXTS = ["a", None, "ccc", "", "é", "a"]
NUMBERS = [0, 1, None, -3, 100, 7]
COUNTS = [0, 1, None, 3, 100, 7]
EXACT = [0.5, None, -2.0, 3.25, 1e10, 7.0]
NOON = dt.datetime(2026, 11, 4, 12, 30, 15)  # noqa: DTZ001 - wall-clock time
TIMES = [NOON, None, NOON.replace(year=1969), NOON.replace(hour=1), NOON, NOON]
INSTANTS = [None if each is None else each.replace(tzinfo=dt.UTC) for each in TIMES]
DAYS = [None if each is None else each.date() for each in TIMES]
MONEY = [Decimal("1.25"), None, Decimal("-3.50"), Decimal("0.00"), Decimal("9.99"), Decimal("1.00")]
LISTS = [[1, 2], None, [], [None], [3], [4, 5]]
STRUCTS = [{"a": 1}, None, {"a": None}, {"a": 4}, {"a": 5}, {"a": 6}]
MAPS = [[("k", 1)], None, [], [("k", None)], [("l", 3)], [("m", 4)]]

# The type of `v` in old and new files, its values, and the type that the dataset has.
PAIRS: dict[str, tuple[pa.DataType, pa.DataType, list[Any], pa.DataType]] = {
    "string, large_string": (pa.string(), pa.large_string(), TEXTS, pa.large_string()),
    "string, string_view": (pa.string(), pa.string_view(), TEXTS, pa.large_string()),
    "string, dictionary": (pa.string(), pa.dictionary(pa.int8(), pa.string()), TEXTS, pa.string()),
    "dictionaries": (
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.string()),
        TEXTS,
        pa.dictionary(pa.int32(), pa.string()),
    ),
    "binary": (
        pa.binary(),
        pa.large_binary(),
        [None if t is None else t.encode() for t in TEXTS],
        pa.large_binary(),
    ),
    "int32, int64": (pa.int32(), pa.int64(), NUMBERS, pa.int64()),
    "int64, int8": (pa.int64(), pa.int8(), NUMBERS, pa.int64()),
    "uint8, int8": (pa.uint8(), pa.int8(), COUNTS, pa.int16()),
    "uint32, int64": (pa.uint32(), pa.int64(), COUNTS, pa.int64()),
    "int32, double": (pa.int32(), pa.float64(), NUMBERS, pa.float64()),
    "float, double": (pa.float32(), pa.float64(), EXACT, pa.float64()),
    "date32, date64": (pa.date32(), pa.date64(), DAYS, pa.date32()),
    "timestamp ms, us": (pa.timestamp("ms"), pa.timestamp("us"), TIMES, pa.timestamp("us")),
    "timestamp us, ns": (
        pa.timestamp("us", "UTC"),
        pa.timestamp("ns", "UTC"),
        INSTANTS,
        pa.timestamp("ns", "UTC"),
    ),
    "UTC, +00:00": (pa.timestamp("us", "UTC"), pa.timestamp("us", "+00:00"), INSTANTS, pa.timestamp("us", "UTC")),
    "durations": (
        pa.duration("s"),
        pa.duration("us"),
        [dt.timedelta(seconds=n) for n in range(ROWS)],
        pa.duration("us"),
    ),
    "decimals": (pa.decimal128(5, 2), pa.decimal128(10, 4), MONEY, pa.decimal128(10, 4)),
    "null, int": (pa.null(), pa.int64(), [None] * ROWS, pa.int64()),
    "lists": (pa.list_(pa.int32()), pa.large_list(pa.int64()), LISTS, pa.large_list(pa.int64())),
    "structs": (
        pa.struct({"a": pa.int32()}),
        pa.struct({"a": pa.int64()}),
        STRUCTS,
        pa.struct({"a": pa.int64()}),
    ),
    "maps": (
        pa.map_(pa.string(), pa.int32()),
        pa.map_(pa.string(), pa.int64()),
        MAPS,
        pa.map_(pa.string(), pa.int64()),
    ),
}
CONFLICTS: dict[str, tuple[pa.DataType, list[Any], pa.DataType, list[Any]]] = {
    "text, integers": (pa.string(), TEXTS, pa.int64(), NUMBERS),
    "int64, double": (pa.int64(), NUMBERS, pa.float64(), EXACT),
    "uint64, int64": (pa.uint64(), COUNTS, pa.int64(), NUMBERS),
    "zones": (pa.timestamp("us", "UTC"), INSTANTS, pa.timestamp("us", "Europe/Berlin"), INSTANTS),
    "zone, none": (pa.timestamp("us", "UTC"), INSTANTS, pa.timestamp("us"), TIMES),
    "bool, int": (pa.bool_(), [True] * ROWS, pa.int8(), [1] * ROWS),
    "list, struct": (pa.list_(pa.int32()), LISTS, pa.struct({"a": pa.int64()}), STRUCTS),
}


def drifting(place: Place, name: str) -> list[Row]:
    """Write two files with different types of `v`; returns the rows that the dataset has."""
    old, new, values, _ = PAIRS[name]
    tables = {
        "a.parquet": pa.table({"id": pa.array(IDS["old"], pa.int64()), "v": column(values, old)}),
        "b.parquet": pa.table({"id": pa.array(IDS["new"], pa.int64()), "v": column(values, new)}),
    }
    place.write_files(tables)
    return [
        {"id": key, "v": value}
        for keys in (IDS["old"], IDS["new"])
        for key, value in zip(keys, values, strict=True)
    ]


def found(place: Place, engine: Engine | str = "pyarrow") -> list[Row]:
    return sorted(place.dataset(engine=engine).read().to_pylist(), key=lambda row: row["id"])


def check_healthy(place: Place) -> None:
    assert place.dataset(engine="pyarrow").check(deep=True)["healthy"]


Operation = Callable[[Place, Engine | str, list[Row]], list[Row]]


def read(place: Place, engine: Engine | str, rows: list[Row]) -> list[Row]:
    dataset = place.dataset(engine=engine)
    assert dataset.read(["v"]).num_rows == dataset.count() == len(rows)
    few = dataset.read(where="id > 4 AND v IS NOT NULL", limit=100)
    expected = [row for row in rows if row["id"] > 4 and row["v"] is not None]
    assert sorted(few.to_pylist(), key=lambda row: row["id"]) == expected
    assert dataset.count("v IS NULL") == sum(row["v"] is None for row in rows)
    return rows


def delete(place: Place, engine: Engine | str, rows: list[Row]) -> list[Row]:
    assert place.dataset(engine=engine).delete("id IN (2, 3, 9)")["rows_matched"] == 3
    return [row for row in rows if row["id"] not in (2, 3, 9)]


def update(place: Place, engine: Engine | str, rows: list[Row]) -> list[Row]:
    place.dataset(engine=engine).update("id IN (1, 8)", {"v": None})
    return [{**row, "v": None} if row["id"] in (1, 8) else row for row in rows]


def merge(place: Place, engine: Engine | str, rows: list[Row]) -> list[Row]:
    dataset = place.dataset(engine=engine)
    source = dataset.read().filter(pc.is_in(pc.field("id"), pa.array([3, 4])))
    changed = source.set_column(0, "id", pa.array([10, 99]))
    stats = dataset.merge(changed, ["id"])
    assert (stats["inserted"], stats["updated"]) == (1, 1)
    values = {row["id"]: row["v"] for row in rows}
    new = dict(zip([10, 99], source.column("v").to_pylist(), strict=True))
    return [{"id": key, "v": value} for key, value in sorted({**values, **new}.items())]


def compact(place: Place, engine: Engine | str, rows: list[Row]) -> list[Row]:
    stats = place.dataset(engine=engine).compact()
    assert stats["after_file_count"] == 1
    return rows


def optimize(place: Place, engine: Engine | str, rows: list[Row]) -> list[Row]:
    assert place.dataset(engine=engine).optimize(["id"])["after_file_count"] == 1
    return rows


def repartition(place: Place, engine: Engine | str, rows: list[Row]) -> list[Row]:
    assert place.dataset(engine=engine).repartition(["id"])["files_written"] == len(rows)
    return rows


def unify_schema(place: Place, engine: Engine | str, rows: list[Row]) -> list[Row]:
    dataset = place.dataset(engine=engine)
    dataset.unify_schema()
    assert len({str(file.schema.remove_metadata()) for file in dataset.files()}) == 1
    assert dataset.unify_schema()["files_rewritten"] == 0
    return rows


def alter(place: Place, engine: Engine | str, rows: list[Row]) -> list[Row]:
    place.dataset(engine=engine).alter(add={"n": "int"}, rename={"v": "w"})
    return [{"id": row["id"], "w": row["v"], "n": None} for row in rows]


def append(place: Place, engine: Engine | str, rows: list[Row]) -> list[Row]:
    dataset = place.dataset(engine=engine)
    dataset.write(pa.table({"id": pa.array([100], pa.int32())}))
    return [*rows, {"id": 100, "v": None}]


OPERATIONS: list[Operation] = [
    read,
    delete,
    update,
    merge,
    compact,
    optimize,
    repartition,
    unify_schema,
    alter,
    append,
]


def is_in_sample(*names: object) -> bool:
    """Whether a case of the matrix runs by default; the others are part of the sweeps. Always the same ones."""
    return zlib.crc32(repr(names).encode()) % 4 == 0


def matrix(names: Sequence[str]) -> list[Any]:
    return [
        pytest.param(
            name,
            operation,
            marks=[] if is_in_sample(name, operation.__name__) else [pytest.mark.sweep],
            id=f"{name}-{operation.__name__}",
        )
        for name in names
        for operation in OPERATIONS
    ]


@pytest.mark.parametrize(("name", "operation"), matrix(list(PAIRS)))
def test_operations_on_files_of_different_types(
    local: Place, engine: Engine | str, name: str, operation: Operation
) -> None:
    rows = drifting(local, name)
    assert local.dataset(engine="pyarrow").schema.field("v").type == PAIRS[name][3]
    expected = operation(local, engine, rows)
    assert found(local) == expected
    check_healthy(local)


@pytest.mark.parametrize("name", PAIRS)
def test_common_types_do_not_depend_on_the_order_of_files(local: Place, name: str) -> None:
    old, new, values, common = PAIRS[name]
    tables = {"a.parquet": column(values, new), "b.parquet": column(values, old)}
    local.write_files({path: pa.table({"v": each}) for path, each in tables.items()})
    assert local.dataset(engine="pyarrow").schema.field("v").type == common
    assert local.dataset(engine="pyarrow").read().column("v").to_pylist() == values * 2


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", CONFLICTS)
def test_types_without_a_common_one_are_refused(
    local: Place, engine: Engine | str, name: str, operation: Operation
) -> None:
    old, before, new, after = CONFLICTS[name]
    local.write_files(
        {
            "a.parquet": pa.table({"id": IDS["old"], "v": column(before, old)}),
            "b.parquet": pa.table({"id": IDS["new"], "v": column(after, new)}),
        }
    )
    state = local.state()
    with pytest.raises(
        IncompatibleTypes, match=r"column 'v' is .* in '.*a\.parquet' and .* in '.*b\.parquet'.*unify_"
    ):
        operation(local, engine, [])
    assert local.state() == state


ADDED = {
    "added at the end": (["id", "v"], ["id", "v", "w"]),
    "added in between": (["id", "v"], ["id", "w", "v"]),
    "missing": (["id", "v", "w"], ["id", "v"]),
    "other order": (["id", "v", "w"], ["w", "id", "v"]),
    "both have others": (["id", "v"], ["id", "w"]),
}


@pytest.mark.parametrize("operation", [read, delete, compact, optimize, unify_schema])
@pytest.mark.parametrize("name", ADDED)
def test_operations_on_files_of_different_columns(
    local: Place, engine: Engine | str, name: str, operation: Operation
) -> None:
    old, new = ADDED[name]
    whole = {"v": TEXTS, "w": NUMBERS}
    tables = {
        path: pa.table({"id": keys, **whole}).select(names)
        for path, keys, names in (("a.parquet", IDS["old"], old), ("b.parquet", IDS["new"], new))
    }
    local.write_files(tables)
    rows = [
        {**dict.fromkeys(dict.fromkeys([*old, *new])), **row}
        for table in tables.values()
        for row in table.to_pylist()
    ]
    without_v = [{**row, "v": row.get("v")} for row in rows]
    expected = operation(local, engine, without_v)
    assert found(local) == expected
    assert local.dataset(engine="pyarrow").schema.names == list(dict.fromkeys([*old, *new]))
    check_healthy(local)


@pytest.mark.parametrize("operation", [compact, delete, unify_schema])
def test_required_columns_become_nullable(local: Place, engine: Engine | str, operation: Operation) -> None:
    required = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)])
    texts = ["x"] * ROWS
    local.write_files(
        {
            "a.parquet": pa.table({"id": IDS["old"], "v": texts}, schema=required),
            "b.parquet": pa.table(
                {"id": IDS["new"], "v": TEXTS},
                schema=required.set(1, pa.field("v", pa.string())),
            ),
        }
    )
    rows = [{"id": key, "v": text} for key, text in zip(IDS["old"] + IDS["new"], texts + TEXTS, strict=True)]
    assert operation(local, engine, rows) == found(local)
    schema = local.dataset(engine="pyarrow").schema
    assert (schema.field("id").nullable, schema.field("v").nullable) == (False, True)


def test_compaction_of_equal_schemas_only(local: Place, engine: Engine | str) -> None:
    drifting(local, "int32, int64")
    state = local.state()
    stats = local.dataset(engine=engine).compact(schema="exact")
    assert (stats["after_file_count"], stats["reconciled_columns"]) == (2, [])
    assert local.state() == state
    assert local.dataset(engine=engine).compact(dry_run=True)["reconciled_columns"] == ["v"]


def test_timestamps_that_no_finer_unit_holds_are_refused(local: Place, engine: Engine | str) -> None:
    far = [dt.datetime(9999, 12, 31)] * ROWS  # noqa: DTZ001
    local.write_files(
        {
            "a.parquet": pa.table({"id": IDS["old"], "v": column(far, pa.timestamp("ms"))}),
            "b.parquet": pa.table({"id": IDS["new"], "v": column(TIMES, pa.timestamp("ns"))}),
        }
    )
    state = local.state()
    with pytest.raises(IncompatibleTypes, match=r"column 'v' of '.*a\.parquet'.*timestamp\[ns\]"):
        local.dataset(engine=engine).compact()
    assert local.state() == state


@pytest.mark.parametrize("view", ["to_pyarrow", "to_polars", "to_duckdb"])
@pytest.mark.parametrize(
    ("coarse", "fine", "values"),
    [
        (
            pa.timestamp("ms", "UTC"),
            pa.timestamp("ns", "UTC"),
            [None, INSTANTS[0], dt.datetime(3000, 1, 1, tzinfo=dt.UTC)],
        ),
        (pa.timestamp("us"), pa.timestamp("ns"), [dt.datetime(1500, 1, 1), NOON, None]),  # noqa: DTZ001
        (pa.duration("s"), pa.duration("ns"), [dt.timedelta(days=365 * 1000), None, dt.timedelta(0)]),
    ],
)
def test_views_refuse_values_that_no_finer_unit_holds(
    local: Place, view: str, coarse: pa.DataType, fine: pa.DataType, values: list[Any]
) -> None:
    """Footers show such values, so a view is refused before anything is read."""
    local.write_files(
        {
            "a.parquet": pa.table({"id": [1, 2, 3], "v": column(values, coarse)}),
            "b.parquet": pa.table({"id": [4], "v": pa.nulls(1, fine)}),
        }
    )
    dataset = local.dataset(engine="pyarrow")
    with pytest.raises(IncompatibleTypes) as reading:
        dataset.read()
    with pytest.raises(IncompatibleTypes, match=r"column 'v' of '.*a\.parquet'.*\[ns.*cannot hold") as viewing:
        getattr(dataset, view)()
    assert str(viewing.value) == str(reading.value)
    local.write_files({"a.parquet": pa.table({"id": [1], "v": column([values[1]], coarse)})})
    getattr(dataset, view)()
    assert dataset.to_pyarrow().to_table().equals(dataset.read())


def test_row_groups_of_the_same_parquet_types_are_copied(local: Place, engine: Engine | str) -> None:
    """Strings of any width are the same in Parquet: their bytes are not decoded."""
    texts = [f"text {n % 97}" for n in range(40_000)]
    local.write_files(
        {
            "a.parquet": pa.table({"s": pa.array(texts)}),
            "b.parquet": pa.table({"s": pa.array(texts, pa.large_string())}),
        }
    )
    stats = local.dataset(engine=engine).compact()
    assert oracle.planned_row_groups(stats) == [(2, 0)]
    (file,) = local.dataset(engine="pyarrow").files()
    assert [group.num_rows for group in file.row_groups] == [40_000, 40_000]
    assert file.schema.field("s").type == pa.large_string()
    assert sorted(local.dataset(engine="pyarrow").read().column("s").to_pylist()) == sorted(texts * 2)


def test_partition_column_in_some_files_only(local: Place, engine: Engine | str) -> None:
    """A file that lacks a partition column has its value in the path, in the type of the others."""
    local.write_files(
        {
            "day=1/a.parquet": pa.table({"id": [1, 2]}),
            "day=2/b.parquet": pa.table({"id": [3], "day": pa.array([2], pa.int32())}),
        }
    )
    dataset = local.dataset(engine=engine)
    expected = [{"id": 1, "day": 1}, {"id": 2, "day": 1}, {"id": 3, "day": 2}]
    assert found(local, engine) == expected
    assert dataset.count("day = 1") == 2
    assert dataset.schema.field("day").type == pa.int32()
    dataset.delete("id = 2 AND day = 1")
    assert found(local, engine) == [expected[0], expected[2]]


def test_instants_as_partition_column_in_some_files_only(local: Place, engine: Engine | str) -> None:
    """A path with an offset names an instant. Without one it names a different instant in every time zone."""
    kind = pa.timestamp("us", "Europe/Berlin")
    noon = dt.datetime(2026, 11, 4, 12, tzinfo=dt.UTC)
    local.write_files(
        {
            "at=2026-11-04 13%3A00%3A00+01%3A00/a.parquet": pa.table({"id": [1, 2]}),
            "at=2026-11-05 13%3A00%3A00+01%3A00/b.parquet": pa.table(
                {"id": [3], "at": pa.array([noon + dt.timedelta(days=1)], kind)}
            ),
        }
    )
    dataset = local.dataset(engine=engine)
    assert [row["at"] for row in found(local, engine)] == [noon, noon, noon + dt.timedelta(days=1)]
    assert dataset.count("at = TIMESTAMP '2026-11-04 12:00:00+00:00'") == 2
    dataset.delete("id = 2 AND at < TIMESTAMP '2026-11-05 00:00:00+00:00'")
    assert [row["id"] for row in found(local, engine)] == [1, 3]
    local.write_files({"at=2026-11-06 13%3A00%3A00/c.parquet": pa.table({"id": [4]})})
    state = local.state()
    with pytest.raises(IncompatibleTypes, match=r"'at' is .*Berlin.*'2026-11-06 13:00:00' in the path.*no offset"):
        dataset.delete("id = 1")
    assert local.state() == state


class TestWriters:
    """Files of one dataset, written by several programs."""

    @staticmethod
    def write(program: str, rows: pa.Table, path: str) -> None:
        if program == "pyarrow":
            pq.write_table(rows, path)
        elif program == "pandas":
            rows.to_pandas().to_parquet(path)
        elif program == "polars":
            import polars as pl

            frame = pl.from_arrow(rows)
            assert isinstance(frame, pl.DataFrame)
            frame.write_parquet(path)
        else:
            import duckdb

            duckdb.from_arrow(rows).write_parquet(path)

    PROGRAMS = ("pyarrow", "pandas", "polars", "duckdb")

    @pytest.mark.parametrize("operation", [read, delete, update, merge, compact, repartition, unify_schema])
    @pytest.mark.parametrize("second", PROGRAMS)
    @pytest.mark.parametrize("first", PROGRAMS)
    def test_text_and_timestamps_of_two_programs(
        self, local: Place, first: str, second: str, operation: Operation
    ) -> None:
        local.fs.makedirs(local.root)
        rows = []
        for program, path, keys in ((first, "a", IDS["old"]), (second, "b", IDS["new"])):
            table = pa.table({"id": keys, "v": pa.array(TEXTS), "at": pa.array(TIMES, pa.timestamp("us"))})
            self.write(program, table, f"{local.root}/{path}.parquet")
            rows += table.to_pylist()
        kept = {row["id"]: row["at"] for row in rows}
        narrow = [{"id": row["id"], "v": row["v"]} for row in rows]
        if operation is read:
            assert found(local) == rows
            return
        if operation is merge:
            dataset = local.dataset(engine="pyarrow")
            dataset.merge(dataset.read(where="id = 8"), ["id"])
            assert found(local) == rows
            return
        expected = operation(local, "pyarrow", narrow)
        assert [{"id": row["id"], "v": row["v"]} for row in found(local)] == expected
        assert all(row["at"] == kept[row["id"]] for row in found(local))
        check_healthy(local)

    def test_spark_beside_the_others(self, local: Place, spark: Any) -> None:
        rows = pa.table({"id": IDS["old"], "v": TEXTS, "at": pa.array(INSTANTS, pa.timestamp("us", "UTC"))})
        spark.createDataFrame(rows).coalesce(1).write.parquet(local.root)
        for number, program in enumerate(self.PROGRAMS[:3]):
            self.write(program, rows, f"{local.root}/{number}.parquet")
        dataset = local.dataset(engine="spark")
        assert dataset.compact()["after_file_count"] == 1
        assert found(local) == sorted(rows.to_pylist() * 4, key=lambda row: row["id"])
        check_healthy(local)


class TestAlter:
    def test_rows_keep_their_order(self, local: Place, engine: Engine | str) -> None:
        local.write_files({f"{n}.parquet": pa.table({"id": [n], "v": [n]}) for n in range(5)})
        local.dataset(engine=engine).alter(rename={"v": "w"}, cast={"id": "double"})
        assert local.dataset(engine="pyarrow").read().column("w").to_pylist() == [0, 1, 2, 3, 4]

    def test_file_of_another_writer_gets_the_new_schema(self, local: Place) -> None:
        """It arrives while others are rewritten: the change is planned again."""
        local.write_files({"a.parquet": pa.table({"id": [1], "v": ["x"]})})
        dataset = local.dataset(engine="pyarrow", retries=1)
        run, late = dataset.engine.run, [pa.table({"id": [2], "v": ["y"]})]

        def slow(*arguments: Any) -> Any:
            if late:
                local.write_files({"b.parquet": late.pop()})
            return run(*arguments)

        dataset.engine.run = slow  # type: ignore[method-assign]
        dataset.alter(rename={"v": "w"})
        assert dataset.read().to_pylist() == [{"id": 1, "w": "x"}, {"id": 2, "w": "y"}]

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({}, "nothing to alter"),
            ({"drop": "nope"}, "'nope'; available columns: 'id', 'v'"),
            ({"drop": ["id", "v"]}, "every column would be dropped"),
            ({"rename": {"v": "id"}}, "several columns named 'id'"),
            ({"add": {"v": "int"}}, "several columns named 'v'"),
            ({"add": {"w": "imaginary"}}, "unknown type 'imaginary'; available: 'DECIMAL', 'BOOLEAN'"),
            ({"drop": "v", "cast": {"v": "int"}}, "a column that is dropped cannot be renamed or cast"),
            ({"rename": {"day": "date"}}, "'day': partition columns are changed by repartition"),
        ],
    )
    def test_invalid_changes_are_refused(self, local: Place, arguments: Any, match: str) -> None:
        local.write_files({"day=1/a.parquet": pa.table({"id": [1], "v": ["x"]})})
        before = local.state()
        with pytest.raises(ValueError, match=match):
            local.dataset(engine="pyarrow").alter(**arguments)
        assert local.state() == before
        assert local.left_behind() == []

    def test_unchanged_columns_are_copied(self, local: Place, engine: Engine | str) -> None:
        """Their pages are the same bytes, under the new name and in the same order of row groups."""
        texts = [f"text {n % 97}" for n in range(10_000)]
        local.write_files({"a.parquet": pa.table({"s": texts, "n": range(10_000)})}, row_group_size=4_000)

        def pages(name: str) -> list[bytes]:
            (path,) = local.files()
            content = local.fs.cat_file(f"{local.root}/{path}")
            footer = pq.read_metadata(pa.BufferReader(content))
            found = []
            for group in (footer.row_group(at) for at in range(footer.num_row_groups)):
                chunk = next(group.column(at) for at in range(2) if group.column(at).path_in_schema == name)
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                found.append(content[start : start + chunk.total_compressed_size])
            return found

        before = pages("s")
        local.dataset(engine=engine).alter(rename={"s": "t"}, cast={"n": "double"})
        assert pages("t") == before
        assert len(before) == 3
        check_healthy(local)

    def test_values_that_a_type_cannot_hold_are_refused(self, local: Place) -> None:
        """Arrow rounds floats and cuts times off silently."""
        columns = {
            "f": pa.array([0.1], pa.float64()),
            "d": pa.array([Decimal("12345678901234567890.12")]),
            "t": pa.array([NOON], pa.timestamp("us")),
            "s": pa.array([{"a": 1, "b": 2}]),
            "n": pa.array([None], pa.int32()),
        }
        local.write_files({"a.parquet": pa.table(columns)})
        before = local.state()
        kinds = {
            "f": "float",
            "d": "double",
            "t": "date",
            "s": pa.struct({"a": pa.int64()}),
            "n": pa.list_(pa.int8()),
        }
        for name, kind in kinds.items():
            with pytest.raises(IncompatibleTypes, match=f"column '{name}' of .*a.parquet"):
                local.dataset(engine="pyarrow").alter(cast={name: kind})
        assert local.state() == before

    def test_types_that_parquet_does_not_have_are_refused(self, local: Place) -> None:
        local.write_files({"a.parquet": pa.table({"t": pa.array([NOON], pa.timestamp("us"))})})
        dataset = local.dataset(engine="pyarrow")
        with pytest.raises(InvalidArgument, match=r"Parquet has no timestamp\[s\] for 't'; use timestamp\[ms\]"):
            dataset.alter(cast={"t": pa.timestamp("s")})
        with pytest.raises(InvalidArgument, match=r"Parquet has no timestamp\[s\] for 't'"):
            dataset.unify_schema(cast={"t": pa.timestamp("s")})
        with pytest.raises(InvalidArgument, match="cannot be stored in Parquet"):
            dataset.alter(add={"u": pa.sparse_union([pa.field("a", pa.int8())])})
        with pytest.raises(InvalidArgument, match="'' is not a column name"):
            dataset.alter(rename={"t": ""})


@pytest.mark.parametrize("operation", [delete, update, merge, unify_schema, alter])
def test_durations_of_copied_row_groups_keep_their_unit(local: Place, operation: Operation) -> None:
    """Parquet does not know the unit of durations: equal bytes are other values."""
    times = [dt.timedelta(seconds=n) for n in range(ROWS)]
    for path, keys, unit in (("a", "old", "s"), ("b", "new", "us")):
        rows = pa.table({"id": IDS[keys], "v": pa.array(times, pa.duration(unit))})
        local.write_files({f"{path}.parquet": rows}, row_group_size=1)
    rows = [{"id": key, "v": value} for keys in IDS.values() for key, value in zip(keys, times, strict=True)]
    assert operation(local, "pyarrow", rows) == found(local)


def test_categories_of_several_files_exceed_their_index_type(local: Place, engine: Engine | str) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    tables = [pa.table({"id": [n], "v": pa.array([f"{n}"]).cast(kind)}) for n in range(3)]
    many = [pa.array([f"{k} {n}" for n in range(100)]).dictionary_encode().cast(kind) for k in range(2)]
    tables += [pa.table({"id": range(100), "v": each}) for each in many]
    local.write_files({f"{n}.parquet": table for n, table in enumerate(tables)})
    assert len(set(local.dataset(engine=engine).read().column("v").to_pylist())) == 203
