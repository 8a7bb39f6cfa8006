"""Merges, the same on every engine, by broadcast and shuffle on Spark: compared with an oracle in Python."""

from __future__ import annotations

import copy
import datetime as dt
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from helpers.merge_oracle import merged
from parketto import ColumnNotFound, CommitConflict, Dataset
from parketto.engines.base import Engine
from parketto.engines.registry import get_engine

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "score": pa.float64()})
STRATEGIES = ["upsert", "insert", "update", "full_merge", "deduplicate"]


def table(*rows: tuple[int | None, str | None, float | None]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def many(ids: range, name: str = "old") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [name] * len(ids), "score": [float(n) for n in ids]})


def contents(place: Place) -> Counter[str]:
    found = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    return Counter(repr(row) for each in found for row in each.to_pylist())


def check(
    place: Place,
    engine: Engine,
    source: Any,
    keys: list[str],
    strategy: str = "upsert",
    rows: list[dict[str, Any]] | None = None,
    **options: Any,
) -> None:
    """Merge, and compare with the oracle: contents, statistics, schema, and which files were rewritten."""
    before = {path: oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)}
    state = place.state()
    target = [row for each in before.values() for row in each.to_pylist()]
    source_rows = rows if rows is not None else source.to_pylist()
    expected, stats = merged(target, source_rows, keys, strategy, options.get("dedup_order_by", ()))
    assert place.dataset(engine=engine).merge(source, keys, strategy=strategy, **options) == stats
    assert contents(place) == Counter(map(repr, expected))
    source_keys = {tuple(row[name] for name in keys) for row in source_rows}
    for path, each in before.items():
        hit = any(tuple(row[name] for name in keys) in source_keys for row in each.to_pylist())
        if strategy == "insert" or (strategy != "full_merge" and not hit):
            assert place.state()[path[len(place.root) :]] == state[path[len(place.root) :]], "an untouched file"
    schemas = [each.schema for each in before.values()]
    for found in oracle.schemas(place.root, place.fs):
        assert found.equals((schemas or [source.schema])[0], check_metadata=True)
    assert place.left_behind() == []


@pytest.fixture
def users(place: Place) -> Place:
    place.write_files(
        {
            "a.parquet": table((1, "Ada", 1.0), (2, "Bob", None), (3, "Cy", 3.0)),
            "b.parquet": table((4, "Di", 4.0), (5, None, 5.0)),
            "c.parquet": table((100, "Zoe", 6.0)),
        }
    )
    return place


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy(users: Place, merge_engine: Engine, strategy: str) -> None:
    check(users, merge_engine, table((2, "Bea", 2.0), (3, None, None), (7, "Gil", 7.0)), ["id"], strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_key_in_common(users: Place, merge_engine: Engine, strategy: str) -> None:
    check(users, merge_engine, table((50, "new", 1.0), (51, "new", 1.0)), ["id"], strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_keys_in_common(users: Place, merge_engine: Engine, strategy: str) -> None:
    check(users, merge_engine, table(*((n, "x", 0.5) for n in (1, 2, 3, 4, 5, 100))), ["id"], strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_empty_source(users: Place, merge_engine: Engine, strategy: str) -> None:
    """A full merge with an empty source keeps only the schema; other strategies change nothing."""
    check(users, merge_engine, table(), ["id"], strategy)
    if strategy != "full_merge":
        assert users.files() == ["a.parquet", "b.parquet", "c.parquet"]
    else:
        assert len(users.files()) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("exists", [False, True])
def test_missing_or_empty_target(place: Place, merge_engine: Engine, strategy: str, exists: bool) -> None:
    if exists:
        place.fs.makedirs(place.root)
    stats = place.dataset(engine=merge_engine).merge(table((1, "a", 1.0), (2, "b", 2.0)), "id", strategy=strategy)
    created = strategy != "update"
    assert stats == {"inserted": 2 * created, "updated": 0, "deleted": 0, "total": 2 * created}
    assert sum(contents(place).values()) == 2 * created
    if created:
        assert oracle.schemas(place.root, place.fs)[0].equals(SCHEMA)


def test_new_dataset_with_partitions(place: Place, merge_engine: Engine) -> None:
    source = table((1, "a", 1.0), (2, "b/c", 2.0))
    place.dataset(engine=merge_engine).merge(source, ["id"], partition_by="name")
    assert {os.path.dirname(path) for path in place.files()} == {"name=a", "name=b%2Fc"}
    check(place, merge_engine, table((1, "a", 9.0), (3, "a", 3.0)), ["id"])


@pytest.mark.parametrize("strategy", ["upsert", "update", "full_merge", "deduplicate"])
def test_duplicates_in_the_target_become_one(place: Place, merge_engine: Engine, strategy: str) -> None:
    """Every source key exists exactly once afterwards; the other rows count as deleted."""
    place.write_files(
        {
            "a.parquet": table((1, "first", 1.0), (1, "second", 1.0), (2, "x", 2.0)),
            "b.parquet": table((1, "third", 1.0), (9, "other", 9.0), (9, "other", 9.0)),
            "c.parquet": table((1, "fourth", 1.0)),
        }
    )
    check(place, merge_engine, table((1, "one", 0.0)), ["id"], strategy)


def test_updated_rows_keep_their_positions(users: Place, merge_engine: Engine) -> None:
    users.dataset(engine=merge_engine).merge(table((2, "Bea", 2.0)), ["id"])
    rewritten = [path for path in users.files() if path not in ("b.parquet", "c.parquet")]
    found = oracle.read_file(f"{users.root}/{rewritten[0]}", users.fs)
    assert found.column("id").to_pylist() == [1, 2, 3]


def test_columns_in_another_order(users: Place, merge_engine: Engine) -> None:
    source = table((2, "Bea", 2.0), (8, "Hal", 8.0)).select(["score", "name", "id"])
    rows = source.select(SCHEMA.names).to_pylist()
    check(users, merge_engine, source, ["id"], rows=rows)


class TestDeduplicate:
    SOURCE = table(
        (1, "first", 5.0), (1, "last", 1.0), (7, "a", None), (7, "b", 2.0), (7, "c", 2.0), (8, "d", None)
    )

    def test_last_occurrence_wins(self, users: Place, merge_engine: Engine) -> None:
        check(users, merge_engine, self.SOURCE, ["id"], "deduplicate")

    def test_highest_wins_nulls_lowest_ties_to_the_last(self, users: Place, merge_engine: Engine) -> None:
        check(users, merge_engine, self.SOURCE, ["id"], "deduplicate", dedup_order_by=["score"])
        names = {row.split("'name': ")[1].split(",")[0] for row in contents(users) if "'id': 7" in row}
        assert names == {"'c'"}

    def test_across_the_files_of_a_source(self, local: Place, merge_engine: Engine, tmp_path: Path) -> None:
        """In path order, the last file counts."""
        local.write_files({"a.parquet": table((1, "Ada", 1.0), (2, "Bob", None))})
        (tmp_path / "source").mkdir()
        for n in range(5):
            pq.write_table(table((1, f"file {n}", float(-n))), tmp_path / "source" / f"s{n}.parquet")
        rows = [row for n in range(5) for row in pq.read_table(tmp_path / "source" / f"s{n}.parquet").to_pylist()]
        check(local, merge_engine, str(tmp_path / "source"), ["id"], "deduplicate", rows=rows)


class TestRefused:
    """Before anything is changed, with an error that says what to do."""

    @pytest.fixture(autouse=True)
    def unchanged(self, users: Place) -> Any:
        before = users.state()
        yield
        assert users.state() == before
        assert users.left_behind() == []

    def refused(
        self, users: Place, engine: Engine, source: Any, kind: type[Exception], match: str, **more: Any
    ) -> None:
        options: dict[str, Any] = {"key_columns": ["id"], **more}
        with pytest.raises(kind, match=match):
            users.dataset(engine=engine).merge(source, **options)

    def test_unknown_strategy(self, users: Place, merge_engine: Engine) -> None:
        self.refused(
            users, merge_engine, table(), ValueError, "valid strategies: 'upsert', 'insert'", strategy="replace"
        )

    def test_key_missing_in_the_source(self, users: Place, merge_engine: Engine) -> None:
        source = table((1, "a", 1.0)).drop_columns(["id"])
        self.refused(users, merge_engine, source, ColumnNotFound, "of the source not found: 'id'")

    def test_key_missing_in_the_target(self, users: Place, merge_engine: Engine) -> None:
        source = table((1, "a", 1.0)).append_column("code", pa.array([1]))
        self.refused(
            users, merge_engine, source, ColumnNotFound, "of the target not found: 'code'", key_columns=["code"]
        )

    def test_null_key_in_the_source(self, users: Place, merge_engine: Engine) -> None:
        source = table((1, "a", 1.0), (None, "b", 2.0))
        self.refused(
            users, merge_engine, source, ValueError, "NULL values in key column 'id' of the source.*Filter"
        )

    def test_duplicate_keys(self, users: Place, merge_engine: Engine) -> None:
        source = table((1, "a", 1.0), (1, "b", 2.0))
        for strategy in ("upsert", "insert", "update", "full_merge"):
            self.refused(
                users,
                merge_engine,
                source,
                ValueError,
                "1 key.*'id': 1.*strategy='deduplicate'",
                strategy=strategy,
            )

    def test_different_columns(self, users: Place, merge_engine: Engine) -> None:
        source = table((1, "a", 1.0)).rename_columns(["id", "nom", "score"])
        self.refused(
            users, merge_engine, source, ValueError, "only the source has 'nom', only the target has 'name'"
        )

    def test_different_types(self, users: Place, merge_engine: Engine) -> None:
        source = table((1, "a", 1.0)).set_column(2, "score", pa.array(["1.0"]))
        self.refused(
            users, merge_engine, source, TypeError, "'score' is string in the source and double in the target"
        )

    def test_key_of_another_integer_width(self, users: Place, merge_engine: Engine) -> None:
        source = table((1, "a", 1.0)).set_column(0, "id", pa.array([1], pa.int32()))
        self.refused(users, merge_engine, source, TypeError, "'id' is int32 in the source and int64 in the target")

    def test_codec(self, users: Place, merge_engine: Engine) -> None:
        self.refused(users, merge_engine, table(), ValueError, "unknown compression", compression="zip")

    def test_order_without_deduplicate(self, users: Place, merge_engine: Engine) -> None:
        self.refused(users, merge_engine, table(), ValueError, "'deduplicate'", dedup_order_by=["score"])

    def test_source_that_is_not_a_table(self, users: Place, merge_engine: Engine) -> None:
        self.refused(users, merge_engine, [{"id": 1}], ValueError, "expected a PyArrow RecordBatch or Table")

    def test_missing_source(self, users: Place, merge_engine: Engine) -> None:
        self.refused(users, merge_engine, "/no/such/dataset", FileNotFoundError, "no dataset")


def test_null_key_in_the_target(place: Place, merge_engine: Engine) -> None:
    """Also in a file whose bounds exclude all source keys."""
    place.write_files({"a.parquet": table((1, "a", 1.0)), "z.parquet": table((900, "a", 1.0), (None, "b", 2.0))})
    before = place.state()
    with pytest.raises(ValueError, match="NULL values in key column 'id' of the target"):
        place.dataset(engine=merge_engine).merge(table((1, "x", 1.0)), ["id"])
    assert place.state() == before


def test_null_key_in_a_file_without_statistics(place: Place, merge_engine: Engine) -> None:
    place.write_files({"a.parquet": table((5, "a", 1.0), (None, "b", 2.0))}, write_statistics=False)
    with pytest.raises(ValueError, match="NULL values in key column 'id' of the target"):
        place.dataset(engine=merge_engine).merge(table((1, "x", 1.0)), ["id"])


@pytest.mark.parametrize("codec", ["snappy", "gzip", "lz4", "zstd", "brotli", "none"])
def test_codecs(local: Place, merge_engine: Engine, codec: str) -> None:
    local.write_files({"a.parquet": many(range(100)), "b.parquet": many(range(100, 200))})
    local.dataset(engine=merge_engine).merge(many(range(50, 60), "new"), ["id"], compression=codec)
    (rewritten,) = [file for file in local.dataset().files() if not file.path.endswith("b.parquet")]
    assert rewritten.codec == codec


class TestPartitions:
    SCHEMA = pa.schema({"day": pa.int64(), "id": pa.int64(), "v": pa.string()})
    ROWS: ClassVar = [
        {"day": 1, "id": 1, "v": "a"},
        {"day": 1, "id": 2, "v": "b"},
        {"day": 2, "id": 3, "v": "c"},
        {"day": 10, "id": 4, "v": None},
    ]
    SOURCE: ClassVar = [
        {"day": 1, "id": 1, "v": "updated"},
        {"day": 2, "id": 2, "v": "moved to an old partition"},
        {"day": 7, "id": 4, "v": "moved to a new one"},
        {"day": 2, "id": 5, "v": "added to an old one"},
        {"day": 9, "id": 6, "v": "added to a new one"},
    ]

    def write(self, place: Place, *, inside: bool, name: str = "day={}") -> None:
        for day in (1, 2, 10):
            rows = [row for row in self.ROWS if row["day"] == day]
            each = pa.Table.from_pylist(rows, self.SCHEMA)
            place.write_files({f"{name.format(day)}/f.parquet": each if inside else each.drop_columns(["day"])})

    def logical(self, place: Place) -> Counter[str]:
        """Rows with the partition of their path."""
        found: Counter[str] = Counter()
        for path in oracle.data_files(place.root, place.fs):
            day = int(os.path.basename(os.path.dirname(path)).split("=")[1])
            for row in oracle.read_file(path, place.fs).to_pylist():
                assert row.get("day", day) == day, "a row is in the folder of its partition"
                found[repr({"day": day, "id": row["id"], "v": row["v"]})] += 1
        return found

    @pytest.mark.parametrize("strategy", STRATEGIES)
    @pytest.mark.parametrize("inside", [True, False], ids=["inside", "path only"])
    def test_partition_columns_in_files_or_only_in_paths(
        self, place: Place, merge_engine: Engine, inside: bool, strategy: str
    ) -> None:
        self.write(place, inside=inside)
        schema = oracle.schemas(place.root, place.fs)[0]
        source = pa.Table.from_pylist(self.SOURCE)
        expected, stats = merged(self.ROWS, self.SOURCE, ["id"], strategy)
        assert place.dataset(engine=merge_engine).merge(source, ["id"], strategy=strategy) == stats
        assert self.logical(place) == Counter(map(repr, expected))
        assert all(found.equals(schema) for found in oracle.schemas(place.root, place.fs))

    @pytest.mark.parametrize("inside", [True, False], ids=["inside", "path only"])
    def test_partition_column_is_part_of_the_key(self, place: Place, merge_engine: Engine, inside: bool) -> None:
        self.write(place, inside=inside)
        untouched = f"{place.root}/day=10/f.parquet"
        before = place.fs.cat_file(untouched)
        source = [{"day": 2, "id": 1, "v": "new"}, {"day": 1, "id": 2, "v": "updated"}]
        expected, stats = merged(self.ROWS, source, ["day", "id"], "upsert")
        found = place.dataset(engine=merge_engine).merge(pa.Table.from_pylist(source), ["day", "id"])
        assert found == stats
        assert self.logical(place) == Counter(map(repr, expected))
        assert place.fs.cat_file(untouched) == before

    def test_existing_folders_with_another_spelling_are_used(self, place: Place, merge_engine: Engine) -> None:
        """The number 1 goes to `day=01` if that folder exists."""
        self.write(place, inside=True, name="day={:02d}")
        source = [{"day": 1, "id": 1, "v": "updated"}, {"day": 2, "id": 9, "v": "added"}]
        place.dataset(engine=merge_engine).merge(pa.Table.from_pylist(source), ["id"])
        assert {os.path.dirname(path) for path in place.files()} == {"day=01", "day=02", "day=10"}

    def test_hostile_values(self, place: Place, merge_engine: Engine) -> None:
        values = ["x/y", "a=b", "..", "ünï", "%2F", "it's", 'q"q', "; drop", None]
        rows = [{"key": value, "n": n} for n, value in enumerate(values)]
        place.dataset(engine="pyarrow").write(
            pa.Table.from_pylist(rows[:5], pa.schema({"key": pa.string(), "n": pa.int64()})), partition_by="key"
        )
        source = pa.Table.from_pylist(rows, pa.schema({"key": pa.string(), "n": pa.int64()}))
        stats = place.dataset(engine=merge_engine).merge(source, ["n"])
        assert stats == {"inserted": 4, "updated": 5, "deleted": 0, "total": 9}
        assert sorted(map(repr, place.dataset().read().to_pylist())) == sorted(map(repr, rows))


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, -1, 0, 5, 127]),
    "uint64": (pa.uint64(), [0, 1, 2**63, 2**64 - 2, 2**64 - 1]),
    "text": (pa.string(), ["", "it's", 'a"b', "ünï 🦆", "x; --"]),
    "large text": (pa.large_string(), ["a", "b", "c", "d", "e"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "c", "d", "e"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31), dt.date(2000, 2, 29)]),
    "timestamp ns": (pa.timestamp("ns"), [0, 1, -1, 10**18, 999]),
    "timestamp with zone": (pa.timestamp("us", "Europe/Berlin"), [0, 1, -1, 10**15, 999]),
    "time": (pa.time64("ns"), [0, 1, 2, 3, 86_399_999_999_999]),
    "decimal": (pa.decimal128(20, 2), [Decimal(text) for text in ("0.00", "-1.50", "10.00", "999999999999.99")]),
    "bool": (pa.bool_(), [True, False]),
    "binary": (pa.binary(), [b"", b"\0", b"\xff", b"ab", b"abc"]),
    "fixed binary": (pa.binary(2), [b"\0\0", b"ab", b"\xff\xff", b"a\0", b"zz"]),
    "double": (pa.float64(), [0.5, -0.0, float("inf"), 1e300, -2.5]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type(local: Place, merge_engine: Engine, kind: str) -> None:
    dtype, values = KEYS[kind]
    keys = pa.array(values, dtype)
    rows = pa.table({"key": keys, "n": list(range(len(values)))})
    half = len(values) // 2
    local.write_files({"a.parquet": rows.slice(0, half), "b.parquet": rows.slice(half, len(values) - 1 - half)})
    source = rows.set_column(1, "n", pa.array([100 + n for n in range(len(values))]))
    stats = local.dataset(engine=merge_engine).merge(source, ["key"])
    known = len(values) - 1
    assert stats == {"inserted": 1, "updated": known, "deleted": 0, "total": len(values)}
    found = local.dataset().read()
    assert found.schema.equals(rows.schema)
    assert found.sort_by("n").column("key").to_pylist() == keys.to_pylist()


def test_composite_keys(place: Place, merge_engine: Engine) -> None:
    rows = [
        {"a": a, "b": f"k'{b}", "c": dt.date(2025, 1, c + 1), "v": a + b + c}
        for a in range(4)
        for b in range(3)
        for c in range(3)
    ]
    place.write_files({f"{n}.parquet": pa.Table.from_pylist(rows[n * 9 : n * 9 + 9]) for n in range(4)})
    source = [{**row, "v": -1} for row in rows[5:8]] + [{"a": 0, "b": "k'0", "c": dt.date(2030, 1, 1), "v": 7}]
    check(place, merge_engine, pa.Table.from_pylist(source), ["c", "a", "b"])


@pytest.mark.spark
def test_types_that_spark_cannot_hold(local: Place, merge_engine: Engine) -> None:
    """Every value and every type is preserved, by broadcast and by shuffle."""
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False, metadata={"unit": "pieces"}),
            ("u64", pa.uint64()),
            ("ns", pa.timestamp("ns", "UTC")),
            ("time", pa.time64("ns")),
            ("duration", pa.duration("ms")),
            ("wide", pa.decimal256(50, 3)),
            ("half", pa.float16()),
            ("word", pa.dictionary(pa.int8(), pa.string())),
            ("large", pa.large_list(pa.large_string())),
            ("pair", pa.list_(pa.int64(), 2)),
            ("map", pa.map_(pa.string(), pa.timestamp("ms"))),
            ("struct", pa.struct([("x", pa.uint32()), ("y", pa.list_(pa.date32()))])),
            ("null", pa.null()),
        ],
        metadata={"owner": "tests"},
    )

    def row(n: int) -> dict[str, Any]:
        return {
            "id": n,
            "u64": 2**64 - 1 - n,
            "ns": n,
            "time": n,
            "duration": n,
            "wide": Decimal(10**40 + n),
            "half": 0.5,
            "word": "w",
            "large": ["a", None],
            "pair": [1, n],
            "map": [("k", n)],
            "struct": {"x": n, "y": [1]},
            "null": None,
        }

    def rows(numbers: list[int]) -> pa.Table:
        columns = {name: [row(n)[name] for n in numbers] for name in schema.names}
        arrays = [
            pa.array(columns[item.name], pa.float32()).cast(pa.float16())
            if item.name == "half"
            else pa.array(columns[item.name], item.type)
            for item in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    local.write_files({"a.parquet": rows([1, 2, 3]), "b.parquet": rows([10, 11])})
    before = oracle.schemas(local.root)[0]
    stats = local.dataset(engine=merge_engine).merge(rows([2, 11, 12]), ["id"])
    assert stats == {"inserted": 1, "updated": 2, "deleted": 0, "total": 6}
    assert all(found.equals(before, check_metadata=True) for found in oracle.schemas(local.root))
    assert (
        local.dataset().read().sort_by("id").equals(pa.concat_tables([rows([1, 2, 3, 10, 11, 12])]).cast(before))
    )


def test_null_into_a_required_column_is_refused(local: Place, merge_engine: Engine) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    local.write_files({"a.parquet": pa.Table.from_pylist([{"id": 1, "v": "x"}], schema)})
    before = local.state()
    source = pa.table({"id": [1], "v": pa.array([None], pa.string())})
    with pytest.raises(ValueError, match="NULL values in 'v', which is declared not null"):
        local.dataset(engine=merge_engine).merge(source, ["id"])
    assert local.state() == before


class TestSources:
    """Whatever holds rows can be a source."""

    SOURCE = table((2, "Bea", 2.0), (7, "Gil", 7.0))

    def test_pandas(self, users: Place, merge_engine: Engine) -> None:
        frame = self.SOURCE.to_pandas().set_index("id")
        check(users, merge_engine, frame, ["id"], rows=self.SOURCE.to_pylist())

    def test_polars(self, users: Place, merge_engine: Engine) -> None:
        import polars as pl

        check(users, merge_engine, pl.from_arrow(self.SOURCE), ["id"], rows=self.SOURCE.to_pylist())
        check(users, merge_engine, pl.from_arrow(self.SOURCE).lazy(), ["id"], rows=self.SOURCE.to_pylist())

    def test_reader(self, users: Place, merge_engine: Engine) -> None:
        reader = pa.RecordBatchReader.from_batches(SCHEMA, self.SOURCE.to_batches(max_chunksize=1))
        check(users, merge_engine, reader, ["id"], rows=self.SOURCE.to_pylist())

    def test_file_and_dataset(self, local: Place, merge_engine: Engine, tmp_path: Path) -> None:
        local.write_files({"a.parquet": table((2, "Bob", 1.0))})
        folder = tmp_path / "source; 'dir' [x]" / "day=1"
        folder.mkdir(parents=True)
        pq.write_table(self.SOURCE, folder / "s.parquet")
        check(local, merge_engine, folder / "s.parquet", ["id"], rows=self.SOURCE.to_pylist())
        with pytest.raises(ValueError, match="only the source has 'day'"):
            local.dataset(engine=merge_engine).merge(str(folder.parent), ["id"])


def test_hostile_names(tmp_path: Path, merge_engine: Engine) -> None:
    """Names are data: quotes, semicolons, brackets, spaces, dots and keywords in paths and columns."""
    names = ["select", "a.b", "it's", 'x"y', "[z]", "semi;colon", "with space", "`tick`"]
    schema = pa.schema({name: pa.int64() for name in names})
    root = str(tmp_path / "data; drop 'table' [x] {y} *" / 'da"ta $(set)')
    dataset = Dataset(root, engine=merge_engine)
    old = pa.Table.from_pylist([dict.fromkeys(names, n) for n in range(5)], schema)
    dataset.write(old, partition_by=["it's"])
    new = pa.Table.from_pylist([dict.fromkeys(names, n) | {"a.b": 100 + n} for n in (3, 4, 9)], schema)
    stats = dataset.merge(new, ["select", 'x"y'])
    assert stats == {"inserted": 1, "updated": 2, "deleted": 0, "total": 6}
    assert dataset.read().sort_by("select").column("a.b").to_pylist() == [0, 1, 2, 103, 104, 109]
    assert sorted(os.listdir(os.path.dirname(root))) == ['.da"ta $(set).parketto', 'da"ta $(set)']


class TestConcurrentAppends:
    """Another writer adds files during a merge."""

    def merge(
        self, place: Place, engine: Engine, added: pa.Table, strategy: str = "upsert", **options: Any
    ) -> Any:
        place.write_files({"a.parquet": table((1, "Ada", 1.0))})
        dataset = place.dataset(engine=engine, **options)
        original = type(dataset.engine).merge

        def late(*arguments: Any) -> Any:
            outcome = original(dataset.engine, *arguments)
            if "late.parquet" not in place.files():
                place.write_files({"late.parquet": added})
            return outcome

        dataset.engine.merge = late  # type: ignore[method-assign]
        return dataset.merge(table((1, "one", 1.0), (7, "seven", 7.0)), ["id"], strategy=strategy)

    @pytest.mark.parametrize("strategy", ["upsert", "insert", "full_merge", "deduplicate"])
    def test_appended_source_key_is_a_conflict(self, local: Place, merge_engine: Engine, strategy: str) -> None:
        with pytest.raises(CommitConflict, match=r"late\.parquet.*may have the same keys"):
            self.merge(local, _fresh(merge_engine), table((7, "theirs", 0.0)), strategy)
        assert contents(local) == Counter(map(repr, table((1, "Ada", 1.0), (7, "theirs", 0.0)).to_pylist()))
        assert local.left_behind() == []

    def test_other_appended_keys_are_kept(self, local: Place, merge_engine: Engine) -> None:
        stats = self.merge(local, _fresh(merge_engine), table((900, "theirs", 0.0)))
        assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 2}
        assert sum(contents(local).values()) == 3

    @pytest.mark.parametrize("strategy", ["update", "upsert"])
    def test_snapshot_isolation_allows_appended_keys(
        self, local: Place, merge_engine: Engine, strategy: str
    ) -> None:
        self.merge(local, _fresh(merge_engine), table((7, "theirs", 0.0)), strategy, isolation="snapshot")
        assert sum(contents(local).values()) == (2 if strategy == "update" else 3)

    def test_retry_sees_the_new_file(self, local: Place, merge_engine: Engine) -> None:
        stats = self.merge(local, _fresh(merge_engine), table((7, "theirs", 0.0)), retries=1)
        assert stats == {"inserted": 0, "updated": 2, "deleted": 0, "total": 2}

    def test_appended_keys_between_those_of_the_source_are_no_conflict(
        self, local: Place, merge_engine: Engine
    ) -> None:
        """Overlapping bounds are no conflict: the keys themselves are compared."""
        stats = self.merge(local, _fresh(merge_engine), table((3, "theirs", 0.0), (5, "theirs", 0.0)))
        assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 2}
        assert sum(contents(local).values()) == 4


def _fresh(engine: Engine | str) -> Engine:
    """A new engine that the test can patch."""
    return copy.copy(engine) if not isinstance(engine, str) else get_engine(engine)


def test_backup_path_is_returned(local: Place, merge_engine: Engine, tmp_path: Path) -> None:
    local.write_files({"a.parquet": table((1, "one", 1.0), (2, "two", 2.0))})
    dataset, before = local.dataset(engine=merge_engine), local.rows()
    stats = dataset.merge(table((1, "uno", 1.0)), "id", backup=tmp_path / "kept")
    assert stats["updated"] == 1
    assert stats["backup_path"] is not None
    dataset.restore(stats["backup_path"])
    assert local.rows() == before
    assert dataset.merge(table((9, "nine", 9.0)), "id", backup=tmp_path / "kept")["backup_path"] is None
