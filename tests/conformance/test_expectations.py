"""Expectations on writes, merges and applied changes, the same on every engine."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conftest import Place
from helpers import oracle
from parketto import ColumnNotFound, Dataset, ExpectationFailed, InvalidArgument, ParkettoError
from parketto.engines.base import Engine

Row = dict[str, Any]
RULES = {"positive price": "price > 0", "has id": "id IS NOT NULL"}
ROWS = pa.table(
    {
        "id": pa.array([1, 2, None, 4, None, 6], pa.int64()),
        "price": pa.array([1.0, -2.0, 3.0, None, 0.0, 6.0]),
        "day": ["a", "a", "b", "b", "c", "c"],
    }
)
PASSED = [row for row in ROWS.to_pylist() if row["id"] in (1, 6)]
BROKEN = {
    (2, -2.0): ["positive price"],
    (None, 3.0): ["has id"],
    (4, None): ["positive price"],
    (None, 0.0): ["positive price", "has id"],
}
COUNTS = {"positive price": {"passed": 3, "violations": 3}, "has id": {"passed": 4, "violations": 2}}


def rows_in(root: str, place: Place) -> list[Row]:
    paths = oracle.data_files(root, place.fs)
    found = [row for path in paths for row in oracle.read_file(path, place.fs).to_pylist()]
    return sorted(found, key=repr)


def quarantined(place: Place) -> list[Row]:
    return rows_in(f"{place.root}_quarantine", place)


def check_quarantine(place: Place) -> None:
    found = quarantined(place)
    assert {(row["id"], row["price"]): row["broken_rules"] for row in found} == BROKEN
    assert len(found) == len(BROKEN)
    assert len({row["quarantine_id"] for row in found}) == 1
    assert all(isinstance(row["quarantined_at"], dt.datetime) for row in found)


def sources(dataset: Dataset, local: Place) -> dict[str, Any]:
    """The same rows in memory, as a stream, in files, and as a frame of Spark."""
    folder = f"{local.root}_source"
    oracle.write_files(folder, {"a.parquet": ROWS.slice(0, 4), "b.parquet": ROWS.slice(4)}, local.fs)
    found: dict[str, Any] = {
        "table": ROWS,
        "stream": pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.to_batches(max_chunksize=2)),
        "path": folder,
    }
    if dataset.engine.name == "spark":
        found["frame"] = dataset.engine.session.createDataFrame(ROWS)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("kind", ["table", "stream", "path", "frame"])
@pytest.mark.parametrize("partition_by", [None, "day"])
class TestWrite:
    def source(self, dataset: Dataset, local: Place, kind: str) -> Any:
        found = sources(dataset, local)
        if kind not in found:
            pytest.skip("only Spark has frames")
        return found[kind]

    def test_rows_that_break_a_rule_are_quarantined(
        self, local: Place, merge_engine: Engine, kind: str, partition_by: str | None
    ) -> None:
        dataset = local.dataset(engine=merge_engine)
        stats = dataset.write(
            self.source(dataset, local, kind),
            expect=RULES,
            on_violation="quarantine",
            partition_by=partition_by,
            commit_id="orders:1",
        )
        assert rows_in(local.root, local) == sorted(PASSED, key=repr)
        check_quarantine(local)
        assert stats["rows_written"] == 2
        assert stats["expectations"] == COUNTS
        assert stats["rows_violating"] == 4
        assert stats["quarantine"] == f"{local.root}_quarantine"
        (commit,) = dataset.history()
        assert commit["statistics"]["expectations"] == COUNTS
        assert commit["arguments"]["expect"] == RULES
        again = dataset.write(ROWS, expect=RULES, on_violation="quarantine", commit_id="orders:1")
        assert again.pop("repeated_commit") == dataset.history()[0]["number"]
        assert again == stats
        check_quarantine(local)

    def test_rows_that_break_a_rule_fail(
        self, local: Place, engine: Engine, kind: str, partition_by: str | None
    ) -> None:
        dataset = local.dataset(engine=engine)
        source = self.source(dataset, local, kind)
        before = sorted(local.fs.find(local.root.rpartition("/")[0]))
        with pytest.raises(ExpectationFailed) as caught:
            dataset.write(source, expect=RULES, partition_by=partition_by)
        assert isinstance(caught.value, ValueError | ParkettoError)
        assert caught.value.counts == {"positive price": 3, "has id": 2}
        assert (caught.value.rows, caught.value.violating) == (6, 4)
        assert {row["price"] for row in caught.value.examples.values()} <= {-2.0, 3.0, None, 0.0}
        message = str(caught.value)
        assert "'positive price' by 3 rows, for example {" in message
        assert "'has id' by 2 rows" in message
        assert sorted(local.fs.find(local.root.rpartition("/")[0])) == before
        assert local.left_behind() in ([], [f"{local.root}_source"])

    def test_rows_that_break_a_rule_are_dropped(
        self, local: Place, engine: Engine, kind: str, partition_by: str | None
    ) -> None:
        dataset = local.dataset(engine=engine)
        source = self.source(dataset, local, kind)
        stats = dataset.write(source, expect=RULES, on_violation="drop", partition_by=partition_by)
        assert rows_in(local.root, local) == sorted(PASSED, key=repr)
        assert (stats["expectations"], stats["rows_violating"]) == (COUNTS, 4)
        assert "quarantine" not in stats
        assert not local.fs.exists(f"{local.root}_quarantine")

    def test_a_dry_run_counts(self, local: Place, engine: Engine, kind: str, partition_by: str | None) -> None:
        dataset = local.dataset(engine=engine)
        source = self.source(dataset, local, kind)
        for action in ("fail", "drop", "quarantine"):
            plan = dataset.write(
                source, expect=RULES, on_violation=action, partition_by=partition_by, dry_run=True
            )
            read = kind != "stream"
            assert plan["rows_written"] == (2 if read else None)
            assert plan["expectations"] == (COUNTS if read else None)
            assert plan["rows_violating"] == (4 if read else None)
        assert not dataset.exists()


class TestModes:
    @pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_partitions"])
    def test_every_mode_leaves_them_out(self, place: Place, engine: Engine, mode: Any) -> None:
        dataset = place.dataset(engine=engine)
        old = pa.table({"id": [10, 11], "price": [1.0, 2.0], "day": ["c", "d"]})
        dataset.write(old, partition_by="day")
        dataset.write(ROWS, mode, expect=RULES, on_violation="quarantine")
        kept = {"append": old.to_pylist(), "overwrite": [], "overwrite_partitions": old.to_pylist()[1:]}[mode]
        assert rows_in(place.root, place) == sorted([*PASSED, *kept], key=repr)
        check_quarantine(place)

    def test_rows_that_are_left_out_need_not_match_replace_where(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(pa.table({"id": [10], "price": [1.0], "day": ["a"]}))
        stats = dataset.write(
            ROWS,
            "overwrite",
            replace_where="id IS NOT NULL AND price > 0",
            expect=RULES,
            on_violation="quarantine",
        )
        assert (stats["rows_deleted"], stats["rows_violating"]) == (1, 4)
        assert rows_in(place.root, place) == sorted(PASSED, key=repr)
        check_quarantine(place)

    def test_values_that_do_not_fit_the_dataset_can_be_quarantined(self, local: Place, engine: Engine) -> None:
        """Rows are checked before they are cast, and before their partition is formed."""
        dataset = local.dataset(engine=engine)
        dataset.write(
            pa.table({"day": pa.array([1], pa.int32()), "n": pa.array([1], pa.int8())}), partition_by="day"
        )
        rows = pa.table({"day": pa.array([2, 1 << 40], pa.int64()), "n": pa.array([5, 1000], pa.int64())})
        rules = {"small": "n < 100", "day": "day < 100000"}
        dataset.write(rows, expect=rules, on_violation="quarantine")
        assert sorted(row["n"] for row in rows_in(local.root, local)) == [1, 5]
        assert [row["broken_rules"] for row in quarantined(local)] == [["small", "day"]]

    def test_derived_columns_are_not_quarantined(self, local: Place, engine: Engine) -> None:
        rows = pa.table({"at": pa.array([0, 1 << 40], pa.timestamp("us")), "n": [1, -1]})
        dataset = local.dataset(engine=engine)
        dataset.write(
            rows, partition_by={"d": "CAST(at AS DATE)"}, expect={"n": "n > 0"}, on_violation="quarantine"
        )
        (row,) = quarantined(local)
        assert list(row) == ["at", "n", "broken_rules", "quarantined_at", "quarantine_id"]
        assert [row["n"] for row in rows_in(local.root, local)] == [1]

    def test_text_files(self, local: Place, engine: Engine) -> None:
        local.fs.makedirs(local.root.rpartition("/")[0], exist_ok=True)
        path = f"{local.root}_landing.jsonl"
        local.fs.pipe_file(path, b'{"id": 1, "price": 2.5}\n{"id": 2, "price": null}\n{"id": 3, "price": -1.0}\n')
        dataset = local.dataset(engine=engine)
        stats = dataset.write_from(path, expect={"price": "price > 0"}, on_violation="quarantine")
        assert [row["id"] for row in rows_in(local.root, local)] == [1]
        assert sorted(row["id"] for row in quarantined(local)) == [2, 3]
        assert stats["expectations"] == {"price": {"passed": 1, "violations": 2}}


class TestMerge:
    @pytest.mark.parametrize("kind", ["table", "stream", "path", "frame"])
    def test_rows_of_the_source_are_checked_first(self, local: Place, merge_engine: Engine, kind: str) -> None:
        """NULL keys and duplicates may be among the rows that are left out."""
        dataset = local.dataset(engine=merge_engine)
        dataset.write(pa.table({"id": [1, 9], "price": [0.5, 9.0], "day": ["a", "a"]}))
        found = sources(dataset, local)
        if kind not in found:
            pytest.skip("only Spark has frames")
        stats = dataset.merge(found[kind], "id", expect=RULES, on_violation="quarantine")
        assert rows_in(local.root, local) == sorted([*PASSED, {"id": 9, "price": 9.0, "day": "a"}], key=repr)
        check_quarantine(local)
        assert (stats["inserted"], stats["updated"], stats["total"]) == (1, 1, 3)
        assert (stats["expectations"], stats["rows_violating"]) == (COUNTS, 4)
        assert dataset.history()[0]["statistics"]["stats"]["expectations"] == COUNTS
        assert local.left_behind() == [f"{local.root}_quarantine", f"{local.root}_source"]

    def test_fails_and_counts(self, place: Place, merge_engine: Engine) -> None:
        dataset = place.dataset(engine=merge_engine)
        dataset.write(ROWS.slice(0, 1))
        before = place.state()
        with pytest.raises(ExpectationFailed):
            dataset.merge(ROWS, "id", expect=RULES)
        stats = dataset.merge(ROWS, "id", expect=RULES, dry_run=True)
        assert (stats["inserted"], stats["updated"], stats["expectations"]) == (1, 1, COUNTS)
        assert place.state() == before
        assert place.left_behind() == []

    def test_only_violations_are_committed_to_both_logs(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(ROWS.slice(0, 1))
        bad = ROWS.filter(pc.invert(pc.is_in(ROWS.column("price"), pa.array([1.0, 6.0]))))
        stats = dataset.merge(bad, "id", expect=RULES, on_violation="quarantine")
        assert (stats["inserted"], stats["rows_violating"]) == (0, 4)
        check_quarantine(place)
        assert dataset.history()[0]["operation"] == "merge"

    def test_updates_of_nothing_quarantine_nothing(self, place: Place, engine: Engine) -> None:
        stats = place.dataset(engine=engine).merge(
            ROWS, "id", strategy="update", expect=RULES, on_violation="quarantine"
        )
        assert (stats["total"], stats["rows_violating"], stats["quarantine"]) == (0, 4, None)
        assert place.left_behind() == []


def test_change_records_are_checked(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    changes = ROWS.append_column("at", pa.array(range(6)))
    with pytest.raises(ExpectationFailed):
        dataset.apply_changes(changes, "id", sequence_by="at", expect=RULES)
    stats = dataset.apply_changes(changes, "id", sequence_by="at", expect=RULES, on_violation="quarantine")
    assert (stats["inserted"], stats["ignored"], stats["expectations"]) == (2, 0, COUNTS)
    assert [row["id"] for row in rows_in(place.root, place)] == [1, 6]
    check_quarantine(place)


def test_conditions_in_other_languages(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine)
    rules = {"arrow": pc.field("price") > 0, "polars": pl.col("id").is_not_null()}
    stats = dataset.write(ROWS, expect=rules, on_violation="drop")
    assert list(stats["expectations"].values()) == list(COUNTS.values())


class TestQuarantine:
    def test_its_schema_follows_the_rows(self, place: Place, engine: Engine) -> None:
        dataset = place.dataset(engine=engine)
        dataset.write(
            pa.table({"n": pa.array([-1], pa.int32())}), expect={"n": "n > 0"}, on_violation="quarantine"
        )
        more = pa.table({"n": pa.array([-(1 << 40)], pa.int64()), "note": ["new"]})
        dataset.write(more, schema="evolve", expect={"n": "n > 0"}, on_violation="quarantine")
        read = Dataset(f"{place.root}_quarantine", "pyarrow", filesystem=place.fs).read()
        assert read.schema.field("n").type == pa.int64()
        assert sorted(read.column("n").to_pylist()) == [-(1 << 40), -1]
        assert read.schema.field("broken_rules").type == pa.list_(pa.string())
        assert read.schema.field("quarantined_at").type == pa.timestamp("us", "UTC")

    def test_another_path(self, local: Place, engine: Engine) -> None:
        path = f"{local.root.rpartition('/')[0]}/rejected/events"
        dataset = local.dataset(engine=engine)
        stats = dataset.write(ROWS, expect=RULES, on_violation="quarantine", quarantine=path)
        assert stats["quarantine"] == path
        assert len(rows_in(path, local)) == 4

    def test_no_dataset_without_violations(self, place: Place, engine: Engine) -> None:
        stats = place.dataset(engine=engine).write(ROWS.slice(0, 1), expect=RULES, on_violation="quarantine")
        assert (stats["rows_violating"], stats["quarantine"]) == (0, None)
        assert place.left_behind() == []

    def test_types_come_out_as_they_went_in(self, local: Place, engine: Engine) -> None:
        rows = pa.table(
            {
                "n": pa.array([1, -1], pa.int16()),
                "u": pa.array([1, 2**64 - 1], pa.uint64()),
                "name": pa.array(["a", "b"]).dictionary_encode(),
                "at": pa.array([1, 2], pa.timestamp("ns", "UTC")),
                "nested": pa.array([{"x": [1]}, {"x": [2, None]}]),
            }
        )
        local.dataset(engine=engine).write(rows, expect={"n": "n > 0"}, on_violation="quarantine")
        read = Dataset(f"{local.root}_quarantine", "pyarrow").read(columns=rows.column_names)
        assert read.schema.types == rows.schema.types
        assert read.to_pylist() == rows.slice(1).to_pylist()


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"expect": {}}, "must map names"),
            ({"expect": ["a > 0"]}, "must map names"),
            ({"expect": {"": "id > 0"}}, "non-empty string"),
            ({"expect": {3: "id > 0"}}, "non-empty string"),
            ({"expect": {"r": "id +"}}, "the expectation 'r' is invalid"),
            ({"expect": {"r": "id + 1"}}, "the expectation 'r' is invalid"),
            ({"expect": {"r": 7}}, "the expectation 'r' is invalid"),
            ({"expect": {"r": "nope > 1"}}, "columns of the expectation 'r' not found: 'nope'"),
            ({"expect": RULES, "on_violation": "warn"}, "valid choices: 'fail', 'drop', 'quarantine'"),
            ({"expect": RULES, "quarantine": "q"}, "needs expect= and on_violation='quarantine'"),
            ({"quarantine": "q", "on_violation": "quarantine"}, "needs expect= and on_violation='quarantine'"),
        ],
    )
    def test_before_anything_is_touched(self, place: Place, options: Row, message: str) -> None:
        for operation in (
            lambda dataset: dataset.write(ROWS, **options),
            lambda dataset: dataset.write(ROWS, dry_run=True, **options),
            lambda dataset: dataset.merge(ROWS, "id", **options),
            lambda dataset: dataset.apply_changes(ROWS, "id", sequence_by="price", **options),
        ):
            with pytest.raises(InvalidArgument, match=message):
                operation(place.dataset())
        assert place.left_behind() == []

    def test_unknown_columns_list_the_choices(self, place: Place) -> None:
        with pytest.raises(ColumnNotFound, match="available columns: 'id', 'price', 'day'") as caught:
            place.dataset().write(ROWS, expect={"r": "nope > 1"})
        assert caught.value.missing == ["nope"]

    def test_a_quarantine_inside_the_dataset(self, place: Place) -> None:
        for path in (place.root, f"{place.root}/bad", place.root.rpartition("/")[0]):
            with pytest.raises(InvalidArgument, match="neither inside the other"):
                place.dataset().write(ROWS, expect=RULES, on_violation="quarantine", quarantine=path)

    def test_a_quarantine_on_another_filesystem(self, local: Place) -> None:
        with pytest.raises(InvalidArgument, match="on the filesystem of the dataset"):
            local.dataset().write(ROWS, expect=RULES, on_violation="quarantine", quarantine="memory://elsewhere/q")

    def test_a_quarantine_among_partitions(self, local: Place) -> None:
        dataset = Dataset(f"{local.root}/day=1")
        with pytest.raises(InvalidArgument, match="no place for a quarantine"):
            dataset.write(ROWS, expect=RULES, on_violation="quarantine")

    def test_columns_of_the_quarantine(self, place: Place) -> None:
        rows = ROWS.append_column("broken_rules", pa.array([None] * 6, pa.string()))
        with pytest.raises(InvalidArgument, match="'broken_rules'"):
            place.dataset().write(rows, expect=RULES, on_violation="quarantine")

    def test_a_partitioned_quarantine(self, place: Place) -> None:
        place.dataset().write(ROWS, expect=RULES, on_violation="quarantine")
        Dataset(f"{place.root}_quarantine", filesystem=place.fs).repartition("day")
        before = place.state()
        with pytest.raises(InvalidArgument, match="is partitioned by 'day'"):
            place.dataset().write(ROWS, expect=RULES, on_violation="quarantine")
        assert place.state() == before
