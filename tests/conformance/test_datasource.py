"""`format("parketto")`: batches and streams through Spark's own readers and writers."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import parketto
from conftest import Place
from parketto import Dataset

ROWS = pa.table(
    {
        "id": pa.array(range(30), pa.int64()),
        "day": pa.array([number % 3 for number in range(30)], pa.int32()),
        "name": [None if number % 7 == 0 else f"n{number}" for number in range(30)],
        "at": pa.array([dt.datetime(2026, 1, 1, hour=number % 24, tzinfo=dt.UTC) for number in range(30)]),
        "price": pa.array([Decimal(number) / 4 for number in range(30)], pa.decimal128(10, 2)),
        "tags": [[f"t{number}", None] for number in range(30)],
        "box": [{"x": number, "y": None} for number in range(30)],
    },
    schema=pa.schema(
        {
            "id": pa.int64(),
            "day": pa.int32(),
            "name": pa.string(),
            "at": pa.timestamp("us", "UTC"),
            "price": pa.decimal128(10, 2),
            "tags": pa.list_(pa.field("element", pa.string())),
            "box": pa.struct({"x": pa.int64(), "y": pa.string()}),
        }
    ),
)


def frame(spark: Any, rows: pa.Table = ROWS) -> Any:
    return spark.createDataFrame(rows)


def read(spark: Any, path: str, **options: str) -> list[Any]:
    return spark.read.format("parketto").options(**options).load(path).orderBy("id").collect()


def by_id(table: pa.Table) -> pa.Table:
    return table.sort_by("id")


def staged(place: Place) -> list[str]:
    return [path for path in place.left_behind() if "/tx-" in path]


@pytest.fixture
def spark_place(local: Place, spark: Any) -> Place:
    Path(local.root).parent.mkdir(parents=True, exist_ok=True)
    return local


class TestBatches:
    def test_rows_and_types_survive(self, spark: Any, spark_place: Place) -> None:
        path = spark_place.root
        frame(spark).write.format("parketto").mode("append").option("partition_by", "day").save(path)
        dataset = spark_place.dataset()
        assert dataset.schema.equals(ROWS.schema)
        assert by_id(dataset.read()).equals(ROWS)
        assert {file.partition for file in dataset.files()} == {(("day", str(day)),) for day in range(3)}
        assert [row.asDict(recursive=True) for row in read(spark, path)] == [
            row.asDict(recursive=True) for row in frame(spark).orderBy("id").collect()
        ]
        assert not staged(spark_place)

    def test_modes(self, spark: Any, spark_place: Place) -> None:
        path, dataset = spark_place.root, spark_place.dataset()
        some = frame(spark).select("id", "day")
        some.write.format("parketto").mode("append").option("partition_by", "day").save(path)
        some.where("id < 3").write.format("parketto").mode("append").save(path)
        assert dataset.count() == 33
        replaced = some.where("day = 1").limit(1).write.format("parketto").mode("overwrite")
        replaced.option("overwrite_partitions", "true").save(path)
        assert dataset.count("day = 1") == 1
        assert dataset.count() == 23
        matching = some.where("id BETWEEN 10 AND 20").write.format("parketto").mode("overwrite")
        matching.option("replace_where", "id BETWEEN 10 AND 20").save(path)
        assert dataset.count("id BETWEEN 10 AND 20") == 11
        some.where("id = 5").write.format("parketto").mode("overwrite").save(path)
        assert dataset.read().to_pydict() == {"id": [5], "day": [2]}
        operations = [commit["operation"] for commit in dataset.history()]
        assert operations == ["overwrite", "overwrite", "overwrite_partitions", "append", "append"]

    def test_a_commit_id_is_committed_once(self, spark: Any, spark_place: Place) -> None:
        write = frame(spark).write.format("parketto").mode("append").option("commit_id", "load:1")
        write.save(spark_place.root)
        write.save(spark_place.root)
        assert spark_place.dataset().count() == ROWS.num_rows
        assert not staged(spark_place)

    def test_reads_are_pruned(self, spark: Any, spark_place: Place) -> None:
        dataset = spark_place.dataset()
        dataset.write(ROWS, partition_by="day", partition_columns="path")
        reader = spark.read.format("parketto").option("where", "day = 1 AND id > 20").option("columns", "id,day")
        found = reader.load(spark_place.root)
        assert found.columns == ["id", "day"]
        assert sorted(map(tuple, found.collect())) == [(22, 1), (25, 1), (28, 1)]
        projected = spark.read.format("parketto").schema("id bigint").load(spark_place.root)
        assert sorted(row.id for row in projected.collect()) == list(range(30))

    def test_files_that_differ_are_read_in_one_schema(self, spark: Any, spark_place: Place) -> None:
        spark_place.write_files(
            {
                "a.parquet": pa.table({"id": pa.array([1], pa.int32())}),
                "b.parquet": pa.table(
                    {"id": pa.array([2**40], pa.int64()), "note": pa.array(["x"], pa.large_string())}
                ),
            }
        )
        assert [tuple(row) for row in read(spark, spark_place.root)] == [(1, None), (2**40, "x")]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"partition": "day"}, "has no option 'partition'"),
            ({"max_rows_per_file": "many"}, "option 'max_rows_per_file' has the value 'many'"),
            ({"overwrite_partitions": "true"}, "overwrite_partitions needs .mode"),
            ({"partition_by": "when"}, "when"),
        ],
    )
    def test_bad_options_are_refused_before_anything_is_written(
        self, spark: Any, spark_place: Place, options: dict[str, str], message: str
    ) -> None:
        with pytest.raises(Exception, match=message):
            frame(spark).write.format("parketto").mode("append").options(**options).save(spark_place.root)
        assert not Path(spark_place.root).exists()
        assert not spark_place.left_behind()

    def test_rows_that_do_not_fit_are_refused(self, spark: Any, spark_place: Place) -> None:
        spark_place.dataset().write(pa.table({"id": [1]}))
        with pytest.raises(Exception, match="name"):
            frame(spark).write.format("parketto").mode("append").save(spark_place.root)
        assert spark_place.dataset().count() == 1
        assert not staged(spark_place)

    def test_a_failed_task_leaves_nothing(self, spark: Any, spark_place: Place) -> None:
        spark_place.dataset().write(pa.table({"id": pa.array([1], pa.int64())}))
        failing = (
            spark.range(10)
            .selectExpr("IF(id = 7, raise_error('no'), id) AS id")
            .selectExpr("CAST(id AS BIGINT) id")
        )
        with pytest.raises(Exception, match="no"):
            failing.write.format("parketto").mode("append").save(spark_place.root)
        assert spark_place.dataset().count() == 1
        assert not staged(spark_place)


@pytest.fixture
def landing(tmp_path: Path) -> Callable[[int, int], str]:
    """Adds files of JSON lines, with the given first and last id."""

    def land(first: int, last: int) -> str:
        folder = tmp_path / "landing"
        folder.mkdir(exist_ok=True)
        lines = [json.dumps({"id": number, "day": number % 2}) for number in range(first, last)]
        (folder / f"{first:06d}.json").write_text("\n".join(lines))
        return str(folder)

    return land


def stream(spark: Any, folder: str, per_batch: int = 1) -> Any:
    return spark.readStream.schema("id BIGINT, day INT").option("maxFilesPerTrigger", per_batch).json(folder)


def run(writer: Any, path: str | None, checkpoint: Path) -> None:
    """Process everything that is there."""
    started = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = started.start() if path is None else started.start(path)
    query.awaitTermination()


class TestStreams:
    def test_each_micro_batch_is_one_commit(
        self, spark: Any, spark_place: Place, landing: Callable[[int, int], str], tmp_path: Path
    ) -> None:
        for first in (0, 10):
            landing(first, first + 10)
        folder = landing(20, 30)
        source, checkpoint = stream(spark, folder), tmp_path / "checkpoint"
        writer = source.writeStream.format("parketto").option("partition_by", "day")
        run(writer.queryName("named"), spark_place.root, checkpoint)  # as flows of a pipeline are
        dataset = spark_place.dataset()
        assert sorted(dataset.read().column("id").to_pylist()) == list(range(30))
        identity = json.loads((checkpoint / "metadata").read_text())["id"]
        commits = dataset.history()[::-1]
        assert [commit["commit_id"] for commit in commits] == [f"{identity}:{number}" for number in range(3)]
        assert [commit["arguments"]["batch_id"] for commit in commits] == [0, 1, 2]
        assert not staged(spark_place)

    def test_replayed_micro_batches_have_no_effect(
        self, spark: Any, spark_place: Place, landing: Callable[[int, int], str], tmp_path: Path
    ) -> None:
        """A checkpoint that is restored from an older copy replays micro-batches that are in the log."""
        checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
        writer = stream(spark, landing(0, 10)).writeStream.format("parketto")
        run(writer, spark_place.root, checkpoint)
        shutil.copytree(checkpoint, older)
        for first in (10, 20):
            landing(first, first + 10)
        run(writer, spark_place.root, checkpoint)
        shutil.rmtree(checkpoint)
        shutil.copytree(older, checkpoint)
        run(writer, spark_place.root, checkpoint)
        landing(30, 40)
        run(writer, spark_place.root, checkpoint)
        assert sorted(spark_place.dataset().read().column("id").to_pylist()) == list(range(40))
        assert not staged(spark_place)

    def test_a_replay_with_other_rows_is_refused(
        self, spark: Any, spark_place: Place, landing: Callable[[int, int], str], tmp_path: Path
    ) -> None:
        """After a kill, a source may put more files into a micro-batch than before: a skip would lose rows."""
        checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
        writer = stream(spark, landing(0, 10)).writeStream.format("parketto")
        run(writer, spark_place.root, checkpoint)
        shutil.copytree(checkpoint, older)
        for first in (10, 20):
            landing(first, first + 10)
        run(writer, spark_place.root, checkpoint)
        # An older copy is restored, and Spark killed after the source chose a file, before it logged the batch.
        shutil.copy(checkpoint / "sources/0/1", older / "sources/0/1")
        shutil.rmtree(checkpoint)
        shutil.copytree(older, checkpoint)
        with pytest.raises(Exception, match="was committed with other offsets of its sources"):
            run(writer, spark_place.root, checkpoint)
        assert spark_place.dataset().count() == 30
        assert not staged(spark_place)

    def test_a_new_checkpoint_is_a_new_stream(
        self, spark: Any, spark_place: Place, landing: Callable[[int, int], str], tmp_path: Path
    ) -> None:
        """Its micro-batches have the numbers of the old stream's, and are no replays."""
        checkpoint = tmp_path / "checkpoint"
        for first in (0, 10):
            folder = landing(first, first + 10)
            run(stream(spark, folder).writeStream.format("parketto"), spark_place.root, checkpoint)
            shutil.rmtree(checkpoint)
            shutil.rmtree(folder)
        assert spark_place.dataset().count() == 20

    def test_rows_that_break_a_rule_are_quarantined(
        self, spark: Any, spark_place: Place, landing: Callable[[int, int], str], tmp_path: Path
    ) -> None:
        """Once, also if their micro-batch is replayed."""
        checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
        rules = {"expect": json.dumps({"small": "id < 15"}), "on_violation": "quarantine"}
        writer = stream(spark, landing(0, 10)).writeStream.format("parketto").options(**rules)
        run(writer, spark_place.root, checkpoint)
        shutil.copytree(checkpoint, older)
        landing(10, 20)
        run(writer, spark_place.root, checkpoint)
        shutil.rmtree(checkpoint)
        shutil.copytree(older, checkpoint)
        run(writer, spark_place.root, checkpoint)
        assert sorted(spark_place.dataset().read().column("id").to_pylist()) == list(range(15))
        kept = Dataset(f"{spark_place.root}_quarantine", "pyarrow").read()
        assert sorted(kept.column("id").to_pylist()) == list(range(15, 20))
        assert spark_place.dataset().history()[0]["statistics"]["expectations"] == {
            "small": {"passed": 5, "violations": 5}
        }

    def test_small_files_are_absorbed(
        self, spark: Any, spark_place: Place, landing: Callable[[int, int], str], tmp_path: Path
    ) -> None:
        for first in range(0, 100, 10):
            folder = landing(first, first + 10)
        writer = stream(spark, folder).coalesce(1).writeStream.format("parketto")
        run(writer, spark_place.root, tmp_path / "checkpoint")
        dataset = spark_place.dataset()
        assert sorted(dataset.read().column("id").to_pylist()) == list(range(100))
        assert len(dataset.files()) == 3
        assert [commit["operation"] for commit in dataset.history()].count("compact") == 1

    def test_two_streams_and_a_compaction_at_once(
        self, spark: Any, spark_place: Place, landing: Callable[[int, int], str], tmp_path: Path
    ) -> None:
        for first in range(0, 60, 10):
            folder = landing(first, first + 10)
        dataset, queries = spark_place.dataset(retries=3), []
        for name in ("one", "two"):
            writer = stream(spark, folder).writeStream.format("parketto").trigger(availableNow=True)
            queries.append(writer.option("checkpointLocation", str(tmp_path / name)).start(spark_place.root))
        while any(query.isActive for query in queries):
            if dataset.exists():
                dataset.compact()
            time.sleep(0.1)
        for query in queries:
            query.awaitTermination()  # raises the error of a query
        assert sorted(dataset.read().column("id").to_pylist()) == sorted([*range(60)] * 2)
        assert not staged(spark_place)

    def test_upserts(
        self, spark: Any, spark_place: Place, landing: Callable[[int, int], str], tmp_path: Path
    ) -> None:
        checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
        upsert = parketto.streaming.merge(spark_place.root, ["id"])
        writer = stream(spark, landing(0, 10)).writeStream.foreachBatch(upsert)
        run(writer, None, checkpoint)
        shutil.copytree(checkpoint, older)
        landing(5, 15)
        run(writer, None, checkpoint)
        dataset = spark_place.dataset()
        dataset.delete("id = 7")
        shutil.rmtree(checkpoint)
        shutil.copytree(older, checkpoint)
        run(writer, None, checkpoint)  # it would bring id 7 back if it were not recognised
        assert sorted(dataset.read().column("id").to_pylist()) == [*range(7), *range(8, 15)]

    def test_change_records(
        self, spark: Any, spark_place: Place, landing: Callable[[int, int], str], tmp_path: Path
    ) -> None:
        changes = parketto.streaming.apply_changes(
            spark_place.root, ["day"], sequence_by="id", delete_when="id = 19"
        )
        for first in (10, 0):
            folder = landing(first, first + 10)
        run(stream(spark, folder).writeStream.foreachBatch(changes), None, tmp_path / "checkpoint")
        assert spark_place.dataset().read().to_pydict() == {"id": [18], "day": [0]}

    def test_a_merge_sets_its_own_commit_id(self) -> None:
        with pytest.raises(parketto.InvalidArgument, match="commit_id"):
            parketto.streaming.merge("x", ["id"], commit_id="a:1")


def test_no_session_is_needed_to_stage_and_commit(memory: Place) -> None:
    """What a connector does, in one process."""
    dataset: Dataset = memory.dataset()
    write = dataset.begin_write(ROWS.schema, partition_by="day")
    parts = [write.stage(ROWS.to_batches(), attempt=f"{number}") for number in range(2)]
    assert write.commit(parts)["rows_written"] == 2 * ROWS.num_rows
