"""ParquetCRUD on every engine: the guide's calls, workflows and practices, against plain Polars frames."""

from __future__ import annotations

import logging
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from conftest import Place
from helpers import oracle
from parketto import ColumnNotFound, CommitConflict, InvalidArgument, ParquetCRUD, sql
from parketto.engines.base import Engine

PRODUCTS, DATES = ["BTC-USD", "ETH-USD"], ["2025-11-25", "2025-11-26"]
KEYS = ["product_id", "trade_id"]
PARTITIONS = ["product_id", "date"]


def market(rows: int = 6) -> pl.DataFrame:
    """Quotes with outliers, sides in two spellings, and spreads that are NULL."""
    frames = []
    for product in PRODUCTS:
        for date in DATES:
            numbers = range(rows)
            frames.append(
                pl.DataFrame(
                    {
                        "product_id": [product] * rows,
                        "date": [date] * rows,
                        "trade_id": [f"{date}-{number}" for number in numbers],
                        "side": ["offer" if number % 2 else "bid" for number in numbers],
                        "side_normalized": [None if number % 2 else "bid" for number in numbers],
                        "best_bid": [100.0 + number for number in numbers],
                        "best_ask": [101.0 + 2 * number for number in numbers],
                        "mid_price": [100.5 + 1.5 * number for number in numbers],
                        "spread": [None if number % 3 == 0 else 1.0 for number in numbers],
                        "spread_bps": [
                            600.0 if number == 5 else None if number == 4 else 10.0 for number in numbers
                        ],
                    },
                    schema_overrides={
                        "side_normalized": pl.String,
                        "spread": pl.Float64,
                        "spread_bps": pl.Float64,
                    },
                )
            )
    return pl.concat(frames)


class Market:
    """A dataset of quotes by another writer, and its expected content."""

    def __init__(self, place: Place, engine: Engine | str) -> None:
        self.place, self.engine = place, engine
        self.backups = f"{place.root.rpartition('/')[0]}/backups"
        self.frame = market()
        place.write_files(
            {
                f"product_id={product}/date={date}/{half}.parquet": part.to_arrow()
                for (product, date), found in self.frame.group_by(PARTITIONS, maintain_order=True)
                for half, part in enumerate((found[:3], found[3:]))
            }
        )

    def crud(self, **options: Any) -> ParquetCRUD:
        options.setdefault("backup_dir", self.backups)
        return ParquetCRUD(self.place.root, engine=self.engine, filesystem=self.place.fs, **options)

    def read(self) -> pl.DataFrame:
        found = []
        for path in oracle.data_files(self.place.root, self.place.fs):
            frame = pl.from_arrow(oracle.read_file(path, self.place.fs))
            assert isinstance(frame, pl.DataFrame)
            for row in frame.iter_rows(named=True):
                assert f"/product_id={row['product_id']}/date={row['date']}/" in path, "a row in its own partition"
            found.append(frame)
        return pl.concat(found)

    def check(self, expected: pl.DataFrame) -> None:
        assert_frame_equal(self.read(), expected, check_row_order=False)


@pytest.fixture
def quotes(local: Place, engine: Engine | str) -> Market:
    return Market(local, engine)


BTC_DAY = {"product_id": "BTC-USD", "date": "2025-11-26"}


class TestDelete:
    def test_rows_of_one_partition(self, quotes: Market) -> None:
        condition = (pl.col("product_id") == "BTC-USD") & (pl.col("date") == "2025-11-26")
        stats = quotes.crud().delete(filter_expr=condition, partition_filter=BTC_DAY, dry_run=False)
        assert stats["rows_deleted"] == 6
        assert (stats["partitions_affected"], stats["files_written"], stats["files_deleted"]) == (1, 0, 2)
        # With a partition filter the other partitions are not read.
        assert (stats["rows_before"], stats["rows_after"]) == (6, 0)
        quotes.check(quotes.frame.filter(~condition))

    def test_conditions_on_partition_columns_prune_partitions(self, quotes: Market) -> None:
        condition = (pl.col("product_id") == "BTC-USD") & (pl.col("spread_bps") > 500)
        stats = quotes.crud().delete(condition)
        assert stats["rows_deleted"] == 2
        assert stats["files_read"] <= 4, "only those of the product"
        quotes.check(quotes.frame.filter((~condition).fill_null(True)))

    def test_null_does_not_match(self, quotes: Market) -> None:
        quotes.crud().delete(pl.col("spread_bps") > 5)
        quotes.check(quotes.frame.filter(pl.col("spread_bps").is_null()))

    def test_many_values_at_once(self, quotes: Market) -> None:
        stats = quotes.crud().delete(pl.col("product_id").is_in(["BTC-USD", "nothing"]))
        assert stats["rows_deleted"] == 12
        quotes.check(quotes.frame.filter(pl.col("product_id") == "ETH-USD"))

    def test_dry_run_first(self, quotes: Market) -> None:
        before = quotes.place.state()
        planned = quotes.crud().delete(pl.col("side") == "offer", dry_run=True)
        assert quotes.place.state() == before
        assert quotes.place.left_behind() == []
        done = quotes.crud().delete(pl.col("side") == "offer")
        assert planned == {**done, "backup_path": None}
        assert planned["rows_deleted"] == 12
        assert len(quotes.read()) == done["rows_after"] == done["rows_before"] - done["rows_deleted"]


class TestUpdate:
    def test_a_literal(self, quotes: Market) -> None:
        stats = quotes.crud().update(
            filter_expr=pl.col("side") == "offer",
            update_expr={"side_normalized": "ask"},
            partition_filter={"product_id": "BTC-USD"},
        )
        assert stats["rows_updated"] == 6
        hit = (pl.col("side") == "offer") & (pl.col("product_id") == "BTC-USD")
        new = pl.when(hit).then(pl.lit("ask")).otherwise("side_normalized").alias("side_normalized")
        quotes.check(quotes.frame.with_columns(new))

    def test_expressions_see_the_row_as_it_was(self, quotes: Market) -> None:
        spread = pl.col("best_ask") - pl.col("best_bid")
        changes = {
            "spread": spread,
            "spread_bps": spread / pl.col("mid_price") * 10000,
            "best_ask": pl.col("best_bid"),
        }
        stats = quotes.crud().update(pl.col("spread").is_null(), changes, {"date": "2025-11-26"})
        assert stats["rows_updated"] == 4
        hit = pl.col("spread").is_null() & (pl.col("date") == "2025-11-26")
        quotes.check(
            quotes.frame.with_columns(
                pl.when(hit).then(value).otherwise(name).alias(name) for name, value in changes.items()
            )
        )

    def test_a_partition_column_moves_the_row(self, quotes: Market) -> None:
        hit = (pl.col("trade_id") == "2025-11-26-0") & (pl.col("product_id") == "BTC-USD")
        planned = quotes.crud().update(hit, {"date": "2025-11-27"}, dry_run=True)
        stats = quotes.crud().update(hit, {"date": "2025-11-27"})
        assert planned == {**stats, "backup_path": None}
        assert (stats["rows_updated"], stats["partitions_affected"], stats["files_written"]) == (1, 2, 2)
        quotes.check(
            quotes.frame.with_columns(pl.when(hit).then(pl.lit("2025-11-27")).otherwise("date").alias("date"))
        )

    @pytest.mark.parametrize(
        ("changes", "error", "said"),
        [
            ({"nope": 1}, ColumnNotFound, "nope.*available columns: 'product_id'"),
            ({"spread": "wide"}, InvalidArgument, "'spread' of type double"),
            ({"spread": pl.col("side")}, InvalidArgument, "'spread' of type double"),
            ({"spread": pl.col("nope") + 1}, ColumnNotFound, "nope"),
            ({"spread": pl.col("best_bid").mean()}, InvalidArgument, "row"),
            ({}, InvalidArgument, "nothing to set"),
        ],
    )
    def test_invalid_arguments_are_refused(
        self, quotes: Market, changes: dict[str, Any], error: type[Exception], said: str
    ) -> None:
        before = quotes.place.state()
        with pytest.raises(error, match=said):
            quotes.crud().update(pl.col("side") == "offer", changes)
        assert quotes.place.state() == before
        assert quotes.place.left_behind() == []

    @pytest.mark.parametrize(
        "condition",
        [
            pl.col("spread") > pl.col("spread").mean(),
            pl.col("spread").rank().over("side") > 1,
            pl.col("nope") > 1,
            7,
        ],
        ids=["aggregate", "window", "unknown column", "no condition"],
    )
    def test_invalid_conditions_are_refused(self, quotes: Market, condition: Any) -> None:
        before = quotes.place.state()
        with pytest.raises(InvalidArgument):
            quotes.crud().delete(condition)
        assert quotes.place.state() == before


class TestUpsert:
    NEW = pl.DataFrame(
        {
            "product_id": ["BTC-USD", "BTC-USD", "DOT-USD"],
            "trade_id": ["2025-11-26-1", "99999", "1"],
            "best_bid": [7.0, 8.0, 9.0],
            "best_ask": [70.0, 80.0, 90.0],
            "date": ["2025-11-26", "2025-11-26", "2025-11-27"],
        }
    )

    def test_partial_columns_and_update_cols(self, quotes: Market) -> None:
        planned = quotes.crud().upsert(self.NEW, KEYS, PARTITIONS, update_cols=["best_bid"], dry_run=True)
        stats = quotes.crud().upsert(
            new_data=self.NEW,
            key_cols=KEYS,
            partition_cols=PARTITIONS,
            update_cols=["best_bid"],
            dry_run=False,
            create_backup=True,
        )
        assert {**planned, "backup_path": stats["backup_path"]} == stats
        assert (stats["rows_inserted"], stats["rows_updated"], stats["rows_deleted"]) == (2, 1, 0)
        assert (stats["rows_before"], stats["rows_after"]) == (24, 26)
        assert stats["partitions_affected"] == 2
        assert (stats["files_written"], stats["files_deleted"]) == (3, 1)
        hit = (pl.col("trade_id") == "2025-11-26-1") & (pl.col("product_id") == "BTC-USD")
        changed = quotes.frame.with_columns(pl.when(hit).then(7.0).otherwise("best_bid").alias("best_bid"))
        quotes.check(pl.concat([changed, self.NEW[1:]], how="diagonal"))

    def test_rows_that_change_partition_keep_their_other_columns(self, quotes: Market) -> None:
        new = pl.DataFrame({"product_id": ["ETH-USD"], "trade_id": ["2025-11-25-2"], "date": ["2025-11-26"]})
        stats = quotes.crud().upsert(new, KEYS, PARTITIONS)
        assert (stats["rows_updated"], stats["partitions_affected"]) == (1, 2)
        hit = (pl.col("trade_id") == "2025-11-25-2") & (pl.col("product_id") == "ETH-USD")
        quotes.check(
            quotes.frame.with_columns(pl.when(hit).then(pl.lit("2025-11-26")).otherwise("date").alias("date"))
        )

    def test_a_new_dataset(self, local: Place, engine: Engine) -> None:
        crud = ParquetCRUD(local.root, backup_dir=f"{local.root}-backups", engine=engine)
        frame = market()
        planned = crud.upsert(frame, KEYS, PARTITIONS, dry_run=True)
        assert not local.fs.exists(local.root)
        assert crud.upsert(frame, KEYS, PARTITIONS) == planned
        assert planned["rows_inserted"] == 24
        assert {path.rpartition("/")[0] for path in local.files()} == {
            f"product_id={product}/date={date}" for product in PRODUCTS for date in DATES
        }
        assert sum(local.rows().values()) == 24

    def test_invalid_arguments_are_refused(self, quotes: Market) -> None:
        before = quotes.place.state()
        crud = quotes.crud()
        with pytest.raises(ValueError, match="Partition columns not found in data: 'date'; available columns"):
            crud.upsert(self.NEW.drop("date"), KEYS, PARTITIONS)
        with pytest.raises(ValueError, match="more than once"):
            crud.upsert(pl.concat([self.NEW, self.NEW]), KEYS, PARTITIONS)
        with pytest.raises(ValueError, match="NULL values in key column 'trade_id'"):
            crud.upsert(self.NEW.with_columns(trade_id=pl.lit(None, pl.String)), KEYS, PARTITIONS)
        with pytest.raises(ColumnNotFound, match="key_columns of the source not found: 'id'"):
            crud.upsert(self.NEW, ["id"], PARTITIONS)
        with pytest.raises(InvalidArgument, match=r"partitioned by .*product_id.*, not by"):
            crud.upsert(self.NEW, KEYS, ["date"])
        with pytest.raises(ColumnNotFound, match="update_columns of the source not found: 'spread'"):
            crud.upsert(self.NEW, KEYS, PARTITIONS, update_cols=["spread"])
        with pytest.raises(TypeError, match="best_bid"):
            crud.upsert(self.NEW.with_columns(pl.col("best_bid").cast(pl.String)), KEYS, PARTITIONS)
        assert quotes.place.state() == before
        assert quotes.place.left_behind() == []


class TestBackups:
    def test_every_operation_can_be_undone(self, quotes: Market) -> None:
        crud = quotes.crud()
        before = quotes.place.state()
        for run in (
            lambda: crud.delete(pl.col("side") == "bid"),
            lambda: crud.update(pl.col("side") == "bid", {"side": "buy"}),
            lambda: crud.upsert(TestUpsert.NEW, KEYS, PARTITIONS),
        ):
            path = run()["backup_path"]
            assert path is not None
            assert path.startswith(quotes.backups)
            assert quotes.place.state() != before
            crud.restore(path)
            assert quotes.place.state() == before
            with pytest.raises(CommitConflict):
                crud.restore(path)

    def test_without_a_backup_folder_no_backup_is_made(self, quotes: Market) -> None:
        with pytest.warns(UserWarning, match="there is no backup_dir") as caught:
            stats = quotes.crud(backup_dir=None).delete(pl.col("side") == "bid", create_backup=True)
        assert caught[0].filename == __file__
        assert stats["backup_path"] is None
        assert quotes.place.left_behind() == []

    def test_backups_can_be_turned_off(self, quotes: Market) -> None:
        assert quotes.crud().delete(pl.col("side") == "bid", create_backup=False)["backup_path"] is None
        assert quotes.place.left_behind() == []


class TestWorkflows:
    def test_fix_data_quality(self, quotes: Market) -> None:
        crud = quotes.crud()
        product = {"product_id": "BTC-USD"}
        crud.delete(pl.col("spread_bps") > 500, product)
        crud.update(pl.col("side") == "offer", {"side_normalized": "ask"}, product)
        crud.update(pl.col("spread").is_not_null(), {"spread": pl.col("best_ask") - pl.col("best_bid")})
        btc = pl.col("product_id") == "BTC-USD"
        expected = (
            quotes.frame.filter(((~btc) | ~(pl.col("spread_bps") > 500)).fill_null(True))
            .with_columns(
                pl.when(btc & (pl.col("side") == "offer"))
                .then(pl.lit("ask"))
                .otherwise("side_normalized")
                .alias("side_normalized")
            )
            .with_columns(
                pl.when(pl.col("spread").is_not_null())
                .then(pl.col("best_ask") - pl.col("best_bid"))
                .otherwise("spread")
                .alias("spread")
            )
        )
        quotes.check(expected)

    def test_deduplication(self, quotes: Market) -> None:
        """As in the guide: read everything, keep one row of each key, upsert that."""
        quotes.place.write_files({"product_id=BTC-USD/date=2025-11-26/again.parquet": market()[6:9].to_arrow()})
        everything = quotes.read()
        assert len(everything) == 27
        unique = everything.unique(subset=KEYS, keep="first", maintain_order=True)
        stats = quotes.crud().upsert(unique, KEYS, PARTITIONS, create_backup=True)
        assert (stats["rows_deleted"], stats["rows_inserted"], stats["rows_after"]) == (3, 0, 24)
        quotes.check(quotes.frame)

    def test_incremental_loading(self, quotes: Market, tmp_path: Any) -> None:
        path = str(tmp_path / "external.parquet")
        TestUpsert.NEW.write_parquet(path)
        first = quotes.crud().upsert(path, KEYS, PARTITIONS, update_cols=["best_bid"])
        again = quotes.crud().upsert(path, KEYS, PARTITIONS, update_cols=["best_bid"])
        assert (first["rows_inserted"], first["rows_updated"]) == (2, 1)
        assert (again["rows_inserted"], again["rows_updated"], again["rows_after"]) == (0, 3, 26)


def test_conditions_in_four_languages_give_the_same_result(local: Place, engine: Engine | str, spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - the customary name

    conditions = {
        "polars": (pl.col("product_id") == "BTC-USD") & (pl.col("spread_bps") > 500),
        "sql": "product_id = 'BTC-USD' AND spread_bps > 500",
        "spark": (F.col("product_id") == "BTC-USD") & (F.col("spread_bps") > 500),
        "pyarrow": (pc.field("product_id") == "BTC-USD") & (pc.field("spread_bps") > 500),
    }
    values = {
        "polars": pl.col("best_bid") * 2,
        "sql": sql("best_bid * 2"),
        "spark": F.col("best_bid") * 2,
        "pyarrow": pc.field("best_bid") * 2,
    }
    seen = {}
    for language, condition in conditions.items():
        if local.fs.exists(local.root):
            local.fs.rm(local.root, recursive=True)
        quotes = Market(local, engine)
        updated = quotes.crud().update(
            condition, {"best_ask": values[language], "side": "both"}, create_backup=False
        )
        counted = quotes.crud(backup_dir=None).delete(condition, dry_run=True)
        seen[language] = (updated, counted, quotes.read().sort(*KEYS).to_dicts())
    assert seen["polars"][0]["rows_updated"] == 2
    assert seen["polars"] == seen["sql"] == seen["spark"] == seen["pyarrow"]


def test_operations_are_logged(quotes: Market, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "parketto"):
        quotes.crud().delete(pl.col("side") == "bid")
    assert "rows_matched=12" in caplog.text


def test_memory_filesystem(memory: Place) -> None:
    for name in ("pyarrow", "duckdb"):
        place = Place(f"{memory.root}-{name}", memory.fs)
        quotes = Market(place, name)
        path = quotes.crud().delete(pl.col("side") == "bid")["backup_path"]
        assert len(quotes.read()) == 12
        assert path is not None
        quotes.crud().restore(path)
        quotes.check(quotes.frame)
        assert isinstance(pa.table(quotes.frame.to_arrow()), pa.Table)


def test_copied_row_groups_keep_their_codec(local: Place, engine: Engine | str) -> None:
    """`compression` applies only to rows that are encoded for other reasons."""
    rows = pa.table({"id": range(40_000), "n": [0] * 40_000})
    local.write_files({"a.parquet": rows}, row_group_size=10_000, compression="snappy")
    crud = ParquetCRUD(local.root, engine=engine, compression="zstd")
    crud.delete("id = 15000", create_backup=False)
    (path,) = oracle.data_files(local.root, local.fs)
    footer = pq.read_metadata(path)
    codecs = [footer.row_group(number).column(0).compression for number in range(4)]
    assert codecs == ["SNAPPY", "ZSTD", "SNAPPY", "SNAPPY"]
    assert footer.num_rows == 39_999
