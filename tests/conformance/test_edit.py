"""Delete and update, the same on every engine: SQL's three-valued logic, and only affected files rewritten."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conftest import Place
from helpers import oracle
from parketto import ColumnNotFound, Progress, sql
from parketto.engines.base import Engine

Row = dict[str, Any]
SCHEMA = pa.schema(
    {
        "id": pa.uint64(),
        "price": pa.float64(),
        "side": pa.dictionary(pa.int32(), pa.string()),
        "at": pa.timestamp("ns", "UTC"),
        "amount": pa.decimal128(12, 2),
    },
    metadata={"owner": "tests"},
)


def row(number: int) -> Row:
    return {
        "id": number,
        "price": None if number % 7 == 0 else number * 1.5,
        "side": "ask" if number % 2 else "bid",
        "at": number,
        "amount": Decimal(number) / 4,
    }


def quotes(numbers: range) -> pa.Table:
    return pa.Table.from_pylist([row(number) for number in numbers], SCHEMA)


@pytest.fixture
def market(place: Place) -> Place:
    place.write_files({f"f{n}.parquet": quotes(range(n * 100, n * 100 + 100)) for n in range(4)})
    return place


def contents(place: Place) -> Counter[str]:
    found = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    return Counter(repr(each) for table in found for each in table.to_pylist())


def check(
    place: Place,
    run: Callable[[], Any],
    matches: Callable[[Row], bool],
    change: Callable[[Row], Row] | None = None,
) -> Any:
    """Run an operation and compare with plain Python: contents, counts, schema, untouched files."""
    tables = {path: oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)}
    state = place.state()
    rows = [each for table in tables.values() for each in table.to_pylist()]
    hits = [each for each in rows if matches(each)]
    expected = [each if not matches(each) else change(each) if change else None for each in rows]
    stats = run()
    assert contents(place) == Counter(repr(each) for each in expected if each is not None)
    assert stats["rows_matched"] == len(hits)
    assert stats["rows_before"] == len(rows)
    assert stats["rows_after"] == len(rows) - (0 if change else len(hits))
    assert stats["files_before"] == len(tables)
    touched = 0
    for path, table in tables.items():
        hit = [each for each in table.to_pylist() if matches(each)]
        touched += bool(hit)
        if not hit:
            assert place.state()[path[len(place.root) :]] == state[path[len(place.root) :]]
    assert stats["files_rewritten"] + stats["files_removed"] == touched
    before = next(iter(tables.values())).schema
    assert all(found.equals(before, check_metadata=True) for found in oracle.schemas(place.root, place.fs))
    assert place.left_behind() == []
    return stats


class TestDelete:
    def test_in_one_file(self, market: Place, engine: Engine) -> None:
        stats = check(
            market,
            lambda: market.dataset(engine=engine).delete("id BETWEEN 120 AND 130"),
            lambda r: 120 <= r["id"] <= 130,
        )
        assert stats["files_scanned"] == 1, "footers rule the other files out"

    def test_scattered(self, market: Place, engine: Engine) -> None:
        check(
            market,
            lambda: market.dataset(engine=engine).delete("side = 'ask' AND price > 30 OR amount = 2.50"),
            lambda r: (r["side"] == "ask" and (r["price"] or 0) > 30) or r["amount"] == Decimal("2.50"),
        )

    def test_null_conditions_delete_nothing(self, market: Place, engine: Engine) -> None:
        """A row for which the condition is NULL is not deleted."""
        check(
            market,
            lambda: market.dataset(engine=engine).delete("NOT price < 1000000"),
            lambda r: False,
        )

    def test_long_lists(self, market: Place, engine: Engine) -> None:
        listed = [*range(110, 190, 2), *range(1000, 3000)]
        numbers = ", ".join(map(str, listed))
        stats = check(
            market,
            lambda: market.dataset(engine=engine).delete(f"id IN ({numbers}, NULL)"),
            lambda r: r["id"] in listed,
        )
        assert stats["files_scanned"] == 1, "the other files have no value of the list"
        prices = ", ".join(f"{number}.5" for number in range(1000))
        check(
            market,
            lambda: market.dataset(engine=engine).delete(f"price NOT IN ({prices}) AND id < 250"),
            lambda r: r["price"] is not None and r["price"] % 1 != 0.5 and r["id"] < 250,
        )

    def test_intervals(self, market: Place, engine: Engine) -> None:
        """One present for all files: nothing was written in the last century, and everything before."""
        stats = check(
            market,
            lambda: market.dataset(engine=engine).delete("at > CURRENT_TIMESTAMP - INTERVAL '1' YEAR"),
            lambda r: False,
        )
        assert stats["files_scanned"] == 0
        check(
            market,
            lambda: market.dataset(engine=engine).delete(
                "at + INTERVAL 1 DAY > TIMESTAMP '1970-01-31 00:00:00.000000250' - INTERVAL '29 days'"
            ),
            lambda r: r["id"] > 250,
        )

    def test_arrow_expression(self, market: Place, engine: Engine) -> None:
        check(
            market,
            lambda: market.dataset(engine=engine).delete(pc.field("price").is_null()),
            lambda r: r["price"] is None,
        )

    def test_files_that_match_as_a_whole_are_not_read(self, market: Place, engine: Engine) -> None:
        stats = check(market, lambda: market.dataset(engine=engine).delete("id < 200"), lambda r: r["id"] < 200)
        assert (stats["files_removed"], stats["files_rewritten"]) == (2, 0)

    def test_deleting_all_rows_keeps_the_schema(self, market: Place, engine: Engine) -> None:
        stats = check(market, lambda: market.dataset(engine=engine).delete("TRUE"), lambda r: True)
        assert stats["files_removed"] == 4
        assert len(market.files()) == 1
        assert market.dataset().read().num_rows == 0

    def test_nothing_matches(self, market: Place, engine: Engine) -> None:
        before = market.state()
        stats = check(market, lambda: market.dataset(engine=engine).delete("id = 5000"), lambda r: False)
        assert stats["files_scanned"] == 0
        assert market.state() == before

    def test_dry_run_counts_like_a_run(self, market: Place, engine: Engine) -> None:
        before = market.state()
        planned = market.dataset(engine=engine).delete("price > 150", dry_run=True)
        assert market.state() == before
        assert market.left_behind() == []
        done = market.dataset(engine=engine).delete("price > 150")
        assert planned == {**done, "dry_run": True, "added_files": []}

    def test_codec_and_order_are_kept(self, place: Place, engine: Engine) -> None:
        place.write_files({"f.parquet": quotes(range(100))}, compression="zstd")
        dataset = place.dataset(engine=engine)
        dataset.optimize(["id"])
        dataset.delete("id = 5")
        (file,) = dataset.files()
        assert file.codec == "zstd"
        assert file.row_groups[0].sorted_by == ("id",)
        dataset.delete("id = 6", compression="gzip")
        assert dataset.files()[0].codec == "gzip"

    def test_progress(self, market: Place, engine: Engine) -> None:
        seen: list[Progress] = []
        market.dataset(engine=engine).delete("side = 'ask'", progress=seen.append)
        assert [each.done for each in seen if each.operation == "match"] == [1, 2, 3, 4]
        rewritten = [each for each in seen if each.operation == "delete"]
        assert [each.done for each in rewritten] == list(range(1, rewritten[-1].total + 1))
        assert seen[-len(rewritten) :] == rewritten


class TestUpdate:
    def test_literals_and_expressions(self, market: Place, engine: Engine) -> None:
        check(
            market,
            lambda: market.dataset(engine=engine).update(
                "side = 'ask' AND id >= 150 AND id < 160",
                {"price": sql("price * 2"), "side": "offer", "amount": Decimal("1.5")},
            ),
            lambda r: r["side"] == "ask" and 150 <= r["id"] < 160,
            lambda r: {
                **r,
                "price": None if r["price"] is None else r["price"] * 2,
                "side": "offer",
                "amount": Decimal("1.50"),
            },
        )

    def test_expressions_see_the_old_row(self, market: Place, engine: Engine) -> None:
        check(
            market,
            lambda: market.dataset(engine=engine).update(
                "price IS NOT NULL AND id < 50", {"price": sql("id"), "id": sql("id + 1000")}
            ),
            lambda r: r["price"] is not None and r["id"] < 50,
            lambda r: {**r, "price": float(r["id"]), "id": r["id"] + 1000},
        )

    def test_null(self, market: Place, engine: Engine) -> None:
        check(
            market,
            lambda: market.dataset(engine=engine).update("price > 100", {"side": None}),
            lambda r: r["price"] is not None and r["price"] > 100,
            lambda r: {**r, "side": None},
        )

    @pytest.mark.parametrize("where", ["id = 1", "id > 0"])
    def test_nested_columns_with_views(self, place: Place, where: str) -> None:
        kind = pa.list_(pa.string_view())
        place.write_files({"a.parquet": pa.table({"id": [1, 2], "tags": pa.array([["a"], ["b"]], kind)})})
        place.dataset().update(where, {"tags": None})
        assert place.dataset().read()["tags"].to_pylist() == [None, ["b"] if where == "id = 1" else None]

    def test_equal_values_rewrite_nothing(self, market: Place, engine: Engine) -> None:
        """A second update finds the new values, and leaves all files alone."""
        dataset = market.dataset(engine=engine)
        first = dataset.update("price > 50", {"price": sql("price * 1")})
        assert first["rows_matched"] > 0
        assert first["files_rewritten"] == first["files_written"] == 0
        assert dataset.history() == [], "nothing is committed"
        changes = {"price": 7.5, "side": sql("side")}
        planned = dataset.update("price > 50 OR price = 7.5", changes, dry_run=True)
        done = dataset.update("price > 50 OR price = 7.5", changes)
        assert {**done, "added_files": []} == {**planned, "dry_run": False}
        state = market.state()
        again = dataset.update("price > 50 OR price = 7.5", changes)
        assert again["rows_matched"] == done["rows_matched"]
        assert again["files_rewritten"] == 0
        assert market.state() == state

    def test_statistics_name_the_files(self, market: Place, engine: Engine) -> None:
        dataset = market.dataset(engine=engine)
        planned = dataset.delete("id IN (5, 205)", dry_run=True)
        assert (planned["rewritten_files"], planned["added_files"]) == (["f0.parquet", "f2.parquet"], [])
        for run in (lambda: dataset.delete("id IN (5, 205)"), lambda: dataset.update("id = 7", {"price": 0.5})):
            before = set(market.files())
            stats = run()
            after = set(market.files())
            assert stats["rewritten_files"] == sorted(before - after)
            assert stats["added_files"] == sorted(after - before)

    def test_null_conditions_update_nothing(self, market: Place, engine: Engine) -> None:
        check(
            market,
            lambda: market.dataset(engine=engine).update("price IS NULL", {"price": 0.0}),
            lambda r: r["price"] is None,
            lambda r: {**r, "price": 0.0},
        )


@pytest.mark.parametrize(
    ("where", "values", "kind", "match"),
    [
        ("prise > 1", None, ColumnNotFound, "'prise'.*available columns: 'id', 'price'"),
        ("price >", None, ValueError, "price >"),
        ("price > 1; DROP TABLE x", None, ValueError, "DROP"),
        ("sum(price) > 1", None, ValueError, "(?i)sum"),
        ("id = 1", {"prise": 1}, ColumnNotFound, "'prise'"),
        ("id = 1", {"id": "text"}, (ValueError, TypeError), "'id'"),
        ("id = 1", {"id": -1}, ValueError, "'id'"),
        ("id = 1", {}, ValueError, "at least one"),
    ],
)  # fmt: skip
def test_invalid_arguments_change_nothing(
    market: Place, engine: Engine, where: str, values: Any, kind: type[Exception], match: str
) -> None:
    before = market.state()
    dataset = market.dataset(engine=engine)
    with pytest.raises(kind, match=match):
        dataset.delete(where) if values is None else dataset.update(where, values)
    assert market.state() == before
    assert market.left_behind() == []


class TestPartitions:
    def write(self, place: Place, *, inside: bool) -> None:
        for day in (1, 2, 10):
            table = pa.table({"day": [day] * 3, "n": [day * 10 + n for n in range(3)]})
            place.write_files({f"day={day}/f.parquet": table if inside else table.drop_columns(["day"])})

    def logical(self, place: Place) -> list[tuple[str, int]]:
        found = []
        for path in oracle.data_files(place.root, place.fs):
            folder = os.path.basename(os.path.dirname(path))
            for each in oracle.read_file(path, place.fs).to_pylist():
                assert f"day={each.get('day', folder[4:])}" == folder
                found.append((folder, each["n"]))
        return sorted(found)

    @pytest.mark.parametrize("inside", [True, False], ids=["inside", "path only"])
    def test_condition_on_a_partition_column(self, place: Place, engine: Engine, inside: bool) -> None:
        self.write(place, inside=inside)
        stats = place.dataset(engine=engine).delete("day = 10 OR (day = 1 AND n = 11)")
        assert stats["files_scanned"] == 2
        assert self.logical(place) == [("day=1", 10), ("day=1", 12), *(("day=2", 20 + n) for n in range(3))]

    @pytest.mark.parametrize("inside", [True, False], ids=["inside", "path only"])
    def test_changed_partition_moves_the_row(self, place: Place, engine: Engine, inside: bool) -> None:
        self.write(place, inside=inside)
        stats = place.dataset(engine=engine).update("n IN (10, 20, 21, 22)", {"day": sql("day + 1")})
        assert stats["rows_matched"] == 4
        assert self.logical(place) == sorted(
            [("day=2", 10), ("day=1", 11), ("day=1", 12), *(("day=3", 20 + n) for n in range(3))]
            + [("day=10", 100 + n) for n in range(3)]
        )

    def test_partition_filter_limits_the_work(self, place: Place, engine: Engine) -> None:
        self.write(place, inside=True)
        stats = place.dataset(engine=engine).delete("n >= 0", partition_filter={"day": 1})
        assert stats["rows_before"] == stats["rows_matched"] == 3
        assert [folder for folder, _ in self.logical(place)] == ["day=10"] * 3 + ["day=2"] * 3

    def test_dates_in_the_path(self, place: Place, engine: Engine) -> None:
        for day in ("2025-11-24", "2025-11-25"):
            place.write_files({f"date={day}/f.parquet": pa.table({"n": [1, 2]})})
        assert place.dataset(engine=engine).delete("date < DATE '2025-11-25'")["rows_matched"] == 2
        assert {os.path.dirname(path) for path in place.files()} == {"date=2025-11-25"}


def in_all_languages(sides: list[str]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The same condition and update in each language: early hours on the 25th where the price is not NULL."""
    from pyspark.sql import functions

    day, at = dt.date(2025, 11, 25), dt.datetime(2025, 11, 25, 6, tzinfo=dt.UTC)
    arrow = (
        (pc.field("day") == day)
        & pc.is_in(pc.field("side"), pa.array(sides))
        & (pc.field("at") < pa.scalar(at, pa.timestamp("ns", "UTC")))
        & (pc.field("price") < 100.0)
    )
    polars = (
        (pl.col("day") == day) & pl.col("side").is_in(sides) & (pl.col("at") < at) & ~(pl.col("price") >= 100.0)
    )
    spark = (
        (functions.col("day") == day)
        & functions.col("side").isin(sides)
        & (functions.col("at") < functions.lit(at))
        & ~(functions.col("price") >= 100.0)
    )
    listed = ", ".join("'" + side.replace("'", "''") + "'" for side in sides)
    text = f"day = DATE '{day}' AND side IN ({listed}) AND at < '2025-11-25 06:00:00' AND NOT price >= 100.0"
    return {
        "sql": (text, {"price": sql("price * 2"), "side": sql("side || '?'")}),
        "arrow": (
            arrow,
            {"price": pc.field("price") * 2, "side": pc.binary_join_element_wise(pc.field("side"), "?", "")},
        ),
        "polars": (polars, {"price": pl.col("price") * 2, "side": pl.col("side") + "?"}),
        "spark": (
            spark,
            {
                "price": functions.col("price") * 2,
                "side": functions.concat(functions.col("side"), functions.lit("?")),
            },
        ),
    }


class TestLanguages:
    """The same condition, and the same new values, in SQL, PyArrow, Polars and Spark."""

    SIDES: ClassVar = ["ask", 'it\'s \\ "odd"']

    def write(self, place: Place, *, inside: bool) -> None:
        for day in (24, 25, 26):
            for half in (0, 12):
                hours = range(half, half + 12)
                table = pa.table(
                    {
                        "day": [dt.date(2025, 11, day)] * 12,
                        "side": pa.array(
                            [[*self.SIDES, "bid", None][hour % 4] for hour in hours]
                        ).dictionary_encode(),
                        "at": pa.array(
                            [dt.datetime(2025, 11, day, hour, tzinfo=dt.UTC) for hour in hours],
                            pa.timestamp("ns", "UTC"),
                        ),
                        "price": [None if hour % 5 == 0 else hour * 10.0 for hour in hours],
                    }
                )
                kept = table if inside else table.drop_columns(["day"])
                place.write_files({f"day=2025-11-{day}/{half}.parquet": kept})

    @pytest.mark.parametrize("inside", [True, False], ids=["inside", "path only"])
    @pytest.mark.parametrize("operation", ["delete", "update"])
    def test_all_languages_give_the_same_result(
        self, local: Place, spark: Any, engine: Engine, operation: str, inside: bool
    ) -> None:
        found = {}
        for language, (where, values) in in_all_languages(self.SIDES).items():
            place = Place(f"{local.root}-{language}", local.fs)
            self.write(place, inside=inside)
            dataset = place.dataset(engine=engine)
            stats = dataset.delete(where) if operation == "delete" else dataset.update(where, values)
            rows = sorted(map(repr, dataset.read().to_pylist()))
            names = {"rewritten_files", "added_files"}  # with ids, which differ
            found[language] = ({key: value for key, value in stats.items() if key not in names}, rows)
        stats, rows = found["sql"]
        assert (stats["rows_matched"], stats["files_scanned"], stats["files_rewritten"]) == (2, 1, 1)
        assert len(rows) == (70 if operation == "delete" else 72)
        for language, result in found.items():
            assert result == found["sql"], language

    def test_invalid_arguments_change_nothing(self, market: Place, engine: Engine) -> None:
        before = market.state()
        dataset = market.dataset(engine=engine)
        with pytest.raises(ValueError, match=r'col\("price"\)\.mean\(\) is not known to be calculated row by row'):
            dataset.delete(pl.col("price") > pl.col("price").mean())
        with pytest.raises(ColumnNotFound, match=r"'prise'.*available columns: 'id', 'price'"):
            dataset.update("TRUE", {"price": pl.col("prise")})
        with pytest.raises(
            ValueError, match="SQL string, a PyArrow expression, a Polars expression or a Spark Column"
        ):
            dataset.delete(lambda row: True)
        assert market.state() == before
        assert market.left_behind() == []

    def test_values_that_do_not_fit_stop_the_update(self, market: Place, engine: Engine) -> None:
        before = market.state()
        with pytest.raises(ValueError, match=r"-100.*does not fit into column 'id' of type uint64"):
            market.dataset(engine=engine).update(pl.col("id") == 0, {"id": pl.col("id").cast(pl.Int64) - 100})
        assert market.state() == before
        assert market.left_behind() == []

    def test_changed_partition_moves_the_row(self, local: Place, engine: Engine) -> None:
        self.write(local, inside=False)
        local.dataset(engine=engine).update(pl.col("side").is_null(), {"day": pl.col("day") + pl.duration(days=1)})
        folders = Counter(
            os.path.basename(os.path.dirname(path))
            for path in oracle.data_files(local.root, local.fs)
            for _ in range(oracle.read_file(path, local.fs).num_rows)
        )
        assert folders == {"day=2025-11-24": 18, "day=2025-11-25": 24, "day=2025-11-26": 24, "day=2025-11-27": 6}


class TestRepartition:
    def rows(self) -> pa.Table:
        sides = ["ask", "bid/..", None, "x=y"]
        return pa.table(
            {
                "side": pa.array([sides[n % 4] for n in range(200)]).dictionary_encode(),
                "day": pa.array([dt.date(2025, 11, 1 + n % 3) for n in range(200)]),
                "n": pa.array(range(200), pa.uint64()),
            }
        ).replace_schema_metadata({"owner": "tests"})

    def test_new_columns(self, place: Place, engine: Engine) -> None:
        rows = self.rows()
        place.write_files({f"old={n}/f.parquet": rows.slice(n * 50, 50) for n in range(4)})
        before = oracle.schemas(place.root, place.fs)[0]
        stats = place.dataset(engine=engine).repartition(["day", "side"])
        assert stats["rows_written"] == 200
        assert stats["files_replaced"] == 4
        folders = {os.path.dirname(path) for path in place.files()}
        assert len(folders) == 12
        assert "day=2025-11-01/side=__HIVE_DEFAULT_PARTITION__" in folders
        found = place.dataset().read()
        assert sorted(found.column("n").to_pylist()) == list(range(200))
        # A column that existed only in the old paths is now in the files.
        assert found.schema.names == [*before.names, "old"]
        assert sorted(zip(found.column("n").to_pylist(), found.column("old").to_pylist(), strict=True)) == [
            (n, n // 50) for n in range(200)
        ]
        assert place.left_behind() == []

    def test_exact_schema(self, place: Place, engine: Engine) -> None:
        place.write_files({f"{n}.parquet": self.rows().slice(n * 50, 50) for n in range(4)})
        before = oracle.schemas(place.root, place.fs)[0]
        place.dataset(engine=engine).repartition("side", compression="zstd")
        assert all(found.equals(before, check_metadata=True) for found in oracle.schemas(place.root, place.fs))
        assert {file.codec for file in place.dataset().files()} == {"zstd"}

    def test_remove_all_partition_columns(self, place: Place, engine: Engine) -> None:
        place.dataset().write(self.rows(), partition_by=["day"])
        place.dataset(engine=engine).repartition(None)
        assert {os.path.dirname(path) for path in place.files()} == {""}
        assert sorted(place.dataset().read().column("n").to_pylist()) == list(range(200))

    def test_invalid_columns_are_refused(self, place: Place, engine: Engine) -> None:
        place.write_files({"f.parquet": self.rows()})
        before = place.state()
        with pytest.raises(ValueError, match=r"'month'.*available columns: 'side', 'day', 'n'"):
            place.dataset(engine=engine).repartition(["month"])
        with pytest.raises(FileNotFoundError):
            place.dataset(engine=engine).__class__(f"{place.root}x", engine, filesystem=place.fs).repartition(
                ["n"]
            )
        assert place.state() == before

    def test_number_of_files_is_small(self, place: Place, engine: Engine) -> None:
        """One file per partition, not one per task and partition."""
        rows = self.rows()
        place.write_files({f"{n:03d}.parquet": rows.slice(n * 5, 5) for n in range(40)})
        stats = place.dataset(engine=engine).repartition(["side"])
        assert stats["files_written"] <= 8
