"""Where rows come from, the same on every engine: streams of all kinds, and files of other formats."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from conftest import Place
from helpers import oracle
from parketto.engines.base import Engine

TABLE = pa.table({"day": [1, 2, 1, 3], "n": range(4), "name": ["a", "b", None, "d"]})


def rows(place: Place) -> list[dict[str, Any]]:
    found = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    return sorted((row for each in found for row in each.to_pylist()), key=lambda row: row["n"])


def batches() -> Iterator[pa.RecordBatch | pa.Table]:
    yield TABLE.slice(0, 1)
    yield from TABLE.slice(1).to_batches(max_chunksize=2)


class TestStreams:
    @pytest.mark.parametrize("partition_by", [None, "day"])
    @pytest.mark.parametrize("kind", ["generator", "list", "dataset", "scanner", "relation"])
    def test_they_are_written(
        self, place: Place, engine: Engine, kind: str, partition_by: str | None, tmp_path: Any
    ) -> None:
        source: Any = batches()
        if kind == "list":
            source = list(source)
        elif kind in ("dataset", "scanner"):
            oracle.write_files(
                str(tmp_path / "source"), {"a.parquet": TABLE.slice(0, 2), "b.parquet": TABLE.slice(2)}
            )
            source = ds.dataset(str(tmp_path / "source"))
            source = source.scanner(filter=ds.field("n") >= 0) if kind == "scanner" else source
        elif kind == "relation":
            source = pytest.importorskip("duckdb").connect().from_arrow(TABLE)
        dataset = place.dataset(engine=engine)
        plan = dataset.write(source, partition_by=partition_by, dry_run=True)
        assert plan["rows_written"] == (4 if kind in ("list", "dataset") else None)
        source = batches() if kind == "generator" else source  # its first item is gone
        assert dataset.write(source, partition_by=partition_by)["rows_written"] == 4
        assert rows(place) == TABLE.to_pylist()

    def test_a_relation_is_not_fetched_whole(self, place: Place) -> None:
        """Rows arrive in pieces: the error comes from the stream, after the first rows."""
        duckdb = pytest.importorskip("duckdb")
        query = "SELECT CASE WHEN range < 2000000 THEN range ELSE error('too far') END AS n FROM range(100000000)"
        with pytest.raises(OSError, match="too far"):
            place.dataset().write(duckdb.connect(config={"threads": 1}).sql(query))
        assert not place.fs.exists(place.root)

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ([], "empty"),
            ([1], "item 0 of the rows is of type int; expected a PyArrow"),
            (lambda: iter([TABLE, "x"]), "item 1 of the rows is of type str"),
            (lambda: iter([TABLE, TABLE.drop_columns("n")]), "item 1 of the rows has other columns"),
            ({"n": [1]}, "PyArrow"),
        ],
    )
    def test_other_objects(self, place: Place, source: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            place.dataset().write(source() if callable(source) else source)
        assert not place.fs.exists(place.root)


JSON_ROWS = [
    {"n": 0, "name": "a", "price": 1.5, "tags": ["x"], "inner": {"k": 1}},
    {"n": 1, "name": None, "price": 2, "tags": [], "inner": {"k": 2}},
    {"n": 2, "name": "ü", "price": 2.5, "tags": ["y", "z"], "inner": None},
]
CSV = ["n,name,price,day\n0,a,1.5,2026-01-01\n1,b,2.5,2026-01-02\n", "n,name,price,day\n2,ü,3.25,2026-01-02\n"]
CSV_ROWS = [
    {"n": 0, "name": "a", "price": 1.5, "day": dt.date(2026, 1, 1)},
    {"n": 1, "name": "b", "price": 2.5, "day": dt.date(2026, 1, 2)},
    {"n": 2, "name": "ü", "price": 3.25, "day": dt.date(2026, 1, 2)},
]


@pytest.fixture
def landing(place: Place) -> str:
    """A folder with files of several formats beside the dataset."""
    folder = f"{place.root}-landing"
    place.fs.makedirs(folder)
    lines = [json.dumps(row) + "\n" for row in JSON_ROWS]
    place.fs.pipe_file(f"{folder}/a.jsonl", "".join(lines[:2]).encode())
    place.fs.pipe_file(f"{folder}/b.jsonl", lines[2].encode())
    for number, text in enumerate(CSV):
        place.fs.pipe_file(f"{folder}/{number}.csv", text.encode())
    place.fs.pipe_file(f"{folder}/_hidden.csv", b"broken")
    oracle.write_files(folder, {"p.parquet": TABLE.slice(0, 2), "q.parquet": TABLE.slice(2)}, place.fs)
    return folder


def urls(place: Place, *paths: str) -> list[str]:
    """Paths as callers can open them."""
    return [path if "file" in place.fs.protocol else f"memory:/{path}" for path in paths]


class TestWriteFrom:
    def test_json(self, place: Place, engine: Engine, landing: str) -> None:
        stats = place.dataset(engine=engine).write_from(f"{landing}/*.jsonl")
        assert stats["source_files"] == urls(place, f"{landing}/a.jsonl", f"{landing}/b.jsonl")
        assert stats["rows_written"] == 3
        assert [{name: row[name] for name in JSON_ROWS[0]} for row in rows(place)] == JSON_ROWS

    @pytest.mark.parametrize("form", ["files", "path"])
    def test_csv_with_the_options_of_a_write(self, place: Place, engine: Engine, landing: str, form: Any) -> None:
        dataset = place.dataset(engine=engine)
        for _ in range(2):
            dataset.write_from(
                f"{landing}/[0-9].csv",
                mode="overwrite_partitions",
                partition_by={"month": "month(day)", "even": "n % 2"},
                partition_columns=form,
                max_rows_per_file=1,
            )
        assert [{name: row[name] for name in CSV_ROWS[0]} for row in rows(place)] == CSV_ROWS
        folders = {name.rpartition("/")[0] for name in place.files()}
        assert folders == {"month=1/even=0", "month=1/even=1"}

    def test_parquet(self, place: Place, engine: Engine, landing: str) -> None:
        stats = place.dataset(engine=engine).write_from(f"{landing}/*.parquet", partition_by="day")
        assert stats["source_files"] == urls(place, f"{landing}/p.parquet", f"{landing}/q.parquet")
        assert rows(place) == TABLE.to_pylist()

    def test_a_folder_and_a_file(self, place: Place, engine: Engine, landing: str) -> None:
        place.fs.makedirs(f"{landing}/only/deep")
        place.fs.pipe_file(f"{landing}/only/deep/x.csv.gz", gzip.compress(CSV[0].encode()))
        place.fs.pipe_file(f"{landing}/only/y.csv", CSV[1].encode())
        dataset = place.dataset(engine=engine)
        assert len(dataset.write_from(f"{landing}/only")["source_files"]) == 2
        assert rows(place) == CSV_ROWS
        assert dataset.write_from(f"{landing}/only/y.csv", mode="overwrite")["rows_written"] == 1
        place.fs.pipe_file(f"{landing}/z.txt", CSV[0].encode())
        assert dataset.write_from(f"{landing}/z.txt", format="csv", mode="overwrite")["rows_written"] == 2
        assert len(dataset.write_from(f"{landing}/**/*.csv", mode="overwrite")["source_files"]) == 3

    def test_a_dry_run(self, place: Place, engine: Engine, landing: str) -> None:
        plan = place.dataset(engine=engine).write_from(f"{landing}/*.csv", partition_by="name", dry_run=True)
        assert plan["partitions"] == {"name=a": 1, "name=b": 1, "name=ü": 1}
        assert len(plan["source_files"]) == 2
        assert not place.fs.exists(place.root)

    @pytest.mark.parametrize(
        ("path", "more", "error", "message"),
        [
            ("*.avro", {}, FileNotFoundError, r"\*\.avro"),
            ("nope", {}, FileNotFoundError, "nope"),
            ("nope/*.csv", {}, FileNotFoundError, "nope"),
            ("x.txt", {}, ValueError, r"'\.csv'.*'\.parquet'.*format="),
            ("", {}, ValueError, "several formats: csv, json, parquet"),
            ("*.csv", {"format": "avro"}, ValueError, "'csv', 'json', 'parquet'"),
            ("bad.json", {}, ValueError, r"bad\.json"),
        ],
    )
    def test_errors(
        self, place: Place, engine: Engine, landing: str, path: str, more: dict[str, Any], error: Any, message: str
    ) -> None:
        place.fs.pipe_file(f"{landing}/x.txt", b"?")
        if path.startswith("bad"):
            place.fs.pipe_file(f"{landing}/{path}", b'{"a": 1}\n{"a": \n')
        with pytest.raises(error, match=message):
            place.dataset(engine=engine).write_from(f"{landing}/{path}".rstrip("/"), **more)
        assert not place.fs.exists(place.root)

    def test_a_row_with_too_many_fields(self, place: Place) -> None:
        place.fs.makedirs(f"{place.root}-bad")
        place.fs.pipe_file(f"{place.root}-bad/bad.csv", b"a,b\n1,2\n1,2,3\n")
        with pytest.raises(ValueError, match=r"bad\.csv.*as csv"):
            place.dataset().write_from(f"{place.root}-bad/bad.csv")

    def test_only_empty_fields_are_null(self, place: Place, engine: Engine) -> None:
        place.fs.makedirs(f"{place.root}-nulls")
        place.fs.pipe_file(f"{place.root}-nulls/a.csv", b"n,name,x\n0,NA,1.5\n1,,\n2,null,2.5\n3,nan,\n")
        place.dataset(engine=engine).write_from(f"{place.root}-nulls/a.csv")
        assert [row["name"] for row in rows(place)] == ["NA", None, "null", "nan"]
        assert [row["x"] for row in rows(place)] == [1.5, None, 2.5, None]

    def test_types_that_only_later_files_have(self, place: Place) -> None:
        """The first rows of every file count, and NULLs are no type."""
        folder = f"{place.root}-later"
        place.fs.makedirs(folder)
        for number, line in enumerate(['{"n": 0, "x": null}', '{"n": 1, "x": 2}', '{"n": 2, "x": 2.5, "y": "s"}']):
            place.fs.pipe_file(f"{folder}/{number}.json", line.encode())
        place.dataset().write_from(f"{folder}/*.json")
        assert rows(place) == [
            {"n": 0, "x": None, "y": None},
            {"n": 1, "x": 2.0, "y": None},
            {"n": 2, "x": 2.5, "y": "s"},
        ]
